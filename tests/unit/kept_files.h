/* kept_files.h - the files of kept texts in a folder, and damage to them. */
#ifndef LG_TESTS_KEPT_FILES_H
#define LG_TESTS_KEPT_FILES_H

#include <stdint.h>

/* How many there are.  With `at` > 0 a bit of byte `at` of each is turned. */
uint32_t kept_files(const char *dir, long at);

#endif
