/* mosaic_module.c - what surrounds the body of a Mosaic kernel: its function, the windows, and the call from a program.
 *
 * Test: tests/unit/test_mosaic_*.c */
#include "backend/pjrt/mosaic/mosaic.h"

#include <string.h>

static const char *const elem_name[] = {
    "i1", "i32", "index", "f32", "bf16", "f8E4M3FN", "!tpu.dma_semaphore"};
static const uint32_t elem_bytes[] = {1, 4, 4, 4, 2, 1, 4};

static bool is_whole(const lg_mosaic_kernel *k, uint32_t i) {
    return k->whole >> i & 1;
}

/* `, ` before all but the first. */
static void comma(lg_buf *out, uint32_t *n) {
    if ((*n)++) lg_buf_puts(out, ", ");
}

static void put_dims(lg_buf *out, uint32_t rank, const uint32_t *dim, const char *between) {
    for (uint32_t i = 0; i < rank; i++) lg_buf_printf(out, "%s%u", i ? between : "", dim[i]);
}

static void put_memref(lg_buf *out, uint32_t rank, const uint32_t *dim, lg_mosaic_elem e,
                       const char *space) {
    lg_buf_puts(out, "memref<");
    put_dims(out, rank, dim, "x");
    lg_buf_printf(out, "x%s, #tpu.memory_space<%s>>", elem_name[e], space);
}

/* Arguments of the module's functions, all of them or only those that place windows: grid indices, then prefetched operands,
 * then window blocks and scratch.  With names when `named`. */
static void put_args(lg_mosaic *m, bool named, bool placing) {
    const lg_mosaic_kernel *k = m->kernel;
    lg_buf *out = m->out;
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->n_grid; i++) {
        comma(out, &n);
        if (named) lg_buf_printf(out, "%%%u: ", m->grid[i].id);
        lg_buf_puts(out, "i32");
    }
    for (uint32_t i = 0; i < k->n_fetch; i++) {
        comma(out, &n);
        if (named) lg_buf_printf(out, "%%%u: ", m->fetch[i].id);
        put_memref(out, 1, &k->fetch[i], LG_M_I32, "smem");
    }
    if (placing) return;
    for (uint32_t i = 0; i < k->n_in + k->n_out; i++) {
        comma(out, &n);
        if (named) lg_buf_printf(out, "%%%u: ", m->win[i].id);
        if (is_whole(k, i))
            put_memref(out, k->win[i].rank, k->win[i].array, k->win[i].elem, "hbm");
        else
            put_memref(out, k->win[i].rank, k->win[i].block, k->win[i].elem, "vmem");
    }
    for (uint32_t i = 0; i < k->n_scratch; i++) {
        comma(out, &n);
        if (named) lg_buf_printf(out, "%%%u: ", m->scratch[i].id);
        put_memref(out, k->scratch[i].rank, k->scratch[i].dim, k->scratch[i].elem,
                   k->scratch[i].form == LG_M_SEMAPHORE ? "semaphore_mem" : "vmem");
    }
}

static void check_windows(const lg_mosaic_kernel *k) {
    for (uint32_t i = 0; i < k->n_in + k->n_out; i++) {
        const lg_mosaic_window *w = &k->win[i];
        LG_ASSERT(w->rank >= 2 && w->rank <= LG_MOSAIC_RANK &&
                  (!is_whole(k, i) || i < k->n_in));
        for (uint32_t d = 0; !is_whole(k, i) && d < w->rank; d++) {
            LG_ASSERT(w->block[d] > 0 && w->array[d] % w->block[d] == 0);
            /* The device's tiles: the last two dimensions are whole, or whole tiles. */
            uint32_t tile = d + 1 == w->rank   ? 128
                            : d + 2 == w->rank ? 32 / elem_bytes[w->elem]
                                               : 1;
            LG_ASSERT(w->block[d] == w->array[d] || w->block[d] % tile == 0);
        }
        if (w->alias) LG_ASSERT(i >= k->n_in && (uint32_t)w->alias <= k->n_in);
    }
}

void lg_mosaic_begin(lg_mosaic *m, const lg_mosaic_kernel *k, lg_buf *out) {
    *m = (lg_mosaic){.out = out, .kernel = k, .depth = 1};
    LG_ASSERT(k->n_grid <= LG_MOSAIC_GRID && k->n_fetch <= LG_MOSAIC_ARGS &&
              k->n_scratch <= LG_MOSAIC_ARGS);
    LG_ASSERT(k->n_in + k->n_out <= LG_MOSAIC_ARGS);
    check_windows(k);
    const lg_mosaic_type i32 = {.form = LG_M_SCALAR, .elem = LG_M_I32};
    for (uint32_t i = 0; i < k->n_grid; i++) m->grid[i] = (lg_mv){m->n_value++, i32};
    for (uint32_t i = 0; i < k->n_fetch; i++)
        m->fetch[i] = (lg_mv){m->n_value++, {LG_M_SMEM, LG_M_I32, 1, {k->fetch[i]}}};
    for (uint32_t i = 0; i < k->n_in + k->n_out; i++) {
        const lg_mosaic_window *w = &k->win[i];
        m->win[i] = (lg_mv){m->n_value++, lg_mosaic_vmem(w->elem, w->rank,
                                                         is_whole(k, i) ? w->array : w->block)};
        if (is_whole(k, i)) m->win[i].type.form = LG_M_HBM;
    }
    for (uint32_t i = 0; i < k->n_scratch; i++)
        m->scratch[i] = (lg_mv){m->n_value++, k->scratch[i]};
    lg_buf_printf(out,
                  "module attributes {stable_mosaic.version = %d : i64} {\n  "
                  "\"stable_mosaic.func.func\"() ({\n  ^bb0(",
                  LG_MOSAIC_VERSION);
    put_args(m, true, false);
    lg_buf_puts(out, "):\n");
}

/* One dimension of a window's place: the value's name into `name`. */
static void put_at(lg_mosaic *m, const lg_mosaic_at *at, uint32_t *id) {
    lg_buf *out = m->out;
    uint32_t r = m->n_value++;
    *id = r;
    if (at->kind == LG_M_AT_ZERO) {
        lg_buf_printf(
            out,
            "    %%%u = \"stable_mosaic.arith.constant\"() {value = 0 : i32} : () -> i32\n", r);
        return;
    }
    if (at->kind == LG_M_AT_GRID) {
        *id = m->grid[at->g].id;
        return;
    }
    if (at->kind == LG_M_AT_ADD) {
        uint32_t c = m->n_value++;
        lg_buf_printf(
            out,
            "    %%%u = \"stable_mosaic.arith.constant\"() {value = %u : i32} : () -> i32\n", c,
            at->add);
        lg_buf_printf(out,
                      "    %%%u = \"stable_mosaic.arith.addi\"(%%%u, %%%u) {overflowFlags = "
                      "#arith.overflow<none>}"
                      " : (i32, i32) -> i32\n",
                      r, m->grid[at->g].id, c);
        return;
    }
    LG_ASSERT(at->fetch < m->kernel->n_fetch);
    uint32_t c = m->n_value++;
    if (at->g < 0)
        lg_buf_printf(out,
                      "    %%%u = \"stable_mosaic.arith.constant\"() {value = %u : index} : () "
                      "-> index\n",
                      c, at->add);
    else
        lg_buf_printf(out,
                      "    %%%u = \"stable_mosaic.arith.index_cast\"(%%%u) : (i32) -> index\n",
                      c, m->grid[at->g].id);
    lg_buf_printf(out, "    %%%u = \"stable_mosaic.memref.load\"(%%%u, %%%u) : (", r,
                  m->fetch[at->fetch].id, c);
    put_memref(out, 1, &m->kernel->fetch[at->fetch], LG_M_I32, "smem");
    lg_buf_puts(out, ", index) -> i32\n");
}

/* The function that says which block of operand or result i a grid step sees. */
static void put_place(lg_mosaic *m, uint32_t i) {
    const lg_mosaic_window *w = &m->kernel->win[i];
    lg_buf *out = m->out;
    uint32_t id[LG_MOSAIC_RANK];
    lg_buf_puts(out, "  \"stable_mosaic.func.func\"() ({\n  ^bb0(");
    put_args(m, true, true);
    lg_buf_puts(out, "):\n");
    for (uint32_t d = 0; d < w->rank; d++) put_at(m, &w->at[d], &id[d]);
    lg_buf_puts(out, "    \"stable_mosaic.func.return\"(");
    for (uint32_t d = 0; d < w->rank; d++) lg_buf_printf(out, "%s%%%u", d ? ", " : "", id[d]);
    lg_buf_puts(out, ") : (");
    for (uint32_t d = 0; d < w->rank; d++) lg_buf_puts(out, d ? ", i32" : "i32");
    lg_buf_printf(out, ") -> ()\n  }) {sym_name = \"place_%u\", function_type = (", i);
    put_args(m, false, true);
    lg_buf_puts(out, ") -> (");
    for (uint32_t d = 0; d < w->rank; d++) lg_buf_puts(out, d ? ", i32" : "i32");
    lg_buf_puts(out, ")} : () -> ()\n");
}

void lg_mosaic_end(lg_mosaic *m) {
    const lg_mosaic_kernel *k = m->kernel;
    lg_buf *out = m->out;
    LG_ASSERT(m->depth == 1);
    lg_buf_puts(out, "    \"stable_mosaic.func.return\"() : () -> ()\n  }) {sym_name = "
                     "\"main\", function_type = (");
    put_args(m, false, false);
    lg_buf_puts(out, ") -> (),\n      dimension_semantics = [");
    for (uint32_t i = 0; i < k->n_grid; i++)
        lg_buf_printf(out, "%s#tpu.dimension_semantics<arbitrary>", i ? ", " : "");
    lg_buf_puts(out, "], iteration_bounds = array<i64: ");
    put_dims(out, k->n_grid, k->grid, ", ");
    lg_buf_printf(out,
                  ">, scalar_prefetch = %u : i64, scratch_operands = %u : i64, tpu.core_type = "
                  "#tpu.core_type<tc>,\n"
                  "      window_params = [",
                  k->n_fetch, k->n_scratch);
    for (uint32_t i = 0; i < k->n_in + k->n_out; i++) {
        if (i) lg_buf_puts(out, ", ");
        if (is_whole(k, i)) {
            lg_buf_puts(out, "{}");
            continue;
        }
        lg_buf_printf(out, "{transform_indices = @place_%u, window_bounds = array<i64: ", i);
        put_dims(out, k->win[i].rank, k->win[i].block, ", ");
        lg_buf_puts(out, ">}");
    }
    lg_buf_puts(out, "]} : () -> ()\n");
    for (uint32_t i = 0; i < k->n_in + k->n_out; i++)
        if (!is_whole(k, i)) put_place(m, i);
    lg_buf_puts(out, "}\n");
}

/* ---- The call ---- */

static void put_base64(lg_buf *out, const char *s, size_t n) {
    static const char digit[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)(unsigned char)s[i] << 16;
        if (i + 1 < n) v |= (uint32_t)(unsigned char)s[i + 1] << 8;
        if (i + 2 < n) v |= (unsigned char)s[i + 2];
        char four[4] = {digit[v >> 18], digit[v >> 12 & 63],
                        i + 1 < n ? digit[v >> 6 & 63] : '=', i + 2 < n ? digit[v & 63] : '='};
        lg_buf_put(out, four, 4);
    }
}

/* Row-major layout of one tensor. */
static void put_layout(lg_buf *out, uint32_t rank) {
    lg_buf_puts(out, "dense<[");
    for (uint32_t i = rank; i > 0; i--) lg_buf_printf(out, "%u%s", i - 1, i > 1 ? ", " : "");
    lg_buf_printf(out, "]> : tensor<%uxindex>", rank);
}

static void put_aliases(const lg_mosaic_kernel *k, lg_buf *out) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->n_out; i++) {
        int alias = k->win[k->n_in + i].alias;
        if (!alias) continue;
        lg_buf_puts(out, n++ ? ", " : ", output_operand_aliases = [");
        lg_buf_puts(out, "#stablehlo.output_operand_alias<output_tuple_indices = [");
        if (k->n_out > 1) lg_buf_printf(out, "%u", i);
        lg_buf_printf(out, "], operand_index = %u, operand_tuple_indices = []>",
                      k->n_fetch + (uint32_t)alias - 1);
    }
    if (n) lg_buf_putc(out, ']');
}

static void put_attrs(const lg_mosaic_kernel *k, const lg_buf *body, lg_buf *out) {
    uint32_t n = 0;
    lg_buf_printf(out,
                  "{call_target_name = \"tpu_custom_call\", api_version = 1 : i32, "
                  "has_side_effect = false, kernel_name = \"%s\", "
                  "backend_config = \"{\\22custom_call_config\\22: {\\22body\\22: \\22",
                  k->name);
    put_base64(out, lg_buf_str(body), body->len_bytes);
    lg_buf_puts(out,
                "\\22, \\22serialization_format\\22: 1, \\22needs_layout_passes\\22: true}");
    if (k->vmem_kib)
        lg_buf_printf(out,
                      ", \\22scoped_memory_configs\\22: [{\\22memory_space\\22: 1, "
                      "\\22offset\\22: 0, \\22size\\22: %llu}]",
                      (unsigned long long)k->vmem_kib * 1024);
    lg_buf_puts(out, "}\", operand_layouts = [");
    for (uint32_t i = 0; i < k->n_fetch; i++) {
        comma(out, &n);
        put_layout(out, 1);
    }
    for (uint32_t i = 0; i < k->n_in; i++) {
        comma(out, &n);
        put_layout(out, k->win[i].rank);
    }
    lg_buf_puts(out, "], result_layouts = [");
    for (uint32_t i = 0; i < k->n_out; i++) {
        if (i) lg_buf_puts(out, ", ");
        put_layout(out, k->win[k->n_in + i].rank);
    }
    lg_buf_putc(out, ']');
    put_aliases(k, out);
    lg_buf_putc(out, '}');
}

lg_hlo_type lg_mosaic_hlo_type(const lg_mosaic_kernel *k, uint32_t i) {
    static const lg_hlo_dt dt[] = {[LG_M_I32] = LG_HLO_I32,
                                   [LG_M_F32] = LG_HLO_F32,
                                   [LG_M_BF16] = LG_HLO_BF16,
                                   [LG_M_E4M3] = LG_HLO_E4M3};
    if (i < k->n_fetch) return LG_HLO_T(I32, k->fetch[i]);
    const lg_mosaic_window *w = &k->win[i - k->n_fetch];
    lg_hlo_type t = {.dt = dt[w->elem], .n_dim = w->rank};
    for (uint32_t d = 0; d < w->rank; d++) t.dim[d] = w->array[d];
    return t;
}

void lg_mosaic_call(const lg_mosaic_kernel *k, const lg_buf *body, lg_hlo *h,
                    const lg_hlo_val *arg, lg_hlo_val *result) {
    lg_buf attrs = {0};
    lg_hlo_type t[LG_MOSAIC_ARGS];
    for (uint32_t i = 0; i < k->n_fetch + k->n_in; i++)
        if (!h->failed && !lg_hlo_same(lg_hlo_type_at(h, arg[i]), lg_mosaic_hlo_type(k, i)))
            lg_hlo_fail(h, "%s: operand %u is not of the kernel's type", k->name, i);
    for (uint32_t i = 0; i < k->n_out; i++)
        t[i] = lg_mosaic_hlo_type(k, k->n_fetch + k->n_in + i);
    put_attrs(k, body, &attrs);
    if (attrs.failed || body->failed)
        lg_hlo_fail(h, "%s: no memory", k->name);
    else
        lg_hlo_op(h, "stablehlo.custom_call", arg, k->n_fetch + k->n_in, lg_buf_str(&attrs), t,
                  k->n_out, result);
    lg_buf_fini(&attrs);
}

static uint64_t padded_bytes(uint32_t rank, const uint32_t *dim, lg_mosaic_elem e) {
    uint64_t n = elem_bytes[e];
    for (uint32_t d = 0; d < rank; d++) {
        uint32_t tile = d + 1 == rank ? 128 : d + 2 == rank ? 32 / elem_bytes[e] : 1;
        n *= (uint64_t)(dim[d] + tile - 1) / tile * tile;
    }
    return n;
}

uint64_t lg_mosaic_vmem_bytes(const lg_mosaic_kernel *k) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < k->n_in + k->n_out; i++)
        if (!is_whole(k, i))
            n += 2 * padded_bytes(k->win[i].rank, k->win[i].block, k->win[i].elem);
    for (uint32_t i = 0; i < k->n_scratch; i++)
        if (k->scratch[i].form == LG_M_VMEM)
            n += padded_bytes(k->scratch[i].rank, k->scratch[i].dim, k->scratch[i].elem);
    return n;
}
