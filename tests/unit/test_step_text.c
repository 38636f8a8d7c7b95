/* test_step_text.c - the texts of a step without a plugin: a reader of our own takes them apart, for every golden
 * model and for the published sizes; then the writer's own checks, one fault each. */
#include "hlo_check.h"
#include "rig.h"

#include "backend/pjrt/step/step.h"
#include "plan/plan.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

static lg_pjrt_sig sig;
static hlo_check check;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* "tensor<2x3xf32>" of dims. */
static void type_text(const lg_pjrt_dims *d, char to[128]) {
    size_t at = (size_t)snprintf(to, 128, "tensor<");
    for (uint32_t i = 0; i < d->rank; i++)
        at += (size_t)snprintf(to + at, 128 - at, "%lldx", (long long)d->dim[i]);
    snprintf(to + at, 128 - at, "%s>", lg_pjrt_type_name(d->type));
}

static void has_result(int i, lg_pjrt_type type, uint32_t rank, int64_t a, int64_t b,
                       int64_t c) {
    char want[128];
    lg_pjrt_dims d = {.type = type, .rank = rank, .dim = {a, b, c}};
    type_text(&d, want);
    assert_true(i >= 0 && (uint32_t)i < check.n_result);
    if (!hlo_check_same(check.result[i], want))
        fail_msg("result %d is %.40s, not %s", i, check.result[i], want);
}

/* Write, read back, and compare with the signature.  Returns the bytes. */
static size_t check_bucket(const lg_pjrt_model *m, const lg_pjrt_bucket *b) {
    lg_err err = {0};
    lg_buf text = {0};
    char want[128];
    if (lg_pjrt_step_text(m, b, &text, &sig, &err) != LG_OK) fail_msg("%s", err.msg);
    if (!hlo_check_text(&check, text.data)) fail_msg("%s", check.why);
    assert_int_equal(check.n_arg, sig.n_arg);
    int n_pool = 0;
    for (uint32_t i = 0; i < sig.n_arg; i++) {
        const lg_pjrt_arg *a = &sig.arg[i];
        type_text(&a->dims, want);
        if (!hlo_check_same(check.arg[i], want))
            fail_msg("argument %s is %.40s, not %s", a->name, check.arg[i], want);
        assert_int_equal(check.alias[i], a->result);
        if (a->role != LG_PJRT_POOL) continue;
        assert_int_equal(a->result, n_pool++);
        if (!hlo_check_same(check.result[a->result], want))
            fail_msg("pool %s comes back as %.40s", a->name, check.result[a->result]);
    }
    const lg_config *c = m->cfg;
    uint32_t n_row = b->n_one + b->n_many * b->n_row;
    assert_int_equal(sig.arg[sig.n_arg - 1].role, LG_PJRT_STEP);
    assert_int_equal(sig.arg[sig.n_arg - 1].dims.dim[0], lg_pjrt_step_of(b).n);
    assert_int_equal(check.n_result, sig.out.n);
    has_result(sig.out.id, LG_PJRT_S32, 1, b->n_out, 0, 0);
    has_result(sig.out.logprob, LG_PJRT_F32, 1, b->n_out, 0, 0);
    if (b->logits) has_result(sig.out.logits, LG_PJRT_F32, 2, b->n_out, c->n_vocab, 0);
    if (b->trace) has_result(sig.out.trace, LG_PJRT_F32, 3, c->n_layer + 1, n_row, c->n_embd);
    size_t bytes = text.len_bytes;
    lg_buf_fini(&text);
    return bytes;
}

static const lg_pjrt_bucket buckets[] = {
    {.n_one = 1, .n_page = 1, .n_out = 1},
    {.n_one = 8, .n_page = 33, .n_out = 8, .logits = true},
    {.n_many = 1, .n_row = 64, .n_page = 4, .n_out = 1, .logits = true},
    {.n_many = 3, .n_row = 7, .n_page = 2, .n_out = 5, .trace = true},
    {.n_many = 1, .n_row = 1, .n_page = 1, .n_out = 1},
    {.n_one = 5,
     .n_many = 2,
     .n_row = 100,
     .n_page = 9,
     .n_out = 3,
     .logits = true,
     .trace = true},
};

static lg_pjrt_model model_of(const lg_config *cfg) {
    return (lg_pjrt_model){.cfg = cfg,
                           .n_device = 1,
                           .weight = LG_PJRT_F32,
                           .kv = LG_PJRT_F32,
                           .state = LG_PJRT_F32,
                           .n_slot = 5,
                           .n_page = 40,
                           .n_ctx = 4096,
                           .n_sample_vocab = cfg->n_vocab};
}

/* All buckets in both forms, with both forms of experts, on one device and on several, in wide and narrow types. */
static void check_forms(const lg_config *cfg) {
    for (size_t i = 0; i < LG_COUNT(buckets); i++)
        for (int form = 0; form < 8; form++) {
            lg_pjrt_model m = model_of(cfg);
            m.unrolled = form & 1;
            m.moe = form & 2 ? LG_PJRT_MOE_ALL : LG_PJRT_MOE_TILES;
            if (form & 4) m.weight = m.kv = m.state = LG_PJRT_BF16;
            if (form & 4 && cfg->n_expert) m.n_device = cfg->n_expert % 8 == 0 ? 8 : 2;
            check_bucket(&m, &buckets[i]);
            uint32_t n_gather = hlo_check_count(&check, "stablehlo.all_gather");
            uint32_t layers = m.unrolled ? cfg->n_layer : lg_step_period(cfg);
            assert_int_equal(n_gather, m.n_device > 1 ? layers : 0);
            assert_int_equal(hlo_check_count(&check, "stablehlo.reduce_scatter"), n_gather);
        }
}

static void test_golden_configs(void **state) {
    (void)state;
    char models[512], goldens[512], path[1100];
    uint32_t n = 0;
    assert_true(rig_data(0, models, goldens));
    DIR *dir = opendir(models);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        lg_config cfg;
        lg_err err;
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", models, e->d_name);
        if (lg_config_load(&cfg, path, &err) != LG_OK) fail_msg("%s", err.msg);
        check_forms(&cfg);
        if (cfg.n_v_head != cfg.n_k_head) {
            cfg.v_head_tiled = true;
            check_forms(&cfg);
        }
        n++;
    }
    closedir(dir);
    assert_true(n >= 4);
}

/* Layers of one kind only, of a period of 2, of none. */
static void test_other_walks(void **state) {
    (void)state;
    static const char *const walk[] = {"AAAA", "GGG", "GAGAGA", "GAAGG", "A", "GGAGGA"};
    static const uint32_t period[] = {1, 1, 2, 5, 1, 3};
    for (size_t i = 0; i < LG_COUNT(walk); i++) {
        lg_config c = {.n_vocab = 100,
                       .n_embd = 48,
                       .n_layer = (uint32_t)strlen(walk[i]),
                       .n_ctx_max = 512,
                       .eps = 1e-6f,
                       .n_head = 6,
                       .n_kv_head = 3,
                       .d_head = 20,
                       .n_rot = 20,
                       .rope_theta = 1e4,
                       .n_k_head = 2,
                       .n_v_head = 6,
                       .d_k = 12,
                       .d_v = 18,
                       .tied = true,
                       .n_ff = 40};
        for (uint32_t l = 0; l < c.n_layer; l++)
            c.layer[l] = walk[i][l] == 'A' ? LG_LAYER_ATTN : LG_LAYER_GDN;
        assert_int_equal(lg_step_period(&c), period[i]);
        check_forms(&c);
        uint32_t n_pool = 0;
        for (uint32_t a = 0; a < sig.n_arg; a++) n_pool += sig.arg[a].role == LG_PJRT_POOL;
        assert_int_equal(n_pool,
                         2 * ((strchr(walk[i], 'A') != NULL) + (strchr(walk[i], 'G') != NULL)));
    }
}

static const char *const published[] = {"35b", "122b", "397b"};

static void test_published_sizes(void **state) {
    (void)state;
    static const lg_pjrt_bucket decode = {.n_one = 64, .n_page = 144, .n_out = 64};
    static const lg_pjrt_bucket prefill = {
        .n_many = 1, .n_row = 1024, .n_page = 144, .n_out = 1};
    for (size_t i = 0; i < LG_COUNT(published); i++) {
        lg_config cfg;
        assert_true(lg_plan_config_named(published[i], &cfg));
        lg_pjrt_model m = model_of(&cfg);
        m.n_device = 8;
        m.weight = m.kv = m.state = LG_PJRT_BF16;
        m.expert = LG_PJRT_F8E4M3FN;
        m.n_slot = 80;
        m.n_page = 64 * 144;
        m.n_ctx = 9216;
        assert_int_equal(lg_step_period(&cfg), 4);
        double t = now_s();
        size_t a = check_bucket(&m, &decode), b = check_bucket(&m, &prefill);
        double looped = now_s() - t;
        uint32_t n_loop = check.n_loop;
        /* Stacked BF16 matrices of a group: 5 of each GDN mixer, 4 of the attention, router and shared expert of each
         * layer. */
        assert_int_equal(check.n_laid_out, 0);
        m.tiled = true;
        check_bucket(&m, &decode);
        assert_int_equal(check.n_laid_out, 3 * (5 + 3) + (4 + 3));
        m.tiled = false;
        /* Scales of 512 inputs, and of whole channels. */
        for (uint32_t in = 512; in; in = in == 512 ? UINT32_MAX : 0) {
            m.scale_in = in;
            check_bucket(&m, &decode);
            int64_t ff = cfg.n_ff_expert, embd = cfg.n_embd, e = cfg.n_expert / 8;
            for (uint32_t k = 0; k < sig.n_arg; k++) {
                const lg_pjrt_arg *arg = &sig.arg[k];
                bool up = arg->weight == LG_PJRT_W_EXPERT_GATE_UP_SCALE;
                if (arg->role != LG_PJRT_WEIGHT ||
                    (!up && arg->weight != LG_PJRT_W_EXPERT_DOWN_SCALE))
                    continue;
                int64_t n_in = up ? embd : ff;
                const int64_t *dim = arg->dims.dim;
                assert_true(arg->dims.rank == 4 && dim[1] == e &&
                            dim[3] == (up ? 2 * ff : embd));
                assert_int_equal(dim[2], in == 512 ? n_in / 512 : 1);
            }
        }
        m.scale_in = 0;
        m.unrolled = true;
        size_t whole = check_bucket(&m, &prefill);
        printf("  %-5s a group in a loop: decode %zu kB, prefill %zu kB, %u loops, written and "
               "read in %.0f ms; written out %zu kB, %u arguments\n",
               published[i], a / 1000, b / 1000, n_loop, 1e3 * looped, whole / 1000, sig.n_arg);
        assert_true(b * cfg.n_layer / 4 > whole / 2 && whole > b * cfg.n_layer / 8);
    }
}

static void refused(lg_pjrt_model m, lg_pjrt_bucket b, lg_status want, const char *part) {
    lg_err err = {0};
    lg_buf text = {0};
    assert_int_equal(lg_pjrt_step_text(&m, &b, &text, &sig, &err), want);
    if (!strstr(err.msg, part)) fail_msg("\"%s\" does not say \"%s\"", err.msg, part);
    lg_buf_fini(&text);
}

static void test_refused(void **state) {
    (void)state;
    lg_config cfg;
    assert_true(lg_plan_config_named("35b", &cfg));
    lg_pjrt_model m = model_of(&cfg), bad = m;
    lg_pjrt_bucket b = buckets[0], none = b;
    none.n_one = 0;
    refused(m, none, LG_E_ARG, "bucket of 0 + 0");
    none = b;
    none.n_out = 0;
    refused(m, none, LG_E_ARG, "0 outputs");
    bad.weight = LG_PJRT_F16;
    refused(bad, b, LG_E_ARG, "types");
    bad = m;
    bad.n_device = 3;
    refused(bad, b, LG_E_ARG, "256 experts on 3 devices");
    bad = m;
    bad.n_sample_vocab = cfg.n_vocab + 1;
    refused(bad, b, LG_E_ARG, "of 248320 ids");
    cfg.n_ff_expert = 96;
    bad = m;
    bad.expert = LG_PJRT_F8E4M3FN;
    refused(bad, b, LG_E_UNSUPPORTED, "multiples of 128");
}

/* ---- the writer: each fault is found where it is made ---- */

typedef void fault_fn(lg_hlo *h, lg_hlo_val x); /* x: [4][8] F32 */

static void add_unlike(lg_hlo *h, lg_hlo_val x) {
    lg_hlo_add(h, x, lg_hlo_slice(h, x, 0, 0, 2));
}
static void reshape_count(lg_hlo *h, lg_hlo_val x) {
    lg_hlo_reshape(h, x, LG_HLO_T(F32, 4, 9));
}
static void slice_far(lg_hlo *h, lg_hlo_val x) {
    lg_hlo_slice(h, x, 1, 4, 5);
}
static void dot_sizes(lg_hlo *h, lg_hlo_val x) {
    lg_hlo_dot(h, "ab,bc->ac", x, x);
}
static void dot_lost(lg_hlo *h, lg_hlo_val x) {
    lg_hlo_dot(h, "ab,cb->a", x, x);
}
static void bcast_axes(lg_hlo *h, lg_hlo_val x) {
    lg_hlo_bcast(h, x, LG_HLO_T(F32, 8, 4), "01");
}
static void loop_escape(lg_hlo *h, lg_hlo_val x) {
    lg_hlo_val carry = x;
    lg_hlo_for(h, lg_hlo_i32(h, 3), &carry, 1);
    lg_hlo_val inside = lg_hlo_add(h, carry, x);
    carry = inside;
    lg_hlo_end_for(h, &carry, 1);
    lg_hlo_add(h, inside, carry);
}
static void loop_type(lg_hlo *h, lg_hlo_val x) {
    lg_hlo_val carry = x;
    lg_hlo_for(h, lg_hlo_i32(h, 3), &carry, 1);
    carry = lg_hlo_slice(h, carry, 0, 0, 1);
    lg_hlo_end_for(h, &carry, 1);
}
static void loop_open(lg_hlo *h, lg_hlo_val x) {
    lg_hlo_for(h, lg_hlo_i32(h, 3), &x, 1);
}
static void take_float(lg_hlo *h, lg_hlo_val x) {
    lg_hlo_take(h, x, x);
}
static void constant_inexact(lg_hlo *h, lg_hlo_val x) {
    (void)x;
    lg_hlo_float(h, LG_HLO_T(BF16, 2), 1.01f);
}
static void no_value(lg_hlo *h, lg_hlo_val x) {
    lg_hlo_add(h, x, 0);
}

static void test_writer_faults(void **state) {
    (void)state;
    static const struct {
        fault_fn *fn;
        const char *says;
    } faults[] = {{add_unlike, "add of"},
                  {reshape_count, "reshape of tensor<4x8xf32>"},
                  {slice_far, "slice"},
                  {dot_sizes, "sizes of b differ"},
                  {dot_lost, "is lost"},
                  {bcast_axes, "broadcast of"},
                  {loop_escape, "outside its loop"},
                  {loop_type, "changes its type"},
                  {loop_open, "loop is open"},
                  {take_float, "row numbers"},
                  {constant_inexact, "constant"},
                  {no_value, "is none"}};
    for (size_t i = 0; i < LG_COUNT(faults); i++) {
        lg_hlo h;
        lg_err err = {0};
        lg_buf text = {0};
        lg_hlo_init(&h);
        lg_hlo_val x = lg_hlo_arg(&h, LG_HLO_T(F32, 4, 8), LG_HLO_NO_ALIAS);
        faults[i].fn(&h, x);
        assert_int_equal(lg_hlo_finish(&h, "fault", 1, &x, 1, &text, &err), LG_E_ARG);
        if (!strstr(err.msg, faults[i].says))
            fail_msg("fault %zu: \"%s\" does not say \"%s\"", i, err.msg, faults[i].says);
        lg_hlo_fini(&h);
        lg_buf_fini(&text);
    }
}

/* The reader finds what is wrong in a text, so that its silence above means something. */
static void test_reader_faults(void **state) {
    (void)state;
    static const char good[] =
        "module @m {\n func.func @main(%v1: tensor<2xf32> {tf.aliasing_output = 0 : i32}) -> "
        "(tensor<2xf32>) {\n"
        " %v2 = \"stablehlo.add\"(%v1, %v1) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>\n"
        " \"func.return\"(%v2) : (tensor<2xf32>) -> ()\n }\n}\n";
    static const char *const change[][2] = {
        {"(%v2) :", "(%v3) :"},
        {"%v2 = ", "%v1 = "},
        {"(tensor<2xf32>, tensor<2xf32>)", "(tensor<2xf32>, tensor<3xf32>)"},
        {"-> (tensor<2xf32>) {", "-> (tensor<3xf32>) {"},
        {"(%v1, %v1)", "(%v1)"},
        {"(%v1, %v1)", "(%v1, %v2)"}};
    assert_true(hlo_check_text(&check, good));
    assert_int_equal(check.alias[0], 0);
    assert_int_equal(check.n_op, 2);
    for (size_t i = 0; i < LG_COUNT(change); i++) {
        char text[sizeof good + 64];
        const char *at = strstr(good, change[i][0]);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, change[i][1],
                 at + strlen(change[i][0]));
        if (hlo_check_text(&check, text)) fail_msg("\"%s\" was not found wrong", change[i][1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_configs), cmocka_unit_test(test_published_sizes),
        cmocka_unit_test(test_other_walks),    cmocka_unit_test(test_refused),
        cmocka_unit_test(test_writer_faults),  cmocka_unit_test(test_reader_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
