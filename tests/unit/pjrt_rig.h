/* pjrt_rig.h - where the tests that need a true plugin find it. */
#ifndef PJRT_RIG_H
#define PJRT_RIG_H

/* Path of the plugin "cpu" or "tpu" that tools/pjrt_plugins.py keeps; NULL with one printed line when it is not there, so that the
 * test skips.  Borrowed, static. */
const char *pjrt_rig_path(const char *name);

#endif
