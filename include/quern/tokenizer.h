/* Text to token ids and back, by the model's own tokenizer. Any thread. */
#ifndef QUERN_TOKENIZER_H
#define QUERN_TOKENIZER_H

#include <quern/model.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int special; /* recognise special tokens written out in the text. Leave it off for text of strangers */
    int bos; /* add what the tokenizer puts around a whole text (BOS, EOS); nothing where it has no such rule
              */
} qn_encode_options;

typedef struct {
    int skip_special; /* leave special tokens out of the text */
    /* The ids stand in the middle of a text: a space before the first one stays, and bytes that are a part of a
     * character are given as they are. */
    int is_inner;
} qn_decode_options;

/* Encodes text[0..n_bytes), UTF-8 (QN_E_FORMAT names the offset of a bad byte). options may be NULL.
 * *ids is owned by the caller (qn_buffer_free) and never NULL on success, also when *n_ids is 0. */
QN_API qn_status qn_model_encode(const qn_model *model, const char *text, size_t n_bytes,
                                 const qn_encode_options *options, int32_t **ids, int64_t *n_ids);
/* Decodes ids as one text. options may be NULL. *text is owned by the caller (qn_buffer_free), ends with a
 * NUL that *n_bytes does not count; n_bytes may be NULL. QN_E_ARG: an id outside the vocabulary. */
QN_API qn_status qn_model_decode(const qn_model *model, const int32_t *ids, int64_t n_ids,
                                 const qn_decode_options *options, char **text, size_t *n_bytes);
/* 1 when id ends a generation of this model, else 0. */
QN_API int qn_model_is_stop_id(const qn_model *model, int32_t id);

/* Frees what this library handed out as a plain buffer. NULL is accepted. */
QN_API void qn_buffer_free(void *buffer);

#ifdef __cplusplus
}
#endif
#endif
