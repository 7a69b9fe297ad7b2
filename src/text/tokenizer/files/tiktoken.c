#include "text/tokenizer/files/tiktoken.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes/base64.h"
#include "base/json/json_write.h"
#include "base/mem.h"
#include "text/tokenizer/split/byte_level.h"
#include "text/tokenizer/tokenizer_build.h"
#include "text/tokenizer/tokenizer_source.h"

enum {
    TOKEN_BYTES_MAX = 1024, /* of one token; each way to cut it in two is looked up */
    IDS_SPARE = 1 << 16,    /* holes that ranks may have beyond four times their number */
    KIMI_RESERVED = 258,    /* ids behind the vocabulary that Kimi's class gives names */
    LLAMA3_TOKENS = 128000,
};

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SIGNS_AND_SPACES " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3 CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" SIGNS_AND_SPACES
#define QWEN CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|" SIGNS_AND_SPACES
#define KIMI_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI                                                                             \
    "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "*" KIMI_LOWER "+" CONTRACTIONS "?|" \
    "[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "+" KIMI_LOWER "*" CONTRACTIONS "?|\\p{N}{1,3}|" SIGNS_AND_SPACES
#define O200K_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K                                                                  \
    "[^\\r\\n\\p{L}\\p{N}]?" O200K_UPPER "*" O200K_LOWER "+" CONTRACTIONS "?|" \
    "[^\\r\\n\\p{L}\\p{N}]?" O200K_UPPER "+" O200K_LOWER "*" CONTRACTIONS "?|" \
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CL100K                                                                                             \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|" \
    "\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s"
#define GPT2 "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s"

/* Where the configuration does not say how words are split. */
static const struct {
    const char *name; /* a class, or the begin of a file's name */
    const char *pattern;
    int is_class, composes;
} kinds[] = {
    {"QWenTokenizer", QWEN, 1, 1}, {"TikTokenTokenizer", KIMI, 1, 0},
    {"qwen.", QWEN, 0, 1},         {"cl100k_base", CL100K, 0, 0},
    {"o200k_base", O200K, 0, 0},   {"p50k_base", GPT2, 0, 0},
    {"r50k_base", GPT2, 0, 0},     {NULL, LLAMA3, 0, 0}, /* transformers' rule for all others */
};
typedef enum { KIND_QWEN, KIND_KIMI, KIND_QWEN_FILE } kind_index; /* rows of kinds that have special tokens */

typedef struct {
    const char *path, *text;
    size_t n;
    const json_t *config;
    size_t i_kind;
    int64_t n_ids; /* one more than the largest rank */
    size_t n_tokens;
} reader;

/* ---- the file ------------------------------------------------------------------------------------------ */

typedef struct {
    const char *token, *rank;
    size_t n_token, n_rank, next;
} line;

/* The line at byte `at`; 0: it is not two words. An empty line has no words at all. */
static int cut_line(const char *text, size_t n, size_t at, line *l)
{
    const char *begin = text + at, *newline = memchr(begin, '\n', n - at);
    size_t length = newline ? (size_t)(newline - begin) : n - at;
    *l = (line){.next = at + length + 1};
    if (length && begin[length - 1] == '\r') length--;
    if (!length) return 1;
    const char *space = memchr(begin, ' ', length);
    if (!space) return 0;
    *l = (line){begin, space + 1, (size_t)(space - begin), length - (size_t)(space - begin) - 1, l->next};
    return l->n_token && l->n_rank;
}

static int read_rank(const line *l, int64_t *rank)
{
    *rank = 0;
    if (l->n_rank > 9) return 0;
    for (size_t i = 0; i < l->n_rank; i++) {
        if (l->rank[i] < '0' || l->rank[i] > '9') return 0;
        *rank = *rank * 10 + (l->rank[i] - '0');
    }
    return 1;
}

int qn_tiktoken_is(const char *text, size_t n)
{
    line l;
    int64_t rank;
    if (!n || !cut_line(text, n, 0, &l) || !l.n_token || !read_rank(&l, &rank)) return 0;
    for (size_t i = 0; i < l.n_token; i++) {
        char c = l.token[i];
        int digit = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        if (!digit && c != '+' && c != '/' && c != '=') return 0;
    }
    return 1;
}

static qn_status bad_line(const reader *r, int64_t number, const char *why)
{
    return qn_fail(QN_E_FORMAT, "%s: line %lld: %s", r->path, (long long)number, why);
}

/* A token in the byte alphabet, as vocabularies of tokenizer.json have it. */
static qn_status read_line(reader *r, qn_vocab *v, const line *l, int64_t number, qn_buf *bytes,
                           qn_buf *spelt)
{
    int64_t rank;
    size_t n_other;
    qn_buf_reset(bytes);
    qn_buf_reset(spelt);
    if (!read_rank(l, &rank)) return bad_line(r, number, "the rank is not a number");
    qn_status status = qn_base64_decode(l->token, l->n_token, bytes);
    if (status == QN_E_FORMAT) return bad_line(r, number, "the token is not base64");
    QN_TRY(status);
    if (!bytes->length) return bad_line(r, number, "the token is empty");
    if (bytes->length > TOKEN_BYTES_MAX) return bad_line(r, number, "the token is too long");
    if (rank > (int64_t)r->n + IDS_SPARE) return bad_line(r, number, "the rank is too large");
    qn_byte_level_encode(bytes->data, bytes->length, spelt);
    if (spelt->status != QN_OK) return spelt->status;
    if (qn_vocab_text(v, (int32_t)rank, &n_other)) return bad_line(r, number, "another token has this rank");
    if (qn_vocab_find(v, spelt->data, spelt->length) >= 0)
        return bad_line(r, number, "the token has another rank");
    if (rank >= r->n_ids) r->n_ids = rank + 1;
    return qn_vocab_add(v, (int32_t)rank, spelt->data, spelt->length, 0);
}

static qn_status read_lines(reader *r, qn_vocab *v)
{
    qn_buf bytes = {0}, spelt = {0};
    qn_status status = QN_OK;
    int64_t number = 1;
    line l;
    for (size_t at = 0; at < r->n && status == QN_OK; at = l.next, number++) {
        if (!cut_line(r->text, r->n, at, &l))
            status = bad_line(r, number, "not a token and a rank with a space between them");
        else if (l.n_token)
            status = read_line(r, v, &l, number, &bytes, &spelt);
    }
    qn_buf_free(&bytes);
    qn_buf_free(&spelt);
    for (int byte = 0; byte < 256 && status == QN_OK; byte++) {
        qn_buf one = {0};
        char c = (char)byte;
        qn_byte_level_encode(&c, 1, &one);
        status = one.status;
        if (status == QN_OK && qn_vocab_find(v, one.data, one.length) < 0)
            status = qn_fail(QN_E_FORMAT, "%s: the byte %d has no token", r->path, byte);
        qn_buf_free(&one);
    }
    return status;
}

/* Every way to cut a token in two tokens merges to it, all with its own rank: of equal ranks the leftmost pair
 * merges first, as in tiktoken. */
static qn_status add_merges(const qn_vocab *v, qn_bpe *bpe)
{
    enum { CUTS = 64 };
    qn_vocab_lookup lookups[2 * CUTS];
    for (size_t id = 0; id < v->n_ids; id++) {
        size_t n, cut = 0, count;
        const char *text = qn_vocab_text(v, (int32_t)id, &n);
        while (text && cut < n) {
            for (count = 0; count < CUTS && ++cut < n;) {
                if (((uint8_t)text[cut] & 0xc0) == 0x80) continue;
                lookups[2 * count] = (qn_vocab_lookup){.text = text, .n = cut};
                lookups[2 * count++ + 1] = (qn_vocab_lookup){.text = text + cut, .n = n - cut};
            }
            qn_vocab_find_all(v, lookups, 2 * count);
            for (size_t i = 0; i < count; i++)
                if (lookups[2 * i].id >= 0 && lookups[2 * i + 1].id >= 0)
                    QN_TRY(qn_bpe_add_merge(bpe, lookups[2 * i].id, lookups[2 * i + 1].id, (int32_t)id,
                                            (uint32_t)id));
        }
    }
    return QN_OK;
}

static qn_status build(void *user, qn_tokenizer *t)
{
    reader *r = user;
    qn_bpe_options o = {.unk_id = -1, .ignore_merges = 1};
    QN_TRY(qn_vocab_init(&t->vocab, r->n / 16, r->n / 2));
    QN_TRY(read_lines(r, &t->vocab));
    QN_TRY(qn_bpe_new(&t->vocab, &o, 3 * t->vocab.n_tokens, &t->bpe));
    return add_merges(&t->vocab, t->bpe);
}

/* ---- special tokens ------------------------------------------------------------------------------------ */

static void put_special(qn_buf *out, int64_t id, const char *text, size_t n)
{
    qn_json_open(out, '{');
    qn_json_put_int(out, "id", id);
    qn_json_key(out, "content");
    qn_json_text(out, text, n);
    qn_json_put_bool(out, "special", 1);
    qn_json_put_bool(out, "normalized", 0);
    qn_json_close(out, '}');
}

static void put_numbered(qn_buf *out, int64_t id, const char *name, int64_t number)
{
    char text[64];
    int n = snprintf(text, sizeof text, "<|%s_%lld|>", name, (long long)number);
    put_special(out, id, text, (size_t)n);
}

/* Ids of the configuration's list, and of those between that have no name. */
static qn_status put_listed(const reader *r, int64_t n_base, qn_buf *out)
{
    const json_t *list = json_object_get(r->config, "added_tokens_decoder"), *value;
    const char *key;
    int64_t last = r->i_kind == KIND_KIMI ? n_base + KIMI_RESERVED - 1 : n_base - 1;
    json_object_foreach((json_t *)list, key, value)
    {
        int64_t id = strtoll(key, NULL, 10);
        if (id > last) last = id;
    }
    if (last - n_base > (int64_t)json_object_size(list) + IDS_SPARE)
        return qn_fail(QN_E_FORMAT,
                       "%s: added_tokens_decoder of tokenizer_config.json: the id %lld is too large", r->path,
                       (long long)last);
    for (int64_t id = n_base; id <= last; id++) {
        char name[32];
        size_t n;
        snprintf(name, sizeof name, "%lld", (long long)id);
        const char *text = qn_tokenizer_config_text(json_object_get(list, name), &n);
        if (text)
            put_special(out, id, text, n);
        else
            put_numbered(out, id, "reserved_token", id);
    }
    return out->status;
}

static void put_qwen(int64_t n_base, qn_buf *out)
{
    static const char *const names[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    enum { N_EXTRA = 205 };
    for (int i = 0; i < 3; i++) put_special(out, n_base++, names[i], strlen(names[i]));
    for (int i = 0; i < N_EXTRA; i++) put_numbered(out, n_base++, "extra", i);
}

static void put_llama3(int64_t n_base, qn_buf *out)
{
    static const char *const names[] = {"<|begin_of_text|>",
                                        "<|end_of_text|>",
                                        "<|reserved_special_token_0|>",
                                        "<|reserved_special_token_1|>",
                                        "<|reserved_special_token_2|>",
                                        "<|reserved_special_token_3|>",
                                        "<|start_header_id|>",
                                        "<|end_header_id|>",
                                        "<|reserved_special_token_4|>",
                                        "<|eot_id|>"};
    enum { N_RESERVED = 251 };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        put_special(out, n_base++, names[i], strlen(names[i]));
    for (int i = 5; i < N_RESERVED; i++) put_numbered(out, n_base++, "reserved_special_token", i);
}

static int is_qwen(const reader *r)
{
    return r->i_kind == KIND_QWEN || r->i_kind == KIND_QWEN_FILE;
}

/* Meta's own files come without a configuration. */
static int is_llama3(const reader *r)
{
    return !r->config && !kinds[r->i_kind].name && r->n_tokens == LLAMA3_TOKENS;
}

static qn_status put_rules(const reader *r, qn_buf *out)
{
    const json_t *pattern = json_object_get(r->config, "pat_str");
    if (!json_is_string(pattern)) pattern = json_object_get(r->config, "pattern");
    const char *regex = json_is_string(pattern) ? json_string_value(pattern) : kinds[r->i_kind].pattern;
    const int64_t n_base = (int64_t)r->n_tokens;
    qn_json_open(out, '{');
    if (kinds[r->i_kind].composes) {
        qn_json_key(out, "normalizer");
        qn_buf_puts(out, "{\"type\":\"NFC\"}");
    }
    qn_json_key(out, "pre_tokenizer");
    qn_buf_puts(out, "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":");
    qn_buf_json_string(out, regex, strlen(regex));
    qn_buf_puts(out, "},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
                     "\"add_prefix_space\":false,\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"},"
                     "\"added_tokens\":[");
    qn_status status = QN_OK;
    if (is_llama3(r))
        put_llama3(n_base, out);
    else if (is_qwen(r) && !json_object_get(r->config, "added_tokens_decoder"))
        put_qwen(n_base, out);
    else
        status = put_listed(r, n_base, out);
    qn_buf_puts(out, "]}");
    return status == QN_OK ? out->status : status;
}

/* ---- all together -------------------------------------------------------------------------------------- */

static size_t choose_kind(const char *path, const json_t *config)
{
    const char *class = json_string_value(json_object_get(config, "tokenizer_class")),
               *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    size_t i = 0;
    for (; kinds[i].name; i++) {
        const char *with = kinds[i].is_class ? class : file;
        if (with && strncmp(with, kinds[i].name, strlen(kinds[i].name)) == 0) break;
    }
    return i;
}

static size_t count_tokens(const char *text, size_t n)
{
    size_t count = 0;
    line l;
    for (size_t at = 0; at < n && cut_line(text, n, at, &l); at = l.next) count += l.n_token > 0;
    return count;
}

static int32_t find_id(const qn_tokenizer *t, const qn_named_tokens *named, const char *name,
                       const char *otherwise)
{
    qn_named_token token;
    if (named && qn_named_token_get(json_object_get(named->names, name), &token))
        return qn_tokenizer_find(t, token.text, token.n);
    return otherwise ? qn_tokenizer_find(t, otherwise, strlen(otherwise)) : -1;
}

qn_status qn_tiktoken_open(const char *path, const char *text, size_t n, const json_t *config,
                           const qn_named_tokens *named, qn_tokenizer **out)
{
    reader r = {.path = path, .text = text, .n = n, .config = config, .i_kind = choose_kind(path, config)};
    qn_tokenizer *t = NULL;
    qn_buf rules = {0};
    r.n_tokens = count_tokens(text, n);
    qn_status status = put_rules(&r, &rules);
    qn_tokenizer_parts parts = {build, &r, rules.data, rules.length, 1};
    if (status == QN_OK) status = qn_tokenizer_from_parts(path, &parts, named, &t);
    const int llama3 = is_llama3(&r);
    if (status == QN_OK)
        status =
            qn_tokenizer_set_ids(t, find_id(t, named, "bos_token", llama3 ? "<|begin_of_text|>" : NULL),
                                 find_id(t, named, "eos_token",
                                         llama3        ? "<|end_of_text|>"
                                         : is_qwen(&r) ? "<|endoftext|>"
                                                       : NULL),
                                 find_id(t, named, "unk_token", NULL), find_id(t, named, "pad_token", NULL));
    if (status == QN_OK)
        status = qn_tokenizer_set_around(
            t, llama3 || json_is_true(json_object_get(config, "add_bos_token")) ? t->bos_id : -1,
            json_is_true(json_object_get(config, "add_eos_token")) ? t->eos_id : -1);
    qn_buf_free(&rules);
    if (status == QN_OK)
        *out = t;
    else
        qn_tokenizer_free(t);
    return status;
}
