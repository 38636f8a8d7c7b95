/* base.h - the map of src/base: what everything else stands on.
 *
 *   diag   status, error reports, log          mem    heap door, arenas          buf    growable text
 *   num    bf16/f16/fp8, checked arithmetic, counter random numbers             clock  monotonic time
 *   hash   fingerprints of big blocks           cpus   processors of this machine
 *   utf8   decoding as Python does             json   strict reader and writer   pool   threads for heavy loops
 *
 * base includes nothing but the public header and the C library. */
#ifndef LG_BASE_BASE_H
#define LG_BASE_BASE_H

#include "base/buf.h"
#include "base/clock.h"
#include "base/diag.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include "base/utf8.h"

#endif
