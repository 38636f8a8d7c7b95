/* reuse_copies.c - many at once: copies of one prompt have one answer, and chats that know a word each keep it to themselves. */
#include "model/text/text.h"
#include "reuse_rig.h"

void test_copies_of_one_prompt(void **state) {
    (void)state;
    bench *b = &benches[0];
    open_bench(b, &(setting){.n_seq = 64});
    static const uint32_t n_copy[] = {2, 3, 4, 8, 16, 64};
    static text keep[MAX_TEXT];
    static outcome cold[MAX_TEXT];
    memcpy(keep, b->text, sizeof keep);
    memcpy(cold, b->cold, sizeof cold);
    uint32_t n_text = b->n_text;
    for (size_t k = 0; k < LG_COUNT(n_copy); k++) {
        if (few() && n_copy[k] > 16) continue;
        b->n_text = n_copy[k];
        for (uint32_t i = 0; i < b->n_text; i++) {
            b->text[i] = keep[k];
            b->cold[i] = cold[k];
        }
        run_all(b, false);
        expect_same(b, "copies of one prompt");
    }
    memcpy(b->text, keep, sizeof keep);
    memcpy(b->cold, cold, sizeof cold);
    b->n_text = n_text;
    close_bench(b);
}

/* ---- code words ---- */

#define MAX_WORD 64

static uint32_t code_of(uint32_t i) {
    return 100 + (uint32_t)((i * 577 + 311) % 900);
}

/* Chats that each know one number: all asked at once, nobody says another's. */
void test_code_words_stay_with_their_owners(void **state) {
    (void)state;
    static const uint32_t n_word[] = {2, 3, 4, 8, 16, 64};
    bench *b = &benches[0];
    lg_err err = {0};
    char path[1024];
    const char *root = getenv("LG_SOURCE_DIR");
    lg_text *chat;
    static text keep[MAX_TEXT];
    static outcome cold[MAX_TEXT];
    uint32_t n_text = b->n_text, n_right = 0, n_all = 0;
    snprintf(path, sizeof path, "%s/%s", root ? root : ".", b->path);
    if (lg_text_open(path, &chat, &err)) fail_msg("%s", err.msg);
    memcpy(keep, b->text, sizeof keep);
    memcpy(cold, b->cold, sizeof cold);
    for (uint32_t i = 0; i < MAX_WORD; i++) {
        char json[512];
        uint32_t *ids;
        size_t n_id;
        snprintf(json, sizeof json,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"The code for river is %u.\\n"
                 "What is the code for river?\"}],\"enable_thinking\":false}",
                 code_of(i));
        if (lg_text_chat(chat, json, strlen(json), &ids, &n_id, &err)) fail_msg("%s", err.msg);
        assert_true(n_id < MAX_PROMPT);
        memcpy(b->text[i].ids, ids, n_id * sizeof *ids);
        b->text[i].n_id = (uint32_t)n_id;
        lg_free(ids);
    }
    open_bench(b, &(setting){.n_seq = 64});
    for (uint32_t k = 0; k < LG_COUNT(n_word); k++) {
        if (few() && n_word[k] > 16) continue;
        b->n_text = n_word[k];
        run_all(b, false);
        for (uint32_t i = 0; i < b->n_text; i++, n_all++) {
            char *said, code[8];
            size_t len;
            assert_int_equal(
                lg_text_decode(chat, b->got[i].id, b->got[i].n, false, &said, &len, &err),
                LG_OK);
            for (uint32_t j = 0; j < b->n_text; j++) {
                snprintf(code, sizeof code, "%u", code_of(j));
                bool there = strstr(said, code) != NULL;
                if (there && j != i)
                    fail_msg("%u at once: number %u said %s: %s", b->n_text, i, code, said);
                n_right += there;
            }
            lg_free(said);
        }
    }
    print_message("  %u of %u chats said their own number, none another's\n", n_right, n_all);
    assert_true(n_right > n_all * 3 / 4);
    close_bench(b);
    lg_text_close(&chat);
    memcpy(b->text, keep, sizeof keep);
    memcpy(b->cold, cold, sizeof cold);
    b->n_text = n_text;
}
