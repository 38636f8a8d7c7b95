/* fuzz_http.c - any bytes as HTTP requests, in two different cuts.
 *
 * Both cuts must give the same requests or the same refusal.  Seeds: fuzz/corpus/http */
#include "gateway/net/http.h"

#include "base/diag.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t hash(uint64_t h, const char *s, size_t len) {
    for (size_t i = 0; i < len; i++) h = h * 31 + (uint8_t)s[i];
    return h;
}

static uint64_t run(const char *data, size_t size, size_t step) {
    lg_http h = {0};
    uint64_t sum = 0;
    for (size_t at = 0; at < size;) {
        size_t used, n = size - at < step ? size - at : step;
        lg_status st = lg_http_feed(&h, data + at, n, &used);
        LG_ASSERT(used <= n && (st != LG_AGAIN || used == n));
        LG_ASSERT(h.body.len_bytes <= LG_HTTP_MAX_BODY);
        at += used;
        if (st == LG_E_FORMAT) {
            LG_ASSERT(h.status >= 400 && h.reason);
            sum = hash(sum * 31 + (uint64_t)h.status, h.reason, strlen(h.reason));
            break;
        }
        if (st != LG_OK) continue;
        sum = hash(sum, lg_http_method(&h), strlen(lg_http_method(&h)));
        sum = hash(sum, lg_http_path(&h), strlen(lg_http_path(&h)));
        sum = hash(sum, lg_buf_str(&h.body), h.body.len_bytes) + h.keep_alive;
        lg_http_reset(&h);
    }
    lg_http_fini(&h);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size)
        LG_ASSERT(run((const char *)data, size, size) == run((const char *)data, size, 3));
    return 0;
}
