#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/chat/chat_session.h"

static void add(qn_chat_session *s, const char *role, const char *content)
{
    assert_int_equal(qn_chat_session_add(s, role, content, strlen(content)), QN_OK);
}

static void expect_messages(const qn_chat_session *s, size_t n, const char *const *want)
{
    assert_int_equal(s->n_messages, n);
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(s->messages[i].role, want[2 * i]);
        assert_string_equal(s->messages[i].content, want[2 * i + 1]);
    }
}

static void test_messages(void **state)
{
    qn_chat_session s = {0};
    assert_int_equal(qn_chat_session_asked(&s), 0);
    assert_null(qn_chat_session_system(&s));
    add(&s, "user", "hello");
    add(&s, "assistant", "hi");
    assert_int_equal(qn_chat_session_asked(&s), 1);
    assert_int_equal(qn_chat_session_set_system(&s, "be brief"), QN_OK);
    assert_string_equal(qn_chat_session_system(&s), "be brief");
    assert_int_equal(qn_chat_session_asked(&s), 2);
    assert_int_equal(qn_chat_session_answer(&s, 2, "hey", 3), QN_OK);
    expect_messages(&s, 3, (const char *[]){"system", "be brief", "user", "hello", "assistant", "hey"});
    assert_int_equal(qn_chat_session_answer(&s, 2, "a\0b\0", 4), QN_OK);
    assert_string_equal(s.messages[2].content, "a\xef\xbf\xbd"
                                               "b\xef\xbf\xbd");
    assert_int_equal(qn_chat_session_set_system(&s, "be long"), QN_OK);
    qn_chat_session_clear(&s);
    expect_messages(&s, 1, (const char *[]){"system", "be long"});
    assert_int_equal(qn_chat_session_asked(&s), 0);
    assert_int_equal(qn_chat_session_set_system(&s, ""), QN_OK);
    assert_int_equal(s.n_messages, 0);
    qn_chat_session_clear(&s);
    for (int i = 0; i < 100; i++) add(&s, i % 2 ? "assistant" : "user", "x");
    assert_int_equal(qn_chat_session_asked(&s), 99);
    qn_chat_session_end(&s);
}

static void test_refuses_bytes_and_roles(void **state)
{
    qn_chat_session s = {0};
    assert_int_equal(qn_chat_session_add(&s, "tool", "x", 1), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "'tool'"));
    assert_int_equal(qn_chat_session_add(&s, "user", "a\xff", 2), QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "byte 1"));
    assert_int_equal(qn_chat_session_add(&s, "user", "a\0b", 3), QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "NUL"));
    assert_int_equal(qn_chat_session_set_system(&s, "\xc3"), QN_E_FORMAT);
    assert_int_equal(s.n_messages, 0);
    qn_chat_session_end(&s);
}

static qn_status set(qn_chat_settings *s, const char *name, const char *value)
{
    const qn_chat_setting *setting = qn_chat_setting_find(name);
    assert_non_null(setting);
    return qn_chat_setting_set(setting, value, s);
}

static void test_settings(void **state)
{
    qn_chat_settings s = {0};
    static const struct {
        const char *name, *value, *message;
    } bad[] = {{"temp", "-0.1", "temp: -0.1 is not in the range 0 to 1000"},
               {"temp", "nan", "temp: 'nan' is not a number"},
               {"temp", "off", "temp: 'off' is not a number"},
               {"top-p", "1.01", "top-p: 1.01 is not in the range 0 to 1, or off"},
               {"top-k", "3.5", "top-k: '3.5' is not a whole number"},
               {"top-k", "2147483648", "top-k: 2147483648 is not in the range 0 to 2147483647, or off"},
               {"min-p", "", "min-p: '' is not a number"},
               {"repeat-penalty", "0.001", "repeat-penalty: 0.001 is not in the range 0.01 to 100, or off"},
               {"seed", "-1", "seed: '-1' is not a whole number"},
               {"seed", "18446744073709551616", "0 to 18446744073709551615, or random"},
               {"max-tokens", "-5", "max-tokens: -5 is not in the range"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(set(&s, bad[i].name, bad[i].value), QN_E_ARG);
        assert_non_null(strstr(qn_last_error(), bad[i].message));
    }
    assert_memory_equal(&s, &(qn_chat_settings){0}, sizeof s);
    static const struct {
        const char *name, *value, *shown;
    } good[] = {{"temp", "0.7", "0.7"},
                {"temperature", "0", "0"},
                {"top-p", "0.1234567", "0.1234567"},
                {"top_p", "off", "off"},
                {"top-k", "40", "40"},
                {"min-p", "5e-2", "0.05"},
                {"repeat-penalty", "1.1", "1.1"},
                {"repeat-penalty", "0.01", "0.01"},
                {"seed", "18446744073709551615", "18446744073709551615"},
                {"seed", "random", "random"},
                {"max-tokens", "12", "12"},
                {"max-tokens", "0", "off"}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        qn_buf shown = {0};
        assert_int_equal(set(&s, good[i].name, good[i].value), QN_OK);
        qn_chat_setting_show(qn_chat_setting_find(good[i].name), &s, &shown);
        assert_string_equal(shown.data, good[i].shown);
        qn_buf_free(&shown);
    }
    assert_null(qn_chat_setting_find("think"));
    assert_null(qn_chat_setting_find(""));
}

static void fill(qn_chat_session *s)
{
    *s = (qn_chat_session){.settings = {{.temperature = 0.1f,
                                         .top_p = 0.95f,
                                         .min_p = 1e-30f,
                                         .top_k = INT32_MAX,
                                         .repeat_penalty = 1.0f / 3,
                                         .seed = UINT64_MAX - 1,
                                         .max_tokens = 77},
                                        QN_CHAT_THINK_OFF}};
    add(s, "system", "\"quotes\" and \\ and \x01\x7f");
    add(s, "user", "line\nline\r\n\ttab \xf0\x9f\x98\x80");
    add(s, "assistant", "");
}

static void expect_equal(const qn_chat_session *a, const qn_chat_session *b)
{
    assert_memory_equal(&a->settings, &b->settings, sizeof a->settings);
    assert_int_equal(a->n_messages, b->n_messages);
    for (size_t i = 0; i < a->n_messages; i++) {
        assert_ptr_equal(a->messages[i].role, b->messages[i].role);
        assert_string_equal(a->messages[i].content, b->messages[i].content);
    }
}

static void test_file_round_trip(void **state)
{
    char folder[] = P_tmpdir "/quern_session_XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/chat.json", folder);
    qn_chat_session full, empty = {0}, read = {0};
    fill(&full);
    assert_int_equal(qn_chat_session_save(&full, "a \"model\"", path), QN_OK);
    assert_int_equal(qn_chat_session_load(&read, path), QN_OK);
    expect_equal(&full, &read);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    /* All that is off in the file is off after loading it; the file before is replaced. */
    assert_int_equal(qn_chat_session_save(&empty, "", path), QN_OK);
    assert_int_equal(qn_chat_session_load(&read, path), QN_OK);
    expect_equal(&empty, &read);

    assert_int_equal(qn_chat_session_save(&full, "m", folder), QN_E_IO);
    assert_non_null(strstr(qn_last_error(), "not a regular file"));
    assert_int_equal(qn_chat_session_load(&read, folder), QN_E_IO);
    assert_non_null(strstr(qn_last_error(), "not a regular file"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(qn_chat_session_load(&read, path), QN_E_IO);
    assert_non_null(strstr(qn_last_error(), path));
    assert_int_equal(rmdir(folder), 0); /* nothing else was left there */
    assert_int_equal(qn_chat_session_save(&full, "m", path), QN_E_IO);
    qn_chat_session_end(&full);
    qn_chat_session_end(&read);
}

static void test_settings_that_a_file_leaves_out_stay(void **state)
{
    qn_chat_session s;
    fill(&s);
    qn_chat_settings before = s.settings;
    static const char text[] =
        "{\"messages\":[{\"content\":\"x\",\"role\":\"user\"}],\"top_k\":3,\"temperature\":1}";
    assert_int_equal(qn_chat_session_parse(&s, "f", text, sizeof text - 1), QN_OK);
    before.o.top_k = 3;
    before.o.temperature = 1;
    assert_memory_equal(&s.settings, &before, sizeof before);
    expect_messages(&s, 1, (const char *[]){"user", "x"});
    qn_chat_session_end(&s);
}

static void test_hostile_files(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "f: "},
        {"[]", "f: not a JSON object"},
        {"{}", "f: the field messages is missing"},
        {"{\"messages\":{}}", "f: messages: not a list"},
        {"{\"messages\":[[]]}", "f: messages[0]: not an object"},
        {"{\"messages\":[{}]}", "f: messages[0].role: not a text"},
        {"{\"messages\":[{\"role\":\"user\"}]}", "f: messages[0].content: not a text"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[]}]}", "f: messages[0].content: not a text"},
        {"{\"messages\":[{\"role\":\"root\",\"content\":\"\"}]}", "f: messages[0].role: 'root' is none of"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]}",
         "f: messages[0].content: the text has a NUL"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\",\"name\":1}]}",
         "f: messages[0]: unknown field name"},
        {"{\"messages\":[],\"messages\":[]}", "f: "},
        {"{\"messages\":[],\"model\":1}", "f: model: not a text"},
        {"{\"messages\":[],\"tools\":[]}", "f: unknown field tools"},
        {"{\"messages\":[],\"temperature\":null}", "f: temperature: not a number"},
        {"{\"messages\":[],\"temperature\":\"1\"}", "f: temperature: not a number"},
        {"{\"messages\":[],\"temperature\":1e300}", "f: temperature: 1e+300 is not in the range 0 to 1000"},
        {"{\"messages\":[],\"temperature\":1e999}", "f: "},
        {"{\"messages\":[],\"top_p\":-1}", "f: top_p: -1 is not in the range 0 to 1, or off"},
        {"{\"messages\":[],\"top_k\":1.5}", "f: top_k: not a whole number"},
        {"{\"messages\":[],\"top_k\":2147483648}", "f: top_k: 2147483648 is not in the range"},
        {"{\"messages\":[],\"seed\":-1}", "f: seed: -1 is not in the range"},
        {"{\"messages\":[],\"seed\":\"1x\"}", "f: seed: '1x' is not a whole number"},
        {"{\"messages\":[],\"max_tokens\":-1}", "f: max_tokens: -1 is not in the range"},
        {"{\"messages\":[],\"chat_template_kwargs\":1}", "f: chat_template_kwargs: not an object"},
        {"{\"messages\":[],\"chat_template_kwargs\":{\"x\":true}}",
         "f: chat_template_kwargs: unknown field x: only"},
        {"{\"messages\":[],\"chat_template_kwargs\":{\"thinking\":1}}", "thinking: not true or false"},
        {"{\"messages\":[],\"chat_template_kwargs\":{\"thinking\":true,\"enable_thinking\":false}}",
         "differ"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", "f: "},
    };
    qn_chat_session s, same;
    fill(&s);
    fill(&same);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_not_equal(qn_chat_session_parse(&s, "f", cases[i].text, strlen(cases[i].text)), QN_OK);
        assert_non_null(strstr(qn_last_error(), cases[i].message));
        expect_equal(&s, &same);
    }
    qn_chat_session_end(&s);
    qn_chat_session_end(&same);
}

static qn_status use(qn_chat_session *s)
{
    qn_buf text = {0};
    QN_TRY(qn_chat_session_add(s, "user", "one", 3));
    QN_TRY(qn_chat_session_set_system(s, "two"));
    QN_TRY(qn_chat_session_answer(s, 2, "three", 5));
    qn_chat_session_write(s, "m", &text);
    qn_status status = text.status;
    if (status == QN_OK) status = qn_chat_session_parse(s, "f", text.data, text.length);
    qn_buf_free(&text);
    return status;
}

static void test_allocation_failures(void **state)
{
    int64_t live = qn_mem_live_blocks();
    for (int64_t nth = 1;; nth++) {
        qn_chat_session s = {0};
        qn_mem_fail_nth(nth);
        qn_status status = use(&s);
        qn_mem_fail_nth(0);
        if (status == QN_OK)
            expect_messages(&s, 3, (const char *[]){"system", "two", "user", "one", "assistant", "three"});
        qn_chat_session_end(&s);
        assert_int_equal(qn_mem_live_blocks(), live);
        if (status == QN_OK) break;
        assert_int_equal(status, QN_E_NOMEM);
        assert_true(nth < 2000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_refuses_bytes_and_roles),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_file_round_trip),
        cmocka_unit_test(test_settings_that_a_file_leaves_out_stay),
        cmocka_unit_test(test_hostile_files),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
