/* tokenizer_echo.c - tokenise texts, for the comparison with another implementation (tests/py/tokenizer_compare.py).
 *
 * Arguments: tokenizer.json, and 1 to match added tokens or 0 not to.
 * In, any number of times: a line with a byte count, then that many bytes.  Out, for each: a line of ids. */
#include "model/text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>

static lg_status load(const char *path, lg_tokenizer **tok, lg_err *err) {
    lg_buf text = {0};
    char block[65536];
    FILE *f = fopen(path, "rb");
    if (!f) return LG_FAIL(err, LG_E_IO, "%s: cannot be opened", path);
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;) lg_buf_put(&text, block, n);
    fclose(f);
    lg_status st = lg_tokenizer_parse(lg_buf_str(&text), text.len_bytes, path, tok, err);
    lg_buf_fini(&text);
    return st;
}

static int echo(lg_tokenizer *tok, size_t len, bool control) {
    lg_err err;
    lg_ids ids = {0};
    char *text = lg_mem_alloc(len);
    if (!text || fread(text, 1, len, stdin) != len) return 2;
    if (lg_tokenizer_encode(tok, text, len, NULL, 0, control, &ids, &err) != LG_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    for (size_t i = 0; i < ids.n; i++) printf(i ? " %u" : "%u", ids.id[i]);
    putchar('\n');
    lg_ids_fini(&ids);
    lg_mem_free(text);
    return 0;
}

int main(int argc, char **argv) {
    lg_tokenizer *tok;
    lg_err err;
    if (argc != 3) return 2;
    if (load(argv[1], &tok, &err) != LG_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    size_t len;
    int rc = 0;
    while (rc == 0 && scanf("%zu", &len) == 1)
        rc = getchar() == '\n' ? echo(tok, len, atoi(argv[2])) : 2;
    lg_tokenizer_close(&tok);
    return rc;
}
