/* test_pjrt_cache.c - programs kept in files, on a plugin of our own (fake_pjrt.c): hits, damage, limits, another environment. */
#include "backend/pjrt/pjrt.h"
#include "fake_pjrt_rig.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static int find_file(const char *dir, char *to, size_t size) {
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') {
            snprintf(to, size, "%s/%s", dir, e->d_name);
            n++;
        }
    closedir(d);
    return n;
}

static void through_text(lg_pjrt_cache *k, lg_pjrt_client *c, const char *text, uint32_t hits,
                         uint32_t misses) {
    lg_err err;
    lg_pjrt_exe *e;
    assert_int_equal(lg_pjrt_cache_compile(k, c, text, strlen(text), &fake_rig_one, &e, &err),
                     LG_OK);
    assert_int_equal(lg_pjrt_exe_n_out(e), 2);
    assert_int_equal(k->n_hit, hits);
    assert_int_equal(k->n_miss, misses);
    lg_pjrt_exe_close(&e);
}

static void through(lg_pjrt_cache *k, lg_pjrt_client *c, uint32_t hits, uint32_t misses) {
    through_text(k, c, "fake results=2 tied=1", hits, misses);
}

static void test_cache(void **state) {
    (void)state;
    char base[] = "/tmp/lignum-pjrt-XXXXXX", dir[64], file[512];
    assert_non_null(mkdtemp(base));
    snprintf(dir, sizeof dir, "%s/programs", base);
    lg_pjrt_plugin *p = fake_rig_plugin("");
    lg_pjrt_client *c = fake_rig_client(p);
    lg_diag_set_level(LG_LOG_ERROR);
    lg_pjrt_cache k = {.dir = dir};
    through(&k, c, 0, 1);
    through(&k, c, 1, 1);
    assert_int_equal(find_file(dir, file, sizeof file), 1);
    /* one byte changed, a file cut short, one that others may write to: compiled and written again */
    FILE *f = fopen(file, "r+");
    assert_non_null(f);
    fseek(f, -1, SEEK_END);
    fputc('x', f);
    fclose(f);
    through(&k, c, 1, 2);
    through(&k, c, 2, 2);
    assert_int_equal(truncate(file, 70), 0);
    through(&k, c, 2, 3);
    assert_int_equal(chmod(file, 0666), 0);
    through(&k, c, 2, 4);
    through(&k, c, 3, 4);
    assert_int_equal(find_file(dir, file, sizeof file), 1);
    /* a plugin that cannot read them says so once */
    setenv("LG_FAKE_PJRT", "noread", 1);
    through(&k, c, 3, 5);
    assert_true(k.refused);
    through(&k, c, 3, 5);
    unlink(file);
    setenv("LG_FAKE_PJRT", "nofile", 1);
    lg_pjrt_cache l = {.dir = dir};
    through(&l, c, 0, 1);
    assert_true(l.refused);
    setenv("LG_FAKE_PJRT", "", 1);
    /* a folder that others may write to is not used */
    assert_int_equal(chmod(dir, 0777), 0);
    lg_pjrt_cache m = {.dir = dir};
    through(&m, c, 0, 1);
    assert_true(m.refused);
    assert_int_equal(find_file(dir, file, sizeof file), 0);
    rmdir(dir);
    rmdir(base);
    lg_pjrt_client_close(&c);
    lg_pjrt_plugin_close(&p);
    assert_int_equal(fake_rig_alive(), 0);
}

/* Another environment is another code: XLA_FLAGS and LIBTPU_INIT_ARGS, as they were when the plugin was opened. */
static void test_cache_environment(void **state) {
    (void)state;
    static const char *const set[][2] = {{"XLA_FLAGS", "--xla_a=1"},
                                         {"XLA_FLAGS", "--xla_a=2"},
                                         {"LIBTPU_INIT_ARGS", "--xla_a=1"},
                                         {"LIBTPU_INIT_ARGS", ""},
                                         {"XLA_FLAGS", "--xla_a=1"}};
    char dir[] = "/tmp/lignum-pjrt-XXXXXX", file[512], *kept[2];
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 2; i++) {
        const char *was = getenv(set[2 * i][0]);
        kept[i] = was ? strdup(was) : NULL;
        unsetenv(set[2 * i][0]);
    }
    for (uint32_t i = 0; i < 2 * LG_COUNT(set); i++) {
        uint32_t at = i % LG_COUNT(set);
        setenv(set[at][0], set[at][1], 1);
        lg_pjrt_plugin *p = fake_rig_plugin("");
        lg_pjrt_client *c = fake_rig_client(p);
        lg_pjrt_cache k = {.dir = dir};
        /* a, b, b and a, b, a; then the second of these is there, and b and a beside a: */
        bool hit = at >= 3 || i >= LG_COUNT(set);
        through(&k, c, hit, !hit);
        /* and a change behind the plugin's back is none */
        setenv("XLA_FLAGS", "--xla_a=3", 1);
        through(&k, c, hit + 1, !hit);
        setenv("XLA_FLAGS", at == 0 || at == 4 ? "--xla_a=1" : "--xla_a=2", 1);
        lg_pjrt_client_close(&c);
        lg_pjrt_plugin_close(&p);
    }
    assert_int_equal(find_file(dir, file, sizeof file), 3);
    for (int i = 0; i < 2; i++) {
        unsetenv(set[2 * i][0]);
        if (kept[i]) setenv(set[2 * i][0], kept[i], 1);
        free(kept[i]);
    }
    while (find_file(dir, file, sizeof file)) unlink(file);
    rmdir(dir);
    assert_int_equal(fake_rig_alive(), 0);
}

/* A file that the plugin does not take is made again; three, and none that it takes, end it. */
static void test_cache_stale(void **state) {
    (void)state;
    char dir[] = "/tmp/lignum-pjrt-XXXXXX", file[512];
    assert_non_null(mkdtemp(dir));
    lg_pjrt_plugin *p = fake_rig_plugin("");
    lg_pjrt_client *c = fake_rig_client(p);
    lg_diag_set_level(LG_LOG_ERROR);
    lg_pjrt_cache k = {.dir = dir}, l = {.dir = dir};
    through(&k, c, 0, 1);
    through(&k, c, 1, 1);
    setenv("LG_FAKE_PJRT", "stale", 1);
    through(&k, c, 1, 2);
    for (uint32_t i = 0; i < 5; i++) through(&k, c, 1, 3 + i);
    assert_false(k.refused); /* it has read one */
    setenv("LG_FAKE_PJRT", "", 1);
    through(&k, c, 2, 7);
    setenv("LG_FAKE_PJRT", "stale", 1);
    for (uint32_t i = 1; i <= LG_PJRT_CACHE_UNREAD; i++) {
        through(&l, c, 0, i);
        assert_true(l.refused == (i == LG_PJRT_CACHE_UNREAD));
        assert_int_equal(find_file(dir, file, sizeof file), 1);
    }
    through(&l, c, 0, LG_PJRT_CACHE_UNREAD);
    setenv("LG_FAKE_PJRT", "", 1);
    unlink(file);
    rmdir(dir);
    lg_pjrt_client_close(&c);
    lg_pjrt_plugin_close(&p);
}

/* When the folder is full, what was not used for the longest time goes, and nothing else in it. */
static void test_cache_limit(void **state) {
    (void)state;
    static const char *const text[3] = {"fake results=2 tied=1", "fake results=2 tied=1 ",
                                        "fake results=2 tied=1  "};
    char dir[] = "/tmp/lignum-pjrt-XXXXXX", file[512], name[2][512];
    assert_non_null(mkdtemp(dir));
    lg_pjrt_plugin *p = fake_rig_plugin("");
    lg_pjrt_client *c = fake_rig_client(p);
    lg_diag_set_level(LG_LOG_ERROR);
    lg_pjrt_cache k = {.dir = dir, .limit_bytes = 200}; /* a file has about 91 */
    struct timespec old[2] = {{100, 0}, {100, 0}}, older[2] = {{50, 0}, {50, 0}};
    through_text(&k, c, text[0], 0, 1);
    find_file(dir, name[0], sizeof name[0]);
    assert_int_equal(utimensat(AT_FDCWD, name[0], old, 0), 0);
    snprintf(file, sizeof file, "%s/notes.txt", dir);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fprintf(f, "%0300d", 7);
    fclose(f);
    assert_int_equal(utimensat(AT_FDCWD, file, older, 0), 0);
    through_text(&k, c, text[1], 0, 2);
    assert_int_equal(access(name[0], F_OK), 0);
    through_text(&k, c, text[0], 1,
                 2); /* used: now the other one is older, once its time says so */
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (strstr(e->d_name, ".pjrt") && !strstr(name[0], e->d_name)) {
            snprintf(name[1], sizeof name[1], "%s/%s", dir, e->d_name);
            assert_int_equal(utimensat(AT_FDCWD, name[1], old, 0), 0);
        }
    closedir(d);
    through_text(&k, c, text[2], 1, 3);
    assert_int_equal(access(name[0], F_OK), 0);
    assert_int_not_equal(access(name[1], F_OK), 0);
    assert_int_equal(access(file, F_OK), 0);
    through_text(&k, c, text[2], 2, 3);
    through_text(&k, c, text[1], 2, 4); /* it is compiled again */
    /* One that is larger than the limit alone stays alone. */
    k.limit_bytes = 1;
    through_text(&k, c, "fake results=2 tied=0", 2, 5);
    through_text(&k, c, "fake results=2 tied=0", 3, 5);
    unlink(file);
    assert_int_equal(find_file(dir, file, sizeof file), 1);
    unlink(file);
    assert_int_equal(rmdir(dir), 0);
    lg_pjrt_client_close(&c);
    lg_pjrt_plugin_close(&p);
    assert_int_equal(fake_rig_alive(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_cache_environment),
        cmocka_unit_test(test_cache_stale),
        cmocka_unit_test(test_cache_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
