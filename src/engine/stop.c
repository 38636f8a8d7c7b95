/* stop.c - stop strings in a stream of bytes (Knuth, Morris, Pratt 1977): see engine.h.
 *
 * Work per byte does not depend on how long a stop string is, nor on where tokens are cut.
 * Thread: engine.  Memory: the caller's.  Test: tests/unit/test_engine.c */
#include "engine/engine.h"

/* Longest prefix of s that is a suffix of (s[0, k) + c). */
static uint32_t advance(const char *s, const uint32_t *border, uint32_t k, char c) {
    while (k > 0 && s[k] != c) k = border[k - 1];
    return s[k] == c ? k + 1 : 0;
}

void lg_stop_init(lg_stop *stop) {
    for (uint32_t i = 0; i < stop->n; i++) {
        stop->matched[i] = 0;
        stop->border[i][0] = 0;
        for (uint32_t j = 1; j < stop->len_bytes[i]; j++)
            stop->border[i][j] =
                advance(stop->s[i], stop->border[i], stop->border[i][j - 1], stop->s[i][j]);
    }
}

bool lg_stop_put(lg_stop *stop, char c, uint32_t *index) {
    uint32_t longest = 0;
    for (uint32_t i = 0; i < stop->n; i++) {
        stop->matched[i] = advance(stop->s[i], stop->border[i], stop->matched[i], c);
        if (stop->matched[i] < stop->len_bytes[i] || stop->len_bytes[i] <= longest) continue;
        longest = stop->len_bytes[i];
        *index = i;
    }
    return longest > 0;
}

uint32_t lg_stop_held(const lg_stop *stop) {
    uint32_t held = 0;
    for (uint32_t i = 0; i < stop->n; i++)
        if (stop->matched[i] > held) held = stop->matched[i];
    return held;
}
