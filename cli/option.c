/* option.c - values of command line options: see cli.h.  Test: tests/unit/test_option.c */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int lg_option_usage(const char *argv0) {
    fprintf(stderr, "%s: try '%s --help'\n", argv0, argv0);
    return 2;
}

bool lg_option_u64(const char *argv0, const char *option, const char *text, uint64_t min,
                   uint64_t max, uint64_t *out) {
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || v < min || v > max) {
        fprintf(stderr, "%s: %s: expected a whole number from %llu to %llu, found '%s'\n",
                argv0, option, (unsigned long long)min, (unsigned long long)max, text);
        return false;
    }
    *out = v;
    return true;
}

bool lg_option_int(const char *argv0, const char *option, const char *text, int min, int max,
                   int *out) {
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    bool digit = text[0] >= '0' && text[0] <= '9';
    if (!(digit || text[0] == '-') || end == text || *end || errno || v < min || v > max) {
        fprintf(stderr, "%s: %s: expected a whole number from %d to %d, found '%s'\n", argv0,
                option, min, max, text);
        return false;
    }
    *out = (int)v;
    return true;
}

bool lg_option_float(const char *argv0, const char *option, const char *text, float min,
                     float max, float *out) {
    char *end;
    float v = strtof(text, &end);
    if (end == text || *end || !(v >= min && v <= max)) {
        fprintf(stderr, "%s: %s: expected a number from %g to %g, found '%s'\n", argv0, option,
                (double)min, (double)max, text);
        return false;
    }
    *out = v;
    return true;
}

static const char *const kv_name[] = {
    [LG_KV_F32] = "f32", [LG_KV_BF16] = "bf16", [LG_KV_F16] = "f16", [LG_KV_Q8_0] = "q8_0"};

bool lg_option_kv(const char *argv0, const char *text, lg_kv_type *out) {
    for (int i = LG_KV_F32; i <= LG_KV_Q8_0; i++) {
        if (strcmp(text, kv_name[i]) != 0) continue;
        *out = (lg_kv_type)i;
        return true;
    }
    fprintf(stderr, "%s: --kv: expected f32, bf16, f16 or q8_0, found '%s'\n", argv0, text);
    return false;
}

const char *lg_option_kv_name(lg_kv_type kv) {
    return kv_name[kv == LG_KV_DEFAULT ? LG_KV_F16 : kv];
}

bool lg_option_size(const char *argv0, const char *option, const char *text, uint64_t *out) {
    static const char unit[] = "KMGT";
    char *end;
    double v = strtod(text, &end);
    bool ok = end != text && text[0] >= '0' && text[0] <= '9';
    const char *at = *end ? strchr(unit, *end >= 'a' ? *end - 'a' + 'A' : *end) : NULL;
    if (at) {
        v = ldexp(v, 10 * (int)(at - unit + 1));
        end++;
        if (*end == 'i') end++;
    }
    if (*end == 'B' && end > text) end++;
    if (!ok || *end || !(v >= 1 && v < 0x1p63)) {
        fprintf(stderr, "%s: %s: expected a size such as 512M or 8G, found '%s'\n", argv0,
                option, text);
        return false;
    }
    *out = (uint64_t)v;
    return true;
}
