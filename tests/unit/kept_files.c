/* kept_files.c - see kept_files.h. */
#include "kept_files.h"

#include "engine/cache/disk.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

uint32_t kept_files(const char *dir, long at) {
    uint32_t n = 0, to;
    uint64_t hash;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) {
        char path[400];
        if (!lg_disk_parse_name(e->d_name, &hash, &to)) continue;
        n++;
        if (at == 0) continue;
        snprintf(path, sizeof path, "%s/%.40s", dir, e->d_name);
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        assert_int_equal(fseek(f, at, SEEK_SET), 0);
        int c = fgetc(f);
        assert_int_equal(fseek(f, at, SEEK_SET), 0);
        assert_int_equal(fputc(c ^ 2, f), c ^ 2);
        assert_int_equal(fclose(f), 0);
    }
    closedir(d);
    return n;
}
