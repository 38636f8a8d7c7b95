/* cpus.c - which processors this process may use: see cpus.h. */
#include "base/cpus.h"

#include <dirent.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Read the first bytes of a small file as text.  Returns false when it cannot be read. */
static bool read_text(const char *path, char *text, size_t cap) {
    FILE *f = fopen(path, "r");
    if (!f) return false;
    size_t n = fread(text, 1, cap - 1, f);
    fclose(f);
    text[n] = '\0';
    return n > 0;
}

/* The lowest hardware thread of the core of `cpu` ("0-1" or "0,64" in /sys), or cpu itself when unknown. */
static int first_sibling(int cpu, const cpu_set_t *set, size_t set_bytes) {
    char path[96], text[256];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
             cpu);
    if (!read_text(path, text, sizeof text)) return cpu;
    for (const char *s = text; *s >= '0' && *s <= '9';) {
        char *end;
        long lo = strtol(s, &end, 10), hi = lo;
        if (*end == '-') hi = strtol(end + 1, &end, 10);
        for (long c = lo; c <= hi && c < LG_CPUS_MAX; c++)
            if (CPU_ISSET_S((size_t)c, set_bytes, set)) return (int)c;
        s = *end == ',' ? end + 1 : end;
        if (*end != ',') break;
    }
    return cpu;
}

int lg_cpus_list(int *cpu, int cap, int *n_core) {
    cpu_set_t set[LG_CPUS_MAX / CPU_SETSIZE], second[LG_CPUS_MAX / CPU_SETSIZE];
    int n = 0;
    memset(second, 0, sizeof second);
    memset(set, 0, sizeof set);
    if (sched_getaffinity(0, sizeof set, set) != 0) CPU_SET_S(0, sizeof set, set);
    for (int c = 0; c < LG_CPUS_MAX; c++) {
        if (!CPU_ISSET_S((size_t)c, sizeof set, set)) continue;
        if (first_sibling(c, set, sizeof set) != c) {
            CPU_SET_S((size_t)c, sizeof second, second);
        } else if (n < cap) {
            cpu[n++] = c;
        }
    }
    if (n_core) *n_core = n;
    for (int c = 0; c < LG_CPUS_MAX && n < cap; c++)
        if (CPU_ISSET_S((size_t)c, sizeof second, second)) cpu[n++] = c;
    return n;
}

int lg_cpus_node(const char *sys, int cpu) {
    char path[1024];
    int node = 0;
    snprintf(path, sizeof path, "%s/cpu%d", sys ? sys : "/sys/devices/system/cpu", cpu);
    DIR *d = opendir(path); /* it has an entry "node0" */
    if (!d) return 0;
    for (const struct dirent *e; (e = readdir(d));)
        if (sscanf(e->d_name, "node%d", &node) == 1) break;
    closedir(d);
    return node;
}

static int quota(long long limit_us, long long period_us) {
    if (limit_us <= 0 || period_us <= 0) return LG_CPUS_MAX;
    long long n = limit_us / period_us;
    return n < 1 ? 1 : n > LG_CPUS_MAX ? LG_CPUS_MAX : (int)n;
}

void lg_cpus_share(int at, int n) {
    int cpu[LG_CPUS_MAX];
    int n_core = 0;
    cpu_set_t set;
    lg_cpus_list(cpu, LG_CPUS_MAX, &n_core);
    if (n < 2 || n_core < n) return;
    CPU_ZERO(&set);
    for (int i = at * n_core / n; i < (at + 1) * n_core / n; i++)
        if (cpu[i] < CPU_SETSIZE) CPU_SET((size_t)cpu[i], &set);
    if (CPU_COUNT(&set)) sched_setaffinity(0, sizeof set, &set);
}

int lg_cpus_quota_of(const char *cpu_max) {
    long long limit, period;
    if (sscanf(cpu_max, "%lld %lld", &limit, &period) != 2) return LG_CPUS_MAX;
    return quota(limit, period);
}

/* The limit in one cgroup folder, either version. */
static int quota_in(const char *folder) {
    char path[1200], text[64], text2[64];
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (read_text(path, text, sizeof text)) return lg_cpus_quota_of(text);
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (!read_text(path, text, sizeof text)) return LG_CPUS_MAX;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (!read_text(path, text2, sizeof text2)) return LG_CPUS_MAX;
    return quota(strtoll(text, NULL, 10), strtoll(text2, NULL, 10));
}

/* The smallest limit of root/path and the folders above it, down to root. */
static int quota_up(const char *root, const char *path) {
    char folder[1024];
    int n_root = snprintf(folder, sizeof folder, "%s", root), least = quota_in(root);
    snprintf(folder + n_root, sizeof folder - (size_t)n_root, "%s", path);
    for (char *cut = folder; cut; *cut = '\0') {
        int n = quota_in(folder);
        if (n < least) least = n;
        cut = strrchr(folder, '/');
        if (!cut || cut < folder + n_root) break;
    }
    return least;
}

int lg_cpus_quota(void) {
    int least = LG_CPUS_MAX;
    char line[1024];
    FILE *f = fopen("/proc/self/cgroup", "r");
    if (!f) return least;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        list++;
        int n = LG_CPUS_MAX;
        if (*list == '\0') {
            n = quota_up("/sys/fs/cgroup", path);
        } else if (strstr(list, "cpu") && !strstr(list, "cpuset")) {
            n = quota_up("/sys/fs/cgroup/cpu", path);
        }
        if (n < least) least = n;
    }
    fclose(f);
    return least;
}
