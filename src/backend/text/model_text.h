/* Text in and out of a model by its files' tokenizer and chat template: what backends answer alike. `text`
 * NULL: the files of `path` have no tokenizer, everything is QN_E_NOT_FOUND. Any thread. */
#ifndef QN_BACKEND_TEXT_MODEL_TEXT_H
#define QN_BACKEND_TEXT_MODEL_TEXT_H

#include <quern/generate.h>
#include <quern/rerank.h>
#include <quern/tokenizer.h>

#include "text/chat/chat.h"
#include "text/chat/chat_places.h"

qn_status qn_model_text_need(const qn_chat_text *text, const char *path);
/* As the functions of tokenizer.h and generate.h, arguments checked. */
qn_status qn_model_text_encode(const qn_chat_text *text, const char *path, const char *bytes, size_t n_bytes,
                               const qn_encode_options *options, int32_t **ids, int64_t *n_ids);
/* As encode_pair of backend.h. */
qn_status qn_model_text_pair(const qn_chat_text *text, const char *path, const qn_pair *pair, int32_t **ids,
                             int32_t **types, int64_t *n);
qn_status qn_model_text_decode(const qn_chat_text *text, const char *path, int64_t vocab_size,
                               const int32_t *ids, int64_t n_ids, const qn_decode_options *options,
                               char **out, size_t *n_bytes);
/* places: what takes the place of each picture in a chat; NULL: marks stay. *out has the marks in any case. */
qn_status qn_model_text_render(const qn_chat_text *text, const char *path, const qn_prompt *prompt,
                               const qn_chat_places *places, char **out, int32_t **ids, int64_t *n_ids);
/* Ids of a chat as the template gets it, owned by the caller. places: as above. */
qn_status qn_model_text_ids(const qn_chat_text *text, const json_t *request, const qn_chat_places *places,
                            int32_t **ids, size_t *n_ids);
/* Ids of a prompt that is a text or a chat, owned by the caller. */
qn_status qn_model_text_prompt(const qn_chat_text *text, const char *path, const qn_prompt *prompt,
                               const qn_chat_places *places, int32_t **ids, size_t *n_ids);

#endif
