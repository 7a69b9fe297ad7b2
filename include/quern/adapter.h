/* LoRA and DoRA adapters: small additions to a model's matrices, loaded by name, several at a time.
 *
 * An adapter is a folder written by PEFT (adapter_config.json, adapter_model.safetensors) or mlx_lm
 * (adapter_config.json, adapters.safetensors). PEFT's may also hold whole tensors: saved modules, biases, rows of
 * tokens. It is computed in f32 beside the unchanged weights, which may
 * be quantised. Each request uses one adapter or none, and each row may use another. Rows with different
 * adapters run together, and the bits of a row do not depend on the others. The adapter that is loaded with
 * the model (adapter_path of qn_model_options) serves requests that name none. A model without adapters
 * computes the same as ever. Any thread. */
#ifndef QUERN_ADAPTER_H
#define QUERN_ADAPTER_H

#include <quern/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* PEFT: lora_A [rank, in], lora_B [out, rank]. MLX: lora_a [in, rank], lora_b [rank, out]. */
typedef enum { QN_ADAPTER_PEFT, QN_ADAPTER_MLX } qn_adapter_layout;

/* Strings are read during qn_adapter_load only. */
typedef struct {
    const char *name; /* 1 to 64 letters, digits, '.', '_' and '-', but not "none" */
    const char *path; /* the folder, or the safetensors file in it */
    float scale;      /* multiplies the adapter's own factor. 0: 1 */
} qn_adapter_options;

typedef struct {
    char name[65];
    char path[4096];    /* as given, cut when too long */
    const char *layout; /* "peft" or "mlx"; static storage */
    float scale;
    int32_t rank;       /* the largest */
    int64_t n_matrices; /* of the model that it changes */
    size_t size_bytes;  /* in memory */
    int is_default;     /* requests that name no adapter use it */
} qn_adapter_info;

/* Waits for the current step, and makes others wait while it reads. All or nothing. QN_E_NOT_FOUND: there is
 * no adapter at path; QN_E_FORMAT: a tensor of a wrong shape, NaN or infinity, half of a pair;
 * QN_E_UNSUPPORTED: a tensor that does not belong to this model, DoRA of an expert, or a field of the configuration
 * that asks for what is not computed; QN_E_ARG: the name is taken; QN_E_FULL: 64 adapters are loaded;
 * QN_E_NOMEM: the memory limit. The messages name the tensor or field. */
QN_API qn_status qn_adapter_load(qn_model *model, const qn_adapter_options *options);
/* QN_E_NOT_FOUND; QN_E_ARG: rows of open generations use it. */
QN_API qn_status qn_adapter_unload(qn_model *model, const char *name);
/* QN_E_NOT_FOUND: fewer are loaded. Indices change when one is unloaded. */
QN_API qn_status qn_adapter_get_info(const qn_model *model, int64_t i_adapter, qn_adapter_info *out);

enum { QN_FUSE_ADAPTERS_MAX = 64 };

typedef struct {
    /* For a folder "f32", "f16" or "bf16", the type of all numbers. For a GGUF file f32, f16, bf16, q4_0,
     * q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k or mxfp4, the type of matrices; vectors are f32, and rows that
     * do not fill a block get a finer type. NULL: each tensor keeps its own. */
    const char *type;
    const char *embedding_type;    /* GGUF only: of the embedding and the head; NULL: as type */
    qn_pack_progress_fn *progress; /* told before each tensor; may be NULL */
    void *user;                    /* progress's first argument */
    float adapter_scale;           /* multiplies the factor of the adapter at adapter_path. 0: 1 */
    /* [n_more] adapters that are added behind that one, each with its scale; names are not used. May be NULL if
     * n_more is 0. QN_E_ARG: more than QN_FUSE_ADAPTERS_MAX adapters in all. */
    const qn_adapter_options *more;
    int64_t n_more;
} qn_fuse_options;

typedef struct {
    int64_t n_tensors; /* written */
    int64_t n_merged;  /* tensors that adapters changed */
    size_t size_bytes; /* of the tensors */
} qn_fuse_result;

/* Writes the model at path with the adapter added to its weights, or unchanged if adapter_path is NULL. A
 * directory with safetensors (MLX's quantised ones too) becomes the folder out_path, with the same files and
 * shards and copies of the other files. If out_path ends in .gguf, it becomes a GGUF file with tokenizer and
 * chat template. A GGUF file becomes the file out_path, with its metadata. Sums are computed in f32. A tensor
 * that keeps a quantised type is quantised again where the adapter changes it. out_path appears complete or
 * not at all. options and out may be NULL. QN_E_ARG: an unknown type, or out_path exists (as a folder: and is
 * not empty); QN_E_UNSUPPORTED: two adapters of a matrix of which one is DoRA, a tensor that the files lack, a tied
 * head that would differ from its embedding, a type in which numbers cannot be written (the message names the tensor), or
 * a family, field or tokenizer that GGUF cannot store (the message says which); the status that progress
 * returned; and the statuses of qn_adapter_load. */
QN_API qn_status qn_model_fuse(const char *path, const char *adapter_path, const char *out_path,
                               const qn_fuse_options *options, qn_fuse_result *out);

#ifdef __cplusplus
}
#endif
#endif
