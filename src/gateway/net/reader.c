/* reader.c - bodies into requests on a thread of its own: see reader.h.
 *
 * In:  bodies, in a list.   Out: requests or errors, in another; a byte in an eventfd wakes the loop.
 * Thread: lg_reader_* gateway's; run() its own.  Memory: the bodies, which the server counts; the model's copy.
 * Test: tests/e2e/test_http.py */
#include "gateway/net/reader.h"

#include "base/mem.h"

#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct list {
    lg_read *first, **end;
} list;

struct lg_reader {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    list todo, finished; /* under lock, and so is: */
    bool over;
    int wake; /* eventfd */
    struct event *on_wake;
    lg_request_model model; /* tenant: of the body at hand */
    void (*done)(void *ctx, lg_read *read);
    void *ctx;
};

static void push(list *l, lg_read *read) {
    read->next = NULL;
    *l->end = read;
    l->end = &read->next;
}

static lg_read *pop(list *l) {
    lg_read *read = l->first;
    if (!read) return NULL;
    l->first = read->next;
    if (!l->first) l->end = &l->first;
    return read;
}

void lg_read_free(lg_read *read) {
    if (!read) return;
    lg_buf_fini(&read->body);
    lg_buf_fini(&read->text);
    lg_request_close(&read->req);
    lg_mem_free(read);
}

static void do_read(lg_reader *r, lg_read *read) {
    const char *body = lg_buf_str(&read->body);
    size_t len = read->body.len_bytes;
    r->model.tenant = read->tenant;
    read->ok = read->answer ? read->answer(&r->model, body, len, &read->text, &read->err)
                            : read->wire->open(&r->model, body, len, &read->req, &read->err);
    lg_buf_fini(&read->body);
}

static void *run(void *ctx) {
    lg_reader *r = ctx;
    pthread_mutex_lock(&r->lock);
    while (!r->over) {
        lg_read *read = pop(&r->todo);
        if (!read) {
            pthread_cond_wait(&r->more, &r->lock);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        do_read(r, read);
        pthread_mutex_lock(&r->lock);
        push(&r->finished, read);
        uint64_t one = 1;
        while (write(r->wake, &one, sizeof one) < 0 && errno == EINTR) continue;
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void on_wake(evutil_socket_t fd, short what, void *ctx) {
    (void)what;
    lg_reader *r = ctx;
    uint64_t n;
    while (read(fd, &n, sizeof n) < 0 && errno == EINTR) continue;
    for (;;) {
        pthread_mutex_lock(&r->lock);
        lg_read *read = pop(&r->finished);
        pthread_mutex_unlock(&r->lock);
        if (!read) return;
        r->done(r->ctx, read);
    }
}

/* Signals are the gateway's thread's. */
static bool start(lg_reader *r) {
    sigset_t all, was;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    bool ok = pthread_create(&r->thread, NULL, run, r) == 0;
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    return ok;
}

lg_status lg_reader_open(struct event_base *base, const lg_request_model *model,
                         void (*done)(void *ctx, lg_read *read), void *ctx, lg_reader **out,
                         lg_err *err) {
    lg_reader *r = lg_mem_alloc(sizeof *r);
    if (!r) return LG_FAIL(err, LG_E_NOMEM, "no memory for the reader of bodies");
    r->todo.end = &r->todo.first;
    r->finished.end = &r->finished.first;
    r->model = *model;
    r->done = done;
    r->ctx = ctx;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->more, NULL);
    r->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (r->wake >= 0) r->on_wake = event_new(base, r->wake, EV_READ | EV_PERSIST, on_wake, r);
    if (r->on_wake && event_add(r->on_wake, NULL) == 0 && start(r)) {
        *out = r;
        return LG_OK;
    }
    if (r->on_wake) event_free(r->on_wake);
    if (r->wake >= 0) close(r->wake);
    lg_mem_free(r);
    return LG_FAIL(err, LG_E_IO, "the thread that reads bodies cannot be started: %s",
                   strerror(errno));
}

void lg_reader_close(lg_reader **out) {
    lg_reader *r = *out;
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->over = true;
    pthread_cond_signal(&r->more);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    for (lg_read *read; (read = pop(&r->todo)) || (read = pop(&r->finished));)
        lg_read_free(read);
    event_free(r->on_wake);
    close(r->wake);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->more);
    LG_FREE(*out);
}

void lg_reader_put(lg_reader *r, lg_read *read) {
    pthread_mutex_lock(&r->lock);
    push(&r->todo, read);
    pthread_cond_signal(&r->more);
    pthread_mutex_unlock(&r->lock);
}
