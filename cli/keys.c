/* keys.c - `lignum keys`: make and change the file that `lignum serve --keys` reads.
 *
 * In: options, the file.   Out: the file, replaced in one step; a new key, once, on standard output.
 * Lines of others and comments are kept as they are.  Test: tests/e2e/test_secure.py */
#include "cli.h"
#include "gateway/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char help[] =
    "Keep the API keys of `lignum serve --keys FILE`.\n"
    "\n"
    "usage: lignum keys add FILE --name NAME [OPTIONS]   draw a key, print it once\n"
    "       lignum keys list FILE                        names, roles and limits\n"
    "       lignum keys remove FILE --name NAME\n"
    "       lignum keys hash                             hash of the key on standard input\n"
    "\n"
    "      --name NAME               letters, digits and any of -_.@\n"
    "      --role ROLE               user (default), admin (also /metrics), metrics (only "
    "that)\n"
    "      --requests-per-minute N   limits; without one there is none\n"
    "      --tokens-per-minute N     of prompts and answers\n"
    "      --concurrent N            requests at the same time\n"
    "      --max-context N           tokens of one prompt with its answer\n"
    "      --priority N              of its requests (0), and the lowest they may ask for; "
    "lower "
    "is earlier\n"
    "      --help                    print this\n"
    "\n"
    "The file holds hashes only.  A running server reads it again at SIGHUP.\n";

enum {
    OPT_NAME = 256,
    OPT_ROLE,
    OPT_RPM,
    OPT_TPM,
    OPT_CONCURRENT,
    OPT_CONTEXT,
    OPT_PRIORITY,
    OPT_HELP
};

static const struct option longs[] = {{"name", required_argument, NULL, OPT_NAME},
                                      {"role", required_argument, NULL, OPT_ROLE},
                                      {"requests-per-minute", required_argument, NULL, OPT_RPM},
                                      {"tokens-per-minute", required_argument, NULL, OPT_TPM},
                                      {"concurrent", required_argument, NULL, OPT_CONCURRENT},
                                      {"max-context", required_argument, NULL, OPT_CONTEXT},
                                      {"priority", required_argument, NULL, OPT_PRIORITY},
                                      {"help", no_argument, NULL, OPT_HELP},
                                      {NULL, 0, NULL, 0}};

static int fail(const char *argv0, const char *what, const char *why) {
    fprintf(stderr, "%s: %s: %s\n", argv0, what, why);
    return 1;
}

static bool read_text(FILE *f, lg_buf *text) {
    char block[4096];
    size_t n;
    while ((n = fread(block, 1, sizeof block, f)) > 0) lg_buf_put(text, block, n);
    lg_keys_wipe(block, sizeof block);
    return !ferror(f) && !text->failed;
}

/* Put text in the place of the file: it is never there in part.  A new file is its owner's alone; an old one keeps its
 * mode and owner as far as the system lets us. */
static bool replace_file(const char *path, const lg_buf *text) {
    char part[4096];
    struct stat old;
    bool had = stat(path, &old) == 0;
    if (snprintf(part, sizeof part, "%s.new", path) >= (int)sizeof part) {
        errno = ENAMETOOLONG;
        return false;
    }
    int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return false;
    bool ok =
        write(fd, lg_buf_str(text), text->len_bytes) == (ssize_t)text->len_bytes && !fsync(fd);
    if (had) ok = fchown(fd, old.st_uid, old.st_gid) == 0 && ok;
    if (had) ok = fchmod(fd, old.st_mode & 0777) == 0 && ok;
    ok = close(fd) == 0 && ok;
    ok = ok && rename(part, path) == 0;
    int why = errno;
    if (!ok) unlink(part);
    errno = why;
    return ok;
}

/* The file as it is, checked; one that is not there is empty when may_miss. */
static bool load(const char *argv0, const char *path, bool may_miss, lg_buf *text) {
    lg_keys *keys = NULL;
    lg_err err = {0};
    if (may_miss && access(path, F_OK) != 0 && errno == ENOENT) return true;
    if (lg_keys_open(path, &keys, &err) != LG_OK) {
        fprintf(stderr, "%s: %s\n", argv0, err.msg);
        return false;
    }
    lg_keys_close(&keys);
    FILE *f = fopen(path, "re");
    bool ok = f && read_text(f, text);
    if (!ok) fail(argv0, path, strerror(errno));
    if (f) fclose(f);
    return ok;
}

static int add(const char *argv0, const char *path, lg_key *k) {
    char key[LG_KEYS_TEXT_BYTES];
    lg_buf text = {0};
    lg_err err = {0};
    lg_keys *check = NULL;
    int rc = 1;
    if (!load(argv0, path, true, &text)) goto done;
    if (lg_keys_draw(key, &err) != LG_OK) {
        fail(argv0, path, err.msg);
        goto done;
    }
    lg_keys_hash(key, strlen(key), k->hash);
    if (text.len_bytes && text.data[text.len_bytes - 1] != '\n') lg_buf_putc(&text, '\n');
    lg_keys_put_line(k, &text);
    if (lg_keys_parse(lg_buf_str(&text), text.len_bytes, path, &check, &err) != LG_OK) {
        fprintf(stderr, "%s: %s\n", argv0, err.msg);
    } else if (text.failed || !replace_file(path, &text)) {
        fail(argv0, path, strerror(errno));
    } else {
        printf("%s\n", key);
        fprintf(stderr, "This key of %s is not shown again.\n", k->name);
        rc = 0;
    }
    lg_keys_wipe(key, sizeof key);
done:
    lg_keys_close(&check);
    lg_buf_fini(&text);
    return rc;
}

static int list(const char *argv0, const char *path) {
    lg_keys *keys = NULL;
    lg_err err = {0};
    if (lg_keys_open(path, &keys, &err) != LG_OK) {
        fprintf(stderr, "%s: %s\n", argv0, err.msg);
        return 1;
    }
    printf("%-20s %-8s %12s %12s %10s %10s %8s\n", "name", "role", "requests/min", "tokens/min",
           "concurrent", "context", "priority");
    for (const lg_key *k = lg_keys_first(keys); k; k = k->next) {
        const uint64_t v[] = {k->limits.requests_per_minute, k->limits.tokens_per_minute,
                              k->limits.concurrent, k->limits.max_context};
        static const int width[] = {12, 12, 10, 10};
        printf("%-20s %-8s", k->name, lg_keys_role_name(k->role));
        for (size_t i = 0; i < LG_COUNT(v); i++) {
            char text[24] = "-";
            if (v[i]) snprintf(text, sizeof text, "%llu", (unsigned long long)v[i]);
            printf(" %*s", width[i], text);
        }
        printf(" %8d\n", (int)k->priority);
    }
    lg_keys_close(&keys);
    return 0;
}

static int remove_key(const char *argv0, const char *path, const char *name) {
    lg_buf old = {0}, text = {0};
    bool found = false;
    int rc = 1;
    if (!load(argv0, path, false, &old)) goto done;
    for (size_t at = 0; at < old.len_bytes;) {
        lg_key k;
        const char *line = old.data + at, *nl = memchr(line, '\n', old.len_bytes - at);
        size_t n = nl ? (size_t)(nl - line) + 1 : old.len_bytes - at;
        lg_status st = lg_keys_read_line(line, nl ? n - 1 : n, path, &k, NULL);
        bool it = st == LG_OK && strcmp(k.name, name) == 0;
        found |= it;
        if (!it) lg_buf_put(&text, line, n);
        at += n;
    }
    if (!found)
        fprintf(stderr, "%s: %s: no key of that name: %s\n", argv0, path, name);
    else if (text.failed || !replace_file(path, &text))
        fail(argv0, path, strerror(errno));
    else
        rc = 0;
done:
    lg_buf_fini(&old);
    lg_buf_fini(&text);
    return rc;
}

static int hash(const char *argv0) {
    uint8_t h[LG_KEYS_HASH_BYTES];
    lg_buf text = {0}, out = {0};
    int rc = 1;
    bool ok = read_text(stdin, &text);
    size_t n = ok ? strcspn(lg_buf_str(&text), "\r\n") : 0;
    if (n < LG_KEYS_MIN_BYTES) {
        fprintf(stderr,
                "%s: a key needs at least %u random characters: a short one can be found from "
                "its hash\n",
                argv0, LG_KEYS_MIN_BYTES);
    } else {
        lg_keys_hash(text.data, n, h);
        lg_keys_put_hash(h, &out);
        printf("%s\n", lg_buf_str(&out));
        rc = 0;
    }
    lg_keys_wipe(text.data, text.len_bytes);
    lg_buf_fini(&text);
    lg_buf_fini(&out);
    return rc;
}

static bool take(const char *argv0, int c, lg_key *k) {
    static const uint64_t many = 1000000000;
    lg_key_limits *l = &k->limits;
    int n;
    switch (c) {
    case OPT_NAME:
        if (lg_keys_is_name(optarg, strlen(optarg))) {
            snprintf(k->name, sizeof k->name, "%s", optarg);
            return true;
        }
        fprintf(stderr, "%s: --name: expected 1 to %u letters, digits or any of -_.@\n", argv0,
                LG_KEYS_NAME_BYTES);
        return false;
    case OPT_ROLE:
        if (lg_keys_role_of(optarg, &k->role)) return true;
        fprintf(stderr, "%s: --role: expected user, admin or metrics, found '%s'\n", argv0,
                optarg);
        return false;
    case OPT_RPM:
        return lg_option_u64(argv0, "--requests-per-minute", optarg, 1, many,
                             &l->requests_per_minute);
    case OPT_TPM:
        return lg_option_u64(argv0, "--tokens-per-minute", optarg, 1, many * 1000,
                             &l->tokens_per_minute);
    case OPT_CONCURRENT:
        return lg_option_u64(argv0, "--concurrent", optarg, 1, 1000000, &l->concurrent);
    case OPT_CONTEXT:
        return lg_option_u64(argv0, "--max-context", optarg, 2, 1 << 22, &l->max_context);
    case OPT_PRIORITY:
        if (!lg_option_int(argv0, "--priority", optarg, -LG_KEYS_MAX_PRIORITY,
                           LG_KEYS_MAX_PRIORITY, &n))
            return false;
        k->priority = n;
        return true;
    default: return false;
    }
}

int lg_keys_main(int argc, char **argv) {
    lg_key k = {0};
    int c;
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == OPT_HELP) {
            fputs(help, stdout);
            return 0;
        }
        if (!take(argv[0], c, &k)) return lg_option_usage(argv[0]);
    }
    int n = argc - optind;
    const char *verb = n > 0 ? argv[optind] : "", *path = n > 1 ? argv[optind + 1] : NULL;
    if (strcmp(verb, "hash") == 0 && n == 1) return hash(argv[0]);
    if (strcmp(verb, "list") == 0 && n == 2) return list(argv[0], path);
    if (strcmp(verb, "add") == 0 && n == 2 && k.name[0]) return add(argv[0], path, &k);
    if (strcmp(verb, "remove") == 0 && n == 2 && k.name[0])
        return remove_key(argv[0], path, k.name);
    fprintf(stderr,
            "%s: expected add or remove with FILE and --name, list with FILE, or hash\n",
            argv[0]);
    return lg_option_usage(argv[0]);
}
