/* embed.c - ask a model one question from a program of your own.
 *
 *     cc embed.c $(pkg-config --cflags --libs lignum) -o embed
 *     ./embed models/tiny-qwen35moe "What is the capital of France?"
 *
 * Everything it uses is in lignum.h.  Test: tests/py/installed.py */
#include <lignum.h>

#include <stdio.h>
#include <string.h>

/* Write a chat of one user message as JSON.  Returns false when it does not fit. */
static bool chat_json(const char *prompt, char *out, size_t cap_bytes) {
    static const char head[] =
        "{\"enable_thinking\":false,\"messages\":[{\"role\":\"user\",\"content\":\"";
    static const char tail[] = "\"}]}";
    size_t n = sizeof head - 1;
    if (cap_bytes < sizeof head + sizeof tail + 6 * strlen(prompt)) return false;
    memcpy(out, head, n);
    for (const char *p = prompt; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c < 0x20 || c == '"' || c == '\\')
            n += (size_t)sprintf(out + n, "\\u%04x", c);
        else
            out[n++] = *p;
    }
    memcpy(out + n, tail, sizeof tail);
    return true;
}

/* Run steps until the request is done, printing its text as it comes. */
static lg_status stream(lg_engine *eng) {
    lg_event event;
    while (lg_step(eng) == LG_OK) {
        while (lg_next_event(eng, &event) == LG_OK) {
            fwrite(event.text, 1, event.len_bytes, stdout);
            fflush(stdout);
            if (event.kind != LG_EVENT_DONE) continue;
            printf("\n[%u prompt tokens, %u produced]\n", event.n_prompt, event.n_produced);
            return event.status;
        }
    }
    return LG_E_BACKEND;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]);
        return 2;
    }
    lg_err err;
    lg_engine *eng = NULL;
    uint32_t *ids = NULL;
    size_t n_id = 0;
    char json[65536];
    lg_status st = LG_E_ARG;
    if (!chat_json(argv[2], json, sizeof json)) {
        fprintf(stderr, "%s: the prompt is too long\n", argv[0]);
        return 2;
    }

    lg_options opt;
    lg_options_init(&opt);
    opt.model_path = argv[1];
    if ((st = lg_open(&opt, &eng, &err)) != LG_OK) goto fail;
    if ((st = lg_text_chat(lg_get_text(eng), json, strlen(json), &ids, &n_id, &err)) != LG_OK)
        goto fail;

    lg_request req = {.ids = ids, .n_id = (uint32_t)n_id, .max_tokens = 200};
    lg_params_init(eng, &req.params);
    req.params.temperature = 0; /* greedy: the same answer every time */
    uint64_t id;
    if ((st = lg_submit(eng, &req, &id, &err)) != LG_OK) goto fail;
    if ((st = stream(eng)) != LG_OK) fprintf(stderr, "%s: %s\n", argv[0], lg_status_name(st));
    goto done;
fail:
    fprintf(stderr, "%s: %s\n", argv[0], err.msg);
done:
    lg_free(ids);
    lg_close(&eng);
    return st == LG_OK ? 0 : 1;
}
