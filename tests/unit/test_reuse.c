/* test_reuse.c - the same answer however it was come by: cold, warm, in company, in pieces, by any number of threads, after
 * evictions, after a cancel, continued from produced ids, put back into the queue at any point, with a snapshot and without, restored
 * from files after a restart.
 *
 * Compared for each prompt: the greedy ids and a hash of every logits row they were chosen from, bit for bit.  Prompts: the
 * 200 evaluation chats of the bundled model, and 120 random texts with shared beginnings for the golden model tiny-moe.
 * Each mutation (a snapshot without its recurrent part, one taken a token late, a file without state or pages) must show.
 * The harness is reuse_rig.c, the axes are reuse_axes.c and other files reuse_*.c.  How much is computed again: test_kept.c.  The same
 * on a device: test_pjrt_reuse.c. */
#include "reuse_rig.h"

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warm_and_batched),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_one_thread),
        cmocka_unit_test(test_every_boundary),
        cmocka_unit_test(test_after_evictions),
        cmocka_unit_test(test_after_cancels),
        cmocka_unit_test(test_put_back),
        cmocka_unit_test(test_continued),
        cmocka_unit_test(test_copies_of_one_prompt),
        cmocka_unit_test(test_code_words_stay_with_their_owners),
        cmocka_unit_test(test_restored),
        cmocka_unit_test(test_mutations_show),
        cmocka_unit_test(test_mutated_files_show),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
