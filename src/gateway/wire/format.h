/* format.h - answers of a given form: JSON, JSON of a schema, or a call of a tool that must be made.
 *
 * Fields say what is wanted; lg_format_finish makes the grammar of it, which the engine obeys.
 * Thread: gateway.  Test: tests/unit/test_openai.c, tests/e2e/test_formats.py */
#ifndef LG_GATEWAY_WIRE_FORMAT_H
#define LG_GATEWAY_WIRE_FORMAT_H

#include "gateway/wire/request.h"

/* An answer in JSON.  schema: NULL = any object.  `param` is blamed when it cannot be done. */
void lg_format_json(lg_parse *p, const char *param, const lg_json *schema);

/* Read {"type": "text" | "json_object" | "json_schema", ...} of a schema format; `inside`: the member with name and schema, NULL:
 * they stand beside the type. */
bool lg_format_take(lg_parse *p, const char *param, const lg_json *v, const char *inside);

/* A call must be made; name: of this tool, or NULL.  A name that is no string is refused. */
bool lg_format_force(lg_parse *p, const char *param, bool named, const lg_json *name);

/* With the request's tools known: write r->grammar.  400 with what the schema asks and cannot be had. */
bool lg_format_finish(lg_parse *p);

#endif
