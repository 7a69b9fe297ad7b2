/* What the tools of a request say of calls: their names, and how the text of a parameter is read where a family
 * writes values without quotes: by the parameter's schema.
 * Pure functions: any thread. */
#ifndef QN_TEXT_TOOLS_TOOL_TYPES_H
#define QN_TEXT_TOOLS_TOOL_TYPES_H

#include <jansson.h>
#include <stddef.h>

typedef enum {
    QN_READS_GUESS,       /* JSON or a literal of Python's where it is one, else a string */
    QN_READS_TEXT,        /* a string */
    QN_READS_TEXT_OR_NULL /* null, else a string */
} qn_call_reading;

/* Is one of the tools of a request called so? */
int qn_call_is_tool(const json_t *tools, const char *name, size_t n);

/* parameters: a tool's schema, or NULL. */
qn_call_reading qn_call_reads(const json_t *parameters, const char *key, size_t n);

#endif
