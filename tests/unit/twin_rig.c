/* twin_rig.c - see twin_rig.h. */
#include "twin_rig.h"

#include "backend/pjrt/pjrt.h"
#include "base/num.h"
#include "pjrt_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static lg_pjrt_plugin *plugin;
static lg_pjrt_client *client;

bool twin_rig_open(void) {
    lg_err err;
    lg_pjrt_options o;
    const char *path = pjrt_rig_path("cpu");
    if (!path) return false;
    if (lg_pjrt_plugin_open(path, &plugin, &err) != LG_OK ||
        lg_pjrt_options_parse("cpu_device_count=1", &o, &err) != LG_OK ||
        lg_pjrt_client_open(plugin, &o, &client, &err) != LG_OK)
        fail_msg("%s", err.msg);
    return true;
}

void twin_rig_close(void) {
    lg_pjrt_client_close(&client);
    lg_pjrt_plugin_close(&plugin);
}

static uint8_t e4m3_of(float x) {
    for (int c = 0; c < 256; c++) {
        float v = lg_num_e4m3((uint8_t)c);
        if (v == x && lg_num_bits_of_float(v) == lg_num_bits_of_float(x)) return (uint8_t)c;
    }
    return 0x7f; /* NaN */
}

static lg_pjrt_dims dims_of(lg_hlo_type t) {
    static const lg_pjrt_type type[LG_HLO_N_DT] = {[LG_HLO_F32] = LG_PJRT_F32,
                                                   [LG_HLO_BF16] = LG_PJRT_BF16,
                                                   [LG_HLO_E4M3] = LG_PJRT_F8E4M3FN,
                                                   [LG_HLO_I32] = LG_PJRT_S32};
    lg_pjrt_dims d = {.type = type[t.dt], .rank = t.n_dim};
    for (uint32_t i = 0; i < t.n_dim; i++) d.dim[i] = t.dim[i];
    return d;
}

static lg_pjrt_buf *upload(lg_hlo_type t, const mosaic_array *a) {
    size_t n = (size_t)lg_hlo_count(t);
    lg_pjrt_dims d = dims_of(t);
    void *data = malloc(n * 4);
    lg_pjrt_buf *b;
    lg_err err;
    assert_non_null(data);
    for (size_t i = 0; i < n; i++) {
        if (t.dt == LG_HLO_I32) ((int32_t *)data)[i] = a->i[i];
        if (t.dt == LG_HLO_F32) ((float *)data)[i] = a->f[i];
        if (t.dt == LG_HLO_BF16) ((uint16_t *)data)[i] = lg_num_to_bf16(a->f[i]);
        if (t.dt == LG_HLO_E4M3) ((uint8_t *)data)[i] = e4m3_of(a->f[i]);
    }
    if (lg_pjrt_buf_put(client, 0, &d, data, &b, &err) != LG_OK) fail_msg("%s", err.msg);
    free(data);
    return b;
}

static float *download(lg_hlo_type t, lg_pjrt_buf *b) {
    size_t n = (size_t)lg_hlo_count(t);
    lg_pjrt_dims d = dims_of(t);
    void *data = malloc(n * 4);
    float *f = malloc(n * 4);
    lg_err err;
    assert_true(data && f);
    if (lg_pjrt_buf_get(client, b, &d, data, &err) != LG_OK) fail_msg("%s", err.msg);
    for (size_t i = 0; i < n; i++)
        f[i] = t.dt == LG_HLO_BF16 ? lg_num_bf16(((uint16_t *)data)[i]) : ((float *)data)[i];
    free(data);
    return f;
}

void twin_rig_run(const lg_mosaic_kernel *k, twin_fn twin, const void *g,
                  const mosaic_array *fetch, const mosaic_array *win, float **out) {
    uint32_t n_arg = k->n_fetch + k->n_in;
    lg_hlo h;
    lg_buf text = {0};
    lg_err err;
    lg_hlo_val arg[LG_MOSAIC_ARGS], result[LG_MOSAIC_ARGS];
    lg_pjrt_buf *in[LG_MOSAIC_ARGS], *res[LG_MOSAIC_ARGS];
    lg_pjrt_exe *e;
    const lg_pjrt_compile how = {.n_replica = 1, .n_partition = 1};
    lg_hlo_init(&h);
    for (uint32_t i = 0; i < n_arg; i++) {
        lg_hlo_type t = lg_mosaic_hlo_type(k, i);
        arg[i] = lg_hlo_arg(&h, t, LG_HLO_NO_ALIAS);
        in[i] = upload(t, i < k->n_fetch ? &fetch[i] : &win[i - k->n_fetch]);
    }
    twin(g, &h, arg, result);
    if (lg_hlo_finish(&h, "twin", 1, result, k->n_out, &text, &err) != LG_OK)
        fail_msg("%s", err.msg);
    lg_hlo_fini(&h);
    if (lg_pjrt_exe_compile(client, lg_buf_str(&text), text.len_bytes, &how, &e, &err) != LG_OK)
        fail_msg("%s", err.msg);
    const lg_pjrt_call call = {.arg = in, .n_arg = n_arg, .out = res};
    if (lg_pjrt_exe_run(e, &call, &err) != LG_OK) fail_msg("%s", err.msg);
    for (uint32_t i = 0; i < k->n_out; i++) {
        out[i] = download(lg_mosaic_hlo_type(k, n_arg + i), res[i]);
        lg_pjrt_buf_free(client, &res[i]);
    }
    for (uint32_t i = 0; i < n_arg; i++) lg_pjrt_buf_free(client, &in[i]);
    lg_pjrt_exe_close(&e);
    lg_buf_fini(&text);
}
