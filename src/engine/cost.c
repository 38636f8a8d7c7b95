/* cost.c - the model of step times: see cost.h.
 *
 * In:  loads and measured times.   Out: predicted times.
 * Solved anew for each measured step: 6 unknowns by Cholesky, damped towards the last solution, so that what the recent steps
 * do not tell apart stays as it was; a weight that comes out negative is held at zero and the rest solved again.
 * Thread: engine.  Memory: none.  Test: tests/unit/test_cost.c */
#include "engine/cost.h"
#include "base/base.h"

#include <math.h>
#include <string.h>

#define N          LG_COST_N
#define FADE       0.985 /* of what is known, each step of its kind */
#define NARROW     0.97  /* of `widest`, each step with prompt rows: faster than FADE */
#define WIDE       64.0  /* prompt rows beside which a step's constant is small */
#define DAMP       0.05  /* of one step, towards the last solution */
#define DEPTH_UNIT 1024.0
#define LATE       0.02 /* share of steps that may take longer than predicted times margin */
#define WALK       0.03 /* of margin */
#define SOON       0.25 /* of pace, towards the last step */
#define MOST       1.5  /* by which one step may speak for pace: it may have been an accident */

void lg_cost_init(lg_cost *c, uint32_t n_expert, uint32_t n_expert_tok, double copy_us) {
    *c = (lg_cost){.pace = 1.0, .margin = 1.15, .copy_us = copy_us};
    if (n_expert) c->spared = 1.0 - (double)n_expert_tok / (double)n_expert;
}

/* Share of the experts that so many rows are expected to touch. */
static double touched(const lg_cost *c, double n_row) {
    return c->spared > 0.0 ? 1.0 - pow(c->spared, n_row) : 0.0;
}

static void features(const lg_cost *c, const lg_cost_load *l, double x[N]) {
    x[0] = 1.0;
    x[1] = touched(c, l->decode + l->prefill);
    x[2] = l->decode;
    x[3] = l->prefill;
    x[4] = l->read / DEPTH_UNIT;
    x[5] = l->seen / DEPTH_UNIT;
}

/* As the fit says. */
static double fitted(const lg_cost *c, const lg_cost_load *load) {
    double x[N], us = 0.0;
    features(c, load, x);
    for (uint32_t i = 0; i < N; i++) us += c->weight[i] * x[i];
    return us;
}

double lg_cost_step_us(const lg_cost *c, const lg_cost_load *load) {
    return fitted(c, load) * c->pace;
}

double lg_cost_tokens_us(const lg_cost *c, uint32_t from, uint32_t n) {
    double depth = (double)n * (from + n / 2.0) / DEPTH_UNIT;
    return c->weight[3] * n + c->weight[5] * depth;
}

bool lg_cost_knows_prompts(const lg_cost *c, uint32_t n) {
    return c->widest >= WIDE || n <= 2.0 * c->widest;
}

double lg_cost_floor_us(const lg_cost *c) {
    return c->weight[0] + c->weight[1] * touched(c, 1.0);
}

/* Solve a d = r over the unknowns that are free; the others stay 0.  a is overwritten. */
static void solve(double a[N][N], const double r[N], const bool is_free[N], double d[N]) {
    double y[N];
    for (uint32_t i = 0; i < N; i++) {
        d[i] = y[i] = 0.0;
        if (!is_free[i]) continue;
        for (uint32_t j = 0; j <= i; j++) {
            if (!is_free[j]) continue;
            double s = a[i][j];
            for (uint32_t k = 0; k < j; k++)
                if (is_free[k]) s -= a[i][k] * a[j][k];
            a[i][j] = i == j ? sqrt(s > 1e-30 ? s : 1e-30) : s / a[j][j];
        }
        double s = r[i];
        for (uint32_t k = 0; k < i; k++)
            if (is_free[k]) s -= a[i][k] * y[k];
        y[i] = s / a[i][i];
    }
    for (uint32_t i = N; i-- > 0;) {
        if (!is_free[i]) continue;
        double s = y[i];
        for (uint32_t k = i + 1; k < N; k++)
            if (is_free[k]) s -= a[k][i] * d[k];
        d[i] = s / a[i][i];
    }
}

/* New weights from the normal equations. */
static void fit(lg_cost *c) {
    double a[N][N], work[N][N], r[N], d[N], n = c->n[0] + c->n[1];
    bool is_free[N];
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t j = 0; j < N; j++) a[i][j] = c->a[0][i][j] + c->a[1][i][j];
        is_free[i] = a[i][i] > 0.0;
    }
    for (uint32_t i = 0; i < N; i++) {
        r[i] = c->b[0][i] + c->b[1][i];
        for (uint32_t j = 0; j < N; j++) r[i] -= a[i][j] * c->weight[j];
    }
    for (uint32_t i = 0; i < N; i++) a[i][i] *= 1.0 + DAMP / n;
    for (uint32_t round = 0; round < N; round++) {
        bool again = false;
        double rest[N];
        memcpy(work, a, sizeof work);
        for (uint32_t i = 0; i < N; i++) {
            rest[i] = r[i];
            for (uint32_t j = 0; j < N; j++) /* held at zero: its change is known */
                if (!is_free[j]) rest[i] += a[i][j] * c->weight[j];
        }
        solve(work, rest, is_free, d);
        for (uint32_t i = 0; i < N; i++) {
            if (!is_free[i] || c->weight[i] + d[i] >= 0.0) continue;
            is_free[i] = false;
            again = true;
        }
        if (!again) break;
    }
    for (uint32_t i = 0; i < N; i++) c->weight[i] = is_free[i] ? c->weight[i] + d[i] : 0.0;
}

void lg_cost_learn(lg_cost *c, const lg_cost_load *load, double us) {
    if (us < 1.0) us = 1.0;
    uint32_t kind = load->prefill > 0.0;
    double x[N], fit_us = fitted(c, load), expected = fit_us * c->pace, w = 1.0 / (us * us);
    if (fit_us > 0.0) {
        double ratio = us / fit_us;
        if (ratio > MOST) ratio = MOST;
        if (ratio < 1.0 / MOST) ratio = 1.0 / MOST;
        c->pace += SOON * (ratio - c->pace);
    }
    if (kind && load->decode > 0.0 && expected > 0.0) {
        c->margin += WALK * (us > expected * c->margin ? 1.0 - LATE : -LATE);
        if (c->margin < 1.0) c->margin = 1.0;
        if (c->margin > 1.5) c->margin = 1.5;
    }
    if (kind) c->widest = fmax(load->prefill, c->widest * NARROW);
    features(c, load, x);
    c->n[kind] = c->n[kind] * FADE + 1.0;
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t j = 0; j < N; j++)
            c->a[kind][i][j] = c->a[kind][i][j] * FADE + w * x[i] * x[j];
        c->b[kind][i] = c->b[kind][i] * FADE + w * x[i] * us;
    }
    fit(c);
}

void lg_cost_learn_copy(lg_cost *c, double us) {
    c->copy_us += 0.1 * (us - c->copy_us);
}
