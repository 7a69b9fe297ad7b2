/* Calls of tools in every format: what a random model writes under the constraint must be read as calls whose
 * arguments satisfy the tools' schemas; what templates write of calls must be allowed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/buf.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "constrain/constraint.h"
#include "constrain/validate/validate.h"
#include "tests/support/fixtures.h"
#include "text/tools/tool_formats.h"

static const char *const formats[] = {"harmony",
                                      "functionary",
                                      "atem",
                                      "dsml_calls",
                                      "dsml",
                                      "minimax",
                                      "seed",
                                      "qwen_coder",
                                      "minicpm",
                                      "glm",
                                      "kimi",
                                      "deepseek",
                                      "gemma",
                                      "apertus",
                                      "command_r7b",
                                      "command_r",
                                      "gigachat_function_call",
                                      "gigachat",
                                      "functools",
                                      "granite",
                                      "tool_calls",
                                      "hermes",
                                      "mistral_named",
                                      "mistral",
                                      "llama3",
                                      "llama4",
                                      "glm4",
                                      "lfm2",
                                      "olmo3",
                                      "pythonic",
                                      "nemotron",
                                      "phi4",
                                      "hunyuan",
                                      "ernie"};
enum { N_FORMATS = sizeof formats / sizeof formats[0], STEPS_MAX = 400 };

/* name, schema of the arguments */
static const char *const tools[][2] = {
    {"look",
     "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},"
     "\"Unit\":{\"enum\":[\"C\",\"F\"]}},\"required\":[\"city\"],\"additionalProperties\":false}"},
    {"analysis_of",
     "{\"type\":\"object\",\"properties\":{\"note\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":"
     "\"null\"}]},\"x\":{\"anyOf\":[{\"type\":\"number\",\"minimum\":2},{\"type\":\"string\","
     "\"maxLength\":3}]}},\"required\":[\"x\",\"note\"]}"},
    {"go", "{\"type\":\"object\"}"},
    {"put",
     "{\"type\":\"object\",\"properties\":{\"list\":{\"type\":\"array\",\"items\":{\"type\":\"object\","
     "\"properties\":{\"b\":{\"type\":\"boolean\"},\"a\":{\"type\":[\"integer\",\"null\"]}},\"required\":["
     "\"a\"]},\"minItems\":1,\"maxItems\":3},\"map\":{\"type\":\"object\",\"additionalProperties\":{"
     "\"type\":\"number\"}},\"code\":{\"type\":\"string\",\"pattern\":\"^[a-z]{2}[0-9]+$\"}},\"required\":["
     "\"list\"]}"},
    {"tree",
     "{\"type\":\"object\",\"properties\":{\"t\":{\"$ref\":\"#/$defs/t\"},\"kind\":{\"$ref\":"
     "\"#/$defs/kind\"}},\"required\":[\"t\",\"kind\"],\"$defs\":{\"kind\":{\"enum\":[\"1\",\"two\"],"
     "\"type\":\"string\"},\"t\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"string\","
     "\"minLength\":1},\"kids\":{\"type\":\"array\",\"maxItems\":2,\"items\":{\"$ref\":\"#/$defs/t\"}}},"
     "\"required\":[\"v\"],\"additionalProperties\":false}}}"},
    {"few",
     "{\"type\":\"object\",\"properties\":{\"u\":{\"type\":\"array\",\"uniqueItems\":true,\"items\":{"
     "\"enum\":[\"a\",\"b\",1,null]}},\"o\":{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2},"
     "\"tuple\":{\"type\":\"array\",\"prefixItems\":[{\"const\":\"x\"},{\"type\":\"number\"}],\"items\":"
     "false},\"odd key\":{\"const\":true}}}"},
    {"none", "{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}"},
};
enum { N_TOOLS = sizeof tools / sizeof tools[0] };

/* ---- two vocabularies: one of a model, without the marks; one of bytes, with all marks as special tokens ---- */

typedef struct {
    qn_tokenizer *tokenizer;
    qn_vocabulary *v;
    uint32_t *mask;
    int32_t end_id;
} words;

static words plain, special;
static uint64_t draws;
static char *tools_text;
static json_t *tools_json;
static qn_schema *schemas[N_TOOLS];

static uint64_t draw(void)
{
    return qn_random_bits(3939, draws++);
}

static int open_words(words *w, const char *json, size_t n, const char *end)
{
    if (qn_tokenizer_from_json("tokenizer.json", json, n, &w->tokenizer) != QN_OK) return -1;
    w->end_id = qn_tokenizer_find(w->tokenizer, end, strlen(end));
    if (w->end_id < 0 || qn_vocabulary_new(w->tokenizer, &w->end_id, 1, &w->v) != QN_OK) return -1;
    w->mask = qn_calloc(qn_vocabulary_mask_words(w->v), sizeof *w->mask);
    return w->mask ? 0 : -1;
}

static int open_plain(void)
{
    const char *path = qn_test_fixture("tokenizers/qwen3/tokenizer.json");
    FILE *f = path ? fopen(path, "rb") : NULL;
    qn_buf b = {0};
    char block[4096];
    if (!f) return -1;
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;) qn_buf_append(&b, block, n);
    fclose(f);
    int failed = open_words(&plain, b.data, b.length, "<|im_end|>");
    qn_buf_free(&b);
    return failed;
}

static const char *const special_marks[] = {"<end>",
                                            "<|start|>",
                                            "<|end|>",
                                            "<|message|>",
                                            "<|channel|>",
                                            "<|constrain|>",
                                            "<|call|>",
                                            "<|eom|>",
                                            "<|eot|>",
                                            "<|tool_call>",
                                            "<tool_call|>",
                                            "<|\"|>",
                                            "<tool_call>",
                                            "</tool_call>",
                                            "[TOOL_CALLS]",
                                            "[ARGS]",
                                            "<｜DSML｜tool_calls>",
                                            "<|tool_calls_section_begin|>",
                                            "<|tool_call_begin|>",
                                            "<|tool_call_argument_begin|>",
                                            "<|tool_call_end|>",
                                            "<|tool_calls_section_end|>",
                                            "<atem:function_calls>"};

/* GPT-2's letters for bytes, and the marks. */
static int open_special(void)
{
    qn_buf b = {0};
    uint32_t code = 256;
    qn_buf_puts(&b, "{\"added_tokens\":[");
    for (size_t i = 0; i < sizeof special_marks / sizeof special_marks[0]; i++) {
        qn_buf_printf(&b,
                      "%s{\"id\":%zu,\"special\":true,\"normalized\":false,\"lstrip\":false,\"rstrip\":false,"
                      "\"single_word\":false,\"content\":",
                      i ? "," : "", 256 + i);
        qn_buf_json_string(&b, special_marks[i], strlen(special_marks[i]));
        qn_buf_puts(&b, "}");
    }
    qn_buf_puts(&b,
                "],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},"
                "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (uint32_t byte = 0; byte < 256; byte++) {
        char letter[4];
        int is_shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        size_t n = qn_utf8_encode(is_shown ? byte : code++, letter);
        if (byte) qn_buf_puts(&b, ",");
        qn_buf_json_string(&b, letter, n);
        qn_buf_printf(&b, ":%u", byte);
    }
    qn_buf_puts(&b, "}}}");
    int failed = open_words(&special, b.data, b.length, "<end>");
    qn_buf_free(&b);
    return failed;
}

static void write_tools(qn_buf *b, int strict)
{
    qn_buf_puts(b, "[");
    for (int i = 0; i < N_TOOLS; i++)
        qn_buf_printf(
            b, "%s{\"type\":\"function\",\"function\":{\"name\":\"%s\",\"strict\":%s,\"parameters\":%s}}",
            i ? "," : "", tools[i][0], strict ? "true" : "false", tools[i][1]);
    qn_buf_puts(b, "]");
}

static int set_up(void **state)
{
    (void)state;
    qn_buf b = {0};
    write_tools(&b, 1);
    tools_text = qn_buf_take(&b, NULL);
    if (!tools_text || qn_json_parse("tools", tools_text, strlen(tools_text), &tools_json) != QN_OK)
        return -1;
    for (int i = 0; i < N_TOOLS; i++)
        if (qn_schema_open(tools[i][1], strlen(tools[i][1]), NULL, &schemas[i]) != QN_OK) return -1;
    int failed = open_plain();
    if (!failed) failed = open_special();
    if (failed) print_error("%s\n", qn_last_error());
    return failed;
}

static int tear_down(void **state)
{
    (void)state;
    words *both[] = {&plain, &special};
    for (int i = 0; i < 2; i++) {
        qn_free(both[i]->mask);
        qn_vocabulary_release(both[i]->v);
        qn_tokenizer_free(both[i]->tokenizer);
    }
    for (int i = 0; i < N_TOOLS; i++) qn_schema_close(schemas[i]);
    json_decref(tools_json);
    qn_free(tools_text);
    return 0;
}

/* ---- what an answer says ------------------------------------------------------------------------------- */

typedef struct {
    int n_calls, n_malformed;
    const char *name; /* of the last call, one of tools */
} reading;

static void check_call(const char *format, const char *text, const char *name, const qn_buf *arguments,
                       reading *r)
{
    int i = 0;
    qn_schema_report report = {0};
    while (i < N_TOOLS && strcmp(tools[i][0], name) != 0) i++;
    if (i == N_TOOLS) fail_msg("%s: %s: no tool is \"%s\"", format, text, name);
    /* As clients read it: the last member of a name counts. */
    json_t *value = json_loadb(arguments->data, arguments->length, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    if (!value) /* an integer that no int64_t holds */
        value =
            json_loadb(arguments->data, arguments->length, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    if (!value) fail_msg("%s: %s: %s is no JSON", format, text, arguments->data);
    if (qn_schema_validate(schemas[i], value, &report) != QN_OK)
        fail_msg("%s: %s: %s: %s", format, text, arguments->data, qn_last_error());
    json_decref(value);
    if (!report.is_valid)
        fail_msg("%s: %s: %s of %s: at \"%s\": %s (%s)", format, text, arguments->data, name,
                 report.failures->instance, report.failures->message, report.failures->schema);
    qn_schema_report_clear(&report);
    r->n_calls++;
    r->name = tools[i][0];
}

static reading read_answer(const char *format, const char *text, size_t n_text, const char *prompt)
{
    reading r = {0};
    qn_answer *a = NULL;
    qn_buf arguments = {0};
    char name[64] = "";
    qn_answer_options o = {
        .format = qn_answer_format_find(format, ""), .tools = tools_json, .prompt = prompt};
    o.prompt_bytes = strlen(prompt);
    assert_int_equal(qn_answer_new(&o, &a), QN_OK);
    for (int round = 0; round < 2; round++) {
        size_t n;
        assert_int_equal(round ? qn_answer_finish(a) : qn_answer_feed(a, text, n_text), QN_OK);
        const qn_answer_event *events = qn_answer_get_events(a, &n);
        for (size_t i = 0; i < n; i++) {
            const qn_answer_event *e = &events[i];
            if (e->is_malformed) r.n_malformed++;
            if (e->kind == QN_ANSWER_CALL_BEGIN) {
                snprintf(name, sizeof name, "%s", e->text);
                if (strncmp(name, "functions.", 10) == 0) memmove(name, name + 10, strlen(name + 10) + 1);
                qn_buf_reset(&arguments);
            }
            if (e->kind == QN_ANSWER_CALL_ARGUMENTS) qn_buf_append(&arguments, e->text, e->n);
            if (e->kind == QN_ANSWER_CALL_END && !e->is_malformed)
                check_call(format, text, name, &arguments, &r);
        }
    }
    qn_answer_free(a);
    qn_buf_free(&arguments);
    return r;
}

/* ---- walks --------------------------------------------------------------------------------------------- */

static const qn_call_format *format_of(const char *name)
{
    qn_answer_format f = qn_answer_format_find(name, "");
    assert_non_null(f.calls);
    return f.calls;
}

static qn_constraint_source source_of(const char *format, qn_tool_calls_mode mode)
{
    qn_constraint_source s = {.kind = QN_CONSTRAIN_TOOLS, .text = tools_text, .n = strlen(tools_text)};
    s.tools.format = qn_answer_format_find(format, "");
    s.tools.mode = mode;
    return s;
}

/* 1: all of the text's tokens were accepted. 0: the matcher is as it was. */
static int write_text(const words *w, qn_matcher **m, const char *piece, qn_buf *text)
{
    qn_matcher *copy = NULL;
    int32_t *ids = NULL;
    size_t n_ids = 0, i = 0;
    assert_int_equal(qn_matcher_copy(*m, &copy), QN_OK);
    assert_int_equal(qn_tokenizer_encode(w->tokenizer, piece, strlen(piece), QN_ENCODE_SPECIAL, &ids, &n_ids),
                     QN_OK);
    while (i < n_ids && qn_matcher_allows(copy, ids[i]))
        assert_int_equal(qn_matcher_accept(copy, ids[i++]), QN_OK);
    int done = i == n_ids;
    qn_free(ids);
    qn_matcher_free(done ? *m : copy);
    if (!done) return 0;
    *m = copy;
    qn_buf_puts(text, piece);
    return 1;
}

/* A text that ends something in one of the formats. */
static const char *draw_end(const qn_call_format *f)
{
    const qn_call_marks *m = &f->marks;
    const char *const ends[] = {f->close,
                                m->parameter_close,
                                m->call_close,
                                f->header.next,
                                f->header.close,
                                f->header.open,
                                "\"",
                                "}",
                                "]",
                                ")",
                                "<|\"|>",
                                "\n",
                                ",",
                                "1",
                                "true",
                                "a",
                                f->open,
                                m->parameter_open,
                                m->key_open,
                                f->header.call,
                                f->header.reasoning};
    const char *end = NULL;
    while (!end || !*end) end = ends[draw() % (sizeof ends / sizeof ends[0])];
    return end;
}

static int32_t pick(const words *w)
{
    size_t n_words = qn_vocabulary_mask_words(w->v);
    int64_t n = 0;
    for (size_t i = 0; i < n_words; i++) n += __builtin_popcount(w->mask[i]);
    if (!n) return -1;
    int64_t k = (int64_t)(draw() % (uint64_t)n);
    for (size_t i = 0;; i++) {
        int here = __builtin_popcount(w->mask[i]);
        if (k >= here) {
            k -= here;
            continue;
        }
        uint32_t word = w->mask[i];
        while (k--) word &= word - 1;
        return (int32_t)(i * 32) + __builtin_ctz(word);
    }
}

/* 1: it ended. begin: what comes first. */
static int walk(const words *w, qn_constraint *c, const qn_call_format *f, const char *begin, qn_buf *text)
{
    qn_matcher *m = NULL;
    int ended = 0;
    qn_buf_puts(text, "");
    assert_int_equal(qn_matcher_new(c, &m), QN_OK);
    if (*begin && !write_text(w, &m, begin, text)) fail_msg("%s: may not begin with %s", f->name, begin);
    for (int i = 0; i < STEPS_MAX && !ended; i++) {
        if (qn_matcher_may_end(m) && draw() % 3 == 0) {
            ended = 1;
            break;
        }
        int written = 0;
        for (int k = 0; k < 12 && !written && draw() % 8; k++) written = write_text(w, &m, draw_end(f), text);
        if (written) continue;
        assert_int_equal(qn_matcher_mask(m, w->mask), QN_OK);
        int32_t id = pick(w);
        if (id < 0) fail_msg("%s: a dead end behind %s", f->name, text->data);
        if (qn_matcher_accept(m, id) != QN_OK)
            fail_msg("%s: token %d behind %s: %s", f->name, id, text->data, qn_last_error());
        if (id == w->end_id)
            ended = 1;
        else
            assert_int_equal(qn_tokenizer_piece(w->tokenizer, id, text), QN_OK);
    }
    qn_matcher_free(m);
    return ended;
}

static const char *prompt_of(const qn_call_format *f)
{
    static char prompt[64];
    snprintf(prompt, sizeof prompt, "x%s%s", f->header.open ? f->header.open : "",
             f->header.open ? f->header.role : "");
    return prompt;
}

/* The schemas of `which` that calls of the format are refused for. */
static int is_refused(const qn_constraint_source *s, const words *w, qn_constraint **out)
{
    qn_status status = qn_constraint_new(w->v, s, NULL, out);
    if (status == QN_OK) return 0;
    if (status != QN_E_UNSUPPORTED) fail_msg("%s: %s", s->tools.format.calls->name, qn_last_error());
    return 1;
}

static void walks(const words *w, int n_walks)
{
    int64_t n = 0, n_ended = 0, n_calls = 0;
    for (int i = 0; i < N_FORMATS; i++) {
        const qn_call_format *f = format_of(formats[i]);
        const char *prompt = prompt_of(f);
        for (int mode = 0; mode < 5; mode++) {
            qn_constraint_source s = source_of(formats[i], mode < 2   ? QN_TOOL_CALLS_REQUIRED
                                                           : mode < 4 ? QN_TOOL_CALLS_AUTO
                                                                      : QN_TOOL_CALLS_NAMED);
            s.tools.is_one_call = mode == 1 || mode == 3;
            s.tools.name = tools[(size_t)i % N_TOOLS][0];
            qn_constraint *c = NULL;
            if (is_refused(&s, w, &c)) fail_msg("%s: %s", formats[i], qn_last_error());
            for (int k = 0; k < n_walks; k++) {
                qn_buf text = {0};
                const char *begin = mode == 2 || mode == 3 ? (f->open ? f->open : "") : "";
                if (f->header.open && f->open && *begin) begin = " to=user<|message|><atem:function_calls>";
                n++;
                if (walk(w, c, f, begin, &text)) {
                    reading r = read_answer(formats[i], text.data, text.length, prompt);
                    n_ended++;
                    n_calls += r.n_calls;
                    int is_forced = mode < 2 || mode == 4, is_one = s.tools.is_one_call || mode == 4;
                    if (is_forced && (r.n_calls == 0 || r.n_malformed))
                        fail_msg("%s: %s: %d calls, %d malformed", formats[i], text.data, r.n_calls,
                                 r.n_malformed);
                    if (is_one && r.n_calls > 1)
                        fail_msg("%s: %s: %d calls", formats[i], text.data, r.n_calls);
                    if (mode == 4 && strcmp(r.name, s.tools.name) != 0)
                        fail_msg("%s: %s: calls %s", formats[i], text.data, r.name);
                }
                qn_buf_free(&text);
            }
            qn_constraint_release(c);
        }
    }
    print_message("%lld walks, %lld ended, %lld calls\n", (long long)n, (long long)n_ended,
                  (long long)n_calls);
    assert_true(n_ended * 3 > n && n_calls * 3 > n);
}

static int64_t n_walks(void)
{
    const char *text = getenv("QUERN_WALK_SEEDS");
    return text && *text ? strtoll(text, NULL, 10) : 2;
}

static void test_walks_of_a_model(void **state)
{
    (void)state;
    walks(&plain, (int)n_walks());
}

static void test_walks_with_special_marks(void **state)
{
    (void)state;
    walks(&special, (int)n_walks() * 4);
}

/* ---- what templates write ------------------------------------------------------------------------------ */

static int takes_in(const words *w, const qn_constraint_source *s, const char *text)
{
    qn_constraint *c = NULL;
    qn_matcher *m = NULL;
    qn_buf written = {0};
    if (qn_constraint_new(w->v, s, NULL, &c) != QN_OK) fail_msg("%s", qn_last_error());
    assert_int_equal(qn_matcher_new(c, &m), QN_OK);
    int takes = write_text(w, &m, text, &written) && qn_matcher_may_end(m);
    qn_matcher_free(m);
    qn_constraint_release(c);
    qn_buf_free(&written);
    return takes;
}

static int takes(const qn_constraint_source *s, const char *text)
{
    int by_plain = takes_in(&plain, s, text), by_special = takes_in(&special, s, text);
    if (by_plain != by_special)
        fail_msg("%s: as text %d, with special tokens %d", text, by_plain, by_special);
    return by_plain;
}

typedef struct {
    const char *format, *text;
    int auto_takes, required_takes, one_takes, named_takes; /* named: "look" */
} example;

#define HARMONY_LOOK " to=functions.look<|channel|>commentary json<|message|>{\"city\": \"Rome\"}"
#define ATEM_LOOK                                                                             \
    " to=look<|message|><atem:function_calls>\n<atem:invoke name=\"look\">\n<atem:parameter " \
    "name=\"city\">Rome"                                                                      \
    "</atem:parameter>\n<atem:parameter "                                                     \
    "name=\"n\">3</atem:parameter>\n</atem:invoke>\n</atem:function_calls>"
#define GEMMA_LOOK "<|tool_call>call:look{city:<|\"|>Rome \"a\" {b}<|\"|>,n:-3}<tool_call|>"
#define GEMMA_PUT \
    "<|tool_call>call:put{code:<|\"|>ab1<|\"|>,list:[{a:1,b:true},{a:None}],map:{x:1.5,y:2e3}}<tool_call|>"

static const example examples[] = {
    {"harmony", HARMONY_LOOK, 1, 1, 1, 1},
    {"harmony", HARMONY_LOOK "<|call|>", 1, 1, 1, 1},
    {"harmony", "<|channel|>commentary to=functions.look <|constrain|>json<|message|>{\"city\":\"Rome\"}", 1,
     1, 1, 1},
    {"harmony", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" HARMONY_LOOK, 1, 1, 1, 1},
    {"harmony", HARMONY_LOOK "<|end|><|start|>assistant" HARMONY_LOOK, 1, 1, 0, 0},
    {"harmony",
     HARMONY_LOOK "<|end|><|start|>assistant to=functions.go<|channel|>commentary json<|message|>{}", 1, 1, 0,
     0},
    {"harmony", "<|channel|>final<|message|>No call: to=functions.none", 1, 0, 0, 1 - 1},
    {"harmony", "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" HARMONY_LOOK, 1, 0, 0, 0},
    {"harmony", " to=functions.fly<|channel|>commentary json<|message|>{}", 0, 0, 0, 0},
    {"harmony", " to=functions.look<|channel|>commentary json<|message|>{\"city\": 1}", 0, 0, 0, 0},
    {"harmony", " to=functions.look<|channel|>commentary json<|message|>{}", 0, 0, 0, 0},
    {"harmony", "<|channel|>analysis to=functions.look<|message|>{\"city\": 1}", 0, 0, 0, 0},
    {"functionary", "look\n{\"city\": \"Rome\", \"n\": 3}", 1, 1, 1, 1},
    {"functionary", "look\n{\"city\": \"Rome\"}>>>go\n{}", 1, 1, 0, 0},
    {"functionary", "all\nHello.", 1, 0, 0, 0},
    {"functionary", "all\nHello.\n>>>look\n{\"city\": \">>>x\"}", 1, 0, 0, 0},
    {"functionary", "all\nIn Python:\n>>> f(x)\n3\n>>>\n>>>look\n{\"city\": \"\"}", 1, 0, 0, 0},
    {"functionary", "all\nHello.\n>>>look\n{\"city\": 3}", 0, 0, 0, 0},
    {"functionary", "all\nHello.\n>>>fly\n{}", 0, 0, 0, 0},
    {"functionary", "look\n{}", 0, 0, 0, 0},
    {"atem", ATEM_LOOK, 1, 1, 1, 1},
    {"atem", ATEM_LOOK "<|eot|>", 1, 1, 1, 1},
    {"atem", " to=self<|message|>Hm. <atem:function_calls> I guess<|eom|><|start|>assistant" ATEM_LOOK, 1, 1,
     1, 1},
    {"atem", ATEM_LOOK "<|eom|><|start|>assistant" ATEM_LOOK, 1, 1, 0, 0},
    {"atem", " to=user<|message|>Hello.", 1, 0, 0, 0},
    {"atem", " to=user<|message|>Hello.<|eom|><|start|>assistant" ATEM_LOOK, 1, 0, 0, 0},
    {"atem", " to=fly<|message|><atem:function_calls>\n<atem:invoke name=\"fly\">", 0, 0, 0, 0},
    {"gemma", GEMMA_LOOK, 1, 1, 1, 1},
    {"gemma", GEMMA_LOOK GEMMA_PUT, 1, 1, 0, 0},
    {"gemma", GEMMA_PUT, 1, 1, 1, 0},
    {"gemma", "Well. " GEMMA_LOOK, 1, 0, 0, 0},
    {"gemma", "Hello.", 1, 0, 0, 0},
    {"gemma", "<|tool_call>call:go{}<tool_call|>", 1, 1, 1, 0},
    {"gemma", "<|tool_call>call:go{a:[{b:<|\"|><|\"|>},null]}<tool_call|>", 1, 1, 1, 0},
    {"gemma",
     "<|tool_call>call:tree{kind:<|\"|>1<|\"|>,t:{kids:[{v:<|\"|>x<|\"|>}],v:<|\"|>y<|\"|>}}<tool_call|>", 1,
     1, 1, 0},
    {"gemma",
     "<|tool_call>call:few{o:{\"a\": 1},<|\"|>odd key<|\"|>:true,tuple:[<|\"|>x<|\"|>,2],u:[\"a\",1]}"
     "<tool_call|>",
     1, 1, 1, 0},
    {"gemma", "<|tool_call>call:look{n:3}<tool_call|>", 0, 0, 0, 0},
    {"gemma", "<|tool_call>call:look{city:3}<tool_call|>", 0, 0, 0, 0},
    {"gemma", "<|tool_call>call:fly{}<tool_call|>", 0, 0, 0, 0},
    {"gemma", "<|tool_call>call:few{o:{}}<tool_call|>", 0, 0, 0, 0},
    {"glm4", "look\n{\"city\": \"Rome\", \"n\": 3}", 1, 1, 1, 1},
    {"glm4", "look\n{\"city\": \"Rome\"}<|assistant|>go\n{}", 1, 1, 0, 0},
    {"glm4", "\nHello.", 1, 0, 0, 0},
    {"glm4", "\nHello.<|assistant|>look\n{\"city\": \"\"}", 1, 0, 0, 0},
    {"glm4", "look\n{}", 0, 0, 0, 0},
    {"glm4", "fly\n{}", 0, 0, 0, 0},
    {"lfm2", "<|tool_call_start|>[look(city=\"Rome\", n=3)]<|tool_call_end|>", 1, 1, 1, 1},
    {"lfm2",
     "<|tool_call_start|>[look(city=\"a\\\"b\"), go(), go(any=[1, {\"x\": null}], of=2)]<|tool_call_end|>", 1,
     1, 0, 0},
    {"lfm2", "I look. <|tool_call_start|>[look(city=\"Rome\")]<|tool_call_end|>", 1, 0, 0, 0},
    {"lfm2", "Hello.", 1, 0, 0, 0},
    {"lfm2", "<|tool_call_start|>[look(n=3)]<|tool_call_end|>", 0, 0, 0, 0},
    {"lfm2", "<|tool_call_start|>[look(city=3)]<|tool_call_end|>", 0, 0, 0, 0},
    {"lfm2", "<|tool_call_start|>[fly()]<|tool_call_end|>", 0, 0, 0, 0},
    {"lfm2", "<|tool_call_start|>[]<|tool_call_end|>", 0, 0, 0, 0},
    {"olmo3", "<function_calls>\nlook(city=\"Rome\")\n</function_calls>", 1, 1, 1, 1},
    {"olmo3", "<function_calls>look(city=\"Rome\")\nnone()</function_calls>", 1, 1, 0, 0},
    {"olmo3", "<function_calls>look(city=\"Rome\"), none()</function_calls>", 0, 0, 0, 0},
    {"pythonic", "[look(city=\"Rome\")]", 1, 1, 1, 1},
    {"pythonic", "[look(city=\"Rome\"), go()]", 1, 1, 0, 0},
    {"pythonic", "Hello [x].", 1, 0, 0, 0},
    {"pythonic", "[fly()]", 0, 0, 0, 0},
};

static void test_examples(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++) {
        const example *e = &examples[i];
        for (int mode = 0; mode < 4; mode++) {
            qn_constraint_source s = source_of(e->format, mode == 0  ? QN_TOOL_CALLS_AUTO
                                                          : mode < 3 ? QN_TOOL_CALLS_REQUIRED
                                                                     : QN_TOOL_CALLS_NAMED);
            s.tools.is_one_call = mode == 2;
            s.tools.name = "look";
            int want = mode == 0   ? e->auto_takes
                       : mode == 1 ? e->required_takes
                       : mode == 2 ? e->one_takes
                                   : e->named_takes;
            if (takes(&s, e->text) != want)
                fail_msg("%s: %s: mode %d: expected %d", e->format, e->text, mode, want);
            if (want && mode) {
                reading r = read_answer(e->format, e->text, strlen(e->text), prompt_of(format_of(e->format)));
                assert_true(r.n_calls > 0);
                assert_int_equal(r.n_malformed, 0);
            }
        }
    }
}

/* ---- refusals, forms in messages, memory ---------------------------------------------------------------- */

static void refused(const char *format, const char *list, const char *words_of_it)
{
    qn_constraint_source s = source_of(format, QN_TOOL_CALLS_REQUIRED);
    qn_constraint *c = NULL;
    s.text = list;
    s.n = strlen(list);
    assert_int_equal(qn_constraint_new(plain.v, &s, NULL, &c), QN_E_UNSUPPORTED);
    if (!strstr(qn_last_error(), words_of_it))
        fail_msg("\"%s\" does not say \"%s\"", qn_last_error(), words_of_it);
}

static void test_refusals(void **state)
{
    (void)state;
    refused("harmony", "[{\"name\":\"a b\"}]",
            "calls as the family harmony writes them have no name \"a b\"");
    refused("functionary", "[{\"name\":\"\\u00e9\"}]", "the family functionary");
    refused("gemma", "[{\"name\":\"a{\"}]", "the family gemma");
    refused("atem",
            "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":["
            "\"string\",\"integer\"],\"enum\":[1,2]}},\"required\":[\"x\"]}}]",
            "no text in a call of \"f\" is read as a value of its parameter \"x\"");
    refused("atem",
            "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":{}},"
            "\"minProperties\":1}}]",
            "depends on others, or on how many");
    refused("lfm2",
            "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":{}},"
            "\"minProperties\":1}}]",
            "depends on others, or on how many");
    refused("olmo3",
            "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a b\":{}},"
            "\"required\":[\"a b\"]}}]",
            "the parameter \"a b\" of \"f\" is no word");
    refused("pythonic", "[{\"name\":\"a b\"}]", "the family pythonic");
}

static void test_forms_in_messages(void **state)
{
    (void)state;
    static const struct {
        const char *format, *text;
        int takes;
    } rows[] = {{"harmony", "<|channel|>final<|message|>{\"a\": 1}", 1},
                {"harmony", "<|channel|>final <|constrain|>json<|message|>{\"a\": 1}", 1},
                {"harmony",
                 "<|channel|>analysis<|message|>x {<|end|><|start|>assistant<|channel|>final<|message|>{}",
                 1},
                {"harmony", "<|channel|>final<|message|>3", 0},
                {"harmony", "<|channel|>analysis<|message|>x", 0},
                {"harmony", "{}", 0},
                {"functionary", "all\n{\"a\": 1}", 1},
                {"functionary", "{}", 0},
                {"atem", " to=self<|message|>x<|eom|><|start|>assistant to=user<|message|>{}", 1},
                {"atem", " to=user<|message|>{}", 1},
                {"atem", " to=look<|message|>{}", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        qn_constraint_source s = {.kind = QN_CONSTRAIN_JSON_OBJECT, .messages = format_of(rows[i].format)};
        if (takes(&s, rows[i].text) != rows[i].takes)
            fail_msg("%s: %s: expected %d", rows[i].format, rows[i].text, rows[i].takes);
        if (!rows[i].takes) continue;
        const char *form = rows[i].text + qn_constraint_find_form(&s, rows[i].text, strlen(rows[i].text));
        assert_true(strcmp(form, "{\"a\": 1}") == 0 || strcmp(form, "{}") == 0);
    }
}

static qn_status live(const qn_constraint_source *s)
{
    qn_constraint *c = NULL;
    qn_matcher *m = NULL;
    qn_status status = qn_constraint_new(special.v, s, NULL, &c);
    if (status == QN_OK) status = qn_matcher_new(c, &m);
    if (status == QN_OK) status = qn_matcher_mask(m, special.mask);
    qn_matcher_free(m);
    qn_constraint_release(c);
    return status;
}

static void test_runs_out_of_memory(void **state)
{
    (void)state;
    static const char *const some[] = {"harmony", "functionary", "atem", "gemma", "qwen_coder", "lfm2"};
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        qn_constraint_source s = source_of(some[i], QN_TOOL_CALLS_AUTO);
        qn_status status = live(&s);
        assert_int_equal(status, QN_OK);
        status = QN_E_NOMEM;
        for (int64_t nth = 1; status != QN_OK; nth += nth < 100 ? 1 : 41) {
            int64_t blocks = qn_mem_live_blocks();
            qn_mem_fail_nth(nth);
            status = live(&s);
            qn_mem_fail_nth(0);
            assert_int_equal(qn_mem_live_blocks(), blocks);
            if (status != QN_OK && status != QN_E_NOMEM)
                fail_msg("allocation %lld: %s", (long long)nth, qn_last_error());
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),          cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_forms_in_messages), cmocka_unit_test(test_runs_out_of_memory),
        cmocka_unit_test(test_walks_of_a_model),  cmocka_unit_test(test_walks_with_special_marks),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
