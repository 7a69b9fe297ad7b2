#include "text/tokenizer/tokenizer_to_gguf.h"

#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "text/tokenizer/chat_templates.h"
#include "text/tokenizer/split/gguf_pre.h"
#include "text/tokenizer/tokenizer_build.h"
#include "text/tokenizer/tokenizer_source.h"

/* As tokenizer_gguf.c reads them. */
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };
typedef enum { GPT2, LLAMA, GEMMA4 } vocab_kind;

static const char mark[] = "\xe2\x96\x81"; /* U+2581, a space in vocabularies of SentencePiece's way */

typedef struct {
    const char *path; /* of tokenizer.json */
    qn_source *src;
    const qn_tokenizer *t;
    const qn_gguf_vocab *vocab;
    qn_gguf_writer *w;
    qn_buf *notes;
    json_t *root; /* tokenizer.json */
    vocab_kind kind;
    int ignore_merges, byte_fallback;
} writing;

/* What tells pre-tokenizers apart: runs of digits, contractions, capitals, scripts, white space and line
 * ends, signs before and behind words. */
static const char probe[] =
    "Hello, world! It's 7 o'clock; WE'LL pay 12 of 345, 6789 or 1234567.89 (\xe2\x82\xac) don't'VE "
    "camelCaseWords HTMLParser a1b2\n\n\n  indented\t\ttabs  \r\n end   \n x\n/path/to/file.c:42 !a !!b ##c "
    "@d "
    "na\xc3\xafve \xc3\xa9t\xc3\xa9 \xc3\x9c"
    "BER \xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82 \xce\xb1\xce\xb2\xce\xb3 "
    "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\xe3\x81\xb2\xe3\x82\x89\xe3\x81\x8c\xe3\x81\xaa\xe3\x82\xab\xe3\x83"
    "\x8a "
    "\xe4\xb8\xad\xe6\x96\x87\xef\xbc\x8c\xe3\x80\x82 \xed\x95\x9c\xea\xb5\xad\xec\x96\xb4 "
    "\xe0\xa4\xb9\xe0\xa4\xbf\xe0\xa4\xa8\xe0\xa5\x8d\xe0\xa4\xa6\xe0\xa5\x80 "
    "\xd8\xb9\xd8\xb1\xd8\xa8\xd9\x8a \xd9\xa1\xd9\xa2\xd9\xa3 "
    "\xf0\x9f\x99\x82\xf0\x9f\x87\xaa\xf0\x9f\x87\xba "
    "`code` ~x~ $5 <=> a+b==c ^^ |y| \xe2\x80\xa6 \xe2\x80\x9cquoted\xe2\x80\x9d \xe2\x80\x94 _under_score "
    "for (int i = 0; i < n; i++) {\n        sum += v[i];\n    }\n";

/* Letters with their marks apart: what a normalizer may join, for which GGUF has no word. */
static const char decomposed[] = "e\xcc\x81te\xcc\x81 u\xcc\x88"
                                 "ber a\xcc\x8a"
                                 "1";

/* ---- pre-tokenizers ------------------------------------------------------------------------------------ */

static qn_status cut_probe(const qn_pretokenizer *p, qn_pieces *pieces)
{
    qn_pieces spare = {0};
    qn_regex_match *m = qn_regex_match_new();
    qn_status status = m ? QN_OK : QN_E_NOMEM;
    qn_buf text = {0};
    qn_buf_printf(&text, "%s%s", probe, decomposed);
    if (status == QN_OK) status = text.status;
    if (status == QN_OK) status = qn_pieces_set(pieces, text.data, text.length);
    if (status == QN_OK) status = qn_pretokenizer_run(p, m, QN_AFTER_NOTHING, pieces, &spare);
    qn_buf_free(&text);
    qn_regex_match_free(m);
    qn_pieces_free(&spare);
    return status;
}

static int same_pieces(const qn_pieces *a, const qn_pieces *b)
{
    if (a->n != b->n || a->text.length != b->text.length) return 0;
    for (size_t i = 0; i < a->n; i++)
        if (a->start[i] != b->start[i] || a->length[i] != b->length[i]) return 0;
    return memcmp(a->text.data, b->text.data, a->text.length) == 0;
}

/* *same: a row of the table cuts the probe as `own` was cut. */
static qn_status try_pre(const writing *x, const qn_gguf_pre *pre, const qn_pieces *own, int *same)
{
    qn_pretokenizer *p = NULL;
    qn_pieces pieces = {0};
    json_t *value = qn_gguf_pre_json(pre->regexes, QN_GGUF_PRE_REGEXES_MAX);
    qn_status status = value ? qn_pretokenizer_from_json(x->path, value, &p) : qn_fail_nomem(0);
    json_decref(value);
    if (status == QN_OK) status = cut_probe(p, &pieces);
    if (status == QN_OK) *same = same_pieces(own, &pieces);
    qn_pieces_free(&pieces);
    qn_pretokenizer_free(p);
    return status;
}

static qn_status put_pre(writing *x)
{
    qn_pieces own = {0};
    const qn_gguf_pre *found = NULL, *pre;
    qn_status status = cut_probe(x->t->pretokenizer, &own);
    for (unsigned long i = 0; status == QN_OK && (pre = qn_gguf_pre_at(i)); i++) {
        int same = 0;
        if (found && found->ignore_merges == x->ignore_merges) break;
        status = try_pre(x, pre, &own, &same);
        if (same && (!found || pre->ignore_merges == x->ignore_merges)) found = pre;
    }
    qn_pieces_free(&own);
    QN_TRY(status);
    if (!found)
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: pre_tokenizer: GGUF has no name for the way in which it splits words", x->path);
    return qn_gguf_writer_text(x->w, "tokenizer.ggml.pre", found->names, strcspn(found->names, " "));
}

/* ---- tokens -------------------------------------------------------------------------------------------- */

static int32_t type_of(const writing *x, int32_t id)
{
    const uint8_t flags = qn_vocab_flags(&x->t->vocab, id);
    size_t n;
    const char *text = qn_vocab_text(&x->t->vocab, id, &n);
    if (!text) return UNUSED;
    if (x->kind != GPT2 && id == x->t->unk_id) return UNKNOWN;
    if (flags & QN_TOKEN_SPECIAL) return CONTROL;
    /* Runs of spaces come of merges there, and an added token's text would be given as it is. */
    if (x->kind == GEMMA4 && qn_find_bytes(text, n, 0, mark, 3) < n) return NORMAL;
    if (flags & QN_TOKEN_ADDED) return USER_DEFINED;
    if (x->kind != GPT2 && x->byte_fallback && qn_byte_token_value(text, n) >= 0) return BYTE;
    return NORMAL;
}

/* Where scores rank merges, added tokens are text as it comes, with spaces as they are; the model's own have
 * U+2581 for them. */
static qn_status put_text(writing *x, int32_t type, const char *text, size_t n)
{
    qn_buf plain = {0};
    if (type != USER_DEFINED || x->kind != LLAMA) return qn_gguf_writer_next(x->w, text, n);
    for (size_t at = 0, next; at < n; at = next) {
        next = qn_find_bytes(text, n, at, mark, 3);
        qn_buf_append(&plain, text + at, next - at);
        if (next == n) break;
        qn_buf_putc(&plain, ' ');
        next += 3;
    }
    qn_status status = plain.status != QN_OK
                           ? plain.status
                           : qn_gguf_writer_next(x->w, plain.data ? plain.data : "", plain.length);
    qn_buf_free(&plain);
    return status;
}

static qn_status put_tokens(writing *x)
{
    const int64_t n = x->vocab->vocab_size;
    int32_t *types = qn_alloc_array((size_t)n, sizeof *types);
    if (!types) return QN_E_NOMEM;
    qn_status status = qn_gguf_writer_texts(x->w, "tokenizer.ggml.tokens", n);
    for (int64_t id = 0; id < n && status == QN_OK; id++) {
        char unused[32];
        size_t length = 0;
        const char *text = qn_vocab_text(&x->t->vocab, (int32_t)id, &length);
        if (!text) {
            length = (size_t)snprintf(unused, sizeof unused, "[PAD%lld]", (long long)id);
            text = unused;
        }
        types[id] = type_of(x, (int32_t)id);
        status = put_text(x, types[id], text, length);
    }
    if (status == QN_OK)
        status = qn_gguf_writer_array(x->w, "tokenizer.ggml.token_type", QN_GGUF_I32, n, types);
    qn_free(types);
    return status;
}

/* The two halves of an entry of model.merges, in either spelling. */
static int halves_of(const json_t *entry, const char *half[2], size_t n[2])
{
    if (json_is_array(entry) && json_array_size(entry) == 2) {
        for (size_t i = 0; i < 2; i++) {
            half[i] = json_string_value(json_array_get(entry, i));
            n[i] = json_string_length(json_array_get(entry, i));
        }
        return half[0] && half[1];
    }
    half[0] = json_string_value(entry);
    const char *space = half[0] ? strchr(half[0] + (*half[0] == ' '), ' ') : NULL;
    if (!space) return 0;
    n[0] = (size_t)(space - half[0]);
    half[1] = space + 1;
    n[1] = json_string_length(entry) - n[0] - 1;
    return 1;
}

static qn_status bad_merge(const writing *x, size_t i)
{
    return qn_fail(QN_E_UNSUPPORTED, "%s: model.merges[%zu] cannot be written in GGUF", x->path, i);
}

static qn_status put_merges(writing *x, const json_t *merges)
{
    qn_buf line = {0};
    qn_status status = qn_gguf_writer_texts(x->w, "tokenizer.ggml.merges", (int64_t)json_array_size(merges));
    for (size_t i = 0; i < json_array_size(merges) && status == QN_OK; i++) {
        const char *half[2];
        size_t n[2];
        if (!halves_of(json_array_get(merges, i), half, n) ||
            (n[0] > 1 && memchr(half[0] + 1, ' ', n[0] - 1)) || memchr(half[1], ' ', n[1])) {
            status = bad_merge(x, i);
            break;
        }
        qn_buf_reset(&line);
        qn_buf_append(&line, half[0], n[0]);
        qn_buf_putc(&line, ' ');
        qn_buf_append(&line, half[1], n[1]);
        status = line.status != QN_OK ? line.status : qn_gguf_writer_next(x->w, line.data, line.length);
    }
    qn_buf_free(&line);
    return status;
}

/* Whoever merges by scores joins the pair whose token has the best: the first merge that gives a token says
 * how good it is. */
static qn_status put_scores(writing *x, const json_t *merges)
{
    enum { NEVER = -1000000000 };
    const size_t n = (size_t)x->vocab->vocab_size;
    float *scores = qn_alloc_array(n, sizeof *scores);
    qn_buf joined = {0};
    if (!scores) return QN_E_NOMEM;
    for (size_t i = 0; i < n; i++) scores[i] = NEVER;
    qn_status status = QN_OK;
    for (size_t i = 0; i < json_array_size(merges) && status == QN_OK; i++) {
        const char *half[2];
        size_t length[2];
        if (!halves_of(json_array_get(merges, i), half, length)) {
            status = bad_merge(x, i);
            break;
        }
        qn_buf_reset(&joined);
        qn_buf_append(&joined, half[0], length[0]);
        qn_buf_append(&joined, half[1], length[1]);
        if ((status = joined.status) != QN_OK) break;
        const int32_t id = qn_vocab_find(&x->t->vocab, joined.data, joined.length);
        if (id >= 0 && (size_t)id < n && scores[id] <= NEVER) scores[id] = -(float)i;
    }
    if (status == QN_OK)
        status = qn_gguf_writer_array(x->w, "tokenizer.ggml.scores", QN_GGUF_F32, (int64_t)n, scores);
    qn_buf_free(&joined);
    qn_free(scores);
    return status;
}

/* ---- special ids --------------------------------------------------------------------------------------- */

static qn_status put_id(writing *x, const char *name, int32_t id)
{
    char key[64];
    if (id < 0 || id >= x->vocab->vocab_size) return QN_OK;
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", name);
    return qn_gguf_writer_u32(x->w, key, (uint32_t)id);
}

static qn_status put_stops(writing *x, int32_t eos)
{
    static const char *const names[] = {"eot", "eom"};
    int n = 0;
    QN_TRY(put_id(x, "eos", eos));
    for (int i = 0; i < x->vocab->n_stop_ids; i++) {
        if (x->vocab->stop_ids[i] == eos) continue;
        if (n < 2)
            QN_TRY(put_id(x, names[n], x->vocab->stop_ids[i]));
        else
            qn_buf_printf(x->notes, "token %d also ends an answer, which a GGUF file cannot store\n",
                          x->vocab->stop_ids[i]);
        n++;
    }
    return x->notes->status;
}

static qn_status put_ids(writing *x)
{
    const qn_id_list *before = &x->t->prefix, *behind = &x->t->suffix;
    int32_t bos = before->n ? before->data[0] : x->t->bos_id >= 0 ? x->t->bos_id : x->vocab->bos_id;
    int32_t eos = behind->n ? behind->data[0] : x->t->eos_id;
    if (before->n > 1 || behind->n > 1)
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: post_processor: it puts %zu tokens around a text; GGUF can store only BOS and "
                       "EOS",
                       x->path, before->n + behind->n);
    if (eos < 0 && x->vocab->n_stop_ids) eos = x->vocab->stop_ids[0];
    QN_TRY(put_id(x, "bos", bos));
    QN_TRY(put_stops(x, eos));
    QN_TRY(put_id(x, "unknown", x->t->unk_id));
    QN_TRY(put_id(x, "padding", x->t->pad_id));
    QN_TRY(qn_gguf_writer_bool(x->w, "tokenizer.ggml.add_bos_token", before->n > 0));
    return qn_gguf_writer_bool(x->w, "tokenizer.ggml.add_eos_token", behind->n > 0);
}

/* ---- templates ----------------------------------------------------------------------------------------- */

static qn_status put_templates(writing *x)
{
    static const char key[] = "tokenizer.chat_template";
    qn_chat_templates *all = qn_calloc(1, sizeof *all);
    if (!all) return QN_E_NOMEM;
    qn_status status = qn_chat_templates_read(x->src, all);
    for (size_t i = 0; i < all->n && status == QN_OK; i++) {
        const qn_named_template *row = &all->rows[i];
        const int is_main = strcmp(row->name, "default") == 0;
        char own[256];
        if (strlen(row->name) > 200) {
            status = qn_fail(QN_E_UNSUPPORTED, "%s: the name of the chat template is too long", row->what);
            break;
        }
        snprintf(own, sizeof own, "%s%s%s", key, is_main ? "" : ".", is_main ? "" : row->name);
        status = qn_gguf_writer_text(x->w, own, row->text, row->n);
    }
    qn_chat_templates_free(all);
    qn_free(all);
    return status;
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

/* 1: something is put before the first word. */
static qn_status starts_with_space(const writing *x, int *out)
{
    int32_t *ids = NULL;
    size_t n = 0, length = 0;
    QN_TRY(qn_tokenizer_encode(x->t, "x", 1, 0, &ids, &n));
    const char *text = n ? qn_vocab_text(&x->t->vocab, ids[0], &length) : NULL;
    *out = text && length >= 3 && memcmp(text, mark, 3) == 0;
    qn_free(ids);
    return QN_OK;
}

static qn_status put_all(writing *x)
{
    static const char *const names[] = {"gpt2", "llama", "gemma4"};
    const json_t *model = json_object_get(x->root, "model"), *merges = json_object_get(model, "merges");
    int space = 0;
    x->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    x->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    x->kind = qn_pretokenizer_is_byte_level(x->t->pretokenizer) ? GPT2
              : strcmp(x->vocab->architecture, "gemma4") == 0   ? GEMMA4
                                                                : LLAMA;
    for (int64_t id = x->vocab->vocab_size; id < (int64_t)x->t->vocab.n_ids; id++)
        if (qn_vocab_text(&x->t->vocab, (int32_t)id, &(size_t){0})) {
            qn_buf_printf(x->notes, "%s: tokens from %lld on have no row in the embedding and are left out\n",
                          x->path, (long long)id);
            break;
        }
    QN_TRY(qn_gguf_writer_text(x->w, "tokenizer.ggml.model", names[x->kind], strlen(names[x->kind])));
    if (x->kind == GPT2) QN_TRY(put_pre(x));
    QN_TRY(put_tokens(x));
    QN_TRY(x->kind == LLAMA ? put_scores(x, merges) : put_merges(x, merges));
    QN_TRY(put_ids(x));
    if (x->kind == LLAMA) {
        QN_TRY(starts_with_space(x, &space));
        QN_TRY(qn_gguf_writer_bool(x->w, "tokenizer.ggml.add_space_prefix", space));
    }
    return put_templates(x);
}

qn_status qn_tokenizer_write_gguf(qn_source *src, const qn_tokenizer *t, const qn_gguf_vocab *vocab,
                                  qn_gguf_writer *w, qn_buf *notes)
{
    const char *text;
    size_t n;
    writing x = {.path = qn_source_side_path(src, QN_SIDE_TOKENIZER),
                 .src = src,
                 .t = t,
                 .vocab = vocab,
                 .w = w,
                 .notes = notes};
    QN_TRY(qn_source_side_text(src, QN_SIDE_TOKENIZER, &text, &n));
    qn_status status = qn_json_parse(x.path, text, n, &x.root);
    qn_source_side_drop(src, QN_SIDE_TOKENIZER);
    if (status == QN_OK) status = put_all(&x);
    json_decref(x.root);
    return status;
}

/* ---- comparison ---------------------------------------------------------------------------------------- */

static qn_status compare_back(const char *what, const qn_tokenizer *a, const qn_tokenizer *b,
                              const int32_t *ids, size_t n)
{
    qn_buf x = {0}, y = {0};
    qn_status status = qn_tokenizer_decode(a, ids, n, 0, &x);
    if (status == QN_OK) status = qn_tokenizer_decode(b, ids, n, 0, &y);
    if (status == QN_OK && (x.length != y.length || (x.length && memcmp(x.data, y.data, x.length) != 0)))
        status = qn_fail(QN_E_UNSUPPORTED,
                         "%s: a GGUF file cannot store how this tokenizer turns tokens into text", what);
    qn_buf_free(&x);
    qn_buf_free(&y);
    return status;
}

static qn_status compare_text(const char *what, const qn_tokenizer *a, const qn_tokenizer *b,
                              const char *text, size_t n, unsigned flags)
{
    int32_t *x = NULL, *y = NULL;
    size_t n_x = 0, n_y = 0, at = 0;
    qn_status status = qn_tokenizer_encode(a, text, n, flags, &x, &n_x);
    if (status == QN_OK) status = qn_tokenizer_encode(b, text, n, flags, &y, &n_y);
    while (status == QN_OK && at < n_x && at < n_y && x[at] == y[at]) at++;
    if (status == QN_OK && (at < n_x || at < n_y))
        status = qn_fail(
            QN_E_UNSUPPORTED,
            "%s: a GGUF file cannot store how this tokenizer splits text: token %zu of \"%.*s%s\" would be "
            "%d instead of %d",
            what, at, n < 40 ? (int)n : 40, text, n < 40 ? "" : "...", at < n_y ? y[at] : -1,
            at < n_x ? x[at] : -1);
    if (status == QN_OK) status = compare_back(what, a, b, x, n_x);
    qn_free(x);
    qn_free(y);
    return status;
}

qn_status qn_tokenizer_compare(const char *what, const qn_tokenizer *t, const qn_tokenizer *read,
                               qn_buf *notes)
{
    static const char *const texts[] = {probe, "", " ", "x", " two  spaces", "\n", "1234567 tokens", "A"};
    qn_buf marked = {0};
    int n_marked = 0;
    qn_status status = QN_OK;
    for (size_t i = 0; i < sizeof texts / sizeof *texts && status == QN_OK; i++)
        for (unsigned flags = 0; flags < 4 && status == QN_OK; flags++)
            status = compare_text(what, t, read, texts[i], strlen(texts[i]), flags);
    /* Special and added tokens between letters; those of spaces (U+2581) are spaces in GGUF. */
    for (int32_t id = 0; id < (int32_t)t->vocab.n_ids && n_marked < 64 && status == QN_OK; id++) {
        size_t n;
        const char *text = qn_vocab_text(&t->vocab, id, &n);
        if (!text || !(qn_vocab_flags(&t->vocab, id) & QN_TOKEN_ADDED) || id >= (int32_t)read->vocab.n_ids)
            continue;
        if (qn_find_bytes(text, n, 0, mark, 3) < n) continue;
        qn_buf_printf(&marked, "a%.*sb", (int)n, text);
        n_marked++;
    }
    if (status == QN_OK) status = marked.status;
    if (status == QN_OK && marked.length)
        status = compare_text(what, t, read, marked.data, marked.length, QN_ENCODE_SPECIAL);
    qn_buf_free(&marked);
    QN_TRY(status);
    status = compare_text(what, t, read, decomposed, sizeof decomposed - 1, 0);
    if (status != QN_E_UNSUPPORTED) return status;
    qn_buf_printf(notes, "%s: readers of the GGUF file do not join letters and separate combining marks\n",
                  what);
    return notes->status;
}
