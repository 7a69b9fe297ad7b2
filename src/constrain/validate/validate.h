/* A plain JSON schema validator: is a value valid, and if not, where and why.
 *
 * It shares no code with the compiler of constraints but the automata of patterns and formats, so it is a check of
 * what a constraint let through. Drafts 4, 6, 7, 2019-09 and 2020-12 are told apart by $schema. Without one,
 * 2020-12 holds, with `definitions`, `dependencies`, and with `items` as an array and `additionalItems` as in
 * draft 7. References stay inside of the document: nothing is fetched. Formats of the drafts are asserted; other
 * names, and keywords that the draft does not know, are annotations (qn_schema_notes). What is not understood is
 * refused when the schema is opened. Numbers are exact. An open schema is not changed: any thread may validate
 * with it. */
#ifndef QN_CONSTRAIN_VALIDATE_VALIDATE_H
#define QN_CONSTRAIN_VALIDATE_VALIDATE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct qn_schema qn_schema;

/* Zero means the default. */
typedef struct {
    size_t source_bytes_max;   /* 1 MiB */
    int32_t depth_max;         /* schemas applied inside one another: 1,000 */
    int64_t steps_max;         /* keywords applied and values compared: 20 million a call */
    int64_t pattern_steps_max; /* work to compile one pattern or format: 20 million */
} qn_schema_limits;

/* One keyword that a value does not satisfy. Owned by the report. */
typedef struct {
    char *instance; /* JSON pointer into the value */
    char *schema;   /* JSON pointer of the keyword in the schema's document */
    char *keyword;
    char *message; /* a sentence without the places */
} qn_schema_failure;

/* Set failures_max (0: 1), zero the rest. */
typedef struct {
    size_t failures_max;
    int is_valid;
    int is_cut; /* there may be more failures than failures_max */
    size_t n_failures;
    qn_schema_failure *failures;
} qn_schema_report;

/* What is accepted and not asserted. Owned by the schema. */
typedef struct {
    const char *pointer; /* of the keyword, in the schema's document */
    const char *keyword;
    const char *message;
} qn_schema_note;

/* limits may be NULL. QN_E_FORMAT: no JSON, or no schema of its draft. QN_E_UNSUPPORTED: a reference to another
 * document, an unknown $schema, a pattern or format that cannot be decided, or a limit. The message is
 * "POINTER: KEYWORD: why". */
qn_status qn_schema_open(const char *text, size_t n, const qn_schema_limits *limits, qn_schema **out);
void qn_schema_close(qn_schema *s);
/* Bytes held, about. */
size_t qn_schema_bytes(const qn_schema *s);
const qn_schema_note *qn_schema_notes(const qn_schema *s, size_t *n);
/* "draft 7"; of the document's root. */
const char *qn_schema_draft_name(const qn_schema *s);
/* How often keyword number i is asserted in the document (formats that are annotations are not counted), and its
 * name; NULL: there are not so many keywords. */
const char *qn_schema_keyword(const qn_schema *s, size_t i, size_t *n_uses);

/* Fills the report, which may hold failures of an earlier call: they are freed. A value that is not valid is
 * QN_OK with is_valid 0. QN_E_FORMAT: text is no JSON. QN_E_UNSUPPORTED: a limit of steps or depth. */
qn_status qn_schema_validate_text(const qn_schema *s, const char *text, size_t n, qn_schema_report *report);
/* The same of a value that was read. A real number counts as the shortest decimal that reads as it. */
qn_status qn_schema_validate(const qn_schema *s, const json_t *value, qn_schema_report *report);
void qn_schema_report_clear(qn_schema_report *report);

#endif
