#include "convert/tensor_types.h"

#include <string.h>

#include "base/buf.h"

/* Where rows do not fill a block; as llama.cpp chooses. */
static const struct {
    qn_dtype wanted, instead;
} finer[] = {{QN_DTYPE_Q4_K, QN_DTYPE_Q5_0}, {QN_DTYPE_Q5_K, QN_DTYPE_Q5_1}, {QN_DTYPE_Q6_K, QN_DTYPE_Q8_0}};

static const struct {
    qn_dtype dtype;
    int number;
} file_types[] = {{QN_DTYPE_F32, 0},   {QN_DTYPE_F16, 1},   {QN_DTYPE_Q4_0, 2},  {QN_DTYPE_Q4_1, 3},
                  {QN_DTYPE_Q8_0, 7},  {QN_DTYPE_Q5_0, 8},  {QN_DTYPE_Q5_1, 9},  {QN_DTYPE_Q4_K, 14},
                  {QN_DTYPE_Q5_K, 16}, {QN_DTYPE_Q6_K, 18}, {QN_DTYPE_BF16, 32}, {QN_DTYPE_MXFP4, 38}};

static int is_written(const qn_type *t)
{
    return t->encode && t->ggml_type >= 0;
}

static qn_status find(const char *name, const qn_type **out)
{
    qn_buf known = {0};
    *out = NULL;
    if (!name) return QN_OK;
    for (int i = 0; i < QN_DTYPE_COUNT; i++) {
        const qn_type *t = qn_type_get((qn_dtype)i);
        if (!is_written(t)) continue;
        if (strcmp(t->name, name) == 0) *out = t;
        qn_buf_printf(&known, "%s%s", known.length ? ", " : "", t->name);
    }
    qn_status status =
        known.status != QN_OK ? known.status
        : *out                ? QN_OK
               : qn_fail(QN_E_ARG, "type \"%.40s\": GGUF files can be written with %s", name, known.data);
    qn_buf_free(&known);
    return status;
}

qn_status qn_tensor_types_read(const char *type, const char *embedding, qn_tensor_types *out)
{
    qn_tensor_types t = {NULL, NULL};
    QN_TRY(find(type, &t.matrices));
    QN_TRY(find(embedding ? embedding : type, &t.embedding));
    *out = t;
    return QN_OK;
}

static const qn_type *fitting(const qn_type *wanted, int64_t n_cols)
{
    if (!wanted || n_cols % wanted->block_elements == 0) return wanted;
    for (size_t i = 0; i < sizeof finer / sizeof *finer; i++)
        if (finer[i].wanted == wanted->dtype && n_cols % 32 == 0) return qn_type_get(finer[i].instead);
    return qn_type_get(QN_DTYPE_F16);
}

const qn_type *qn_tensor_types_of(const qn_tensor_types *t, qn_weight_role role, int n_dims, int64_t n_cols)
{
    if (n_dims < 2 || role == QN_WEIGHT_ROLE_COUNT || role == QN_WEIGHT_ROUTER ||
        role == QN_WEIGHT_SHARED_ROUTER || role == QN_WEIGHT_HYPER_ATTN || role == QN_WEIGHT_HYPER_FFN)
        return NULL;
    const int is_embedding =
        role == QN_WEIGHT_EMBED || role == QN_WEIGHT_LM_HEAD || role == QN_WEIGHT_LAYER_INPUT_EMBED;
    return fitting(is_embedding ? t->embedding : t->matrices, n_cols);
}

int qn_tensor_types_file_type(qn_dtype dtype)
{
    for (size_t i = 0; i < sizeof file_types / sizeof *file_types; i++)
        if (file_types[i].dtype == dtype) return file_types[i].number;
    return -1;
}
