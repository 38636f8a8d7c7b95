/* fake_pjrt_rig.h - the plugin of our own (fake_pjrt.c), for the tests that need one that is always there. */
#ifndef FAKE_PJRT_RIG_H
#define FAKE_PJRT_RIG_H

#include "backend/pjrt/pjrt.h"

/* Its file in the build folder (LG_BUILD_DIR, or build).  Borrowed, static. */
const char *fake_rig_path(void);

/* Open it with LG_FAKE_PJRT set to `how`, and a client of it; the test fails when either cannot be.  The caller's. */
lg_pjrt_plugin *fake_rig_plugin(const char *how);
lg_pjrt_client *fake_rig_client(lg_pjrt_plugin *p);

/* Objects that the plugin still has. */
int fake_rig_alive(void);

/* A program for one device. */
extern const lg_pjrt_compile fake_rig_one;

#endif
