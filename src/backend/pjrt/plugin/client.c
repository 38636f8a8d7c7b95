/* client.c - the devices of this process: open, close, what they are and how full.
 *
 * Thread: any.  Memory: the plugin's.  Test: tests/unit/test_pjrt.c */
#include "backend/pjrt/plugin/call.h"

#include <stdio.h>

static lg_status fill(lg_pjrt_client *c, lg_err *err) {
    LG_ABI_ARGS(lg_abi_text, name);
    LG_ABI_ARGS(lg_abi_list, l);
    name.arg.obj = l.arg.obj = c->handle;
    LG_TRY(lg_pjrt_call_slot(c->plugin, LG_ABI_CLIENT_PLATFORM, &name, err));
    snprintf(c->platform, sizeof c->platform, "%.*s", (int)name.arg.n, name.arg.text);
    LG_TRY(lg_pjrt_call_slot(c->plugin, LG_ABI_CLIENT_DEVICES, &l, err));
    if (l.arg.n == 0 || l.arg.n > LG_PJRT_MAX_DEV)
        return LG_FAIL(err, LG_E_BACKEND, "plugin: %zu devices, expected 1 to %d", l.arg.n,
                       LG_PJRT_MAX_DEV);
    c->device = l.arg.list;
    c->n = (uint32_t)l.arg.n;
    return LG_OK;
}

lg_status lg_pjrt_client_open(lg_pjrt_plugin *p, const lg_pjrt_options *o, lg_pjrt_client **c,
                              lg_err *err) {
    lg_abi_named named[LG_PJRT_MAX_OPT];
    LG_ABI_ARGS(lg_abi_client_create, a);
    *c = NULL;
    lg_pjrt_call_named(o, named);
    a.arg.named = named;
    a.arg.n = o ? o->n : 0;
    lg_pjrt_client *made = lg_mem_alloc(sizeof *made);
    if (!made) return LG_FAIL(err, LG_E_NOMEM, "plugin: no memory");
    made->plugin = p;
    lg_status st = lg_pjrt_call_slot(p, LG_ABI_CLIENT_CREATE, &a, err);
    made->handle = a.arg.client;
    if (st == LG_OK) st = fill(made, err);
    if (st != LG_OK)
        lg_pjrt_client_close(&made);
    else
        *c = made;
    return st;
}

void lg_pjrt_client_close(lg_pjrt_client **c) {
    if (!*c) return;
    lg_pjrt_call_destroy((*c)->plugin, LG_ABI_CLIENT_DESTROY, (*c)->handle);
    LG_FREE(*c);
}

uint32_t lg_pjrt_client_n(const lg_pjrt_client *c) {
    return c->n;
}

const char *lg_pjrt_client_platform(const lg_pjrt_client *c) {
    return c->platform;
}

lg_pjrt_plugin *lg_pjrt_client_plugin(const lg_pjrt_client *c) {
    return c->plugin;
}

lg_pjrt_traffic lg_pjrt_client_traffic(const lg_pjrt_client *c) {
    return c->traffic;
}

void lg_pjrt_client_info(const lg_pjrt_client *c, uint32_t device, lg_pjrt_device_info *info) {
    LG_ASSERT(device < c->n);
    LG_ABI_ARGS(lg_abi_get, a);
    a.arg.obj = c->device[device];
    *info = (lg_pjrt_device_info){.id = -1};
    if (lg_pjrt_call_slot(c->plugin, LG_ABI_DEVICE_DESC, &a, NULL) == LG_OK)
        lg_pjrt_call_describe(c->plugin, a.arg.out, info);
}

void lg_pjrt_client_memory(const lg_pjrt_client *c, uint32_t device, lg_pjrt_memory *m) {
    LG_ASSERT(device < c->n);
    LG_ABI_ARGS(lg_abi_device_stats, a);
    *m = (lg_pjrt_memory){0};
    a.arg.obj = c->device[device];
    if (lg_pjrt_call_slot(c->plugin, LG_ABI_DEVICE_STATS, &a, NULL) != LG_OK) return;
    m->used_bytes = a.arg.used > 0 ? (uint64_t)a.arg.used : 0;
    m->limit_bytes = a.arg.limit_set && a.arg.limit > 0 ? (uint64_t)a.arg.limit : 0;
}
