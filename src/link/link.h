/* link.h - the map of src/link: how a gateway and a worker talk.
 *
 *   frame        bytes <-> messages, no I/O          link_server   the worker's loop around an engine
 *   link_client  the gateway's end: process, socket, output buffer
 *
 * A frame is a header of 8 bytes (u32 length of the whole frame, u8 kind, three zero bytes) and a payload of fixed-layout
 * little-endian fields, padded with zeros to a multiple of 8: arrays inside a frame are aligned and can be used in place.
 * A frame never exceeds LG_LINK_MAX_BYTES.  Everything is checked before use: lengths, counts, enumerations, the padding.
 *
 *   worker  -> HELLO, PROGRESS ..., READY, then TOKEN / DONE / REFUSED / STATS, GOODBYE when it cannot go on
 *   gateway -> SUBMIT, CANCEL, GOODBYE (end of the connection means the same)
 *
 * Thread: each end one.  Test: tests/unit/test_link.c, fuzz/fuzz_link.c */
#ifndef LG_LINK_LINK_H
#define LG_LINK_LINK_H

#include "base/buf.h"
#include "base/diag.h"

#define LG_LINK_VERSION   6u
#define LG_LINK_MAX_BYTES (32u << 20) /* one frame */
#define LG_LINK_MAX_STOP  16u
#define LG_LINK_MAX_BIAS  1024u
#define LG_LINK_MAX_EOS   8u

typedef enum {
    LG_LINK_HELLO = 1,
    LG_LINK_PROGRESS,
    LG_LINK_READY,
    LG_LINK_SUBMIT,
    LG_LINK_REFUSED,
    LG_LINK_CANCEL,
    LG_LINK_TOKEN,
    LG_LINK_DONE,
    LG_LINK_STATS,
    LG_LINK_GOODBYE
} lg_link_kind;

/* First frame of a worker. */
typedef struct lg_link_hello {
    uint32_t version;        /* LG_LINK_VERSION */
    uint64_t weights_hash;   /* lg_link_weights_hash of the model folder */
    uint64_t tokenizer_hash; /* lg_link_tokenizer_hash */
    char model_name[128];
} lg_link_hello;

/* The model is loaded. */
typedef struct lg_link_ready {
    lg_info info;
    lg_params params; /* the model's defaults */
    uint32_t n_eos, eos[LG_LINK_MAX_EOS];
} lg_link_ready;

/* One received message.  Pointers lead into the reader's buffer. */
typedef struct lg_link_msg {
    lg_link_kind kind;
    uint64_t id; /* SUBMIT, REFUSED, CANCEL, TOKEN, DONE: the gateway's number of the request */
    union {
        lg_link_hello hello;
        struct {
            uint64_t done_bytes, total_bytes;
        } progress;
        lg_link_ready ready;
        struct {
            lg_request req; /* stop points to the next field; user is NULL */
            const char *stop[LG_LINK_MAX_STOP];
        } submit;
        lg_event event; /* TOKEN, DONE; id and user are not set */
        lg_stats stats;
        struct { /* REFUSED, GOODBYE */
            lg_status status;
            const char *text; /* NUL-terminated */
        } why;
    } u;
} lg_link_msg;

/* ---- Encoding: append one frame to `out` (check out->failed once at the end) ---- */
void lg_link_put_hello(lg_buf *out, const lg_link_hello *hello);
void lg_link_put_progress(lg_buf *out, uint64_t done_bytes, uint64_t total_bytes);
void lg_link_put_ready(lg_buf *out, const lg_link_ready *ready);
void lg_link_put_cancel(lg_buf *out, uint64_t id);
void lg_link_put_event(lg_buf *out, uint64_t id, const lg_event *event); /* TOKEN or DONE */
void lg_link_put_stats(lg_buf *out, const lg_stats *stats);
void lg_link_put_refused(lg_buf *out, uint64_t id, lg_status status, const char *text);
void lg_link_put_goodbye(lg_buf *out, lg_status status, const char *text);

/* LG_OK; LG_E_ARG when the request breaks a limit of the protocol (counts, or the frame would be too long): nothing is
 * appended then. */
lg_status lg_link_put_submit(lg_buf *out, uint64_t id, const lg_request *req);

/* ---- Decoding ---- */

/* Bytes received, cut into messages.  Caller's storage: = {0}, then lg_link_reader_fini. */
typedef struct lg_link_reader {
    lg_buf in;
    size_t at; /* start of the next frame; a multiple of 8 */
} lg_link_reader;

void lg_link_reader_fini(lg_link_reader *r);

/* Append received bytes.  Messages handed out before become invalid.  LG_OK or LG_E_NOMEM. */
lg_status lg_link_feed(lg_link_reader *r, const void *data, size_t len_bytes);

/* The next message.  LG_OK with *msg filled (valid until the next lg_link_feed); LG_AGAIN when more bytes are needed;
 * LG_E_FORMAT with *err: the peer broke the protocol, give the connection up. */
lg_status lg_link_next(lg_link_reader *r, lg_link_msg *msg, lg_err *err);

/* ---- Cheap identities, so that both ends know that they mean the same files ---- */

/* Names, sizes, modification times and inodes of the *.safetensors files, and the bytes of config.json; or of the parts of a
 * GGUF file.  LG_E_IO, and for GGUF what lg_gguf_open returns. */
lg_status lg_link_weights_hash(const char *model_path, uint64_t *hash, lg_err *err);

/* Bytes of tokenizer.json, or of a GGUF file's tokens and merges.  As above. */
lg_status lg_link_tokenizer_hash(const char *model_path, uint64_t *hash, lg_err *err);

/* ---- The worker ---- */

/* Open an engine and serve it on the connected socket `fd` until the other end goes away.  Sleeps in poll() while there is
 * nothing to do; stops stepping while the other end does not read.  `opt->progress` is replaced by PROGRESS frames.
 * Returns LG_OK when the gateway left; LG_E_FORMAT when it broke the protocol; the error of lg_open (also sent as
 * GOODBYE); LG_E_BACKEND when the device is lost. */
lg_status lg_link_serve(int fd, const lg_options *opt, lg_err *err);

/* The worker's end of "@SOCKET".  The descriptor, or -1 with *err: LG_E_IO. */
int lg_link_connect(const char *path, lg_err *err);

/* ---- The gateway's end (link_client.c) ---- */

/* A worker process and the socket to it.  Caller's storage: = {.fd = -1, .listen_fd = -1}, lg_link_client_fini. */
typedef struct lg_link_client {
    int fd;        /* non-blocking; -1 = none */
    int pid;       /* the process started: the worker, or the launcher of a group; 0 = none */
    int listen_fd; /* where the worker of a launcher will connect; -1 = none, or it has */
    char dir
        [64]; /* private folder of a launcher: its socket "link" and what MPI keeps; "" = none.
               * lignum-PID-XXXXXX, so that a later gateway can tell that of one that was killed and remove it */
    int dir_fd; /* open on it, with a lock */
    lg_buf out; /* frames not written yet */
    lg_link_reader reader;
} lg_link_client;

/* Start argv[0] (looked for in PATH) with argv, NULL-terminated.
 * The text "@FD" is replaced by the number of the worker's socket, one end of a socket pair.
 * With "@SOCKET" the process is a launcher that closes what it inherits: "@SOCKET" is replaced by the path of a socket in a
 * private folder, "@DIR" by the folder; the worker connects there, and fd is -1 until lg_link_client_accept says LG_OK.
 * LG_OK or LG_E_IO. */
lg_status lg_link_client_spawn(lg_link_client *c, char *const *argv, lg_err *err);

/* Whether the launcher's worker has connected: LG_OK, fd is there; LG_AGAIN; LG_E_COMM, the launcher has ended.  Processes
 * of other users are not let in. */
lg_status lg_link_client_accept(lg_link_client *c);

/* Read what is there, at most 256 KiB.  LG_OK when something came, LG_AGAIN when nothing did, LG_E_COMM when the worker has
 * closed the connection, LG_E_NOMEM. */
lg_status lg_link_client_read(lg_link_client *c);

/* Write what the socket takes.  LG_OK when all is written, LG_AGAIN when some is left, LG_E_COMM. */
lg_status lg_link_client_write(lg_link_client *c);

/* Close the connection and wait for the process: at most grace_us, then SIGKILL.  *wait_status is its waitpid status. */
void lg_link_client_stop(lg_link_client *c, uint64_t grace_us, int *wait_status);

void lg_link_client_fini(lg_link_client *c);

#endif
