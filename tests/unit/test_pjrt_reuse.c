/* test_pjrt_reuse.c - test_reuse's axes on a device, XLA's CPU plugin: the same answer cold, warm, in company, in pieces, continued, put
 * back, after evictions, restored from files.
 *
 * A device's sums have the order of its programs, and which program a row is in depends on its company; so logits are compared within a
 * slack, and ids but for near-ties (reuse_rig.h).  Each mutation must show beyond it.  Weights and keys are F32, so that what differs is
 * the order of sums alone.  All axes with rows of prompts and answers in programs of their own; some with mixed programs; some, and those with files,
 * on two devices, each with sequences, kept texts and a folder of its own. */
#include "backend/pjrt/be.h"
#include "pjrt_rig.h"
#include "reuse_rig.h"

/* ---- faults.  Files are read on another thread, so a fault takes the lock as what it follows does. ---- */

/* The bytes of a state are S, then the convolution's rows: S is zeroed in row `at` of a device. */
static void drop_row(lg_backend *handle, uint32_t owner, uint32_t at) {
    lg_pjrt_be *be = lg_pjrt_be_of(handle);
    lg_err err;
    size_t row = 0;
    uint8_t *bytes = lg_mem_alloc(lg_pjrt_unit_bytes(be, true));
    assert_non_null(bytes);
    pthread_mutex_lock(&be->lock);
    assert_int_equal(lg_pjrt_unit_get(be, owner, true, at, bytes, &err), LG_OK);
    for (uint32_t p = 0; p < be->n_pool; p++) {
        const lg_pjrt_arg *a = &be->sig->arg[be->pool_arg[p]];
        if (a->pool == LG_PJRT_POOL_S)
            row = lg_pjrt_dims_bytes(&a->dims) / (size_t)a->dims.dim[a->unit_dim];
    }
    memset(bytes, 0, row);
    assert_int_equal(lg_pjrt_unit_put(be, owner, true, at, bytes, &err), LG_OK);
    pthread_mutex_unlock(&be->lock);
    lg_mem_free(bytes);
}

static void drop_state(lg_backend *be, uint32_t owner, uint32_t slot) {
    drop_row(be, owner, slot);
}

static void drop_snap(lg_backend *be, uint32_t owner, uint32_t snap, uint32_t part) {
    (void)part;
    drop_row(be, owner, lg_pjrt_be_of(be)->opt.n_slot + snap);
}

static void drop_page(lg_backend *handle, uint32_t owner, uint32_t page) {
    lg_pjrt_be *be = lg_pjrt_be_of(handle);
    lg_err err;
    size_t n = lg_pjrt_unit_bytes(be, false);
    uint8_t *bytes = lg_mem_alloc(n);
    assert_non_null(bytes);
    pthread_mutex_lock(&be->lock);
    assert_int_equal(lg_pjrt_unit_get(be, owner, false, page, bytes, &err), LG_OK);
    memset(bytes, 0, n / 2);
    assert_int_equal(lg_pjrt_unit_put(be, owner, false, page, bytes, &err), LG_OK);
    pthread_mutex_unlock(&be->lock);
    lg_mem_free(bytes);
}

/* ---- all ---- */

static int open_device(const char *more) {
    lg_err err;
    lg_buf spec = {0};
    const char *path = pjrt_rig_path("cpu"), *build = getenv("LG_BUILD_DIR");
    if (!path) return 0;
    /* What compiles fast is enough here. */
    setenv("XLA_FLAGS", "--xla_backend_optimization_level=0", 0);
    lg_buf_printf(&spec, "pjrt:%s,weights=f32,grow=8,programs=%s/pjrt-programs-fast%s", path,
                  build ? build : "build", more);
    lg_diag_set_level(getenv("LG_PJRT_LOG") ? LG_LOG_INFO : LG_LOG_WARN);
    under = (target){.ops = lg_backend_pjrt(),
                     .slack = 2e-3f,
                     .drop_state = drop_state,
                     .drop_snap = drop_snap,
                     .drop_page = drop_page};
    lg_status st = lg_pjrt_device_open(lg_buf_str(&spec), &under.device, &err);
    if (st == LG_OK)
        under.n_home = under.device->n;
    else
        printf("%s\n", err.msg);
    lg_buf_fini(&spec);
    return st != LG_OK;
}

/* One group, on a device of its own.  0 as well where there is no plugin. */
#define GROUP(name, options)                                                                   \
    do {                                                                                       \
        if (!failed && (argc < 3 || strcmp(argv[2], #name) == 0))                              \
            failed = open_device(options);                                                     \
        if (!failed && under.device)                                                           \
            failed = cmocka_run_group_tests_name(#name, name, open_all, close_all);            \
        there |= under.device != NULL;                                                         \
        lg_pjrt_device_close(&under.device);                                                   \
    } while (0)

/* Arguments: only tests with this name, '*' allowed; only this group. */
int main(int argc, char **argv) {
    const struct CMUnitTest apart[] = {
        cmocka_unit_test(test_warm_and_batched), cmocka_unit_test(test_split),
        cmocka_unit_test(test_every_boundary),   cmocka_unit_test(test_after_evictions),
        cmocka_unit_test(test_after_cancels),    cmocka_unit_test(test_put_back),
        cmocka_unit_test(test_continued),        cmocka_unit_test(test_restored),
        cmocka_unit_test(test_mutations_show),   cmocka_unit_test(test_mutated_files_show),
    };
    const struct CMUnitTest mixed[] = {
        cmocka_unit_test(test_warm_and_batched),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_put_back),
    };
    const struct CMUnitTest two[] = {
        cmocka_unit_test(test_warm_and_batched), cmocka_unit_test(test_after_evictions),
        cmocka_unit_test(test_put_back),         cmocka_unit_test(test_restored),
        cmocka_unit_test(test_mutations_show),   cmocka_unit_test(test_mutated_files_show),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    int failed = 0;
    bool there = false;
    GROUP(apart, "");
    GROUP(mixed, ",mixed=true");
    GROUP(two, ",devices=2,cpu_device_count=2");
    return failed ? failed : there ? 0 : 77;
}
