#include "text/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_build.h"

/* Working memory of one encode. */
typedef struct {
    const qn_tokenizer *t;
    qn_bpe_scratch *bpe;
    qn_unigram_scratch unigram;
    qn_regex_match *match;
    qn_buf text, spare; /* of the normalizer */
    qn_pieces pieces, spare_pieces;
    qn_id_list ids;
    int after_text; /* the last id came of text between added tokens */
} encoder;

/* A failure of this tokenizer's own doing names its file. */
static qn_status named(const qn_tokenizer *t, qn_status status)
{
    int own = status == QN_E_UNSUPPORTED || status == QN_E_FULL || status == QN_E_FORMAT;
    return own ? qn_fail_prefix(status, "%s", t->what) : status;
}

/* ---- making -------------------------------------------------------------------------------------------- */

qn_status qn_tokenizer_new(const char *what, qn_tokenizer **out)
{
    qn_tokenizer *t = qn_calloc(1, sizeof *t);
    if (!t) return QN_E_NOMEM;
    t->what = qn_strdup(what);
    if (!t->what) {
        qn_free(t);
        return QN_E_NOMEM;
    }
    t->bos_id = t->eos_id = t->unk_id = t->pad_id = -1;
    *out = t;
    return QN_OK;
}

void qn_tokenizer_free(qn_tokenizer *t)
{
    if (!t) return;
    qn_free(t->what);
    qn_vocab_free(&t->vocab);
    qn_bpe_free(t->bpe);
    qn_wordpiece_free(t->wordpiece);
    qn_unigram_free(t->unigram);
    qn_normalizer_free(t->normalizer);
    qn_pretokenizer_free(t->pretokenizer);
    qn_decoder_free(t->decoder);
    qn_added_free(&t->added);
    qn_added_free(&t->added_normalized);
    qn_added_free(&t->added_mixed);
    qn_added_free(&t->respelt);
    qn_free(t->prefix.data);
    qn_free(t->suffix.data);
    qn_free(t->pair.parts);
    qn_free(t->eos_ids.data);
    qn_free(t->turn_end_ids.data);
    qn_free(t);
}

static qn_status add_token(qn_tokenizer *t, const qn_added_token *token, int normalized)
{
    if (!normalized || qn_normalizer_is_empty(t->normalizer)) {
        /* Without a normalizer the two kinds differ only in which goes first: the second sees what the first
         * left. */
        if (!normalized) return qn_added_add(&t->added, token);
        if (token->special) {
            QN_TRY(qn_added_add(&t->added_mixed, token));
            t->has_mixed = 1;
        }
        return qn_added_add(&t->added_normalized, token);
    }
    qn_buf text = {0}, spare = {0};
    qn_regex_match *m = qn_regex_match_new();
    qn_status status = m ? QN_OK : QN_E_NOMEM;
    qn_buf_append(&text, token->text, token->n);
    if (status == QN_OK) status = text.status;
    if (status == QN_OK) status = qn_normalizer_run(t->normalizer, m, QN_AFTER_TOKEN, &text, &spare);
    if (status == QN_OK && token->special) {
        status = qn_added_add(&t->added_mixed, token);
        t->has_mixed = 1;
    }
    if (status == QN_OK) {
        qn_added_token normal = *token;
        normal.text = text.data;
        normal.n = (uint32_t)text.length;
        status = qn_added_add(&t->added_normalized, &normal);
        if (status == QN_OK && (text.length != token->n || memcmp(text.data, token->text, token->n) != 0)) {
            status = qn_added_add(&t->respelt, &normal);
            if (status == QN_OK && text.length) t->vocab.flags[token->id] |= QN_TOKEN_RESPELT;
        }
    }
    qn_regex_match_free(m);
    qn_buf_free(&text);
    qn_buf_free(&spare);
    return status;
}

qn_status qn_tokenizer_add_token(qn_tokenizer *t, const qn_added_token *token, int normalized)
{
    return named(t, add_token(t, token, normalized));
}

static qn_status push_unique(qn_id_list *l, int32_t id)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->data[i] == id) return QN_OK;
    qn_id_list_push(l, id);
    return l->status;
}

static int by_id(const void *x, const void *y)
{
    const qn_added_token *a = x, *b = y;
    return a->id < b->id ? -1 : a->id > b->id;
}

qn_status qn_tokenizer_finish(qn_tokenizer *t)
{
    static const char *const turn_ends[] = {
        "<|im_end|>",
        "<|eot_id|>",
        "<end_of_turn>",
        "<turn|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eom_id|>",
        "<|return|>",
        "<|call|>",
        "<EOT>",
        "[EOT]",
        "<end_of_utterance>",
        "<\xef\xbd\x9c"
        "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
    };
    if (t->bpe) QN_TRY(qn_bpe_finish(t->bpe));
    if (t->wordpiece) QN_TRY(named(t, qn_wordpiece_finish(t->wordpiece)));
    if (t->unigram) QN_TRY(named(t, qn_unigram_finish(t->unigram)));
    if (t->has_mixed)
        for (size_t i = 0; i < t->added.n; i++) QN_TRY(qn_added_add(&t->added_mixed, &t->added.tokens[i]));
    qn_added_finish(&t->added);
    qn_added_finish(&t->added_normalized);
    qn_added_finish(&t->added_mixed);
    if (t->respelt.n) qsort(t->respelt.tokens, t->respelt.n, sizeof *t->respelt.tokens, by_id);
    int harmony = qn_vocab_find(&t->vocab, "<|return|>", 10) >= 0;
    for (size_t i = 0; i < sizeof turn_ends / sizeof turn_ends[0]; i++) {
        /* Where <|return|> ends an answer, <|end|> only ends one of its parts. */
        if (harmony && strcmp(turn_ends[i], "<|end|>") == 0) continue;
        int32_t id = qn_vocab_find(&t->vocab, turn_ends[i], strlen(turn_ends[i]));
        if (qn_tokenizer_is_special(t, id)) QN_TRY(push_unique(&t->turn_end_ids, id));
    }
    return qn_tokenizer_set_ids(t, -1, t->eos_id, -1, -1);
}

qn_status qn_tokenizer_set_ids(qn_tokenizer *t, int32_t bos, int32_t eos, int32_t unk, int32_t pad)
{
    const int32_t given[] = {bos, eos, unk, pad};
    for (int i = 0; i < 4; i++)
        if (given[i] >= 0 && (size_t)given[i] >= t->vocab.n_ids)
            return qn_fail(QN_E_FORMAT, "special token id %d is not in the vocabulary of %zu tokens",
                           given[i], t->vocab.n_ids);
    if (bos >= 0) t->bos_id = bos;
    if (unk >= 0) t->unk_id = unk;
    if (pad >= 0) t->pad_id = pad;
    if (eos < 0) return QN_OK;
    t->eos_id = eos;
    return push_unique(&t->eos_ids, eos);
}

static qn_status set_pair(qn_tokenizer *t, const qn_pair_part *parts, size_t n)
{
    qn_pair_part *copy = qn_alloc_array(n, sizeof *copy);
    if (!copy) return QN_E_NOMEM;
    memcpy(copy, parts, n * sizeof *copy);
    qn_free(t->pair.parts);
    t->pair = (qn_pair_rule){QN_PAIR_PARTS, copy, n};
    return t->prefix.status != QN_OK ? t->prefix.status : t->suffix.status;
}

qn_status qn_tokenizer_set_around(qn_tokenizer *t, int32_t bos, int32_t eos)
{
    qn_pair_part parts[6];
    size_t n = 0;
    t->prefix.n = t->suffix.n = 0;
    if (bos >= 0) qn_id_list_push(&t->prefix, bos);
    if (eos >= 0) qn_id_list_push(&t->suffix, eos);
    for (int32_t text = 0; text < 2; text++) {
        if (bos >= 0) parts[n++] = (qn_pair_part){bos, 0, text};
        parts[n++] = (qn_pair_part){-1, text, text};
        if (eos >= 0) parts[n++] = (qn_pair_part){eos, 0, text};
    }
    return set_pair(t, parts, n);
}

qn_status qn_tokenizer_set_bert(qn_tokenizer *t, int32_t cls, int32_t sep)
{
    const qn_pair_part parts[] = {{cls, 0, 0}, {-1, 0, 0}, {sep, 0, 0}, {-1, 1, 1}, {sep, 0, 1}};
    t->prefix.n = t->suffix.n = 0;
    qn_id_list_push(&t->prefix, cls);
    qn_id_list_push(&t->suffix, sep);
    return set_pair(t, parts, sizeof parts / sizeof parts[0]);
}

/* ---- encoding ------------------------------------------------------------------------------------------ */

static qn_status encode_word(encoder *e, const char *word, size_t n)
{
    const qn_tokenizer *t = e->t;
    if (t->wordpiece) return qn_wordpiece_encode(t->wordpiece, word, n, &e->ids);
    if (t->unigram) return qn_unigram_encode(t->unigram, word, n, &e->unigram, &e->ids);
    return qn_bpe_encode(t->bpe, word, n, e->bpe, &e->ids);
}

/* Text without added tokens. */
static qn_status encode_plain(encoder *e, const char *text, size_t n, qn_text_place place)
{
    e->after_text = 1;
    QN_TRY(qn_pieces_set(&e->pieces, text, n));
    QN_TRY(qn_pretokenizer_run(e->t->pretokenizer, e->match, place, &e->pieces, &e->spare_pieces));
    for (size_t i = 0; i < e->pieces.n; i++)
        QN_TRY(encode_word(e, e->pieces.text.data + e->pieces.start[i], e->pieces.length[i]));
    return QN_OK;
}

static qn_status check_walk(const qn_added_walk *w)
{
    if (!w->spent) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "too many added tokens begin the same for a text of %zu bytes", w->n);
}

/* Text between the added tokens that were matched as spelt. trusted: normalized special tokens count. */
static qn_status encode_gap(encoder *e, const char *text, size_t n, qn_text_place place, int trusted)
{
    const qn_tokenizer *t = e->t;
    if (!n) return QN_OK;
    if (!qn_normalizer_is_empty(t->normalizer)) {
        qn_buf_reset(&e->text);
        qn_buf_append(&e->text, text, n);
        if (e->text.status != QN_OK) return e->text.status;
        QN_TRY(qn_normalizer_run(t->normalizer, e->match, place, &e->text, &e->spare));
        text = e->text.data;
        n = e->text.length;
    }
    qn_added_walk w = {.text = text, .n = n, .trusted = trusted};
    qn_added_match m;
    size_t done = 0;
    while (qn_added_next(&t->added_normalized, &w, &m)) {
        if (m.start > done)
            QN_TRY(encode_plain(e, text + done, m.start - done, done ? QN_AFTER_TOKEN : place));
        qn_id_list_push(&e->ids, m.id);
        e->after_text = 0;
        done = m.end;
    }
    QN_TRY(check_walk(&w));
    return done < n ? encode_plain(e, text + done, n - done, done ? QN_AFTER_TOKEN : place) : e->ids.status;
}

static int all_trusted(const qn_trust_run *runs, size_t n_runs, size_t start, size_t end)
{
    size_t low = 0, high = n_runs;
    while (low < high) { /* the first run that ends after start */
        size_t middle = low + (high - low) / 2;
        if (runs[middle].end <= start)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < n_runs; low++) {
        if (!runs[low].trusted) return 0;
        if (runs[low].end >= end) return 1;
    }
    return 1;
}

/* Bytes at which a token ends, whatever lies behind. */
typedef struct {
    const size_t *cuts;
    size_t n;
    size_t *at; /* ids before each */
} cut_list;

/* runs NULL: trusted holds for all of the text. */
static qn_status encode_text(encoder *e, const char *text, size_t n, const qn_trust_run *runs, size_t n_runs,
                             int trusted, const cut_list *cuts)
{
    const qn_tokenizer *t = e->t;
    qn_added_walk w = {.text = text, .n_beyond = n, .runs = runs, .n_runs = n_runs, .trusted = trusted};
    qn_added_match m;
    size_t done = 0, i_cut = 0;
    for (;;) {
        w.n = i_cut < cuts->n ? cuts->cuts[i_cut] : n;
        int more = qn_added_next(runs && t->has_mixed ? &t->added_mixed : &t->added, &w, &m);
        size_t end = more ? m.start : w.n;
        QN_TRY(check_walk(&w));
        if (done < end) {
            int gap_trusted = runs ? all_trusted(runs, n_runs, done, end) : trusted;
            qn_text_place place = done == 0       ? QN_AFTER_NOTHING
                                  : e->after_text ? QN_AFTER_TEXT
                                                  : QN_AFTER_TOKEN;
            QN_TRY(encode_gap(e, text + done, end - done, place, gap_trusted));
            done = end;
        }
        if (more) {
            qn_id_list_push(&e->ids, m.id);
            e->after_text = 0;
            done = m.end;
            continue;
        }
        if (i_cut == cuts->n) return e->ids.status;
        cuts->at[i_cut++] = e->ids.n;
        if (w.done < done) w.done = done; /* white space before a cut is nobody's behind it */
    }
}

/* Appends text[0..n) with U+FFFD for what is not UTF-8. */
static void append_valid(qn_buf *out, const char *text, size_t n)
{
    for (size_t done = 0; done < n;) {
        size_t valid = qn_utf8_valid_prefix(text + done, n - done);
        int incomplete;
        qn_buf_append(out, text + done, valid);
        done += valid;
        if (done == n) return;
        done += qn_utf8_invalid_length(text + done, n - done, &incomplete);
        qn_buf_puts(out, "\xef\xbf\xbd");
    }
}

static qn_status check_cuts(const char *text, size_t n, size_t n_given, const cut_list *cuts)
{
    if (cuts->n && n != n_given) return qn_fail(QN_E_ARG, "a text with cuts is not valid UTF-8");
    for (size_t i = 0, last = 0; i < cuts->n; last = cuts->cuts[i++]) {
        size_t cut = cuts->cuts[i];
        if (cut < last || cut > n || (cut < n && ((uint8_t)text[cut] & 0xc0) == 0x80))
            return qn_fail(QN_E_ARG, "a text of %zu bytes cannot be cut at byte %zu after byte %zu", n, cut,
                           last);
    }
    return QN_OK;
}

qn_status qn_tokenizer_encode_cut(const qn_tokenizer *t, const qn_text_segment *segments, size_t n_segments,
                                  unsigned flags, const size_t *cuts, size_t n_cuts, size_t *at,
                                  int32_t **ids, size_t *n_ids)
{
    qn_status status = QN_OK;
    const cut_list list = {cuts, n_cuts, at};
    encoder e = {.t = t};
    qn_buf joined = {0};
    qn_trust_run *runs = NULL;
    size_t n_runs = 0, total = 0;
    for (size_t i = 0; i < n_segments; i++) {
        if (segments[i].n > QN_TOKENIZER_TEXT_MAX || (total += segments[i].n) > QN_TOKENIZER_TEXT_MAX)
            return qn_fail(QN_E_ARG, "a text of more than %d bytes cannot be tokenised at once",
                           QN_TOKENIZER_TEXT_MAX);
    }
    e.bpe = qn_bpe_scratch_new();
    e.match = e.bpe ? qn_regex_match_new() : NULL;
    runs = e.match ? qn_alloc_array(n_segments + 1, sizeof *runs) : NULL;
    if (!runs) {
        status = QN_E_NOMEM;
        goto out;
    }
    const char *text = n_segments ? segments[0].text : "";
    size_t n = total;
    int as_it_is = n_segments <= 1 && qn_utf8_valid_prefix(text, n) == n;
    for (size_t i = 0; i < n_segments; i++) {
        if (!as_it_is) append_valid(&joined, segments[i].text, segments[i].n);
        size_t end = as_it_is ? n : joined.length;
        int trusted = segments[i].special != 0;
        if (n_runs && runs[n_runs - 1].trusted == trusted)
            runs[n_runs - 1].end = end;
        else if (end > (n_runs ? runs[n_runs - 1].end : 0))
            runs[n_runs++] = (qn_trust_run){end, trusted};
    }
    if (!as_it_is) {
        if ((status = joined.status) != QN_OK) goto out;
        text = joined.data;
        n = joined.length;
    }
    if ((status = check_cuts(text, n, total, &list)) != QN_OK) goto out;
    if (flags & QN_ENCODE_BOS)
        for (size_t i = 0; i < t->prefix.n; i++) qn_id_list_push(&e.ids, t->prefix.data[i]);
    status = encode_text(&e, text, n, n_runs > 1 ? runs : NULL, n_runs, n_runs && runs[0].trusted, &list);
    if (flags & QN_ENCODE_BOS)
        for (size_t i = 0; i < t->suffix.n; i++) qn_id_list_push(&e.ids, t->suffix.data[i]);
    if (status == QN_OK) status = e.ids.status;
    status = named(t, status);
    if (status == QN_OK && !e.ids.data && !(e.ids.data = qn_alloc(sizeof *e.ids.data))) status = QN_E_NOMEM;
    if (status != QN_OK) goto out;
    *ids = e.ids.data;
    *n_ids = e.ids.n;
    e.ids.data = NULL;
out:
    qn_free(e.ids.data);
    qn_free(runs);
    qn_buf_free(&joined);
    qn_buf_free(&e.text);
    qn_buf_free(&e.spare);
    qn_pieces_free(&e.pieces);
    qn_pieces_free(&e.spare_pieces);
    qn_regex_match_free(e.match);
    qn_unigram_scratch_free(&e.unigram);
    qn_bpe_scratch_free(e.bpe);
    return status;
}

qn_status qn_tokenizer_encode_segments(const qn_tokenizer *t, const qn_text_segment *segments,
                                       size_t n_segments, unsigned flags, int32_t **ids, size_t *n_ids)
{
    return qn_tokenizer_encode_cut(t, segments, n_segments, flags, NULL, 0, NULL, ids, n_ids);
}

qn_status qn_tokenizer_encode(const qn_tokenizer *t, const char *text, size_t n_bytes, unsigned flags,
                              int32_t **ids, size_t *n_ids)
{
    qn_text_segment whole = {text, n_bytes, (flags & QN_ENCODE_SPECIAL) != 0};
    return qn_tokenizer_encode_segments(t, &whole, 1, flags, ids, n_ids);
}

/* ---- pairs --------------------------------------------------------------------------------------------- */

/* How much of two texts of n[0] and n[1] ids stays when both may have room: the longer one is cut first
 * (transformers' and tokenizers' "longest_first"). */
static void cut_pair(size_t n[2], size_t room)
{
    const int longer = n[0] <= n[1];
    size_t small = n[!longer], large = n[longer];
    if (small > room)
        large = small;
    else
        large = small > room - small ? small : room - small;
    if (small + large > room) {
        small = room / 2;
        large = small + room % 2;
    }
    if (n[!longer] > small) n[!longer] = small;
    if (n[longer] > large) n[longer] = large;
}

static qn_status join_pair(const qn_tokenizer *t, unsigned flags, int32_t *const texts[2], size_t n[2],
                           size_t n_max, qn_token_pair *out)
{
    static const qn_pair_part plain[] = {{-1, 0, 0}, {-1, 1, 1}};
    const qn_pair_part *parts = t->pair.kind == QN_PAIR_PARTS ? t->pair.parts : plain;
    const size_t n_parts = t->pair.kind == QN_PAIR_PARTS ? t->pair.n : 2;
    size_t n_added = 0, total = 0;
    if (t->pair.kind == QN_PAIR_REFUSED)
        return qn_fail(QN_E_UNSUPPORTED, "%s: post_processor does not say how two texts are put together",
                       t->what);
    for (size_t i = 0; i < n_parts && flags & QN_ENCODE_BOS; i++) n_added += parts[i].id >= 0;
    if (n_max && n_added > n_max)
        return qn_fail(QN_E_ARG, "%zu tokens are too few for two texts, which get %zu around them", n_max,
                       n_added);
    if (n_max && n[0] + n[1] > n_max - n_added) cut_pair(n, n_max - n_added);
    for (size_t i = 0; i < n_parts; i++) total += parts[i].id >= 0 ? 1 : n[parts[i].text];
    int32_t *ids = qn_alloc_array(total + 1, sizeof *ids);
    int32_t *types = ids ? qn_alloc_array(total + 1, sizeof *types) : NULL;
    if (!types) {
        qn_free(ids);
        return QN_E_NOMEM;
    }
    size_t at = 0;
    for (size_t i = 0; i < n_parts; i++) {
        const qn_pair_part *part = &parts[i];
        const int32_t *from = part->id >= 0 ? &part->id : texts[part->text];
        size_t count = part->id >= 0 ? (flags & QN_ENCODE_BOS) != 0 : n[part->text];
        for (size_t k = 0; k < count; k++, at++) {
            ids[at] = from[k];
            types[at] = part->type;
        }
    }
    *out = (qn_token_pair){ids, types, at};
    return QN_OK;
}

qn_status qn_tokenizer_encode_pair(const qn_tokenizer *t, const qn_text_segment *first,
                                   const qn_text_segment *second, unsigned flags, size_t n_max,
                                   qn_token_pair *out)
{
    int32_t *texts[2] = {NULL, NULL};
    size_t n[2] = {0, 0};
    qn_status status = qn_tokenizer_encode_segments(t, first, 1, 0, &texts[0], &n[0]);
    if (status == QN_OK) status = qn_tokenizer_encode_segments(t, second, 1, 0, &texts[1], &n[1]);
    if (status == QN_OK) status = join_pair(t, flags, texts, n, n_max, out);
    qn_free(texts[0]);
    qn_free(texts[1]);
    return status;
}

void qn_token_pair_free(qn_token_pair *pair)
{
    qn_free(pair->ids);
    qn_free(pair->types);
    *pair = (qn_token_pair){0};
}

/* ---- decoding ------------------------------------------------------------------------------------------ */

struct qn_token_stream {
    const qn_tokenizer *t;
    qn_decoder_state *state;
    unsigned flags;
};

qn_status qn_token_stream_new(const qn_tokenizer *t, unsigned flags, qn_token_stream **out)
{
    qn_token_stream *s = qn_calloc(1, sizeof *s);
    if (!s) return QN_E_NOMEM;
    s->t = t;
    s->flags = flags;
    qn_status status = qn_decoder_state_new(t->decoder, (flags & QN_DECODE_RAW) != 0,
                                            (flags & QN_DECODE_INNER) != 0, &s->state);
    if (status != QN_OK) {
        qn_token_stream_free(s);
        return status;
    }
    *out = s;
    return QN_OK;
}

void qn_token_stream_free(qn_token_stream *s)
{
    if (!s) return;
    qn_decoder_state_free(s->state);
    qn_free(s);
}

/* What the decoder sees of a token; NULL: nothing. */
static const char *decoder_text(const qn_tokenizer *t, int32_t id, size_t *n, int *added)
{
    uint8_t flags = qn_vocab_flags(&t->vocab, id);
    *added = (flags & QN_TOKEN_ADDED) != 0;
    const qn_added_token key = {.id = id}, *own = NULL;
    if (flags & QN_TOKEN_RESPELT) own = bsearch(&key, t->respelt.tokens, t->respelt.n, sizeof key, by_id);
    if (own) {
        *n = own->n;
        return own->text;
    }
    return qn_vocab_text(&t->vocab, id, n);
}

qn_status qn_token_stream_push(qn_token_stream *s, int32_t id, qn_buf *out)
{
    size_t n = 0;
    int added;
    const char *text = decoder_text(s->t, id, &n, &added);
    if (!text || ((s->flags & QN_DECODE_SKIP_SPECIAL) && qn_tokenizer_is_special(s->t, id))) return QN_OK;
    return named(s->t, qn_decoder_feed(s->state, text, n, added, out));
}

qn_status qn_token_stream_finish(qn_token_stream *s, qn_buf *out)
{
    return named(s->t, qn_decoder_finish(s->state, out));
}

qn_status qn_tokenizer_decode(const qn_tokenizer *t, const int32_t *ids, size_t n_ids, unsigned flags,
                              qn_buf *out)
{
    qn_token_stream *s;
    QN_TRY(qn_token_stream_new(t, flags, &s));
    qn_status status = QN_OK;
    for (size_t i = 0; i < n_ids && status == QN_OK; i++) status = qn_token_stream_push(s, ids[i], out);
    if (status == QN_OK) status = qn_token_stream_finish(s, out);
    qn_token_stream_free(s);
    return status;
}

static qn_status append_piece(const qn_tokenizer *t, qn_decoder_state *state, int32_t id, qn_buf *out)
{
    size_t n = 0;
    int added;
    const char *text = decoder_text(t, id, &n, &added);
    if (!text) return QN_OK;
    QN_TRY(qn_decoder_feed(state, text, n, added, out));
    return qn_decoder_finish(state, out);
}

qn_status qn_tokenizer_piece(const qn_tokenizer *t, int32_t id, qn_buf *out)
{
    qn_decoder_state *state;
    QN_TRY(qn_decoder_state_new(t->decoder, 1, 1, &state));
    qn_status status = append_piece(t, state, id, out);
    qn_decoder_state_free(state);
    return named(t, status);
}

qn_status qn_tokenizer_pieces(const qn_tokenizer *t, qn_piece_fn *fn, void *user)
{
    qn_decoder_state *state;
    qn_buf piece = {0};
    QN_TRY(qn_decoder_state_new(t->decoder, 1, 1, &state));
    qn_status status = QN_OK;
    for (size_t id = 0; status == QN_OK && id < t->vocab.n_ids; id++) {
        qn_buf_reset(&piece);
        status = append_piece(t, state, (int32_t)id, &piece);
        if (status == QN_OK) status = piece.status;
        if (status == QN_OK && piece.length) fn(user, (int32_t)id, piece.data, piece.length);
    }
    qn_decoder_state_free(state);
    qn_buf_free(&piece);
    return named(t, status);
}

/* ---- asking -------------------------------------------------------------------------------------------- */

size_t qn_tokenizer_vocab_size(const qn_tokenizer *t)
{
    return t->vocab.n_ids;
}

int32_t qn_tokenizer_find(const qn_tokenizer *t, const char *text, size_t n)
{
    return qn_vocab_find(&t->vocab, text, n);
}

const char *qn_tokenizer_token_text(const qn_tokenizer *t, int32_t id, size_t *n)
{
    return qn_vocab_text(&t->vocab, id, n);
}

int qn_tokenizer_is_special(const qn_tokenizer *t, int32_t id)
{
    return (qn_vocab_flags(&t->vocab, id) & QN_TOKEN_SPECIAL) != 0;
}

int qn_tokenizer_is_added(const qn_tokenizer *t, int32_t id)
{
    return (qn_vocab_flags(&t->vocab, id) & QN_TOKEN_ADDED) != 0;
}

int32_t qn_tokenizer_bos_id(const qn_tokenizer *t)
{
    return t->bos_id;
}

int32_t qn_tokenizer_eos_id(const qn_tokenizer *t)
{
    return t->eos_id;
}

int32_t qn_tokenizer_unk_id(const qn_tokenizer *t)
{
    return t->unk_id;
}

int32_t qn_tokenizer_pad_id(const qn_tokenizer *t)
{
    return t->pad_id;
}

const int32_t *qn_tokenizer_eos_ids(const qn_tokenizer *t, size_t *n)
{
    *n = t->eos_ids.n;
    return t->eos_ids.data;
}

const int32_t *qn_tokenizer_turn_end_ids(const qn_tokenizer *t, size_t *n)
{
    *n = t->turn_end_ids.n;
    return t->turn_end_ids.data;
}
