#include "text/tokenizer/files/sentencepiece.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/json/json_write.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer/files/protobuf.h"
#include "text/tokenizer/tokenizer_build.h"

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };
enum { UNIGRAM = 1, BPE = 2 };
enum { PIECE_BYTES_MAX = 8000, PIECES_MAX = 1 << 24 };

typedef struct {
    const char *text; /* in the file */
    size_t n;
    float score;
    int64_t type;
} piece;

typedef struct {
    const char *what;
    piece *pieces;
    size_t n, capacity;
    int64_t model_type, ids[4]; /* unk, bos, eos, pad as the trainer had them; -1: none */
    int byte_fallback, space_is_suffix;
    int dummy_prefix, remove_spaces, escape_spaces;
    const char *map;
    size_t n_map;
    const json_t *config;
    int prefix_once;
    int32_t unk_id; /* the piece of this type */
} model;

/* ---- the file ------------------------------------------------------------------------------------------ */

static qn_status broken(const model *m, const char *part)
{
    return qn_fail(QN_E_FORMAT, "%s: not a SentencePiece model: %s is broken", m->what, part);
}

static qn_status read_piece(model *m, const qn_proto_field *message)
{
    qn_proto p = {(const uint8_t *)message->data, (const uint8_t *)message->data + message->n};
    qn_proto_field f;
    piece one = {.type = NORMAL};
    int more;
    while ((more = qn_proto_next(&p, &f)) > 0) {
        if (f.field == 1 && f.wire == QN_PROTO_BYTES) {
            one.text = f.data;
            one.n = f.n;
        } else if (f.field == 2 && f.wire == QN_PROTO_FIXED32) {
            one.score = qn_proto_float(&f);
        } else if (f.field == 3 && f.wire == QN_PROTO_NUMBER) {
            one.type = (int64_t)f.number;
        }
    }
    if (more < 0) return broken(m, "a piece");
    if (m->n == PIECES_MAX) return qn_fail(QN_E_UNSUPPORTED, "%s: more than %d pieces", m->what, PIECES_MAX);
    if (m->n == m->capacity) {
        size_t capacity = m->capacity ? 2 * m->capacity : 1024;
        piece *pieces = qn_realloc(m->pieces, capacity * sizeof *pieces);
        if (!pieces) return QN_E_NOMEM;
        m->pieces = pieces;
        m->capacity = capacity;
    }
    m->pieces[m->n++] = one;
    return QN_OK;
}

static qn_status read_trainer(model *m, const qn_proto_field *message)
{
    qn_proto p = {(const uint8_t *)message->data, (const uint8_t *)message->data + message->n};
    qn_proto_field f;
    int more;
    while ((more = qn_proto_next(&p, &f)) > 0) {
        if (f.wire != QN_PROTO_NUMBER) continue;
        if (f.field == 3) m->model_type = (int64_t)f.number;
        if (f.field == 24) m->space_is_suffix = f.number != 0;
        if (f.field == 35) m->byte_fallback = f.number != 0;
        if (f.field >= 40 && f.field <= 43) m->ids[f.field - 40] = (int32_t)f.number;
    }
    return more < 0 ? broken(m, "trainer_spec") : QN_OK;
}

static qn_status read_normalizer(model *m, const qn_proto_field *message)
{
    qn_proto p = {(const uint8_t *)message->data, (const uint8_t *)message->data + message->n};
    qn_proto_field f;
    int more;
    while ((more = qn_proto_next(&p, &f)) > 0) {
        if (f.field == 2 && f.wire == QN_PROTO_BYTES) {
            m->map = f.data;
            m->n_map = f.n;
        }
        if (f.wire != QN_PROTO_NUMBER) continue;
        if (f.field == 3) m->dummy_prefix = f.number != 0;
        if (f.field == 4) m->remove_spaces = f.number != 0;
        if (f.field == 5) m->escape_spaces = f.number != 0;
    }
    return more < 0 ? broken(m, "normalizer_spec") : QN_OK;
}

static qn_status read_model(model *m, const void *data, size_t n)
{
    qn_proto p = {data, (const uint8_t *)data + n};
    qn_proto_field f;
    int more;
    while ((more = qn_proto_next(&p, &f)) > 0) {
        if (f.wire != QN_PROTO_BYTES) continue;
        if (f.field == 1) QN_TRY(read_piece(m, &f));
        if (f.field == 2) QN_TRY(read_trainer(m, &f));
        if (f.field == 3) QN_TRY(read_normalizer(m, &f));
    }
    if (more < 0) return broken(m, "the list of its parts");
    if (!m->n) return qn_fail(QN_E_FORMAT, "%s: not a SentencePiece model: it has no pieces", m->what);
    if (m->model_type == UNIGRAM || m->model_type == BPE) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED,
                   "%s: trainer_spec.model_type %lld is not supported (known: 1 unigram, 2 BPE)", m->what,
                   (long long)m->model_type);
}

/* ---- the vocabulary ------------------------------------------------------------------------------------ */

static int shown(size_t n)
{
    return (int)(n < 100 ? n : 100);
}

/* An unused piece that stands for the byte zero, which no text has. */
static int is_null_piece(const piece *p)
{
    return p->type == UNUSED && p->n == 1 && !*p->text;
}

static int is_reserved(const piece *p)
{
    return p->type != NORMAL && p->type != USER_DEFINED && p->type != UNUSED;
}

static qn_status check_piece(const model *m, size_t i)
{
    const piece *p = &m->pieces[i];
    const char *why = !p->n                                         ? "it has no text"
                      : p->n >= PIECE_BYTES_MAX                     ? "its text is too long"
                      : memchr(p->text, 0, p->n)                    ? "its text has a zero byte"
                      : qn_utf8_valid_prefix(p->text, p->n) != p->n ? "its text is not valid UTF-8"
                      : !isfinite(p->score)                         ? "its score is not a number"
                      : p->type < NORMAL || p->type > BYTE          ? "its type is not known"
                                                                    : NULL;
    if (!why && p->type == BYTE)
        why = !m->byte_fallback                        ? "it is a byte, but byte_fallback is false"
              : qn_byte_token_value(p->text, p->n) < 0 ? "it is a byte, but not of the form <0x41>"
                                                       : NULL;
    return why ? qn_fail(QN_E_FORMAT, "%s: piece %zu: %s", m->what, i, why) : QN_OK;
}

static uint8_t flags_of(int64_t type)
{
    switch (type) {
    case UNKNOWN:
    case CONTROL:
        return QN_TOKEN_SPECIAL | QN_TOKEN_ADDED | QN_TOKEN_HIDDEN;
    case USER_DEFINED:
        return QN_TOKEN_WHOLE;
    case UNUSED:
        return QN_TOKEN_UNUSED;
    case BYTE:
        return QN_TOKEN_BYTE | QN_TOKEN_HIDDEN;
    default:
        return 0;
    }
}

static qn_status add_piece(model *m, qn_vocab *v, size_t i)
{
    const piece *p = &m->pieces[i];
    const uint8_t flags = flags_of(p->type);
    if (is_null_piece(p)) return qn_vocab_add_text(v, (int32_t)i, "", 0, QN_TOKEN_HIDDEN);
    QN_TRY(check_piece(m, i));
    if (p->type == UNKNOWN) {
        if (m->unk_id >= 0)
            return qn_fail(QN_E_FORMAT, "%s: pieces %d and %zu are both unknown", m->what, m->unk_id, i);
        m->unk_id = (int32_t)i;
    }
    int32_t twin = qn_vocab_find(v, p->text, p->n);
    if (twin < 0) return qn_vocab_add(v, (int32_t)i, p->text, p->n, flags);
    if (m->model_type == BPE || is_reserved(p) == is_reserved(&m->pieces[twin]))
        return qn_fail(QN_E_FORMAT, "%s: pieces %d and %zu are both '%.*s'", m->what, twin, i, shown(p->n),
                       p->text);
    /* The name is the reserved piece's. */
    return is_reserved(p) ? qn_vocab_add(v, (int32_t)i, p->text, p->n, flags)
                          : qn_vocab_add_text(v, (int32_t)i, p->text, p->n, flags);
}

static qn_status build_vocab(model *m, qn_vocab *v)
{
    size_t n_bytes = 0, n_byte_pieces = 0;
    m->unk_id = -1;
    for (size_t i = 0; i < m->n; i++) {
        n_bytes += m->pieces[i].n;
        n_byte_pieces += m->pieces[i].type == BYTE;
    }
    QN_TRY(qn_vocab_init(v, m->n, n_bytes));
    for (size_t i = 0; i < m->n; i++) QN_TRY(add_piece(m, v, i));
    if (m->byte_fallback && n_byte_pieces != 256)
        return qn_fail(QN_E_FORMAT, "%s: byte_fallback is true, but there are %zu pieces for bytes", m->what,
                       n_byte_pieces);
    if (m->unk_id < 0 && !m->byte_fallback)
        return qn_fail(QN_E_FORMAT, "%s: there is neither an unknown piece nor byte_fallback", m->what);
    return QN_OK;
}

static qn_status build_bpe(const model *m, qn_tokenizer *t)
{
    qn_bpe_options o = {.unk_id = m->unk_id, .byte_fallback = m->byte_fallback, .fuse_unk = 1, .by_score = 1};
    float *scores = qn_alloc_array(m->n, sizeof *scores);
    if (!scores) return QN_E_NOMEM;
    for (size_t i = 0; i < m->n; i++) scores[i] = m->pieces[i].score;
    qn_status status = qn_bpe_new(&t->vocab, &o, 0, &t->bpe);
    if (status == QN_OK) status = qn_bpe_set_scores(t->bpe, scores, m->n);
    qn_free(scores);
    return status;
}

static qn_status build_unigram(const model *m, qn_tokenizer *t)
{
    qn_unigram_options o = {
        .unk_id = m->unk_id, .byte_fallback = m->byte_fallback, .single = 1, .min_score = (double)FLT_MAX};
    double *scores = qn_alloc_array(m->n, sizeof *scores);
    if (!scores) return QN_E_NOMEM;
    for (size_t i = 0; i < m->n; i++) {
        scores[i] = (double)m->pieces[i].score;
        if (m->pieces[i].type == NORMAL && scores[i] < o.min_score) o.min_score = scores[i];
    }
    qn_status status = qn_unigram_new(&t->vocab, &o, scores, &t->unigram);
    if (status != QN_OK) qn_free(scores);
    return status;
}

static qn_status build_rules(const model *m, qn_tokenizer *t)
{
    qn_piece_rules rules = {.dummy_prefix = m->dummy_prefix,
                            .prefix_once = m->prefix_once,
                            .space_is_suffix = m->space_is_suffix,
                            .remove_spaces = m->remove_spaces,
                            .escape_spaces = m->escape_spaces};
    qn_status status = m->n_map ? qn_charsmap_read(m->map, m->n_map, &rules.map) : QN_OK;
    if (status == QN_E_FORMAT) status = qn_fail_prefix(status, "%s: normalizer_spec", m->what);
    for (size_t i = 0; i < m->n && status == QN_OK; i++) {
        if (m->pieces[i].type != USER_DEFINED) continue;
        if (!rules.has_whole) status = qn_trie_init(&rules.whole, 64);
        rules.has_whole = 1;
        if (status == QN_OK)
            status = qn_trie_add(&rules.whole, m->pieces[i].text, m->pieces[i].n, (int32_t)i);
    }
    if (status == QN_OK) status = qn_normalizer_for_pieces(&rules, &t->normalizer);
    qn_piece_rules_free(&rules);
    return status;
}

static qn_status build(void *user, qn_tokenizer *t)
{
    model *m = user;
    QN_TRY(build_vocab(m, &t->vocab));
    QN_TRY(m->model_type == BPE ? build_bpe(m, t) : build_unigram(m, t));
    t->unk_id = m->unk_id;
    QN_TRY(build_rules(m, t));
    return qn_decoder_for_pieces(m->remove_spaces  ? QN_FIRST_ALL
                                 : m->dummy_prefix ? QN_FIRST_ONCE
                                                   : QN_FIRST_KEPT,
                                 &t->decoder);
}

/* ---- what the files beside it say ---------------------------------------------------------------------- */

/* tokenizer_class, without the "Fast" at its end. */
static const char *class_of(const json_t *config, size_t *n)
{
    const char *name = json_string_value(json_object_get(config, "tokenizer_class"));
    *n = name ? strlen(name) : 0;
    if (*n > 4 && memcmp(name + *n - 4, "Fast", 4) == 0) *n -= 4;
    return name;
}

static int is_class(const json_t *config, const char *const *names)
{
    size_t n;
    const char *name = class_of(config, &n);
    for (; name && *names; names++)
        if (strlen(*names) == n && memcmp(*names, name, n) == 0) return 1;
    return 0;
}

/* add_bos_token and the like; missing or null: as it is. */
static void take_flag(const json_t *config, const char *key, int *flag)
{
    const json_t *value = json_object_get(config, key);
    if (json_is_boolean(value)) *flag = json_is_true(value);
}

static qn_status read_config(model *m)
{
    /* Their ids are not the pieces' places, or other tokens go around a text. */
    static const char *const other[] = {"XLMRobertaTokenizer",
                                        "CamembertTokenizer",
                                        "BarthezTokenizer",
                                        "MBartTokenizer",
                                        "MBart50Tokenizer",
                                        "NllbTokenizer",
                                        "M2M100Tokenizer",
                                        "MarianTokenizer",
                                        "PegasusTokenizer",
                                        "XGLMTokenizer",
                                        "AlbertTokenizer",
                                        "XLNetTokenizer",
                                        "DebertaV2Tokenizer",
                                        "BigBirdTokenizer",
                                        "RemBertTokenizer",
                                        "FNetTokenizer",
                                        "PLBartTokenizer",
                                        "ErnieMTokenizer",
                                        NULL};
    static const char *const llama[] = {"LlamaTokenizer", "CodeLlamaTokenizer", NULL};
    size_t n;
    const char *name = class_of(m->config, &n);
    if (is_class(m->config, other))
        return qn_fail(
            QN_E_UNSUPPORTED,
            "%s: a tokenizer of the class %.*s without a tokenizer.json is not supported: save it again "
            "with transformers",
            m->what, shown(n), name);
    int legacy = !is_class(m->config, llama);
    take_flag(m->config, "legacy", &legacy);
    m->prefix_once = !legacy;
    take_flag(m->config, "add_prefix_space", &m->dummy_prefix);
    return QN_OK;
}

static int32_t known_id(const qn_tokenizer *t, int64_t id)
{
    return id >= 0 && (uint64_t)id < t->vocab.n_ids ? (int32_t)id : -1;
}

static qn_status set_around(const model *m, qn_tokenizer *t)
{
    static const char *const t5[] = {"T5Tokenizer", "MT5Tokenizer", "UMT5Tokenizer", "SiglipTokenizer", NULL};
    int add_eos = is_class(m->config, t5), add_bos = !add_eos;
    take_flag(m->config, "add_bos_token", &add_bos);
    take_flag(m->config, "add_eos_token", &add_eos);
    return qn_tokenizer_set_around(t, add_bos ? t->bos_id : -1, add_eos ? t->eos_id : -1);
}

static int32_t named_id(const qn_tokenizer *t, const qn_named_tokens *named, const char *name,
                        int64_t otherwise)
{
    qn_named_token token;
    if (named && qn_named_token_get(json_object_get(named->names, name), &token))
        return qn_tokenizer_find(t, token.text, token.n);
    return known_id(t, otherwise);
}

/* The members of a tokenizer.json that the pieces do not give: control and unknown pieces are added tokens. */
static qn_status put_rules(const model *m, qn_buf *out)
{
    const char *comma = "";
    qn_buf_puts(out, "{\"added_tokens\":[");
    for (size_t i = 0; i < m->n; i++) {
        const piece *p = &m->pieces[i];
        if (p->type != CONTROL && p->type != UNKNOWN) continue;
        qn_buf_printf(out, "%s{\"id\":%zu,\"special\":true,\"normalized\":false,\"content\":", comma, i);
        qn_buf_json_string(out, p->text, p->n);
        qn_buf_puts(out, "}");
        comma = ",";
    }
    qn_buf_puts(out, "]}");
    return out->status;
}

qn_status qn_sentencepiece_open(const char *what, const void *data, size_t n, const json_t *config,
                                const qn_named_tokens *named, qn_tokenizer **out)
{
    model m = {.what = what,
               .model_type = UNIGRAM,
               .ids = {0, 1, 2, -1},
               .dummy_prefix = 1,
               .remove_spaces = 1,
               .escape_spaces = 1,
               .config = config};
    qn_buf rules = {0};
    qn_tokenizer *t = NULL;
    qn_status status = read_model(&m, data, n);
    if (status == QN_OK) status = read_config(&m);
    if (status == QN_OK) status = put_rules(&m, &rules);
    qn_tokenizer_parts parts = {build, &m, rules.data, rules.length, 1};
    if (status == QN_OK) status = qn_tokenizer_from_parts(what, &parts, named, &t);
    if (status == QN_OK)
        status = qn_tokenizer_set_ids(t, named_id(t, named, "bos_token", m.ids[1]),
                                      named_id(t, named, "eos_token", m.ids[2]), -1,
                                      named_id(t, named, "pad_token", m.ids[3]));
    if (status == QN_OK) status = set_around(&m, t);
    qn_free(m.pieces);
    qn_buf_free(&rules);
    if (status == QN_OK)
        *out = t;
    else
        qn_tokenizer_free(t);
    return status;
}
