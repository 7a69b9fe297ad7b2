#include "model/weights/weight_experts.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/mem.h"
#include "model/config/quantization.h"
#include "model/weights/weight_roles.h"
#include "quant/mlx.h"
#include "quant/types.h"

enum { TEXT_MAX = 128, NAME_MAX_BYTES = QN_TENSOR_NAME_MAX + 16 };

struct qn_weight_experts {
    qn_tensor_view view;
    char name[NAME_MAX_BYTES];
    unsigned layout;
    int64_t n_experts, n_out, n_in, stored_rows; /* stored_rows: of one expert in its tensor */
    qn_tensor_view *each;                        /* [n_each], joined where they lie in several tensors */
    int64_t n_each;                              /* n_experts, or 1: all in one */
    const qn_tensor_view **stored;               /* up to three a tensor of each */
    int64_t n_stored;
};

static const qn_expert_name *names_of(const qn_source *src, const qn_model_config *c)
{
    return qn_source_get_kind(src) == QN_SOURCE_GGUF ? qn_expert_gguf_names : c->family->experts->names;
}

int qn_weight_experts_has_role(qn_weight_role role)
{
    return role >= QN_WEIGHT_EXPERT_GATE && role <= QN_WEIGHT_EXPERT_DOWN_BIAS;
}

/* '#' the layer, '@' the expert; expert -1: a star in its place. */
static void write_name(const char *prefix, const char *pattern, int64_t layer, int64_t expert, char *text)
{
    size_t used = (size_t)snprintf(text, QN_TENSOR_NAME_MAX, "%s", prefix);
    for (; *pattern && used < QN_TENSOR_NAME_MAX; pattern++) {
        char *to = text + used;
        size_t room = QN_TENSOR_NAME_MAX - used;
        if (*pattern == '@' && expert < 0)
            used += (size_t)snprintf(to, room, "*");
        else if (*pattern == '#' || *pattern == '@')
            used += (size_t)snprintf(to, room, "%lld", (long long)(*pattern == '#' ? layer : expert));
        else
            used += (size_t)snprintf(to, room, "%c", *pattern);
    }
}

/* Matrices of so many rows and columns as the files have them: the shape in text. */
static const char *shape_text(const int64_t *shape, int n, char text[TEXT_MAX])
{
    size_t used = 0;
    for (int i = 0; i < n && used < TEXT_MAX; i++)
        used += (size_t)snprintf(text + used, TEXT_MAX - used, "%s%lld%s", i ? ", " : "[",
                                 (long long)shape[i], i == n - 1 ? "]" : "");
    return text;
}

static qn_status check_shape(const qn_tensor_view *v, const int64_t *shape, int n)
{
    char actual[TEXT_MAX], expected[TEXT_MAX];
    int same = v->n_dims == n;
    for (int i = 0; same && i < n; i++) same = v->shape[i] == shape[i];
    if (same) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s, expected %s", v->file, v->name,
                   qn_view_shape_text(v, actual, sizeof actual), shape_text(shape, n, expected));
}

static qn_status check_type(const qn_tensor_view *v)
{
    if (v->supported && qn_type_get(v->dtype)->decode) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: type %s is not supported for weights", v->file, v->name,
                   v->type_name);
}

/* ---- finding ------------------------------------------------------------------------------------------ */

/* What a role's tensor is in the files: its rows, and its shape. */
typedef struct {
    const qn_source *src;
    const qn_model_config *c;
    const qn_expert_name *name;
    const char *prefix;
    qn_weight_role role;
    int64_t layer, shape[QN_WEIGHT_DIMS_MAX]; /* of the role */
    int n_dims;
} search;

static int is_gguf(const search *s)
{
    return qn_source_get_kind(s->src) == QN_SOURCE_GGUF;
}

/* The shape of the file's tensor. */
static int stored_shape(const search *s, int64_t shape[3])
{
    int each = strchr(s->name->name, '@') != NULL, n = s->n_dims - each;
    int64_t twice = s->name->layout & (QN_EXPERTS_HALVES | QN_EXPERTS_TURNS) ? 2 : 1;
    memcpy(shape, s->shape + each, (size_t)n * sizeof *shape);
    shape[1 - each] *= twice;
    if (s->name->layout & QN_EXPERTS_TRANSPOSED) {
        int64_t rows = shape[n - 2];
        shape[n - 2] = shape[n - 1];
        shape[n - 1] = rows;
    }
    return n;
}

/* The published form of mxfp4: blocks of 16 bytes and scales, of type U8. */
static qn_status join_blocks(const search *s, const qn_tensor_view *blocks, qn_tensor_view *out)
{
    static const char suffix[] = "_blocks";
    char name[NAME_MAX_BYTES];
    int64_t shape[3], columns = s->shape[2];
    stored_shape(s, shape);
    size_t n = strlen(blocks->name) - (sizeof suffix - 1);
    snprintf(name, sizeof name, "%.*s_scales", (int)n, blocks->name);
    const qn_tensor_view *scales = qn_source_find(s->src, name);
    if (!scales)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s, which belongs to %s, is missing", blocks->file, name,
                       blocks->name);
    if (!blocks->supported || blocks->dtype != QN_DTYPE_U8 || !scales->supported ||
        scales->dtype != QN_DTYPE_U8)
        return qn_fail(QN_E_FORMAT, "%s: tensors %s and %s have types %s and %s, expected U8", blocks->file,
                       blocks->name, scales->name, blocks->type_name, scales->type_name);
    if (columns % 32)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: %lld columns are not a multiple of 32", blocks->file,
                       blocks->name, (long long)columns);
    QN_TRY(check_shape(blocks, (int64_t[]){shape[0], shape[1], columns / 32, 16}, 4));
    QN_TRY(check_shape(scales, (int64_t[]){shape[0], shape[1], columns / 32}, 3));
    *out = *blocks;
    out->dtype = QN_DTYPE_MXFP4;
    out->type_name = qn_dtype_name(QN_DTYPE_MXFP4);
    out->scales = scales;
    out->biases = NULL;
    return QN_OK;
}

/* The file's tensor v, with its scales where it has any, checked. */
static qn_status take(const search *s, qn_weight_experts *e, const qn_tensor_view *v, qn_tensor_view *out)
{
    int64_t shape[3];
    int found = 0, n = stored_shape(s, shape);
    e->stored[e->n_stored++] = v;
    *out = *v;
    if (s->name->layout & QN_EXPERTS_BLOCKS) {
        QN_TRY(join_blocks(s, v, out));
        found = 1;
    } else if (!is_gguf(s) && s->n_dims == 3 && !(s->name->layout & QN_EXPERTS_TRANSPOSED)) {
        QN_TRY(qn_quantization_view(s->c->quantization, s->src, v, n, shape, out, &found));
    }
    if (!found) {
        QN_TRY(check_type(v));
        QN_TRY(check_shape(v, shape, n));
    }
    if (out->scales) e->stored[e->n_stored++] = out->scales;
    if (out->biases) e->stored[e->n_stored++] = out->biases;
    return QN_OK;
}

static const qn_tensor_view *find_one(const search *s, int64_t expert, char text[QN_TENSOR_NAME_MAX])
{
    write_name(is_gguf(s) ? "" : s->prefix, s->name->name, s->layer, expert, text);
    return qn_source_find(s->src, text);
}

static qn_status missing(const search *s, int64_t expert)
{
    char name[QN_TENSOR_NAME_MAX], text[TEXT_MAX];
    int64_t shape[3];
    const char *file =
        qn_source_file_count(s->src) == 1 ? qn_source_file_path(s->src, 0) : qn_source_path(s->src);
    find_one(s, expert, name);
    int n = stored_shape(s, shape);
    return qn_fail(QN_E_FORMAT, "%s: tensor %s is missing, expected with shape %s", file, name,
                   shape_text(shape, n, text));
}

static qn_status take_all(const search *s, qn_weight_experts *e)
{
    char name[QN_TENSOR_NAME_MAX];
    for (int64_t i = 0; i < e->n_each; i++) {
        const qn_tensor_view *v = find_one(s, i, name);
        if (!v) return missing(s, i);
        QN_TRY(take(s, e, v, &e->each[i]));
        if (e->each[i].dtype != e->each[0].dtype)
            return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: type %s, but expert 0 has type %s", v->file,
                           v->name, e->each[i].type_name, e->each[0].type_name);
    }
    return QN_OK;
}

/* Logical shape and name, for whoever packs or counts. */
static qn_status show(const search *s, qn_weight_experts *e)
{
    char name[QN_TENSOR_NAME_MAX];
    unsigned layout = s->name->layout;
    write_name(is_gguf(s) ? "" : s->prefix, s->name->name, s->layer, -1, name);
    const char *which = !(layout & (QN_EXPERTS_HALVES | QN_EXPERTS_TURNS)) ? ""
                        : layout & QN_EXPERTS_SECOND                       ? "[second]"
                                                                           : "[first]";
    snprintf(e->name, sizeof e->name, "%s%s", name, which);
    e->view = e->each[0];
    e->view.name = e->name;
    e->view.scales = e->view.biases = NULL;
    e->view.whole = e->stored[0];
    e->view.experts = e;
    e->view.n_dims = s->n_dims == 3 ? 3 : 1;
    e->view.n_elements = 1;
    for (int i = 0; i < s->n_dims; i++) {
        e->view.shape[i] = s->shape[i];
        if (!qn_mul_i64(e->view.n_elements, s->shape[i], &e->view.n_elements))
            return qn_fail(QN_E_FORMAT, "%s: tensor %s is too large", e->view.file, e->view.name);
    }
    if (s->n_dims == 2) e->view.shape[0] = e->view.n_elements;
    return QN_OK;
}

qn_status qn_weight_experts_find(const qn_source *src, const qn_model_config *c, const char *prefix,
                                 qn_weight_role role, int64_t layer, qn_weight_experts **out)
{
    search s = {.src = src, .c = c, .prefix = prefix, .role = role, .layer = layer};
    char name[QN_TENSOR_NAME_MAX];
    *out = NULL;
    s.n_dims = qn_weight_shape(c, layer, role, s.shape);
    for (s.name = names_of(src, c); s.name->name; s.name++)
        if (s.name->role == role && find_one(&s, 0, name)) break;
    if (!s.name->name) return QN_OK;
    qn_weight_experts *e = qn_calloc(1, sizeof *e);
    if (!e) return QN_E_NOMEM;
    e->layout = s.name->layout;
    e->n_experts = s.shape[0];
    e->n_out = s.shape[1];
    e->n_in = s.n_dims == 3 ? s.shape[2] : 1;
    e->stored_rows = e->n_out * (e->layout & (QN_EXPERTS_HALVES | QN_EXPERTS_TURNS) ? 2 : 1);
    e->n_each = strchr(s.name->name, '@') ? e->n_experts : 1;
    e->each = qn_calloc((size_t)e->n_each, sizeof *e->each);
    e->stored = qn_calloc((size_t)e->n_each, 3 * sizeof *e->stored);
    qn_status status = e->each && e->stored ? take_all(&s, e) : QN_E_NOMEM;
    if (status == QN_OK) status = show(&s, e);
    if (status == QN_OK)
        *out = e;
    else
        qn_weight_experts_free(e);
    return status;
}

void qn_weight_experts_free(qn_weight_experts *e)
{
    if (!e) return;
    qn_free(e->each);
    qn_free(e->stored);
    qn_free(e);
}

qn_status qn_weight_experts_missing(const qn_source *src, const qn_model_config *c, const char *prefix,
                                    qn_weight_role role, int64_t layer)
{
    search s = {.src = src, .c = c, .prefix = prefix, .role = role, .layer = layer};
    s.n_dims = qn_weight_shape(c, layer, role, s.shape);
    for (s.name = names_of(src, c); s.name->name; s.name++)
        if (s.name->role == role) return missing(&s, 0);
    return qn_fail(QN_E_UNSUPPORTED, "%s: files of this kind cannot hold the experts of a %s",
                   qn_source_path(src), c->architecture);
}

/* ---- using -------------------------------------------------------------------------------------------- */

const qn_tensor_view *qn_weight_experts_view(const qn_weight_experts *e)
{
    return &e->view;
}

int qn_weight_experts_uses(const qn_weight_experts *e, const qn_tensor_view *stored)
{
    for (int64_t i = 0; i < e->n_stored; i++)
        if (e->stored[i] == stored) return 1;
    return 0;
}

const qn_tensor_view *qn_weight_experts_stored(const qn_weight_experts *e, int64_t i)
{
    return i < e->n_stored ? e->stored[i] : NULL;
}

int qn_weight_experts_may_wait(const qn_weight_experts *e)
{
    for (int64_t i = 0; i < e->n_stored; i++)
        if (!e->stored[i]->mapping) return 0;
    /* Each panel of a transposed matrix takes a bit of every page. */
    return !(e->layout & QN_EXPERTS_TRANSPOSED);
}

/* Bytes of `n` rows of a matrix in each of its tensors. */
static qn_mlx_row_bytes bytes_of_rows(const qn_tensor_view *v, int64_t n_in, int64_t n)
{
    qn_mlx_row_bytes b = {0};
    if (v->scales)
        b = qn_mlx_row(v->dtype, n_in);
    else
        (void)qn_type_bytes(v->dtype, n_in, &b.data);
    return (qn_mlx_row_bytes){b.data * (size_t)n, b.scales * (size_t)n, b.biases * (size_t)n};
}

static const void *ahead(const void *data, size_t bytes)
{
    return data ? (const char *)data + bytes : NULL;
}

qn_weight qn_weight_experts_weight(const qn_weight_experts *e, int cold, qn_weight_part *parts)
{
    qn_weight w = {.dtype = e->view.dtype,
                   .n_parts = e->n_experts,
                   .n_out = e->n_out,
                   .n_in = e->n_in,
                   .parts = parts,
                   .transposed = (e->layout & QN_EXPERTS_TRANSPOSED) != 0,
                   .cold = cold};
    int64_t second = (e->layout & QN_EXPERTS_SECOND) != 0;
    int halves = (e->layout & QN_EXPERTS_HALVES) != 0;
    if (e->layout & QN_EXPERTS_TURNS || (halves && w.transposed)) {
        w.rows.first = halves ? second * e->n_out : second;
        w.rows.step = halves ? 1 : 2;
        w.rows.stored = e->stored_rows;
    }
    for (int64_t i = 0; i < e->n_experts; i++) {
        const qn_tensor_view *v = &e->each[e->n_each == 1 ? 0 : i];
        int64_t row = e->n_each == 1 ? i * e->stored_rows : 0;
        if (halves && !w.transposed) row += second * e->n_out;
        qn_mlx_row_bytes at = bytes_of_rows(v, e->n_in, row);
        parts[i] = (qn_weight_part){(const char *)v->data + at.data,
                                    ahead(v->scales ? v->scales->data : NULL, at.scales),
                                    ahead(v->biases ? v->biases->data : NULL, at.biases)};
    }
    return w;
}

qn_weight_experts_lines qn_weight_experts_get_lines(const qn_weight_experts *e)
{
    const int64_t second = (e->layout & QN_EXPERTS_SECOND) != 0;
    const int turns = (e->layout & QN_EXPERTS_TURNS) != 0;
    return (qn_weight_experts_lines){.n_lines = e->stored_rows,
                                     .first = turns ? second : second * e->n_out,
                                     .step = turns ? 2 : 1,
                                     .transposed = (e->layout & QN_EXPERTS_TRANSPOSED) != 0,
                                     .blocks = (e->layout & QN_EXPERTS_BLOCKS) != 0};
}

const qn_tensor_view *qn_weight_experts_matrices(const qn_weight_experts *e, int64_t i)
{
    return i < e->n_each ? &e->each[i] : NULL;
}

qn_status qn_weight_experts_row(const qn_weight_experts *e, int64_t expert, int64_t row, float *out)
{
    const qn_tensor_view *v = &e->each[e->n_each == 1 ? 0 : expert];
    const qn_type *type = qn_type_get(v->dtype);
    const int64_t second = (e->layout & QN_EXPERTS_SECOND) != 0,
                  begin = e->n_each == 1 ? expert * e->stored_rows : 0;
    if (e->layout & QN_EXPERTS_TURNS)
        row = 2 * row + second;
    else if (e->layout & QN_EXPERTS_HALVES)
        row += second * e->n_out;
    if (!(e->layout & QN_EXPERTS_TRANSPOSED)) {
        qn_tensor_view matrix = *v; /* the rows of all experts, one below the other */
        matrix.n_dims = 2;
        matrix.shape[0] = (e->n_each == 1 ? e->n_experts : 1) * e->stored_rows;
        matrix.shape[1] = e->n_in;
        return qn_weights_rows(&matrix, e->n_in, begin + row, 1, out);
    }
    _Alignas(64) char aligned[8];
    const char *from = (const char *)v->data + (size_t)(begin * e->n_in + row) * type->block_bytes;
    for (int64_t i = 0; i < e->n_in; i++, from += (size_t)e->stored_rows * type->block_bytes) {
        memcpy(aligned, from, type->block_bytes);
        type->decode(type, aligned, 1, out + i);
    }
    return QN_OK;
}

qn_status qn_weight_experts_vector(const qn_weight_experts *e, float *out)
{
    const qn_type *type = qn_type_get(e->view.dtype);
    int64_t second = (e->layout & QN_EXPERTS_SECOND) != 0, step = e->layout & QN_EXPERTS_TURNS ? 2 : 1;
    int64_t first = step == 2 ? second : second * e->n_out;
    _Alignas(64) char aligned[8];
    if (type->block_elements != 1 || type->block_bytes > sizeof aligned)
        return qn_fail(QN_E_UNSUPPORTED, "type %s is not supported for biases", e->view.type_name);
    for (int64_t i = 0; i < e->n_experts; i++) {
        const qn_tensor_view *v = &e->each[e->n_each == 1 ? 0 : i];
        int64_t row = (e->n_each == 1 ? i * e->stored_rows : 0) + first;
        for (int64_t k = 0; k < e->n_out; k++, row += step) {
            memcpy(aligned, (const char *)v->data + (size_t)row * type->block_bytes, type->block_bytes);
            type->decode(type, aligned, 1, out++);
        }
    }
    return QN_OK;
}
