/* test_nodes.c - which panels each memory node's threads pack: its share of every matrix, and nothing else.
 *
 * The nodes are pretended, and the linker puts this file's lg_pool_run_parts in place of the pool's (--wrap): it runs the tasks
 * of one node alone, so that what the others would write is missing. */
#include "fixture.h"

#include "model/weights/weights.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static int only;
static size_t n_round;

void __wrap_lg_pool_run_parts(lg_pool *pool, const size_t *first, bool own_only,
                              lg_pool_body *body, void *ctx);

void __wrap_lg_pool_run_parts(lg_pool *pool, const size_t *first, bool own_only,
                              lg_pool_body *body, void *ctx) {
    assert_true(own_only && only < lg_pool_n_node(pool));
    for (size_t i = first[only]; i < first[only + 1]; i++) body(ctx, i, 0);
    n_round++;
}

static lg_weights *open_only(const char *path, lg_pool *pool, int node) {
    lg_weights *w;
    lg_err err = {0};
    only = node;
    n_round = 0;
    if (lg_weights_open(path, pool, NULL, NULL, &w, &err) != LG_OK) fail_msg("%s", err.msg);
    assert_true(n_round > 0);
    return w;
}

/* A matrix as its node packed it, among those of all nodes. */
static void check_mat(const lg_mat *whole, const lg_mat *const *part, int n_node) {
    uint32_t n = lg_mat_n_panel(whole);
    size_t bytes = lg_dtype_panel_bytes(whole->type, whole->n_in);
    for (int k = 0; whole->panel && k < n_node; k++)
        for (uint32_t p = 0; p < n; p++) {
            bool own = p >= n * (uint32_t)k / (uint32_t)n_node &&
                       p < n * (uint32_t)(k + 1) / (uint32_t)n_node;
            int diff = memcmp((const uint8_t *)whole->panel + p * bytes,
                              (const uint8_t *)part[k]->panel + p * bytes, bytes);
            if (own != (diff == 0))
                fail_msg("[%u][%u]: panel %u is %spacked by node %d of %d", whole->n_out,
                         whole->n_in, p, own ? "not " : "", k, n_node);
        }
}

/* Every matrix of a layer, by its place in the struct. */
static size_t list_mats(const lg_weights *w, uint32_t layer, const lg_mat **out) {
    const lg_layer_w *l = &w->layer[layer];
    const lg_mat *const own[] = {
        &w->head,   &l->q,        &l->k,           &l->v,         &l->o,          &l->qkv,
        &l->z,      &l->b,        &l->a,           &l->out,       &l->router,     &l->mlp.gate,
        &l->mlp.up, &l->mlp.down, &l->shared.gate, &l->shared.up, &l->shared.down};
    size_t n = sizeof own / sizeof *own;
    memcpy(out, own, sizeof own);
    for (uint32_t e = 0; e < w->cfg.n_expert; e++) {
        out[n++] = &l->expert[e].gate;
        out[n++] = &l->expert[e].up;
        out[n++] = &l->expert[e].down;
    }
    return n;
}

static void check_model(const char *name, int n_node) {
    static const lg_mat *mat[4][1024];
    static const int node[] = {0, 1, 2};
    char path[400];
    lg_pool *pool;
    lg_weights *part[3], *whole;
    lg_fixture_source(name, path, sizeof path);
    assert_int_equal(lg_pool_open_nodes(n_node, node, &pool, NULL), LG_OK);
    whole = open_only(path, NULL, 0);
    for (int k = 0; k < n_node; k++) part[k] = open_only(path, pool, k);
    assert_true(3 * whole->cfg.n_expert + 32 < 1024);
    for (uint32_t l = 0; l < whole->cfg.n_layer; l++) {
        size_t n = list_mats(whole, l, mat[3]);
        for (int k = 0; k < n_node; k++) list_mats(part[k], l, mat[k]);
        for (size_t i = 0; i < n; i++) {
            const lg_mat *of[3] = {mat[0][i], mat[1][i], mat[2][i]};
            check_mat(mat[3][i], of, n_node);
        }
    }
    for (int k = 0; k < n_node; k++) lg_weights_close(&part[k]);
    lg_weights_close(&whole);
    lg_pool_close(&pool);
}

static void test_a_node_packs_its_share(void **state) {
    static const char *const models[] = {
        "tests/data/models/tiny-dense-r3", "tests/data/models/tiny-moe",
        "tests/data/models/tiny-moe-fp8", "models/tiny-qwen35moe"};
    (void)state;
    mallopt(M_PERTURB, 0xa5); /* memory taken again must not hold what it held before */
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int n_node = 2; n_node <= 3; n_node++) check_model(models[i], n_node);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_node_packs_its_share)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
