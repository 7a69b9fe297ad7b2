#include "format/source/raw_weights.h"

#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "quant/types.h"

struct qn_raw_weights {
    qn_mapping **mappings;
    qn_tensor_view *views;
    int64_t n;
};

static const struct {
    const char *name, *type_name;
    qn_dtype dtype;
} types[] = {
    {"bfloat16", "BF16", QN_DTYPE_BF16}, {"float16", "F16", QN_DTYPE_F16}, {"float32", "F32", QN_DTYPE_F32}};
enum { N_TYPES = sizeof types / sizeof *types };

static const json_t *find_dtype(const json_t *object)
{
    const json_t *value = json_object_get(object, "torch_dtype");
    return value ? value : json_object_get(object, "dtype");
}

static qn_status read_dtype(const char *path, const json_t *root, qn_dtype *out)
{
    const json_t *value = find_dtype(root);
    if (!value) value = find_dtype(json_object_get(root, "text_config"));
    const char *name = json_string_value(value);
    if (!name)
        return qn_fail(QN_E_FORMAT,
                       "%s: torch_dtype is missing; it gives the type of the files in bin_weights", path);
    if (strncmp(name, "torch.", 6) == 0) name += 6;
    for (int i = 0; i < N_TYPES; i++)
        if (strcmp(types[i].name, name) == 0) {
            *out = types[i].dtype;
            return QN_OK;
        }
    return qn_fail(QN_E_UNSUPPORTED,
                   "%s: torch_dtype is \"%.40s\", which is not supported for bin_weights (known: bfloat16, "
                   "float16, float32)",
                   path, name);
}

qn_status qn_raw_weights_dtype(const char *path, const char *text, size_t n, qn_dtype *out)
{
    json_t *root = NULL;
    QN_TRY(qn_json_parse_python(path, text, n, &root));
    qn_status status = read_dtype(path, root, out);
    json_decref(root);
    return status;
}

static qn_status add(qn_raw_weights *r, const char *path, qn_dtype dtype)
{
    const char *slash = strrchr(path, '/');
    qn_mapping *m;
    QN_TRY(qn_mapping_open(path, &m));
    r->mappings[r->n] = m;
    qn_tensor_view *v = &r->views[r->n++];
    *v = (qn_tensor_view){.name = slash ? slash + 1 : path,
                          .supported = 1,
                          .dtype = dtype,
                          .n_dims = 1,
                          .data = qn_mapping_data(m),
                          .size_bytes = qn_mapping_size(m),
                          .file = path,
                          .mapping = m};
    for (int i = 0; i < N_TYPES; i++)
        if (types[i].dtype == dtype) v->type_name = types[i].type_name;
    v->n_elements = v->shape[0] = (int64_t)(v->size_bytes / qn_type_get(dtype)->block_bytes);
    return QN_OK;
}

qn_status qn_raw_weights_open(const char *const *files, size_t n_files, qn_dtype dtype, qn_raw_weights **out)
{
    qn_raw_weights *r = qn_calloc(1, sizeof *r);
    if (!r) return QN_E_NOMEM;
    r->mappings = qn_calloc(n_files, sizeof *r->mappings);
    r->views = qn_calloc(n_files, sizeof *r->views);
    qn_status status = r->mappings && r->views ? QN_OK : QN_E_NOMEM;
    for (size_t i = 0; i < n_files && status == QN_OK; i++) status = add(r, files[i], dtype);
    if (status == QN_OK)
        *out = r;
    else
        qn_raw_weights_close(r);
    return status;
}

void qn_raw_weights_close(qn_raw_weights *r)
{
    if (!r) return;
    for (int64_t i = 0; i < r->n; i++) qn_mapping_close(r->mappings[i]);
    qn_free(r->mappings);
    qn_free(r->views);
    qn_free(r);
}

int64_t qn_raw_weights_count(const qn_raw_weights *r)
{
    return r->n;
}

const qn_tensor_view *qn_raw_weights_get(const qn_raw_weights *r, int64_t i)
{
    return &r->views[i];
}
