/* fuzz_json.c - any bytes through the reader, the writer and the number conversions.
 *
 * What parses must print, in either style, as text that parses again to the same print.  Seeds: fuzz/corpus/json */
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Print v, parse the print, print again: both prints must be equal. */
static void round_trip(const lg_json *v, lg_json_style style) {
    lg_buf first = {0}, second = {0};
    lg_json_put(&first, v, style);
    lg_json_doc *doc;
    lg_status st =
        lg_json_parse(first.data, first.len_bytes, LG_JSON_MAX_DEPTH, "print", &doc, NULL);
    bool infinite = style == LG_JSON_PYTHON && strstr(first.data, "Infinity");
    if (st == LG_OK) {
        lg_json_put(&second, lg_json_root(doc), style);
        LG_ASSERT(first.len_bytes == second.len_bytes);
        LG_ASSERT(memcmp(first.data, second.data, first.len_bytes) == 0);
    } else {
        LG_ASSERT(infinite);
    }
    lg_json_close(&doc);
    lg_buf_fini(&first);
    lg_buf_fini(&second);
}

/* Integer forms must agree with the double where it is exact. */
static void convert(const lg_json *v) {
    uint64_t u;
    int64_t i;
    double x;
    if (v->kind == LG_JSON_NUMBER) {
        bool has_u = lg_json_u64(v, &u), has_i = lg_json_i64(v, &i), has_x = lg_json_f64(v, &x);
        if (has_u) LG_ASSERT(has_x && (double)u == x);
        if (has_i) LG_ASSERT(has_x && (double)i == x);
        if (has_u && has_i) LG_ASSERT(u == (uint64_t)i);
    }
    for (const lg_json *m = v->child; m; m = m->next) {
        convert(m);
        if (m->key) LG_ASSERT(m->key[m->key_len] == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    lg_json_doc *doc;
    lg_err err;
    lg_status st = lg_json_parse((const char *)data, size, 64, "fuzz", &doc, &err);
    if (st != LG_OK) {
        LG_ASSERT(st == LG_E_FORMAT && !doc && strncmp(err.msg, "fuzz: byte ", 11) == 0);
        return 0;
    }
    round_trip(lg_json_root(doc), LG_JSON_COMPACT);
    round_trip(lg_json_root(doc), LG_JSON_PYTHON);
    convert(lg_json_root(doc));
    lg_json_close(&doc);
    return 0;
}
