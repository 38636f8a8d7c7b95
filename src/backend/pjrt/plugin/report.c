/* report.c - reads an optimised program (report.h): a walk over protocol-buffer fields, every length checked.
 *
 * Test: tests/unit/test_report.c */
#include "backend/pjrt/plugin/report.h"

#include "base/mem.h"

#include <string.h>

/* Fields: HloModuleProtoWithConfig.hlo_module, HloModuleProto.computations, HloComputationProto.instructions;
 * and id; of HloInstructionProto: name, opcode, shape, custom_call_target, called_computation_ids, source_target_pairs; of
 * ShapeProto: element_type, dimensions, tuple_shapes. */
enum {
    F_MODULE = 1,
    F_COMPUTATIONS = 3,
    F_INSTRUCTIONS = 2,
    F_NAME = 1,
    F_OPCODE = 2,
    F_SHAPE = 3,
    F_TARGET = 28,
    F_CALLED = 38,
    F_ID = 5, /* of a computation */
    F_PAIRS = 52,
    F_ELEMENT = 2,
    F_DIMENSIONS = 3,
    F_TUPLE = 4,
};

#define MAX_DEPTH 8 /* tuples in tuples */

typedef struct span {
    const uint8_t *p, *end;
} span;

typedef struct field {
    uint32_t number;
    uint64_t value; /* of a number */
    span bytes;     /* of what has a length */
    bool has_bytes;
} field;

static bool varint(span *s, uint64_t *v) {
    *v = 0;
    for (uint32_t shift = 0; shift < 64 && s->p < s->end; shift += 7) {
        uint8_t b = *s->p++;
        *v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) return true;
    }
    return false;
}

/* The next field; false at the end and when it is broken (then s->p is NULL). */
static bool next(span *s, field *f) {
    uint64_t tag, n = 0;
    if (s->p == s->end) return false;
    if (!varint(s, &tag)) goto broken;
    *f = (field){.number = (uint32_t)(tag >> 3)};
    switch (tag & 7) {
    case 0:
        if (!varint(s, &f->value)) goto broken;
        return true;
    case 1: n = 8; break;
    case 5: n = 4; break;
    case 2:
        if (!varint(s, &n)) goto broken;
        f->has_bytes = true;
        break;
    default: goto broken;
    }
    if (n > (uint64_t)(s->end - s->p)) goto broken;
    f->bytes = (span){s->p, s->p + n};
    s->p += n;
    return true;
broken:
    s->p = s->end = NULL;
    return false;
}

/* Bytes of one element, by PrimitiveType; 0: none (a token). */
static uint64_t element_bytes(uint64_t type) {
    switch (type) {
    case 1:
    case 2:
    case 6:
    case 19:
    case 20:
    case 28:
    case 29: return 1; /* PRED S8 U8 FP8 and below */
    case 3:
    case 7:
    case 10:
    case 16: return 2;
    case 4:
    case 8:
    case 11: return 4;
    case 5:
    case 9:
    case 12:
    case 15: return 8;
    case 18: return 16;
    default: return type > 20 && type < 40 ? 1 : 0;
    }
}

static bool shape_bytes(span s, uint64_t *total, uint64_t *largest, int depth) {
    field f;
    uint64_t type = 0, n = 1;
    bool tuple = false;
    while (next(&s, &f)) {
        if (f.number == F_ELEMENT) type = f.value;
        if (f.number == F_TUPLE && f.has_bytes) {
            tuple = true;
            if (depth == MAX_DEPTH || !shape_bytes(f.bytes, total, largest, depth + 1))
                return false;
        }
        if (f.number != F_DIMENSIONS) continue;
        uint64_t v = f.value;
        if (!f.has_bytes) {
            if (__builtin_mul_overflow(n, v, &n)) return false;
            continue;
        }
        while (f.bytes.p < f.bytes.end)
            if (!varint(&f.bytes, &v) || __builtin_mul_overflow(n, v, &n)) return false;
    }
    if (!s.p) return false;
    if (tuple) return true;
    if (__builtin_mul_overflow(n, element_bytes(type), &n)) return false;
    *total += n;
    if (n > *largest) *largest = n;
    return true;
}

static bool pair_of(span s, lg_report_op *op) {
    field f;
    uint32_t p[2] = {0, 0};
    while (next(&s, &f))
        if (f.number == 1 || f.number == 2) p[f.number - 1] = (uint32_t)f.value;
    if (s.p && op->n_pair < LG_REPORT_PAIRS) memcpy(op->pair[op->n_pair++], p, sizeof p);
    return s.p != NULL;
}

static bool instruction(span s, lg_report_op *op) {
    field f;
    memset(op, 0, offsetof(lg_report_op, pair));
    while (next(&s, &f)) {
        const char *text = (const char *)f.bytes.p;
        size_t n = (size_t)(f.bytes.end - f.bytes.p);
        bool ok = true;
        if (!f.has_bytes) continue;
        switch (f.number) {
        case F_NAME: op->name = text, op->name_len = n; break;
        case F_OPCODE: op->opcode = text, op->opcode_len = n; break;
        case F_TARGET: op->target = text, op->target_len = n; break;
        case F_SHAPE: ok = shape_bytes(f.bytes, &op->bytes, &op->largest_bytes, 0); break;
        case F_PAIRS: ok = pair_of(f.bytes, op); break;
        default: break;
        }
        if (!ok) return false;
    }
    return s.p && op->opcode;
}

/* Computations that fusions call, by id. */
typedef struct ids {
    uint64_t *id;
    size_t n, cap;
    bool failed;
} ids;

static bool has(const ids *l, uint64_t id) {
    for (size_t i = 0; i < l->n; i++)
        if (l->id[i] == id) return true;
    return false;
}

static void keep(ids *l, uint64_t id) {
    if (has(l, id) || l->failed) return;
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        uint64_t *p = lg_mem_realloc(l->id, cap * sizeof *p);
        l->failed = !p;
        if (!p) return;
        l->id = p;
        l->cap = cap;
    }
    l->id[l->n++] = id;
}

/* What an instruction calls, when it is a fusion. */
static bool fusion(span s, ids *l) {
    field f;
    span all = s;
    bool is = false;
    while (next(&s, &f))
        if (f.number == F_OPCODE && f.has_bytes)
            is = f.bytes.end - f.bytes.p == 6 && !memcmp(f.bytes.p, "fusion", 6);
    if (!s.p) return false;
    while (is && next(&all, &f)) {
        if (f.number != F_CALLED) continue;
        if (!f.has_bytes) keep(l, f.value);
        for (uint64_t id; f.has_bytes && f.bytes.p < f.bytes.end;) {
            if (!varint(&f.bytes, &id)) return false;
            keep(l, id);
        }
    }
    return true;
}

static bool computation(span s, const ids *fused, void (*fn)(void *, const lg_report_op *),
                        void *ctx, uint64_t *n) {
    field f;
    span first = s;
    lg_report_op op;
    bool in = false;
    while (next(&first, &f))
        if (f.number == F_ID && !f.has_bytes) in = has(fused, f.value);
    while (next(&s, &f)) {
        if (f.number != F_INSTRUCTIONS || !f.has_bytes) continue;
        if (!instruction(f.bytes, &op)) return false;
        op.fused = in;
        fn(ctx, &op);
        (*n)++;
    }
    return s.p != NULL;
}

static bool fusions(span s, ids *l) {
    field f;
    while (next(&s, &f))
        if (f.number == F_INSTRUCTIONS && f.has_bytes && !fusion(f.bytes, l)) return false;
    return s.p != NULL;
}

/* fn NULL: only look for fusions. */
static bool module(span s, ids *l, void (*fn)(void *, const lg_report_op *), void *ctx,
                   uint64_t *n) {
    field f;
    while (next(&s, &f)) {
        if (f.number != F_COMPUTATIONS || !f.has_bytes) continue;
        if (fn ? !computation(f.bytes, l, fn, ctx, n) : !fusions(f.bytes, l)) return false;
    }
    return s.p != NULL;
}

lg_status lg_report_read(const void *proto, size_t len_bytes,
                         void (*fn)(void *ctx, const lg_report_op *op), void *ctx,
                         lg_err *err) {
    span s = {proto, (const uint8_t *)proto + len_bytes};
    field f;
    ids fused = {0};
    uint64_t n = 0;
    bool ok = len_bytes > 0;
    while (ok && next(&s, &f)) {
        if (f.number != F_MODULE || !f.has_bytes) continue;
        ok = module(f.bytes, &fused, NULL, NULL, NULL) && !fused.failed &&
             module(f.bytes, &fused, fn, ctx, &n);
    }
    bool no_memory = fused.failed;
    lg_mem_free(fused.id);
    if (no_memory) return LG_FAIL(err, LG_E_NOMEM, "optimised program: no memory");
    if (!ok || !s.p || n == 0)
        return LG_FAIL(err, LG_E_FORMAT, "optimised program: not a serialised HLO module");
    return LG_OK;
}

bool lg_report_is(const lg_report_op *op, const char *opcode) {
    return op->opcode_len == strlen(opcode) && memcmp(op->opcode, opcode, op->opcode_len) == 0;
}

/* Collectives as programs have them: at once, or as a start with a done. */
static const char *const collective[] = {"all-gather",     "all-reduce",
                                         "reduce-scatter", "collective-permute",
                                         "all-to-all",     "ragged-all-to-all"};

static void count(void *ctx, const lg_report_op *op) {
    lg_report_sum *sum = ctx;
    for (size_t i = 0; i < LG_COUNT(collective); i++) {
        size_t n = strlen(collective[i]);
        if (op->opcode_len < n || memcmp(op->opcode, collective[i], n) != 0) continue;
        bool start = op->opcode_len == n + 6 && memcmp(op->opcode + n, "-start", 6) == 0;
        if (op->opcode_len != n && !start) continue;
        sum->collective[i].n++;
        sum->collective[i].bytes += op->largest_bytes;
    }
    if (lg_report_is(op, "custom-call") && op->target_len == 15 &&
        !memcmp(op->target, "tpu_custom_call", 15))
        sum->n_kernel++;
    if ((lg_report_is(op, "copy") || lg_report_is(op, "copy-start")) && !op->fused &&
        op->largest_bytes >= sum->copy_bytes) {
        sum->n_copy++;
        sum->copied_bytes += op->largest_bytes;
    }
}

lg_status lg_report_count(const void *proto, size_t len_bytes, uint64_t copy_bytes,
                          lg_report_sum *sum, lg_err *err) {
    *sum = (lg_report_sum){.copy_bytes = copy_bytes};
    for (size_t i = 0; i < LG_COUNT(collective); i++) sum->collective[i].opcode = collective[i];
    return lg_report_read(proto, len_bytes, count, sum, err);
}
