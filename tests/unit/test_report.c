/* test_report.c - reading an optimised program: bytes made by hand, cut and damaged ones. */
#include "backend/pjrt/plugin/report.h"

#include "base/buf.h"
#include "base/num.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void put_varint(lg_buf *b, uint64_t v) {
    for (; v > 127; v >>= 7) lg_buf_putc(b, (char)(v | 128));
    lg_buf_putc(b, (char)v);
}

static void put_number(lg_buf *b, uint32_t field, uint64_t v) {
    put_varint(b, field << 3);
    put_varint(b, v);
}

static void put_bytes(lg_buf *b, uint32_t field, const void *p, size_t n) {
    put_varint(b, field << 3 | 2);
    put_varint(b, n);
    lg_buf_put(b, p, n);
}

static void put_sub(lg_buf *b, uint32_t field, lg_buf *sub) {
    put_bytes(b, field, lg_buf_str(sub), sub->len_bytes);
    lg_buf_clear(sub);
}

/* Shape of element type `type` and two dimensions, packed. */
static void put_shape(lg_buf *b, uint32_t field, uint32_t type, uint64_t d0, uint64_t d1) {
    lg_buf s = {0}, dims = {0};
    put_number(&s, 2, type);
    put_varint(&dims, d0);
    put_varint(&dims, d1);
    put_sub(&s, 3, &dims);
    put_sub(b, field, &s);
    lg_buf_fini(&s);
    lg_buf_fini(&dims);
}

static void put_op(lg_buf *computation, const char *opcode, uint32_t type, uint64_t d0,
                   uint64_t d1, const char *target) {
    lg_buf op = {0};
    put_bytes(&op, 1, "name", 4);
    put_bytes(&op, 2, opcode, strlen(opcode));
    put_shape(&op, 3, type, d0, d1);
    put_number(&op, 35, 7); /* a field that nobody asks for */
    if (target) put_bytes(&op, 28, target, strlen(target));
    put_sub(computation, 2, &op);
    lg_buf_fini(&op);
}

static void program(lg_buf *out) {
    lg_buf c = {0}, op = {0}, pair = {0}, shape = {0}, module = {0};
    put_op(&c, "parameter", 11, 4, 8, NULL);        /* F32: 128 bytes */
    put_op(&c, "copy", 16, 100, 10, NULL);          /* BF16: 2000 */
    put_op(&c, "copy", 16, 10, 10, NULL);           /* 200: too small to count */
    put_op(&c, "all-gather-start", 11, 2, 3, NULL); /* 24 */
    put_op(&c, "all-gather-done", 11, 2, 3, NULL);
    put_op(&c, "custom-call", 11, 1, 1, "tpu_custom_call");
    put_op(&c, "custom-call", 11, 1, 1, "Sharding");
    /* A collective-permute with a tuple as its result. */
    put_bytes(&op, 2, "collective-permute-start", 24);
    put_number(&shape, 2, 13);
    put_shape(&shape, 4, 20, 3, 5);
    put_shape(&shape, 4, 11, 3, 5);
    put_sub(&op, 3, &shape);
    for (uint32_t i = 0; i < 2; i++) {
        if (i) put_number(&pair, 1, i);
        if (!i) put_number(&pair, 2, 1);
        put_sub(&op, 52, &pair);
    }
    put_sub(&c, 2, &op);
    /* A fusion calls computation 9, whose copies are in no memory. */
    lg_buf called = {0};
    put_bytes(&op, 2, "fusion", 6);
    put_shape(&op, 3, 11, 1, 1);
    put_varint(&called, 9);
    put_sub(&op, 38, &called);
    put_sub(&c, 2, &op);
    lg_buf_fini(&called);
    put_number(&c, 5, 8);
    put_bytes(&module, 1, "m", 1);
    put_sub(&module, 3, &c);
    put_op(&c, "copy", 16, 100, 10, NULL);
    put_number(&c, 5, 9);
    put_sub(&module, 3, &c);
    put_sub(out, 1, &module);
    lg_buf_fini(&c);
    lg_buf_fini(&op);
    lg_buf_fini(&pair);
    lg_buf_fini(&shape);
    lg_buf_fini(&module);
}

static void look(void *ctx, const lg_report_op *op) {
    if (!lg_report_is(op, "collective-permute-start")) return;
    assert_int_equal(op->bytes, 15 + 60);
    assert_int_equal(op->largest_bytes, 60);
    assert_int_equal(op->n_pair, 2);
    assert_int_equal(op->pair[0][0], 0);
    assert_int_equal(op->pair[0][1], 1);
    assert_int_equal(op->pair[1][0], 1);
    assert_int_equal(op->pair[1][1], 0);
    *(int *)ctx += 1;
}

static void test_read(void **state) {
    (void)state;
    lg_buf b = {0};
    lg_report_sum sum;
    lg_err err;
    int n = 0;
    program(&b);
    assert_int_equal(lg_report_read(b.data, b.len_bytes, look, &n, &err), LG_OK);
    assert_int_equal(n, 1);
    assert_int_equal(lg_report_count(b.data, b.len_bytes, 1000, &sum, &err), LG_OK);
    assert_string_equal(sum.collective[0].opcode, "all-gather");
    assert_int_equal(sum.collective[0].n, 1);
    assert_int_equal(sum.collective[0].bytes, 24);
    assert_int_equal(sum.collective[3].n, 1);
    assert_int_equal(sum.collective[3].bytes, 60);
    assert_int_equal(sum.collective[1].n + sum.collective[2].n + sum.collective[4].n, 0);
    assert_int_equal(sum.n_kernel, 1);
    assert_int_equal(sum.n_copy, 1);
    assert_int_equal(sum.copied_bytes, 2000);
    lg_buf_fini(&b);
}

static void ignore(void *ctx, const lg_report_op *op) {
    (void)ctx;
    (void)op;
}

/* Whatever comes, nothing outside the bytes is read (the sanitizers watch), and a cut program is refused. */
static void test_damage(void **state) {
    (void)state;
    lg_buf b = {0};
    program(&b);
    for (size_t n = 0; n < b.len_bytes; n++) {
        char *copy = malloc(n ? n : 1);
        assert_non_null(copy);
        memcpy(copy, b.data, n);
        assert_int_equal(lg_report_read(copy, n, ignore, NULL, NULL), LG_E_FORMAT);
        free(copy);
    }
    for (uint32_t i = 0; i < 20000; i++) {
        char *copy = malloc(b.len_bytes);
        assert_non_null(copy);
        memcpy(copy, b.data, b.len_bytes);
        for (uint32_t k = 0; k < 1 + i % 4; k++)
            copy[lg_num_rng(1, i, k, 0) % b.len_bytes] = (char)lg_num_rng(1, i, k, 1);
        lg_status st = lg_report_read(copy, b.len_bytes, ignore, NULL, NULL);
        assert_true(st == LG_OK || st == LG_E_FORMAT);
        free(copy);
    }
    lg_buf_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
