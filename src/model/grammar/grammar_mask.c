/* grammar_mask.c - which ids may come next: see grammar.h.
 *
 * In:  a state.   Out: a bit for each id.
 * The pieces are walked in the order of their bytes: what two in a row begin with alike is walked once, and after a byte that
 * cannot stand, all that begin so are passed over.  Within a string most pieces are plain text and need no walk.
 * Thread: one at a time.  Memory: 32 bytes for each id, and a state (1 KiB) for each byte of the longest piece.  Test:
 * tests/unit/test_grammar.c */
#include "model/grammar/grammar.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

typedef struct piece {
    uint64_t head; /* the first 8 bytes, for quick comparisons */
    const char *s; /* the tokenizer's */
    uint32_t id;
    uint16_t len_bytes, same; /* bytes that it shares with the piece before it */
    uint16_t n_plain; /* code points of a plain text, see lg_grammar_n_plain; NOT_PLAIN */
} piece;

#define NOT_PLAIN UINT16_MAX

struct lg_grammar_vocab {
    piece *piece; /* [n] in order */
    uint32_t n, n_id;
    lg_grammar_state *state; /* [longest + 1]: after so many bytes of the piece at hand */
};

static int by_bytes(const void *pa, const void *pb) {
    const piece *a = pa, *b = pb;
    if (a->head != b->head) return a->head < b->head ? -1 : 1;
    size_t n = a->len_bytes < b->len_bytes ? a->len_bytes : b->len_bytes;
    int c = memcmp(a->s, b->s, n);
    if (c) return c;
    if (a->len_bytes != b->len_bytes) return a->len_bytes < b->len_bytes ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static uint16_t n_plain(const char *s, size_t len) {
    uint16_t n = 0;
    if (!lg_utf8_valid(s, len)) return NOT_PLAIN;
    for (size_t i = 0; i < len; i++) {
        uint8_t c = (uint8_t)s[i];
        if (c < 0x20 || c == '"' || c == '\\' || c == '<') return NOT_PLAIN;
        if ((c & 0xc0) != 0x80) n++;
    }
    return n;
}

/* Fill *p; false for an id that cannot be text: it means nothing, or is special. */
static bool read_piece(const lg_tokenizer *tok, uint32_t id, piece *p) {
    bool added, special;
    size_t len;
    *p = (piece){.id = id};
    if (!lg_tokenizer_piece(tok, id, &p->s, &len, &added, &special)) return false;
    if (special || len == 0 || len > 1024) return false;
    p->len_bytes = (uint16_t)len;
    p->n_plain = n_plain(p->s, len);
    for (size_t i = 0; i < 8; i++) p->head = p->head << 8 | (i < len ? (uint8_t)p->s[i] : 0);
    return true;
}

lg_status lg_grammar_vocab_open(const lg_tokenizer *tok, uint32_t n_id, lg_grammar_vocab **v) {
    lg_grammar_vocab *w = *v = lg_mem_alloc(sizeof *w);
    uint16_t longest = 0;
    if (!w) return LG_E_NOMEM;
    w->n_id = n_id;
    w->piece = lg_mem_calloc(n_id ? n_id : 1, sizeof *w->piece);
    for (uint32_t id = 0; id < n_id && w->piece; id++)
        w->n += read_piece(tok, id, &w->piece[w->n]);
    if (w->piece) qsort(w->piece, w->n, sizeof *w->piece, by_bytes);
    for (uint32_t i = 0; i < w->n; i++) {
        piece *p = &w->piece[i];
        if (p->len_bytes > longest) longest = p->len_bytes;
        while (i > 0 && p->same < p->len_bytes && p->same < p[-1].len_bytes &&
               p->s[p->same] == p[-1].s[p->same])
            p->same++;
    }
    w->state = lg_mem_calloc((size_t)longest + 1, sizeof *w->state);
    if (w->piece && w->state) return LG_OK;
    lg_grammar_vocab_close(v);
    return LG_E_NOMEM;
}

size_t lg_grammar_vocab_bytes(const lg_tokenizer *tok, uint32_t n_id) {
    size_t longest = 0;
    for (uint32_t id = 0; id < n_id; id++) {
        piece p;
        if (read_piece(tok, id, &p) && p.len_bytes > longest) longest = p.len_bytes;
    }
    return sizeof(lg_grammar_vocab) + ((size_t)n_id + 1) * sizeof(piece) +
           (longest + 1) * sizeof(lg_grammar_state);
}

void lg_grammar_vocab_close(lg_grammar_vocab **v) {
    if (!*v) return;
    lg_mem_free((*v)->piece);
    lg_mem_free((*v)->state);
    LG_FREE(*v);
}

uint32_t lg_grammar_mask(lg_grammar_vocab *v, const lg_grammar *g, const lg_grammar_state *s,
                         uint32_t *mask) {
    uint32_t n_set = 0;
    uint32_t bad = UINT32_MAX; /* bytes of the last piece up to one that cannot stand */
    uint32_t have = 0;         /* bytes of it after which the state is known */
    uint32_t room = lg_grammar_n_plain(g, s);
    memset(mask, 0, (v->n_id + 31) / 32 * sizeof *mask);
    lg_grammar_copy(&v->state[0], s);
    for (uint32_t i = 0; i < v->n; i++) {
        const piece *p = &v->piece[i];
        if (p->same < have) have = p->same;
        if (p->same > bad) continue;
        bad = UINT32_MAX;
        bool walk = p->n_plain == NOT_PLAIN || p->n_plain > room;
        while (walk && have < p->len_bytes && bad == UINT32_MAX) {
            lg_grammar_copy(&v->state[have + 1], &v->state[have]);
            if (lg_grammar_step(g, &v->state[have + 1], (uint8_t)p->s[have]))
                have++;
            else
                bad = have;
        }
        if (bad != UINT32_MAX) continue;
        mask[p->id / 32] |= 1u << p->id % 32;
        n_set++;
    }
    return n_set;
}
