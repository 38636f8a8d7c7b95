/* fake_pjrt.h - what the plugin for tests exports beside GetPjrtApi. */
#ifndef FAKE_PJRT_H
#define FAKE_PJRT_H

#include "backend/pjrt/plugin/abi.h"

#define FAKE_API __attribute__((visibility("default")))

/* Objects of the plugin that were not destroyed. */
FAKE_API int fake_pjrt_alive(void);
FAKE_API const lg_abi_table *GetPjrtApi(void);

#endif
