/* bench_mosaic.c - what libtpu makes of each Mosaic kernel beside its StableHLO twin, compiled for tpu7x:2x2x1.
 *
 * usage: bench_mosaic LIBTPU [toy|35b|397b [KERNEL]]
 *
 * Of a kernel: its instruction bundles as runs of one loop depth, in order ("2:223" = 223 bundles inside one loop of the body; 1 is a
 * grid step), without waiting for memory; of both: flop, bytes and temporary memory as the compiler states them for the whole
 * program (for a kernel it counts operands once each, whole).  No TPU is needed and none is measured. */
#include "backend/pjrt/plugin/aot.h"
#include "backend/pjrt/mosaic/twin.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void (*twin_fn)(const void *g, lg_hlo *h, const lg_hlo_val *arg, lg_hlo_val *result);

static const char *only; /* part of a kernel's name, or NULL */
static char dump[64] = "/tmp/bench_mosaic.XXXXXX";

static void twin_decode(const void *g, lg_hlo *h, const lg_hlo_val *a, lg_hlo_val *r) {
    lg_twin_gdn_decode(g, h, a, r);
}

static void twin_prefill(const void *g, lg_hlo *h, const lg_hlo_val *a, lg_hlo_val *r) {
    lg_twin_gdn_prefill(g, h, a, r);
}

static void twin_gmm(const void *g, lg_hlo *h, const lg_hlo_val *a, lg_hlo_val *r) {
    lg_twin_gmm(g, h, a, r);
}

static void twin_attn(const void *g, lg_hlo *h, const lg_hlo_val *a, lg_hlo_val *r) {
    lg_twin_attn(g, h, a, r);
}

/* Loop depth of a line of the bundle listing, -1 for other lines: the `>` behind its address. */
static int depth_of(const char *line) {
    const char *p = strstr(line, "0x"), *colon = strchr(line, ':'), *brace = strchr(line, '{');
    int n = 0;
    if (!p || !colon || !brace || p - line > 8) return -1;
    for (p = colon; p < brace; p++) n += *p == '>';
    return n;
}

static void print_runs(const char *path) {
    static char line[1 << 20];
    FILE *f = fopen(path, "r");
    int depth = -1, n = 0;
    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        int d = depth_of(line);
        if (d < 0) continue;
        if (d != depth && n) printf(" %d:%d", depth, n);
        if (d != depth) n = 0;
        depth = d;
        n++;
    }
    if (n) printf(" %d:%d", depth, n);
    fclose(f);
}

/* The listing of the kernel, which is the longest one that is no part of the program around it. */
static void bundles(void) {
    char path[512], best[512] = "";
    long size = 0;
    DIR *d = opendir(dump);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", dump, e->d_name);
        FILE *f = strstr(e->d_name, "01-final_bundles") && !strstr(e->d_name, "TLP")
                      ? fopen(path, "r")
                      : NULL;
        if (!f) continue;
        fseek(f, 0, SEEK_END);
        if (ftell(f) > size) {
            size = ftell(f);
            snprintf(best, sizeof best, "%s", path);
        }
        fclose(f);
    }
    closedir(d);
    printf("    bundles");
    print_runs(best);
    printf("\n");
}

/* What was dumped of one program goes, or the next one's listing may be taken for it. */
static void drop_dump(void) {
    char path[512];
    DIR *d = opendir(dump);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", dump, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    closedir(d);
}

static void one(const lg_aot *aot, const char *what, const lg_mosaic_kernel *k,
                const lg_buf *body, twin_fn twin, const void *g) {
    lg_hlo h;
    lg_buf text = {0};
    lg_err err;
    lg_aot_result r;
    lg_hlo_val arg[LG_MOSAIC_ARGS], result[LG_MOSAIC_ARGS];
    const lg_pjrt_compile how = {.n_replica = 1, .n_partition = 1};
    lg_hlo_init(&h);
    for (uint32_t i = 0; i < k->n_fetch + k->n_in; i++) {
        int alias = LG_HLO_NO_ALIAS;
        for (uint32_t o = 0; o < k->n_out; o++)
            if (i >= k->n_fetch && k->win[k->n_in + o].alias == 1 + (int)(i - k->n_fetch))
                alias = (int)o;
        arg[i] = lg_hlo_arg(&h, lg_mosaic_hlo_type(k, i), alias);
    }
    if (body)
        lg_mosaic_call(k, body, &h, arg, result);
    else
        twin(g, &h, arg, result);
    lg_status st = lg_hlo_finish(&h, "one", 1, result, k->n_out, &text, &err);
    if (st == LG_OK) st = lg_aot_compile(aot, &text, &how, 0, &r, &err);
    if (st == LG_OK)
        printf("%-34s %-7s %5.1f s  %9.3g flop %9.3g bytes  temp %9.3g  kept %9.3g\n", what,
               body ? "kernel" : "twin", r.seconds, r.flops, r.accessed_bytes,
               (double)r.memory.temp_bytes, (double)r.memory.alias_bytes);
    else
        printf("%-34s %-7s %s\n", what, body ? "kernel" : "twin", err.msg);
    if (body && st == LG_OK) bundles();
    drop_dump();
    fflush(stdout);
    lg_hlo_fini(&h);
    lg_buf_fini(&text);
}

static void both(const lg_aot *aot, const char *what, const lg_mosaic_kernel *k, lg_buf *body,
                 twin_fn twin, const void *g) {
    if (!only || strstr(what, only)) {
        one(aot, what, k, body, twin, g);
        if (twin) one(aot, what, k, NULL, twin, g);
    }
    lg_buf_fini(body);
}

/* Sequences of up to 8192 positions: 64 of one row each, and one of 1024 rows. */
static void attention(const lg_aot *aot, uint32_t group, uint32_t d) {
    lg_mosaic_kernel k;
    lg_buf body = {0};
    char what[64];
    for (int narrow = 0; narrow < 2; narrow++)
        for (int many = 0; many < 2; many++) {
            uint32_t rows = many ? 32 : 1, tiles = many ? 32 : 64;
            lg_mosaic_attn a = {.n_tile = tiles,
                                .rows = rows,
                                .n_entry = tiles * 32,
                                .n_seq = many ? 1 : tiles,
                                .n_page_seq = 128,
                                .n_layer = 2,
                                .n_page = 9217,
                                .n_kv = 2,
                                .group = group,
                                .d = d,
                                .act = LG_M_BF16,
                                .kv = narrow ? LG_M_E4M3 : LG_M_BF16};
            snprintf(what, sizeof what, "attention, %u x %u rows, KV %s", tiles, rows,
                     narrow ? "FP8" : "BF16");
            lg_mosaic_attn_kernel(&a, &k, &body);
            both(aot, what, &k, &body, narrow ? NULL : twin_attn, &a);
        }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        uint32_t nk, nv, hidden, wide, experts, group, d;
    } width[] = {{"toy", 2, 4, 256, 128, 4, 2, 128},
                 {"35b", 16, 32, 2048, 512, 32, 8, 256},
                 {"397b", 16, 64, 4096, 1024, 64, 16, 256}};
    const char *name = argc > 2 ? argv[2] : "toy";
    only = argc > 3 ? argv[3] : NULL;
    char flags[256], what[64];
    lg_mosaic_kernel k;
    lg_buf body = {0};
    lg_aot aot = {.plugin = argc > 1 ? argv[1] : "", .topology = "tpu7x:2x2x1"};
    if (argc < 2 || !mkdtemp(dump)) {
        fputs("usage: bench_mosaic LIBTPU [toy|35b|397b [KERNEL]]\n", stderr);
        return 2;
    }
    snprintf(flags, sizeof flags,
             "--xla_jf_dump_to=%s --xla_jf_dump_llo_text=true "
             "--xla_jf_dump_llo_pass_label_regex=final_bundles",
             dump);
    setenv("LIBTPU_INIT_ARGS", flags, 1);
    for (size_t w = 0; w < LG_COUNT(width); w++) {
        if (strcmp(width[w].name, name) != 0) continue;
        attention(&aot, width[w].group, width[w].d);
        lg_mosaic_gdn g = {.n_row = 8,
                           .n_layer = 3,
                           .n_stack = 2,
                           .n_slot = 9,
                           .nk = width[w].nk,
                           .nv = width[w].nv,
                           .d = 128,
                           .act = LG_M_F32,
                           .state = LG_M_BF16,
                           .conv = LG_M_F32};
        snprintf(what, sizeof what, "gdn_decode, 8 rows, %u/%u heads", g.nk, g.nv);
        lg_mosaic_gdn_decode(&g, &k, &body);
        both(&aot, what, &k, &body, twin_decode, &g);
        g.n_row = 16;
        snprintf(what, sizeof what, "gdn_prefill, 1024 rows, %u/%u heads", g.nk, g.nv);
        lg_mosaic_gdn_prefill(&g, &k, &body);
        both(&aot, what, &k, &body, twin_prefill, &g);
        for (int way = 0; way < 12; way++) {
            /* 16 rows, 32 rows, 32 rows of FP8; the same with scales of more inputs. */
            bool down = way & 1, narrow = way / 2 % 3 == 2, wide_scale = way >= 6;
            lg_mosaic_gmm m = {.n_tile = 40,
                               .tile_rows = way / 2 % 3 ? 32 : 16,
                               .n_stack = 2,
                               .n_expert = width[w].experts,
                               .n_in = down ? width[w].wide : width[w].hidden,
                               .n_out = down ? width[w].hidden : width[w].wide,
                               .k_block = 128,
                               .tiled = !wide_scale,
                               .swiglu = !down,
                               .act = narrow ? LG_M_E4M3 : LG_M_BF16,
                               .weight = LG_M_E4M3,
                               .hidden = LG_M_BF16};
            if (wide_scale) m.k_block = m.n_in % 512 ? m.n_in : 512;
            snprintf(what, sizeof what, "%s, 40 x %u rows%s, %u x %u, scales of %u",
                     down ? "gmm" : "gmm_swiglu", m.tile_rows, narrow ? " of FP8" : "", m.n_out,
                     m.n_in, m.k_block);
            lg_mosaic_gmm_kernel(&m, &k, &body);
            both(&aot, what, &k, &body, way < 2 ? twin_gmm : NULL, &m);
        }
    }
    rmdir(dump);
    return 0;
}
