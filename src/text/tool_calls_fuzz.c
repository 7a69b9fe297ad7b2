/* A model's answer, hostile: the first byte chooses the format and the size of the pieces, the rest is the
 * answer. What comes out must be the same as from the whole at once, arguments must be JSON objects, and
 * without calls or marks nothing may be lost. */
#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "text/tool_calls.h"

static const char *const evidence[] = {
    "<tool_call></think>",
    "<tool_call><function=",
    "<tool_call><arg_key>",
    "[TOOL_CALLS]",
    ">>>all",
    "<|start_header_id|> \"parameters\":",
    "<|channel|>commentary functions.",
    "<|tool_call><tool_call|><channel|>",
    "<function name=\" <param name=\"",
    "<｜tool▁calls▁begin｜>",
    "<|tool_calls_section_begin|>",
    "<|tools_prefix|>",
    "dsml_token + 'tool_calls>",
    "<atem:function_calls>",
    "",
};

static const char tools_text[] = "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{"
                                 "\"type\":[\"string\",\"null\"]}}}}}]";

static void check(int ok)
{
    if (!ok) __builtin_trap();
}

static void note(qn_buf *out, int *last, const qn_answer *a)
{
    size_t n;
    const qn_answer_event *events = qn_answer_get_events(a, &n);
    for (size_t i = 0; i < n; i++) {
        const qn_answer_event *e = &events[i];
        int what = (int)e->kind * 2 + e->is_malformed;
        if (e->kind == QN_ANSWER_CALL_ARGUMENTS) {
            json_t *json = NULL;
            check(qn_json_parse("fuzz", e->text, e->n, &json) == QN_OK && json_is_object(json));
            json_decref(json);
        }
        if (what != *last || e->kind > QN_ANSWER_REASONING) qn_buf_printf(out, "\n[%d]", what);
        qn_buf_append(out, e->text, e->n);
        *last = what;
    }
}

static void run(const qn_answer_options *o, const char *text, size_t n, size_t piece, qn_buf *out)
{
    qn_answer *a = NULL;
    int last = -1;
    if (qn_answer_new(o, &a) != QN_OK) return;
    for (size_t at = 0; at < n; at += piece) {
        if (piece > n - at) piece = n - at;
        check(qn_answer_feed(a, text + at, piece) == QN_OK);
        note(out, &last, a);
    }
    check(qn_answer_finish(a) == QN_OK);
    note(out, &last, a);
    qn_answer_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { N = sizeof evidence / sizeof *evidence };
    static json_t *tools;
    if (!tools) check(qn_json_parse("fuzz", tools_text, strlen(tools_text), &tools) == QN_OK);
    if (size < 2) return 0;
    const char *text = (const char *)data + 1, *row = evidence[data[0] % N];
    size_t n = size - 1, piece = 1 + data[0] / N;
    qn_buf whole = {0}, cut = {0};
    qn_answer_options o = {.format = qn_answer_format_choose(row, strlen(row)),
                           .tools = tools,
                           .prompt = data[0] & 1 ? "<think>" : "x",
                           .prompt_bytes = data[0] & 1 ? 7 : 1,
                           .limit_bytes = data[0] & 2 ? 64 : 0};
    run(&o, text, n, n, &whole);
    run(&o, text, n, piece, &cut);
    check(whole.length == cut.length && (whole.length == 0 || memcmp(whole.data, cut.data, cut.length) == 0));
    if (!o.format.calls) check(whole.length >= n);
    qn_buf_free(&whole);
    qn_buf_free(&cut);
    return 0;
}
