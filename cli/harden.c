/* harden.c - what serve and its worker give up at their start.
 *
 * Prompts, answers and keys are in memory, so a crash must not write it to a file, and no other process of the same user
 * may look into it.  Test: tests/e2e/test_secure.py */
#include "cli.h"

#include <sys/prctl.h>
#include <sys/resource.h>

void lg_harden_process(bool core_dumps) {
    struct rlimit none = {0, 0};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (core_dumps) return;
    setrlimit(RLIMIT_CORE, &none);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}
