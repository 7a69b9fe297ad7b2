/* The public functions of constrain.h. */
#include "constrain/constraint.h"

#include <quern/quern.h>
#include <string.h>

#include "api/handles.h"
#include "backend/registry.h"
#include "base/utf8.h"

const char *qn_constraint_kind_name(qn_constraint_kind kind)
{
    static const char *const names[] = {
#define NAME(name, text) text,
        QN_CONSTRAIN_LIST(NAME)
#undef NAME
    };
    return (size_t)kind < sizeof names / sizeof *names ? names[kind] : "unknown constraint";
}

int qn_constraint_grammar_kind(const char *text, size_t text_bytes, qn_constraint_kind *out)
{
    const int is_bnf = memmem(text, text_bytes, "::=", 3) != NULL;
    if (!is_bnf && !memchr(text, ':', text_bytes)) return 0;
    *out = is_bnf ? QN_CONSTRAIN_GBNF : QN_CONSTRAIN_LARK;
    return 1;
}

qn_status qn_constraint_open(qn_model *model, const qn_constraint_options *options, qn_constraint **out)
{
    if (!model || !options || !out) return qn_fail(QN_E_ARG, "qn_constraint_open: an argument is NULL");
    if (!model->backend->constraint_open) return qn_backend_fail_missing(model->backend, "constraints");
    qn_constraint_options o = *options;
    if ((unsigned)o.kind > QN_CONSTRAIN_TOOLS) return qn_fail(QN_E_ARG, "kind: %d is no kind", (int)o.kind);
    if ((unsigned)o.tool_calls > QN_TOOL_CALLS_NAMED)
        return qn_fail(QN_E_ARG, "tool_calls: %d is no mode", (int)o.tool_calls);
    if (!o.text && o.kind != QN_CONSTRAIN_JSON_OBJECT) return qn_fail(QN_E_ARG, "text is NULL");
    if (o.text && !o.text_bytes) o.text_bytes = strlen(o.text);
    const size_t valid = o.text ? qn_utf8_valid_prefix(o.text, o.text_bytes) : 0;
    if (o.text && valid != o.text_bytes)
        return qn_fail(QN_E_FORMAT, "%s: not valid UTF-8 at byte %zu", qn_constraint_kind_name(o.kind),
                       valid);
    const int is_named = o.kind == QN_CONSTRAIN_TOOLS && o.tool_calls == QN_TOOL_CALLS_NAMED;
    if (is_named && (!o.tool_name || !*o.tool_name)) return qn_fail(QN_E_ARG, "tool_name is NULL or empty");
    return model->backend->constraint_open(model->object, &o, out);
}

qn_status qn_constraint_get_note(const qn_constraint *constraint, size_t i_note, qn_constraint_note *out)
{
    size_t n;
    if (!constraint || !out) return qn_fail(QN_E_ARG, "qn_constraint_get_note: an argument is NULL");
    const qn_constraint_note *notes = qn_constraint_notes(constraint, &n);
    if (i_note >= n) return qn_fail(QN_E_NOT_FOUND, "the constraint has %zu notes", n);
    *out = notes[i_note];
    return QN_OK;
}

qn_status qn_constraint_choose(qn_model *model, const qn_prompt *prompt, const qn_generate_options *options,
                               qn_constraint **out)
{
    qn_constraint *given = prompt->constraint ? prompt->constraint : options->constraint;
    *out = NULL;
    if (!given) return QN_OK;
    if (!model->backend->constraint_fit) return qn_backend_fail_missing(model->backend, "constraints");
    return model->backend->constraint_fit(model->object, prompt, given, out);
}

void qn_constraint_close(qn_constraint *constraint)
{
    qn_constraint_release(constraint);
}
