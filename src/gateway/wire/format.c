/* format.c - answers of a given form: see format.h.
 *
 * In:  what the fields ask for.   Out: the source of a grammar in the request (src/model/grammar/grammar.h).
 * Thread: gateway.  Memory: the request's.  Test: tests/unit/test_openai.c, tests/e2e/test_formats.py */
#include "gateway/wire/format.h"

#include "model/grammar/grammar.h"

#include <string.h>

void lg_format_json(lg_parse *p, const char *param, const lg_json *schema) {
    p->json = true;
    p->schema = schema;
    lg_request_name(p->form_param, "%s", param);
}

bool lg_format_take(lg_parse *p, const char *param, const lg_json *v, const char *inside) {
    static const char *const known[] = {"type", "name", "description", "schema", "strict"};
    char where[LG_REQUEST_PARAM];
    const lg_json *type = lg_json_get(v, "type"), *in = v;
    bool schema = lg_json_is(type, "json_schema");
    if (v->kind != LG_JSON_OBJECT) return lg_request_bad(p, param, v, "an object");
    lg_request_name(where, "%.40s.type", param);
    if (!schema && !lg_json_is(type, "json_object") && !lg_json_is(type, "text"))
        return lg_request_refuse(p->e, where, "invalid_value",
                                 "%s: expected \"text\", \"json_object\" or \"json_schema\"",
                                 where);
    lg_request_name(where, "%s", param);
    if (schema && inside) {
        for (const lg_json *m = v->child; m; m = m->next)
            if (!lg_request_key_is(m, "type") && !lg_request_key_is(m, inside) &&
                !lg_request_unknown(p, param, m))
                return false;
        lg_request_name(where, "%.30s.%s", param, inside);
        in = lg_json_get(v, inside);
        if (!in || in->kind != LG_JSON_OBJECT)
            return lg_request_refuse(p->e, where, "invalid_value", "%s: expected an object",
                                     where);
    }
    for (const lg_json *m = in->child; m; m = m->next)
        if (!lg_request_key_among(m, known, schema ? LG_COUNT(known) : 1) &&
            !lg_request_unknown(p, where, m))
            return false;
    if (!schema) {
        if (lg_json_is(type, "json_object")) lg_format_json(p, param, NULL);
        return true;
    }
    const lg_json *s = lg_json_get(in, "schema");
    char full[LG_REQUEST_PARAM];
    lg_request_name(full, "%.50s.schema", where);
    if (!s || s->kind != LG_JSON_OBJECT)
        return lg_request_refuse(p->e, full, "invalid_value", "%s: expected a JSON schema",
                                 full);
    lg_format_json(p, full, s);
    return true;
}

bool lg_format_force(lg_parse *p, const char *param, bool named, const lg_json *name) {
    lg_request_name(p->force_param, "%s", param);
    if (named && (!name || name->kind != LG_JSON_STRING))
        return lg_request_refuse(p->e, param, "invalid_value",
                                 "%s: expected the name of a tool", param);
    p->force = true;
    p->force_name = named ? name : NULL;
    return true;
}

/* The tools that may be called. */
static bool put_tools(lg_parse *p) {
    lg_request_parsed *r = p->req;
    bool first = true;
    lg_buf_puts(&r->grammar, "{\"tools\":[");
    for (const lg_json *t = r->tools ? r->tools->child : NULL; t; t = t->next) {
        const lg_json *f = lg_json_get(t, "function");
        const lg_json *name = lg_json_get(f ? f : t, "name");
        if (p->force_name && !(name && lg_json_is(name, p->force_name->text))) continue;
        lg_buf_puts(&r->grammar, first ? "" : ",");
        lg_json_put(&r->grammar, t, LG_JSON_COMPACT);
        first = false;
    }
    lg_buf_printf(&r->grammar, "],\"many\":%s}",
                  p->force_name || r->one_call ? "false" : "true");
    if (!first) return true;
    return lg_request_refuse(p->e, p->force_param, "invalid_value",
                             "%s: a call is asked for, and there is no such tool",
                             p->force_param);
}

bool lg_format_finish(lg_parse *p) {
    lg_request_parsed *r = p->req;
    lg_grammar *g;
    lg_err err = {0};
    const char *param = p->force ? p->force_param : p->form_param;
    if (!p->json && !p->force) return true;
    if (p->json && (r->tools || p->force))
        return lg_request_refuse(
            p->e, param, "unsupported_value",
            "%s: JSON answers and tools at the same time are not supported; "
            "leave the tools out or set tool_choice to none",
            param);
    if (r->params.ignore_eos)
        return lg_request_refuse(p->e, "ignore_eos", "invalid_value",
                                 "ignore_eos: an answer of a given form has an end");
    if (p->force && !put_tools(p)) return false;
    if (p->json) {
        lg_buf_puts(&r->grammar, "{\"schema\":");
        if (p->schema)
            lg_json_put(&r->grammar, p->schema, LG_JSON_COMPACT);
        else
            lg_buf_puts(&r->grammar, "{\"type\":\"object\"}");
        lg_buf_puts(&r->grammar, "}");
    }
    if (r->grammar.failed) return lg_request_no_memory(p->e);
    lg_status st = lg_grammar_open(r->grammar.data, r->grammar.len_bytes, &g, &err);
    lg_grammar_close(&g);
    if (st == LG_OK) return true;
    if (st == LG_E_NOMEM) return lg_request_no_memory(p->e);
    return lg_request_refuse(p->e, param, "unsupported_value", "%s: %s", param, err.msg);
}
