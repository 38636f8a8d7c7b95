/* test_safetensors.c - the container: views, lookups, every cut and many flips of a small file; damaged folders are in
 * test_loader.c. */
#include "fixture.h"

#include "base/num.h"
#include "model/file/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

/* A file of three tensors, one of them empty, in memory. */
static lg_buf small_file(void) {
    static const char head[] =
        "{\"__metadata__\":{\"a\":\"b\"},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
        "\"none\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[16,16]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}} ";
    lg_buf b = {0};
    uint64_t n = sizeof head - 1;
    float one = 1;
    uint16_t six[6] = {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0};
    lg_buf_put(&b, &n, 8);
    lg_buf_put(&b, head, (size_t)n);
    lg_buf_put(&b, &one, 4);
    lg_buf_put(&b, six, 12);
    assert_false(b.failed);
    return b;
}

/* Check a copy that ends where its heap block ends, so that a sanitizer sees any read beyond it. */
static lg_status check(const void *data, size_t len) {
    size_t whole = (len + LG_MEM_ALIGN - 1) / LG_MEM_ALIGN * LG_MEM_ALIGN;
    uint8_t *block = lg_mem_alloc(whole), *copy = block + whole - len;
    lg_err err = {0};
    memcpy(copy, data, len);
    lg_status st = lg_st_check(copy, len, "file", &err);
    assert_true(st == LG_OK || (err.code == st && strncmp(err.msg, "file", 4) == 0));
    lg_mem_free(block);
    return st;
}

static void test_views_of_a_small_file(void **state) {
    (void)state;
    lg_fixture f;
    lg_tensors *set;
    lg_err err;
    char text[64];
    lg_buf b = small_file();
    lg_fixture_init(&f, "tests/data/models/tiny-dense");
    lg_fixture_write(&f, "model.safetensors", b.data, b.len_bytes);
    assert_int_equal(lg_st_open(f.path, &set, &err), LG_OK);
    assert_int_equal(lg_tensors_count(set), 3);
    const lg_view *v = lg_tensors_find(set, "b");
    assert_non_null(v);
    assert_int_equal(v->type, LG_BF16);
    assert_string_equal(v->type_name, "BF16");
    assert_int_equal(v->n_dim, 2);
    assert_int_equal(v->shape[0], 2);
    assert_int_equal(v->shape[1], 3);
    assert_int_equal(v->len_bytes, 12);
    assert_true(lg_num_bf16(lg_num_load16(v->data + 10)) == 6);
    assert_non_null(strstr(v->file, "model.safetensors"));
    assert_string_equal(lg_tensors_shape(v->n_dim, v->shape, text, sizeof text), "[2, 3]");
    v = lg_tensors_find(set, "a");
    assert_int_equal(v->n_dim, 0);
    assert_int_equal(v->len_bytes, 4);
    assert_string_equal(lg_tensors_shape(0, v->shape, text, sizeof text), "[]");
    assert_int_equal(lg_tensors_find(set, "none")->len_bytes, 0);
    assert_null(lg_tensors_find(set, "c"));
    assert_null(lg_tensors_find(set, ""));
    assert_null(lg_tensors_find(set, "__metadata__"));
    assert_string_equal(lg_tensors_at(set, 0)->name, "a");
    assert_string_equal(lg_tensors_at(set, 2)->name, "none");
    assert_null(lg_tensors_at(set, 3));
    lg_tensors_release(set);
    assert_true(lg_num_bf16(lg_num_load16(lg_tensors_find(set, "b")->data)) == 1);
    lg_tensors_close(&set);
    assert_null(set);
    lg_tensors_close(&set);
    lg_fixture_fini(&f);
    lg_buf_fini(&b);
}

/* A shape that does not fit its buffer is cut, not written past it. */
static void test_long_shapes(void **state) {
    (void)state;
    uint64_t shape[LG_MAX_DIM];
    char text[32];
    for (int i = 0; i < LG_MAX_DIM; i++) shape[i] = UINT64_MAX - (uint64_t)i;
    memset(text, 'x', sizeof text);
    lg_tensors_shape(LG_MAX_DIM, shape, text, 20);
    assert_string_equal(text, "[184467440737095516");
    assert_int_equal(text[20], 'x');
}

static void test_shards_and_golden_types(void **state) {
    (void)state;
    char path[400];
    lg_tensors *set;
    lg_err err;
    lg_fixture_source("tests/data/models/tiny-moe", path, sizeof path);
    assert_int_equal(lg_st_open(path, &set, &err), LG_OK);
    /* 8 layers, ends, 19 of MTP, one of vision; see the header of each part. */
    size_t n_mtp = 0, n_layer = 0;
    for (size_t i = 0; i < lg_tensors_count(set); i++) {
        const lg_view *v = lg_tensors_at(set, i);
        n_mtp += strncmp(v->name, "mtp.", 4) == 0;
        n_layer += strstr(v->name, "language_model.layers.") != NULL;
        if (i > 0) assert_true(strcmp(lg_tensors_at(set, i - 1)->name, v->name) < 0);
        assert_ptr_equal(lg_tensors_find(set, v->name), v);
    }
    assert_int_equal(n_mtp, 19);
    assert_int_equal(n_layer, 6 * 18 + 2 * 15);
    assert_int_equal(lg_tensors_count(set), n_mtp + n_layer + 4);
    lg_tensors_close(&set);
    /* One file by its own path; integers are views too, of no weight's type. */
    lg_fixture_source("tests/data/golden/tiny-dense.safetensors", path, sizeof path);
    assert_int_equal(lg_st_open(path, &set, &err), LG_OK);
    const lg_view *ids = lg_tensors_find(set, "p65.ids");
    assert_non_null(ids);
    assert_int_equal(ids->type, LG_N_DTYPE);
    assert_string_equal(ids->type_name, "I32");
    assert_int_equal(ids->len_bytes, 65 * 4);
    lg_tensors_close(&set);
    assert_int_equal(lg_st_open("/does/not/exist", &set, &err), LG_E_IO);
    assert_non_null(strstr(err.msg, "/does/not/exist"));
    assert_null(set);
    assert_int_equal(lg_st_open("/dev/null", &set, &err), LG_E_IO);
}

static void test_every_cut_is_refused(void **state) {
    (void)state;
    lg_buf b = small_file();
    assert_int_equal(check(b.data, b.len_bytes), LG_OK);
    for (size_t n = 0; n < b.len_bytes; n++) assert_int_equal(check(b.data, n), LG_E_FORMAT);
    lg_buf_putc(&b, 0);
    assert_int_equal(check(b.data, b.len_bytes), LG_E_FORMAT);
    lg_buf_fini(&b);
}

/* Any single byte of length and header replaced by any other: an error or a legal file, never a crash. */
static void test_every_flip_is_survived(void **state) {
    (void)state;
    lg_buf b = small_file();
    size_t n_ok = 0, n_head = b.len_bytes - 16;
    for (size_t i = 0; i < n_head; i++)
        for (int x = 1; x < 256; x++) {
            b.data[i] = (char)(b.data[i] ^ x);
            n_ok += check(b.data, b.len_bytes) == LG_OK;
            b.data[i] = (char)(b.data[i] ^ x);
        }
    /* Letters inside names and the metadata may change freely; little else may. */
    assert_true(n_ok > 0 && n_ok < n_head * 255 / 10);
    lg_buf_fini(&b);
}

static void test_sizes_of_the_length(void **state) {
    (void)state;
    lg_buf b = small_file();
    uint64_t right, lengths[] = {0,
                                 1,
                                 2,
                                 7,
                                 b.len_bytes - 8,
                                 b.len_bytes - 7,
                                 b.len_bytes,
                                 100000001,
                                 1ull << 31,
                                 1ull << 32,
                                 1ull << 62,
                                 1ull << 63,
                                 UINT64_MAX - 8,
                                 UINT64_MAX - 7,
                                 UINT64_MAX};
    memcpy(&right, b.data, 8);
    for (size_t i = 0; i < LG_COUNT(lengths); i++) {
        memcpy(b.data, &lengths[i], 8);
        assert_int_equal(check(b.data, b.len_bytes), LG_E_FORMAT);
    }
    memcpy(b.data, &right, 8);
    assert_int_equal(check(b.data, b.len_bytes), LG_OK);
    lg_buf_fini(&b);
    assert_int_equal(check("\x02\0\0\0\0\0\0\0{}", 10), LG_OK); /* no tensors, no data */
    assert_int_equal(check("\x02\0\0\0\0\0\0\0{}x", 11), LG_E_FORMAT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_views_of_a_small_file),
        cmocka_unit_test(test_long_shapes),
        cmocka_unit_test(test_shards_and_golden_types),
        cmocka_unit_test(test_every_cut_is_refused),
        cmocka_unit_test(test_every_flip_is_survived),
        cmocka_unit_test(test_sizes_of_the_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
