/* identity.c - cheap fingerprints of a model folder, to notice that two processes look at different files.
 *
 * FNV-1a over config.json and the names, sizes, modification times and inodes of the weight files: nothing big is read,
 * nothing is proven (full hashes belong to `verify`).  Thread: any.  Test: tests/unit/test_link.c */
#include "link/link.h"

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

lg_status lg_link_tokenizer_hash(const char *model_path, uint64_t *hash, lg_err *err) {
    *hash = FNV_START;
    return hash_file(model_path, "tokenizer.json", hash, err);
}

lg_status lg_link_weights_hash(const char *model_path, uint64_t *hash, lg_err *err) {
    *hash = FNV_START;
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
        const int64_t v[] = {(int64_t)st.st_size, (int64_t)st.st_mtim.tv_sec,
                             (int64_t)st.st_mtim.tv_nsec, (int64_t)st.st_ino};
        sum += fnv(fnv(FNV_START, e->d_name, len), v, sizeof v);
    }
    closedir(d);
    *hash = fnv(*hash, &sum, sizeof sum);
    return LG_OK;
}
