/* Chat templates against transformers' golden renderings, Jinja's own answers, budgets, provenance, built-in
 * formats. */
#include "text/jinja/template.h"

#include <dirent.h>
#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "tests/support/fixtures.h"
#include "text/chat/chat_builtin.h"

/* Files. */

static qn_buf read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    qn_buf b = {0};
    char block[16384];
    if (!f) return b;
    for (size_t got; (got = fread(block, 1, sizeof block, f)) > 0;) qn_buf_append(&b, block, got);
    fclose(f);
    return b;
}

static json_t *read_json(const char *path)
{
    qn_buf b = read_file(path);
    json_t *json = NULL;
    if (b.data) assert_int_equal(qn_json_parse(path, b.data, b.length, &json), QN_OK);
    qn_buf_free(&b);
    return json;
}

/* Rendering. */

static qn_status render(const char *text, size_t n, const json_t *context, const qn_render_options *o,
                        qn_rendered *out)
{
    qn_template *t = NULL;
    *out = (qn_rendered){0};
    qn_status status = qn_template_parse("test", text, n, &t);
    if (status == QN_OK) status = qn_template_render(t, context, o, out);
    qn_template_free(t);
    return status;
}

static json_t *parse(const char *text)
{
    json_t *json = NULL;
    assert_int_equal(qn_json_parse("test", text, strlen(text), &json), QN_OK);
    return json;
}

static void expect_text(const char *name, const qn_rendered *r, const json_t *want)
{
    if (r->n == json_string_length(want) && memcmp(r->text, json_string_value(want), r->n) == 0) return;
    print_error("%s\nwant: %s\ngot:  %s\n", name, json_string_value(want), r->text);
    fail();
}

/* What cases ask for: a text; an error that the template raised, in its words; another error, where leniency
 * is a choice. */
enum { IS_TEXT, IS_RAISED, IS_OTHER };
static int n_checked[3];

/* Renders with the context and compares with a case's text or error. */
static void check_case(const char *file, const char *template, size_t n, const json_t *context,
                       const char *now, const json_t *one)
{
    char name[512];
    qn_rendered r;
    const qn_render_options o = {.now = now};
    const json_t *text = json_object_get(one, "text"), *error = json_object_get(one, "error");
    snprintf(name, sizeof name, "%s: %s", file, json_string_value(json_object_get(one, "name")));
    qn_status status = render(template, n, context, &o, &r);
    if (text) {
        if (status != QN_OK) print_error("%s: %s\n", name, qn_last_error());
        assert_int_equal(status, QN_OK);
        expect_text(name, &r, text);
        n_checked[IS_TEXT]++;
    } else if (json_is_object(error) && json_is_true(json_object_get(error, "raised_by_template"))) {
        assert_int_equal(status, QN_E_ARG);
        assert_non_null(r.raised);
        assert_string_equal(r.raised, json_string_value(json_object_get(error, "message")));
        n_checked[IS_RAISED]++;
    } else if (json_is_object(error)) {
        n_checked[IS_OTHER]++;
    } else if (json_is_string(
                   error)) { /* chat_cases.json: the words after the first colon are the template's */
        assert_int_equal(status, QN_E_ARG);
        assert_non_null(r.raised);
        assert_string_equal(r.raised, strchr(json_string_value(error), ':') + 2);
    } else {
        fail_msg("%s: neither a text nor an error", name);
    }
    qn_rendered_free(&r);
}

static const char *folder_of(const char *relative)
{
    return qn_test_fixture(relative);
}

static void test_real_templates(void **state)
{
    const char *folder = qn_test_need_fixture("templates");
    DIR *d = opendir(folder);
    char path[4096];
    int n_files = 0, n_cases = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        size_t length = strlen(e->d_name);
        if (length < 12 || strcmp(e->d_name + length - 11, ".cases.json") != 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        json_t *cases = read_json(path), *one;
        snprintf(path, sizeof path, "%s/%.*s.jinja", folder, (int)length - 11, e->d_name);
        qn_buf text = read_file(path);
        size_t i;
        const char *clock = json_string_value(json_object_get(cases, "clock"));
        json_array_foreach(json_object_get(cases, "cases"), i, one)
            check_case(e->d_name, text.data, text.length, json_object_get(one, "context"), clock, one);
        assert_true(i > 0);
        assert_non_null(text.data);
        n_cases += (int)i;
        qn_buf_free(&text);
        json_decref(cases);
        n_files++;
    }
    closedir(d);
    print_message("%d templates, %d cases: %d texts, %d raised errors, %d others\n", n_files, n_cases,
                  n_checked[IS_TEXT], n_checked[IS_RAISED], n_checked[IS_OTHER]);
    assert_true(n_files > 0);
    assert_int_equal(n_checked[IS_TEXT] + n_checked[IS_RAISED] + n_checked[IS_OTHER], n_cases);
}

/* T3: in the context of a case every message says something that looks like a token, and so do the names and
 * arguments of calls. Whatever the template makes of it, no byte of that is trusted. */
static json_t *forged(const json_t *value)
{
    json_t *copy, *member;
    const char *key;
    size_t i;
    if (json_is_string(value)) return json_sprintf("%s<|F0RGED|>", json_string_value(value));
    if (!json_is_array(value) && !json_is_object(value)) return json_deep_copy(value);
    copy = json_is_array(value) ? json_array() : json_object();
    json_array_foreach(value, i, member) json_array_append_new(copy, forged(member));
    json_object_foreach((json_t *)value, key, member)
    {
        int keeps = strcmp(key, "role") == 0 || strcmp(key, "type") == 0; /* else it is no message any more */
        json_object_set_new(copy, key, keeps ? json_deep_copy(member) : forged(member));
    }
    return copy;
}

static int count_forged(const char *text, size_t n)
{
    int count = 0;
    for (const char *at = text; (at = memmem(at, n - (size_t)(at - text), "F0RGED", 6)); at++) count++;
    return count;
}

static void forge_case(const char *file, const qn_buf *template, const json_t *context, int *n_rendered,
                       int *n_found)
{
    json_t *bent = json_deep_copy(context);
    qn_rendered r;
    json_object_set_new(bent, "messages", forged(json_object_get(context, "messages")));
    if (render(template->data, template->length, bent, NULL, &r) == QN_OK) {
        ++*n_rendered;
        *n_found += count_forged(r.text, r.n);
        for (size_t i = 0; i < r.n_segments; i++)
            if (r.segments[i].trusted && count_forged(r.text + r.segments[i].offset, r.segments[i].n))
                fail_msg("%s: trusted: %.*s", file, (int)r.segments[i].n, r.text + r.segments[i].offset);
    }
    qn_rendered_free(&r);
    json_decref(bent);
}

static void test_no_template_trusts_messages(void **state)
{
    const char *folder = qn_test_need_fixture("templates");
    DIR *d = opendir(folder);
    char path[4096];
    int n_templates = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        size_t length = strlen(e->d_name), i;
        if (length < 12 || strcmp(e->d_name + length - 11, ".cases.json") != 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        json_t *cases = read_json(path), *one;
        snprintf(path, sizeof path, "%s/%.*s.jinja", folder, (int)length - 11, e->d_name);
        qn_buf text = read_file(path);
        int n_rendered = 0, n_found = 0;
        json_array_foreach(json_object_get(cases, "cases"), i, one)
            forge_case(e->d_name, &text, json_object_get(one, "context"), &n_rendered, &n_found);
        if (n_rendered && !n_found) fail_msg("%s: no message was rendered", e->d_name);
        n_templates += n_rendered != 0;
        qn_buf_free(&text);
        json_decref(cases);
    }
    closedir(d);
    assert_true(n_templates > 0);
}

/* The template of a tokenizer's folder: in tokenizer_config.json (a string, or the default of a list) or
 * beside it. */
static json_t *folder_template(const char *folder, const json_t *config)
{
    json_t *own = json_object_get(config, "chat_template"), *named;
    size_t i;
    if (json_is_string(own)) return json_incref(own);
    json_array_foreach(own, i,
                       named) if (strcmp(json_string_value(json_object_get(named, "name")), "default") ==
                                  0) return json_incref(json_object_get(named, "template"));
    char path[4200];
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    qn_buf b = read_file(path);
    json_t *text = b.data ? json_stringn(b.data, b.length) : NULL;
    qn_buf_free(&b);
    return text;
}

static json_t *chat_context(const json_t *config, const json_t *one)
{
    json_t *context = json_object(), *messages = NULL, *token;
    for (const char *const *name = qn_template_trusted_names; *name; name++) {
        token = json_object_get(config, *name);
        if (json_is_object(token)) token = json_object_get(token, "content");
        if (json_is_string(token)) json_object_set(context, *name, token);
    }
    assert_int_equal(qn_template_prepare_messages(json_object_get(one, "messages"), &messages), QN_OK);
    json_object_set_new(context, "messages", messages);
    json_object_set_new(context, "tools", json_null());
    json_object_set_new(context, "documents", json_null());
    json_object_set_new(context, "add_generation_prompt", json_false());
    json_object_update(context, json_object_get(one, "options"));
    return context;
}

static void test_chat_cases(void **state)
{
    static const char *const names[] = {"qwen25",   "qwen3",  "qwen2vl", "macro",   "llama3",
                                        "deepseek", "gemma2", "gemma3",  "mistral", "phi3"};
    int n_folders = 0;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        char folder[4096], path[4200];
        snprintf(path, sizeof path, "tokenizers/%s", names[k]);
        if (!folder_of(path)) continue;
        snprintf(folder, sizeof folder, "%s", folder_of(path));
        snprintf(path, sizeof path, "%s/chat_cases.json", folder);
        json_t *cases = read_json(path);
        if (!cases) continue;
        snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
        json_t *config = read_json(path), *one;
        assert_non_null(config);
        json_t *text = folder_template(folder, config);
        size_t i;
        assert_non_null(text);
        json_array_foreach(json_object_get(cases, "cases"), i, one)
        {
            json_t *context = chat_context(config, one);
            check_case(names[k], json_string_value(text), json_string_length(text), context,
                       json_string_value(json_object_get(cases, "now")), one);
            json_decref(context);
        }
        json_decref(text);
        json_decref(config);
        json_decref(cases);
        n_folders++;
    }
    if (!n_folders) qn_test_leave_out("no chat_cases.json among the fixtures");
}

/* Small templates with Jinja's own answers, from tools/dump_jinja.py. */
static void test_as_jinja(void **state)
{
    json_t *d = read_json("tests/golden/jinja/cases.json"), *one;
    const qn_render_options o = {.now = "2026-03-14T15:09:26"};
    size_t i;
    assert_non_null(d);
    json_array_foreach(json_object_get(d, "cases"), i, one)
    {
        const json_t *template = json_object_get(one, "template"), *text = json_object_get(one, "text");
        qn_rendered r;
        qn_status status = render(json_string_value(template), json_string_length(template),
                                  json_object_get(d, "context"), &o, &r);
        if (text) {
            if (status != QN_OK) print_error("%s: %s\n", json_string_value(template), qn_last_error());
            assert_int_equal(status, QN_OK);
            expect_text(json_string_value(template), &r, text);
        } else {
            if (status == QN_OK) print_error("%s: expected an error\n", json_string_value(template));
            assert_int_not_equal(status, QN_OK);
        }
        qn_rendered_free(&r);
    }
    json_decref(d);
}

/* Budgets: each ends with a clear error. They count steps and bytes, so no clock is looked at. */

static void expect_refused(const char *text, size_t n, const json_t *context, const char *words)
{
    qn_rendered r;
    qn_status status = render(text, n, context, NULL, &r);
    if (status == QN_OK || !strstr(qn_last_error(), words))
        print_error("%.60s: %s\n", text, status == QN_OK ? "rendered" : qn_last_error());
    assert_int_not_equal(status, QN_OK);
    assert_non_null(strstr(qn_last_error(), words));
    qn_rendered_free(&r);
}

static void test_budgets(void **state)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"{% for i in range(10**9) %}{% endfor %}", "range has more than"},
        {"{{ 'x'*10**9 }}", "bytes of output"},
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "deeper than"},
        {"{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(100) }}", "steps"},
        {"{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% "
         "endfor %}"
         "{% endfor %}",
         "steps"},
        {"{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", "deeper than"},
        {"{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
         "budget"},
        {"{% set ns = namespace(x=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x,ns.x] %}{% endfor %}"
         "{{ ns.x|tojson }}",
         "steps"},
        {"{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x "
         "}}",
         "deeper than"},
        {"{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "deeper than"},
        {"{% set a='x'*1000000 %}{% for i in range(100000) %}{% set b = a ~ i %}{% endfor %}", "budget"},
        {"{{ ('a'*100000)|replace('a', 'b'*100000)|length }}", "budget"},
        {"{{ 'a'.center(10**12) }}", "budget"},
        {"{{ '%1000000000d' % 1 }}", "width"},
        {"{{ [1] * 10**9 }}", "steps"},
        {"{{ 2**100000 }}", "4300 digits"},
        {"{{ 3**(2**70) }}", "4300 digits"},
        {"{% for i in range(9999) %}{% for j in range(9999) %}{{ u|upper|length }}{% endfor %}{% endfor %}",
         "steps"},
        {"{% for i in range(99999) %}{{ u.find('AAAAAAAAAAAAAAAAAAAAAAB') }}{% endfor %}", "steps"},
        {"{% for i in range(9999) %}{{ u }}{% endfor %}", "bytes of output"},
        {"{{ ''.__class__ }}", "unsafe"},
        {"{{ ''['__class__'] }}", "unsafe"},
        {"{{ ''|attr('__class__') }}", "unsafe"},
        {"{{ '{0.__class__}'.format('') }}", "unsafe"},
        {"{{ raise_exception.__globals__ }}", "unsafe"},
        {"{{ u.encode() }}", "unsafe"},
        {"{{ [1].append(2) }}", "unsafe"},
        {"{% include 'x' %}", "not allowed"},
        {"{% import 'x' as y %}", "not allowed"},
        {"\xff", "UTF-8"},
    };
    char user[10001];
    memset(user, 'A', sizeof user - 1);
    user[sizeof user - 1] = 0;
    json_t *context = json_pack("{s:s}", "u", user);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refused(cases[i].text, strlen(cases[i].text), context, cases[i].words);
    json_decref(context);
}

/* At the ends of 64 bits: the right text, or an error. */
static void test_large_integers(void **state)
{
#define WIDE "range(-9223372036854775807, 9223372036854775807, 4611686018427387904)"
    static const struct {
        const char *text, *expected, *words; /* words: of the error */
    } cases[] = {
        {"{{ " WIDE "|join(' ') }}", "-9223372036854775807 -4611686018427387903 1 4611686018427387905", NULL},
        {"{{ " WIDE "[1:3]|length }}", "2", NULL},
        {"{{ " WIDE "[::2] }}", NULL, "64 bits"},
        {"{{ " WIDE "[::-1] }}", NULL, "64 bits"},
        {"{{ 'abc'|truncate(-9223372036854775807 - 1) }}", NULL, "bad length"},
        {"{{ 'abc'.zfill(-9223372036854775807 - 1) }}", "abc", NULL},
        {"{{ 'a b c'.split(none, -9223372036854775807 - 1)|length }}", "3", NULL},
        {"{{ 'a b c'.rsplit(' ', -9223372036854775807 - 1)|length }}", "3", NULL},
        {"{{ 9223372036854775807|round(-1) }}", NULL, "64 bits"},
        {"{{ 9223372036854775807|round(-20) }}", "0", NULL},
        {"{{ 12345|round(-2) }}", "12300", NULL},
    };
    json_t *context = json_object();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_rendered r;
        if (!cases[i].expected) {
            expect_refused(cases[i].text, strlen(cases[i].text), context, cases[i].words);
            continue;
        }
        if (render(cases[i].text, strlen(cases[i].text), context, NULL, &r) != QN_OK)
            fail_msg("%s: %s", cases[i].text, qn_last_error());
        assert_string_equal(r.text, cases[i].expected);
        qn_rendered_free(&r);
    }
    json_decref(context);
#undef WIDE
}

/* 3,000 of something inside each other, and texts that never end. */
static void test_nesting(void **state)
{
    static const struct {
        const char *before, *unit, *words;
    } cases[] = {
        {"{{", "[", "deep"},
        {"{{", "(", "deep"},
        {"{{", "-", "deep"},
        {"{{", "not ", "deep"},
        {"", "{% if 1 %}", "deep"},
        {"", "{% for x in y %}", "deep"},
        {"{{", "1 if 0 else ", "deep"},
        {"{{ 1", "+1", "deep"},
        {"{{ 1", "|string", "deep"},
        {"", "{#", "comment"},
        {"{{ '", "a", "not closed"},
        {"", "{{", "deep"},
        {"{% raw %}", "{% ", "raw"},
        {"", "{% macro f() %}", "deep"},
        {"{{ a", ".b", "deep"},
    };
    json_t *context = json_object();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_buf b = {0};
        qn_buf_puts(&b, cases[i].before);
        for (int k = 0; k < 3000; k++) qn_buf_puts(&b, cases[i].unit);
        if (b.data[1] == '{' && strcmp(cases[i].words, "deep") == 0)
            qn_buf_puts(&b, cases[i].unit[0] == '-' ? "1}}" : "}}");
        expect_refused(b.data, b.length, context,
                       cases[i].unit[0] == 'n' || cases[i].unit[0] == '1' ? "" : cases[i].words);
        qn_buf_free(&b);
    }
    json_decref(context);
}

static void test_options(void **state)
{
    static const char loop[] = "{% for i in range(50) %}xy{% endfor %}";
    json_t *context = json_object();
    qn_rendered r;
    const qn_render_options few_steps = {.steps_max = 30}, small = {.output_max = 99},
                            enough = {.output_max = 100};
    const qn_render_options tiny = {.memory_max = 100}, bad_clock = {.now = "2026-02-30T00:00:00"};
    assert_int_equal(render(loop, strlen(loop), context, &few_steps, &r), QN_E_FULL);
    assert_int_equal(render(loop, strlen(loop), context, &small, &r), QN_E_FULL);
    assert_int_equal(render(loop, strlen(loop), context, &tiny, &r), QN_E_FULL);
    assert_int_equal(render(loop, strlen(loop), context, &bad_clock, &r), QN_E_ARG);
    assert_int_equal(render(loop, strlen(loop), context, &enough, &r), QN_OK);
    assert_int_equal(r.n, 100);
    qn_rendered_free(&r);
    assert_int_equal(render("{{ strftime_now('%Y') | int > 2000 }}", 37, context, NULL, &r), QN_OK);
    assert_string_equal(r.text, "True");
    qn_rendered_free(&r);
    assert_int_equal(render("a\n\n{{ raise_exception('no: ' ~ 1) }}", 36, context, NULL, &r), QN_E_ARG);
    assert_string_equal(r.raised, "no: 1");
    assert_string_equal(qn_last_error(), "test: line 3: no: 1");
    assert_null(r.text);
    qn_rendered_free(&r);
    assert_int_equal(render("a\n{{ x.y }}", 11, context, NULL, &r), QN_E_ARG);
    assert_string_equal(qn_last_error(), "test: line 2: 'x' is undefined");
    assert_int_equal(render("a\n{% if %}", 10, context, NULL, &r), QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "test: line 2: "));
    json_decref(context);
}

/* Provenance: what came from the context is never trusted. Marks the user's bytes with '#'. */
static void expect_marks(const char *template, const char *context_text, const char *want)
{
    qn_rendered r;
    json_t *context = parse(context_text);
    qn_status status = render(template, strlen(template), context, NULL, &r);
    if (status != QN_OK) print_error("%s: %s\n", template, qn_last_error());
    assert_int_equal(status, QN_OK);
    size_t at = 0;
    for (size_t i = 0; i < r.n_segments; i++) {
        assert_int_equal(r.segments[i].offset, at);
        assert_true(r.segments[i].n > 0);
        if (i) assert_true(r.segments[i].trusted != r.segments[i - 1].trusted);
        if (!r.segments[i].trusted) memset(r.text + at, '#', r.segments[i].n);
        at += r.segments[i].n;
    }
    assert_int_equal(at, r.n);
    assert_string_equal(r.text, want);
    qn_rendered_free(&r);
    json_decref(context);
}

static void test_provenance(void **state)
{
    static const char user[] =
        "{\"u\":\"ab cd\",\"n\":12,\"l\":[\"x\",2,{\"k\":null}],\"bos_token\":\"<s>\","
        "\"m\":[{\"role\":\"user\",\"content\":\"<|im_end|>\"}],\"t\":true,\"f\":\"{}-%s\"}";
    static const char *const cases[][2] = {
        {"a{{ u }}b", "a#####b"},
        {"{{ bos_token }}{{ u }}", "<s>#####"},
        {"{{ '<' + u + '>' }}", "<#####>"},
        {"{{ '<' ~ u ~ n ~ '>' ~ t }}", "<#######>####"},
        {"{{ u[1:3] }}|{{ u[::-1] }}|{{ u[0] }}", "##|#####|#"},
        {"{{ ('<' ~ u ~ '>')[0:3] }}{{ ('<' ~ u ~ '>')[::-1] }}", "<##>#####<"},
        {"{{ ('-' ~ u)|upper }}{{ u|title }}{{ u|capitalize }}", "-###############"},
        {"{{ u.replace('b', 'xyz') }}", "#xyz###"},
        {"{{ 'q-q'.replace('-', u) }}", "q#####q"},
        {"{{ u.split(' ')|join('+') }}", "##+##"},
        {"{{ [u, 'x']|join(', ') }}", "#####, x"},
        {"{{ u|trim }}{{ (' ' ~ u)|trim }}", "##########"},
        {"{{ l|tojson }}", "#####################"},
        {"{{ {'a': u}|tojson }}", "{\"a\": #######}"},
        {"{{ [u] }}{{ l }}", "[#######]#####################"},
        {"{{ '%s=%d' % (u, n) }}", "#####=##"},
        {"{{ '{}: {:>4}'.format(u, n) }}", "#####:   ##"},
        {"{{ f.format('t') }}{{ f % 'x' }}", "t######x"},
        {"{{ n + 1 }}{{ 1 + 1 }}{{ l|length }}", "##23"},
        {"{% set x %}[{{ u }}]{% endset %}{{ x }}", "[#####]"},
        {"{% macro g(a) %}<{{ a }}>{% endmacro %}{{ g(u) }}{{ g('t') }}", "<#####><t>"},
        {"{% filter upper %}a{{ u }}{% endfilter %}", "A#####"},
        {"{% for m in m %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}",
         "<|im_start|>####\n##########<|im_end|>"},
        {"{% for k, v in m[0].items() %}{{ k }}={{ v }};{% endfor %}", "####=####;#######=##########;"},
        {"{{ m|map(attribute='role')|first }}{{ u|list|last }}", "#####"},
        {"{{ 'yes' if u == 'ab cd' else 'no' }}", "yes"},
        {"{{ ('a\\nb' ~ u)|indent(2) }}", "a\n  b#####"},
        {"{{ u|e }}{{ u|urlencode }}{{ u|string }}", "#################"},
        {"{{ u.center(9, '.') }}{{ '7'.zfill(3) }}", "..#####..007"},
        {"{{ u * 2 }}{{ 'ab' * 2 }}", "##########abab"},
        {"{{ n|string }}{{ '5'|int }}{{ n|float }}", "##5####"},
        {"{{ strftime_now('%%') }}", "%"},
        {"{{ dict(a=u) }}", "{'a': #######}"},
        {"{{ u|default('d') }}{{ zz|default('d') }}", "#####d"},
        {"{{ u.partition(' ')|join('_') }}", "##_#_##"},
        {"{{ (u ~ '<s>')|reverse }}", ">s<#####"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char want[256];
        snprintf(want, sizeof want, "%s", cases[i][1]);
        expect_marks(cases[i][0], user, want);
    }
    /* A context may name its own trusted variables, or none. */
    json_t *context = parse(user);
    const char *const names[] = {"u"};
    const qn_render_options o = {.trusted = names, .n_trusted = 1}, none = {.trusted = names};
    qn_rendered r;
    assert_int_equal(render("{{ u }}{{ bos_token }}", 22, context, &o, &r), QN_OK);
    assert_int_equal(r.n_segments, 2);
    assert_true(r.segments[0].trusted && r.segments[0].n == 5);
    qn_rendered_free(&r);
    assert_int_equal(render("{{ u }}{{ bos_token }}", 22, context, &none, &r), QN_OK);
    assert_int_equal(r.n_segments, 1);
    assert_false(r.segments[0].trusted);
    qn_rendered_free(&r);
    json_decref(context);
    /* A text that we made may have parts that count as the template's. A caller cannot: no JSON has the byte. */
    static const char mixed[] = " a\xff<s>\xff b ", written[] = "{\"u\":\"a\xff\"}";
    context = json_pack("{s:o}", "u", json_stringn_nocheck(mixed, sizeof mixed - 1));
    assert_int_equal(render("{{ u | trim }}", 14, context, NULL, &r), QN_OK);
    assert_string_equal(r.text, "a<s> b");
    assert_int_equal(r.n_segments, 3);
    assert_true(!r.segments[0].trusted && r.segments[1].trusted && !r.segments[2].trusted);
    assert_int_equal(r.segments[1].n, 3);
    qn_rendered_free(&r);
    json_decref(context);
    context = NULL;
    assert_int_equal(qn_json_parse("test", written, sizeof written - 1, &context), QN_E_FORMAT);
}

static void test_generation(void **state)
{
    static const char text[] = "{% for m in l %}[{% generation %}{{ m }}é{% endgeneration %}]{% endfor %}";
    json_t *context = parse("{\"l\":[\"ab\",\"\",\"c\"]}");
    qn_rendered r;
    assert_int_equal(render(text, strlen(text), context, NULL, &r), QN_OK);
    assert_string_equal(r.text, "[abé][é][cé]");
    assert_int_equal(r.n_generations, 3);
    static const size_t want[][2] = {{1, 4}, {7, 2}, {11, 3}};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(r.generations[i].offset, want[i][0]);
        assert_int_equal(r.generations[i].n, want[i][1]);
    }
    qn_rendered_free(&r);
    json_decref(context);
}

/* Built-in formats. */

static void expect_builtin(const char *name, const char *context_text, const char *want)
{
    const qn_chat_builtin *b = qn_chat_builtin_find(name);
    json_t *context = parse(context_text);
    qn_rendered r;
    assert_non_null(b);
    qn_status status = render(b->text, strlen(b->text), context, NULL, &r);
    if (status != QN_OK) print_error("%s: %s\n", name, qn_last_error());
    assert_int_equal(status, QN_OK);
    assert_string_equal(r.text, want);
    qn_rendered_free(&r);
    json_decref(context);
}

static void test_builtin(void **state)
{
    static const char chat[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\" Hi "
        "\"},"
        "{\"role\":\"assistant\",\"content\":\"Hello.\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\","
        "\"text\":"
        "\"One \"},{\"type\":\"text\",\"text\":\"two\"}]}],\"add_generation_prompt\":true}";
    static const char one[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}";
    expect_builtin(
        "gemma", chat,
        "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
        "<start_of_turn>user\nOne two<end_of_turn>\n<start_of_turn>model\n");
    expect_builtin("gemma", one, "<bos><start_of_turn>user\nHi<end_of_turn>\n");
    expect_builtin("qwen", chat,
                   "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
                   "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nOne two<|im_end|>\n"
                   "<|im_start|>assistant\n");
    expect_builtin("qwen", one, "<|im_start|>user\nHi<|im_end|>\n");
    expect_builtin("llama3", chat,
                   "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
                   "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|"
                   "end_header_id|>\n\n"
                   "Hello.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nOne two<|eot_id|>"
                   "<|start_header_id|>assistant<|end_header_id|>\n\n");
    expect_builtin("llama3", one,
                   "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>");
    expect_builtin("gemma",
                   "{\"bos_token\":\"<B>\",\"messages\":[{\"role\":\"system\",\"content\":\"Only this.\"}]}",
                   "<B><start_of_turn>user\nOnly this.<end_of_turn>\n");
    expect_builtin(
        "qwen",
        "{\"tools\":[{\"name\":\"f\"}],\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":"
        "\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}]},"
        "{\"role\":\"tool\",\"content\":\"1\"},{\"role\":\"tool\",\"content\":\"2\"}]}",
        "<|im_start|>system\nS\n\n# Tools\n\nYou may call one or more functions to assist with the user "
        "query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
        "{\"name\": \"f\"}\n</tools>\n\nFor each function call, return a json object with function name and "
        "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "
        "\"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n<|im_start|>assistant\n<tool_call>\n"
        "{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call><|im_end|>\n<|im_start|>user\n"
        "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n");
    assert_null(qn_chat_builtin_find("nosuch"));
}

/* Messages. */

static void expect_messages(const char *from, const char *want)
{
    json_t *messages = parse(from), *expected = parse(want), *got = NULL;
    assert_int_equal(qn_template_prepare_messages(messages, &got), QN_OK);
    char text[2048] = "";
    json_dumpb(got, text, sizeof text - 1, 0);
    if (!json_equal(got, expected)) print_error("got %s\n", text);
    assert_true(json_equal(got, expected));
    json_decref(got);
    json_decref(expected);
    json_decref(messages);
}

static void test_messages(void **state)
{
    json_t *bad = parse("[{\"role\":\"user\"},{\"role\":1}]"), *got = NULL;
    assert_int_equal(qn_template_prepare_messages(bad, &got), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "messages[1].role"));
    assert_int_equal(qn_template_prepare_messages(json_array_get(bad, 0), &got), QN_E_ARG);
    json_decref(bad);
    expect_messages("[{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"r\"}]",
                    "[{\"role\":\"assistant\",\"reasoning_content\":\"r\",\"thinking\":\"r\"}]");
}

/* One template, several threads. */

typedef struct {
    const qn_template *template;
    const json_t *context;
    int bad;
} shared_work;

static void *render_often(void *given)
{
    shared_work *w = given;
    const qn_render_options o = {.now = "2026-03-14T15:09:26"};
    for (int i = 0; i < 50; i++) {
        qn_rendered r;
        if (qn_template_render(w->template, w->context, &o, &r) != QN_OK ||
            strcmp(r.text, "ÄÖ 2 äö Ö|ÄÖ") != 0)
            w->bad++;
        qn_rendered_free(&r);
    }
    return NULL;
}

static void test_threads(void **state)
{
    static const char text[] = "{{ 'äö'|upper }} {{ 'äö'|length }} {{ u }} {{ 'ÄÖ'[1] }}|{{ u|upper }}";
    qn_template *t = NULL;
    json_t *context = parse("{\"u\":\"äö\"}");
    assert_int_equal(qn_template_parse("test", text, strlen(text), &t), QN_OK);
    shared_work work[3] = {{t, context, 0}, {t, context, 0}, {t, context, 0}};
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, render_often, &work[i]), 0);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(work[i].bad, 0);
    }
    qn_template_free(t);
    json_decref(context);
}

static void test_memory(void **state)
{
    static const char text[] =
        "{% macro m(a) %}{{ a|upper }}{% endmacro %}{% for x in l|sort %}{{ m(x) }}"
        "{% generation %}{{ '%s' % x }}{% endgeneration %}{{ d|tojson(indent=2) }}{% endfor %}"
        "{% set q %}{{ ('x' * 30000) ~ d.a }}{% endset %}{{ q|replace('x', 'yz') }}";
    json_t *context = parse("{\"l\":[\"b\",\"a\"],\"d\":{\"a\":1,\"b\":[1,2,3]}}");
    int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    int64_t n;
    for (n = 1; status != QN_OK && n < 2000; n++) {
        qn_rendered r;
        qn_mem_fail_nth(n);
        status = render(text, strlen(text), context, NULL, &r);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        qn_rendered_free(&r);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_int_equal(status, QN_OK);
    assert_true(n > 5);
    json_decref(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_real_templates), cmocka_unit_test(test_no_template_trusts_messages),
        cmocka_unit_test(test_chat_cases),     cmocka_unit_test(test_as_jinja),
        cmocka_unit_test(test_budgets),        cmocka_unit_test(test_large_integers),
        cmocka_unit_test(test_nesting),        cmocka_unit_test(test_options),
        cmocka_unit_test(test_provenance),     cmocka_unit_test(test_generation),
        cmocka_unit_test(test_builtin),        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_threads),        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
