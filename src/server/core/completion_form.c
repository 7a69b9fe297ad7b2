/* The form of a request's answers: its constraints are compiled for the model, or refused. On a worker. */
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "server/core/completion.h"

static int is_strict(const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (json_is_true(json_object_get(json_object_get(json_array_get(tools, i), "function"), "strict")))
            return 1;
    return 0;
}

/* A refusal of what the client asked for: the field, and the library's sentence. One about tools begins with a
 * pointer into the array of tools. */
static int fail(qn_completion *c, const char *param, qn_status status)
{
    int i_tool;
    qn_api_fail_status(&c->error, status);
    if (c->error.status != 400) return c->error.status;
    if (strcmp(param, "tools") == 0 && sscanf(c->error.message, "/%d/function/parameters", &i_tool) == 1)
        snprintf(c->error.param, sizeof c->error.param, "tools[%d].function.parameters", i_tool);
    else
        snprintf(c->error.param, sizeof c->error.param, "%s", param);
    return c->error.status;
}

static int report_notes(qn_completion *c, const char *param, const qn_constraint *constraint)
{
    qn_constraint_note note;
    char message[512];
    for (size_t i = 0; qn_constraint_get_note(constraint, i, &note) == QN_OK; i++) {
        snprintf(message, sizeof message, "%s: %s: %s", note.pointer, note.keyword, note.message);
        qn_api_request_warn(&c->request, param, message);
    }
    return c->request.warnings.status == QN_OK ? 0 : qn_api_fail_status(&c->error, QN_E_NOMEM);
}

static int open_form(qn_completion *c, qn_constraint **out)
{
    const qn_api_request_form *form = &c->request.form;
    const qn_constraint_options o = {.kind = form->kind,
                                     .text = form->text.length ? form->text.data : "",
                                     .text_bytes = form->text.length};
    const qn_status status = qn_constraint_open(c->ex->server->model, &o, out);
    return status == QN_OK ? report_notes(c, form->param, *out) : fail(c, form->param, status);
}

/* What forces nothing and is strict nowhere may do without a constraint, and says so. */
static int do_without(qn_completion *c, qn_status status)
{
    char message[600];
    snprintf(message, sizeof message, "calls are not held to the tools' schemas: %.500s", qn_last_error());
    if (status == QN_E_NOMEM) return fail(c, "tools", status);
    qn_api_request_warn(&c->request, "tools", message);
    return c->request.warnings.status == QN_OK ? 0 : qn_api_fail_status(&c->error, QN_E_NOMEM);
}

static int open_tools(qn_completion *c, qn_constraint **out)
{
    const qn_api_request *r = &c->request;
    const int is_known = c->ex->server->info.call_format && *c->ex->server->info.call_format;
    /* Beside a form nothing else is left that is free. */
    const int is_free = r->tool_calls == QN_TOOL_CALLS_AUTO;
    const qn_constraint_options o = {.kind = QN_CONSTRAIN_TOOLS,
                                     .text = r->callable.data,
                                     .text_bytes = r->callable.length,
                                     .tool_calls =
                                         is_free && r->form.param ? QN_TOOL_CALLS_REQUIRED : r->tool_calls,
                                     .tool_name = r->tool_name,
                                     .is_one_call = r->one_tool_call};
    const int may_do_without = is_free && !is_strict(r->tools);
    if (may_do_without && !is_known) return 0; /* a warning tells */
    if (may_do_without && c->ex->server->options->free_tool_calls && !r->form.param) return 0;
    const qn_status status = qn_constraint_open(c->ex->server->model, &o, out);
    if (status == QN_OK) return report_notes(c, "tools", *out);
    if (may_do_without) return do_without(c, status);
    return fail(c, is_known || is_free ? "tools" : "tool_choice", status);
}

int qn_completion_constrain(qn_completion *c)
{
    qn_api_request *r = &c->request;
    qn_constraint *form = NULL, *tools = NULL;
    int refused = r->form.param ? open_form(c, &form) : 0;
    if (!refused && r->tools) refused = open_tools(c, &tools);
    r->constraints[0] = tools ? tools : form;
    r->constraints[1] = tools ? form : NULL;
    if (refused) return refused;
    r->o.constraint = r->constraints[0];
    if (!r->constraints[1]) return 0;
    if (r->tool_calls == QN_TOOL_CALLS_AUTO) {
        r->o.alternative = r->constraints[1];
        return 0;
    }
    qn_api_request_warn(r, r->form.param, "has no effect: tool_choice asks for a call");
    return r->warnings.status == QN_OK ? 0 : qn_api_fail_status(&c->error, QN_E_NOMEM);
}
