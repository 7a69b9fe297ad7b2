#include "model/config/quantization.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "quant/types.h"

enum { GROUP_MAX = 65536, LABEL_MAX = 192, NAME_MAX_BYTES = 512 };

typedef enum { MODE_AFFINE, MODE_MXFP4, MODE_MXFP8, MODE_NVFP4, MODE_COUNT } mode;

/* Parameters that a module with an entry of its own takes where the entry leaves them out (mlx.nn). */
static const struct {
    const char *name;
    int bits, group;
} modes[MODE_COUNT] = {{"affine", 4, 64}, {"mxfp4", 4, 32}, {"mxfp8", 8, 32}, {"nvfp4", 4, 16}};

typedef struct {
    int off; /* false in the file */
    mode mode;
    int64_t bits, group;
} params;

typedef struct {
    char *name;
    params params;
} module;

struct qn_quantization {
    char *file;    /* config.json's path, for messages */
    char path[32]; /* "quantization." */
    params all;
    module *modules; /* sorted by name */
    size_t n_modules;
};

static qn_status read_mode(const qn_fields *f, mode *out)
{
    const char *name = NULL;
    char label[LABEL_MAX];
    QN_TRY(qn_fields_string(f, "mode", &name, NULL));
    *out = MODE_AFFINE;
    if (!name) return QN_OK;
    for (int m = 0; m < MODE_COUNT; m++) {
        if (strcmp(modes[m].name, name) != 0) continue;
        *out = (mode)m;
        return QN_OK;
    }
    return qn_fail(QN_E_UNSUPPORTED,
                   "%s: %s is \"%.40s\", which is not supported (known: affine, mxfp4, nvfp4)", f->file,
                   qn_fields_label(f, "mode", label, sizeof label), name);
}

static qn_status read_module(const qn_quantization *q, const char *name, const json_t *value, params *out)
{
    char path[LABEL_MAX];
    if (json_is_boolean(value)) {
        *out = q->all;
        out->off = json_is_false(value);
        return QN_OK;
    }
    snprintf(path, sizeof path, "%s%.128s.", q->path, name);
    qn_fields f = {.file = q->file, .object = value, .path = path};
    QN_TRY(read_mode(&f, &out->mode));
    out->bits = modes[out->mode].bits;
    out->group = modes[out->mode].group;
    QN_TRY(qn_fields_int(&f, "bits", 1, 16, &out->bits, NULL));
    return qn_fields_int(&f, "group_size", 1, GROUP_MAX, &out->group, NULL);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const module *)a)->name, ((const module *)b)->name);
}

/* Every object or truth value is a module; anything else belongs to whoever wrote the file. */
static qn_status read_modules(const qn_fields *f, qn_quantization *q)
{
    const char *name;
    json_t *value;
    q->modules = qn_calloc(json_object_size(f->object) + 1, sizeof *q->modules);
    if (!q->modules) return QN_E_NOMEM;
    json_object_foreach((json_t *)(uintptr_t)f->object, name, value)
    {
        if (!json_is_object(value) && !json_is_boolean(value)) continue;
        module *m = &q->modules[q->n_modules];
        QN_TRY(read_module(q, name, value, &m->params));
        if (!(m->name = qn_strdup(name))) return QN_E_NOMEM;
        q->n_modules++;
    }
    qsort(q->modules, q->n_modules, sizeof *q->modules, by_name);
    return QN_OK;
}

static qn_status read_all(const qn_fields *f, qn_quantization *q)
{
    const char *method = NULL;
    char label[LABEL_MAX];
    snprintf(q->path, sizeof q->path, "%s", f->path);
    if (!(q->file = qn_strdup(f->file))) return QN_E_NOMEM;
    QN_TRY(qn_fields_string(f, "quant_method", &method, NULL));
    /* Published so: nothing is said but the method, and tensors tell by their names (weight_experts.c). */
    if (method && strcmp(method, modes[MODE_MXFP4].name) == 0) {
        q->all =
            (params){.mode = MODE_MXFP4, .bits = modes[MODE_MXFP4].bits, .group = modes[MODE_MXFP4].group};
        return QN_OK;
    }
    if (method)
        return qn_fail(QN_E_UNSUPPORTED, "%s: %s is \"%.40s\", which is not supported", f->file,
                       qn_fields_label(f, "quant_method", label, sizeof label), method);
    QN_TRY(read_mode(f, &q->all.mode));
    QN_TRY(qn_fields_required_int(f, "bits", 1, 16, &q->all.bits));
    QN_TRY(qn_fields_required_int(f, "group_size", 1, GROUP_MAX, &q->all.group));
    return read_modules(f, q);
}

qn_status qn_quantization_read(const qn_fields *f, qn_quantization **out)
{
    qn_fields fields;
    int found = 0;
    *out = NULL;
    QN_TRY(qn_fields_object(f, "quantization", "quantization.", &fields, &found));
    if (!found) QN_TRY(qn_fields_object(f, "quantization_config", "quantization_config.", &fields, &found));
    if (!found) return QN_OK;
    qn_quantization *q = qn_calloc(1, sizeof *q);
    if (!q) return QN_E_NOMEM;
    qn_status status = read_all(&fields, q);
    if (status == QN_OK)
        *out = q;
    else
        qn_quantization_free(q);
    return status;
}

void qn_quantization_free(qn_quantization *q)
{
    if (!q) return;
    for (size_t i = 0; q->modules && i < q->n_modules; i++) qn_free(q->modules[i].name);
    qn_free(q->modules);
    qn_free(q->file);
    qn_free(q);
}

int qn_quantization_bits(const qn_quantization *q)
{
    return q ? (int)q->all.bits : 0;
}

/* ---- a layer ------------------------------------------------------------------------------------------ */

static const module *find_module(const qn_quantization *q, const char *name)
{
    module key = {.name = (char *)(uintptr_t)name};
    return q->n_modules ? bsearch(&key, q->modules, q->n_modules, sizeof key, by_name) : NULL;
}

/* The sibling tensor "<module>.<what>" of "<module>.weight"; NULL: none. */
static const qn_tensor_view *sibling(const qn_source *src, const char *module, const char *what)
{
    char name[NAME_MAX_BYTES];
    int n = snprintf(name, sizeof name, "%s.%s", module, what);
    return n > 0 && n < (int)sizeof name ? qn_source_find(src, name) : NULL;
}

/* shape [n] but for the columns, of which there are so many. */
static qn_status check_shape(const qn_tensor_view *v, int n, const int64_t *shape, int64_t columns,
                             const params *p)
{
    char actual[128], expected[128];
    int same = v->n_dims == n && v->shape[n - 1] == columns;
    for (int i = 0; same && i < n - 1; i++) same = v->shape[i] == shape[i];
    if (same) return QN_OK;
    qn_tensor_view wanted = {.n_dims = n};
    memcpy(wanted.shape, shape, (size_t)n * sizeof *shape);
    wanted.shape[n - 1] = columns;
    return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s, expected %s for %lld bits and group_size %lld",
                   v->file, v->name, qn_view_shape_text(v, actual, sizeof actual),
                   qn_view_shape_text(&wanted, expected, sizeof expected), (long long)p->bits,
                   (long long)p->group);
}

static qn_status affine_type(const qn_quantization *q, const params *p, const qn_tensor_view *weight,
                             const qn_tensor_view *scales, const qn_tensor_view *biases, qn_dtype *out)
{
    if (!biases)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s has scales but no biases", weight->file, weight->name);
    if (!scales->supported || !biases->supported || scales->dtype != biases->dtype ||
        (scales->dtype != QN_DTYPE_F16 && scales->dtype != QN_DTYPE_BF16 && scales->dtype != QN_DTYPE_F32))
        return qn_fail(
            QN_E_FORMAT,
            "%s: tensors %s and %s have types %s and %s, expected the same type for both: F16, BF16 or F32",
            scales->file, scales->name, biases->name, scales->type_name, biases->type_name);
    if (!qn_affine_type((int)p->bits, (int)p->group, scales->dtype, out))
        return qn_fail(
            QN_E_UNSUPPORTED,
            "%s: %s gives tensor %s %lld bits in groups of %lld; supported are 2, 3, 4, 5, 6 and 8 "
            "bits in groups of 32, 64 and 128",
            q->file, q->path, weight->name, (long long)p->bits, (long long)p->group);
    return QN_OK;
}

static qn_status find_type(const qn_quantization *q, const params *p, const qn_tensor_view *weight,
                           const qn_tensor_view *scales, const qn_tensor_view *biases, qn_dtype *out)
{
    if (p->mode == MODE_AFFINE) return affine_type(q, p, weight, scales, biases, out);
    const int is_mx = p->mode == MODE_MXFP4, is_nv = p->mode == MODE_NVFP4;
    if ((!is_mx && !is_nv) || p->bits != modes[p->mode].bits || p->group != modes[p->mode].group)
        return qn_fail(
            QN_E_UNSUPPORTED,
            "%s: %s gives tensor %s mode %s with %lld bits and group_size %lld, which is not supported "
            "(known: affine, and of 4 bits mxfp4 with group_size 32 and nvfp4 with group_size 16)",
            q->file, q->path, weight->name, modes[p->mode].name, (long long)p->bits, (long long)p->group);
    if (biases || !scales->supported || scales->dtype != QN_DTYPE_U8)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: %s has scales of type U8 and no biases", weight->file,
                       weight->name, modes[p->mode].name);
    *out = is_mx ? QN_DTYPE_MXFP4 : QN_DTYPE_NVFP4;
    return QN_OK;
}

/* What holds for a layer that has scales. */
static qn_status params_of(const qn_quantization *q, const char *name, const qn_tensor_view *weight,
                           const qn_tensor_view *scales, const params **out)
{
    if (!q)
        return qn_fail(QN_E_FORMAT,
                       "%s: tensor %s: config.json has no \"quantization\" with its bits and group_size",
                       scales->file, scales->name);
    const module *m = find_module(q, name);
    *out = m ? &m->params : &q->all;
    if ((*out)->off)
        return qn_fail(QN_E_FORMAT, "%s: %s%s is false, but there is a tensor %s", q->file, q->path, name,
                       scales->name);
    if (!weight->supported || weight->dtype != QN_DTYPE_U32)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s has scales, but its type is %s: expected U32",
                       weight->file, weight->name, weight->type_name);
    return QN_OK;
}

qn_status qn_quantization_view(const qn_quantization *q, const qn_source *src, const qn_tensor_view *weight,
                               int n_dims, const int64_t *shape, qn_tensor_view *out, int *found)
{
    char name[NAME_MAX_BYTES];
    const params *p = NULL;
    size_t n = strlen(weight->name), suffix = strlen(".weight");
    *found = 0;
    if (n <= suffix || n >= sizeof name || strcmp(weight->name + n - suffix, ".weight") != 0) return QN_OK;
    snprintf(name, sizeof name, "%.*s", (int)(n - suffix), weight->name);
    const qn_tensor_view *scales = sibling(src, name, "scales"), *biases = sibling(src, name, "biases");
    if (!scales && weight->supported && weight->dtype == QN_DTYPE_U32)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s is of type U32, but there is no %s.scales", weight->file,
                       weight->name, name);
    if (!scales) return QN_OK;
    QN_TRY(params_of(q, name, weight, scales, &p));
    const qn_tensor_view *of_all = sibling(src, name, "global_scale");
    if (of_all) /* mlx_lm writes one for each expert where it is asked to */
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: a scale for the whole tensor is not supported",
                       of_all->file, of_all->name);
    qn_dtype dtype;
    QN_TRY(find_type(q, p, weight, scales, biases, &dtype));
    int64_t columns = shape[n_dims - 1];
    if (columns % p->group)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: %lld columns are not a multiple of group_size %lld",
                       weight->file, weight->name, (long long)columns, (long long)p->group);
    /* 32 codes are a whole number of words, and what layouts are made of: a group, or two of nvfp4. */
    if (columns % 32)
        return qn_fail(QN_E_UNSUPPORTED,
                       "%s: tensor %s: %s with %lld columns, which are not a multiple of 32", weight->file,
                       weight->name, modes[p->mode].name, (long long)columns);
    QN_TRY(check_shape(weight, n_dims, shape, columns / 32 * p->bits, p));
    QN_TRY(check_shape(scales, n_dims, shape, columns / p->group, p));
    if (biases) QN_TRY(check_shape(biases, n_dims, shape, columns / p->group, p));
    *out = *weight;
    out->dtype = dtype;
    out->type_name = qn_dtype_name(dtype);
    out->shape[n_dims - 1] = columns;
    out->n_elements = weight->n_elements / weight->shape[n_dims - 1] * columns;
    out->scales = scales;
    out->biases = biases;
    *found = 1;
    return QN_OK;
}
