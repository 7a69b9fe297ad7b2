/* Names as users write them: their parts, what is refused, and that each row of the table is one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "hub/names/name.h"

static qn_hub_name read(const char *text, int bare)
{
    qn_hub_name name;
    if (qn_hub_name_read(text, bare, &name) != QN_OK) fail_msg("%s: %s", text, qn_last_error());
    return name;
}

static void expect(const char *text, int bare, qn_hub_kind kind, const char *repo, const char *revision,
                   const char *pick, const char *again)
{
    qn_buf shown = {0};
    const qn_hub_name name = read(text, bare);
    assert_int_equal(name.kind, kind);
    assert_string_equal(name.repo, repo);
    assert_string_equal(name.revision, revision);
    assert_string_equal(name.pick, pick);
    qn_hub_name_put(&shown, &name);
    assert_string_equal(shown.data, again);
    const qn_hub_name back = read(shown.data, 0); /* what is shown can be typed */
    assert_memory_equal(&back, &name, sizeof name);
    qn_buf_free(&shown);
}

static void test_parts(void **state)
{
    expect("hf:Org/Name-1.5_x", 0, QN_HUB_HF, "Org/Name-1.5_x", "main", "", "hf:Org/Name-1.5_x");
    expect("hf://Org/Name", 0, QN_HUB_HF, "Org/Name", "main", "", "hf:Org/Name");
    expect("hf:gpt2", 0, QN_HUB_HF, "gpt2", "main", "", "hf:gpt2");
    expect("a/b:Q4_K_M", 1, QN_HUB_HF, "a/b", "main", "Q4_K_M", "hf:a/b:Q4_K_M");
    expect("hf:a/b@refs/pr/1:c/d e.gguf", 0, QN_HUB_HF, "a/b", "refs/pr/1", "c/d e.gguf",
           "hf:a/b@refs/pr/1:c/d e.gguf");
    expect("ollama:mill", 0, QN_HUB_OLLAMA, "library/mill", "latest", "", "ollama:mill");
    expect("ollama:me/mill:3b-q4", 0, QN_HUB_OLLAMA, "me/mill", "3b-q4", "", "ollama:me/mill:3b-q4");
    expect("HTTPS://host/x/m.gguf?a=b", 0, QN_HUB_URL, "", "", "m.gguf", "HTTPS://host/x/m.gguf?a=b");
}

static void test_no_names(void **state)
{
    static const char *const texts[] = {"a/b", "model.gguf", "./x", "seed", "What is this?",
                                        "",    "llama",      "hf",  "C:x"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_int_equal(read(texts[i], 0).kind, QN_HUB_NONE);
}

static void test_short_names(void **state)
{
    for (const qn_hub_short *s = qn_hub_shorts; s->name; s++) {
        char family[64];
        const size_t n = strcspn(s->name, ":");
        const qn_hub_name name = read(s->name, 0);
        assert_string_equal(name.repo, s->repo);
        assert_string_equal(name.pick, strcmp(s->quant, "bf16") ? s->quant : "");
        assert_true(s->size_mb > 0 && s->name[n] == ':' && n < sizeof family);
        memcpy(family, s->name, n);
        family[n] = 0;
        const qn_hub_name first =
            read(family, 0); /* the family's first row, and rows of a family lie together */
        const int is_first = s == qn_hub_shorts || strncmp(s[-1].name, s->name, n + 1) != 0;
        assert_int_equal(strcmp(first.repo, s->repo) == 0, is_first);
    }
    assert_int_equal(read("qwen3:999b", 0).kind, QN_HUB_NONE);
    assert_int_equal(read("qwen", 0).kind, QN_HUB_NONE);
}

static void test_refused(void **state)
{
    static const char *const texts[] = {
        "hf:",
        "hf:../x",
        "hf:a/..",
        "hf:a/b/c",
        "hf:a--b/c",
        "hf:-a/b",
        "hf:a/b.",
        "hf:a/b@",
        "hf:a/b@../x",
        "hf:a/b@-x",
        "hf:a/b@x y",
        "hf:a/b:",
        "hf:a/b:/x",
        "hf:a/b:x/../y",
        "hf:a/b:x\\y",
        "hf:a/b:x\ny",
        "ollama:",
        "ollama:a:",
        "ollama:a:b/c",
        "ollama:../a",
        "ollama:a/b/c",
        "https://h/x",
        "https://h/",
        "http://",
        "http://u@h/x.gguf",
        "http://h/.gguf",
        "http://h/x.gguf#y",
        "hf:a/b:\xff",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        qn_hub_name name = {.kind = QN_HUB_URL};
        if (qn_hub_name_read(texts[i], 1, &name) != QN_E_ARG) fail_msg("%s was taken", texts[i]);
        assert_int_equal(name.kind, QN_HUB_URL); /* untouched */
    }
}

static void test_long_texts(void **state)
{
    static char text[10000];
    qn_hub_name name;
    static const char *const begins[] = {
        "hf:a/", "hf:a/b@", "hf:a/b:", "ollama:", "ollama:a:", "https://h/x.gguf?"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        memset(text, 'x', sizeof text - 1);
        memcpy(text, begins[i], strlen(begins[i]));
        assert_int_equal(qn_hub_name_read(text, 0, &name), QN_E_ARG);
    }
}

static void test_plain_paths(void **state)
{
    assert_true(qn_hub_is_plain_path("a") && qn_hub_is_plain_path("a/b.c/..d") &&
                qn_hub_is_plain_path("..."));
    static const char *const bad[] = {"",   "/",     "/a",   "a/",   "a//b", ".",
                                      "..", "a/./b", "a/..", "a\\b", "a\tb", "\xc3"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(qn_hub_is_plain_path(bad[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),   cmocka_unit_test(test_no_names),   cmocka_unit_test(test_short_names),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_long_texts), cmocka_unit_test(test_plain_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
