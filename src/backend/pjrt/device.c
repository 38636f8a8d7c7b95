/* device.c - from the text of --device to opened devices and choices about them.
 *
 * In: "pjrt:PATH,name=value".  Out: lg_pjrt_device.
 * Thread: any.  Memory: small.  Test: tests/unit/test_pjrt.c */
#include "backend/pjrt/be.h"
#include "backend/pjrt/plugin/call.h"
#include "base/hash.h"

#include <stdio.h>
#include <string.h>

#define PREFIX "pjrt:"

bool lg_pjrt_device_is(const char *spec) {
    return strncmp(spec, PREFIX, sizeof PREFIX - 1) == 0;
}

static lg_status want(const lg_pjrt_option *o, const char *what, lg_err *err) {
    return LG_FAIL(err, LG_E_ARG, "device: %s: found '%s', expected %s", o->name, o->text,
                   what);
}

static lg_status take_type(const lg_pjrt_option *o, lg_pjrt_type *t, lg_err *err) {
    if (strcmp(o->text, "bf16") == 0)
        *t = LG_PJRT_BF16;
    else if (strcmp(o->text, "f32") == 0)
        *t = LG_PJRT_F32;
    else
        return want(o, "bf16 or f32", err);
    return LG_OK;
}

/* yes or no. */
static lg_status take_word(const lg_pjrt_option *o, const char *yes, const char *no,
                           const char *both, bool *value, lg_err *err) {
    *value = strcmp(o->text, yes) == 0;
    return *value || strcmp(o->text, no) == 0 ? LG_OK : want(o, both, err);
}

static lg_status take_number(const lg_pjrt_option *o, int64_t least, int64_t most, uint32_t *n,
                             lg_err *err) {
    char range[64];
    snprintf(range, sizeof range, "%d to %d", (int)least, (int)most);
    if (o->kind != LG_PJRT_OPT_INT || o->list[0] < least || o->list[0] > most)
        return want(o, range, err);
    *n = (uint32_t)o->list[0];
    return LG_OK;
}

bool lg_pjrt_device_experts(const char *name, lg_pjrt_experts *experts, uint32_t *scale_in) {
    static const uint32_t inputs[] = {128, 256, 512, 1024, 2048};
    char one[16];
    *scale_in = 0;
    for (size_t i = 0; i < LG_COUNT(inputs); i++) {
        snprintf(one, sizeof one, "fp8s%u", inputs[i]);
        if (strcmp(name, one) != 0) continue;
        *experts = LG_PJRT_EXPERTS_REGROUPED;
        *scale_in = inputs[i];
        return true;
    }
    *experts = strcmp(name, "wide") == 0 ? LG_PJRT_EXPERTS_WIDE : LG_PJRT_EXPERTS_FILE;
    return *experts == LG_PJRT_EXPERTS_WIDE || strcmp(name, "fp8") == 0;
}

/* One of our own options; *own tells. */
static lg_status take(lg_pjrt_device *d, const lg_pjrt_option *o, int *mixed, int *tiled,
                      int *parts, bool *own, lg_err *err) {
    *own = true;
    if (strcmp(o->name, "weights") == 0) return take_type(o, &d->weight, err);
    if (strcmp(o->name, "state") == 0) return take_type(o, &d->state, err);
    if (strcmp(o->name, "experts") == 0)
        return lg_pjrt_device_experts(o->text, &d->experts, &d->scale_in)
                   ? LG_OK
                   : want(o, "one of " LG_PJRT_EXPERTS_NAMES, err);
    if (strcmp(o->name, "act") == 0)
        return take_word(o, "fp8", "bf16", "bf16 or fp8", &d->act_fp8, err);
    if (strcmp(o->name, "kv") == 0) return take_word(o, "fp8", "fp8", "fp8", &d->kv_fp8, err);
    if (strcmp(o->name, "devices") == 0) return take_number(o, 1, LG_PJRT_MAX_DEV, &d->n, err);
    if (strcmp(o->name, "warm") == 0) {
        d->warm_given = true;
        return take_number(o, 0, 86400, &d->warm_s, err);
    }
    if (strcmp(o->name, "grow") == 0) return take_number(o, 2, 8, &d->grow, err);
    if (strcmp(o->name, "loaded") == 0) return take_number(o, 1, 1 << 20, &d->loaded, err);
    if (strcmp(o->name, "programs_mib") == 0) {
        uint32_t mib = 0;
        LG_TRY(take_number(o, 1, 1 << 30, &mib, err));
        d->cache.limit_bytes = (uint64_t)mib << 20;
        return LG_OK;
    }
    if (strcmp(o->name, "programs") == 0) {
        snprintf(d->dir, sizeof d->dir, "%s", o->text);
        d->cache.dir = d->dir;
        return LG_OK;
    }
    if (strcmp(o->name, "tiled") == 0) {
        if (o->kind != LG_PJRT_OPT_BOOL) return want(o, "true or false", err);
        *tiled = o->list[0] != 0;
        return LG_OK;
    }
    if (strcmp(o->name, "mixed") == 0) {
        if (o->kind != LG_PJRT_OPT_BOOL) return want(o, "true or false", err);
        *mixed = o->list[0] != 0;
        return LG_OK;
    }
    if (strcmp(o->name, "kernels") == 0) {
        bool twin = strcmp(o->text, "twin") == 0;
        if (o->kind != LG_PJRT_OPT_BOOL && !twin) return want(o, "true, false or twin", err);
        *parts = twin ? LG_PJRT_TWINS : o->list[0] ? LG_PJRT_KERNELS : LG_PJRT_PLAIN;
        return LG_OK;
    }
    *own = false;
    return LG_OK;
}

static lg_status open_all(const char *spec, lg_pjrt_device *d, lg_err *err) {
    lg_pjrt_options o, theirs = {0};
    int mixed = -1, tiled = -1, parts = -1;
    const char *path = spec + sizeof PREFIX - 1;
    size_t len = strcspn(path, ",");
    if (len == 0 || len >= sizeof d->path)
        return LG_FAIL(err, LG_E_ARG, "device: '%s': expected pjrt:PATH[,name=value]...", spec);
    memcpy(d->path, path, len);
    LG_TRY(lg_pjrt_options_parse(path[len] ? path + len + 1 : NULL, &o, err));
    for (size_t i = 0; i < o.n; i++) {
        bool own;
        LG_TRY(take(d, &o.opt[i], &mixed, &tiled, &parts, &own, err));
        if (!own) theirs.opt[theirs.n++] = o.opt[i];
    }
    LG_TRY(lg_pjrt_plugin_open(d->path, &d->plugin, err));
    LG_TRY(lg_pjrt_client_open(d->plugin, &theirs, &d->client, err));
    bool cpu = strcmp(lg_pjrt_client_platform(d->client), "cpu") == 0;
    if (d->grow == 0) d->grow = cpu ? 4 : 2;
    if (!d->warm_given) d->warm_s = cpu ? 0 : 300;
    d->mixed = mixed < 0 ? !cpu : mixed;
    bool tpu = strcmp(lg_pjrt_client_platform(d->client), "tpu") == 0;
    d->parts = parts >= 0 ? (lg_pjrt_parts)parts : tpu ? LG_PJRT_KERNELS : LG_PJRT_PLAIN;
    d->tiled = tiled < 0 ? tpu : tiled;
    if (d->n > lg_pjrt_client_n(d->client))
        return LG_FAIL(err, LG_E_ARG, "device: devices: found %u, the plugin has %u", d->n,
                       lg_pjrt_client_n(d->client));
    return LG_OK;
}

lg_status lg_pjrt_device_open(const char *spec, lg_pjrt_device **d, lg_err *err) {
    *d = NULL;
    if (!lg_pjrt_device_is(spec))
        return LG_FAIL(err, LG_E_ARG, "device: found '%s', expected cpu or pjrt:PATH", spec);
    lg_pjrt_device *made = lg_mem_alloc(sizeof *made);
    if (!made) return LG_FAIL(err, LG_E_NOMEM, "device: no memory");
    *made =
        (lg_pjrt_device){.n = 1, .weight = LG_PJRT_BF16, .state = LG_PJRT_F32, .loaded = 128};
    lg_status st = open_all(spec, made, err);
    if (st != LG_OK)
        lg_pjrt_device_close(&made);
    else
        *d = made;
    return st;
}

void lg_pjrt_device_close(lg_pjrt_device **d) {
    if (!*d) return;
    lg_pjrt_client_close(&(*d)->client);
    lg_pjrt_plugin_close(&(*d)->plugin);
    LG_FREE(*d);
}

uint64_t lg_pjrt_device_weight_bytes(const lg_pjrt_device *d, const lg_weights *w) {
    const lg_config *c = &w->cfg;
    uint64_t wide = lg_pjrt_type_bytes(d->weight), n = 0, all = 0;
    uint32_t scale_in = d->scale_in, embd = c->n_embd, ff = c->n_ff_expert;
    if (c->n_expert) {
        n = (uint64_t)c->n_layer * c->n_expert;
        all = 3 * n * embd * ff;
    }
    bool whole = embd % 128 == 0 && ff % 128 == 0,
         fp8 = d->experts == LG_PJRT_EXPERTS_REGROUPED;
    if (d->experts == LG_PJRT_EXPERTS_FILE)
        fp8 = lg_pjrt_load_has_fp8(w, &scale_in) || (c->quant == LG_QUANT_FP8 && whole);
    if (!fp8 || !n) return (w->n_param - all) * wide + all / d->n * wide;
    /* Experts are divided. */
    uint64_t scales = all / (128 * 128);
    if (scale_in)
        scales = n * (2ull * ff * (embd / lg_pjrt_scale_in(scale_in, embd)) +
                      (uint64_t)embd * (ff / lg_pjrt_scale_in(scale_in, ff)));
    return (w->n_param - all) * wide + (all + scales * sizeof(float)) / d->n;
}

uint64_t lg_pjrt_device_memory(const lg_pjrt_device *d) {
    lg_pjrt_memory m;
    lg_pjrt_client_memory(d->client, 0, &m);
    return m.limit_bytes;
}

uint64_t lg_pjrt_device_build(const lg_pjrt_device *d) {
    const uint64_t v[] = {lg_pjrt_plugin_build(d->plugin),
                          d->n,
                          d->weight,
                          d->state,
                          d->experts,
                          d->scale_in,
                          d->act_fp8,
                          d->kv_fp8,
                          d->parts};
    return lg_hash_add(LG_HASH_START, v, sizeof v);
}
