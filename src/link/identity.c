/* identity.c - cheap fingerprints of a model folder or GGUF file, to notice that two processes look at different files.
 *
 * FNV-1a over config.json (or the tokenizer's part of the metadata) and the names, sizes, modification times and inodes of the
 * weight files: nothing big is read,
 * nothing is proven (full hashes belong to `verify`).  Thread: any.  Test: tests/unit/test_link.c */
#include "link/link.h"

#include "model/file/gguf.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* FNV-1a, 64 bit (Fowler, Noll, Vo). */
static uint64_t fnv(uint64_t h, const void *data, size_t len_bytes) {
    const uint8_t *p = data;
    for (size_t i = 0; i < len_bytes; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

static const uint64_t FNV_START = 0xcbf29ce484222325u;

static lg_status hash_file(const char *dir, const char *name, uint64_t *hash, lg_err *err) {
    char path[4096], block[16384];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof path)
        return LG_FAIL(err, LG_E_IO, "%s: path too long", dir);
    FILE *f = fopen(path, "rb");
    if (!f) return LG_FAIL(err, LG_E_IO, "%s: %s", path, strerror(errno));
    uint64_t h = *hash;
    size_t got;
    while ((got = fread(block, 1, sizeof block, f)) > 0) h = fnv(h, block, got);
    bool bad = ferror(f) != 0;
    fclose(f);
    if (bad) return LG_FAIL(err, LG_E_IO, "%s: read error", path);
    *hash = h;
    return LG_OK;
}

/* A file by what the file system says of it. */
static uint64_t hash_stat(const char *name, const struct stat *st) {
    const int64_t v[] = {(int64_t)st->st_size, (int64_t)st->st_mtim.tv_sec,
                         (int64_t)st->st_mtim.tv_nsec, (int64_t)st->st_ino};
    return fnv(fnv(FNV_START, name, strlen(name)), v, sizeof v);
}

/* What ids depend on. */
static lg_status hash_gguf_tokenizer(const char *path, uint64_t *hash, lg_err *err) {
    static const char *const keys[] = {"tokenizer.ggml.pre", "tokenizer.ggml.tokens",
                                       "tokenizer.ggml.token_type", "tokenizer.ggml.merges"};
    lg_gguf *g = NULL;
    LG_TRY(lg_gguf_open(path, &g, err));
    for (size_t i = 0; i < LG_COUNT(keys); i++) {
        const lg_gguf_value *v = lg_gguf_find(g, keys[i]);
        *hash = fnv(*hash, keys[i], strlen(keys[i]));
        if (v) *hash = fnv(*hash, v->data, v->len_bytes);
    }
    lg_gguf_close(&g);
    return LG_OK;
}

/* All parts. */
static lg_status hash_gguf_files(const char *path, uint64_t *hash, lg_err *err) {
    lg_gguf *g = NULL;
    LG_TRY(lg_gguf_open(path, &g, err));
    lg_status st = LG_OK;
    for (size_t i = 0; i < lg_gguf_n_part(g) && st == LG_OK; i++) {
        const char *part = lg_gguf_part(g, i), *slash = strrchr(part, '/');
        struct stat info;
        if (stat(part, &info) != 0) {
            st = LG_FAIL(err, LG_E_IO, "%s: %s", part, strerror(errno));
        } else {
            uint64_t one = hash_stat(slash ? slash + 1 : part, &info);
            *hash = fnv(*hash, &one, sizeof one);
        }
    }
    lg_gguf_close(&g);
    return st;
}

lg_status lg_link_tokenizer_hash(const char *model_path, uint64_t *hash, lg_err *err) {
    *hash = FNV_START;
    if (lg_gguf_is(model_path)) return hash_gguf_tokenizer(model_path, hash, err);
    return hash_file(model_path, "tokenizer.json", hash, err);
}

lg_status lg_link_weights_hash(const char *model_path, uint64_t *hash, lg_err *err) {
    *hash = FNV_START;
    if (lg_gguf_is(model_path)) return hash_gguf_files(model_path, hash, err);
    LG_TRY(hash_file(model_path, "config.json", hash, err));
    DIR *d = opendir(model_path);
    if (!d) return LG_FAIL(err, LG_E_IO, "%s: %s", model_path, strerror(errno));
    /* The folder's order is not fixed: hash each file alone and add. */
    uint64_t sum = 0;
    const struct dirent *e;
    while ((e = readdir(d))) {
        size_t len = strlen(e->d_name);
        struct stat st;
        if (len < 12 || strcmp(e->d_name + len - 12, ".safetensors") != 0) continue;
        if (fstatat(dirfd(d), e->d_name, &st, 0) != 0) continue;
        sum += hash_stat(e->d_name, &st);
    }
    closedir(d);
    *hash = fnv(*hash, &sum, sizeof sum);
    return LG_OK;
}
