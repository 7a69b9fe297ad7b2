/* What tokenizer.model and tiktoken files are refused for, in words that name the place. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <jansson.h>
#include <string.h>

#include "base/bytes/base64.h"
#include "base/mem.h"
#include "text/tokenizer/files/sentencepiece.h"
#include "text/tokenizer/files/tiktoken.h"

#define BYTES(...) __VA_ARGS__, sizeof(__VA_ARGS__) - 1
#define UNK "\x0a\x09\x0a\x05<unk>\x18\x02"
#define TRAINER(type) "\x12\x02\x18" type

static void expect_refused(qn_status got, qn_status want, const char *says)
{
    if (got != want || !strstr(qn_last_error(), says))
        fail_msg("%s: %s, not %s: %s", qn_status_name(got), qn_last_error(), qn_status_name(want), says);
}

static void test_pieces_refused(void **state)
{
    static const struct {
        const char *data;
        size_t n;
        qn_status status;
        const char *says;
    } rows[] = {
        {BYTES(""), QN_E_FORMAT, "x.model: not a SentencePiece model: it has no pieces"},
        {BYTES("\x0a\xff"), QN_E_FORMAT, "the list of its parts is broken"},
        {BYTES("\x0b\x01"), QN_E_FORMAT, "the list of its parts is broken"},
        {BYTES("\x0a\x02\x0a\x05"), QN_E_FORMAT, "a piece is broken"},
        {BYTES(UNK TRAINER("\x03")), QN_E_UNSUPPORTED, "model_type 3 is not supported"},
        {BYTES(UNK UNK), QN_E_FORMAT, "pieces 0 and 1 are both unknown"},
        {BYTES("\x0a\x03\x0a\x01"
               "a"),
         QN_E_FORMAT, "neither an unknown piece nor byte_fallback"},
        {BYTES(UNK "\x0a\x03\x0a\x01"
                   "a\x0a\x03\x0a\x01"
                   "a"),
         QN_E_FORMAT, "pieces 1 and 2 are both 'a'"},
        {BYTES(UNK "\x0a\x02\x0a\x00"), QN_E_FORMAT, "piece 1: it has no text"},
        {BYTES(UNK "\x0a\x03\x0a\x01\xff"), QN_E_FORMAT, "piece 1: its text is not valid UTF-8"},
        {BYTES(UNK "\x0a\x05\x0a\x01"
                   "a\x18\x09"),
         QN_E_FORMAT, "piece 1: its type is not known"},
        {BYTES(UNK "\x0a\x0a\x0a\x06<0x41>\x18\x06"), QN_E_FORMAT,
         "piece 1: it is a byte, but byte_fallback is false"},
        {BYTES(UNK "\x0a\x08\x0a\x01"
                   "a\x15\x00\x00\x80\x7f"),
         QN_E_FORMAT, "piece 1: its score is not a number"},
        {BYTES(UNK "\x1a\x05\x12\x03\x01\x02\x03"), QN_E_FORMAT, "normalizer_spec: precompiled_charsmap"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_tokenizer *t = NULL;
        expect_refused(qn_sentencepiece_open("x.model", rows[i].data, rows[i].n, NULL, NULL, &t),
                       rows[i].status, rows[i].says);
        assert_null(t);
    }
    json_t *config = json_pack("{s:s}", "tokenizer_class", "XLMRobertaTokenizerFast");
    qn_tokenizer *t = NULL;
    expect_refused(qn_sentencepiece_open("x.model", BYTES(UNK), config, NULL, &t), QN_E_UNSUPPORTED,
                   "the class XLMRobertaTokenizer without");
    json_decref(config);
}

static qn_buf ranks_of_bytes(void)
{
    qn_buf file = {0};
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        qn_base64_encode(&c, 1, &file);
        qn_buf_printf(&file, " %d\n", byte);
    }
    return file;
}

static void test_ranks_refused(void **state)
{
    static const struct {
        const char *line, *says;
    } rows[] = {
        {"YWI=", "line 257: not a token and a rank"},
        {"YWI= x", "line 257: the rank is not a number"},
        {"Y!I= 256", "line 257: the token is not base64"},
        {"YWI= 3", "line 257: another token has this rank"},
        {"YQ== 256", "line 257: the token has another rank"},
        {"YWI= 900000000", "line 257: the rank is too large"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_buf file = ranks_of_bytes();
        qn_tokenizer *t = NULL;
        qn_buf_printf(&file, "%s\n", rows[i].line);
        expect_refused(qn_tiktoken_open("x.tiktoken", file.data, file.length, NULL, NULL, &t), QN_E_FORMAT,
                       rows[i].says);
        assert_null(t);
        qn_buf_free(&file);
    }
    qn_tokenizer *t = NULL;
    expect_refused(qn_tiktoken_open("x.tiktoken", "YQ== 0\n", 7, NULL, NULL, &t), QN_E_FORMAT,
                   "the byte 0 has no token");
}

/* Of pairs with one rank the leftmost merges first, whichever way the token is cut. */
static void test_equal_ranks(void **state)
{
    qn_buf file = ranks_of_bytes();
    qn_tokenizer *t = NULL;
    int32_t *ids;
    size_t n;
    qn_buf_puts(&file, "YWE= 256\r\nYWFh 257\n\nYg== 98");
    file.length -= 7; /* without the token that is there twice */
    assert_int_equal(qn_tiktoken_open("x.tiktoken", file.data, file.length, NULL, NULL, &t), QN_OK);
    assert_int_equal(qn_tokenizer_encode(t, "aaaaa", 5, 0, &ids, &n), QN_OK);
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], 256);
    assert_int_equal(ids[1], 257);
    qn_free(ids);
    qn_tokenizer_free(t);
    qn_buf_free(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pieces_refused),
                                       cmocka_unit_test(test_ranks_refused),
                                       cmocka_unit_test(test_equal_ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
