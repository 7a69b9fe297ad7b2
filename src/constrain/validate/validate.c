/* Opening a schema, and the run over a value. */
#include "constrain/validate/validate.h"

#include "base/mem.h"
#include "constrain/validate/evaluate.h"
#include "constrain/validate/schema.h"

static const qn_schema_limits defaults = {1 << 20, 1000, 20000000, 20000000};

static qn_schema_limits fill(const qn_schema_limits *given)
{
    qn_schema_limits l = given ? *given : defaults;
    if (!l.source_bytes_max) l.source_bytes_max = defaults.source_bytes_max;
    if (!l.depth_max) l.depth_max = defaults.depth_max;
    if (!l.steps_max) l.steps_max = defaults.steps_max;
    if (!l.pattern_steps_max) l.pattern_steps_max = defaults.pattern_steps_max;
    return l;
}

static int is_reference(qn_keyword kind)
{
    return kind == QN_KEYWORD_REF || kind == QN_KEYWORD_DYNAMIC_REF || kind == QN_KEYWORD_RECURSIVE_REF;
}

static qn_status read_schema(qn_schema *s, const char *text, size_t n)
{
    QN_TRY(qn_value_read(&s->arena, "schema", text, n, &s->document));
    if (s->document->kind != QN_VALUE_OBJECT && s->document->kind != QN_VALUE_BOOLEAN)
        return qn_fail(QN_E_FORMAT, "a JSON schema is an object, true or false");
    QN_TRY(qn_schema_read_node(s, s->document, NULL, &s->root));
    /* References may lead where no keyword does: such schemas join the list while it is walked. */
    for (qn_subschema *of = s->first; of; of = of->next)
        for (uint32_t i = 0; i < of->n_uses; i++)
            if (is_reference(of->uses[i].kind)) QN_TRY(qn_schema_resolve(s, of, &of->uses[i]));
    return QN_OK;
}

qn_status qn_schema_open(const char *text, size_t n, const qn_schema_limits *limits, qn_schema **out)
{
    qn_schema_limits l = fill(limits);
    if (n > l.source_bytes_max)
        return qn_fail(QN_E_UNSUPPORTED, "the schema has %zu bytes, more than %zu", n, l.source_bytes_max);
    qn_schema *s = qn_calloc(1, sizeof *s);
    if (!s) return qn_fail_nomem(sizeof *s);
    s->limits = l;
    s->by_node = qn_map_new(64);
    s->by_uri = qn_map_new(8);
    s->patterns = qn_map_new(8);
    s->formats = qn_map_new(8);
    s->encodings = qn_map_new(1);
    qn_status status = s->by_node && s->by_uri && s->patterns && s->formats && s->encodings
                           ? read_schema(s, text, n)
                           : QN_E_NOMEM;
    if (status != QN_OK) {
        qn_schema_close(s);
        return status;
    }
    *out = s;
    return QN_OK;
}

void qn_schema_close(qn_schema *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n_automata; i++) qn_dfa_release(s->automata[i]);
    qn_free(s->automata);
    qn_free(s->notes);
    qn_map_free(s->by_node);
    qn_map_free(s->by_uri);
    qn_map_free(s->patterns);
    qn_map_free(s->formats);
    qn_map_free(s->encodings);
    qn_arena_clear(&s->arena);
    qn_free(s);
}

size_t qn_schema_bytes(const qn_schema *s)
{
    return sizeof *s + s->arena.total_bytes + s->automata_bytes;
}

const qn_schema_note *qn_schema_notes(const qn_schema *s, size_t *n)
{
    *n = s->n_notes;
    return s->notes;
}

static qn_status run(const qn_schema *s, const qn_value *v, qn_schema_report *report)
{
    qn_schema_report_clear(report);
    if (!report->failures_max) report->failures_max = 1;
    qn_run r = {.schema = s, .report = report, .steps = s->limits.steps_max};
    r.scope = qn_alloc_array((size_t)s->limits.depth_max + 1, sizeof *r.scope);
    if (!r.scope) return QN_E_NOMEM;
    int valid = qn_run_apply(&r, s->root, v, QN_NO_MARKS);
    qn_free(r.scope);
    qn_buf_free(&r.marks);
    if (r.status != QN_OK) qn_schema_report_clear(report);
    report->is_valid = valid && r.status == QN_OK;
    return r.status;
}

qn_status qn_schema_validate_text(const qn_schema *s, const char *text, size_t n, qn_schema_report *report)
{
    qn_arena arena = {0};
    const qn_value *v = NULL;
    qn_status status = qn_value_read(&arena, "value", text, n, &v);
    if (status == QN_OK) status = run(s, v, report);
    qn_arena_clear(&arena);
    return status;
}

qn_status qn_schema_validate(const qn_schema *s, const json_t *value, qn_schema_report *report)
{
    qn_arena arena = {0};
    const qn_value *v = NULL;
    qn_status status = qn_value_of_json(&arena, value, &v);
    if (status == QN_OK) status = run(s, v, report);
    qn_arena_clear(&arena);
    return status;
}
