/* cpus.h - which processors this process may use.
 *
 * Linux only: the affinity mask, /sys topology and cgroup quotas.  Thread: any.  Test: tests/unit/test_pool.c */
#ifndef LG_BASE_CPUS_H
#define LG_BASE_CPUS_H

#include <stddef.h>

#define LG_CPUS_MAX 8192 /* processor numbers below this are known */

/* Fill cpu[0 .. cap) with the allowed processors: first one of each physical core in ascending order, then the other
 * hardware threads.  *n_core (may be NULL) gets the number of physical cores.  Returns how many were written, at least 1
 * (processor 0 when the mask cannot be read). */
int lg_cpus_list(int *cpu, int cap, int *n_core);

/* The memory node that processor `cpu` belongs to, as `sys` (NULL: /sys/devices/system/cpu) tells; 0 where it does not. */
int lg_cpus_node(const char *sys, int cpu);

/* Share the allowed processors among n processes of this machine: this one, number `at`, keeps a run of neighbouring cores
 * for itself and the threads it starts.  With fewer cores than processes nothing changes. */
void lg_cpus_share(int at, int n);

/* Processors that the cgroup quotas (v2 cpu.max, v1 cfs_quota_us) of this process allow, rounded down but at least 1;
 * LG_CPUS_MAX without a limit. */
int lg_cpus_quota(void);

/* The smallest quota of the v2 text "max 100000" or "150000 100000": processors as above.  For tests. */
int lg_cpus_quota_of(const char *cpu_max);

#endif
