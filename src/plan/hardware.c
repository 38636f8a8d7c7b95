/* hardware.c - chips and nodes: see plan.h.
 *
 * TPU7x: 2,307 TFLOP/s of fp8 a device, half of that in 16 bits, a sixth of that in 32 (six passes); 192 GiB and 7.37 TB/s a
 * chip of two devices; six links of 100 GB/s in each direction, six times one link between the devices of a chip.
 * Memory: a parsed file, for the call.  Test: tests/unit/test_plan.c */
#include "plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_FILE (1u << 20)

/* Links of a chip along an axis of n chips: the axis closes to a ring when n is a multiple of 4. */
static double links_along(double n) {
    return n < 2 ? 0 : fmod(n, 4) == 0 ? 2 : 1;
}

static lg_status tpu7x(const char *shape, lg_plan_hw *hw, lg_err *err) {
    unsigned a, b, c;
    int end = 0;
    if (sscanf(shape, "%5ux%5ux%5u%n", &a, &b, &c, &end) != 3 || shape[end] || !a || !b || !c ||
        a > 1024 || b > 1024 || c > 1024)
        return LG_FAIL(err, LG_E_ARG,
                       "hardware: found 'tpu7x:%.40s', expected chips along three axes, "
                       "like tpu7x:2x2x1",
                       shape);
    *hw =
        (lg_plan_hw){.n_chip = (double)a * b * c,
                     .n_dev = 2,
                     .ops_weight = 2307e12,
                     .ops_16 = 1153.5e12,
                     .ops_32 = 1153.5e12 / 6,
                     .bandwidth = 3.685e12,
                     .memory = 94.7 * 1073741824.0, /* what the compiler lets a program have */
                     .n_link = links_along(a) + links_along(b) + links_along(c),
                     .link = 100e9,
                     .inside = 600e9,
                     .latency = 1.73e-6, /* measured decode steps leave so much, docs/PLAN.md */
                     .dim = {a, b, c}};
    snprintf(hw->name, sizeof hw->name, "tpu7x:%ux%ux%u", a, b, c);
    return LG_OK;
}

/* ---- a file ---- */

typedef struct number {
    const char *key;
    size_t offset;
    double unit;
    double missing; /* < 0: must be there */
} number;

#define AT(member) offsetof(lg_plan_hw, member)
static const number numbers[] = {{"nodes", AT(n_chip), 1, 1},
                                 {"ranks_per_node", AT(n_dev), 1, 1},
                                 {"weight_gops", AT(ops_weight), 1e9, -1},
                                 {"f16_gops", AT(ops_16), 1e9, -1},
                                 {"f32_gops", AT(ops_32), 1e9, -1},
                                 {"memory_gb_s", AT(bandwidth), 1e9, -1},
                                 {"memory_gib", AT(memory), 1073741824.0, -1},
                                 {"links", AT(n_link), 1, 1},
                                 {"link_gb_s", AT(link), 1e9, 12.5},
                                 {"inside_gb_s", AT(inside), 1e9, 20},
                                 {"latency_us", AT(latency), 1e-6, 20}};

static lg_status read_number(const lg_json *root, const number *n, const char *path,
                             lg_plan_hw *hw, lg_err *err) {
    const lg_json *v = lg_json_get(root, n->key);
    double x = n->missing;
    if (!v && x < 0) return LG_FAIL(err, LG_E_FORMAT, "%s: %s is missing", path, n->key);
    if (v && (!lg_json_f64(v, &x) || !(x > 0) || x > 1e15))
        return LG_FAIL(err, LG_E_FORMAT, "%s: %s: expected a number above 0", path, n->key);
    *(double *)(void *)((char *)hw + n->offset) = x * n->unit;
    return LG_OK;
}

static bool is_known(const char *key) {
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(numbers[i].key, key) == 0) return true;
    return strcmp(key, "name") == 0;
}

void lg_plan_hw_write(const lg_plan_hw *hw, lg_buf *out) {
    lg_buf_puts(out, "{\n  \"name\": ");
    lg_json_put_string(out, hw->name, strlen(hw->name));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        double x = *(const double *)(const void *)((const char *)hw + numbers[i].offset);
        lg_buf_printf(out, ",\n  \"%s\": %.5g", numbers[i].key, x / numbers[i].unit);
    }
    lg_buf_puts(out, "\n}\n");
}

void lg_plan_hw_node(const char *name, double stream, double int_macs, double float_macs,
                     double memory, lg_plan_hw *hw) {
    *hw = (lg_plan_hw){.ops_weight = 2 * int_macs,
                       .ops_16 = 2 * float_macs, /* widened to floats */
                       .ops_32 = 2 * float_macs,
                       .bandwidth = stream,
                       .memory = memory};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers;
         i++) /* of a network: as where a file is silent */
        if (numbers[i].missing >= 0)
            *(double *)(void *)((char *)hw + numbers[i].offset) =
                numbers[i].missing * numbers[i].unit;
    snprintf(hw->name, sizeof hw->name, "%s", name);
}

static lg_status read_file(const lg_json *root, const char *path, lg_plan_hw *hw, lg_err *err) {
    if (root->kind != LG_JSON_OBJECT)
        return LG_FAIL(err, LG_E_FORMAT, "%s: expected a JSON object", path);
    for (const lg_json *v = root->child; v; v = v->next)
        if (!is_known(v->key))
            return LG_FAIL(err, LG_E_FORMAT, "%s: '%.40s' is not a field of a hardware file",
                           path, v->key);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        LG_TRY(read_number(root, &numbers[i], path, hw, err));
    const lg_json *name = lg_json_get(root, "name");
    snprintf(hw->name, sizeof hw->name, "%.90s",
             name && name->kind == LG_JSON_STRING ? name->text : path);
    return LG_OK;
}

lg_status lg_plan_hw_load(const char *what, lg_plan_hw *hw, lg_err *err) {
    *hw = (lg_plan_hw){0};
    if (strncmp(what, "tpu7x:", 6) == 0) return tpu7x(what + 6, hw, err);
    lg_json_doc *doc;
    LG_TRY(lg_json_load(what, MAX_FILE, 8, &doc, err));
    lg_status st = read_file(lg_json_root(doc), what, hw, err);
    lg_json_close(&doc);
    return st;
}
