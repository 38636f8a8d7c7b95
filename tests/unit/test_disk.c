/* test_disk.c - files of kept texts: heads that are not right, folders that are not ours, damage, limits, restarts.
 *
 * Engines here stand on the fake backend, which checks every page and state against the ids: a text that came back wrong would abort.
 * That a restored text gives the bits of a computed one is test_reuse's business. */
#include "base/base.h"
#include "base/num.h"
#include "engine_rig.h"
#include "model/identity.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static char dir[64];

/* ---- folders ---- */

static int clean(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return dir[0] && system(command) != 0 ? -1 : 0;
}

static int fresh(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/lignum-disk-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static const char *path_of(const char *name) {
    static char path[2][400];
    static int i;
    i = !i;
    snprintf(path[i], sizeof path[i], "%s/%s", dir, name);
    return path[i];
}

/* Names of the files of kept texts, sorted; their bytes together. */
static uint32_t list(char name[][LG_DISK_NAME_BYTES], uint32_t cap, uint64_t *bytes) {
    uint32_t n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    if (bytes) *bytes = 0;
    for (const struct dirent *e; (e = readdir(d));) {
        uint64_t hash;
        uint32_t to;
        struct stat st;
        if (!lg_disk_parse_name(e->d_name, &hash, &to)) continue;
        assert_true(n < cap);
        assert_int_equal(lstat(path_of(e->d_name), &st), 0);
        assert_int_equal(st.st_mode, S_IFREG | 0600);
        if (bytes) *bytes += (uint64_t)st.st_size;
        memcpy(name[n++], e->d_name, strlen(e->d_name) + 1);
    }
    closedir(d);
    qsort(name, n, LG_DISK_NAME_BYTES, (int (*)(const void *, const void *))strcmp);
    return n;
}

static bool is_there(const char *name) {
    struct stat st;
    return lstat(path_of(name), &st) == 0;
}

static void flip(const char *name, off_t at, uint8_t mask) {
    int fd = open(path_of(name), O_RDWR);
    uint8_t c;
    assert_int_equal(pread(fd, &c, 1, at), 1);
    c ^= mask;
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    close(fd);
}

/* ---- heads ---- */

static lg_disk_shape shape_of(uint8_t model) {
    lg_disk_shape s = {.page_bytes = 1000, .snap_bytes = 2000, .n_part = 2, .max_tok = 4096};
    memset(s.model, model, sizeof s.model);
    return s;
}

static lg_disk_head good_head(const lg_disk_shape *s) {
    lg_disk_head h;
    lg_disk_head_init(&h, s, 70, 200); /* pages 1, 2, 3 */
    h.hash = 5;
    lg_disk_head_seal(&h);
    return h;
}

static void test_every_byte_of_a_head_counts(void **state) {
    (void)state;
    lg_disk_shape s = shape_of(7);
    lg_disk_head h = good_head(&s), got;
    char why[96] = "";
    uint64_t bytes = 256 + 130 * 4 + 3 * 1000 + 2000;
    assert_int_equal(lg_disk_file_bytes(&h), bytes);
    assert_true(lg_disk_head_check(&h, sizeof h, bytes, &s, &got, why));
    assert_memory_equal(&h, &got, sizeof h);
    for (size_t len = 0; len < sizeof h; len++) {
        uint8_t *cut = malloc(len + 1); /* so that reading too far shows */
        memcpy(cut, &h, len);
        assert_false(lg_disk_head_check(cut, len, bytes, &s, &got, why));
        free(cut);
    }
    for (size_t i = 0; i < 8 * sizeof h; i++) {
        lg_disk_head bad = h;
        ((uint8_t *)&bad)[i / 8] ^= (uint8_t)(1u << i % 8);
        why[0] = 0;
        assert_false(lg_disk_head_check(&bad, sizeof bad, bytes, &s, &got, why));
        assert_true(why[0]);
    }
}

/* Heads that somebody made on purpose: the checksum is right. */
static void test_sealed_heads_are_checked(void **state) {
    (void)state;
    lg_disk_shape s = shape_of(7);
    char why[96];
    lg_disk_head got;
    for (int i = 0; i < 14; i++) {
        lg_disk_head h = good_head(&s);
        uint64_t bytes = lg_disk_file_bytes(&h);
        switch (i) {
        case 0: h.format++; break;
        case 1: h.page_tok = 32; break;
        case 2: h.from = 200; break;
        case 3: h.from = 201; break;
        case 4: h.to = 4097; break;
        case 5: h.to = UINT32_MAX; break;
        case 6: h.n_page = 2; break;
        case 7: h.n_page = UINT32_MAX; break;
        case 8: h.page_bytes = UINT64_MAX / 3; break;
        case 9: h.snap_bytes = 0; break;
        case 10: h.n_part = 0; break;
        case 11: h.model[31] ^= 1; break;
        case 12: h.magic[0] = 'l'; break;
        default: bytes++;
        }
        lg_disk_head_seal(&h);
        assert_false(lg_disk_head_check(&h, sizeof h, bytes, &s, &got, why));
    }
}

static void test_names(void **state) {
    (void)state;
    char name[LG_DISK_NAME_BYTES];
    uint64_t hash;
    uint32_t to;
    lg_disk_name(name, 0x0123456789abcdef, 77);
    assert_string_equal(name, "0123456789abcdef-0000004d.kept");
    assert_true(lg_disk_parse_name(name, &hash, &to) && hash == 0x0123456789abcdef && to == 77);
    static const char *const bad[] = {"",
                                      "lock",
                                      "0123456789abcdef-0000004d.kep",
                                      "0123456789abcdef-0000004d.kept2",
                                      "0123456789ABCDEF-0000004d.kept",
                                      "0123456789abcdef_0000004d.kept",
                                      "0123456789abcde/-0000004d.kept",
                                      "../../../../../etc/passwd.kept"};
    for (size_t i = 0; i < LG_COUNT(bad); i++)
        assert_false(lg_disk_parse_name(bad[i], &hash, &to));
}

/* ---- the index ---- */

static void test_index_keeps_trees(void **state) {
    (void)state;
    lg_disk_index x;
    lg_arena a;
    static uint8_t block[1 << 16] __attribute__((aligned(LG_MEM_ALIGN)));
    lg_arena_init(&a, block, sizeof block);
    lg_disk_index_carve(&x, &a, 100);
    lg_disk_index_init(&x, 1000000);
    uint32_t parent[100], n = 0;
    for (uint64_t i = 0; i < 3000; i++) {
        uint64_t r = lg_num_rng(1, 0, i, 0);
        if (r % 3 && x.free != LG_DISK_NONE) {
            uint32_t up = n && r % 5 ? (uint32_t)(r >> 8) % 100 : LG_DISK_NONE;
            if (up != LG_DISK_NONE && x.entry[up].state == LG_DISK_FREE) up = LG_DISK_NONE;
            uint32_t from = up == LG_DISK_NONE ? 0 : x.entry[up].to;
            uint32_t at = lg_disk_index_add(&x, r, from, from + 10, up, 100 + i % 7);
            assert_int_equal(lg_disk_index_find(&x, r, from + 10), at);
            assert_int_equal(lg_disk_index_add(&x, r, from, from + 10, up, 1), LG_DISK_NONE);
            x.entry[at].state = LG_DISK_READY;
            parent[at] = up;
            n++;
        } else if (n) {
            uint32_t at = lg_disk_index_victim(&x);
            assert_true(at != LG_DISK_NONE && x.entry[at].n_child == 0);
            if (parent[at] != LG_DISK_NONE) assert_true(x.entry[parent[at]].n_child > 0);
            lg_disk_index_drop(&x, at);
            n--;
        }
        assert_int_equal(x.n_used, n);
    }
    while (n--) lg_disk_index_drop(&x, lg_disk_index_victim(&x));
    assert_int_equal(lg_disk_index_victim(&x), LG_DISK_NONE);
    assert_int_equal(x.used_bytes, 0);
}

/* ---- engines ---- */

static rig *open_rig_err(lg_options opt, uint8_t model, lg_err *err) {
    rig *r = calloc(1, sizeof *r);
    rig_init(r);
    r->m.w.cfg.n_ctx_max = 16384;
    opt.cache_dir = dir;
    r->disk = (lg_disk_opt){.dir = dir, .limit_bytes = opt.cache_disk_bytes, .always = true};
    memset(r->disk.model, model, sizeof r->disk.model);
    if (rig_open(r, &opt, err) == LG_OK) return r;
    rig_fini(r);
    free(r);
    return NULL;
}

static rig *open_rig(lg_options opt) {
    lg_err err = {0};
    rig *r = open_rig_err(opt, 1, &err);
    if (!r) fail_msg("%s", err.msg);
    return r;
}

/* With the least memory that is enough, to 16 KiB. */
static rig *open_least(lg_options opt) {
    lg_err err = {0};
    rig *r = NULL;
    for (opt.memory_bytes = 16384; !r; opt.memory_bytes += 16384) {
        assert_true(opt.memory_bytes < UINT64_C(16) << 20);
        r = open_rig_err(opt, 1, &err);
    }
    return r;
}

static void close_rig(rig *r) {
    rig_fini(r);
    free(r);
}

/* Ids reused for a prompt, and in *out (may be NULL) what was answered. */
static uint32_t ask(rig *r, const uint32_t *ids, uint32_t n_id, uint64_t salt, uint32_t *out) {
    static answer a;
    lg_err err = {0};
    uint64_t id;
    lg_request req = rig_request(r, ids, n_id, 4, &a);
    req.cache_salt = salt;
    if (lg_submit(r->eng, &req, &id, &err)) fail_msg("%s", err.msg);
    a.id = id;
    rig_run(r->eng);
    assert_int_equal(a.end.finish, LG_FINISH_LENGTH);
    if (out) memcpy(out, a.token, 4 * sizeof *out);
    lg_disk_flush(r->eng->home->disk);
    return a.end.n_cached;
}

static void fill(uint32_t *ids, uint32_t n, uint64_t seed) {
    for (uint32_t i = 0; i < n; i++) ids[i] = (uint32_t)(lg_num_rng(seed, 0, i, 0) % 3000);
}

static lg_stats stats_of(const rig *r) {
    lg_stats st = {0};
    lg_get_stats(r->eng, &st);
    return st;
}

static void test_a_restart_forgets_nothing(void **state) {
    (void)state;
    static uint32_t ids[12000];
    static const uint32_t len[] = {1, 20, 64, 65, 100, 500, 2000, 12000};
    lg_options opt = {.n_ctx = 16384, .n_seq = 4};
    rig *r = open_rig(opt);
    for (uint32_t k = 0; k < LG_COUNT(len); k++) {
        fill(ids, len[k], k);
        assert_true(ask(r, ids, len[k], 9, NULL) == 0);
    }
    close_rig(r);
    r = open_rig(opt);
    for (uint32_t k = 0; k < LG_COUNT(len); k++) {
        fill(ids, len[k], k);
        assert_int_equal(ask(r, ids, len[k], 8, NULL), 0); /* somebody else's */
        assert_int_equal(ask(r, ids, len[k], 9, NULL), len[k] > 16 ? len[k] - 1 : 0);
    }
    lg_stats st = stats_of(r);
    assert_true(st.n_file_tok > 14000);
    assert_int_equal(st.n_file_refused, 0);
    assert_int_equal(st.n_page_free, r->eng->info.n_page);
    close_rig(r);
    /* In another process's place, a third life with pages for one context only. */
    opt.memory_bytes = UINT64_C(24) << 20;
    opt.cache_disk_bytes = UINT64_C(4) << 20;
    opt.n_seq = 1;
    r = open_rig(opt);
    fill(ids, 12000, 7);
    assert_int_equal(ask(r, ids, 12000, 9, NULL), 11999);
    close_rig(r);
}

/* Memory has the beginning, files have more. */
static void test_files_continue_what_memory_has(void **state) {
    (void)state;
    static uint32_t ids[1000];
    lg_options opt = {.n_ctx = 2048, .n_seq = 2};
    rig *r = open_rig(opt);
    for (uint32_t n = 100; n <= 1000; n += 100) {
        fill(ids, 1000, 3);
        ask(r, ids, n, 0, NULL);
    }
    close_rig(r);
    r = open_rig(opt);
    for (uint32_t n = 150; n <= 1000; n += 170) {
        uint64_t before = stats_of(r).n_file_tok;
        uint32_t known = ask(r, ids, n, 0, NULL);
        assert_true(known >= n / 100 * 100 - 1 && known < n);
        assert_true(stats_of(r).n_file_tok > before);
    }
    close_rig(r);
}

static void test_folders_that_are_not_ours(void **state) {
    (void)state;
    lg_err err = {0};
    lg_options opt = {.n_ctx = 1024, .n_seq = 1};
    char link[80], keep[64];
    assert_int_equal(chmod(dir, 0755), 0);
    assert_null(open_rig_err(opt, 1, &err));
    assert_int_equal(err.code, LG_E_IO);
    assert_non_null(strstr(err.msg, "mode 755, expected 700"));
    assert_int_equal(chmod(dir, 0700), 0);
    rig *r = open_rig(opt);
    rig *second = open_rig_err(opt, 1, &err); /* waits two seconds */
    assert_null(second);
    assert_non_null(strstr(err.msg, "another process uses it"));
    close_rig(r);
    snprintf(link, sizeof link, "%s-link", dir);
    assert_int_equal(symlink(dir, link), 0);
    memcpy(keep, dir, sizeof dir);
    snprintf(dir, sizeof dir, "%.63s", link);
    assert_null(open_rig_err(opt, 1, &err));
    assert_non_null(strstr(err.msg, "not a link"));
    unlink(link);
    snprintf(dir, sizeof dir, "/nowhere/at/all");
    assert_null(open_rig_err(opt, 1, &err));
    assert_non_null(strstr(err.msg, "/nowhere/at/all: No such file"));
    memcpy(dir, keep, sizeof dir);
    /* A missing one is made, for us alone. */
    assert_int_equal(rmdir(path_of("none")), -1);
    snprintf(dir, sizeof dir, "%.50s/none", keep);
    struct stat st;
    close_rig(open_rig(opt));
    assert_int_equal(stat(dir, &st), 0);
    assert_int_equal(st.st_mode, S_IFDIR | 0700);
    memcpy(dir, keep, sizeof dir);
}

static void test_what_else_lies_in_the_folder(void **state) {
    (void)state;
    static uint32_t ids[300];
    static char name[64][LG_DISK_NAME_BYTES];
    lg_options opt = {.n_ctx = 1024, .n_seq = 1};
    const char *link = "00000000000000aa-00000010.kept",
               *part = "00000000000000aa-00000010.kept.part";
    rig *r = open_rig(opt);
    fill(ids, 300, 1);
    ask(r, ids, 300, 0, NULL);
    close_rig(r);
    uint32_t n = list(name, 64, NULL);
    assert_true(n > 0);
    FILE *f = fopen(path_of("mine.txt"), "w");
    fputs("keep me", f);
    fclose(f);
    f = fopen(path_of(part), "w");
    fclose(f);
    assert_int_equal(symlink(path_of("mine.txt"), path_of(link)), 0);
    assert_int_equal(rename(path_of(name[0]), path_of("0000000000000001-00000010.kept")), 0);
    r = open_rig(opt);
    assert_true(stats_of(r).n_file_refused >= 2);
    assert_false(is_there(link));
    assert_false(is_there(part));
    assert_false(is_there("0000000000000001-00000010.kept"));
    assert_true(is_there("mine.txt"));
    ask(r, ids, 300, 0, NULL); /* writes again what was lost */
    close_rig(r);
    /* Another model's files are of no use to this one. */
    lg_err err = {0};
    n = list(name, 64, NULL);
    r = open_rig_err(opt, 2, &err);
    assert_int_equal(stats_of(r).n_file_refused, n);
    assert_int_equal(ask(r, ids, 300, 0, NULL), 0);
    close_rig(r);
}

/* One byte of a file is wrong: the answer is the same, the file is gone and nothing of it was used. */
static void test_damage_is_seen_and_removed(void **state) {
    (void)state;
    static uint32_t ids[700];
    static char name[64][LG_DISK_NAME_BYTES], left[64][LG_DISK_NAME_BYTES];
    lg_options opt = {.n_ctx = 1024, .n_seq = 1};
    uint32_t want[4], got[4];
    fill(ids, 700, 1);
    for (uint32_t k = 0; k < 60; k++) {
        rig *r = open_rig(opt);
        for (uint32_t i = 150; i < 700; i += 150)
            ids[i] = lg_tokenizer_added(r->tok, "<|im_start|>");
        ask(r, ids, 700, 0, want);
        close_rig(r);
        uint32_t n = list(name, 64, NULL);
        assert_true(n >= 3);
        const char *victim = name[k % n];
        struct stat st;
        assert_int_equal(stat(path_of(victim), &st), 0);
        if (k % 4 == 3) {
            assert_int_equal(truncate(path_of(victim), st.st_size * (k % 7) / 7), 0);
        } else {
            flip(victim, (off_t)(lg_num_rng(3, 0, k, 0) % (uint64_t)st.st_size),
                 (uint8_t)(1u << k % 8));
        }
        r = open_rig(opt);
        uint32_t known = ask(r, ids, 700, 0, got);
        assert_memory_equal(got, want, sizeof want);
        lg_stats now = stats_of(r);
        uint32_t n_left = list(left, 64, NULL);
        assert_true(n_left > 0);
        /* The state of a file that others continue is not read: then all of the text came back. */
        if (known < 699) assert_true(now.n_file_refused >= 1);
        close_rig(r);
        assert_int_equal(clean(NULL), 0);
        assert_int_equal(mkdir(dir, 0700), 0);
    }
}

/* As above for each byte of the head of the one file that there is. */
static void test_a_head_that_lies_in_a_folder(void **state) {
    (void)state;
    static uint32_t ids[60];
    static char name[64][LG_DISK_NAME_BYTES];
    lg_options opt = {.n_ctx = 256, .n_seq = 1};
    fill(ids, 60, 1);
    for (off_t at = 0; at < LG_DISK_HEAD_BYTES; at += 5) {
        rig *r = open_rig(opt);
        ask(r, ids, 40, 0, NULL);
        close_rig(r);
        assert_int_equal(list(name, 64, NULL), 1);
        flip(name[0], at, 0x10);
        r = open_rig(opt);
        assert_int_equal(stats_of(r).n_file_refused, 1);
        assert_int_equal(stats_of(r).n_file, 0);
        assert_false(is_there(name[0]));
        assert_int_equal(ask(r, ids, 40, 0, NULL), 0);
        close_rig(r);
    }
}

/* Files vanish while the engine runs: it says so and computes. */
static void test_files_that_somebody_deletes(void **state) {
    (void)state;
    static uint32_t ids[500];
    static char name[64][LG_DISK_NAME_BYTES];
    lg_options opt = {.n_ctx = 1024, .n_seq = 1};
    rig *r = open_rig(opt);
    fill(ids, 500, 1);
    ask(r, ids, 500, 0, NULL);
    close_rig(r);
    r = open_rig(opt);
    for (uint32_t n = list(name, 64, NULL); n-- > 0;) unlink(path_of(name[n]));
    assert_int_equal(ask(r, ids, 500, 0, NULL), 0);
    assert_true(stats_of(r).n_file_refused > 0);
    assert_int_equal(ask(r, ids, 500, 0, NULL), 499);
    assert_true(list(name, 64, NULL) > 0); /* and were written again */
    close_rig(r);
}

static void test_the_limit_holds(void **state) {
    (void)state;
    static uint32_t ids[400];
    static char name[4096][LG_DISK_NAME_BYTES];
    lg_options opt = {.n_ctx = 1024, .n_seq = 2, .cache_disk_bytes = 60000};
    rig *r = open_rig(opt);
    uint64_t bytes;
    for (uint32_t k = 0; k < 100; k++) {
        fill(ids, 400, k % 20);
        ask(r, ids, 50 + k % 350, 0, NULL);
        list(name, 4096, &bytes);
        assert_true(bytes <= 60000);
        assert_int_equal(bytes, stats_of(r).file_bytes);
    }
    assert_true(bytes > 30000);
    close_rig(r);
    opt.cache_disk_bytes = 20000; /* less than there is */
    r = open_rig(opt);
    list(name, 4096, &bytes);
    assert_true(bytes <= 20000 && bytes > 0);
    close_rig(r);
    opt.cache_disk_bytes = 100; /* nothing fits */
    r = open_rig(opt);
    ask(r, ids, 400, 0, NULL);
    assert_int_equal(list(name, 4096, &bytes), 0);
    close_rig(r);
}

/* The file system takes no more (here: no longer files): said once, the limit is lowered, answers go on. */
static void test_a_full_disk(void **state) {
    (void)state;
    static uint32_t ids[900];
    static char name[64][LG_DISK_NAME_BYTES];
    struct rlimit was, now;
    lg_options opt = {.n_ctx = 1024, .n_seq = 1};
    rig *r = open_rig(opt);
    fill(ids, 900, 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    now = was;
    now.rlim_cur = 5000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &now), 0);
    assert_int_equal(ask(r, ids, 900, 0, NULL), 0);
    assert_int_equal(ask(r, ids, 900, 0, NULL), 899);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(list(name, 64, NULL), stats_of(r).n_file);
    assert_true(r->eng->home->disk->told_full);
    for (uint32_t i = 0; i < LG_COUNT(name); i++) assert_false(strstr(name[i], ".part"));
    close_rig(r);
}

/* ---- together ---- */

/* Slots, pages and snapshots are all back when nothing is kept any more. */
static void assert_ledger(rig *r) {
    lg_home *h = r->eng->home;
    assert_int_equal(h->state.n_slot_free, r->eng->info.n_seq);
    lg_prefix_clear(&h->prefix);
    assert_int_equal(h->state.pages.n_free, r->eng->info.n_page);
    assert_int_equal(h->prefix.n_snap_free, r->eng->info.n_snapshot);
    assert_int_equal(h->prefix.n_node_free, h->prefix.n_node);
}

static void one_life(uint32_t life, lg_stats *sum) {
    static uint32_t ids[40][600];
    static answer a[40];
    lg_options opt = {.n_ctx = 700, .n_seq = 5, .n_batch_tok = 64, .cache_bytes = 40000};
    opt.memory_bytes = UINT64_C(5) << 20;
    opt.cache_disk_bytes = 300000;
    lg_err err = {0};
    rig *r = life % 2 ? open_least(opt) : open_rig(opt);
    r->m.get_page_us =
        life % 2 ? 1000 : 0; /* a slow disk: its pages are needed before it is done */
    uint32_t mark = lg_tokenizer_added(r->tok, "<|im_start|>");
    for (uint32_t round = 0; round < 12; round++) {
        for (uint32_t i = 0; i < 40; i++) {
            uint64_t x = lg_num_rng(life * 100 + round, 0, i, 7), id;
            uint32_t n = 1 + (uint32_t)(x >> 8) % 600;
            fill(ids[i], 600, x % 5);
            for (uint32_t k = 60; k < 600; k += 100) ids[i][k] = mark;
            fill(ids[i] + n / 2, n - n / 2, x % 9);
            lg_request req = rig_request(r, ids[i], n, 1 + (uint32_t)(x >> 40) % 50, &a[i]);
            req.cache_salt = x % 2;
            if (lg_submit(r->eng, &req, &id, &err)) fail_msg("%s", err.msg);
            a[i].id = id;
        }
        uint64_t before = lg_mem_count();
        r->m.nan_after = round % 4 == 3 ? 150 : 0;
        for (uint32_t step = 0; lg_step(r->eng) == LG_OK; step++) {
            rig_fetch(r->eng);
            if (step % 7 == 3) lg_cancel(r->eng, a[step % 40].id);
        }
        assert_int_equal(lg_mem_count(),
                         before); /* steps allocate nothing, nor do the threads */
        rig_fetch(r->eng);
        for (uint32_t i = 0; i < 40; i++) assert_true(a[i].done);
    }
    lg_disk_flush(r->eng->home->disk);
    lg_stats st = stats_of(r);
    assert_int_equal(st.n_file_refused, 0);
    sum->n_file_written += st.n_file_written;
    sum->n_file_tok += st.n_file_tok;
    sum->n_file_skipped += st.n_file_skipped;
    assert_ledger(r);
    close_rig(r);
}

static void test_random_lives(void **state) {
    (void)state;
    lg_stats sum = {0};
    for (uint32_t life = 0; life < 8; life++) one_life(life, &sum);
    print_message("  %llu files written, %llu tokens read, %llu times no room to write\n",
                  (unsigned long long)sum.n_file_written, (unsigned long long)sum.n_file_tok,
                  (unsigned long long)sum.n_file_skipped);
    assert_true(sum.n_file_written > 100 && sum.n_file_tok > 1000 && sum.n_file_skipped > 0);
    assert_int_equal(lg_mem_alive(), 0);
}

/* Closing with a full queue: what is there afterwards is whole. */
static void test_closing_in_the_middle(void **state) {
    (void)state;
    static uint32_t ids[4000];
    static char name[256][LG_DISK_NAME_BYTES];
    lg_options opt = {.n_ctx = 4096, .n_seq = 2};
    for (uint32_t k = 0; k < 20; k++) {
        rig *r = open_rig(opt);
        lg_request req;
        static answer a;
        uint64_t id;
        lg_err err = {0};
        fill(ids, 4000, k);
        req = rig_request(r, ids, 4000, 4, &a);
        if (lg_submit(r->eng, &req, &id, &err)) fail_msg("%s", err.msg);
        for (uint32_t i = 0; i < k; i++) lg_step(r->eng);
        close_rig(r);
    }
    rig *r = open_rig(opt);
    assert_int_equal(stats_of(r).n_file_refused, 0);
    assert_int_equal(list(name, 256, NULL), stats_of(r).n_file);
    close_rig(r);
}

/* ---- which model ---- */

static void write_file(const char *name, size_t n, char c) {
    FILE *f = fopen(path_of(name), "w");
    assert_non_null(f);
    for (size_t i = 0; i < n; i++) fputc(c, f);
    fclose(f);
}

static void test_identity(void **state) {
    (void)state;
    uint8_t id[32], again[32];
    lg_err err = {0};
    write_file("config.json", 10, 'a');
    write_file("a.safetensors", 3000000, 'b');
    write_file("b.safetensors", 100, 'c');
    assert_int_equal(lg_identity_of(dir, id, &err), LG_OK);
    write_file("notes.txt", 10, 'd');
    assert_int_equal(lg_identity_of(dir, again, &err), LG_OK);
    assert_memory_equal(id, again, 32);
    struct stat st;
    assert_int_equal(stat(path_of("b.safetensors"), &st), 0);
    flip("b.safetensors", 50, 1);
    const struct timespec same[2] = {st.st_atim, st.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, path_of("b.safetensors"), same, 0), 0);
    assert_int_equal(lg_identity_of(dir, again, &err), LG_OK);
    assert_memory_not_equal(id, again, 32);
    assert_int_equal(rename(path_of("b.safetensors"), path_of("c.safetensors")), 0);
    assert_int_equal(lg_identity_of(dir, id, &err), LG_OK);
    assert_memory_not_equal(id, again, 32);
    assert_int_equal(lg_identity_of("/nowhere", id, &err), LG_E_IO);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, fresh, clean)

int main(void) {
    lg_diag_set_level(LG_LOG_ERROR); /* hundreds of files are damaged here */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_byte_of_a_head_counts),
        cmocka_unit_test(test_sealed_heads_are_checked),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_index_keeps_trees),
        TEST(test_a_restart_forgets_nothing),
        TEST(test_files_continue_what_memory_has),
        TEST(test_folders_that_are_not_ours),
        TEST(test_what_else_lies_in_the_folder),
        TEST(test_damage_is_seen_and_removed),
        TEST(test_a_head_that_lies_in_a_folder),
        TEST(test_files_that_somebody_deletes),
        TEST(test_the_limit_holds),
        TEST(test_a_full_disk),
        TEST(test_random_lives),
        TEST(test_closing_in_the_middle),
        TEST(test_identity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
