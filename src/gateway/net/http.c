/* http.c - HTTP/1.1 request reader: see http.h.
 *
 * One state for each part of a request; head and trailer lines are checked as soon as they are complete.
 * Thread: gateway.  Memory: head and body buffers, bounded.  Test: tests/unit/test_http.c, fuzz/fuzz_http.c */
#include "gateway/net/http.h"

#include <string.h>
#include <strings.h>

static lg_status refuse(lg_http *h, int status, const char *reason) {
    h->status = status;
    h->reason = reason;
    return LG_E_FORMAT;
}

static bool is_token_char(unsigned char c) {
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
    return c && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}

/* Length of the token at s. */
static size_t token_len(const char *s) {
    size_t n = 0;
    while (is_token_char((unsigned char)s[n])) n++;
    return n;
}

/* "METHOD /path?query HTTP/1.x", NUL-terminated, split in place. */
static lg_status request_line(lg_http *h, char *line) {
    size_t n = token_len(line);
    if (n == 0 || n > 32 || line[n] != ' ') return refuse(h, 400, "malformed request line");
    char *path = line + n + 1, *space = strchr(path, ' ');
    if (!space) return refuse(h, 400, "malformed request line");
    for (const char *p = path; p < space; p++)
        if ((unsigned char)*p <= ' ' || *p == 0x7f)
            return refuse(h, 400, "control character in the request line");
    if (*path != '/') return refuse(h, 400, "the request target must start with '/'");
    const char *version = space + 1;
    if (strncmp(version, "HTTP/", 5) != 0) return refuse(h, 400, "malformed request line");
    if (strcmp(version, "HTTP/1.0") == 0)
        h->http10 = true;
    else if (strcmp(version, "HTTP/1.1") != 0)
        return refuse(h, 505, "only HTTP/1.1 and HTTP/1.0 are spoken");
    line[n] = 0;
    *space = 0;
    path[strcspn(path, "?#")] = 0;
    h->has_line = true;
    h->method_at = (size_t)(line - h->head.data);
    h->path_at = (size_t)(path - h->head.data);
    h->keep_alive = !h->http10;
    return LG_OK;
}

static uint64_t max_body(const lg_http *h) {
    return h->max_body && h->max_body < LG_HTTP_MAX_BODY ? h->max_body : LG_HTTP_MAX_BODY;
}

static lg_status content_length(lg_http *h, const char *value) {
    uint64_t v = 0;
    if (h->has_length) return refuse(h, 400, "more than one Content-Length");
    if (!*value) return refuse(h, 400, "malformed Content-Length");
    for (const char *p = value; *p; p++) {
        if (*p < '0' || *p > '9') return refuse(h, 400, "malformed Content-Length");
        if (v < UINT64_MAX / 16) v = v * 10 + (uint64_t)(*p - '0');
    }
    h->has_length = true;
    h->left = v;
    return v > max_body(h) ? refuse(h, 413, "the body is longer than this server takes")
                           : LG_OK;
}

/* Whether a comma-separated list holds this word. */
static bool list_has(const char *list, const char *word) {
    size_t len = strlen(word);
    while (*list) {
        list += strspn(list, " \t,");
        size_t n = strcspn(list, ",");
        size_t end = n;
        while (end > 0 && (list[end - 1] == ' ' || list[end - 1] == '\t')) end--;
        if (end == len && strncasecmp(list, word, len) == 0) return true;
        list += n;
    }
    return false;
}

/* Headers whose value is kept by its place in the head. */
static lg_status noted_header(lg_http *h, const char *name, const char *value) {
    const struct {
        const char *name, *twice;
        size_t *at;
    } row[] = {
        {"host", "more than one Host", &h->host_at},
        {"authorization", "more than one Authorization", &h->authorization_at},
        {"x-api-key", "more than one X-Api-Key", &h->api_key_at},
        {"origin", "more than one Origin", &h->origin_at},
        {"access-control-request-headers", "more than one Access-Control-Request-Headers",
         &h->cors_headers_at},
    };
    for (size_t i = 0; i < LG_COUNT(row); i++) {
        if (strcasecmp(name, row[i].name) != 0) continue;
        if (*row[i].at) return refuse(h, 400, row[i].twice);
        *row[i].at = (size_t)(value - h->head.data);
    }
    return LG_OK;
}

static lg_status known_header(lg_http *h, const char *name, const char *value) {
    if (strcasecmp(name, "content-length") == 0) return content_length(h, value);
    if (strcasecmp(name, "transfer-encoding") == 0) {
        if (h->chunked) return refuse(h, 400, "more than one Transfer-Encoding");
        if (h->http10) return refuse(h, 400, "Transfer-Encoding in an HTTP/1.0 request");
        if (strcasecmp(value, "chunked") != 0)
            return refuse(h, 501, "only the transfer encoding \"chunked\" is understood");
        h->chunked = true;
    } else if (strcasecmp(name, "connection") == 0) {
        if (list_has(value, "close"))
            h->keep_alive = false;
        else if (h->http10 && list_has(value, "keep-alive"))
            h->keep_alive = true;
    } else if (strcasecmp(name, "expect") == 0) {
        if (strcasecmp(value, "100-continue") != 0) return refuse(h, 417, "unknown Expect");
        h->expect_continue = true;
    }
    return noted_header(h, name, value);
}

static lg_status header_line(lg_http *h, char *line, bool trailer) {
    size_t n = token_len(line);
    if (++h->n_header > LG_HTTP_MAX_HEADER) return refuse(h, 431, "more than 100 headers");
    if (n == 0 || line[n] != ':') return refuse(h, 400, "malformed header line");
    line[n] = 0;
    char *value = line + n + 1;
    value += strspn(value, " \t");
    size_t len = strlen(value);
    while (len > 0 && (value[len - 1] == ' ' || value[len - 1] == '\t')) value[--len] = 0;
    for (const char *p = value; *p; p++)
        if (((unsigned char)*p < ' ' && *p != '\t') || *p == 0x7f)
            return refuse(h, 400, "control character in a header");
    return trailer ? LG_OK : known_header(h, line, value);
}

static lg_status head_end(lg_http *h) {
    if (!h->has_line) return refuse(h, 400, "no request line");
    if (!h->host_at && !h->http10) return refuse(h, 400, "no Host header");
    if (h->chunked && h->has_length)
        return refuse(h, 400, "Content-Length together with Transfer-Encoding");
    if (h->chunked)
        h->state = LG_HTTP_CHUNK_SIZE;
    else
        h->state = h->left ? LG_HTTP_BODY : LG_HTTP_DONE;
    h->n_header = 0;
    return LG_OK;
}

/* Hexadecimal size, then nothing or an extension, which is ignored. */
static lg_status chunk_size(lg_http *h, const char *line) {
    uint64_t v = 0;
    size_t n = strspn(line, "0123456789abcdefABCDEF");
    if (n == 0 || n > 8 || (line[n] && line[n] != ';' && line[n] != ' '))
        return refuse(h, 400, "malformed chunk size");
    for (size_t i = 0; i < n; i++) {
        unsigned d = (unsigned char)line[i];
        v = v * 16 + (d <= '9' ? d - '0' : (d | 0x20u) - 'a' + 10);
    }
    if (v + h->body.len_bytes > max_body(h))
        return refuse(h, 413, "the body is longer than this server takes");
    h->left = v;
    h->state = v ? LG_HTTP_CHUNK : LG_HTTP_TRAILER;
    return LG_OK;
}

/* A complete line in h->head from h->line on, without its CRLF. */
static lg_status on_line(lg_http *h, char *line) {
    switch (h->state) {
    case LG_HTTP_HEAD:
        if (!*line && !h->has_line) { /* empty lines before a request are allowed */
            lg_buf_clear(&h->head);
            h->line = 0;
            return ++h->n_header > 8 ? refuse(h, 400, "no request line") : LG_OK;
        }
        if (!*line) return head_end(h);
        return h->has_line ? header_line(h, line, false) : request_line(h, line);
    case LG_HTTP_CHUNK_SIZE: return chunk_size(h, line);
    case LG_HTTP_CHUNK_END:
        h->state = LG_HTTP_CHUNK_SIZE;
        return *line ? refuse(h, 400, "a chunk is longer than its size") : LG_OK;
    default: /* LG_HTTP_TRAILER */
        if (*line) return header_line(h, line, true);
        h->state = LG_HTTP_DONE;
        return LG_OK;
    }
}

/* Append bytes up to the next line end to the line buffer; the buffer keeps the head, and one line of the rest. */
static lg_status feed_line(lg_http *h, const char *data, size_t len, size_t *used) {
    const char *nl = memchr(data, '\n', len);
    size_t n = nl ? (size_t)(nl - data) + 1 : len;
    bool in_head = h->state == LG_HTTP_HEAD;
    size_t limit = LG_HTTP_MAX_HEAD + (in_head ? 0 : h->line);
    if (h->head.len_bytes + n > limit) {
        *used = n;
        return refuse(h, 431, "the request's head is longer than 32 KiB");
    }
    lg_buf_put(&h->head, data, n);
    *used = n;
    if (h->head.failed) return LG_E_NOMEM;
    if (!nl) return LG_AGAIN;
    char *line = h->head.data + h->line;
    size_t end = h->head.len_bytes;
    if (end - h->line < 2 || h->head.data[end - 2] != '\r')
        return refuse(h, 400, "a line does not end with CRLF");
    h->head.data[end - 2] = 0;
    if (memchr(line, 0, end - 2 - h->line)) return refuse(h, 400, "a NUL in the head");
    if (memchr(line, '\r', end - 2 - h->line)) return refuse(h, 400, "a CR inside a line");
    bool was_head = h->state == LG_HTTP_HEAD;
    h->line = end;
    LG_TRY(on_line(h, line));
    if (!was_head) { /* chunk lines reuse the room after the head */
        h->head.len_bytes = (size_t)(line - h->head.data);
        h->line = h->head.len_bytes;
    }
    return LG_OK;
}

static lg_status feed_body(lg_http *h, const char *data, size_t len, size_t *used) {
    size_t n = h->left < len ? (size_t)h->left : len;
    lg_buf_put(&h->body, data, n);
    *used = n;
    if (h->body.failed) return LG_E_NOMEM;
    h->left -= n;
    if (h->left == 0) h->state = h->chunked ? LG_HTTP_CHUNK_END : LG_HTTP_DONE;
    return LG_OK;
}

lg_status lg_http_feed(lg_http *h, const char *data, size_t len_bytes, size_t *used) {
    *used = 0;
    while (h->state != LG_HTTP_DONE && *used < len_bytes) {
        size_t n = 0;
        bool body = h->state == LG_HTTP_BODY || h->state == LG_HTTP_CHUNK;
        lg_status st = body ? feed_body(h, data + *used, len_bytes - *used, &n)
                            : feed_line(h, data + *used, len_bytes - *used, &n);
        *used += n;
        if (st != LG_OK) return st;
    }
    return h->state == LG_HTTP_DONE ? LG_OK : LG_AGAIN;
}

void lg_http_reset(lg_http *h) {
    lg_buf head = h->head;
    lg_buf_fini(&h->body);
    lg_buf_clear(&head);
    *h = (lg_http){.head = head, .max_body = h->max_body};
}

void lg_http_fini(lg_http *h) {
    lg_buf_fini(&h->head);
    lg_buf_fini(&h->body);
    *h = (lg_http){0};
}

const char *lg_http_status_text(int status) {
    switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 417: return "Expectation Failed";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    default: return "Unknown";
    }
}
