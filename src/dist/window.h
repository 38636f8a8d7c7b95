/* window.h - memory that the ranks of one machine share.
 *
 * Each rank has a part of it, on its own memory node, which it writes and the others read.  Who may write or read when is agreed upon
 * by counters inside the parts (atomic: stores release, loads acquire), which ranks look at as they look after messages: with pauses
 * and a limit (lg_comm_pause), so that a rank that is lost shows here as it does there.
 * The memory is a POSIX shared-memory object without a name as soon as all have it; it ends with the last process that maps it.
 * Thread: engine.  Memory: the object, reserved whole at open.  Test: tests/unit/test_reduce.c */
#ifndef LG_DIST_WINDOW_H
#define LG_DIST_WINDOW_H

#include "dist/comm.h"

struct lg_window {
    size_t part_bytes;          /* of each rank; 0: there is none */
    uint8_t *part[LG_MAX_RANK]; /* zeroed at open; NULL: of a rank of another machine */
    void *map;
    size_t map_bytes;
};

/* Collective.  A part of at least part_bytes for each rank; comm->window becomes w.  LG_OK, also where there is none, on all ranks of a machine
 * alike: a rank alone on its machine, or no room for it, which is logged.  LG_E_COMM. */
lg_status lg_window_open(lg_comm *c, size_t part_bytes, lg_window *w);
void lg_window_close(lg_comm *c, lg_window *w);

#endif
