/* fuzz_safetensors.c - any bytes as a safetensors file, and again with a header length that fits.
 *
 * What is refused must say so with a message that starts with the file's name.  Seeds: fuzz/corpus/safetensors */
#include "base/mem.h"
#include "model/file/safetensors.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const uint8_t *data, size_t size) {
    lg_err err = {0};
    int64_t alive = lg_mem_alive();
    lg_status st = lg_st_check(data, size, "fuzz", &err);
    LG_ASSERT(st == LG_OK || st == LG_E_FORMAT || st == LG_E_UNSUPPORTED);
    LG_ASSERT(st == LG_OK || (err.code == st && strncmp(err.msg, "fuzz: ", 6) == 0));
    LG_ASSERT(lg_mem_alive() == alive);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check(data, size);
    if (size < 8) return 0;
    /* The same bytes with the largest header that ends in a brace. */
    uint64_t n = size - 8;
    while (n > 0 && data[8 + n - 1] != '}') n--;
    uint8_t *copy = lg_mem_alloc(size);
    if (!copy) return 0;
    memcpy(copy, data, size);
    memcpy(copy, &n, sizeof n);
    check(copy, size);
    lg_mem_free(copy);
    return 0;
}
