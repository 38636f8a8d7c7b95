/* sample.c - from one row of logits to one token.
 *
 * In:  a logits row, what the sequence asks for and what it has produced.   Out: lg_sampled.
 * Order: logit bias; repetition, frequency and presence penalty; the mask; here log-probabilities are taken; then temperature,
 * top-k, top-p over what top-k left, min-p; then one draw.  Ids from n_sample_vocab up do not exist for any of it.
 * Invariants: a pure function of its arguments.  Ties go to the lower id.  Candidates are ranked by one 64-bit key
 * (logit, then id), and only as far down as the draw needs: a full sort of the vocabulary is never made in advance.
 * Thread: any, with its own work memory.  Memory: work.  Test: tests/unit/test_sample.c */
#include "backend/backend.h"
#include "base/num.h"

#include <math.h>

#define FIRST_BLOCK                                                                            \
    64 /* candidates ranked first; each further block is as large as all before it */

#define SKIP 32 /* logits looked at together where most are too small to count */

/* Candidates, best first as far as `n_ranked`. */
typedef struct ranking {
    uint64_t *key;
    size_t n, n_ranked;
} ranking;

/* Larger is better: the logit in an order-preserving form, then the lower id. */
static uint64_t key_of(float logit, uint32_t id) {
    uint32_t u = lg_num_bits_of_float(logit + 0.0f); /* -0 and 0 are equal */
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | (uint32_t)~id;
}

static uint32_t id_of(uint64_t key) {
    return ~(uint32_t)key;
}

static float logit_of(uint64_t key) {
    uint32_t u = (uint32_t)(key >> 32);
    return lg_num_float_of_bits(u & 0x80000000u ? u & 0x7fffffffu : ~u);
}

static void swap_key(uint64_t *a, uint64_t *b) {
    uint64_t t = *a;
    *a = *b;
    *b = t;
}

/* Move the median of first, middle and last to the end of a[lo, hi). */
static void pick_pivot(uint64_t *a, size_t lo, size_t hi) {
    size_t mid = lo + (hi - lo) / 2, last = hi - 1;
    if (a[lo] < a[mid]) swap_key(&a[lo], &a[mid]);
    if (a[lo] < a[last]) swap_key(&a[lo], &a[last]);
    if (a[mid] > a[last]) swap_key(&a[mid], &a[last]);
}

/* Reorder a[0, n) so that the k largest keys (all are distinct) come first, in any order. */
static void select_top(uint64_t *a, size_t n, size_t k) {
    size_t lo = 0, hi = n;
    while (lo < k && k < hi) {
        pick_pivot(a, lo, hi);
        uint64_t pivot = a[hi - 1];
        size_t at = lo;
        for (size_t i = lo; i < hi - 1; i++)
            if (a[i] > pivot) swap_key(&a[i], &a[at++]);
        swap_key(&a[at], &a[hi - 1]);
        if (at >= k) {
            hi = at;
        } else {
            lo = at + 1;
        }
    }
}

/* Sink a[root] in the heap whose smallest key is on top. */
static void sift(uint64_t *a, size_t root, size_t n) {
    for (size_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && a[child + 1] < a[child]) child++;
        if (a[root] <= a[child]) return;
        swap_key(&a[root], &a[child]);
    }
}

/* Heap sort, largest first. */
static void sort_down(uint64_t *a, size_t n) {
    for (size_t i = n / 2; i-- > 0;) sift(a, i, n);
    for (size_t i = n; i-- > 1;) {
        swap_key(&a[0], &a[i]);
        sift(a, 0, i);
    }
}

/* Key of rank i (i < r->n). */
static uint64_t ranked(ranking *r, size_t i) {
    while (i >= r->n_ranked) {
        size_t left = r->n - r->n_ranked;
        size_t block = r->n_ranked ? r->n_ranked : FIRST_BLOCK;
        if (block > left) block = left;
        select_top(r->key + r->n_ranked, left, block);
        sort_down(r->key + r->n_ranked, block);
        r->n_ranked += block;
    }
    return r->key[i];
}

/* Whether any of SKIP logits is above a floor. */
static bool any_above(const float *logits, float floor_logit) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < SKIP; i++) n += logits[i] > floor_logit;
    return n > 0;
}

/* Gather the k best of n logits (k = 0: all) into key, which has room for n. */
static ranking gather(const float *logits, uint32_t n, uint32_t k, uint64_t *key) {
    size_t cap = k ? 2 * (size_t)k : n, used = 0;
    if (cap >= n) {
        for (uint32_t i = 0; i < n; i++) key[i] = key_of(logits[i], i);
        used = n;
        if (k && k < n) {
            select_top(key, n, k);
            used = k;
        }
        return (ranking){.key = key, .n = used};
    }
    /* Keep between k and 2k candidates; nothing at or below the worst of k good ones can count.  Ids ascend, so an equal
     * logit that comes later loses too. */
    float floor_logit = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (i % SKIP == 0 && n - i >= SKIP && !any_above(logits + i, floor_logit)) {
            i += SKIP - 1;
            continue;
        }
        if (logits[i] <= floor_logit) continue;
        key[used++] = key_of(logits[i], i);
        if (used < cap) continue;
        select_top(key, used, k);
        used = k;
        uint64_t worst = key[0];
        for (size_t j = 1; j < used; j++)
            if (key[j] < worst) worst = key[j];
        floor_logit = logit_of(worst);
    }
    if (used > k) {
        select_top(key, used, k);
        used = k;
    }
    return (ranking){.key = key, .n = used};
}

/* Repetition penalty over prompt and produced ids, frequency and presence over produced ids.  count: n_vocab words. */
static void punish(const lg_sampler *s, float *logits, uint32_t n, uint32_t *count) {
    const lg_params *p = &s->params;
    bool repeat = p->repetition_penalty != 1.0f;
    bool produced = p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f;
    if (!repeat && !produced) return;
    memset(count, 0, n * sizeof *count);
    if (repeat) {
        for (uint32_t i = 0; i < s->n_id; i++) {
            uint32_t id = s->ids[i];
            if (id >= n || count[id]) continue;
            count[id] = 1;
            logits[id] = logits[id] > 0.0f ? logits[id] / p->repetition_penalty
                                           : logits[id] * p->repetition_penalty;
        }
        memset(count, 0, n * sizeof *count);
    }
    if (!produced) return;
    for (uint32_t i = s->n_prompt; i < s->n_id; i++)
        if (s->ids[i] < n) count[s->ids[i]]++;
    for (uint32_t i = s->n_prompt; i < s->n_id; i++) {
        uint32_t id = s->ids[i];
        if (id >= n || count[id] == 0) continue;
        logits[id] -= p->frequency_penalty * (float)count[id] + p->presence_penalty;
        count[id] = 0; /* once for each id */
    }
}

#define MASKED                                                                                 \
    (-1e30f) /* of an id that may not be chosen: its weight is 0 at any temperature */

/* Take away what the mask does not allow; returns the best that is left. */
static uint32_t keep_allowed(const uint32_t *mask, float *logits, uint32_t n) {
    float top;
    for (uint32_t i = 0; i < n; i++)
        if (!(mask[i / 32] >> i % 32 & 1)) logits[i] = MASKED;
    return lg_kern_get()->argmax(logits, n, &top);
}

/* Best id; false when any logit is not finite. */
static bool find_best(const float *logits, uint32_t n, uint32_t *best) {
    uint32_t bad = 0;
    for (uint32_t i = 0; i < n; i++)
        bad |= (lg_num_bits_of_float(logits[i]) & 0x7f800000u) == 0x7f800000u;
    float top;
    if (!bad) *best = lg_kern_get()->argmax(logits, n, &top);
    return !bad;
}

/* exp(x) for x <= 0, in double precision without fused operations: the same bits on every machine, and quick where no
 * fused instruction may be assumed.  2^n times a Taylor sum on |r| <= ln2 / 2; relative error below 3e-10.  0 below -700. */
static double exp_below(double x) {
    if (!(x > -700.0)) return 0.0;
    double t = x * 0x1.71547652b82fep+0 + 0x1.8p52, n = t - 0x1.8p52;
    double r = (x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33;
    double p = 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    uint64_t bits = (uint64_t)((int64_t)n + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

/* Weight of a logit at a temperature, 1 for the best. */
static double weight(float logit, float top, float temperature) {
    return exp_below(((double)logit - (double)top) / (double)temperature);
}

/* Draw an id: see the file comment for the order of filters. */
static uint32_t draw(const lg_sampler *s, const float *logits, uint32_t n, float top,
                     uint64_t *work) {
    const lg_params *p = &s->params;
    ranking r = gather(logits, n, p->top_k, work);
    double total = 0.0, kept = 0.0;
    for (size_t i = 0; i < r.n; i++) total += weight(logit_of(r.key[i]), top, p->temperature);
    size_t n_kept = r.n;
    if (p->top_p < 1.0f || p->min_p > 0.0f) {
        double enough = p->top_p < 1.0f ? (double)p->top_p * total : INFINITY;
        for (n_kept = 0; n_kept < r.n && kept < enough; n_kept++) {
            double w = weight(logit_of(ranked(&r, n_kept)), top, p->temperature);
            if (n_kept > 0 && w < (double)p->min_p) break;
            kept += w;
        }
        total = kept;
    }
    uint64_t bits = lg_num_rng(p->seed, p->choice, s->n_id - s->n_prompt, 0);
    double target = (double)(bits >> 11) * 0x1p-53 * total, sum = 0.0;
    uint64_t last = ranked(&r, 0);
    for (size_t i = 0; i < n_kept; i++) {
        uint64_t key = ranked(&r, i);
        double w = weight(logit_of(key), top, p->temperature);
        if (w == 0.0) break; /* all that follow are 0 too */
        last = key;
        sum += w;
        if (sum > target) break;
    }
    return id_of(last);
}

/* Log-probabilities of the chosen and of the best ids. */
static void report(const lg_sampler *s, const float *logits, uint32_t n, float top,
                   uint64_t *work, lg_sampled *out) {
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) sum += weight(logits[i], top, 1.0f);
    double norm = (double)top + log(sum);
    out->logprob = (float)((double)logits[out->id] - norm);
    uint32_t n_top = (uint32_t)s->params.n_top < n ? (uint32_t)s->params.n_top : n;
    if (n_top == 0) return;
    ranking r = gather(logits, n, n_top, work);
    for (uint32_t i = 0; i < n_top; i++) {
        uint64_t key = ranked(&r, i);
        if (logit_of(key) == MASKED) {
            n_top = i;
            break;
        }
        out->top[i].id = id_of(key);
        out->top[i].logprob = (float)((double)logits[id_of(key)] - norm);
    }
    out->n_top = n_top;
}

void lg_sample(const lg_sampler *s, float *logits, uint32_t n_vocab, uint32_t n_sample_vocab,
               void *work, lg_sampled *out) {
    uint32_t n = n_sample_vocab < n_vocab ? n_sample_vocab : n_vocab, best = 0;
    LG_ASSERT(n > 0);
    out->n_top = 0;
    out->logprob = 0.0f;
    for (uint32_t i = 0; i < s->n_bias; i++)
        if (s->bias[i].id < n) logits[s->bias[i].id] += s->bias[i].bias;
    punish(s, logits, n, work);
    out->nonfinite = !find_best(logits, n, &best);
    out->id = best;
    if (out->nonfinite) return;
    if (s->mask) best = out->id = keep_allowed(s->mask, logits, n);
    float top = logits[best];
    if (s->params.temperature > 0.0f) out->id = draw(s, logits, n, top, work);
    if (s->params.n_top >= 0) report(s, logits, n, top, work, out);
}

size_t lg_sample_work_bytes(uint32_t n_vocab) {
    return (size_t)n_vocab * sizeof(uint64_t);
}
