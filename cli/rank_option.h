/* rank_option.h - options that only ranks have: read by worker.c, and by serve.c, which checks them before it passes them on. */
#ifndef LG_CLI_RANK_OPTION_H
#define LG_CLI_RANK_OPTION_H

#include "cli.h"

struct lg_ranks_opt; /* engine/ranks.h */

/* Their part of a table for getopt_long, all with this code; which one it is, is the name at the index that getopt_long tells. */
#define LG_RANK_OPTIONS(code)                                                                  \
    {"rank-timeout", required_argument, NULL, code},                                           \
        {"exchange", required_argument, NULL, code}, {"wire", required_argument, NULL, code},  \
        {"overlap", required_argument, NULL, code}, {"trace", required_argument, NULL, code},  \
        {"hold-prompts", required_argument, NULL, code},                                       \
        {"divide-prompts", required_argument, NULL, code},                                     \
        {"divide-ctx", required_argument, NULL, code},                                         \
        {"divide-answers", required_argument, NULL, code},                                     \
        {"spare-experts", required_argument, NULL, code},                                      \
        {"expert-load", required_argument, NULL, code}, {                                      \
        "expert-load-out", required_argument, NULL, code                                       \
    }

/* Read option `name` (without its dashes) into *r, which keeps `text`.  On failure names option, what was found and what was
 * expected on standard error, and returns false. */
bool lg_rank_option(const char *argv0, const char *name, const char *text,
                    struct lg_ranks_opt *r);

/* The same without keeping it; *strict: sums stay in the order of one process. */
bool lg_rank_option_check(const char *argv0, const char *name, const char *text, bool *strict);

#endif
