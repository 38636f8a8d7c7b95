/* identity.c - a fingerprint of a model's files: see identity.h.  Thread: any.  Memory: none.  Test: tests/unit/test_disk.c */
#include "model/identity.h"

#include "model/file/gguf.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_SAMPLE     256
#define SAMPLE_BYTES 4096

/* Hash one file: name, size, time of change, samples (all of a small one). */
static lg_status hash_file(const char *path, uint8_t out[LG_IDENTITY_BYTES], lg_err *err) {
    uint8_t block[SAMPLE_BYTES];
    crypto_generichash_state s;
    struct stat st;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return LG_FAIL(err, LG_E_IO, "%s: %s", path, strerror(errno));
    bool ok = fstat(fd, &st) == 0;
    const int64_t about[] = {ok ? (int64_t)st.st_size : 0, ok ? (int64_t)st.st_mtim.tv_sec : 0,
                             ok ? (int64_t)st.st_mtim.tv_nsec : 0};
    crypto_generichash_init(&s, NULL, 0, LG_IDENTITY_BYTES);
    crypto_generichash_update(&s, (const uint8_t *)name, strlen(name) + 1);
    crypto_generichash_update(&s, (const uint8_t *)about, sizeof about);
    int64_t step = about[0] / N_SAMPLE;
    if (step < SAMPLE_BYTES) step = SAMPLE_BYTES;
    for (int64_t at = 0; ok && at < about[0]; at += step) {
        ssize_t n = pread(fd, block, sizeof block, at);
        ok = n > 0;
        if (ok) crypto_generichash_update(&s, block, (size_t)n);
    }
    close(fd);
    if (!ok) return LG_FAIL(err, LG_E_IO, "%s: read error", path);
    crypto_generichash_final(&s, out, LG_IDENTITY_BYTES);
    return LG_OK;
}

/* Add one file's hash: the order of files does not count. */
static lg_status add_file(const char *path, uint8_t id[LG_IDENTITY_BYTES], lg_err *err) {
    uint8_t one[LG_IDENTITY_BYTES];
    LG_TRY(hash_file(path, one, err));
    sodium_add(id, one, LG_IDENTITY_BYTES);
    return LG_OK;
}

static lg_status add_gguf(const char *path, uint8_t id[LG_IDENTITY_BYTES], lg_err *err) {
    lg_gguf *g = NULL;
    LG_TRY(lg_gguf_open(path, &g, err));
    lg_status st = LG_OK;
    for (size_t i = 0; i < lg_gguf_n_part(g) && st == LG_OK; i++)
        st = add_file(lg_gguf_part(g, i), id, err);
    lg_gguf_close(&g);
    return st;
}

static bool is_weights(const char *name) {
    static const char end[] = ".safetensors";
    size_t len = strlen(name);
    return strcmp(name, "config.json") == 0 ||
           (len >= sizeof end - 1 && strcmp(name + len - (sizeof end - 1), end) == 0);
}

static lg_status add_folder(const char *dir, uint8_t id[LG_IDENTITY_BYTES], lg_err *err) {
    DIR *d = opendir(dir);
    if (!d) return LG_FAIL(err, LG_E_IO, "%s: %s", dir, strerror(errno));
    lg_status st = LG_OK;
    const struct dirent *e;
    while (st == LG_OK && (e = readdir(d))) {
        char path[4096];
        if (!is_weights(e->d_name)) continue;
        int n = snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        st = n > 0 && (size_t)n < sizeof path ? add_file(path, id, err)
                                              : LG_FAIL(err, LG_E_IO, "%s: path too long", dir);
    }
    closedir(d);
    return st;
}

lg_status lg_identity_of(const char *model_path, uint8_t id[LG_IDENTITY_BYTES], lg_err *err) {
    if (sodium_init() < 0) return LG_FAIL(err, LG_E_IO, "the system gives no random numbers");
    memset(id, 0, LG_IDENTITY_BYTES);
    if (lg_gguf_is(model_path)) return add_gguf(model_path, id, err);
    return add_folder(model_path, id, err);
}
