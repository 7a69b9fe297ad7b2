/* Lines of a data set: their ids, which of them count, and what is refused. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"
#include "train/data/dataset_line.h"

static qn_chat_text *open_path(const char *path, const char *chat_template)
{
    qn_source *source = NULL;
    qn_chat_text *c = NULL;
    const qn_chat_text_options options = {.chat_template = chat_template};
    assert_int_equal(qn_source_open(path, &(qn_source_options){.text_only = 1}, &source), QN_OK);
    if (qn_chat_text_open(source, &options, &c) != QN_OK) fail_msg("%s", qn_last_error());
    qn_source_close(source);
    return c;
}

static qn_chat_text *open_chat(const char *fixture)
{
    return open_path(qn_test_need_fixture(fixture), NULL);
}

static qn_train_sequence read_line(const qn_chat_text *c, qn_mask mask, int64_t max_length, const char *line)
{
    const qn_line_options o = {
        .text = c, .mask = mask, .max_length = max_length, .now = "2026-03-14T15:09:26"};
    qn_train_sequence s = {0};
    if (qn_train_sequence_read(&o, line, strlen(line), &s, NULL) != QN_OK)
        fail_msg("%s: %s", line, qn_last_error());
    int64_t n_counted = 0;
    assert_true(s.n >= 2 && s.n <= max_length && s.n <= s.n_whole && !s.counts[0] && s.counts[s.n - 1]);
    for (int64_t i = 0; i < s.n; i++) n_counted += s.counts[i];
    assert_int_equal(n_counted, s.n_counted);
    return s;
}

/* The text of the ids, runs of those that count between [[ and ]]. */
static void put_marked(const qn_chat_text *c, const qn_train_sequence *s, qn_buf *out)
{
    for (int64_t i = 0; i < s->n; i++) {
        if (s->counts[i] && !s->counts[i - 1]) qn_buf_puts(out, "[[");
        if (i && s->counts[i - 1] && !s->counts[i]) qn_buf_puts(out, "]]");
        assert_int_equal(qn_tokenizer_piece(qn_chat_text_tokenizer(c), s->ids[i], out), QN_OK);
    }
    qn_buf_puts(out, "]]");
    assert_int_equal(out->status, QN_OK);
}

static void expect(const qn_chat_text *c, qn_mask mask, const char *line, const char *want)
{
    qn_train_sequence s = read_line(c, mask, 4096, line);
    qn_buf text = {0};
    put_marked(c, &s, &text);
    assert_string_equal(text.data, want);
    assert_int_equal(s.n, s.n_whole);
    assert_int_equal(s.n_lost, 0);
    qn_buf_free(&text);
    qn_train_sequence_free(&s);
}

/* All but the first token count, and together they say this. */
static void expect_all(const qn_chat_text *c, qn_mask mask, const char *line, const char *want)
{
    qn_train_sequence s = read_line(c, mask, 4096, line);
    qn_buf text = {0};
    for (int64_t i = 0; i < s.n; i++)
        assert_int_equal(qn_tokenizer_piece(qn_chat_text_tokenizer(c), s.ids[i], &text), QN_OK);
    assert_string_equal(text.data, want);
    assert_int_equal(s.n_counted, s.n - 1);
    qn_buf_free(&text);
    qn_train_sequence_free(&s);
}

#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ANSWER(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"
static const char two_turns[] =
    "{\"messages\":[" USER("One?") "," ANSWER("First.") "," USER("Two?") "," ANSWER("Second.") "]}";

static void test_chats(void **state)
{
    qn_chat_text *c = open_chat("models/qwen3");
    expect(c, QN_MASK_ANSWERS, two_turns,
           "<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\n[[First.<|im_end|>]]\n"
           "<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n"
           "[[<think>\n\n</think>\n\nSecond.<|im_end|>]]");
    expect(c, QN_MASK_LAST, two_turns,
           "<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\nFirst.<|im_end|>\n"
           "<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n"
           "[[<think>\n\n</think>\n\nSecond.<|im_end|>]]");
    expect_all(c, QN_MASK_ALL, two_turns,
               "<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\nFirst.<|im_end|>\n"
               "<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n"
               "<think>\n\n</think>\n\nSecond.<|im_end|>\n");
    /* What follows the last answer teaches nothing and is left out. */
    expect(c, QN_MASK_ANSWERS, "{\"messages\":[" USER("a") "," ANSWER("b") "," USER("c") "]}",
           "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[[b<|im_end|>]]");
    qn_chat_text_close(c);
    c = open_chat("models/gemma3_text");
    expect(c, QN_MASK_ANSWERS, two_turns,
           "<bos><start_of_turn>user\nOne?<end_of_turn>\n<start_of_turn>model\n[[First.<end_of_turn>]]\n"
           "<start_of_turn>user\nTwo?<end_of_turn>\n<start_of_turn>model\n[[Second.<end_of_turn>]]");
    qn_chat_text_close(c);
}

/* Parts are one text, and a developer is the system, as the server has it: templates need know of neither.
 * Qwen's would leave both out, Llama's write parts as a list. */
static void test_parts(void **state)
{
    qn_chat_text *c = open_chat("models/qwen3");
    expect(c, QN_MASK_ANSWERS,
           "{\"messages\":[{\"role\":\"developer\",\"content\":\"Short.\"},{\"role\":\"user\",\"content\":[{"
           "\"type\":\"text\",\"text\":\"One\"},{\"type\":"
           "\"text\",\"text\":\"two?\"}]},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":"
           "\"Yes.\"}]},{\"role\":\"user\",\"content\":[]}," ANSWER("Well.") "]}",
           "<|im_start|>system\nShort.<|im_end|>\n<|im_start|>user\nOne\ntwo?<|im_end|>\n<|im_start|>"
           "assistant\n[[Yes.<|im_end|>]]\n<|im_start|>user\n"
           "<|im_end|>\n<|im_start|>assistant\n[[<think>\n\n</think>\n\nWell.<|im_end|>]]");
    qn_chat_text_close(c);
}

static void test_tools(void **state)
{
    /* Arguments as OpenAI's API has them, as a text, and as an object. */
    static const char *const arguments[] = {"{\\\"city\\\": \\\"Oslo\\\"}", NULL};
    char line[1024];
    qn_chat_text *c = open_chat("models/qwen3");
    for (int i = 0; i < 2; i++) {
        snprintf(line, sizeof line,
                 "{\"messages\":[" USER(
                     "Sun?") ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"type\":"
                             "\"function\",\"function\":{\"name\":\"weather\",\"arguments\":%s%s%s}}]},{"
                             "\"role\":\"tool\","
                             "\"content\":\"Rain\"}," ANSWER(
                                 "No.") "],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
                                        "\"weather\"}}]}",
                 i ? "" : "\"", i ? "{\"city\":\"Oslo\"}" : arguments[0], i ? "" : "\"");
        qn_train_sequence s = read_line(c, QN_MASK_ANSWERS, 4096, line);
        qn_buf text = {0};
        put_marked(c, &s, &text);
        assert_non_null(
            strstr(text.data, "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"weather\"}}"));
        assert_non_null(strstr(text.data,
                               "<|im_start|>assistant\n[[<tool_call>\n{\"name\": \"weather\", \"arguments\": "
                               "{\"city\": \"Oslo\"}}\n</tool_call><|im_end|>]]\n<|im_start|>user\n"
                               "<tool_response>\nRain\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
                               "[["));
        assert_non_null(strstr(text.data, "No.<|im_end|>]]"));
        assert_false(s.hides_tools);
        qn_buf_free(&text);
        qn_train_sequence_free(&s);
    }
    qn_chat_text_close(c);
    /* A template that knows nothing of tools. */
    c = open_chat("models/gemma3_text");
    for (int i = 0; i < 2; i++) {
        snprintf(line, sizeof line, "{\"messages\":[" USER("a") "," ANSWER("b") "]%s}",
                 i ? ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\"}}]" : "");
        qn_train_sequence s = read_line(c, QN_MASK_ANSWERS, 4096, line);
        assert_int_equal(s.hides_tools, i);
        qn_train_sequence_free(&s);
    }
    qn_chat_text_close(c);
}

static void test_pairs(void **state)
{
    qn_chat_text *c = open_chat("models/gemma3_text");
    const char *want =
        "<bos><start_of_turn>user\nWho?<end_of_turn>\n<start_of_turn>model\n[[Me.<end_of_turn>]]";
    expect(c, QN_MASK_ANSWERS, "{\"prompt\":\"Who?\",\"completion\":\"Me.\"}", want);
    expect(c, QN_MASK_LAST, "{\"completion\":\"Me.\",\"prompt\":\"Who?\"}", want);
    expect(c, QN_MASK_ANSWERS, "{\"prompt\":[" USER("Who?") "],\"completion\":[" ANSWER("Me.") "]}", want);
    /* Answers of the prompt do not count, those of the completion all do. */
    expect(c, QN_MASK_ANSWERS,
           "{\"prompt\":[" USER("a") "," ANSWER("b") "," USER("c") "],\"completion\":[" ANSWER("d") "," USER(
               "e") "," ANSWER("f") "]}",
           "<bos><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n"
           "<start_of_turn>user\nc<end_of_turn>\n<start_of_turn>model\n[[d<end_of_turn>]]\n"
           "<start_of_turn>user\ne<end_of_turn>\n<start_of_turn>model\n[[f<end_of_turn>]]");
    qn_chat_text_close(c);
}

/* A folder with a tokenizer that has no chat format. */
static const char *plain_folder(void)
{
    const char *folder = qn_test_scratch();
    char from[512];
    snprintf(from, sizeof from, "%s", qn_test_need_fixture("tokenizers/mistral/tokenizer.json"));
    qn_test_copy(folder, "tokenizer.json", from);
    qn_test_write_text(folder, "tokenizer_config.json", "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}");
    return folder;
}

static void test_texts(void **state)
{
    qn_chat_text *c = open_chat("models/llama");
    expect_all(c, QN_MASK_ANSWERS, "{\"text\":\"Once upon a time\"}",
               "<|begin_of_text|>Once upon a time<|eot_id|>");
    /* Special tokens of a text are what they look like; an end that is there is not written twice. */
    expect_all(c, QN_MASK_LAST, "{\"text\":\"a<|eom_id|>b<|eot_id|>\"}",
               "<|begin_of_text|>a<|eom_id|>b<|eot_id|>");
    qn_train_sequence s = read_line(c, QN_MASK_ALL, 64, "{\"text\":\"a<|eom_id|>\"}");
    assert_int_equal(s.ids[s.n - 2], qn_tokenizer_find(qn_chat_text_tokenizer(c), "<|eom_id|>", 10));
    qn_train_sequence_free(&s);
    qn_chat_text_close(c);
}

static void test_joined(void **state)
{
    const char *folder = plain_folder();
    qn_chat_text *c = open_path(folder, NULL);
    const qn_tokenizer *t = qn_chat_text_tokenizer(c);
    assert_false(qn_chat_text_has_template(c));
    static const char *const pairs[][2] = {
        {"Once upon", " a time"}, {"Once up", "on a time"}, {"Q: ", "  two spaces"}, {"", "all of it"}};
    for (int i = 0; i < 4; i++) {
        char line[256], want[64];
        int32_t *prompt;
        size_t n;
        snprintf(line, sizeof line, "{\"prompt\":\"%s\",\"completion\":\"%s\"}", pairs[i][0], pairs[i][1]);
        snprintf(want, sizeof want, "%s</s>", pairs[i][1]);
        qn_train_sequence s = read_line(c, QN_MASK_ANSWERS, 256, line);
        qn_buf text = {0};
        assert_int_equal(qn_tokenizer_encode(t, pairs[i][0], strlen(pairs[i][0]), QN_ENCODE_BOS, &prompt, &n),
                         QN_OK);
        assert_memory_equal(s.ids, prompt, n * sizeof *prompt);
        for (int64_t k = 0; k < s.n; k++) assert_int_equal(s.counts[k], k && k >= (int64_t)n);
        for (int64_t k = (int64_t)n; k < s.n; k++)
            assert_int_equal(qn_tokenizer_piece(t, s.ids[k], &text), QN_OK);
        /* A completion that begins the text gets the space that every text gets. */
        assert_string_equal(text.data + (i == 3 && text.data[0] == ' '), want);
        qn_buf_free(&text);
        qn_free(prompt);
        qn_train_sequence_free(&s);
    }
    qn_train_sequence none = {0};
    const qn_line_options o = {.text = c, .mask = QN_MASK_ANSWERS, .max_length = 64};
    assert_int_equal(qn_train_sequence_read(&o, two_turns, strlen(two_turns), &none, NULL), QN_E_UNSUPPORTED);
    assert_true(qn_line_is_bad(QN_E_UNSUPPORTED));
    qn_chat_text_close(c);
    qn_test_remove(folder);
}

static void test_cut(void **state)
{
    qn_chat_text *c = open_chat("models/qwen3");
    qn_train_sequence whole = read_line(c, QN_MASK_ANSWERS, 4096, two_turns), s = {0};
    int64_t first = 0;
    while (!whole.counts[first]) first++;
    for (int64_t n = 2; n < whole.n; n++) {
        const qn_line_options o = {.text = c, .mask = QN_MASK_ANSWERS, .max_length = n};
        qn_status status = qn_train_sequence_read(&o, two_turns, strlen(two_turns), &s, NULL);
        if (n <= first) {
            assert_int_equal(status, QN_E_ARG);
            assert_non_null(strstr(qn_last_error(), "none of its first"));
            continue;
        }
        assert_int_equal(status, QN_OK);
        assert_int_equal(s.n_whole, whole.n);
        assert_true(s.n <= n && s.counts[s.n - 1]);
        assert_memory_equal(s.ids, whole.ids, (size_t)s.n * sizeof *s.ids);
        assert_memory_equal(s.counts, whole.counts, (size_t)s.n);
        qn_train_sequence_free(&s);
    }
    qn_train_sequence_free(&whole);
    qn_chat_text_close(c);
}

static void test_forged(void **state)
{
    qn_chat_text *c = open_chat("models/qwen3");
    int32_t end = qn_tokenizer_find(qn_chat_text_tokenizer(c), "<|im_end|>", 10);
    qn_train_sequence s =
        read_line(c, QN_MASK_ANSWERS, 512,
                  "{\"messages\":[" USER("a<|im_end|>") "," ANSWER("b<|im_end|>\\n<|im_start|>") "]}");
    int64_t n = 0;
    for (int64_t i = 0; i < s.n; i++) n += s.ids[i] == end;
    assert_int_equal(n, 2);
    assert_int_equal(s.ids[s.n - 1], end);
    qn_train_sequence_free(&s);
    qn_chat_text_close(c);
}

static void test_ids(void **state)
{
    qn_chat_text *c = open_chat("models/llama");
    qn_train_sequence s = read_line(c, QN_MASK_ANSWERS, 16, "{\"ids\":[3,1,4,1,5]}");
    assert_memory_equal(s.ids, ((const int32_t[]){3, 1, 4, 1, 5}), 5 * sizeof *s.ids);
    assert_memory_equal(s.counts, ((const uint8_t[]){0, 1, 1, 1, 1}), 5);
    qn_train_sequence_free(&s);
    /* The first is never counted, what follows the last is left out. */
    s = read_line(c, QN_MASK_ALL, 16, "{\"ids\":[3,1,4,1,5],\"counts\":[1,0,true,false,0]}");
    assert_int_equal(s.n, 3);
    assert_memory_equal(s.counts, ((const uint8_t[]){0, 0, 1}), 3);
    qn_train_sequence_free(&s);
    qn_chat_text_close(c);
}

static void test_bad_lines(void **state)
{
    static const struct {
        const char *line, *reason;
        qn_status status;
    } cases[] = {
        {"", "JSON", QN_E_FORMAT},
        {"{\"text\":\"a\"", "JSON", QN_E_FORMAT},
        {"{\"text\":NaN}", "JSON", QN_E_FORMAT},
        {"{\"text\":NaN}", "the line is not one JSON object: column 11: invalid token", QN_E_FORMAT},
        {"[{\"text\":\"a\"},", "the line is not one JSON object: column", QN_E_FORMAT},
        {"{\"text\":\"a\",\"text\":\"b\"}", "duplicate", QN_E_FORMAT},
        {"{\"text\":\"\xff\"}", "JSON", QN_E_FORMAT},
        {"{\"text\":\"\xed\xa0\x80\"}", "JSON", QN_E_FORMAT},
        {"3", "not an object", QN_E_ARG},
        {"[]", "not an object", QN_E_ARG},
        {"{}", "none of the keys", QN_E_ARG},
        {"{\"input\":\"a\"}", "none of the keys", QN_E_ARG},
        {"{\"text\":3}", "not a text", QN_E_ARG},
        {"{\"text\":\"\"}", "empty", QN_E_ARG},
        {"{\"ids\":3}", "\"ids\" is not a list", QN_E_ARG},
        {"{\"ids\":[]}", "none of its 0 tokens", QN_E_ARG},
        {"{\"ids\":[1]}", "none of its 1 tokens", QN_E_ARG},
        {"{\"ids\":[1,-1]}", "ids[1] is not a token id", QN_E_ARG},
        {"{\"ids\":[1,2.0]}", "ids[1] is not a token id", QN_E_ARG},
        {"{\"ids\":[1,2147483648]}", "ids[1] is not a token id", QN_E_ARG},
        {"{\"ids\":[1,100000]}", "token 1 has the id 100000, but the model's vocabulary has 100000",
         QN_E_ARG},
        {"{\"ids\":[1,2],\"counts\":[1]}", "as long as \"ids\", which has 2", QN_E_ARG},
        {"{\"ids\":[1,2],\"counts\":3}", "as long as \"ids\", which has 2", QN_E_ARG},
        {"{\"ids\":[1,2],\"counts\":[1,2]}", "counts[1] is neither 0 nor 1", QN_E_ARG},
        {"{\"ids\":[1,2],\"counts\":[1,0]}", "none of its 2 tokens", QN_E_ARG},
        {"{\"prompt\":\"a\"}", "\"prompt\" without \"completion\"", QN_E_ARG},
        {"{\"completion\":\"a\"}", "\"completion\" without \"prompt\"", QN_E_ARG},
        {"{\"prompt\":\"a\",\"completion\":\"\"}", "empty", QN_E_ARG},
        {"{\"prompt\":\"a\",\"completion\":4}", "not a list of messages", QN_E_ARG},
        {"{\"messages\":{}}", "not a list of messages", QN_E_ARG},
        {"{\"messages\":[]}", "messages is empty", QN_E_ARG},
        {"{\"messages\":[4]}", "messages[0]", QN_E_ARG},
        {"{\"messages\":[{\"content\":\"a\"}]}", "has no role", QN_E_ARG},
        {"{\"messages\":[{\"role\":\"asistant\",\"content\":\"a\"}]}", "the role \"asistant\" does not exist",
         QN_E_ARG},
        {"{\"messages\":[{\"role\":\"user\"}]}", "has no content", QN_E_ARG},
        {"{\"messages\":[{\"role\":\"user\",\"content\":4}]}", "content is not a text", QN_E_ARG},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}", "not a part with a text",
         QN_E_ARG},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":4}]}", "tool_calls",
         QN_E_ARG},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[4]}]}", "tool_calls[0]",
         QN_E_ARG},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":"
         "\"f\","
         "\"arguments\":\"{\"}}]}]}",
         "tool_calls[0]: arguments", QN_E_FORMAT},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", "no message of the assistant", QN_E_ARG},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":{}}", "\"tools\"", QN_E_ARG},
    };
    qn_chat_text *c = open_chat("models/qwen3");
    const qn_line_options o = {.text = c, .mask = QN_MASK_ANSWERS, .max_length = 64, .vocab_size = 100000};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_train_sequence s = {0};
        qn_status status = qn_train_sequence_read(&o, cases[i].line, strlen(cases[i].line), &s, NULL);
        if (status != cases[i].status || !strstr(qn_last_error(), cases[i].reason))
            fail_msg("%s: %d %s", cases[i].line, (int)status, qn_last_error());
        assert_true(qn_line_is_bad(status));
        assert_null(s.ids);
    }
    static const char nul[] = "{\"text\":\"a\0b\"}";
    qn_train_sequence s = {0};
    assert_int_equal(qn_train_sequence_read(&o, nul, sizeof nul - 1, &s, NULL), QN_E_FORMAT);
    char *deep = qn_calloc(400, 1);
    memset(deep, '[', 300);
    assert_int_equal(qn_train_sequence_read(&o, deep, 300, &s, NULL), QN_E_FORMAT);
    qn_free(deep);
    assert_false(qn_line_is_bad(QN_E_NOMEM));
    assert_false(qn_line_is_bad(QN_E_IO));
    qn_chat_text_close(c);
}

static void test_other_keys(void **state)
{
    static const char line[] =
        "{\"id\":4,\"prompt\":\"a\",\"text\":\"c\",\"completion\":\"b\",\"tools\":null}";
    qn_chat_text *c = open_chat("models/qwen3");
    const qn_line_options o = {.text = c, .mask = QN_MASK_ANSWERS, .max_length = 64};
    qn_train_sequence s = {0};
    qn_buf keys = {0};
    assert_int_equal(qn_train_sequence_read(&o, line, strlen(line), &s, &keys), QN_OK);
    assert_int_equal(keys.length, sizeof "id\0text");
    assert_memory_equal(keys.data, "id\0text", keys.length);
    qn_buf_free(&keys);
    qn_train_sequence_free(&s);
    qn_chat_text_close(c);
}

/* Reads a line and gives the keys that have no meaning, with spaces between. */
static char *keys_of(const qn_chat_text *c, const char *line)
{
    const qn_line_options o = {.text = c, .max_length = 4096};
    static char text[512];
    qn_train_sequence s = {0};
    qn_buf keys = {0};
    if (qn_train_sequence_read(&o, line, strlen(line), &s, &keys) != QN_OK) fail_msg("%s", qn_last_error());
    assert_true(keys.length < sizeof text);
    for (size_t i = 0; i < keys.length; i++) text[i] = keys.data[i] ? keys.data[i] : ' ';
    text[keys.length] = 0;
    qn_buf_free(&keys);
    qn_train_sequence_free(&s);
    return text;
}

static void expect_bad(const qn_chat_text *c, qn_mask mask, const char *line, const char *says)
{
    const qn_line_options o = {.text = c, .mask = mask, .max_length = 4096};
    qn_train_sequence s = {0};
    assert_int_equal(qn_train_sequence_read(&o, line, strlen(line), &s, NULL), QN_E_ARG);
    if (!strstr(qn_last_error(), says)) fail_msg("\"%s\" does not say \"%s\"", qn_last_error(), says);
}

#define SILENT(key, text) "{\"role\":\"assistant\",\"content\":\"" text "\"," key "}"

/* OpenAI's and mistral-finetune's weight; axolotl's train and training. */
static void test_weights(void **state)
{
    static const char *const keys[] = {"\"weight\":0", "\"weight\":0.0", "\"weight\":false",
                                       "\"train\":false", "\"training\":false"};
    char line[1024];
    qn_chat_text *c = open_chat("models/gemma3_text");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(line, sizeof line,
                 "{\"messages\":[" USER("A?") ",{\"role\":\"assistant\",\"content\":\"Bad.\",%s}," USER(
                     "B?") ",{\"role\":\"assistant\",\"content\":\"Good.\",\"weight\":1}]}",
                 keys[i]);
        expect(c, QN_MASK_ANSWERS, line,
               "<bos><start_of_turn>user\nA?<end_of_turn>\n<start_of_turn>model\nBad.<end_of_turn>\n"
               "<start_of_turn>user\nB?<end_of_turn>\n<start_of_turn>model\n[[Good.<end_of_turn>]]");
        expect(c, QN_MASK_ALL, line,
               "<bos>[[<start_of_turn>user\nA?<end_of_turn>\n<start_of_turn>model\n]]Bad.<end_of_turn>[[\n"
               "<start_of_turn>user\nB?<end_of_turn>\n<start_of_turn>model\nGood.<end_of_turn>\n]]");
    }
    expect(c, QN_MASK_ANSWERS,
           "{\"prompt\":[" USER("A?") "," ANSWER("a") "," USER("B?") "],\"completion\":[" SILENT(
               "\"weight\":0", "x") "," USER("C?") "," ANSWER("y") "]}",
           "<bos><start_of_turn>user\nA?<end_of_turn>\n<start_of_turn>model\na<end_of_turn>\n"
           "<start_of_turn>user\nB?<end_of_turn>\n<start_of_turn>model\nx<end_of_turn>\n"
           "<start_of_turn>user\nC?<end_of_turn>\n<start_of_turn>model\n[[y<end_of_turn>]]");
    expect_bad(c, QN_MASK_ANSWERS, "{\"messages\":[" USER("A?") "," SILENT("\"weight\":0.5", "x") "]}",
               "messages[1].weight is neither 0 nor 1");
    expect_bad(c, QN_MASK_ANSWERS, "{\"messages\":[" USER("A?") "," SILENT("\"train\":\"no\"", "x") "]}",
               "messages[1].train is neither 0 nor 1");
    expect_bad(c, QN_MASK_ANSWERS, "{\"messages\":[" USER("A?") "," SILENT("\"weight\":0", "x") "]}",
               "the answer has weight 0");
    expect_bad(
        c, QN_MASK_LAST,
        "{\"messages\":[" USER("A?") "," ANSWER("b") "," USER("C?") "," SILENT("\"weight\":0", "x") "]}",
        "the answer has weight 0");
    assert_string_equal(
        keys_of(c, "{\"messages\":[{\"role\":\"user\",\"content\":\"A?\",\"weight\":1}," ANSWER("b") "]}"),
        "messages[].weight of another role ");
    qn_chat_text_close(c);
}

static void test_keys_of_messages(void **state)
{
    qn_chat_text *c = open_path(qn_test_need_fixture("models/qwen3"),
                                "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.mood }}\n"
                                "{{ m.content }}<|im_end|>{% endfor %}");
    assert_string_equal(
        keys_of(c,
                "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"A?\",\"cache\":"
                "1}],\"mood\":\"glad\",\"id\":7,\"none\":null},{\"role\":\"assistant\",\"content\":\"b\","
                "\"name\":\"x\"}]}"),
        "messages[].content[].cache messages[].id messages[].name ");
    assert_string_equal(
        keys_of(c,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"A?\",\"mood\":\"glad\"}," ANSWER("b") "]}"),
        "");
    qn_chat_text_close(c);
}

/* Of calls and of their functions, by what the template shows. */
static void test_keys_of_calls(void **state)
{
    qn_chat_text *c = open_path(qn_test_need_fixture("models/qwen3"),
                                "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
                                "{% for t in m.tool_calls %}{{ t.function.name }}{{ t.function.arguments }}"
                                "{{ t.mood }}{{ t.function.note }}{% endfor %}<|im_end|>{% endfor %}");
    assert_string_equal(
        keys_of(c, "{\"messages\":[" USER(
                       "A?") ",{\"role\":\"assistant\",\"content\":\"b\",\"tool_calls\":[{\"id\":"
                             "\"1\",\"type\":\"function\",\"weight\":0,\"mood\":\"glad\",\"function\":{"
                             "\"name\":\"f\",\"arguments\":{},"
                             "\"note\":\"n\",\"strict\":true}}]}]}"),
        "messages[].tool_calls[].weight messages[].tool_calls[].function.strict ");
    assert_string_equal(keys_of(c,
                                "{\"messages\":[" USER(
                                    "A?") ",{\"role\":\"assistant\",\"content\":\"b\",\"tool_calls\":["
                                          "{\"index\":0,\"function\":{\"name\":\"f\",\"arguments\":{}}}]}]}"),
                        "messages[].tool_calls[].index ");
    qn_chat_text_close(c);
}

static qn_train_sequence read_with(const char *template, qn_mask mask, const char *line)
{
    qn_chat_text *c = open_path(qn_test_need_fixture("models/qwen3"), template);
    qn_train_sequence s = read_line(c, mask, 4096, line);
    qn_chat_text_close(c);
    return s;
}

#define CALLING(content)                                                                                    \
    "{\"role\":\"assistant\",\"content\":" content ",\"tool_calls\":[{\"type\":\"function\",\"function\":{" \
    "\"name\":\"find\",\"arguments\":\"{\\\"q\\\":1}\"}}]}"
static const char called[] = "{\"messages\":[" USER("A?") "," CALLING(
    "\"\"") ",{\"role\":\"tool\",\"content\":\"1\"}," ANSWER("b") "],\"tools\":[{\"type\":\"function\","
                                                                  "\"function\":{\"name\":\"A\"}}]}";
static const char blind[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
                            "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/* What the template does not write is not taught as an answer of nothing. */
static void test_nothing_is_written(void **state)
{
    qn_train_sequence s = read_with(blind, QN_MASK_ANSWERS, called);
    qn_chat_text *c = open_path(qn_test_need_fixture("models/qwen3"), blind);
    qn_buf text = {0};
    put_marked(c, &s, &text);
    assert_string_equal(text.data, "<|im_start|>user\nA?<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
                                   "<|im_start|>tool\n1<|im_end|>\n<|im_start|>assistant\n[[b<|im_end|>]]");
    assert_int_equal(s.n_empty, 1);
    assert_int_equal(s.n_hidden_calls, 1);
    assert_int_equal(s.n_lost, 0);
    assert_int_equal(s.n_endless, 0);
    assert_int_equal(s.hides_tools, 1); /* "A" stands in the user's words alone */
    qn_buf_free(&text);
    qn_train_sequence_free(&s);
    expect_bad(c, QN_MASK_ANSWERS, "{\"messages\":[" USER("A?") "," CALLING("null") "]}",
               "writes nothing of messages[1]");
    expect_bad(c, QN_MASK_ANSWERS, "{\"messages\":[" USER("A?") "," ANSWER("") "]}",
               "writes nothing of messages[1]");
    s = read_line(c, QN_MASK_ANSWERS, 4096, "{\"messages\":[" USER("A?") "," CALLING("\"Wait.\"") "]}");
    assert_int_equal(s.n_empty, 0);
    assert_int_equal(s.n_hidden_calls, 1);
    qn_train_sequence_free(&s);
    qn_chat_text_close(c);
    c = open_chat("models/qwen3");
    s = read_line(c, QN_MASK_ANSWERS, 4096, called);
    assert_int_equal(s.n_empty, 0);
    assert_int_equal(s.n_hidden_calls, 0);
    assert_int_equal(s.hides_tools, 0);
    qn_train_sequence_free(&s);
    qn_chat_text_close(c);
}

static void test_no_end_of_turn(void **state)
{
    static const char endless[] = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                                  "{% if add_generation_prompt %}assistant: {% endif %}";
    for (qn_mask mask = QN_MASK_ANSWERS; mask <= QN_MASK_ALL; mask++) {
        qn_train_sequence s = read_with(endless, mask, two_turns);
        assert_int_equal(s.n_endless, mask == QN_MASK_ANSWERS ? 2 : 1);
        qn_train_sequence_free(&s);
        s = read_with(blind, mask, two_turns);
        assert_int_equal(s.n_endless, 0);
        qn_train_sequence_free(&s);
    }
}

static void run_out(const char *template, const char *line)
{
    qn_chat_text *c = open_path(qn_test_need_fixture("models/qwen3"), template);
    const qn_line_options o = {
        .text = c, .mask = QN_MASK_ANSWERS, .max_length = 256, .now = "2026-03-14T15:09:26"};
    const int64_t live = qn_mem_live_blocks();
    int done = 0;
    for (int64_t n = 1; n <= 200000 && !done; n += n < 2000 ? 1 : 97) {
        qn_train_sequence s = {0};
        qn_buf keys = {0};
        qn_mem_fail_nth(n);
        qn_status status = qn_train_sequence_read(&o, line, strlen(line), &s, &keys);
        qn_mem_fail_nth(0);
        done = status == QN_OK;
        if (!done && status != QN_E_NOMEM) fail_msg("allocation %lld: %s", (long long)n, qn_last_error());
        qn_train_sequence_free(&s);
        qn_buf_free(&keys);
        assert_int_equal(qn_mem_live_blocks(), live);
    }
    assert_true(done);
    qn_chat_text_close(c);
}

static void test_allocation_failures(void **state)
{
    run_out(NULL, two_turns);
    run_out(blind, called);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chats),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_joined),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_forged),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_other_keys),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_keys_of_messages),
        cmocka_unit_test(test_keys_of_calls),
        cmocka_unit_test(test_nothing_is_written),
        cmocka_unit_test(test_no_end_of_turn),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
