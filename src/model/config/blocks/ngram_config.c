#include "model/config/blocks/ngram_config.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum {
    LABEL_MAX = 160,
    WIDTH_MAX = 1 << 20,
    KERNEL_MAX = 64,
    DIVISOR_MAX = 1 << 20,
    PARTS_MAX = 1 << 16,
    TABLES_MAX = 256
};

static const char place[] = "ple.ple_embedding.", list_name[] = "ple_layer_ids";
static const char *const tensors[] = {"layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"};

int qn_ngram_config_has(const char *tensor)
{
    const char *at = strstr(tensor, place);
    for (size_t i = 0; at && i < sizeof tensors / sizeof *tensors; i++)
        if (strcmp(at + sizeof place - 1, tensors[i]) == 0) return 1;
    return 0;
}

/* ---- the numbers of a hash ----------------------------------------------------------------------------- */

/* SplitMix64 (Steele, Lea and Flood 2014). */
static const uint64_t gamma_step = 0x9E3779B97F4A7C15u;

static uint64_t mixed(uint64_t x)
{
    x += gamma_step;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Odd numbers whose products with token ids stay below 2^63. */
static void make_multipliers(const qn_model_config *c, int64_t seed, int64_t table, int64_t *out)
{
    enum { SEEDS_APART = 10007 };
    const uint64_t most = (uint64_t)(INT64_MAX / c->vocab_size), half = most / 2 ? most / 2 : 1;
    const uint64_t base = (uint64_t)seed + SEEDS_APART * (uint64_t)table;
    for (int64_t i = 0; i < c->ngram.ngram_size; i++)
        out[i] = (int64_t)(2 * (mixed(base + gamma_step * (uint64_t)(i + 1)) % half) + 1);
}

static int is_prime(int64_t n)
{
    if (n < 4) return n > 1;
    if (n % 2 == 0) return 0;
    for (int64_t d = 3; d * d <= n; d += 2)
        if (n % d == 0) return 0;
    return 1;
}

/* The next prime for each head of each table, so that no two are alike. */
static qn_status make_sizes(const qn_fields *f, int64_t base, qn_ngram_config *n)
{
    int64_t prime = base - 1;
    for (int64_t t = 0; t < n->n_hashes; t++) {
        int64_t total = 0;
        for (int64_t h = 0; h < n->n_heads; h++) {
            do prime++;
            while (!is_prime(prime));
            if (prime > INT32_MAX - total)
                return qn_fail(QN_E_UNSUPPORTED,
                               "%s: a table of n-grams has more than %d rows, which is not supported",
                               f->file, INT32_MAX);
            n->hashes[t].size[h] = (int32_t)prime;
            n->hashes[t].offset[h] = (int32_t)total;
            total += prime;
        }
        n->n_rows[t] = total;
    }
    return QN_OK;
}

/* ---- numbers of the files ------------------------------------------------------------------------------- */

/* A list of a layer's hash: a tensor, or metadata of a GGUF file; neither where the files do not have it. */
typedef struct {
    const qn_tensor_view *v;
    const json_t *numbers;
    const char *file;
    char name[LABEL_MAX];
} hash_list;

static int is_there(const hash_list *l)
{
    return l->v || l->numbers;
}

static int64_t number_at(const hash_list *l, int64_t i)
{
    int64_t x;
    if (l->numbers) return (int64_t)json_integer_value(json_array_get(l->numbers, (size_t)i));
    memcpy(&x, (const char *)l->v->data + (size_t)i * sizeof x, sizeof x);
    return x;
}

/* The i-th list of a layer. */
static qn_status find_tensor(const qn_source *src, int64_t layer, int i, int64_t n, hash_list *out)
{
    char name[QN_TENSOR_NAME_MAX], shape[64];
    const qn_tensor_view *v = NULL;
    for (const char *const *prefix = qn_decoder_prefixes; *prefix && !v; prefix++) {
        snprintf(name, sizeof name, "%slayers.%lld.%s%s", *prefix, (long long)layer, place, tensors[i]);
        v = qn_source_find(src, name);
    }
    *out = (hash_list){.v = v};
    if (!v) return QN_OK;
    out->file = v->file;
    snprintf(out->name, sizeof out->name, "tensor %s", v->name);
    QN_TRY(qn_view_check(v));
    if (v->dtype != QN_DTYPE_I64)
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: type %s, expected I64", v->file, v->name,
                       v->type_name);
    if (v->n_dims == 1 && v->shape[0] == n) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s, expected [%lld]", v->file, v->name,
                   qn_view_shape_text(v, shape, sizeof shape), (long long)n);
}

/* The same of a GGUF file, which has one hash. */
static qn_status find_metadata(const qn_fields *f, int i, int64_t n, hash_list *out)
{
    *out = (hash_list){.numbers = qn_fields_get(f, tensors[i]), .file = f->file};
    qn_fields_label(f, tensors[i], out->name, sizeof out->name);
    if (!out->numbers) return qn_fail(QN_E_FORMAT, "%s: %s is missing", f->file, out->name);
    if (json_array_size(out->numbers) == (size_t)n) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: %s has %zu elements, expected %lld", f->file, out->name,
                   json_array_size(out->numbers), (long long)n);
}

static qn_status out_of_range(const hash_list *l, int64_t i, int64_t least, int64_t most)
{
    return qn_fail(QN_E_FORMAT, "%s: %s[%lld] is %lld, expected %lld to %lld", l->file, l->name, (long long)i,
                   (long long)number_at(l, i), (long long)least, (long long)most);
}

static qn_status read_multipliers(const hash_list *l, const qn_model_config *c, int64_t *out)
{
    const int64_t most = INT64_MAX / c->vocab_size;
    for (int64_t i = 0; is_there(l) && i < c->ngram.ngram_size; i++) {
        out[i] = number_at(l, i);
        if (out[i] < 0 || out[i] > most) return out_of_range(l, i, 0, most);
    }
    return QN_OK;
}

/* Of the rows of a table with n_rows. */
static qn_status read_heads(const hash_list *sizes, const hash_list *offsets, int64_t n_heads, int64_t n_rows,
                            qn_ngram_hash *h)
{
    for (int64_t i = 0; i < n_heads; i++) {
        const int64_t size = is_there(sizes) ? number_at(sizes, i) : h->size[i],
                      offset = is_there(offsets) ? number_at(offsets, i) : h->offset[i];
        if (size < 1 || size > n_rows) return out_of_range(sizes, i, 1, n_rows);
        if (offset < 0 || offset > n_rows - size)
            return out_of_range(is_there(offsets) ? offsets : sizes, i, 0, n_rows - size);
        h->size[i] = (int32_t)size;
        h->offset[i] = (int32_t)offset;
    }
    return QN_OK;
}

static qn_status read_lists(const qn_source *src, const qn_fields *f, int64_t layer, const qn_model_config *c,
                            qn_ngram_hash *h, int64_t n_rows)
{
    const qn_ngram_config *n = &c->ngram;
    hash_list l[3];
    for (int i = 0; i < 3; i++) {
        const int64_t count = i ? n->n_heads : n->ngram_size;
        if (f->gguf_architecture)
            QN_TRY(find_metadata(f, i, count, &l[i]));
        else
            QN_TRY(find_tensor(src, layer, i, count, &l[i]));
    }
    QN_TRY(read_multipliers(&l[0], c, h->multiplier));
    return read_heads(&l[1], &l[2], n->n_heads, n_rows, h);
}

/* ---- config.json ---------------------------------------------------------------------------------------- */

/* Numbers the layers that the list names, from 1 on, in rising order. */
static qn_status number_layers(const qn_fields *f, const json_t *list, qn_model_config *c)
{
    char label[LABEL_MAX];
    qn_fields_label(f, list_name, label, sizeof label);
    if (!json_is_array(list))
        return qn_fail(QN_E_FORMAT, "%s: %s: expected an array of layers", f->file, label);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        const int64_t layer = json_is_integer(value) ? json_integer_value(value) : 0;
        if (layer < 1 || layer > c->num_hidden_layers)
            return qn_fail(QN_E_FORMAT, "%s: %s[%zu] is not a layer from 1 to num_hidden_layers (%lld)",
                           f->file, label, i, (long long)c->num_hidden_layers);
        if (qn_layer_attends(&c->layers[layer - 1]))
            return qn_fail(QN_E_FORMAT, "%s: %s[%zu]: layer %lld is not one of linear_attention", f->file,
                           label, i, (long long)layer);
        c->layers[layer - 1].ngrams = 1;
    }
    for (int64_t l = 0; l < c->num_hidden_layers; l++)
        if (c->layers[l].ngrams) c->layers[l].ngrams = (int)++c->ngram.n_hashes;
    if (c->ngram.n_hashes <= TABLES_MAX) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: %s has more than %d layers, which is not supported", f->file, label,
                   (int)TABLES_MAX);
}

/* Of a list the first one counts. */
static qn_status read_eos(const qn_fields *f, qn_model_config *c)
{
    const char *name = f->gguf_architecture ? "ple_eos_token_id" : "eos_token_id";
    const json_t *value = qn_fields_get(f, name);
    char label[LABEL_MAX];
    if (json_is_array(value)) value = json_array_get(value, 0);
    const int64_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (id < 0 || id >= c->vocab_size)
        return qn_fail(QN_E_FORMAT, "%s: %s: expected a token id below vocab_size (%lld), where n-grams end",
                       f->file, qn_fields_label(f, name, label, sizeof label), (long long)c->vocab_size);
    c->ngram.eos_token_id = (int32_t)id;
    return QN_OK;
}

static qn_status read_numbers(const qn_fields *f, qn_model_config *c)
{
    qn_ngram_config *n = &c->ngram;
    char label[LABEL_MAX];
    n->ple_embed_dim = c->hidden_size;
    QN_TRY(qn_fields_required_int(f, "ngram_size", 2, QN_NGRAM_MAX, &n->ngram_size));
    QN_TRY(qn_fields_required_int(f, "heads_per_ngram", 1, QN_NGRAM_HEADS_MAX, &n->heads_per_ngram));
    QN_TRY(qn_fields_int(f, "ple_embed_dim", 1, WIDTH_MAX, &n->ple_embed_dim, NULL));
    QN_TRY(qn_fields_required_int(f, "ple_conv_kernel_size", 1, KERNEL_MAX, &n->ple_conv_kernel_size));
    n->split_ngram_parts = 1; /* as in all GGUF files */
    if (!f->gguf_architecture)
        QN_TRY(qn_fields_required_int(f, "split_ngram_parts", 1, PARTS_MAX, &n->split_ngram_parts));
    n->n_heads = (n->ngram_size - 1) * n->heads_per_ngram;
    if (n->n_heads > QN_NGRAM_HEADS_MAX)
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: %s %lld for each of %lld sizes of n-grams are more than %d heads", f->file,
                       qn_fields_label(f, "heads_per_ngram", label, sizeof label),
                       (long long)n->heads_per_ngram, (long long)n->ngram_size - 1, (int)QN_NGRAM_HEADS_MAX);
    if (n->ple_embed_dim % n->n_heads)
        return qn_fail(QN_E_FORMAT, "%s: %s %lld is not a multiple of the %lld heads of n-grams", f->file,
                       qn_fields_label(f, "ple_embed_dim", label, sizeof label), (long long)n->ple_embed_dim,
                       (long long)n->n_heads);
    return QN_OK;
}

static qn_status take_room(qn_ngram_config *n)
{
    n->hashes = qn_calloc((size_t)n->n_hashes, sizeof *n->hashes);
    n->n_rows = qn_calloc((size_t)n->n_hashes, sizeof *n->n_rows);
    return n->hashes && n->n_rows ? QN_OK : QN_E_NOMEM;
}

static qn_status make_hashes(const qn_source *src, const qn_fields *f, qn_model_config *c)
{
    qn_ngram_config *n = &c->ngram;
    int64_t seed = 0, base, divisor;
    QN_TRY(qn_fields_int(f, "seed", INT64_MIN, INT64_MAX, &seed, NULL));
    QN_TRY(qn_fields_required_int(f, "ngram_vocab_size_base", 1, INT32_MAX, &base));
    QN_TRY(qn_fields_required_int(f, "make_ngram_vocab_size_divisible_by", 1, DIVISOR_MAX, &divisor));
    QN_TRY(take_room(n));
    QN_TRY(make_sizes(f, base, n));
    for (int64_t l = 0; l < c->num_hidden_layers; l++) {
        const int64_t t = c->layers[l].ngrams - 1;
        if (t < 0) continue;
        n->n_rows[t] = (n->n_rows[t] + divisor - 1) / divisor * divisor;
        make_multipliers(c, seed, t, n->hashes[t].multiplier);
        if (qn_source_get_kind(src) == QN_SOURCE_SAFETENSORS)
            QN_TRY(read_lists(src, f, l, c, &n->hashes[t], n->n_rows[t]));
    }
    return QN_OK;
}

/* GGUF has one table, as large as its tensor is, and says the numbers of its hash. */
static qn_status read_hash(const qn_source *src, const qn_fields *f, qn_model_config *c)
{
    qn_ngram_config *n = &c->ngram;
    char label[LABEL_MAX];
    if (n->n_hashes > 1)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s has %lld layers, but one table", f->file,
                       qn_fields_label(f, list_name, label, sizeof label), (long long)n->n_hashes);
    const qn_tensor_view *v = qn_family_find_weight(c->family, src, QN_WEIGHT_NGRAM_EMBED, 0, NULL);
    QN_TRY(take_room(n));
    n->n_rows[0] = v && v->n_dims == 2 && v->shape[0] >= 1 && v->shape[0] <= INT32_MAX
                       ? v->shape[0]
                       : INT32_MAX; /* what is missing is said where weights are looked for */
    return read_lists(src, f, 0, c, &n->hashes[0], n->n_rows[0]);
}

qn_status qn_ngram_config_read(const qn_source *src, const qn_family *family, const qn_fields *f,
                               qn_model_config *c)
{
    const json_t *list = family->ngrams ? qn_fields_get(f, list_name) : NULL;
    if (!list || json_is_null(list) || (json_is_array(list) && !json_array_size(list))) return QN_OK;
    QN_TRY(number_layers(f, list, c));
    QN_TRY(read_numbers(f, c));
    QN_TRY(read_eos(f, c));
    return f->gguf_architecture ? read_hash(src, f, c) : make_hashes(src, f, c);
}
