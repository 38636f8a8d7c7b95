/* packed.h - packed weights in a file, so that later starts and other processes take what the first one has made.
 *
 *     page 0       header: magic, versions, identity, sizes, hash of header and table
 *     at 2 MiB     the block of lg_weights: vectors and panels, as they lie in memory
 *     after it     one hash for every 4 MiB of the block
 *
 * A file belongs to one source path (its name holds a hash of it) and one state of the source (identity).  A start checks
 * header, table and size, not the block's bytes; lg_packed_verify does.  What does not fit is never used.
 * Files appear by renaming, whole and synced, so starts may race; a file that somebody cuts short while it is mapped ends
 * the process, as with model files (tensors.h).
 * Test: tests/unit/test_packed.c */
#ifndef LG_MODEL_WEIGHTS_PACKED_H
#define LG_MODEL_WEIGHTS_PACKED_H

#include "base/pool.h"

#include <stdint.h>

/* A mapped file; closed and zero are the same. */
typedef struct lg_packed {
    char *path;
    const uint8_t *block; /* [block_bytes], aligned to 2 MiB in the file, to a page in memory */
    uint64_t block_bytes;
    const uint64_t *hash; /* of the block's pieces */
    void *map;
    size_t map_bytes;
    int fd; /* of the map, when there is one */
} lg_packed;

/* Name of the file of model `source` in folder `dir`, for a part of it a number of its own (0: everything); the caller frees it
 * with lg_mem_free.  NULL: no memory. */
char *lg_packed_path(const char *dir, const char *source, uint64_t part);

/* Map `path` if it is whole and has this identity and size.  LG_OK; LG_AGAIN when there is no file; LG_E_FORMAT (foreign, cut,
 * damaged, of another version or another state of the model), LG_E_IO, LG_E_NOMEM with *err. */
lg_status lg_packed_open(const char *path, uint64_t identity, uint64_t block_bytes,
                         lg_packed *p, lg_err *err);
void lg_packed_close(lg_packed *p);

/* Have all pages of the block in memory, with the pool's threads. */
void lg_packed_touch(const lg_packed *p, lg_pool *pool);

/* Read the block into `to` [block_bytes], with the pool's threads.  LG_E_IO. */
lg_status lg_packed_read(const lg_packed *p, uint8_t *to, lg_pool *pool, lg_err *err);

/* Compare every byte of the block with its hashes.  LG_OK; LG_E_FORMAT naming the first piece that differs; LG_E_NOMEM. */
lg_status lg_packed_verify(const lg_packed *p, lg_pool *pool, lg_err *err);

/* Write a block to `path`, whose folder is made if its parent exists.  Leaves an eighth of the disk, at most 4 GiB, free.
 * LG_OK; LG_E_IO (with what is missing), LG_E_NOMEM; nothing is left behind then. */
lg_status lg_packed_write(const char *path, uint64_t identity, const uint8_t *block,
                          uint64_t block_bytes, lg_pool *pool, lg_err *err);

#endif
