/* json_echo.c - parse and print JSON documents, for the comparison with Python's json (tests/py/json_compare.py).
 *
 * In, any number of times:   a line with a byte count, then that many bytes: one document.
 * Out, for each:             "ok N\n" and the N bytes of the LG_JSON_PYTHON print, or "error N\n" and the message.
 * An argument names the locale to run in. */
#include "base/json.h"

#include <locale.h>
#include <stdio.h>

static int echo(size_t len) {
    char *text = lg_mem_alloc(len);
    if (!text || fread(text, 1, len, stdin) != len) return 2;
    lg_json_doc *doc;
    lg_err err;
    lg_buf out = {0};
    const char *word = "ok";
    if (lg_json_parse(text, len, LG_JSON_MAX_DEPTH, "document", &doc, &err) == LG_OK) {
        lg_json_put(&out, lg_json_root(doc), LG_JSON_PYTHON);
    } else {
        word = "error";
        lg_buf_puts(&out, err.msg);
    }
    printf("%s %zu\n", word, out.len_bytes);
    fwrite(lg_buf_str(&out), 1, out.len_bytes, stdout);
    int rc = out.failed ? 2 : 0;
    lg_json_close(&doc);
    lg_buf_fini(&out);
    lg_mem_free(text);
    return rc;
}

int main(int argc, char **argv) {
    if (argc > 1 && !setlocale(LC_ALL, argv[1])) return 77;
    size_t len;
    while (scanf("%zu", &len) == 1) {
        if (getchar() != '\n') return 2;
        int rc = echo(len);
        if (rc) return rc;
    }
    return 0;
}
