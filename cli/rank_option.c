/* rank_option.c - options that only ranks have: see rank_option.h.
 *
 * Used by: serve.c, worker.c.  Test: tests/e2e/test_ranks.py, tests/py/cli.py */
#include "rank_option.h"
#include "engine/ranks.h"

#include <stdio.h>
#include <string.h>

static bool is_wrong(const char *argv0, const char *name, const char *text,
                     const char *expected) {
    fprintf(stderr, "%s: --%s: found \"%s\", expected %s\n", argv0, name, text, expected);
    return false;
}

static bool take_number(const char *argv0, const char *name, const char *text, uint64_t min,
                        uint64_t max, uint32_t *out) {
    char option[64];
    uint64_t v = 0;
    snprintf(option, sizeof option, "--%s", name);
    if (!lg_option_u64(argv0, option, text, min, max, &v)) return false;
    *out = (uint32_t)v;
    return true;
}

static bool take_wire(const char *text, lg_wire *out) {
    for (int i = 0; i < LG_N_WIRE; i++)
        if (strcmp(text, lg_wire_name((lg_wire)i)) == 0) {
            *out = (lg_wire)i;
            return true;
        }
    return false;
}

bool lg_rank_option(const char *argv0, const char *name, const char *text, lg_ranks_opt *r) {
    uint32_t v = 0;
    if (strcmp(name, "rank-timeout") == 0) {
        if (!take_number(argv0, name, text, 1, 86400, &v)) return false;
        r->timeout_us = (uint64_t)v * 1000000;
    } else if (strcmp(name, "exchange") == 0) {
        return lg_exchange_named(text, &r->how.kind) ||
               is_wrong(argv0, name, text, "strict, reduce, alltoall or auto");
    } else if (strcmp(name, "wire") == 0) {
        return take_wire(text, &r->how.wire) || is_wrong(argv0, name, text, "f32, bf16 or q8");
    } else if (strcmp(name, "overlap") == 0) {
        r->how.no_overlap = strcmp(text, "off") == 0;
        return r->how.no_overlap || strcmp(text, "on") == 0 ||
               is_wrong(argv0, name, text, "on or off");
    } else if (strcmp(name, "hold-prompts") == 0) {
        return take_number(argv0, name, text, 0, 4096, &r->hold_steps);
    } else if (strcmp(name, "divide-prompts") == 0) {
        return lg_divide_named(text, &r->how.divide) ||
               is_wrong(argv0, name, text, "auto, on or off");
    } else if (strcmp(name, "divide-answers") == 0) {
        return lg_divide_named(text, &r->how.answers) ||
               is_wrong(argv0, name, text, "auto, on or off");
    } else if (strcmp(name, "divide-ctx") == 0) {
        return take_number(argv0, name, text, 1, UINT32_MAX, &r->how.divide_ctx);
    } else if (strcmp(name, "spare-experts") == 0) {
        return take_number(argv0, name, text, 0, 4096, &r->n_extra);
    } else if (strcmp(name, "trace") == 0) {
        r->trace_path = text;
    } else if (strcmp(name, "expert-load") == 0) {
        r->load_path = text;
    } else if (strcmp(name, "expert-load-out") == 0) {
        r->load_out_path = text;
    } else {
        return false;
    }
    return true;
}

bool lg_rank_option_check(const char *argv0, const char *name, const char *text, bool *strict) {
    lg_ranks_opt r = {0};
    if (!lg_rank_option(argv0, name, text, &r)) return false;
    *strict = r.how.kind == LG_EXCHANGE_STRICT && r.how.wire == LG_WIRE_F32;
    return true;
}
