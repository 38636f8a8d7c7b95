/* hlo_check.h - a reader of StableHLO text in generic form that knows nothing of the writer: is a text well-formed?
 *
 * Each value is defined once, before its use and in a scope that the use can see; every operation's list of types
 * agrees with the types of its operands; a region's values stay inside; what main returns has the types it promises. */
#ifndef LG_TEST_HLO_CHECK_H
#define LG_TEST_HLO_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HLO_CHECK_MAX_ARG 1200
#define HLO_CHECK_MAX_OP  64

typedef struct hlo_check {
    char why[256]; /* of a fault, with the line */
    uint32_t n_arg, n_result, n_value, n_op, n_loop;
    uint32_t n_laid_out;                /* arguments with a layout of their own */
    const char *arg[HLO_CHECK_MAX_ARG]; /* type texts in the text itself, up to '>' */
    int alias[HLO_CHECK_MAX_ARG];       /* the result an argument is tied to, or -1 */
    const char *result[HLO_CHECK_MAX_ARG];
    struct {
        char name[48];
        uint32_t n;
    } op[HLO_CHECK_MAX_OP]; /* how often each operation occurs */
    uint32_t n_kind;
} hlo_check;

/* False with c->why. */
bool hlo_check_text(hlo_check *c, const char *text);

/* Whether two type texts are the same up to their '>'. */
bool hlo_check_same(const char *a, const char *b);

uint32_t hlo_check_count(const hlo_check *c, const char *op);

#endif
