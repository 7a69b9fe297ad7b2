/* Texts against two fixed tokenizers, byte-level and SentencePiece style. Known truths: no special token
 * comes out of text that is not trusted, a byte-level decode gives valid input back, and both halves of a
 * text encode as the whole does. */
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

static const char byte_style[] =
    "{\"added_tokens\":[{\"id\":300,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
    "{\"id\":301,\"content\":\"\\n\\n\",\"special\":false,\"normalized\":false},"
    "{\"id\":302,\"content\":\"word\",\"special\":false,\"normalized\":true,\"single_word\":true}],"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
    "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "
    "?[^\\\\s\\\\p{L}\\\\p{N}]+"
    "[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\"},"
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},\"decoder\":{\"type\":"
    "\"ByteLevel\"},"
    "\"model\":{\"merges\":[\"a b\",\"\xc4\xa0 ab\",\"t h\",\"th e\",\"\xc3\x83 \xc2\xa9\"],\"vocab\":{"
    "\"ab\":256,\"\xc4\xa0"
    "ab\":257,\"th\":258,\"the\":259,\"\xc3\x83\xc2\xa9\":260";
static const char space_style[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true,\"normalized\":true}],"
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":\"Prepend\","
    "\"prepend\":"
    "\"\xe2\x96\x81\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
    "\"\xe2\x96\x81\"},"
    "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
    "\",\"start\":1,"
    "\"stop\":0}]},\"model\":{\"byte_fallback\":true,\"unk_token\":\"<u>\",\"fuse_unk\":true,\"merges\":["
    "\"\xe2\x96\x81 a\","
    "\"a b\",\"\xe2\x96\x81 "
    "\xe2\x96\x81\"],\"vocab\":{\"<s>\":0,\"<u>\":1,\"\xe2\x96\x81\":2,\"a\":3,\"b\":4,\"\xe2\x96\x81"
    "a\":5,"
    "\"ab\":6,\"\xe2\x96\x81\xe2\x96\x81\":7,\"<0xC3>\":8,\"<0xA9>\":9,\"<0x0A>\":10}}}";

static qn_tokenizer *byte_tokenizer, *space_tokenizer;

static void check(int ok)
{
    if (!ok) __builtin_trap();
}

static void make(void)
{
    qn_buf b = {0};
    qn_buf_puts(&b, byte_style);
    for (uint32_t byte = 0; byte < 256; byte++) {
        char utf8[4];
        int plain = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
        uint32_t cp = plain ? byte : byte <= 0x20 ? 0x100 + byte : byte == 0xad ? 0x143 : 0x121 + byte - 0x7f;
        qn_buf_puts(&b, ",");
        qn_buf_json_string(&b, utf8, qn_utf8_encode(cp, utf8));
        qn_buf_printf(&b, ":%u", byte);
    }
    qn_buf_puts(&b, "}}}");
    check(qn_tokenizer_from_json("bytes", b.data, b.length, &byte_tokenizer) == QN_OK);
    check(qn_tokenizer_from_json("spaces", space_style, strlen(space_style), &space_tokenizer) == QN_OK);
    qn_buf_free(&b);
}

static void run(const qn_tokenizer *t, const char *text, size_t n, int is_byte_level)
{
    int32_t *ids = NULL, *again = NULL;
    size_t n_ids = 0, n_again = 0, cut = n / 2;
    qn_buf out = {0};
    while (cut && ((uint8_t)text[cut] & 0xc0) == 0x80) cut--;
    qn_text_segment halves[] = {{text, cut, 0}, {text + cut, n - cut, 0}};
    check(qn_tokenizer_encode(t, text, n, 0, &ids, &n_ids) == QN_OK);
    check(qn_tokenizer_encode_segments(t, halves, 2, 0, &again, &n_again) == QN_OK);
    for (size_t i = 0; i < n_ids; i++) check(ids[i] == 1 || !qn_tokenizer_is_special(t, ids[i]));
    if (qn_utf8_valid_prefix(text, n) == n) {
        check(n_ids == n_again && memcmp(ids, again, n_ids * sizeof *ids) == 0);
        check(qn_tokenizer_decode(t, ids, n_ids, 0, &out) == QN_OK);
        check(!is_byte_level || (out.length == n && (!n || memcmp(out.data, text, n) == 0)));
    }
    qn_buf_free(&out);
    qn_free(again);
    qn_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!byte_tokenizer) make();
    run(byte_tokenizer, (const char *)data, size, 1);
    run(space_tokenizer, (const char *)data, size, 0);
    return 0;
}
