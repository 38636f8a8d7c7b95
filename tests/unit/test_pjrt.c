/* test_pjrt.c - the PJRT runtime layer on a plugin of our own (fake_pjrt.c), which checks sizes, lifetimes and order. */
#include "backend/pjrt/be.h"
#include "fake_pjrt_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static lg_pjrt_exe *compile(lg_pjrt_client *c, const char *text, const lg_pjrt_compile *how) {
    lg_pjrt_exe *e;
    lg_err err;
    if (lg_pjrt_exe_compile(c, text, strlen(text), how, &e, &err) != LG_OK)
        fail_msg("%s", err.msg);
    return e;
}

/* ---- load ---- */

static void refused(const char *how, lg_status want, const char *message) {
    lg_pjrt_plugin *p;
    lg_err err = {0};
    setenv("LG_FAKE_PJRT", how, 1);
    assert_int_equal(lg_pjrt_plugin_open(fake_rig_path(), &p, &err), want);
    assert_null(p);
    if (!strstr(err.msg, message)) fail_msg("found \"%s\", expected \"%s\"", err.msg, message);
}

static void test_load(void **state) {
    (void)state;
    lg_pjrt_plugin *p = fake_rig_plugin("");
    assert_string_equal(lg_pjrt_plugin_about(p), "API 0.114, StableHLO 1.2.3");
    uint64_t build = lg_pjrt_plugin_build(p);
    lg_pjrt_plugin_close(&p);
    p = fake_rig_plugin("");
    assert_true(lg_pjrt_plugin_build(p) == build);
    lg_pjrt_plugin_close(&p);
    refused("major", LG_E_UNSUPPORTED, "PJRT API 1.114, expected 0.x");
    refused("short", LG_E_FORMAT, "its table has 200 bytes, expected at least 488");
    refused("notable", LG_E_FORMAT, "gives no table");
    lg_err err;
    assert_int_equal(lg_pjrt_plugin_open("/nowhere/x.so", &p, &err), LG_E_IO);
    assert_string_equal(err.msg, "/nowhere/x.so: No such file or directory");
    assert_int_equal(lg_pjrt_plugin_open("/proc/self/exe", &p, &err), LG_E_IO);
    assert_int_equal(fake_rig_alive(), 0);
}

/* What a plugin lacks is named when it is asked for; the rest works. */
static void test_absent(void **state) {
    (void)state;
    lg_err err;
    lg_pjrt_topo *t;
    lg_pjrt_stream *s;
    lg_pjrt_plugin *p = fake_rig_plugin("old hole");
    assert_int_equal(lg_pjrt_topo_open(p, "fake:2", NULL, &t, &err), LG_E_UNSUPPORTED);
    assert_string_equal(err.msg,
                        "plugin: TopologyDescription_Create is not in its table (API 0.114, "
                        "StableHLO 1.2.3)");
    lg_pjrt_client *c = fake_rig_client(p);
    lg_pjrt_dims d = {LG_PJRT_F32, 1, {4}};
    assert_int_equal(lg_pjrt_stream_open(c, 0, &d, &s, &err), LG_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "CreateBuffersForAsync"));
    lg_pjrt_client_close(&c);
    lg_pjrt_plugin_close(&p);
    assert_int_equal(fake_rig_alive(), 0);
}

/* ---- options ---- */

static void test_options(void **state) {
    (void)state;
    lg_pjrt_options o;
    lg_err err;
    assert_int_equal(lg_pjrt_options_parse("a=8,b=2x2x1,c=true,d=/x/y,e=-3", &o, &err), LG_OK);
    assert_int_equal(o.n, 5);
    assert_int_equal(o.opt[0].kind, LG_PJRT_OPT_INT);
    assert_int_equal(o.opt[0].list[0], 8);
    assert_int_equal(o.opt[1].kind, LG_PJRT_OPT_LIST);
    assert_int_equal(o.opt[1].n_list, 3);
    assert_int_equal(o.opt[1].list[2], 1);
    assert_int_equal(o.opt[2].kind, LG_PJRT_OPT_BOOL);
    assert_int_equal(o.opt[3].kind, LG_PJRT_OPT_TEXT);
    assert_string_equal(o.opt[3].text, "/x/y");
    assert_int_equal(o.opt[4].list[0], -3);
    assert_int_equal(lg_pjrt_options_parse(NULL, &o, &err), LG_OK);
    assert_int_equal(o.n, 0);
    static const char *const bad[] = {"a", "=1", "a=", "a=1,,b=2", "a=1,b"};
    for (size_t i = 0; i < LG_COUNT(bad); i++)
        assert_int_equal(lg_pjrt_options_parse(bad[i], &o, &err), LG_E_ARG);
    assert_string_equal(err.msg, "option 'b': expected name=value");
}

static void is_bytes(const lg_pjrt_compile *how, const char *hex) {
    lg_buf b = {0}, text = {0};
    lg_err err;
    assert_int_equal(lg_pjrt_compile_bytes(how, &b, &err), LG_OK);
    for (size_t i = 0; i < b.len_bytes; i++)
        lg_buf_printf(&text, i ? " %02X" : "%02X", (uint8_t)b.data[i]);
    assert_string_equal(lg_buf_str(&text), hex);
    lg_buf_fini(&b);
    lg_buf_fini(&text);
}

/* Encoded by hand from the field numbers; the first is what other clients send. */
static void test_compile_bytes(void **state) {
    (void)state;
    is_bytes(&fake_rig_one, "1A 04 20 01 28 01");
    is_bytes(&(lg_pjrt_compile){.n_replica = 1, .n_partition = 2},
             "1A 19 20 01 28 02 30 01 4A 0E 08 01 10 02 1A 03 0A 01 00 1A 03 0A 01 01 "
             "98 01 01");
    is_bytes(&(lg_pjrt_compile){.n_replica = 3, .n_partition = 1},
             "1A 11 20 03 28 01 4A 0B 08 03 10 01 1A 05 0A 03 00 01 02");
    is_bytes(
        &(lg_pjrt_compile){.n_replica = 1, .n_partition = 1, .flags = "xla_dump_to=/tmp/d"},
        "1A 04 20 01 28 01 3A 17 0A 0B 78 6C 61 5F 64 75 6D 70 5F 74 6F 12 08 0A 06 "
        "2F 74 6D 70 2F 64");
    is_bytes(&(lg_pjrt_compile){.n_replica = 1, .n_partition = 1, .flags = "a=true,b=300"},
             "1A 04 20 01 28 01 3A 07 0A 01 61 12 02 10 01 3A 08 0A 01 62 12 03 18 AC 02");
    lg_buf b = {0};
    lg_err err;
    const lg_pjrt_compile bad[] = {{0, 1, NULL}, {1, 0, NULL}, {2, 2, NULL}, {513, 1, NULL}};
    for (size_t i = 0; i < LG_COUNT(bad); i++)
        assert_int_equal(lg_pjrt_compile_bytes(&bad[i], &b, &err), LG_E_ARG);
    lg_buf_fini(&b);
}

/* ---- clients ---- */

static void test_client(void **state) {
    (void)state;
    lg_err err;
    lg_pjrt_client *c;
    lg_pjrt_options o;
    lg_pjrt_device_info info;
    lg_pjrt_memory m;
    lg_pjrt_plugin *p = fake_rig_plugin("");
    assert_int_equal(lg_pjrt_options_parse("count=2", &o, &err), LG_OK);
    assert_int_equal(lg_pjrt_client_open(p, &o, &c, &err), LG_OK);
    assert_string_equal(lg_pjrt_client_platform(c), "fake");
    assert_int_equal(lg_pjrt_client_n(c), 3);
    lg_pjrt_client_info(c, 2, &info);
    assert_int_equal(info.id, 2);
    assert_string_equal(info.kind, "FAKE7");
    assert_int_equal(info.coord[2], 6);
    assert_int_equal(info.core, 1);
    assert_int_equal(info.memory_bytes, 1000);
    lg_pjrt_client_memory(c, 0, &m);
    assert_int_equal(m.used_bytes, 12);
    assert_int_equal(m.limit_bytes, 345);
    lg_pjrt_client_close(&c);
    assert_int_equal(lg_pjrt_options_parse("nothing=2", &o, &err), LG_OK);
    assert_int_equal(lg_pjrt_client_open(p, &o, &c, &err), LG_E_ARG);
    assert_string_equal(
        err.msg, "plugin: Client_Create: Unexpected option name passed to PJRT_Client_Create");
    lg_pjrt_plugin_close(&p);
    p = fake_rig_plugin("fail");
    assert_int_equal(lg_pjrt_client_open(p, NULL, &c, &err), LG_E_BACKEND);
    assert_string_equal(err.msg, "plugin: Client_Create: No device found.");
    lg_pjrt_plugin_close(&p);
    assert_int_equal(fake_rig_alive(), 0);
}

/* ---- programs ---- */

static void test_compile_errors(void **state) {
    (void)state;
    lg_err err;
    lg_pjrt_exe *e;
    lg_pjrt_plugin *p = fake_rig_plugin("");
    lg_pjrt_client *c = fake_rig_client(p);
    assert_int_equal(lg_pjrt_exe_compile(c, "x", 1, &fake_rig_one, &e, &err), LG_E_FORMAT);
    assert_string_equal(err.msg, "plugin: Client_Compile: -:1:1: error: expected 'fake'");
    assert_int_equal(err.code, LG_E_FORMAT);
    assert_int_equal(lg_pjrt_exe_compile(c, "big", 3, &fake_rig_one, &e, &err), LG_E_NOMEM);
    const lg_pjrt_compile many = {.n_replica = 4, .n_partition = 1};
    assert_int_equal(lg_pjrt_exe_compile(c, "fake results=1 tied=0", 21, &many, &e, &err),
                     LG_E_ARG);
    assert_string_equal(err.msg, "compile: a program for 4 devices, the client has 3");
    lg_pjrt_client_close(&c);
    lg_pjrt_plugin_close(&p);
    assert_int_equal(fake_rig_alive(), 0);
}

static void note_cost(void *ctx, const char *name, double value) {
    lg_buf_printf(ctx, "%s=%g;", name, value);
}

static void test_topology(void **state) {
    (void)state;
    static const char text[] = "fake results=2 tied=1";
    lg_err err;
    lg_pjrt_topo *t;
    lg_pjrt_exe *e;
    lg_pjrt_exe_memory m;
    lg_pjrt_device_info info;
    lg_buf b = {0};
    lg_pjrt_plugin *p = fake_rig_plugin("");
    assert_int_equal(lg_pjrt_topo_open(p, "fake:9", NULL, &t, &err), LG_E_ARG);
    assert_int_equal(lg_pjrt_topo_open(p, "fake:2", NULL, &t, &err), LG_OK);
    assert_int_equal(lg_pjrt_topo_n(t), 3);
    lg_pjrt_topo_info(t, 1, &info);
    assert_int_equal(info.id, 1);
    assert_int_equal(lg_pjrt_exe_compile_for(t, text, strlen(text), &fake_rig_one, &e, &err),
                     LG_OK);
    assert_int_equal(lg_pjrt_exe_n_out(e), 2);
    assert_int_equal(lg_pjrt_exe_memory_of(e, &m, &err), LG_OK);
    assert_int_equal(m.alias_bytes, 4);
    assert_int_equal(m.total_bytes, 7);
    assert_int_equal(lg_pjrt_exe_cost(e, note_cost, &b, &err), LG_OK);
    assert_string_equal(lg_buf_str(&b), "flops=2.5;bytes accessed=77;");
    lg_buf_clear(&b);
    assert_int_equal(lg_pjrt_exe_optimised(e, &b, &err), LG_OK);
    assert_string_equal(lg_buf_str(&b), "proto");
    lg_buf_fini(&b);
    lg_pjrt_exe_close(&e);
    lg_pjrt_topo_close(&t);
    lg_pjrt_plugin_close(&p);
    assert_int_equal(fake_rig_alive(), 0);
}

/* ---- buffers and runs ---- */

static const lg_pjrt_dims pair = {LG_PJRT_F32, 2, {2, 1}};

static lg_pjrt_buf *put(lg_pjrt_client *c, uint32_t device, float x) {
    lg_pjrt_buf *b;
    lg_err err;
    const float v[2] = {x, x + 0.5f};
    if (lg_pjrt_buf_put(c, device, &pair, v, &b, &err) != LG_OK) fail_msg("%s", err.msg);
    return b;
}

static float get(lg_pjrt_client *c, lg_pjrt_buf *b) {
    float v[2] = {0};
    lg_err err;
    if (lg_pjrt_buf_get(c, b, &pair, v, &err) != LG_OK) fail_msg("%s", err.msg);
    assert_true(v[1] == v[0] + 0.5f);
    return v[0];
}

/* Two devices; argument 0 is given away, argument 1 is tied too but kept, argument 2 is not tied. */
static void test_run(void **state) {
    (void)state;
    const char *how = *state ? *state : "";
    lg_err err;
    lg_pjrt_plugin *p = fake_rig_plugin(how);
    lg_pjrt_client *c = fake_rig_client(p);
    const lg_pjrt_compile two = {.n_replica = 2, .n_partition = 1};
    lg_pjrt_exe *e = compile(c, "fake results=3 tied=2", &two);
    lg_pjrt_buf *arg[6], *out[6];
    lg_pjrt_event *done[2];
    for (int i = 0; i < 6; i++) arg[i] = put(c, (uint32_t)i / 3, (float)i);
    uintptr_t at = lg_pjrt_buf_address(c, arg[0]);
    const int64_t keep[] = {1};
    lg_pjrt_call call = {
        .arg = arg, .n_arg = 3, .keep = keep, .n_keep = 1, .out = out, .done = done};
    assert_int_equal(lg_pjrt_exe_run(e, &call, &err), LG_OK);
    for (int d = 0; d < 2; d++) assert_int_equal(lg_pjrt_await(p, done[d], "run", &err), LG_OK);
    for (int i = 0; i < 6; i++) assert_true(get(c, out[i]) == (float)i);
    assert_true(lg_pjrt_buf_is_deleted(c, arg[0]) && lg_pjrt_buf_is_deleted(c, arg[3]));
    assert_false(lg_pjrt_buf_is_deleted(c, arg[1]) || lg_pjrt_buf_is_deleted(c, arg[2]));
    assert_true(lg_pjrt_buf_address(c, out[0]) == at);
    lg_pjrt_traffic t = lg_pjrt_client_traffic(c);
    assert_int_equal(t.up_bytes, 6 * 8);
    assert_int_equal(t.down_bytes, 6 * 8);
    for (int i = 0; i < 6; i++) lg_pjrt_buf_free(c, &out[i]);
    /* what was given away cannot be used again */
    call.done = NULL;
    assert_int_equal(lg_pjrt_exe_run(e, &call, &err), LG_E_ARG);
    assert_string_equal(
        err.msg, "plugin: LoadedExecutable_Execute: Buffer has been deleted or donated.");
    for (int i = 0; i < 6; i++) assert_null(out[i]);
    float v[2];
    assert_int_equal(lg_pjrt_buf_get(c, arg[0], &pair, v, &err), LG_E_ARG);
    for (int i = 0; i < 6; i++) lg_pjrt_buf_free(c, &arg[i]);
    lg_pjrt_exe_close(&e);
    lg_pjrt_client_close(&c);
    lg_pjrt_plugin_close(&p);
    assert_int_equal(fake_rig_alive(), 0);
}

static void test_buffer_errors(void **state) {
    (void)state;
    lg_err err;
    lg_pjrt_buf *b;
    lg_pjrt_plugin *p = fake_rig_plugin("");
    lg_pjrt_client *c = fake_rig_client(p);
    const uint32_t ones[2] = {UINT32_MAX, 0};
    /* these would end the process inside a plugin */
    const lg_pjrt_dims none = {0, 1, {2}}, negative = {LG_PJRT_F32, 1, {-2}},
                       huge = {LG_PJRT_F32, 3, {INT64_MAX, 4, 4}};
    assert_int_equal(lg_pjrt_buf_put(c, 0, &none, ones, &b, &err), LG_E_ARG);
    assert_int_equal(lg_pjrt_buf_put(c, 0, &negative, ones, &b, &err), LG_E_ARG);
    assert_int_equal(lg_pjrt_buf_put(c, 0, &huge, ones, &b, &err), LG_E_ARG);
    assert_int_equal(lg_pjrt_buf_put(c, 3, &pair, ones, &b, &err), LG_E_ARG);
    assert_string_equal(err.msg, "buffer: device 3 of 3");
    /* an error that comes with the event leaves nothing */
    assert_int_equal(lg_pjrt_buf_put(c, 0, &pair, ones, &b, &err), LG_E_BACKEND);
    assert_string_equal(err.msg, "buffer: plugin: Event_Await: it did not work");
    assert_null(b);
    lg_pjrt_client_close(&c);
    lg_pjrt_plugin_close(&p);
    assert_int_equal(fake_rig_alive(), 0);
}

static void test_stream(void **state) {
    (void)state;
    lg_err err;
    lg_pjrt_stream *s;
    lg_pjrt_buf *b;
    lg_pjrt_plugin *p = fake_rig_plugin("");
    lg_pjrt_client *c = fake_rig_client(p);
    const float v[2] = {3, 3.5f};
    assert_int_equal(lg_pjrt_stream_open(c, 1, &pair, &s, &err), LG_OK);
    assert_int_equal(lg_pjrt_stream_put(s, v, 3, &err), LG_OK);
    assert_int_equal(lg_pjrt_stream_put(s, (const char *)v + 3, 0, &err), LG_OK);
    assert_int_equal(lg_pjrt_stream_put(s, v, 6, &err), LG_E_ARG);
    assert_string_equal(err.msg, "stream: 6 bytes after 3 of 8");
    assert_int_equal(lg_pjrt_stream_put(s, (const char *)v + 3, 5, &err), LG_OK);
    assert_int_equal(lg_pjrt_stream_close(&s, &b, &err), LG_OK);
    assert_true(get(c, b) == 3);
    lg_pjrt_buf_free(c, &b);
    assert_int_equal(lg_pjrt_stream_open(c, 1, &pair, &s, &err), LG_OK);
    assert_int_equal(lg_pjrt_stream_put(s, v, 7, &err), LG_OK);
    assert_int_equal(lg_pjrt_stream_close(&s, &b, &err), LG_E_ARG);
    assert_string_equal(err.msg, "stream: ended after 7 of 8 bytes");
    assert_null(b);
    assert_null(s);
    lg_pjrt_client_close(&c);
    lg_pjrt_plugin_close(&p);
    assert_int_equal(fake_rig_alive(), 0);
}

/* ---- the text of --device ---- */

static void device_refused(const char *options, lg_status want, const char *message) {
    char spec[1200];
    lg_err err = {0};
    lg_pjrt_device *d;
    snprintf(spec, sizeof spec, "pjrt:%s%s", fake_rig_path(), options);
    assert_int_equal(lg_pjrt_device_open(spec, &d, &err), want);
    assert_null(d);
    if (!strstr(err.msg, message)) fail_msg("found \"%s\", expected \"%s\"", err.msg, message);
}

static void test_device(void **state) {
    (void)state;
    char spec[1200];
    lg_err err;
    lg_pjrt_device *d;
    setenv("LG_FAKE_PJRT", "", 1);
    snprintf(spec, sizeof spec,
             "pjrt:%s,weights=f32,count=2,devices=3,programs=/x,"
             "programs_mib=3,loaded=5,mixed=false",
             fake_rig_path());
    assert_true(lg_pjrt_device_is(spec) && !lg_pjrt_device_is("cpu"));
    assert_int_equal(lg_pjrt_device_open(spec, &d, &err), LG_OK);
    assert_int_equal(d->weight, LG_PJRT_F32);
    assert_int_equal(d->state, LG_PJRT_F32);
    assert_int_equal(d->n, 3);
    assert_int_equal(d->grow, 2);
    assert_int_equal(d->loaded, 5);
    assert_int_equal(d->cache.limit_bytes, 3 << 20);
    assert_false(d->mixed);
    assert_string_equal(d->cache.dir, "/x");
    assert_int_equal(lg_pjrt_device_memory(d), 345);
    uint64_t build = lg_pjrt_device_build(d);
    lg_pjrt_device_close(&d);
    snprintf(spec, sizeof spec, "pjrt:%s", fake_rig_path());
    assert_int_equal(lg_pjrt_device_open(spec, &d, &err), LG_OK);
    assert_int_equal(d->weight, LG_PJRT_BF16);
    assert_true(d->mixed && d->n == 1 && !d->cache.dir);
    assert_true(lg_pjrt_device_build(d) != build);
    lg_pjrt_device_close(&d);
    device_refused(",weights=f64", LG_E_ARG,
                   "device: weights: found 'f64', expected bf16 or f32");
    device_refused(",experts=fp8s64", LG_E_ARG,
                   "device: experts: found 'fp8s64', expected one of fp8, wide, fp8s128, "
                   "fp8s256, fp8s512, fp8s1024, fp8s2048");
    device_refused(",devices=0", LG_E_ARG, "device: devices: found '0', expected 1 to 512");
    device_refused(",devices=4", LG_E_ARG, "device: devices: found 4, the plugin has 3");
    device_refused(",mixed=1", LG_E_ARG, "expected true or false");
    device_refused(",kernels=some", LG_E_ARG, "expected true, false or twin");
    device_refused(",grow", LG_E_ARG, "option 'grow': expected name=value");
    device_refused(",other=1", LG_E_ARG, "Unexpected option name");
    assert_int_equal(lg_pjrt_device_open("pjrt:", &d, &err), LG_E_ARG);
    assert_int_equal(lg_pjrt_device_open("gpu", &d, &err), LG_E_ARG);
    assert_string_equal(err.msg, "device: found 'gpu', expected cpu or pjrt:PATH");
    assert_int_equal(lg_pjrt_device_open("pjrt:/nowhere", &d, &err), LG_E_IO);
    assert_int_equal(fake_rig_alive(), 0);
}

/* What experts may be called, here and in `lignum compile`. */
static void test_experts(void **state) {
    (void)state;
    static const struct {
        const char *name;
        lg_pjrt_experts how;
        uint32_t scale_in;
    } known[] = {{"fp8", LG_PJRT_EXPERTS_FILE, 0},
                 {"wide", LG_PJRT_EXPERTS_WIDE, 0},
                 {"fp8s128", LG_PJRT_EXPERTS_REGROUPED, 128},
                 {"fp8s256", LG_PJRT_EXPERTS_REGROUPED, 256},
                 {"fp8s512", LG_PJRT_EXPERTS_REGROUPED, 512},
                 {"fp8s1024", LG_PJRT_EXPERTS_REGROUPED, 1024},
                 {"fp8s2048", LG_PJRT_EXPERTS_REGROUPED, 2048}};
    static const char *const none[] = {"",        "f32",      "fp8s",     "fp8s0",    "fp8s64",
                                       "fp8s384", "fp8s4096", "fp8s512x", "fp8s0512", "FP8"};
    char all[128] = "";
    for (size_t i = 0; i < LG_COUNT(known); i++) {
        lg_pjrt_experts how;
        uint32_t scale_in = 7;
        assert_true(lg_pjrt_device_experts(known[i].name, &how, &scale_in));
        assert_int_equal(how, known[i].how);
        assert_int_equal(scale_in, known[i].scale_in);
        size_t n = strlen(all);
        snprintf(all + n, sizeof all - n, "%s%s", i ? ", " : "", known[i].name);
    }
    assert_string_equal(all, LG_PJRT_EXPERTS_NAMES);
    for (size_t i = 0; i < LG_COUNT(none); i++) {
        lg_pjrt_experts how;
        uint32_t scale_in;
        assert_false(lg_pjrt_device_experts(none[i], &how, &scale_in));
    }
}

/* Each allocation of an open, a compile and a stream fails in turn: nothing stays behind. */
static void test_no_memory(void **state) {
    (void)state;
    static const char text[] = "fake results=1 tied=0";
    lg_err err;
    setenv("LG_FAKE_PJRT", "", 1);
    int64_t before = lg_mem_alive();
    lg_status st = LG_E_NOMEM;
    for (uint64_t n = 1; st == LG_E_NOMEM; n++) {
        lg_pjrt_plugin *p = NULL;
        lg_pjrt_client *c = NULL;
        lg_pjrt_topo *t = NULL;
        lg_pjrt_exe *e = NULL, *f = NULL;
        lg_pjrt_stream *s = NULL;
        lg_pjrt_buf *b = NULL;
        lg_mem_fail_at(n);
        st = lg_pjrt_plugin_open(fake_rig_path(), &p, &err);
        if (st == LG_OK) st = lg_pjrt_client_open(p, NULL, &c, &err);
        if (st == LG_OK) st = lg_pjrt_topo_open(p, "fake:2", NULL, &t, &err);
        if (st == LG_OK)
            st = lg_pjrt_exe_compile(c, text, strlen(text), &fake_rig_one, &e, &err);
        if (st == LG_OK)
            st = lg_pjrt_exe_compile_for(t, text, strlen(text), &fake_rig_one, &f, &err);
        if (st == LG_OK) st = lg_pjrt_stream_open(c, 0, &pair, &s, &err);
        lg_mem_fail_at(0);
        if (s) assert_int_equal(lg_pjrt_stream_close(&s, &b, NULL), LG_E_ARG);
        lg_pjrt_exe_close(&f);
        lg_pjrt_exe_close(&e);
        lg_pjrt_topo_close(&t);
        lg_pjrt_client_close(&c);
        lg_pjrt_plugin_close(&p);
        assert_int_equal(fake_rig_alive(), 0);
        assert_int_equal(lg_mem_alive(), before);
        assert_true(n < 100);
    }
    assert_int_equal(st, LG_OK);
}

/* What one device holds: its share of the experts, in FP8 with scales where they stay so, and all of the rest. */
static void test_weight_bytes(void **state) {
    (void)state;
    lg_weights w = {.cfg = {.n_layer = 2, .n_expert = 8, .n_embd = 256, .n_ff_expert = 128}};
    const uint64_t experts = 2 * 8 * 3 * 256 * 128, rest = 1000;
    w.n_param = experts + rest;
    lg_pjrt_device d = {.n = 4, .weight = LG_PJRT_BF16};
    assert_true(lg_pjrt_device_weight_bytes(&d, &w) == 2 * rest + 2 * experts / 4);
    w.cfg.quant = LG_QUANT_FP8;
    uint64_t fp8 = 2 * rest + experts / 4 + 2 * 2 * 3 * 2 * sizeof(float);
    assert_true(lg_pjrt_device_weight_bytes(&d, &w) == fp8);
    d.experts = LG_PJRT_EXPERTS_REGROUPED;
    d.scale_in = 128; /* of 256 inputs of gate and up, of the 128 of down */
    fp8 = 2 * rest + (experts + 16ull * (2 * 128 * 2 + 256) * sizeof(float)) / 4;
    assert_true(lg_pjrt_device_weight_bytes(&d, &w) == fp8);
    d.experts = LG_PJRT_EXPERTS_WIDE;
    assert_true(lg_pjrt_device_weight_bytes(&d, &w) == 2 * rest + 2 * experts / 4);
    w.cfg.n_expert = 0;
    assert_true(lg_pjrt_device_weight_bytes(&d, &w) == 2 * w.n_param);
}

/* What is compiled ahead: every size once, likely ones first, none that a context has no rows for. */
static void test_likely_sizes(void **state) {
    (void)state;
    const lg_backend_opt opt = {.n_ctx = 1024, .max_tok = 600, .max_seq = 10};
    lg_pjrt_bucket b[64];
    uint32_t n = 0, n_long = 0, n_short = 0;
    while (n < 64 && lg_pjrt_bucket_likely(&opt, 4, n, &b[n])) n++;
    /* 4 pages: 1, 4, 16, 64 and 256 rows, 4 and 10 answers; 16 pages: the same, and 257 to 600 rows */
    assert_int_equal(n, 2 * (5 + 2) + 2 * (6 + 2));
    assert_true(b[0].n_one == 1 && b[0].n_many == 0 && b[0].n_page == 4 && b[0].logits);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < i; k++) assert_memory_not_equal(&b[i], &b[k], sizeof *b);
        assert_true(b[i].n_page == (i < 14 ? 4 : 16) &&
                    (b[i].n_one == 0) != (b[i].n_many == 0));
        n_long += b[i].n_many == 1 && b[i].n_row == 600;
        n_short += b[i].n_one == 10 && b[i].n_out == 10;
    }
    assert_int_equal(n_long, 2);
    assert_int_equal(n_short, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_absent),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_compile_bytes),
        cmocka_unit_test(test_client),
        cmocka_unit_test(test_compile_errors),
        cmocka_unit_test(test_topology),
        cmocka_unit_test(test_run),
        cmocka_unit_test_prestate(test_run, (void *)(uintptr_t) "grown"),
        cmocka_unit_test(test_buffer_errors),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_device),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_likely_sizes),
        cmocka_unit_test(test_weight_bytes),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
