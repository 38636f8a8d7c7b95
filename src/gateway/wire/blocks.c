/* blocks.c - output text into blocks: see blocks.h.
 *
 * In:  text, through outparse.   Out: the list, and each change as it happens.
 * Thread: gateway.  Memory: the text of all blocks.  Test: tests/unit/test_anthropic.c */
#include "gateway/wire/blocks.h"

#include "base/num.h"

static void tell(lg_blocks *b, lg_block_change change, const char *text, size_t len_bytes) {
    if (b->fn) b->fn(b->ctx, change, b->n - 1, &b->block[b->n - 1], text, len_bytes);
}

static void close_block(lg_blocks *b) {
    if (b->open) tell(b, LG_BLOCK_END, NULL, 0);
    b->open = false;
}

static bool open_block(lg_blocks *b, lg_block_kind kind, const lg_part *part) {
    close_block(b);
    if (b->n == b->cap) {
        uint32_t cap = b->cap ? 2 * b->cap : 4;
        lg_block *p = lg_mem_realloc(b->block, cap * sizeof *p);
        if (!p) return false;
        b->block = p;
        b->cap = cap;
    }
    lg_block *k = &b->block[b->n++];
    *k = (lg_block){.kind = kind};
    if (kind == LG_BLOCK_CALL) b->n_call++;
    if (kind == LG_BLOCK_CALL) lg_buf_put(&k->name, part->text, part->len_bytes);
    b->open = true;
    tell(b, LG_BLOCK_BEGIN, NULL, 0);
    return !k->name.failed;
}

static void on_part(void *ctx, const lg_part *part) {
    lg_blocks *b = ctx;
    lg_block_kind kind = part->kind == LG_PART_REASONING ? LG_BLOCK_REASONING
                         : part->kind == LG_PART_CONTENT ? LG_BLOCK_TEXT
                                                         : LG_BLOCK_CALL;
    if (b->failed) return;
    if (b->one_call && b->n_call > 0 && !(part->kind == LG_PART_CALL_ARGS && part->call == 0))
        return;
    if (part->kind == LG_PART_CALL_BEGIN || !b->open || b->block[b->n - 1].kind != kind)
        b->failed = !open_block(b, kind, part);
    if (b->failed || part->kind == LG_PART_CALL_BEGIN) return;
    lg_buf_put(&b->block[b->n - 1].text, part->text, part->len_bytes);
    b->failed = b->block[b->n - 1].text.failed;
    if (!b->failed) tell(b, LG_BLOCK_DELTA, part->text, part->len_bytes);
}

lg_status lg_blocks_init(lg_blocks *b, const lg_json *tools, bool in_reasoning, lg_block_fn *fn,
                         void *ctx) {
    b->fn = fn;
    b->ctx = ctx;
    return lg_outparse_open(tools, in_reasoning, &b->parse);
}

void lg_blocks_fini(lg_blocks *b) {
    lg_outparse_close(&b->parse);
    for (uint32_t i = 0; i < b->n; i++) {
        lg_buf_fini(&b->block[i].name);
        lg_buf_fini(&b->block[i].text);
    }
    lg_mem_free(b->block);
    *b = (lg_blocks){0};
}

lg_status lg_blocks_put(lg_blocks *b, const char *text, size_t len_bytes) {
    if (len_bytes) LG_TRY(lg_outparse_put(b->parse, text, len_bytes, on_part, b));
    return b->failed ? LG_E_NOMEM : LG_OK;
}

lg_status lg_blocks_end(lg_blocks *b, lg_finish finish) {
    LG_TRY(lg_outparse_end(b->parse, finish != LG_FINISH_EOS, on_part, b));
    b->ended = true;
    close_block(b);
    return b->failed ? LG_E_NOMEM : LG_OK;
}

uint32_t lg_blocks_n_call(const lg_blocks *b) {
    return b->n_call;
}

void lg_blocks_put_object(const lg_blocks *b, const lg_block *k, lg_buf *out) {
    lg_buf_put(out, lg_buf_str(&k->text), k->text.len_bytes);
    bool cut = k + 1 == b->block + b->n && b->n_call > lg_outparse_n_call(b->parse);
    if (cut && b->ended) lg_buf_puts(out, lg_outparse_closing(b->parse));
}

void lg_blocks_put_id(lg_buf *out, const char *prefix, const char *request_id, uint32_t i) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (const char *p = request_id; *p; p++) hash = (hash ^ (uint8_t)*p) * 0x100000001b3u;
    lg_buf_printf(out, "%s%016llx%08llx", prefix, (unsigned long long)lg_num_rng(hash, 0, i, 0),
                  (unsigned long long)(lg_num_rng(hash, 0, i, 1) >> 32));
}
