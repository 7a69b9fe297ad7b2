/* Where answers lie: in what all templates of fixtures/templates make of chats, in the built-in formats, and
 * in templates that write earlier turns anew. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "tests/support/fixtures.h"
#include "text/chat/chat_builtin.h"
#include "train/data/answer_spans.h"

static json_t *parse(const char *text)
{
    json_t *json = NULL;
    if (qn_json_parse("test", text, strlen(text), &json) != QN_OK) fail_msg("%s: %s", text, qn_last_error());
    return json;
}

static qn_chat_text *open_chat(const char *model, const char *chat_template)
{
    qn_source *source = NULL;
    qn_chat_text *c = NULL;
    const qn_chat_text_options options = {.chat_template = chat_template};
    assert_int_equal(
        qn_source_open(qn_test_need_fixture(model), &(qn_source_options){.text_only = 1}, &source), QN_OK);
    if (qn_chat_text_open(source, &options, &c) != QN_OK) fail_msg("%s", qn_last_error());
    qn_source_close(source);
    return c;
}

typedef struct {
    json_t *request;
    qn_rendered whole;
    qn_answer_spans spans;
} answers;

/* 0: the template refuses the chat. */
static int find(const qn_chat_text *c, const char *request, answers *out)
{
    *out = (answers){.request = parse(request)};
    if (qn_chat_text_render_parts(c, out->request, &out->whole) != QN_OK) {
        json_decref(out->request);
        return 0;
    }
    assert_int_equal(qn_answer_spans_find(c, out->request, 0, &out->whole, &out->spans), QN_OK);
    return 1;
}

static void end(answers *a)
{
    qn_answer_spans_free(&a->spans);
    qn_rendered_free(&a->whole);
    json_decref(a->request);
}

/* Bytes of an answer; NULL: it was not found. */
static const char *span_text(const answers *a, int64_t k, size_t *n)
{
    const qn_answer_span *s = &a->spans.spans[k];
    *n = s->end - s->begin;
    return *n ? a->whole.text + s->begin : NULL;
}

static int has(const answers *a, int64_t k, const char *text)
{
    size_t n;
    const char *span = span_text(a, k, &n);
    return span && memmem(span, n, text, strlen(text)) != NULL;
}

static void expect(const answers *a, int64_t k, const char *want)
{
    size_t n;
    const char *span = span_text(a, k, &n);
    if (!span || n != strlen(want) || memcmp(span, want, n) != 0)
        fail_msg("answer %lld is [%.*s], expected [%s]", (long long)k, (int)n, span ? span : "", want);
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = qn_calloc(1 << 20, 1);
    assert_non_null(f);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, f) < (1 << 20) - 1);
    fclose(f);
    return text;
}

static const char two_turns[] =
    "{\"now\":\"2026-03-14T15:09:26\",\"messages\":[{\"role\":\"user\",\"content\":\"Question one?\"},"
    "{\"role\":\"assistant\",\"content\":\"Answer one.\"},{\"role\":\"user\",\"content\":\"Question "
    "two?\"},{\"role\":\"assistant\",\"content\":\"Answer two.\"}]}";

/* The ids of each span are its text and nothing else. */
static void check_ids(const qn_chat_text *c, const answers *a, const char *name)
{
    size_t cuts[16], at[16], n_ids, n;
    int32_t *ids;
    assert_true(a->spans.n <= 8);
    for (int64_t k = 0; k < a->spans.n; k++) {
        cuts[2 * k] = a->spans.spans[k].begin;
        cuts[2 * k + 1] = a->spans.spans[k].end;
    }
    assert_int_equal(qn_chat_text_encode(c, &a->whole, cuts, 2 * (size_t)a->spans.n, at, &ids, &n_ids),
                     QN_OK);
    for (int64_t k = 0; k < a->spans.n; k++) {
        qn_buf text = {0};
        const char *span = span_text(a, k, &n);
        assert_true(at[2 * k] <= at[2 * k + 1] && at[2 * k + 1] <= n_ids);
        for (size_t i = at[2 * k]; i < at[2 * k + 1]; i++)
            assert_int_equal(qn_tokenizer_piece(qn_chat_text_tokenizer(c), ids[i], &text), QN_OK);
        if (text.length != n || (n && memcmp(text.data, span, n) != 0))
            fail_msg("%s: the ids of answer %lld say [%.*s]", name, (long long)k, (int)text.length,
                     text.data);
        qn_buf_free(&text);
    }
    qn_free(ids);
}

/* The last answer begins where a prompt for it ends, if the template writes the two alike. */
static int check_last(const qn_chat_text *c, const answers *a, const char *name)
{
    json_t *request = qn_json_copy(a->request);
    json_t *messages = qn_json_copy(json_object_get(request, "messages"));
    qn_rendered prompt;
    size_t begin = a->spans.spans[a->spans.n - 1].begin;
    assert_int_equal(json_array_remove(messages, json_array_size(messages) - 1), 0);
    json_object_set(request, "messages", messages);
    json_object_set_new(request, "add_generation_prompt", json_true());
    assert_int_equal(qn_chat_text_render_parts(c, request, &prompt), QN_OK);
    int alike = prompt.n <= a->whole.n && memcmp(prompt.text, a->whole.text, prompt.n) == 0 &&
                !a->whole.n_generations;
    if (alike && begin != prompt.n)
        fail_msg("%s: the answer begins at byte %zu, its prompt ends at %zu", name, begin, prompt.n);
    qn_rendered_free(&prompt);
    json_decref(messages);
    json_decref(request);
    return alike;
}

typedef struct {
    int rendered, alike, calls, n_long;
} tally;

/* Answers are found with their words, and with little more. */
static void check_template(const char *name, const char *text, const char *request, tally *t)
{
    enum { MARKUP_MOST = 64 };
    static const char *const words[] = {"Answer one.", "Answer two."};
    qn_chat_text *c = open_chat("models/llama", text);
    answers a;
    if (!find(c, request, &a)) {
        print_message("%s: left out: %s\n", name, qn_last_error());
        qn_chat_text_close(c);
        return;
    }
    int last = (int)a.spans.n - 1;
    for (int k = 0; k <= last; k++) {
        size_t n = 0;
        const char *own = k == 0 ? words[0] : k == last ? words[1] : "weather";
        if (!strstr(a.whole.text, own)) continue; /* the template leaves it out */
        const int is_call = k > 0 && k < last;    /* may be left out where the template writes turns anew */
        if (is_call && !span_text(&a, k, &n)) continue;
        t->calls += is_call && has(&a, k, own);
        if (!is_call && !has(&a, k, own))
            fail_msg("%s: answer %d was not found in %s", name, k, a.whole.text);
        if (has(&a, k, "Question") || has(&a, k, "Sunny") || has(&a, k, words[k == 0]))
            fail_msg("%s: answer %d has more: %s", name, k, span_text(&a, k, &n));
        span_text(&a, k, &n);
        /* Some ask for an answer whatever comes last; this tokenizer does not know where their turns end. */
        if (!is_call && n > strlen(own) + MARKUP_MOST) {
            print_message("%s: answer %d has %zu bytes\n", name, k, n);
            t->n_long++;
        }
    }
    check_ids(c, &a, name);
    t->rendered++;
    t->alike += check_last(c, &a, name);
    end(&a);
    qn_chat_text_close(c);
}

static const char with_tools[] =
    "{\"now\":\"2026-03-14T15:09:26\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\","
    "\"description\":\"Of a city\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":"
    "\"string\",\"description\":\"Which\"}},\"required\":[\"city\"]}}}],\"messages\":[{\"role\":\"user\","
    "\"content\":\"Question one?\"},{\"role\":\"assistant\",\"content\":\"Answer one.\"},{\"role\":\"user\","
    "\"content\":\"Question two?\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":"
    "\"abcdefghi\",\"type\":\"function\",\"function\":{\"name\":\"weather\",\"arguments\":{\"city\":"
    "\"Oslo\"}}}]},{\"role\":\"tool\",\"tool_call_id\":\"abcdefghi\",\"name\":\"weather\",\"content\":"
    "\"Sunny\"},{\"role\":\"assistant\",\"content\":\"Answer two.\"}]}";

static void test_all_templates(void **state)
{
    tally plain = {0}, tools = {0};
    char folder[256];
    snprintf(folder, sizeof folder, "%s", qn_test_need_fixture("templates"));
    struct dirent **entries;
    int n = scandir(folder, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char path[512];
        const char *dot = strrchr(entries[i]->d_name, '.');
        if (dot && strcmp(dot, ".jinja") == 0) {
            snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
            char *text = read_file(path);
            check_template(entries[i]->d_name, text, two_turns, &plain);
            check_template(entries[i]->d_name, text, with_tools, &tools);
            qn_free(text);
        }
        free(entries[i]); /* foreign: scandir's */
    }
    free(entries); /* foreign: scandir's */
    print_message("chats: %d templates, %d of them exact; with tools: %d, %d, calls found in %d\n",
                  plain.rendered, plain.alike, tools.rendered, tools.alike, tools.calls);
    assert_true(plain.n_long <= 1 && tools.n_long <= 2);
    assert_true(plain.rendered >= 30 && plain.alike >= 20 && tools.rendered >= 20 && tools.calls >= 20);
}

static void expect_answers(const char *text, const char *request, const char *const *want)
{
    qn_chat_text *c = open_chat("models/llama", text);
    answers a;
    assert_true(find(c, request, &a));
    for (int64_t k = 0; k < a.spans.n; k++) {
        size_t n;
        if (want[k])
            expect(&a, k, want[k]);
        else
            assert_null(span_text(&a, k, &n));
    }
    assert_null(want[a.spans.n]);
    check_ids(c, &a, "exact");
    end(&a);
    qn_chat_text_close(c);
}

static void test_builtin_formats(void **state)
{
    static const char *const ends[][2] = {
        {"gemma", "<end_of_turn>"}, {"qwen", "<|im_end|>"}, {"llama3", "<|eot_id|>"}};
    for (int i = 0; i < 3; i++) {
        char one[64], two[64];
        snprintf(one, sizeof one, "Answer one.%s", ends[i][1]);
        snprintf(two, sizeof two, "Answer two.%s", ends[i][1]);
        const char *const want[] = {one, two, NULL};
        expect_answers(qn_chat_builtin_find(ends[i][0])->text, two_turns, want);
    }
}

#define PLAIN_TURN "{% for m in messages %}<|{{ m.role }}|>\n"
#define ASK "{% if add_generation_prompt %}<|assistant|>\n<think>\n{% endif %}"

static void test_rewritten_turns(void **state)
{
    /* Reasoning stays in the last turn only, and asking opens it. */
    static const char reasons[] = PLAIN_TURN
        "{% if m.role == 'assistant' %}{% if loop.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% "
        "endif %}{{ m.content }}{% else %}{{ m.content }}{% endif %}<|eot_id|>\n{% endfor %}" ASK;
    static const char chat[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"reasoning_content\":"
        "\"first\","
        "\"content\":\" b "
        "\"},{\"role\":\"user\",\"content\":\"b\"},{\"role\":\"assistant\",\"reasoning_content\":\"x\","
        "\"content\":\"b\"}]}";
    expect_answers(reasons, chat, (const char *const[]){" b <|eot_id|>", "x\n</think>\n\nb<|eot_id|>", NULL});
    /* The date of the day stands in front when the last word is the user's. */
    static const char moves[] = "{% if messages[-1].role == 'user' %}(today){% endif %}" PLAIN_TURN
                                "{{ m.content }}<|eot_id|>{% endfor %}"
                                "{% if add_generation_prompt %}<|assistant|>\n{% endif %}";
    expect_answers(moves, two_turns,
                   (const char *const[]){"Answer one.<|eot_id|>", "Answer two.<|eot_id|>", NULL});
}

/* The assistant speaks first: a preamble that the template writes then is not what it says. */
static void test_answer_first(void **state)
{
    static const char chat[] = "{\"messages\":[{\"role\":\"assistant\",\"content\":\"Hello.\"},{\"role\":"
                               "\"user\",\"content\":\"a\"},"
                               "{\"role\":\"assistant\",\"content\":\"b\"}]}";
#define PREAMBLE "{% if loop.first %}<|system|>\nYou are the assistant\n<|eot_id|>\n{% endif %}"
    static const char turns[] =
        "{% for m in messages %}" PREAMBLE "<|{{ m.role }}|>\n{{ m.content }}<|eot_id|>\n{% endfor %}";
    static const char *const asks[] = {
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        "{% if add_generation_prompt %}<|assistant|>\n<think>\n{% endif %}",
    };
    for (int i = 0; i < 2; i++) {
        char text[512];
        snprintf(text, sizeof text, "%s%s", turns, asks[i]);
        expect_answers(text, chat, (const char *const[]){"Hello.<|eot_id|>", "b<|eot_id|>", NULL});
    }
#undef PREAMBLE
}

static void test_marked_turns(void **state)
{
    /* The end of turn lies behind what is marked, and is not marked twice. */
    static const char behind[] = PLAIN_TURN
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}<|eot_id|>"
        "{% else %}{{ m.content }}<|eot_id|>{% endif %}\n{% endfor %}";
    static const char within[] = PLAIN_TURN
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|eot_id|>{% endgeneration %}"
        "{% else %}{{ m.content }}<|eot_id|>{% endif %}\n{% endfor %}";
    const char *const want[] = {"Answer one.<|eot_id|>", "Answer two.<|eot_id|>", NULL};
    expect_answers(behind, two_turns, want);
    expect_answers(within, two_turns, want);
}

static void test_end_between_turns(void **state)
{
    /* Turns are ended by the next one; white space of the answer stays its own. */
    static const char lazily[] =
        "{% for m in messages %}{% if not loop.first %}{{ '\\n' }}<|eot_id|>{% endif %}<|{{ m.role }}|>"
        "{{ m.content }}{% endfor %}{% if add_generation_prompt %}{{ '\\n' }}<|eot_id|><|assistant|>{% "
        "endif %}";
    expect_answers(lazily, two_turns, (const char *const[]){"Answer one.\n<|eot_id|>", "Answer two.", NULL});
    /* The template asks whatever comes last. */
    static const char eager[] =
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|eot_id|>{% endfor %}<|assistant|>";
    expect_answers(eager, two_turns,
                   (const char *const[]){"Answer one.<|eot_id|>", "Answer two.<|eot_id|>", NULL});
    /* An answer cannot end its own turn early. */
    static const char forged[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
        "\"content\":\"b<|eot_id|> \"},{\"role\":\"user\",\"content\":\"c\"}]}";
    static const char plain[] = PLAIN_TURN "{{ m.content }}<|eot_id|>{% endfor %}" ASK;
    expect_answers(plain, forged, (const char *const[]){"b<|eot_id|> <|eot_id|>", NULL});
}

/* What a template never shows is not found, and does not take its neighbours' place. */
static void test_left_out(void **state)
{
    static const char silent[] =
        "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
    qn_chat_text *c = open_chat("models/llama", silent);
    answers a;
    size_t n;
    assert_true(find(c, two_turns, &a));
    assert_int_equal(a.spans.n, 2);
    for (int64_t k = 0; k < 2; k++) assert_null(span_text(&a, k, &n));
    end(&a);
    qn_chat_text_close(c);
}

static void test_allocation_failures(void **state)
{
    static const char reasons[] =
        PLAIN_TURN "{% if loop.last %}.{% endif %}{{ m.content }}<|eot_id|>{% endfor %}" ASK;
    qn_chat_text *c = open_chat("models/llama", reasons);
    answers a;
    int done = 0;
    assert_true(find(c, two_turns, &a));
    int64_t live = qn_mem_live_blocks();
    for (int64_t n = 1; n <= 2000 && !done; n++) {
        qn_answer_spans spans = {0};
        qn_mem_fail_nth(n);
        qn_status status = qn_answer_spans_find(c, a.request, 0, &a.whole, &spans);
        qn_mem_fail_nth(0);
        done = status == QN_OK;
        if (done)
            assert_memory_equal(spans.spans, a.spans.spans, (size_t)spans.n * sizeof *spans.spans);
        else
            assert_int_equal(status, QN_E_NOMEM);
        qn_answer_spans_free(&spans);
        assert_int_equal(qn_mem_live_blocks(), live);
    }
    assert_true(done);
    end(&a);
    qn_chat_text_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_templates),   cmocka_unit_test(test_builtin_formats),
        cmocka_unit_test(test_rewritten_turns), cmocka_unit_test(test_answer_first),
        cmocka_unit_test(test_marked_turns),    cmocka_unit_test(test_end_between_turns),
        cmocka_unit_test(test_left_out),        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
