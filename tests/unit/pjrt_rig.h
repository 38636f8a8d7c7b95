/* pjrt_rig.h - where the tests that need a true plugin find it. */
#ifndef PJRT_RIG_H
#define PJRT_RIG_H

#include "backend/pjrt/pjrt.h"

/* Path of the plugin "cpu" or "tpu" that tools/pjrt_plugins.py keeps; NULL with one printed line when it is not there, so that the
 * test skips.  Borrowed, static. */
const char *pjrt_rig_path(const char *name);

/* Eight devices of the plugin "cpu"; close both in the end.  0, with *client NULL when it is not there; 1 when it fails, said. */
int pjrt_rig_open(lg_pjrt_plugin **plugin, lg_pjrt_client **client);
void pjrt_rig_close(lg_pjrt_plugin **plugin, lg_pjrt_client **client);

#endif
