/* level.h - the tables of src/kern/<level>/, for kern.c alone. */
#ifndef LG_KERN_LEVEL_H
#define LG_KERN_LEVEL_H

#include "kern/kern.h"

extern const lg_kern lg_kern_ref;
#if defined(__x86_64__)
extern const lg_kern lg_kern_avx2;
#ifdef LG_HAVE_AVXVNNI
extern const lg_kern lg_kern_avxvnni;
#endif
extern const lg_kern lg_kern_avx512;
extern const lg_kern lg_kern_avx512vnni;
#ifdef LG_HAVE_AMX
extern const lg_kern lg_kern_amx;
#endif
#endif

#endif
