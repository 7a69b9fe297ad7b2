/* A model source: what a path holds, whatever the format.
 *
 * A path is a GGUF file (any part of a split one stands for all), a safetensors file, a shard index, or a directory with one model: exactly one .gguf or the parts of one,
 * or safetensors (the shards of model.safetensors.index.json; without it model*.safetensors, sorted; without
 * these *.safetensors), or, where it has neither, a folder bin_weights (raw_weights.h). A directory with both
 * kinds, or with several .gguf, is refused with the names; options.file picks. Files of vision towers (projector_file.h) are not
 * counted there if another .gguf is there. Beside the weights lie text
 * files (config.json, tokenizer.json, ...): where they are present they win over GGUF metadata, which callers
 * find by qn_source_gguf. The seed (seed/seed.h) is a GGUF that lies in the program: "seed:", or "seed" where
 * nothing has that name. Tensor names are the files' own; mapping names of formats to each other is the
 * model's trade. One owner; tensor look-ups from any thread, side files from one thread at a time. Views and
 * texts live until close. The elements of all tensors together fit an int64_t, whatever their types. */
#ifndef QN_FORMAT_SOURCE_SOURCE_H
#define QN_FORMAT_SOURCE_SOURCE_H

#include "base/status.h"
#include "format/files/tensor_view.h"
#include "format/gguf/gguf.h"
#include "format/safetensors/safetensors.h"

typedef struct qn_source qn_source;

typedef enum {
    QN_SOURCE_TEXT, /* no weights: only files for tokenising (options.text_only) */
    QN_SOURCE_SAFETENSORS,
    QN_SOURCE_GGUF,
    QN_SOURCE_RAW /* bin_weights; its views have one dimension, the model's config says the shapes */
} qn_source_kind;

typedef struct {
    const char *file; /* picks a file of the directory by its plain name; NULL: none. QN_E_ARG when path is no
                         directory, or the name leads elsewhere */
    /* For tokenising: a directory without weights will do as long as it has a tokenizer or template file, and
     * safetensors are not opened. A GGUF still is, for its metadata. */
    int text_only;
    int as_stored; /* to look at: tensors of type F64 are not made float32, which is what is computed with */
    int packed; /* a file of packed weights will do too, to look at: its tensors are a device's (packed.h) */
    /* The path of a vision tower for a GGUF (llama.cpp's mmproj): its tensors are the source's too. QN_E_ARG: the weights are no
     * GGUF. NULL: none, or (sees) the one that lies beside the weights. */
    const char *mmproj;
    int sees;
} qn_source_options;

typedef enum {
    QN_SIDE_CONFIG,              /* config.json */
    QN_SIDE_GENERATION_CONFIG,   /* generation_config.json */
    QN_SIDE_TOKENIZER,           /* tokenizer.json */
    QN_SIDE_TOKENIZER_CONFIG,    /* tokenizer_config.json */
    QN_SIDE_CHAT_TEMPLATE,       /* chat_template.jinja */
    QN_SIDE_PREPROCESSOR_CONFIG, /* preprocessor_config.json */
    QN_SIDE_PROCESSOR_CONFIG,    /* processor_config.json */
    QN_SIDE_SPECIAL_TOKENS_MAP,  /* special_tokens_map.json */
    QN_SIDE_ADDED_TOKENS,        /* added_tokens.json */
    QN_SIDE_CHAT_TEMPLATE_JSON,  /* chat_template.json */
    QN_SIDE_VOCAB,               /* vocab.json */
    QN_SIDE_MERGES,              /* merges.txt */
    QN_SIDE_VOCAB_TXT,           /* vocab.txt */
    QN_SIDE_TOKENIZER_MODEL,     /* tokenizer.model: SentencePiece's file, or tiktoken's */
    QN_SIDE_TIKTOKEN,            /* tiktoken.model, else the first *.tiktoken */
    QN_SIDE_COUNT
} qn_side_file;

/* options NULL: all defaults. QN_E_IO: no such path; QN_E_NOT_FOUND: no model in it; QN_E_ARG: not one model;
 * and the readers' statuses. */
qn_status qn_source_open(const char *path, const qn_source_options *options, qn_source **out);
void qn_source_close(qn_source *s);
/* As given to open. */
const char *qn_source_path(const qn_source *s);
qn_source_kind qn_source_get_kind(const qn_source *s);
/* NULL unless the kind is QN_SOURCE_GGUF. Borrowed. */
const qn_gguf *qn_source_gguf(const qn_source *s);
/* The vision tower's file; NULL: none is open. Borrowed. */
const qn_gguf *qn_source_projector(const qn_source *s);
/* 1: options.mmproj named it; 0: it was found. */
int qn_source_projector_is_given(const qn_source *s);
/* Gives the tower up, with its tensors: the source is as if it had none. */
void qn_source_drop_projector(qn_source *s);
/* Why no tower beside the weights was taken, one sentence; "": nothing to say. */
const char *qn_source_projector_note(const qn_source *s);
/* Files that hold tensors of the model, without its vision tower: 1 for a GGUF, or its parts, the shards for safetensors, one a tensor for raw, 0 for text. */
int64_t qn_source_file_count(const qn_source *s);
const char *qn_source_file_path(const qn_source *s, int64_t i);
/* Its size; 0: it is no longer there. */
size_t qn_source_file_bytes(const qn_source *s, int64_t i);
/* The shard index; NULL when there is none. Borrowed. */
const char *qn_source_index_path(const qn_source *s);

/* Path of a side file; NULL when it is not there. Borrowed. */
const char *qn_source_side_path(const qn_source *s, qn_side_file which);
/* The contents, read at the first call; NUL-terminated, n does not count the NUL (n may be NULL). Borrowed.
 * QN_E_NOT_FOUND: not there; QN_E_FORMAT: larger than its cap (256 MiB for tokenizer.json, vocab.json and merges.txt, 16 MiB for the
 * others). */
qn_status qn_source_side_text(qn_source *s, qn_side_file which, const char **text, size_t *n);
/* Gives up the contents; a later call of side_text reads them again. */
void qn_source_side_drop(qn_source *s, qn_side_file which);

/* The files additional_chat_templates/NAME.jinja, sorted by name. */
size_t qn_source_template_count(const qn_source *s);
const char *qn_source_template_name(const qn_source *s, size_t i);
/* *text (qn_free) is NUL-terminated. Statuses as for side_text. */
qn_status qn_source_template_read(const qn_source *s, size_t i, char **text, size_t *n);

/* All tensors of all files, in file order. i in [0, count). */
int64_t qn_source_count(const qn_source *s);
const qn_tensor_view *qn_source_get(const qn_source *s, int64_t i);
/* NULL (without a message) when there is no such tensor. The view may be of an unsupported type. */
const qn_tensor_view *qn_source_find(const qn_source *s, const char *name);
/* The first of prefix + name that exists, for prefixes in order up to a NULL; prefixes NULL: name as it is.
 * E.g.
 * {"", "language_model.", NULL}. QN_E_NOT_FOUND names the tensor, the prefixes and the source;
 * QN_E_UNSUPPORTED its type. */
qn_status qn_source_tensor(const qn_source *s, const char *name, const char *const *prefixes,
                           const qn_tensor_view **out);
/* Sum of the sizes of all tensors of supported types. */
size_t qn_source_tensor_bytes(const qn_source *s);

#endif
