/* test_packed.c - packed weights: a file is used whole or not at all, and a model that is mapped computes the same bits. */
#include "fixture.h"
#include "rig.h"

#include "base/hash.h"
#include "model/weights/packed.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define BYTES ((9u << 20) + 64) /* three pieces, the last one short */
#define ID    0x1234567890abcdefu

static lg_pool *pool;
static char folder[64], path[128]; /* of the test that runs */

static int begin(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/lignum-packed-XXXXXX");
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/a.lgpacked", folder);
    return 0;
}

/* Files in the folder; removes them when asked to. */
static int count_files(bool delete) {
    int n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char name[512];
        if (e->d_name[0] == '.') continue;
        n++;
        snprintf(name, sizeof name, "%s/%s", folder, e->d_name);
        if (delete) assert_int_equal(remove(name), 0);
    }
    closedir(d);
    return n;
}

static int end(void **state) {
    (void)state;
    count_files(true);
    return rmdir(folder);
}

static uint8_t *block(void) {
    uint8_t *b = lg_mem_alloc(BYTES);
    assert_non_null(b);
    for (size_t i = 0; i < BYTES; i++) b[i] = (uint8_t)(i * 2654435761u >> 11);
    return b;
}

static void write_good(void) {
    lg_err err = {0};
    uint8_t *b = block();
    if (lg_packed_write(path, ID, b, BYTES, pool, &err) != LG_OK) fail_msg("%s", err.msg);
    lg_mem_free(b);
}

/* Turn a bit of the file at `at` (from the end when negative). */
static void flip(long at) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    int c = fgetc(f);
    fseek(f, -1, SEEK_CUR);
    fputc(c ^ 16, f);
    fclose(f);
}

static void expect(lg_status want, const char *words) {
    lg_packed p;
    lg_err err = {0};
    lg_status st = lg_packed_open(path, ID, BYTES, &p, &err);
    if (st != want || (words && !strstr(err.msg, words)))
        fail_msg("found %s \"%s\", expected %s with \"%s\"", lg_status_name(st), err.msg,
                 lg_status_name(want), words ? words : "");
    if (words) assert_non_null(strstr(err.msg, path));
    lg_packed_close(&p);
}

static void test_round_trip(void **state) {
    (void)state;
    lg_packed p;
    lg_err err = {0};
    uint8_t *b = block();
    expect(LG_AGAIN, NULL);
    write_good();
    assert_int_equal(count_files(false), 1);
    assert_int_equal(lg_packed_open(path, ID, BYTES, &p, &err), LG_OK);
    lg_packed_touch(&p, pool);
    assert_memory_equal(p.block, b, BYTES);
    assert_int_equal((uintptr_t)p.block % 4096, 0);
    assert_int_equal(lg_packed_verify(&p, pool, &err), LG_OK);
    lg_packed_close(&p);
    lg_mem_free(b);
}

/* Every bit of header and table counts at a start, every bit of the block when it is verified. */
static void test_flipped_bits(void **state) {
    (void)state;
    write_good();
    for (long at = 0; at < 56; at++) {
        flip(at);
        expect(LG_E_FORMAT, "");
        flip(at);
    }
    for (long at = -24; at < 0; at++) {
        flip(at);
        expect(LG_E_FORMAT, "header or table is damaged");
        flip(at);
    }
    expect(LG_OK, NULL);
    const long places[] = {2 << 20, (2 << 20) + 4321, (6 << 20) - 1, 6 << 20, (11 << 20) + 63};
    const char *const piece[] = {"2097152", "2097152", "2097152", "6291456", "10485760"};
    for (size_t i = 0; i < LG_COUNT(places); i++) {
        lg_packed p;
        lg_err err = {0};
        flip(places[i]);
        assert_int_equal(lg_packed_open(path, ID, BYTES, &p, &err), LG_OK);
        assert_int_equal(lg_packed_verify(&p, pool, &err), LG_E_FORMAT);
        assert_non_null(strstr(err.msg, path));
        assert_non_null(strstr(err.msg, piece[i]));
        lg_packed_close(&p);
        flip(places[i]);
    }
}

static void test_other_files(void **state) {
    (void)state;
    lg_packed p;
    lg_err err = {0};
    struct stat info;
    write_good();
    assert_int_equal(lg_packed_open(path, ID + 1, BYTES, &p, &err), LG_E_FORMAT);
    assert_non_null(strstr(err.msg, "another state of the model"));
    assert_int_equal(lg_packed_open(path, ID, BYTES + 64, &p, &err), LG_E_FORMAT);
    assert_non_null(strstr(err.msg, "bytes of weights"));
    assert_int_equal(stat(path, &info), 0);
    const off_t sizes[] = {info.st_size - 1, info.st_size + 1, 3 << 20, 2 << 20, 100, 0};
    for (size_t i = 0; i < LG_COUNT(sizes); i++) {
        assert_int_equal(truncate(path, sizes[i]), 0);
        expect(LG_E_FORMAT, "bytes");
    }
    assert_int_equal(truncate(path, 3 << 20), 0); /* zeros */
    expect(LG_E_FORMAT, "another kind of file");
    remove(path);
    assert_int_equal(mkdir(path, 0700), 0);
    expect(LG_E_IO, "not a regular file");
    assert_int_equal(rmdir(path), 0);
}

static void test_no_room(void **state) {
    (void)state;
    lg_err err = {0};
    uint8_t *b = block();
    assert_int_equal(lg_packed_write(path, ID, b, 1ull << 52, pool, &err), LG_E_IO);
    assert_non_null(strstr(err.msg, "would leave less than"));
    assert_int_equal(lg_packed_write("/proc/none/a", ID, b, BYTES, pool, &err), LG_E_IO);
    assert_int_equal(lg_packed_write("/dev/null/a", ID, b, BYTES, pool, &err), LG_E_IO);
    assert_int_equal(count_files(false), 0);
    lg_mem_free(b);
}

static void test_hash(void **state) {
    (void)state;
    uint8_t b[100] = {0};
    uint64_t seen[901];
    size_t n = 0;
    seen[n++] = lg_hash_add(1, b, 100);
    for (size_t len = 0; len < 100; len++) seen[n++] = lg_hash_add(1, b, len);
    for (size_t i = 0; i < 800; i++) {
        b[i / 8] ^= (uint8_t)(1u << i % 8);
        seen[n++] = lg_hash_add(1, b, 100);
        b[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    assert_true(lg_hash_add(2, b, 100) != seen[0] && lg_hash_add(1, b, 100) == seen[0]);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) assert_true(seen[i] != seen[j]);
}

/* ---- models ---- */

static lg_weights *open_model(const char *model, const char *dir, lg_packed_state want) {
    lg_weights *w = NULL;
    lg_err err = {0};
    if (lg_weights_open_packed(model, NULL, dir, pool, NULL, NULL, &w, &err) != LG_OK)
        fail_msg("%s", err.msg);
    if (w->packed != want) fail_msg("%s: packed state %d, expected %d", model, w->packed, want);
    return w;
}

static void same_logits(const lg_weights *a, const lg_weights *b) {
    enum { N = 9 };
    const lg_weights *w[2] = {a, b};
    uint32_t tok[N] = {1, 5, 9, 2, 7, 7, 30, 8, 4}, page[1] = {0};
    float *y[2];
    size_t n = a->cfg.n_vocab;
    for (int k = 0; k < 2; k++) {
        lg_backend *be = NULL;
        lg_err err = {0};
        lg_backend_opt opt = {.n_slot = 1,
                              .n_page = 1,
                              .max_tok = N,
                              .max_seq = 1,
                              .max_out = N,
                              .n_sample_vocab = a->cfg.n_vocab};
        lg_step_out out = {0};
        rig_seq seq = {0, 0, page, 1, tok, N, N};
        assert_int_equal(lg_backend_open(w[k], &opt, pool, &be, &err), LG_OK);
        rig_step(be, &seq, 1, &out);
        y[k] = lg_mem_calloc(N * n, sizeof **y);
        for (size_t r = 0; r < N; r++)
            memcpy(y[k] + r * n, out.logits + r * out.ld_logits, n * sizeof **y);
        lg_backend_close(&be);
    }
    assert_memory_equal(y[0], y[1], N * n * sizeof **y);
    lg_mem_free(y[0]);
    lg_mem_free(y[1]);
}

static void test_models(void **state) {
    (void)state;
    const char *const models[] = {"tests/data/models/tiny-dense",
                                  "tests/data/models/tiny-moe-fp8",
                                  "tests/data/gguf/tiny-dense-r3-Q8_0.gguf"};
    for (size_t i = 0; i < LG_COUNT(models); i++) {
        char model[512];
        lg_fixture_source(models[i], model, sizeof model);
        lg_weights *plain = open_model(model, NULL, LG_PACKED_NO);
        lg_weights *first = open_model(model, folder, LG_PACKED_WRITTEN);
        assert_int_equal(count_files(false), i + 1);
        lg_weights *second = open_model(model, folder, LG_PACKED_FOUND);
        assert_int_equal(plain->weight_bytes, second->weight_bytes);
        assert_int_equal(plain->n_param, second->n_param);
        same_logits(plain, first);
        same_logits(plain, second);
        lg_err err = {0};
        assert_int_equal(lg_weights_verify_packed(second, pool, &err), LG_OK);
        /* Nothing is read from the file any more. */
        char *packed = lg_packed_path(folder, model, 0);
        assert_int_equal(truncate(packed, 0), 0);
        same_logits(plain, first);
        same_logits(plain, second);
        lg_mem_free(packed);
        lg_weights_close(&plain);
        lg_weights_close(&first);
        lg_weights_close(&second);
    }
}

/* A source that changed is packed anew; the old file goes. */
static void test_changed_source(void **state) {
    (void)state;
    lg_fixture f;
    lg_fixture_init(&f, "tests/data/models/tiny-dense");
    lg_weights *w = open_model(f.path, folder, LG_PACKED_WRITTEN);
    lg_weights_close(&w);
    /* the same bytes, another inode */
    lg_buf b = lg_fixture_read(&f, "model.safetensors");
    lg_fixture_write(&f, "model.safetensors", b.data, b.len_bytes);
    w = open_model(f.path, folder, LG_PACKED_WRITTEN);
    lg_weights_close(&w);
    w = open_model(f.path, folder, LG_PACKED_FOUND);
    lg_weights_close(&w);
    /* only its time */
    char file[512];
    snprintf(file, sizeof file, "%s/model.safetensors", f.path);
    struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    assert_int_equal(utimensat(AT_FDCWD, file, times, 0), 0);
    w = open_model(f.path, folder, LG_PACKED_WRITTEN);
    lg_weights_close(&w);
    /* the configuration */
    lg_fixture_replace(&f, "config.json", "\"use_cache\": true", "\"use_cache\": false");
    w = open_model(f.path, folder, LG_PACKED_WRITTEN);
    lg_weights_close(&w);
    assert_int_equal(count_files(false), 1);
    /* a damaged file is replaced, a folder that cannot be written is done without */
    char *packed = lg_packed_path(folder, f.path, 0);
    assert_int_equal(truncate(packed, 3 << 20), 0);
    w = open_model(f.path, folder, LG_PACKED_WRITTEN);
    lg_weights_close(&w);
    lg_mem_free(packed);
    w = open_model(f.path, "/proc/none", LG_PACKED_NO);
    lg_weights_close(&w);
    lg_buf_fini(&b);
    lg_fixture_fini(&f);
}

/* Several processes start at once: each gets its weights, and one file stays. */
static void test_race(void **state) {
    (void)state;
    enum { N = 4 };
    char model[512];
    pid_t child[N];
    lg_fixture_source("tests/data/models/tiny-dense", model, sizeof model);
    lg_weights *plain = open_model(model, NULL, LG_PACKED_NO);
    for (int i = 0; i < N; i++) {
        child[i] = fork();
        assert_true(child[i] >= 0);
        if (child[i]) continue;
        lg_weights *w = NULL;
        lg_err err;
        lg_status st = lg_weights_open_packed(model, NULL, folder, NULL, NULL, NULL, &w, &err);
        bool same = st == LG_OK && memcmp(w->layer[0].z.panel, plain->layer[0].z.panel,
                                          w->layer[0].z.n_out * w->layer[0].z.n_in * 2) == 0;
        _exit(same ? 0 : 1);
    }
    for (int i = 0; i < N; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_int_equal(count_files(false), 1);
    lg_weights *w = open_model(model, folder, LG_PACKED_FOUND);
    lg_weights_close(&w);
    lg_weights_close(&plain);
}

int main(void) {
    lg_err err;
    if (lg_pool_open(2, &pool, &err) != LG_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash),
        cmocka_unit_test_setup_teardown(test_round_trip, begin, end),
        cmocka_unit_test_setup_teardown(test_flipped_bits, begin, end),
        cmocka_unit_test_setup_teardown(test_other_files, begin, end),
        cmocka_unit_test_setup_teardown(test_no_room, begin, end),
        cmocka_unit_test_setup_teardown(test_models, begin, end),
        cmocka_unit_test_setup_teardown(test_changed_source, begin, end),
        cmocka_unit_test_setup_teardown(test_race, begin, end),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    lg_pool_close(&pool);
    return failed;
}
