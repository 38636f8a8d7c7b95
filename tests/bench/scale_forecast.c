/* scale_forecast.c - bench_scale: the same step in closed form. */
#include "bench_scale.h"

#include <math.h>

/* Largest of n draws from a normal distribution, in deviations above the mean. */
static double extreme(double n) {
    static const double at[] = {0, 0.564, 1.029, 1.424, 1.766, 2.070, 2.344};
    double x = log2(n);
    int i = (int)x;
    if (i >= 6) return at[6];
    return at[i] + (at[i + 1] - at[i]) * (x - i);
}

/* The rank that has most to read, or most to multiply. */
static double experts_forecast(const scale_step *r, double t) {
    const lg_plan_model *m = &r->m;
    double n = r->n_rank, held = m->n_expert / n, p = pow(1 - m->n_used / m->n_expert, t);
    double hot = held * (1 - p), hot_dev = sqrt(held * p * (1 - p));
    double pairs = t * m->n_used / n, pairs_dev = sqrt(pairs * (1 - 1 / n));
    hot += extreme(n) * hot_dev;
    pairs += extreme(n) * pairs_dev;
    if (hot > held) hot = held;
    if (hot < 1 && t > 0) hot = 1;
    return hot * scale_expert(m, pairs / hot) + scale_copy(m, fmin(2 * t, 2 * pairs));
}

/* Part of the layers that are attention, or not. */
static void kinds(const scale_step *r, double *attn, double *gdn) {
    *attn = *gdn = 0;
    for (uint32_t l = 0; l < r->n_layer; l++)
        *(scale_is_attn(l) ? attn : gdn) += 1.0 / r->n_layer;
}

/* One row with the help of all. */
static double sliced_forecast(const scale_step *r) {
    const lg_plan_model *m = &r->m;
    lg_group_shape g = scale_group_of(r);
    double shared = lg_plan_shared_params(m);
    lg_slice_shape s = {.gdn_in = 4 * scale_product_words(m, false),
                        .gdn_mixed = 4 * scale_mixed_words(m, false),
                        .attn_in = 4 * scale_product_words(m, true),
                        .attn_mixed = 4 * scale_mixed_words(m, true),
                        .shared = 4 * shared / m->hidden / 3};
    kinds(r, &s.n_attn, &s.n_gdn);
    double layer = scale_slice(m, (scale_mixer_params(m) + shared) / r->n_rank) +
                   scale_states(m, 1, false) + scale_router(m) + experts_forecast(r, 1) +
                   scale_copy(m, 4 + m->n_used) + lg_slice_seconds(&scale.links, &g, &s, 1, 0);
    return layer * lg_plan_n_layer(m) + scale_end(r, 1);
}

double scale_forecast(const scale_step *r) {
    const lg_plan_model *m = &r->m;
    lg_row_count n = {0, 0};
    lg_group_shape g = scale_group_of(r);
    if (r->sliced) return sliced_forecast(r);
    for (uint32_t k = 0; k < r->n_rank; k++) {
        n.all += r->n_row[k];
        n.most = fmax(n.most, r->n_row[k]);
    }
    bool to_some = scale.how.kind == LG_EXCHANGE_ALLTOALL ||
                   (scale.how.kind == LG_EXCHANGE_AUTO &&
                    lg_exchange_choose(&scale.links, &g, n) == LG_EXCHANGE_ALLTOALL);
    double touched = to_some ? 1 - pow(1 - 1.0 / r->n_rank, m->n_used) : 1;
    double shared = scale_shared(m, n.most);
    double rows = lg_exchange_rows_seconds(&scale.links, &g, scale.how.kind, n);
    double layer = scale_mixer(m, n.most, r->prompt) + shared + experts_forecast(r, n.all) +
                   scale_copy(m, 3 * n.most) +
                   scale_copy(m, n.all * (touched + m->n_used / r->n_rank)) +
                   lg_exchange_seconds(&scale.links, &g, scale.how.kind, n) -
                   (scale.how.no_overlap ? 0 : fmin(shared, rows));
    double attn, gdn;
    kinds(r, &attn, &gdn);
    double all_s = scale_heads(m, 1, m->n_k_head, false); /* of a row */
    if (r->prompt) layer += gdn * (r->divided ? n.all : n.most) * all_s;
    if (r->divided) {
        lg_divide_shape d = {.n_gdn = gdn,
                             .n_attn = attn,
                             .in = 4 * m->n_k_head * (double)scale_in_words(m),
                             .out = 4 * m->n_k_head * (double)scale_out_words(m),
                             .keys = 4 * (double)scale_key_words(m),
                             .state = 4 * m->n_k_head * (double)scale_state_words(m),
                             .z_s = scale_beside(m, false, n.most) / n.most,
                             .q_s = scale_beside(m, true, n.most) / n.most,
                             .all_heads_s = all_s,
                             .own_heads_s =
                                 scale_heads(m, 1, ceil(m->n_k_head / r->n_rank), true)};
        layer += lg_divide_seconds(&scale.links, &g, &d, n.all, 0, 0) +
                 gdn * scale_pack(m, n.most) + attn * 2 * n.all * d.keys / scale.bandwidth;
    }
    return layer * lg_plan_n_layer(m) + scale_end(r, n.most);
}
