/* reuse_put_back.c - sequences that are put back into the queue at any point go on with the same bits. */
#include "reuse_rig.h"

void test_put_back(void **state) {
    (void)state;
    EACH(b) {
        for (uint32_t cache = 0; cache < 2; cache++) {
            open_bench(b, &(setting){.n_seq = 6, .n_batch_tok = 40, .no_cache = !cache});
            uint32_t n = run_putting_back(b);
            lg_stats st;
            lg_get_stats(b->eng, &st);
            print_message("  put back %u times, %u with a snapshot, %u tokens computed again\n",
                          n, (uint32_t)st.n_preempt_kept, (uint32_t)st.n_again_tok);
            assert_true(n > b->n_text / 2 && st.n_again_tok > 0);
            assert_true(cache ? st.n_preempt_kept > 0 : st.n_preempt_kept == 0);
            expect_same(b, cache ? "put back" : "put back, nothing kept");
            close_bench(b);
        }
    }
}
