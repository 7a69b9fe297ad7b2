/* Finds the models below a folder.
 *
 * Every folder below the root is read once, in the order of names. Nothing is loaded: only the headers of
 * files and config.json are read. A folder of safetensors with its config.json is one model. Each GGUF file
 * is one model; the parts of a split file are one together. Files may be symbolic links, as in the cache of
 * Hugging Face. A file or folder that cannot be opened is reported with the reason and never ends the walk.
 * Memory does not grow with the number of models. Any thread. */
#ifndef QUERN_DISCOVER_H
#define QUERN_DISCOVER_H

#include <quern/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All zero is the usual walk. */
typedef struct {
    int32_t max_depth; /* folders on a way down, the root counting as one. 0: 32, and what lies deeper is
                          reported as a problem; at most 256 */
    int follow_links;  /* go through symbolic links to folders too; a folder is still looked into once only */
} qn_discover_options;

/* Strings are never NULL and are valid during the call that receives them. They come from files, so they may
 * hold control characters and are not fit for a terminal as they are. */
typedef struct {
    /* 1: not a model, but a folder that could not be read; only path, status and error are set */
    int is_problem;
    const char *path;       /* for qn_model_open; the folder of a problem */
    const char *name;       /* "org/name" in the cache of Hugging Face, else the last part of path */
    const char *format;     /* "safetensors", "gguf", "bin_weights"; "pytorch", which is never usable */
    const char *model_type; /* as the files call it: "llama"; "": they do not */
    const char *quant;      /* "Q4_K_M", "mlx affine 4 g64", "bf16"; "": not known */
    int32_t quant_bits;     /* 4 for "Q4_K_M", else of the type that holds most weights; 0: not known */
    int64_t n_files;        /* that hold weights */
    size_t size_bytes;      /* of these */
    /* QN_OK: headers, configuration and the tensors' names, types and shapes are in order */
    qn_status status;
    const char *error; /* why not; "" with QN_OK */
} qn_discovery;

/* Anything but QN_OK ends the walk, and qn_discover returns it. */
typedef qn_status qn_discover_fn(void *user, const qn_discovery *found);

/* Calls fn for every model at or below path, a folder, one file (a part of a split one counts those beside it too)
 * or QN_SEED (model.h). options may be NULL.
 * Hidden folders and files are passed over below the root. QN_E_IO: path itself cannot be read; QN_E_ARG;
 * QN_E_NOMEM. */
QN_API qn_status qn_discover(const char *path, const qn_discover_options *options, qn_discover_fn *fn,
                             void *user);

#ifdef __cplusplus
}
#endif
#endif
