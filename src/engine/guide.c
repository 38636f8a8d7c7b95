/* guide.c - the ids that may come next: see guide.h.
 *
 * In:  ids as they are sampled.   Out: a mask.   Policy: the masks of the last KEPT different states are kept, the one that was
 * used longest ago goes.
 * Thread: engine.  Memory: one block for each guide.  Test: tests/unit/test_guide.c */
#include "engine/guide.h"

#include <string.h>

enum { KEPT = 6 };

typedef struct kept {
    lg_grammar_state state;
    uint32_t *mask; /* [n_word] in the guide's block */
    bool any;       /* a bit is set */
    uint64_t used;  /* 0: empty */
} kept;

struct lg_guide {
    lg_guide_kit *kit;
    uint64_t bytes; /* of the kit's */
    lg_grammar *grammar;
    lg_grammar_state state;
    bool over; /* an end was taken, or an id that does not fit */
    kept kept[KEPT];
    const kept *now;
    uint64_t clock;
    uint32_t mask[]; /* [KEPT][n_word] */
};

void lg_guide_kit_fini(lg_guide_kit *kit) {
    lg_grammar_vocab_close(&kit->vocab);
    kit->used_bytes = 0;
}

static bool is_eos(const lg_guide_kit *kit, uint32_t id) {
    for (uint32_t i = 0; i < kit->n_eos; i++)
        if (kit->eos[i] == id) return true;
    return false;
}

static void fill(lg_guide *g, kept *k) {
    lg_guide_kit *kit = g->kit;
    lg_grammar_copy(&k->state, &g->state);
    k->any = lg_grammar_mask(kit->vocab, g->grammar, &g->state, k->mask) > 0;
    bool end = lg_grammar_may_end(g->grammar, &g->state);
    for (uint32_t i = 0; i < kit->n_eos; i++) {
        uint32_t id = kit->eos[i], bit = 1u << id % 32;
        if (id >= kit->n_id) continue;
        k->mask[id / 32] = end ? k->mask[id / 32] | bit : k->mask[id / 32] & ~bit;
        k->any |= end;
    }
}

static void find_mask(lg_guide *g) {
    kept *oldest = &g->kept[0];
    g->clock++;
    for (int i = 0; i < KEPT; i++) {
        kept *k = &g->kept[i];
        if (k->used < oldest->used) oldest = k;
        if (!k->used || !lg_grammar_same(&k->state, &g->state)) continue;
        k->used = g->clock;
        g->now = k;
        return;
    }
    fill(g, oldest);
    oldest->used = g->clock;
    g->now = oldest;
}

/* Go on by the bytes of an id; false when they do not fit. */
static bool follow(lg_guide *g, uint32_t id) {
    const char *s;
    size_t len;
    bool added, special;
    if (!lg_tokenizer_piece(g->kit->tok, id, &s, &len, &added, &special) || special)
        return false;
    for (size_t i = 0; i < len; i++)
        if (!lg_grammar_step(g->grammar, &g->state, (uint8_t)s[i])) return false;
    return true;
}

/* Take memory from the kit's, or say that it does not suffice. */
static lg_status take_bytes(lg_guide_kit *kit, uint64_t bytes, lg_err *err) {
    if (kit->limit_bytes && kit->used_bytes + bytes > kit->limit_bytes)
        return LG_FAIL(
            err, LG_E_NOMEM,
            "grammar: the forms of all answers under way would take %llu KiB; of the "
            "memory budget %llu KiB are for them",
            (unsigned long long)((kit->used_bytes + bytes) >> 10),
            (unsigned long long)(kit->limit_bytes >> 10));
    kit->used_bytes += bytes;
    return LG_OK;
}

static lg_status open_vocab(lg_guide_kit *kit, lg_err *err) {
    if (kit->vocab) return LG_OK;
    LG_TRY(take_bytes(kit, lg_grammar_vocab_bytes(kit->tok, kit->n_id), err));
    if (lg_grammar_vocab_open(kit->tok, kit->n_id, &kit->vocab) == LG_OK) return LG_OK;
    kit->used_bytes = 0;
    return LG_FAIL(err, LG_E_NOMEM, "grammar: no memory for the list of ids");
}

lg_status lg_guide_open(lg_guide_kit *kit, const char *source, bool think, const uint32_t *ids,
                        uint32_t n_id, lg_guide **guide, lg_err *err) {
    size_t n_word = (kit->n_id + 31) / 32;
    *guide = NULL;
    LG_TRY(open_vocab(kit, err));
    size_t bytes = sizeof(lg_guide) + KEPT * n_word * sizeof(uint32_t);
    lg_guide *g = lg_mem_alloc(bytes);
    if (!g) return LG_FAIL(err, LG_E_NOMEM, "grammar: no memory for its masks");
    g->kit = kit;
    for (int i = 0; i < KEPT; i++) g->kept[i].mask = g->mask + (size_t)i * n_word;
    lg_status st = lg_grammar_open(source, strlen(source), &g->grammar, err);
    if (st == LG_OK) bytes += lg_grammar_bytes(g->grammar);
    if (st == LG_OK) st = take_bytes(kit, bytes, err);
    if (st == LG_OK) g->bytes = bytes;
    if (st == LG_OK) lg_grammar_begin(g->grammar, think, &g->state);
    for (uint32_t i = 0; i < n_id && st == LG_OK && !g->over; i++) {
        g->over = is_eos(kit, ids[i]);
        if (!g->over && !follow(g, ids[i]))
            st = LG_FAIL(err, LG_E_ARG, "grammar: produced id %u does not fit it", i);
    }
    if (st == LG_OK && !g->over) find_mask(g);
    *guide = g;
    if (st != LG_OK) lg_guide_close(guide);
    return st;
}

void lg_guide_close(lg_guide **guide) {
    if (!*guide) return;
    (*guide)->kit->used_bytes -= (*guide)->bytes;
    lg_grammar_close(&(*guide)->grammar);
    LG_FREE(*guide);
}

void lg_guide_take(lg_guide *g, uint32_t id) {
    g->over |= is_eos(g->kit, id) || !follow(g, id);
    if (!g->over) find_mask(g);
}

const uint32_t *lg_guide_mask(const lg_guide *g) {
    return g->over || !g->now || !g->now->any ? NULL : g->now->mask;
}
