/* vocab.json and merges.txt, or vocab.txt: the first byte chooses, a NUL ends the vocabulary. Known truth: what is taken
 * encodes a text and decodes it again, and a second reading gives the same ids. */
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer/files/vocab_files.h"
#include "text/tokenizer/tokenizer.h"

static void check(int ok)
{
    if (!ok) __builtin_trap();
}

static qn_tokenizer *read_files(const uint8_t *data, size_t size)
{
    static const char *const classes[] = {"GPT2Tokenizer", "Qwen2TokenizerFast"};
    const char *text = (const char *)data + 1, *end = memchr(text, 0, size - 1);
    const size_t n = end ? (size_t)(end - text) : size - 1;
    qn_buf b = {0};
    qn_tokenizer *t = NULL;
    qn_status status = data[0] == 'T' ? qn_vocab_text_join("vocab.txt", text, size - 1, NULL, &b)
                                      : qn_vocab_files_join(classes[data[0] & 1], text, n, "merges.txt",
                                                            end ? end + 1 : "", end ? size - 2 - n : 0, &b);
    if (status == QN_OK) status = qn_tokenizer_from_json("vocab.json", b.data, b.length, &t);
    check(status == QN_OK || (!t && *qn_last_error()));
    qn_buf_free(&b);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "Hello, world's\n 12 \xc3\xa9\xe6\x97\xa5 ab";
    if (size < 2) return 0;
    qn_tokenizer *t = read_files(data, size), *again = read_files(data, size);
    check(!t == !again);
    if (t) {
        int32_t *a = NULL, *b = NULL;
        size_t n = 0, m = 0;
        qn_buf back = {0};
        qn_status status = qn_tokenizer_encode(t, text, sizeof text - 1, QN_ENCODE_SPECIAL, &a, &n);
        check(status == QN_OK || data[0] == 'T'); /* a text may need an [UNK] that is not there */
        check(qn_tokenizer_encode(again, text, sizeof text - 1, QN_ENCODE_SPECIAL, &b, &m) == status);
        check(n == m && (!n || memcmp(a, b, n * sizeof *a) == 0));
        if (status == QN_OK) check(qn_tokenizer_decode(t, a, n, 0, &back) == QN_OK);
        qn_buf_free(&back);
        qn_free(a);
        qn_free(b);
    }
    qn_tokenizer_free(t);
    qn_tokenizer_free(again);
    return 0;
}
