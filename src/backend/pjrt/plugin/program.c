/* program.c - compile a text, run it, and ask what the compiler says about it.
 *
 * In: StableHLO text, device buffers.  Out: lg_pjrt_exe, device buffers.
 * Thread: any, one at a time for one program.  Memory: the plugin's; a run takes none of ours.  Test: tests/unit/test_pjrt.c */
#include "backend/pjrt/plugin/call.h"

#include <stdio.h>
#include <string.h>

/* A text that the compiler cannot read is the text's fault, whatever code it has. */
static lg_status compile_status(lg_status st, int code, lg_err *err) {
    if (code != LG_PJRT_CODE_UNKNOWN && code != LG_PJRT_CODE_ARGUMENT) return st;
    if (err) err->code = LG_E_FORMAT;
    return LG_E_FORMAT;
}

static lg_abi_program program_of(const char *text, size_t len_bytes) {
    return (lg_abi_program){.size = sizeof(lg_abi_program),
                            .code = text,
                            .code_size = len_bytes,
                            .format = "mlir",
                            .format_size = 4};
}

static lg_status n_out_of(lg_pjrt_exe *e, lg_err *err) {
    LG_ABI_ARGS(lg_abi_get, n);
    n.arg.obj = e->exe;
    LG_TRY(lg_pjrt_call_slot(e->plugin, LG_ABI_EXE_N_OUT, &n, err));
    e->n_out = (uint32_t)(uintptr_t)n.arg.out;
    return LG_OK;
}

lg_status lg_pjrt_exe_loaded(lg_pjrt_client *c, void *loaded, uint32_t n_dev, lg_pjrt_exe **exe,
                             lg_err *err) {
    LG_ABI_ARGS(lg_abi_get, get);
    lg_pjrt_exe *e = lg_mem_alloc(sizeof *e);
    *exe = NULL;
    if (!e) {
        lg_pjrt_call_destroy(c->plugin, LG_ABI_LOADED_DESTROY, loaded);
        return LG_FAIL(err, LG_E_NOMEM, "compile: no memory");
    }
    *e = (lg_pjrt_exe){.plugin = c->plugin, .client = c, .loaded = loaded, .n_dev = n_dev};
    get.arg.obj = loaded;
    lg_status st = lg_pjrt_call_slot(c->plugin, LG_ABI_LOADED_EXE, &get, err);
    e->exe = get.arg.out;
    if (st == LG_OK) st = n_out_of(e, err);
    if (st != LG_OK)
        lg_pjrt_exe_close(&e);
    else
        *exe = e;
    return st;
}

/* Device i of a program is device i of the client, and the options name devices by their ids. */
static lg_status check_devices(const lg_pjrt_client *c, const lg_pjrt_compile *how,
                               lg_err *err) {
    uint32_t n = how->n_replica * how->n_partition;
    if (n > c->n)
        return LG_FAIL(err, LG_E_ARG, "compile: a program for %u devices, the client has %u", n,
                       c->n);
    for (uint32_t i = 0; n > 1 && i < n; i++) {
        lg_pjrt_device_info info;
        lg_pjrt_client_info(c, i, &info);
        if (info.id != (int)i)
            return LG_FAIL(err, LG_E_UNSUPPORTED,
                           "compile: device %u has the id %d, expected %u", i, info.id, i);
    }
    return LG_OK;
}

lg_status lg_pjrt_exe_compile(lg_pjrt_client *c, const char *text, size_t len_bytes,
                              const lg_pjrt_compile *how, lg_pjrt_exe **exe, lg_err *err) {
    lg_buf options = {0};
    lg_abi_program program = program_of(text, len_bytes);
    LG_ABI_ARGS(lg_abi_client_compile, a);
    int code = 0;
    *exe = NULL;
    lg_status st = lg_pjrt_compile_bytes(how, &options, err);
    if (st == LG_OK) st = check_devices(c, how, err);
    if (st == LG_OK) {
        a.arg.client = c->handle;
        a.arg.program = &program;
        a.arg.options = lg_buf_str(&options);
        a.arg.options_size = options.len_bytes;
        st = lg_pjrt_call_code(c->plugin, LG_ABI_CLIENT_COMPILE, &a, &code, err);
        if (st != LG_OK) st = compile_status(st, code, err);
    }
    lg_buf_fini(&options);
    LG_TRY(st);
    return lg_pjrt_exe_loaded(c, a.arg.loaded, how->n_replica * how->n_partition, exe, err);
}

lg_status lg_pjrt_exe_compile_for(lg_pjrt_topo *t, const char *text, size_t len_bytes,
                                  const lg_pjrt_compile *how, lg_pjrt_exe **exe, lg_err *err) {
    lg_buf options = {0};
    lg_abi_program program = program_of(text, len_bytes);
    LG_ABI_ARGS(lg_abi_compile, a);
    int code = 0;
    *exe = NULL;
    lg_pjrt_exe *e = lg_mem_alloc(sizeof *e);
    if (!e) return LG_FAIL(err, LG_E_NOMEM, "compile: no memory");
    *e = (lg_pjrt_exe){.plugin = t->plugin, .n_dev = how->n_replica * how->n_partition};
    lg_status st = lg_pjrt_compile_bytes(how, &options, err);
    if (st == LG_OK) {
        a.arg.topo = t->handle;
        a.arg.program = &program;
        a.arg.options = lg_buf_str(&options);
        a.arg.options_size = options.len_bytes;
        st = lg_pjrt_call_code(t->plugin, LG_ABI_COMPILE, &a, &code, err);
        if (st != LG_OK) st = compile_status(st, code, err);
        e->exe = a.arg.exe;
    }
    lg_buf_fini(&options);
    if (st == LG_OK) st = n_out_of(e, err);
    if (st != LG_OK)
        lg_pjrt_exe_close(&e);
    else
        *exe = e;
    return st;
}

void lg_pjrt_exe_close(lg_pjrt_exe **exe) {
    lg_pjrt_exe *e = *exe;
    if (!e) return;
    lg_pjrt_call_destroy(e->plugin, LG_ABI_EXE_DESTROY, e->exe);
    lg_pjrt_call_destroy(e->plugin, LG_ABI_LOADED_DESTROY, e->loaded);
    LG_FREE(*exe);
}

uint32_t lg_pjrt_exe_n_out(const lg_pjrt_exe *exe) {
    return exe->n_out;
}

uint32_t lg_pjrt_exe_n_dev(const lg_pjrt_exe *exe) {
    return exe->n_dev;
}

/* ---- what the compiler says ---- */

lg_status lg_pjrt_exe_memory_of(const lg_pjrt_exe *exe, lg_pjrt_exe_memory *m, lg_err *err) {
    LG_ABI_ARGS(lg_abi_exe_memory, a);
    a.arg.exe = exe->exe;
    LG_TRY(lg_pjrt_call_slot(exe->plugin, LG_ABI_EXE_MEMORY, &a, err));
    *m = (lg_pjrt_exe_memory){.code_bytes = a.arg.code,
                              .arg_bytes = a.arg.arg,
                              .out_bytes = a.arg.out,
                              .alias_bytes = a.arg.alias,
                              .temp_bytes = a.arg.temp,
                              .peak_bytes = a.arg.peak,
                              .total_bytes = a.arg.total};
    return LG_OK;
}

lg_status lg_pjrt_exe_cost(const lg_pjrt_exe *exe,
                           void (*fn)(void *ctx, const char *name, double value), void *ctx,
                           lg_err *err) {
    LG_ABI_ARGS(lg_abi_properties, a);
    a.arg.obj = exe->exe;
    LG_TRY(lg_pjrt_call_slot(exe->plugin, LG_ABI_EXE_COST, &a, err));
    for (size_t i = 0; i < a.arg.n; i++) {
        const lg_abi_named *v = &a.arg.named[i];
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)v->name_size, v->name);
        if (v->type == LG_ABI_FLOAT) fn(ctx, name, (double)v->v.f);
        if (v->type == LG_ABI_INT) fn(ctx, name, (double)v->v.i);
    }
    return LG_OK;
}

/* Asked twice: for the size, then for the bytes. */
lg_status lg_pjrt_exe_optimised(const lg_pjrt_exe *exe, lg_buf *out, lg_err *err) {
    LG_ABI_ARGS(lg_abi_program, p);
    LG_ABI_ARGS(lg_abi_optimised, a);
    a.arg.exe = exe->exe;
    a.arg.program = &p.arg;
    LG_TRY(lg_pjrt_call_slot(exe->plugin, LG_ABI_EXE_OPTIMISED, &a, err));
    char *room = lg_mem_alloc(p.arg.code_size);
    if (!room) return LG_FAIL(err, LG_E_NOMEM, "optimised program: no memory");
    p.arg.code = room;
    lg_status st = lg_pjrt_call_slot(exe->plugin, LG_ABI_EXE_OPTIMISED, &a, err);
    if (st == LG_OK) lg_buf_put(out, room, p.arg.code_size);
    lg_mem_free(room);
    if (st == LG_OK && out->failed)
        st = LG_FAIL(err, LG_E_NOMEM, "optimised program: no memory");
    return st;
}

/* ---- run ---- */

lg_status lg_pjrt_exe_run(lg_pjrt_exe *exe, const lg_pjrt_call *call, lg_err *err) {
    void *const *arg[LG_PJRT_MAX_DEV];
    void **out[LG_PJRT_MAX_DEV];
    LG_ABI_ARGS(lg_abi_execute_options, o);
    LG_ABI_ARGS(lg_abi_execute, a);
    LG_ASSERT(exe->loaded && exe->n_dev <= LG_PJRT_MAX_DEV);
    for (uint32_t d = 0; d < exe->n_dev; d++) {
        arg[d] = (void *const *)call->arg + (size_t)d * call->n_arg;
        out[d] = (void **)call->out + (size_t)d * exe->n_out;
    }
    for (size_t i = 0; i < (size_t)exe->n_dev * call->n_arg; i++) LG_ASSERT(call->arg[i]);
    memset(call->out, 0, (size_t)exe->n_dev * exe->n_out * sizeof *call->out);
    o.arg.keep = call->keep;
    o.arg.n_keep = call->n_keep;
    a.arg.loaded = exe->loaded;
    a.arg.options = &o.arg;
    a.arg.args = arg;
    a.arg.n_dev = exe->n_dev;
    a.arg.n_arg = call->n_arg;
    a.arg.outs = out;
    a.arg.events = (void **)call->done;
    return lg_pjrt_call_slot(exe->plugin, LG_ABI_LOADED_EXECUTE, &a, err);
}
