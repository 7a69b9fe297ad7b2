/* Conversations that templates do not take as they are: every shape with every template of the fixtures
 * either comes out with all of its texts, or is refused with a sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
/* cmocka wants these before it */
#include <cmocka.h>
#include <dirent.h>
#include <jansson.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "tests/support/fixtures.h"
#include "text/chat/chat.h"
#include "text/chat/chat_builtin.h"
#include "text/chat/chat_fit.h"

static json_t *parse(const char *text)
{
    json_t *json = NULL;
    assert_int_equal(qn_json_parse("test", text, strlen(text), &json), QN_OK);
    return json;
}

/* ---- a template, on the tokens of a small model ---- */

typedef struct {
    qn_chat_text *chat;
    const char *tools; /* NULL: none */
    int64_t n_renderings;
} talk;

static qn_status render(void *user, const json_t *messages, int continue_final, qn_buf *text)
{
    talk *t = user;
    json_t *request = json_object();
    t->n_renderings++;
    json_object_set(request, "messages", (json_t *)messages);
    json_object_set_new(request, "continue_final_message", json_boolean(continue_final));
    json_object_set_new(request, "add_generation_prompt", json_boolean(!continue_final));
    if (t->tools) json_object_set_new(request, "tools", parse(t->tools));
    qn_status status = qn_chat_text_render(t->chat, request, QN_CHAT_TRUST_TEMPLATE, text, NULL, NULL);
    json_decref(request);
    return status;
}

/* Of the template that was opened last. */
static qn_answer_format format;

static qn_chat_text *open_chat(const char *chat_template)
{
    format = qn_answer_format_choose(chat_template, strlen(chat_template));
    qn_source *source = NULL;
    qn_chat_text *c = NULL;
    qn_chat_text_options options = {.chat_template = chat_template};
    assert_int_equal(
        qn_source_open(qn_test_need_fixture("models/llama"), &(qn_source_options){.text_only = 1}, &source),
        QN_OK);
    if (qn_chat_text_open(source, &options, &c) != QN_OK) fail_msg("%s", qn_last_error());
    qn_source_close(source);
    return c;
}

static qn_chat_traits find_traits(qn_chat_text *c)
{
    talk plain = {.chat = c}, with_tools = {.chat = c, .tools = qn_chat_probe_tools};
    const qn_chat_renderer r[2] = {{render, &plain}, {render, &with_tools}};
    qn_chat_traits traits;
    assert_int_equal(qn_chat_traits_find(&r[0], &r[1], format, &traits), QN_OK);
    return traits;
}

/* What a conversation became, as the server does it. */
typedef struct {
    qn_status status;
    int64_t n_renderings; /* that were needed to find out */
    qn_chat_fitted fitted;
    qn_buf text;
} answer;

static answer fit(qn_chat_text *c, const char *messages, const char *tools, int continue_final)
{
    talk t = {.chat = c, .tools = tools};
    const qn_chat_renderer r = {render, &t};
    const qn_chat_traits traits = find_traits(c);
    answer a = {0};
    json_t *given = parse(messages), *copy = json_deep_copy(given);
    if (qn_chat_fit_is_needed(given, &traits, tools != NULL, continue_final))
        a.status = qn_chat_fit(given, &traits, continue_final, &r, &a.fitted);
    else
        a.fitted.messages = json_incref(given);
    a.n_renderings = t.n_renderings;
    if (a.status == QN_OK) {
        a.status = render(&t, a.fitted.messages, continue_final, &a.text);
        assert_int_equal(a.status, QN_OK);
    } else {
        assert_int_equal(a.status, QN_E_ARG);
        assert_true(qn_last_error()[0] && strncmp(a.fitted.param, "messages", 8) == 0);
    }
    assert_true(json_equal(given, copy));
    json_decref(given);
    json_decref(copy);
    return a;
}

static void end(answer *a)
{
    qn_chat_fitted_free(&a->fitted);
    qn_buf_free(&a->text);
}

/* ---- shapes ---- */

#define S(text) "{\"role\":\"system\",\"content\":\"" text "\"}"
#define U(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define A(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define T(id, text) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"" text "\"}"
#define CALL(id, arguments) \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"probe\"" arguments "}}"
#define CALLS(calls) "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" calls "]}"
#define LONG_ID "call_94068ec57832460f_0_0"
#define GOOD ",\"arguments\":\"{\\\"word\\\":\\\"argone\\\"}\""

static const struct shape {
    const char *name, *messages;
    int continue_final, with_tools;
    const char *texts[6]; /* that the model must see, in this order */
    const char *system[3];
} shapes[] = {
    {"system", "[" S("sysone") "," U("userone") "]", 0, 0, {"userone"}, {"sysone"}},
    {"system alone", "[" S("sysone") "]", 0, 0, {NULL}, {"sysone"}},
    {"two systems",
     "[" S("sysone") "," S("systwo") "," U("userone") "]",
     0,
     0,
     {"userone"},
     {"sysone", "systwo"}},
    {"late system",
     "[" U("userone") "," A("answerone") "," S("sysone") "," U("usertwo") "]",
     0,
     0,
     {"userone", "answerone", "usertwo"},
     {"sysone"}},
    {"first and late system",
     "[" S("sysone") "," U("userone") "," A("answerone") "," S("systwo") "," U("usertwo") "]",
     0,
     1,
     {"userone", "answerone", "usertwo"},
     {"sysone", "systwo"}},
    {"system between users",
     "[" U("userone") "," S("sysone") "," U("usertwo") "]",
     0,
     0,
     {"userone", "usertwo"},
     {"sysone"}},
    {"system at the end", "[" U("userone") "," S("sysone") "]", 0, 0, {"userone"}, {"sysone"}},
    {"users",
     "[" U("userone") "," U("usertwo") "," U("userthree") "]",
     0,
     0,
     {"userone", "usertwo", "userthree"},
     {0}},
    {"answers",
     "[" U("userone") "," A("answerone") "," A("answertwo") "," U("usertwo") "]",
     0,
     0,
     {"userone", "answerone", "answertwo", "usertwo"},
     {0}},
    {"greeting", "[" A("answerone") "," U("userone") "]", 0, 0, {"answerone", "userone"}, {0}},
    {"prefill", "[" U("userone") "," A("answerone") "]", 1, 0, {"userone", "answerone"}, {0}},
    {"prefill with system",
     "[" S("sysone") "," U("userone") "," A("answerone") "]",
     1,
     1,
     {"userone", "answerone"},
     {"sysone"}},
    {"prefill after an answer",
     "[" U("userone") "," A("answerone") "," A("answertwo") "]",
     1,
     0,
     {"userone", "answerone", "answertwo"},
     {0}},
    {"prefill of spaces", "[" U("userone") "," A("  answerone ") "]", 1, 0, {"userone", "answerone"}, {0}},
    {"prefill of nothing", "[" U("userone") "," A("") "]", 1, 0, {"userone"}, {0}},
    {"continued question", "[" U("userone") "]", 1, 0, {"userone"}, {0}},
    {"new turn after an answer",
     "[" U("userone") "," A("answerone") "]",
     0,
     0,
     {"userone", "answerone"},
     {0}},
    {"call",
     "[" U("userone") "," CALLS(CALL("call_0123456789abcdef01234567", GOOD)) "," T(
         "call_0123456789abcdef01234567", "resultone") "," A("answerone") "," U("usertwo") "]",
     0,
     1,
     {"userone", "argone", "resultone", "answerone", "usertwo"},
     {0}},
    {"call, without tools",
     "[" U("userone") "," CALLS(CALL(LONG_ID, GOOD)) "," T(LONG_ID, "resultone") "]",
     0,
     0,
     {"userone", "argone", "resultone"},
     {0}},
    {"call with a text",
     "[" U("userone") ",{\"role\":\"assistant\",\"content\":\"answerone\",\"tool_calls\":[" CALL(
         LONG_ID, GOOD) "]}," T(LONG_ID, "resultone") "]",
     0,
     1,
     {"userone", "argone", "resultone"},
     {0}},
    {"two calls",
     "[" U("userone") "," CALLS(
         CALL(LONG_ID, GOOD) "," CALL("b", ",\"arguments\":\"{\\\"word\\\":\\\"argtwo\\\"}"
                                           "\"")) "," T(LONG_ID, "resultone") "," T("b", "resulttwo") "]",
     0,
     1,
     {"userone", "argone", "resultone", "resulttwo"},
     {0}},
    {"results without an id",
     "[" U("userone") "," CALLS("{\"type\":\"function\",\"function\":{\"name\":\"probe\"" GOOD
                                "}}") ",{\"role\":\"tool\",\"content\":\"resultone\"}," U("usertwo") "]",
     0,
     1,
     {"userone", "argone", "resultone", "usertwo"},
     {0}},
    {"result of an unknown call",
     "[" U("userone") "," CALLS(CALL(LONG_ID, GOOD)) "," T("other", "resultone") "]",
     0,
     1,
     {"userone", "argone", "resultone"},
     {0}},
    {"result of no call",
     "[" U("userone") "," T("other", "resultone") "]",
     0,
     1,
     {"userone", "resultone"},
     {0}},
    {"broken arguments",
     "[" U("userone") "," CALLS(CALL(LONG_ID, ",\"arguments\":\"{\\\"word\\\": \\\"argone\"")) "," T(
         LONG_ID, "resultone") "]",
     0,
     1,
     {"userone", "resultone"},
     {0}},
    {"arguments that are a list",
     "[" U("userone") "," CALLS(CALL(LONG_ID, ",\"arguments\":\"[1, 2]\"")) "," T(LONG_ID, "resultone") "]",
     0,
     1,
     {"userone", "resultone"},
     {0}},
    {"arguments that are a number",
     "[" U("userone") "," CALLS(CALL(LONG_ID, ",\"arguments\":7")) "," T(LONG_ID, "resultone") "]",
     0,
     1,
     {"userone", "resultone"},
     {0}},
    {"arguments of two values",
     "[" U("userone") "," CALLS(CALL(LONG_ID, ",\"arguments\":\"{\\\"word\\\":\\\"argone\\\",\\\"word\\\":"
                                              "\\\"argtwo\\\"}\"")) "," T(LONG_ID, "resultone") "]",
     0,
     1,
     {"userone", "argtwo", "resultone"},
     {0}},
    {"no arguments",
     "[" U("userone") "," CALLS(CALL(LONG_ID, "") "," CALL("b", ",\"arguments\":\"\"") "," CALL(
         "c", ",\"arguments\":null")) "," T(LONG_ID, "resultone") "," T("b",
                                                                        "resulttwo") "," T("c",
                                                                                           "resultthree") "]",
     0,
     1,
     {"userone", "resultone"},
     {0}},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static void expect_texts(const char *template, const struct shape *s, const answer *a)
{
    const char *at = a->text.data;
    for (size_t i = 0; i < 6 && s->texts[i]; i++) {
        const char *found = strstr(at, s->texts[i]);
        if (!found)
            fail_msg("%s, %s: %s is not shown in its place in: %s", template, s->name, s->texts[i],
                     a->text.data);
        at = found;
    }
    for (size_t i = 0; i < 3 && s->system[i]; i++)
        if (!strstr(a->text.data, s->system[i])) fail_msg("%s, %s: %s", template, s->name, a->text.data);
    if (s->continue_final && s->texts[1]) {
        const char *last = s->texts[2] ? s->texts[2] : s->texts[1];
        size_t n = a->text.length;
        while (n && a->text.data[n - 1] == ' ') n--;
        if (strncmp(a->text.data + n - strlen(last), last, strlen(last)) != 0)
            fail_msg("%s, %s: ends otherwise: %s", template, s->name, a->text.data);
    }
}

static void check_template(const char *name, const char *text)
{
    qn_chat_text *c = open_chat(text);
    for (const struct shape *s = shapes; s < shapes + N_SHAPES; s++) {
        answer a = fit(c, s->messages, s->with_tools ? qn_chat_probe_tools : NULL, s->continue_final);
        if (a.status == QN_OK) expect_texts(name, s, &a);
        end(&a);
    }
    qn_chat_text_close(c);
}

static char *read_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = qn_calloc(1 << 20, 1);
    assert_true(f && text);
    size_t n = fread(text, 1, (1 << 20) - 1, f);
    assert_true(n > 0);
    fclose(f);
    return text;
}

static void test_real_templates(void **state)
{
    char folder[512], path[1024];
    snprintf(folder, sizeof folder, "%s", qn_test_need_fixture("templates"));
    DIR *d = opendir(folder);
    int n = 0;
    (void)state;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        const char *dot = strrchr(e->d_name, '.');
        if (!dot || strcmp(dot, ".jinja") != 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        char *text = read_text(path);
        check_template(e->d_name, text);
        qn_free(text);
        n++;
    }
    closedir(d);
    assert_true(n > 0);
}

/* The formats that stand for templates which files lack. */
static void test_builtin_templates(void **state)
{
    static const char *const names[] = {"gemma", "llama3", "qwen"};
    (void)state;
    for (size_t i = 0; i < 3; i++) check_template(names[i], qn_chat_builtin_find(names[i])->text);
}

/* ---- what is found, and what it costs ---- */

#define ALTERNATING                                                                                      \
    "{% for m in messages %}{% if m.role == 'system' or (m.role == 'user') != (loop.index0 % 2 == 0) %}" \
    "{{ raise_exception('roles must alternate') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
/* It shows anything. */
#define PLAIN                                                                                            \
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}{{ c | tojson }}{% " \
    "endfor %}{% endfor %}"
#define CHECKED(test)                                                              \
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{% if " test \
    " %}{{ raise_exception('no such call') }}{% endif %}{{ c.function.arguments }}{% endfor %}{% endfor %}"

static void test_traits(void **state)
{
    static const struct {
        const char *template;
        qn_chat_traits traits;
    } cases[] = {
        {PLAIN, {QN_CALL_ID_LONG, 0, 1, NULL}},
        {ALTERNATING, {QN_CALL_ID_LONG, 0, 0, NULL}},
        {"{{ messages[0].role == 'system' }}", {QN_CALL_ID_LONG, 0, 0, NULL}},
        {"{% if not tools %}" PLAIN "{% endif %}", {QN_CALL_ID_LONG, 0, 0, NULL}},
        {CHECKED("c.id | length != 9"), {QN_CALL_ID_NINE, 0, 1, NULL}},
        {CHECKED("c.function.arguments is not string"), {QN_CALL_ID_LONG, 1, 1, NULL}},
        {CHECKED("c.id | length != 9 or c.function.arguments is not string"), {QN_CALL_ID_NINE, 1, 1, NULL}},
        {CHECKED("c.id | length < 25"), {QN_CALL_ID_LONG, 0, 1, NULL}},
        {"{{ raise_exception('never') }}", {QN_CALL_ID_LONG, 0, 0, NULL}},
        {"{% if %}", {QN_CALL_ID_LONG, 0, 1, NULL}}, /* a faulty one is told of when it is used */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_chat_text *c = open_chat(cases[i].template);
        const qn_chat_traits t = find_traits(c), *want = &cases[i].traits;
        if (t.ids != want->ids || t.text_arguments != want->text_arguments ||
            t.shows_system != want->shows_system)
            fail_msg("%s: %d %d %d", cases[i].template, (int)t.ids, t.text_arguments, t.shows_system);
        qn_chat_text_close(c);
    }
}

/* Ordinary chats are not rendered once more; what is only looked at costs one. */
static void test_cost(void **state)
{
    static const struct {
        const char *template, *messages;
        int64_t n;
        size_t n_notes;
    } cases[] = {
        {PLAIN, "[" U("a") "]", 0, 0},
        {PLAIN, "[" S("s") "," U("a") "," A("b") "," U("c") "]", 0, 0},
        {PLAIN, "[" S("s") "," U("a") "," U("b") "," S("s") "," U("c") "]", 1, 0},
        {PLAIN, "[" U("a") "," CALLS(CALL(LONG_ID, GOOD)) "," T(LONG_ID, "r") "]", 1, 0},
        {ALTERNATING, "[" U("a") "," A("b") "," U("c") "]", 0, 0},
        {ALTERNATING, "[" S("s") "," U("c") "]", 2, 1},
        {ALTERNATING, "[" U("a") "," U("c") "]", 2, 1},
        {ALTERNATING, "[" U("a") "," S("s") "," U("c") "]", 6, 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_chat_text *c = open_chat(cases[i].template);
        answer a = fit(c, cases[i].messages, NULL, 0);
        assert_int_equal(a.status, QN_OK);
        if (a.n_renderings != cases[i].n || a.fitted.n_notes != cases[i].n_notes)
            fail_msg("case %d: %d renderings, %d notes", (int)i, (int)a.n_renderings, (int)a.fitted.n_notes);
        end(&a);
        qn_chat_text_close(c);
    }
}

/* Calls that are split keep their results and their names in errors. */
static void test_split_calls(void **state)
{
    qn_chat_text *c = open_chat(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls[0]"
        "| tojson }}{% endif %}{% endfor %}");
    qn_chat_text *deaf =
        open_chat("{% for m in messages %}{{ m.content }}{% if m.tool_calls and not m.tool_calls[0].id "
                  "%}{{ raise_exception('no id') }}{% endif %}{% if m.tool_calls | length == 1 %}"
                  "{{ m.tool_calls[0].function.arguments.seen }}{% endif %}{% endfor %}");
    const char *talk = "[" U("u") "," CALLS(CALL("x", ",\"arguments\":{\"seen\":\"1\"}") "," CALL(
        "y", ",\"arguments\":{\"no\":\"2\"}")) "," T("y", "ry") "," T("z", "rz") "," T("x",
                                                                                       "rx") "," U("v") "]";
    (void)state;
    answer a = fit(c, talk, NULL, 0);
    assert_int_equal(a.status, QN_OK);
    assert_string_equal(
        a.text.data,
        "<user>u<assistant>{\"id\": \"x\", \"type\": \"function\", \"function\": {\"name\": \"probe\", "
        "\"arguments\": {\"seen\": \"1\"}}}<tool>rx<assistant>{\"id\": \"y\", \"type\": \"function\", "
        "\"function\": {\"name\": \"probe\", \"arguments\": {\"no\": \"2\"}}}<tool>ry<tool>rz<user>v");
    end(&a);
    a = fit(deaf,
            "[" U("u") "," CALLS(CALL("", ",\"arguments\":{\"seen\":\"1\"}") "," CALL(
                "", ",\"arguments\":{\"no\":\"2\"}")) "]",
            NULL, 0);
    assert_int_equal(a.status, QN_E_ARG);
    assert_string_equal(a.fitted.param, "messages[1].tool_calls[1]");
    end(&a);
    qn_chat_text_close(c);
    qn_chat_text_close(deaf);
}

/* The one call of an answer, as "name arguments"; texts around it are left out. */
static void read_call(const char *text, char *out, size_t n_out)
{
    json_t *tools = parse(qn_chat_probe_tools);
    const qn_answer_options options = {.format = format, .tools = tools};
    qn_answer *a = NULL;
    size_t n, at = 0;
    assert_int_equal(qn_answer_new(&options, &a), QN_OK);
    assert_int_equal(qn_answer_feed(a, text, strlen(text)), QN_OK);
    for (int ended = 0; ended < 2; ended++) {
        if (ended) assert_int_equal(qn_answer_finish(a), QN_OK);
        const qn_answer_event *e = qn_answer_get_events(a, &n);
        for (size_t i = 0; i < n; i++)
            if (e[i].kind == QN_ANSWER_CALL_BEGIN || e[i].kind == QN_ANSWER_CALL_ARGUMENTS)
                at += (size_t)snprintf(out + at, n_out - at, "%.*s%s", (int)e[i].n, e[i].text,
                                       e[i].kind == QN_ANSWER_CALL_BEGIN ? " " : "");
    }
    assert_int_equal(qn_answer_count_malformed(a), 0);
    qn_answer_free(a);
    json_decref(tools);
}

#define SHOWS_NO_CALLS "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"

/* Where a template shows no calls, they are written as the model writes them. */
static void test_written_calls(void **state)
{
    static const char calls[] =
        "[" U("u") ",{\"role\":\"assistant\",\"content\":\"wait\",\"tool_calls\":[" CALL(
            LONG_ID,
            GOOD) "," CALL("b", ",\"arguments\":{\"n\":[1,true,null,\"q\\\"\"]}") "]}," T(LONG_ID,
                                                                                          "r") "," T("b",
                                                                                                     "s") "]";
    static const struct {
        const char *template, *text;
    } rows[] = {
        {SHOWS_NO_CALLS "{# <tool_call> #}",
         "<user>u<assistant>wait\n<tool_call>\n{\"name\": \"probe\", \"arguments\": {\"word\":\"argone\"}}\n"
         "</tool_call>\n<tool_call>\n{\"name\": \"probe\", \"arguments\": {\"n\":[1,true,null,\"q\\\"\"]}}\n"
         "</tool_call><tool>r<tool>s"},
        {SHOWS_NO_CALLS "{# <|tool_list_start|> #}", "<user>u<assistant>wait\n<|tool_call_start|>[probe(word="
                                                     "\"argone\"), probe(n=[1, True, None, \"q\\\"\"])]"
                                                     "<|tool_call_end|><tool>r<tool>s"},
        {SHOWS_NO_CALLS "{# <|tool_call|> #}",
         "<user>u<assistant>wait\n<|tool_call|>[{\"name\": \"probe\", \"arguments\": {\"word\":\"argone\"}}, "
         "{\"name\": \"probe\", \"arguments\": {\"n\":[1,true,null,\"q\\\"\"]}}]<tool>r<tool>s"},
        /* How these write calls is not known, or needs tags. */
        {SHOWS_NO_CALLS, NULL},
        {SHOWS_NO_CALLS "{# <tool_call><function= #}", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_chat_text *c = open_chat(rows[i].template);
        answer a = fit(c, calls, qn_chat_probe_tools, 0);
        assert_int_equal(a.status, rows[i].text ? QN_OK : QN_E_ARG);
        if (rows[i].text) {
            assert_string_equal(a.text.data, rows[i].text);
            assert_int_equal(a.fitted.n_notes, 1);
        } else {
            assert_string_equal(a.fitted.param, "messages[1].tool_calls[0]");
        }
        end(&a);
        qn_chat_text_close(c);
    }
}

/* The same with published templates: what is written is read as the same call. */
static void test_written_calls_of_files(void **state)
{
    static const char *const names[] = {"LFM2-8B-A1B", "LFM2.5-Instruct",
                                        "ibm-granite-granite-3.3-2B-Instruct"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512], call[512] = "";
        snprintf(path, sizeof path, "templates/%s.jinja", names[i]);
        char *text = read_text(qn_test_need_fixture(path));
        qn_chat_text *c = open_chat(text);
        answer a = fit(c, "[" U("u") "," CALLS(CALL(LONG_ID, GOOD)) "," T(LONG_ID, "resultone") "]",
                       qn_chat_probe_tools, 0);
        if (a.status != QN_OK) fail_msg("%s: %s", names[i], qn_last_error());
        const char *from = strstr(a.text.data, "argone");
        while (from > a.text.data && strncmp(from, "<|im_start|>", 12) != 0 &&
               strncmp(from, "<|start_of_role|>", 17) != 0)
            from--;
        read_call(from, call, sizeof call);
        json_t *arguments = parse(call + strlen("probe "));
        assert_memory_equal(call, "probe ", 6);
        assert_string_equal(json_string_value(json_object_get(arguments, "word")), "argone");
        json_decref(arguments);
        end(&a);
        qn_chat_text_close(c);
        qn_free(text);
    }
}

/* Thousands of messages that all have to be changed. */
static void test_long(void **state)
{
    enum { N = 4096 };
    qn_chat_text *c = open_chat(ALTERNATING);
    qn_buf b = {0};
    (void)state;
    for (int i = 0; i < N; i++) qn_buf_puts(&b, i ? "," U("word") : "[" S("first"));
    qn_buf_puts(&b, "]");
    assert_int_equal(b.status, QN_OK);
    answer a = fit(c, b.data, NULL, 0);
    assert_int_equal(a.status, QN_OK);
    assert_int_equal(json_array_size(a.fitted.messages), 1);
    assert_int_equal(a.text.length, strlen("<user>first") + (N - 1) * strlen("\n\nword"));
    end(&a);
    qn_buf_free(&b);
    qn_chat_text_close(c);
}

static void test_allocation_failures(void **state)
{
    qn_chat_text *c = open_chat(
        CHECKED("m.tool_calls | length > 1 or c.id | length != 9 or c.function.arguments "
                "is not mapping") "{% if messages[0].role == 'system' or messages[1].role == 'user' %}"
                                  "{{ raise_exception('no') }}{% endif %}");
    talk t = {.chat = c};
    const qn_chat_renderer r = {render, &t};
    const qn_chat_traits traits = {.ids = QN_CALL_ID_NINE};
    json_t *given = parse("[" S("s") "," U("u") "," U("v") "," S("t") "," CALLS(CALL("a", GOOD) "," CALL(
        "b", ",\"arguments\":\"[\"") "," CALL("c", "")) "," T("b", "r") "," T("a", "q") "]");
    const int64_t before = qn_mem_live_blocks();
    (void)state;
    for (int64_t n = 1;; n += n < 2000 ? 1 : 37) {
        qn_chat_fitted fitted;
        qn_mem_fail_nth(n);
        qn_status status = qn_chat_fit(given, &traits, 0, &r, &fitted);
        qn_mem_fail_nth(0);
        const size_t n_notes = fitted.n_notes;
        qn_chat_fitted_free(&fitted);
        assert_int_equal(qn_mem_live_blocks(), before);
        if (status == QN_OK) {
            assert_int_equal(n_notes, 5);
            break;
        }
        if (status != QN_E_NOMEM)
            fail_msg("allocation %d: %s: %s", (int)n, qn_status_name(status), qn_last_error());
    }
    json_decref(given);
    qn_chat_text_close(c);
}

/* ---- ids ---- */

static int is_one_of(const char *id, const char *prefix, size_t n, const char *alphabet)
{
    return strncmp(id, prefix, strlen(prefix)) == 0 && strlen(id) == strlen(prefix) + n &&
           strspn(id + strlen(prefix), alphabet) == n;
}

static void test_ids(void **state)
{
    static char all[2 * 5 * 5 * 5][QN_CALL_ID_BYTES_MAX];
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    char again[QN_CALL_ID_BYTES_MAX];
    size_t n = 0;
    (void)state;
    for (int form = 0; form < QN_CALL_ID_FORMS; form++)
        for (uint64_t seed = 0; seed < 5; seed++)
            for (int64_t choice = 0; choice < 5; choice++)
                for (int32_t index = 0; index < 5; index++, n++) {
                    qn_call_id_write((qn_call_id_form)form, seed, choice, index, all[n]);
                    qn_call_id_write((qn_call_id_form)form, seed, choice, index, again);
                    assert_string_equal(all[n], again);
                    qn_call_id_map((qn_call_id_form)form, all[n], strlen(all[n]), again);
                    assert_string_equal(all[n], again);
                    assert_true(form == QN_CALL_ID_NINE ? is_one_of(again, "", 9, letters)
                                                        : is_one_of(again, "call_", 24, "0123456789abcdef"));
                    for (size_t i = 0; i < n; i++) assert_string_not_equal(all[i], all[n]);
                }
    static const char *const others[] = {"", "a", "b", "abcde123", "abcde12345", "abcde-234", "call_abc"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        qn_call_id_map(QN_CALL_ID_NINE, others[i], strlen(others[i]), all[i]);
        assert_true(is_one_of(all[i], "", 9, letters));
        for (size_t k = 0; k < i; k++) assert_string_not_equal(all[i], all[k]);
    }
}

/* Texts beside pictures count too: a template that shows no parts does not take them. */
static void test_parts(void **state)
{
    static const char messages[] =
        "[" U("a") "," U("b") ",{\"role\":\"user\",\"content\":[{\"type\":\"image\"},{\"type\":\"text\","
                              "\"text\":\"seen\"}]}]";
    qn_chat_text *strings =
                     open_chat("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}"
                               "{% endfor %}"),
                 *parts =
                     open_chat("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
                               "{% for p in m.content %}{{ p.text if p.type == 'text' else '*' }}{% endfor %}"
                               "{% endif %}{% endfor %}");
    (void)state;
    answer a = fit(strings, messages, NULL, 0);
    assert_int_equal(a.status, QN_E_ARG);
    assert_string_equal(a.fitted.param, "messages[2]");
    end(&a);
    a = fit(parts, messages, NULL, 0);
    assert_int_equal(a.status, QN_OK);
    assert_true(a.text.length == 7 && memcmp(a.text.data, "ab*seen", 7) == 0);
    end(&a);
    qn_chat_text_close(strings);
    qn_chat_text_close(parts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_builtin_templates),
        cmocka_unit_test(test_traits),
        cmocka_unit_test(test_cost),
        cmocka_unit_test(test_split_calls),
        cmocka_unit_test(test_written_calls),
        cmocka_unit_test(test_written_calls_of_files),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_real_templates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
