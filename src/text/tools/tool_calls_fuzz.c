/* A model's answer, hostile: the first byte chooses the format, the second how the answer is cut, the rest is
 * the answer. What comes out must be the same as from the whole at once, complete arguments must be JSON
 * objects and others the beginning of one, and without calls or marks nothing may be lost. */
#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "base/json/json_steps.h"
#include "base/random.h"
#include "text/tools/tool_calls.h"

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
    "[TOOL_CALLS] [ARGS]",
    "",
    "<|tool_call_start|></think>",
    "<function_calls>",
    "[func_name1(",
};

static const char tools_text[] = "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{"
                                 "\"type\":[\"string\",\"null\"]}}}}}]";

static void check(int ok)
{
    if (!ok) __builtin_trap();
}

/* What one way of cutting gives. */
typedef struct {
    qn_buf out, arguments;
    int last;
} transcript;

static void check_arguments(const qn_buf *b, int breaks_off)
{
    qn_json_steps steps = {0};
    check(breaks_off || b->length);
    for (size_t i = 0; i < b->length; i++) {
        int is_last = !breaks_off && i + 1 == b->length;
        check(qn_json_step(&steps, b->data[i]) == (is_last ? QN_JSON_LAST : QN_JSON_MORE));
    }
    if (breaks_off) return;
    json_error_t error;
    json_t *json = json_loadb(b->data, b->length, JSON_ALLOW_NUL, &error);
    /* jansson has no type for some numbers, and no keys with a NUL. */
    check(json_is_object(json) || json_error_code(&error) == json_error_numeric_overflow ||
          json_error_code(&error) == json_error_null_byte_in_key);
    json_decref(json);
}

static void note(transcript *t, const qn_answer *a)
{
    size_t n;
    const qn_answer_event *events = qn_answer_get_events(a, &n);
    for (size_t i = 0; i < n; i++) {
        const qn_answer_event *e = &events[i];
        int what = (int)e->kind * 2 + e->is_malformed;
        if (e->kind == QN_ANSWER_CALL_BEGIN) qn_buf_reset(&t->arguments);
        if (e->kind == QN_ANSWER_CALL_ARGUMENTS) qn_buf_append(&t->arguments, e->text, e->n);
        if (e->kind == QN_ANSWER_CALL_END) check_arguments(&t->arguments, e->is_malformed);
        if (what != t->last) qn_buf_printf(&t->out, "\n[%d]", what);
        qn_buf_append(&t->out, e->text, e->n);
        t->last = what;
    }
}

/* seed 0: the whole at once; else pieces of random length. */
static void run(const qn_answer_options *o, const char *text, size_t n, uint64_t seed, transcript *t)
{
    qn_answer *a = NULL;
    t->last = -1;
    if (qn_answer_new(o, &a) != QN_OK) return;
    for (size_t at = 0, i = 0; at < n; i++) {
        size_t piece = seed ? 1 + qn_random_bits(seed, i) % (1 + seed % 16) : n;
        if (piece > n - at) piece = n - at;
        check(qn_answer_feed(a, text + at, piece) == QN_OK);
        note(t, a);
        at += piece;
    }
    check(qn_answer_finish(a) == QN_OK);
    note(t, a);
    qn_answer_free(a);
    qn_buf_free(&t->arguments);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { N = sizeof evidence / sizeof *evidence };
    static json_t *tools;
    if (!tools) tools = json_loads(tools_text, 0, NULL);
    if (size < 3) return 0;
    const char *text = (const char *)data + 2, *row = evidence[data[0] % N];
    size_t n = size - 2;
    transcript whole = {0}, cut = {0};
    qn_answer_options o = {.format = qn_answer_format_choose(row, strlen(row)),
                           .tools = tools,
                           .prompt = data[1] & 1 ? "<think>" : "x",
                           .prompt_bytes = data[1] & 1 ? 7 : 1,
                           .limit_bytes = data[1] & 2 ? 64 : 0};
    run(&o, text, n, 0, &whole);
    run(&o, text, n, 1 + data[1], &cut);
    const qn_buf *a = &whole.out, *b = &cut.out;
    check(a->length == b->length && (a->length == 0 || memcmp(a->data, b->data, b->length) == 0));
    if (!o.format.calls) check(a->length >= n);
    qn_buf_free(&whole.out);
    qn_buf_free(&cut.out);
    return 0;
}
