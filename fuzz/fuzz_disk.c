/* fuzz_disk.c - any bytes as the head of a file of kept text: what is accepted describes a file of exactly that size.
 *
 * The first byte says whether the checksum is made right first, so that the fields behind it are reached.  Seeds: fuzz/corpus/disk */
#include "engine/cache/disk.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t bytes[512];
    lg_disk_head h;
    char why[96] = "", name[LG_DISK_NAME_BYTES];
    uint64_t hash, file_bytes;
    uint32_t to;
    if (size < 9 || size > sizeof bytes) return 0;
    bool seal = data[0] & 1, fit = data[0] & 2;
    memcpy(&file_bytes, data + 1, sizeof file_bytes);
    data += 9;
    size -= 9;
    memcpy(bytes, data, size);
    lg_disk_shape shape = {
        .page_bytes = 1000, .snap_bytes = 2000, .n_part = 2, .max_tok = 4096};
    memset(shape.model, 7, sizeof shape.model);
    if (seal && size >= sizeof h) {
        memcpy(&h, bytes, sizeof h);
        memcpy(h.model, shape.model, sizeof h.model);
        lg_disk_head_seal(&h);
        memcpy(bytes, &h, sizeof h);
        if (fit) file_bytes = 256 + 4 * ((uint64_t)h.to - h.from) + h.n_page * 1000 + 2000;
    }
    if (!lg_disk_head_check(bytes, size, file_bytes, &shape, &h, why)) {
        LG_ASSERT(why[0]);
        return 0;
    }
    LG_ASSERT(h.from < h.to && h.to <= 4096 && h.n_page <= 65);
    LG_ASSERT(lg_disk_file_bytes(&h) == file_bytes && file_bytes < 100000);
    lg_disk_name(name, h.hash, h.to);
    LG_ASSERT(lg_disk_parse_name(name, &hash, &to) && hash == h.hash && to == h.to);
    return 0;
}
