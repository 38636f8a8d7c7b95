/* test_link.c - the link's frames: round trips, cuts, truncations, mutations; identities. */
#include "base/base.h"
#include "link/link.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include <stdio.h>
#include <unistd.h>

static const uint32_t prompt[] = {4064, 295, 198, 7, 9};
static const lg_bias bias[] = {{.id = 3, .bias = -100.0f}, {.id = 4063, .bias = 1.5f}};
static const lg_top top[] = {{.id = 11, .logprob = -0.25f}, {.id = 12, .logprob = -2.5f}};
static const char *const stop[] = {"\n\n", "", "END of t\xc3\xa4xt"};

static lg_params some_params(void) {
    return (lg_params){.temperature = 0.7f,
                       .top_p = 0.9f,
                       .min_p = 0.01f,
                       .top_k = 20,
                       .presence_penalty = -1.5f,
                       .frequency_penalty = 0.25f,
                       .repetition_penalty = 1.1f,
                       .has_seed = true,
                       .seed = 0xfedcba9876543210u,
                       .choice = 3,
                       .ignore_eos = true,
                       .n_top = 5};
}

static void assert_params(const lg_params *p) {
    lg_params q = some_params();
    assert_true(p->temperature == q.temperature && p->top_p == q.top_p && p->min_p == q.min_p);
    assert_true(p->presence_penalty == q.presence_penalty &&
                p->frequency_penalty == q.frequency_penalty &&
                p->repetition_penalty == q.repetition_penalty);
    assert_true(p->has_seed && p->ignore_eos);
    assert_int_equal(p->seed, q.seed);
    assert_int_equal(p->top_k, q.top_k);
    assert_int_equal(p->choice, q.choice);
    assert_int_equal(p->n_top, q.n_top);
}

static void assert_info(const lg_info *i, const lg_info *want) {
    assert_int_equal(i->n_vocab, want->n_vocab);
    assert_int_equal(i->n_token, want->n_token);
    assert_int_equal(i->n_ctx, want->n_ctx);
    assert_int_equal(i->n_seq, want->n_seq);
    assert_int_equal(i->n_page, want->n_page);
    assert_int_equal(i->page_tok, want->page_tok);
    assert_int_equal(i->kv, want->kv);
    assert_int_equal(i->n_thread, want->n_thread);
    assert_int_equal(i->memory_bytes, want->memory_bytes);
    assert_int_equal(i->weight_bytes, want->weight_bytes);
    assert_int_equal(i->state_bytes, want->state_bytes);
    assert_int_equal(i->scratch_bytes, want->scratch_bytes);
    assert_int_equal(i->n_param, want->n_param);
    assert_int_equal(i->n_param_active, want->n_param_active);
    assert_string_equal(i->model_name, want->model_name);
}

static lg_event token_event(void) {
    return (lg_event){.kind = LG_EVENT_TOKEN,
                      .token = 301,
                      .logprob = -0.5f,
                      .n_top = 2,
                      .top = top,
                      .n_cached = 17,
                      .text = "a\0b",
                      .len_bytes = 3};
}

static lg_event done_event(void) {
    return (lg_event){.kind = LG_EVENT_DONE,
                      .finish = LG_FINISH_STOP,
                      .status = LG_E_CANCELLED,
                      .stop_index = 2,
                      .n_prompt = 21,
                      .n_produced = 9,
                      .n_cached = 3,
                      .queue_us = 1,
                      .prefill_us = 1ull << 40,
                      .decode_us = 3,
                      .text = "tail",
                      .len_bytes = 4};
}

static lg_link_ready some_ready(void) {
    lg_link_ready r = {.info = {.model_name = "tiny",
                                .n_vocab = 4096,
                                .n_token = 4090,
                                .n_ctx = 2048,
                                .n_seq = 64,
                                .n_page = 1000,
                                .page_tok = 64,
                                .kv = LG_KV_BF16,
                                .n_thread = 2,
                                .n_snapshot = 9,
                                .snapshot_tok = 512,
                                .snapshot_bytes = 11,
                                .memory_bytes = 1ull << 34,
                                .weight_bytes = 1ull << 33,
                                .state_bytes = 5,
                                .scratch_bytes = 6,
                                .n_param = 7,
                                .n_param_active = 8},
                       .params = some_params(),
                       .n_eos = 2,
                       .eos = {4065, 4060}};
    return r;
}

/* One frame of every kind; two texts of each sort that has some. */
static void put_all(lg_buf *b) {
    lg_link_hello h = {.version = 1, .weights_hash = 2, .tokenizer_hash = 3, .model_name = "m"};
    lg_link_ready r = some_ready();
    lg_request req = {.ids = prompt,
                      .n_id = LG_COUNT(prompt),
                      .n_produced = 2,
                      .max_tokens = 77,
                      .params = some_params(),
                      .stop = stop,
                      .n_stop = LG_COUNT(stop),
                      .bias = bias,
                      .n_bias = LG_COUNT(bias),
                      .cache_salt = 0x1122334455667788,
                      .client = 0x99aabbccddeeff00,
                      .priority = -7,
                      .grammar = "{\"schema\": {}}",
                      .grammar_think = true};
    lg_event tok = token_event(), done = done_event();
    lg_stats s = {.n_step = 1,
                  .n_running = 2,
                  .n_waiting = 3,
                  .n_slot_free = 4,
                  .step_us = 5,
                  .n_page_cached = 6,
                  .n_snapshot = 7,
                  .n_prompt_tok = 8,
                  .n_hit_tok = 9,
                  .n_evicted = 10,
                  .n_preempt_kept = 12,
                  .n_preempt_dropped = 13,
                  .n_again_tok = 14,
                  .n_held = 15,
                  .n_aged = 27,
                  .n_cut_step = 16,
                  .n_mixed_step = 17,
                  .mixed_us = 18,
                  .mixed_expected_us = 19,
                  .mixed_error_us = 20,
                  .n_discarded = 11,
                  .n_file = 21,
                  .file_bytes = 22,
                  .n_file_tok = 23,
                  .n_file_written = 24,
                  .n_file_refused = 25,
                  .n_file_skipped = 26};
    lg_link_put_hello(b, &h);
    lg_link_put_progress(b, 10, 20);
    lg_link_put_ready(b, &r);
    assert_int_equal(lg_link_put_submit(b, 42, &req), LG_OK);
    lg_link_put_refused(b, 43, LG_AGAIN, "the queue is full");
    lg_link_put_cancel(b, 44);
    lg_link_put_event(b, 45, &tok);
    lg_link_put_event(b, 46, &done);
    lg_link_put_stats(b, &s);
    lg_link_put_goodbye(b, LG_E_IO, "no such file");
    assert_false(b->failed);
}

static void check_submit(const lg_link_msg *m) {
    const lg_request *q = &m->u.submit.req;
    assert_int_equal(m->id, 42);
    assert_int_equal(q->n_id, LG_COUNT(prompt));
    assert_memory_equal(q->ids, prompt, sizeof prompt);
    assert_int_equal((uintptr_t)q->ids % 4, 0);
    assert_int_equal(q->n_produced, 2);
    assert_int_equal(q->max_tokens, 77);
    assert_params(&q->params);
    assert_true(q->cache_salt == 0x1122334455667788);
    assert_true(q->client == 0x99aabbccddeeff00);
    assert_int_equal(q->priority, -7);
    assert_string_equal(q->grammar, "{\"schema\": {}}");
    assert_true(q->grammar_think);
    assert_int_equal(q->n_bias, LG_COUNT(bias));
    assert_memory_equal(q->bias, bias, sizeof bias);
    assert_int_equal(q->n_stop, LG_COUNT(stop));
    for (size_t i = 0; i < LG_COUNT(stop); i++) assert_string_equal(q->stop[i], stop[i]);
}

static void check_event(const lg_link_msg *m) {
    const lg_event *e = &m->u.event;
    lg_event want = m->kind == LG_LINK_TOKEN ? token_event() : done_event();
    assert_int_equal(m->id, m->kind == LG_LINK_TOKEN ? 45 : 46);
    assert_int_equal(e->kind, want.kind);
    assert_int_equal(e->token, want.token);
    assert_true(e->logprob == want.logprob);
    assert_int_equal(e->n_top, want.n_top);
    if (want.n_top) assert_memory_equal(e->top, top, sizeof top);
    assert_int_equal(e->len_bytes, want.len_bytes);
    assert_memory_equal(e->text, want.text, want.len_bytes);
    assert_int_equal(e->finish, want.finish);
    assert_int_equal(e->status, want.status);
    assert_int_equal(e->stop_index, want.stop_index);
    assert_int_equal(e->n_prompt, want.n_prompt);
    assert_int_equal(e->n_produced, want.n_produced);
    assert_int_equal(e->n_cached, want.n_cached);
    assert_int_equal(e->queue_us, want.queue_us);
    assert_int_equal(e->prefill_us, want.prefill_us);
    assert_int_equal(e->decode_us, want.decode_us);
}

static void check(const lg_link_msg *m) {
    lg_link_ready r = some_ready();
    switch (m->kind) {
    case LG_LINK_HELLO:
        assert_int_equal(m->u.hello.version, 1);
        assert_int_equal(m->u.hello.weights_hash, 2);
        assert_int_equal(m->u.hello.tokenizer_hash, 3);
        assert_string_equal(m->u.hello.model_name, "m");
        break;
    case LG_LINK_PROGRESS:
        assert_int_equal(m->u.progress.done_bytes, 10);
        assert_int_equal(m->u.progress.total_bytes, 20);
        break;
    case LG_LINK_READY:
        assert_info(&m->u.ready.info, &r.info);
        assert_params(&m->u.ready.params);
        assert_int_equal(m->u.ready.n_eos, 2);
        assert_memory_equal(m->u.ready.eos, r.eos, sizeof r.eos);
        break;
    case LG_LINK_SUBMIT: check_submit(m); break;
    case LG_LINK_TOKEN:
    case LG_LINK_DONE: check_event(m); break;
    case LG_LINK_CANCEL: assert_int_equal(m->id, 44); break;
    case LG_LINK_REFUSED:
        assert_int_equal(m->id, 43);
        assert_int_equal(m->u.why.status, LG_AGAIN);
        assert_string_equal(m->u.why.text, "the queue is full");
        break;
    case LG_LINK_GOODBYE:
        assert_int_equal(m->u.why.status, LG_E_IO);
        assert_string_equal(m->u.why.text, "no such file");
        break;
    case LG_LINK_STATS:
        assert_int_equal(m->u.stats.n_step, 1);
        assert_int_equal(m->u.stats.n_running, 2);
        assert_int_equal(m->u.stats.n_waiting, 3);
        assert_int_equal(m->u.stats.n_slot_free, 4);
        assert_int_equal(m->u.stats.step_us, 5);
        assert_int_equal(m->u.stats.n_page_cached, 6);
        assert_int_equal(m->u.stats.n_snapshot, 7);
        assert_int_equal(m->u.stats.n_prompt_tok, 8);
        assert_int_equal(m->u.stats.n_hit_tok, 9);
        assert_int_equal(m->u.stats.n_evicted, 10);
        assert_int_equal(m->u.stats.n_discarded, 11);
        assert_int_equal(m->u.stats.n_preempt_kept, 12);
        assert_int_equal(m->u.stats.n_preempt_dropped, 13);
        assert_int_equal(m->u.stats.n_again_tok, 14);
        assert_int_equal(m->u.stats.n_held, 15);
        assert_int_equal(m->u.stats.n_aged, 27);
        assert_int_equal(m->u.stats.n_cut_step, 16);
        assert_int_equal(m->u.stats.n_mixed_step, 17);
        assert_int_equal(m->u.stats.mixed_us, 18);
        assert_int_equal(m->u.stats.mixed_expected_us, 19);
        assert_int_equal(m->u.stats.mixed_error_us, 20);
        assert_int_equal(m->u.stats.n_file, 21);
        assert_int_equal(m->u.stats.file_bytes, 22);
        assert_int_equal(m->u.stats.n_file_tok, 23);
        assert_int_equal(m->u.stats.n_file_written, 24);
        assert_int_equal(m->u.stats.n_file_refused, 25);
        assert_int_equal(m->u.stats.n_file_skipped, 26);
        break;
    }
}

static void test_round_trip_whole_and_by_bytes(void **state) {
    (void)state;
    static const size_t step[] = {1, 2, 7, 8, 13, 100000};
    lg_buf b = {0};
    put_all(&b);
    for (size_t k = 0; k < LG_COUNT(step); k++) {
        lg_link_reader r = {0};
        lg_link_msg m;
        lg_err err;
        unsigned n = 0;
        for (size_t at = 0; at < b.len_bytes; at += step[k]) {
            size_t len = b.len_bytes - at < step[k] ? b.len_bytes - at : step[k];
            lg_status st;
            assert_int_equal(lg_link_feed(&r, b.data + at, len), LG_OK);
            while ((st = lg_link_next(&r, &m, &err)) == LG_OK) {
                assert_int_equal(m.kind, LG_LINK_HELLO + n);
                n++;
                check(&m);
            }
            assert_int_equal(st, LG_AGAIN);
        }
        assert_int_equal(n, LG_LINK_GOODBYE);
        lg_link_reader_fini(&r);
    }
    lg_buf_fini(&b);
}

/* Every frame cut at every length, its header made to match: never accepted with other content, never a crash. */
static void test_truncated_payloads_are_refused(void **state) {
    (void)state;
    lg_buf b = {0};
    put_all(&b);
    unsigned refused = 0;
    for (size_t at = 0; at < b.len_bytes;) {
        uint32_t len = lg_num_load32(b.data + at);
        for (uint32_t cut = 0; cut < len; cut++) {
            lg_link_reader r = {0};
            lg_link_msg m;
            lg_err err;
            assert_int_equal(lg_link_feed(&r, b.data + at, cut), LG_OK);
            assert_int_equal(lg_link_next(&r, &m, &err), LG_AGAIN);
            if (cut >= 8) {
                memcpy(r.in.data, &cut, 4);
                assert_int_equal(lg_link_next(&r, &m, &err), LG_E_FORMAT);
                refused++;
            }
            lg_link_reader_fini(&r);
        }
        at += len;
    }
    assert_true(refused > 500);
    lg_buf_fini(&b);
}

/* Decode everything a mutated stream gives and touch all that a message points to. */
static uint64_t drain(const char *data, size_t len) {
    lg_link_reader r = {0};
    lg_link_msg m;
    lg_err err;
    uint64_t sum = 0;
    assert_int_equal(lg_link_feed(&r, data, len), LG_OK);
    while (lg_link_next(&r, &m, &err) == LG_OK) {
        sum += m.id;
        if (m.kind == LG_LINK_SUBMIT) {
            const lg_request *q = &m.u.submit.req;
            for (uint32_t i = 0; i < q->n_id; i++) sum += q->ids[i];
            for (uint32_t i = 0; i < q->n_bias; i++) sum += q->bias[i].id;
            for (uint32_t i = 0; i < q->n_stop; i++) sum += strlen(q->stop[i]);
        } else if (m.kind == LG_LINK_TOKEN || m.kind == LG_LINK_DONE) {
            for (uint32_t i = 0; i < m.u.event.n_top; i++) sum += m.u.event.top[i].id;
            for (size_t i = 0; i < m.u.event.len_bytes; i++) sum += (uint8_t)m.u.event.text[i];
        } else if (m.kind == LG_LINK_REFUSED || m.kind == LG_LINK_GOODBYE) {
            sum += strlen(m.u.why.text);
        } else if (m.kind == LG_LINK_READY) {
            assert_true(m.u.ready.n_eos <= LG_LINK_MAX_EOS);
        }
    }
    lg_link_reader_fini(&r);
    return sum;
}

static void test_mutations_never_crash(void **state) {
    (void)state;
    lg_buf b = {0};
    put_all(&b);
    char *copy = lg_mem_alloc(b.len_bytes);
    uint64_t sum = 0;
    for (size_t i = 0; i < b.len_bytes; i++) {
        for (int bit = 0; bit < 8; bit++) {
            memcpy(copy, b.data, b.len_bytes);
            copy[i] = (char)(copy[i] ^ (1 << bit));
            sum += drain(copy, b.len_bytes);
        }
        memcpy(copy, b.data, b.len_bytes);
        copy[i] = (char)0xff;
        sum += drain(copy, b.len_bytes);
    }
    for (uint32_t k = 0; k < 20000; k++) {
        memcpy(copy, b.data, b.len_bytes);
        for (uint32_t j = 0; j < 1 + k % 6; j++) {
            uint64_t x = lg_num_rng(5, 0, k, j);
            copy[(x >> 8) % b.len_bytes] = (char)x;
        }
        sum += drain(copy, b.len_bytes);
    }
    assert_true(sum > 0);
    lg_mem_free(copy);
    lg_buf_fini(&b);
}

static void refuse(const void *data, size_t len) {
    lg_link_reader r = {0};
    lg_link_msg m;
    lg_err err = {0};
    assert_int_equal(lg_link_feed(&r, data, len), LG_OK);
    assert_int_equal(lg_link_next(&r, &m, &err), LG_E_FORMAT);
    assert_non_null(strstr(err.msg, "link: "));
    lg_link_reader_fini(&r);
}

static void test_headers_are_checked_before_waiting_for_more(void **state) {
    (void)state;
    const uint32_t long_frame[] = {LG_LINK_MAX_BYTES + 8, LG_LINK_CANCEL};
    const uint32_t short_frame[] = {0, LG_LINK_CANCEL};
    const uint32_t odd[] = {17, LG_LINK_CANCEL};
    const uint32_t kind0[] = {16, 0}, kind99[] = {16, 99};
    refuse(long_frame, sizeof long_frame);
    refuse(short_frame, sizeof short_frame);
    refuse(odd, sizeof odd);
    refuse(kind0, sizeof kind0);
    refuse(kind99, sizeof kind99);
}

static void test_submit_limits(void **state) {
    (void)state;
    lg_buf b = {0};
    const char *many[LG_LINK_MAX_STOP + 1];
    for (size_t i = 0; i < LG_COUNT(many); i++) many[i] = "x";
    lg_request req = {.ids = prompt, .n_id = 1};
    assert_int_equal(lg_link_put_submit(&b, 1, &req), LG_OK);
    size_t len = b.len_bytes;
    req.n_produced = 2;
    assert_int_equal(lg_link_put_submit(&b, 1, &req), LG_E_ARG);
    req = (lg_request){.ids = prompt, .n_id = 0};
    assert_int_equal(lg_link_put_submit(&b, 1, &req), LG_E_ARG);
    req = (lg_request){.ids = prompt, .n_id = 1, .stop = many, .n_stop = LG_COUNT(many)};
    assert_int_equal(lg_link_put_submit(&b, 1, &req), LG_E_ARG);
    req = (lg_request){.ids = prompt, .n_id = LG_LINK_MAX_BYTES / 4};
    assert_int_equal(lg_link_put_submit(&b, 1, &req), LG_E_ARG);
    assert_int_equal(b.len_bytes, len);
    lg_buf_fini(&b);
}

static void write_file(const char *dir, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_identity_follows_the_files(void **state) {
    (void)state;
    char dir[] = "/tmp/lignum-link-XXXXXX", path[600];
    assert_non_null(mkdtemp(dir));
    lg_err err = {0};
    uint64_t a, b;
    assert_int_equal(lg_link_weights_hash(dir, &a, &err), LG_E_IO);
    assert_non_null(strstr(err.msg, "config.json"));
    write_file(dir, "config.json", "{}");
    write_file(dir, "model.safetensors", "12345678");
    write_file(dir, "tokenizer.json", "a");
    assert_int_equal(lg_link_weights_hash(dir, &a, &err), LG_OK);
    assert_int_equal(lg_link_weights_hash(dir, &b, &err), LG_OK);
    assert_int_equal(a, b);
    write_file(dir, "model.safetensors", "123456789");
    assert_int_equal(lg_link_weights_hash(dir, &b, &err), LG_OK);
    assert_int_not_equal(a, b);
    /* FNV-1a of "a", from its authors' test vectors. */
    assert_int_equal(lg_link_tokenizer_hash(dir, &a, &err), LG_OK);
    assert_true(a == 0xaf63dc4c8601ec8cu);
    static const char *const names[] = {"config.json", "model.safetensors", "tokenizer.json"};
    for (size_t i = 0; i < LG_COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip_whole_and_by_bytes),
        cmocka_unit_test(test_truncated_payloads_are_refused),
        cmocka_unit_test(test_mutations_never_crash),
        cmocka_unit_test(test_headers_are_checked_before_waiting_for_more),
        cmocka_unit_test(test_submit_limits),
        cmocka_unit_test(test_identity_follows_the_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
