/* chat.h - the Qwen3.5 chat format, rendered by C code into one text whose spans are scaffold or content.
 *
 * docs/CHAT.md is the specification.  Content of user, system and tool messages and of tool definitions never matches
 * a control token; in assistant history only the format's own think and tool-call tags do.
 * Thread: any.  Test: tests/unit/test_chat.c (all golden conversations) */
#ifndef LG_MODEL_TEXT_CHAT_H
#define LG_MODEL_TEXT_CHAT_H

#include "base/json.h"
#include "model/text/tokenizer.h"

typedef struct lg_chat_opt {
    const lg_json *messages; /* array of messages */
    const lg_json *tools;    /* array of tool definitions, or NULL */
    bool add_generation_prompt;
    bool no_think; /* enable_thinking given and exactly false */
    bool add_vision_id;
    /* Arguments of a call may also be JSON text, as OpenAI clients send them; without this that is an error. */
    bool parse_arguments;
    /* The role "developer" is another name of "system"; without this it is an error. */
    bool developer_is_system;
    /* Conversations that the format refuses or closes, as clients send them: docs/CHAT.md, "Relaxed". */
    bool relaxed;
    /* Every turn of the assistant keeps its reasoning, not only those after the last question. */
    bool preserve_thinking;
} lg_chat_opt;

/* A closed turn of the assistant that was rendered with its reasoning: where it lies in the text. */
typedef struct lg_chat_turn {
    const lg_json *msg;
    size_t begin, end; /* from "<|im_start|>assistant" to behind "<|im_end|>" */
    size_t think_begin, think_end, content_begin, content_end; /* trimmed */
} lg_chat_turn;

/* The rendered prompt.  Caller's storage; = {0} before, lg_chat_fini after. */
typedef struct lg_chat {
    lg_buf text;
    lg_span *span; /* owned; cover the text */
    size_t n_span, cap_span;
    lg_chat_turn *turn; /* owned */
    size_t n_turn, cap_turn;
    bool
        opened_think; /* the prompt ends inside <think>: what the model writes starts as reasoning */
} lg_chat;

/* Render.  LG_E_ARG with exactly the format's own message ("No messages provided.") for a conversation it refuses, or with
 * ours, naming the message index, for malformed JSON shapes; LG_E_NOMEM. */
lg_status lg_chat_render(const lg_chat_opt *opt, lg_chat *chat, lg_err *err);
void lg_chat_fini(lg_chat *chat);

/* Render and tokenise; `chat` is filled too. */
lg_status lg_chat_encode(const lg_chat_opt *opt, lg_tokenizer *tok, lg_chat *chat, lg_ids *ids,
                         lg_err *err);

#endif
