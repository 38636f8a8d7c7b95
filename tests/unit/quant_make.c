/* quant_make.c - the matrices of a model folder quantised as a method does: for tests/py/matrix.py, which writes config.json and
 * copies the rest.
 *
 * usage: quant_make SOURCE METHOD QUANT PLAIN
 * SOURCE: a folder below LG_SOURCE_DIR.  QUANT and PLAIN: folders that are there; each gets a model.safetensors, PLAIN with the
 * same numbers as F32.  METHOD: a name below, which is also the row's name in the table. */
#include "quant_folder.h"

#include <stdio.h>
#include <string.h>

#define INT(m, b, n, s, act, scale)                                                            \
    {                                                                                          \
        m,                                                                                     \
            {.per = LG_PER_GROUP,                                                              \
             .bits = b,                                                                        \
             .group = n,                                                                       \
             .packed = true,                                                                   \
             .sym = s,                                                                         \
             .act_order = act},                                                                \
            scale, false                                                                       \
    }
#define FLOAT(m, k, of, n, scale)                                                              \
    {                                                                                          \
        m,                                                                                     \
            {.kind = k,                                                                        \
             .per = of,                                                                        \
             .bits = (k) == LG_SCHEME_FP8 ? 8 : 4,                                             \
             .group = n,                                                                       \
             .sym = true},                                                                     \
            scale, false                                                                       \
    }

/* How every "_proj" whose name does not hold `but` is stored. */
typedef struct method {
    const char *name, *but;
    qf_spec spec;
} method;

static const method methods[] = {
    {"fp8", NULL, FLOAT(LG_QUANT_CT, LG_SCHEME_FP8, LG_PER_BLOCK, 0, LG_BF16)},
    {"gptq", "down", INT(LG_QUANT_GPTQ, 4, 128, false, false, LG_F16)},
    {"gptq-act-order", "down", INT(LG_QUANT_GPTQ, 4, 128, true, true, LG_F16)},
    {"gptq-8", "down", INT(LG_QUANT_GPTQ, 8, 128, true, false, LG_F16)},
    {"awq", "down", INT(LG_QUANT_AWQ, 4, 128, false, false, LG_F16)},
    {"ct-int4", NULL, INT(LG_QUANT_CT, 4, 32, true, false, LG_BF16)},
    {"ct-int4-128", "down", INT(LG_QUANT_CT, 4, 128, true, false, LG_BF16)},
    {"ct-fp8", NULL, FLOAT(LG_QUANT_CT, LG_SCHEME_FP8, LG_PER_CHANNEL, 0, LG_BF16)},
    {"ct-nvfp4", NULL, FLOAT(LG_QUANT_CT, LG_SCHEME_NVFP4, LG_PER_GROUP, 16, LG_F32)},
    {"ct-mxfp4", NULL, FLOAT(LG_QUANT_CT, LG_SCHEME_MXFP4, LG_PER_GROUP, 32, LG_F32)},
    {"modelopt-nvfp4", NULL,
     FLOAT(LG_QUANT_MODELOPT, LG_SCHEME_NVFP4, LG_PER_GROUP, 16, LG_F32)},
};

static const qf_spec *choose(void *ctx, const char *name) {
    const method *m = ctx;
    if (!strstr(name, "_proj") || strstr(name, "in_proj_a") || strstr(name, "in_proj_b"))
        return NULL;
    return m->but && strstr(name, m->but) ? NULL : &m->spec;
}

/* Experts of which some matrices are quantised, so apart, have the others apart too. */
static void split_stacked(qf_set *s) {
    for (size_t i = 0, n = s->n; i < n; i++) {
        const char *at = strstr(s->t[i].name, ".experts.down_proj");
        if (!at || s->t[i].n_dim != 3) continue;
        int len = (int)(at - s->t[i].name);
        uint64_t n_expert = s->t[i].shape[0];
        size_t bytes = s->t[i].len_bytes / n_expert;
        for (uint64_t e = 0; e < n_expert; e++) {
            char name[200];
            snprintf(name, sizeof name, "%.*s.experts.%u.down_proj.weight", len, s->t[i].name,
                     (unsigned)e);
            uint64_t shape[2] = {s->t[i].shape[1], s->t[i].shape[2]};
            qf_tensor *t = qf_add(s, name, s->t[i].type, 2, shape); /* may move the set */
            memcpy(t->data, s->t[i].data + e * bytes, bytes);
        }
        snprintf(s->t[i].name, sizeof s->t[i].name, "mtp.unused.%zu", i); /* skipped */
    }
}

/* Releases with FP8 blocks have another name for their scales. */
static void rename_scales(qf_set *s) {
    for (size_t i = 0; i < s->n; i++) {
        char *end = strstr(s->t[i].name, ".weight_scale");
        if (end)
            snprintf(end, sizeof s->t[i].name - (size_t)(end - s->t[i].name),
                     ".weight_scale_inv");
    }
}

static void write(qf_set *s, const char *folder) {
    lg_fixture f;
    snprintf(f.path, sizeof f.path, "%s", folder);
    qf_write(s, &f);
    qf_fini(s);
}

int main(int argc, char **argv) {
    qf_set quant = {0}, plain = {0};
    for (size_t i = 0; argc == 5 && i < LG_COUNT(methods); i++) {
        method m = methods[i];
        if (strcmp(m.name, argv[2]) != 0) continue;
        qf_make(argv[1], choose, &m, &quant, &plain);
        split_stacked(&quant);
        if (strcmp(m.name, "fp8") == 0) rename_scales(&quant);
        write(&quant, argv[3]);
        write(&plain, argv[4]);
        return 0;
    }
    fprintf(stderr, "usage: quant_make SOURCE METHOD QUANT PLAIN\n");
    return 2;
}
