/* layout.c - stacked matrices in the layout that a TPU's programs take them in (lg_pjrt_arg.tiled).
 *
 * Buffers from the host have the device's own choice of layout, and a program refuses an argument in another than it was compiled
 * for.  So each such argument goes through a program that gives it back laid out as LG_PJRT_TILES_3 or _4 says, on all devices;
 * until it has run there are two of it.
 * Thread: the opening one.  Memory: the device's.  Test: tests/unit/test_pjrt_cpu.c */
#include "backend/pjrt/be.h"

#include <inttypes.h>

void lg_pjrt_layout_text(const lg_pjrt_dims *d, const char *layout, uint32_t n_replica,
                         lg_buf *text) {
    lg_buf type = {0};
    lg_buf_puts(&type, "tensor<");
    for (uint32_t i = 0; i < d->rank; i++) lg_buf_printf(&type, "%" PRId64 "x", d->dim[i]);
    lg_buf_printf(&type, "%s>", lg_pjrt_type_name(d->type));
    lg_buf_printf(text,
                  "module @layout attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas "
                  "= %u : i32} {\n"
                  "  func.func @main(%%x: %s {mhlo.layout_mode = \"default\"}) -> (%s "
                  "{mhlo.layout_mode = \"%s\"}) {\n"
                  "    \"func.return\"(%%x) : (%s) -> ()\n  }\n}\n",
                  n_replica, lg_buf_str(&type), lg_buf_str(&type), layout, lg_buf_str(&type));
    if (type.failed) text->failed = true;
    lg_buf_fini(&type);
}

static lg_status compile(lg_pjrt_be *be, const lg_pjrt_dims *d, lg_pjrt_exe **exe,
                         lg_err *err) {
    const lg_pjrt_compile how = {.n_replica = be->model.n_device, .n_partition = 1};
    lg_buf text = {0};
    lg_pjrt_layout_text(d, d->rank == 3 ? LG_PJRT_TILES_3 : LG_PJRT_TILES_4, how.n_replica,
                        &text);
    lg_status st =
        text.failed ? LG_FAIL(err, LG_E_NOMEM, "program: no memory")
                    : lg_pjrt_cache_compile(&be->dev->cache, be->dev->client, lg_buf_str(&text),
                                            text.len_bytes, &how, exe, err);
    lg_buf_fini(&text);
    return st;
}

lg_status lg_pjrt_layout_apply(lg_pjrt_be *be, uint32_t index, lg_pjrt_exe **exe, lg_err *err) {
    const lg_pjrt_arg *a = &be->sig->arg[index];
    uint32_t n_dev = be->model.n_device;
    LG_ASSERT(a->tiled && (a->dims.rank == 3 || a->dims.rank == 4));
    if (!*exe) LG_TRY(compile(be, &a->dims, exe, err));
    LG_ASSERT(lg_pjrt_exe_n_out(*exe) == 1);
    lg_pjrt_buf **in = lg_mem_calloc(2 * (size_t)n_dev, sizeof *in);
    if (!in) return LG_FAIL(err, LG_E_NOMEM, "weights: no memory");
    for (uint32_t d = 0; d < n_dev; d++) in[d] = be->arg[(size_t)d * be->n_arg + index];
    const lg_pjrt_call call = {.arg = in, .n_arg = 1, .out = in + n_dev};
    lg_status st = lg_pjrt_exe_run(*exe, &call, err);
    for (uint32_t d = 0; st == LG_OK && d < n_dev; d++) {
        lg_pjrt_buf **to = &be->arg[(size_t)d * be->n_arg + index];
        lg_pjrt_buf_free(be->dev->client, to);
        *to = in[n_dev + d];
    }
    lg_mem_free(in);
    return st;
}
