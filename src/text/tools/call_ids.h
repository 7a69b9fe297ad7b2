/* Ids of calls of tools, in a form that the model's own chat template takes when a client sends them back.
 *
 * Most templates take any id; some raise unless it has a certain length. Which form a template takes is found
 * by rendering a conversation with each (chat_fit.h). Pure functions: any thread. */
#ifndef QN_TEXT_TOOLS_CALL_IDS_H
#define QN_TEXT_TOOLS_CALL_IDS_H

#include <stddef.h>
#include <stdint.h>

/* In the order in which they are tried. */
typedef enum {
    QN_CALL_ID_LONG, /* "call_" and 24 hexadecimal digits, as OpenAI's are about: the default */
    QN_CALL_ID_NINE, /* nine letters or digits, as Mistral's templates want them */
    QN_CALL_ID_FORMS
} qn_call_id_form;

enum { QN_CALL_ID_BYTES_MAX = 64 };

/* The id of call `index` of choice `choice` of the request `seed`, with its NUL. The same arguments give the
 * same id; others give another one but for chance (1 in 10^16 for nine letters). */
void qn_call_id_write(qn_call_id_form form, uint64_t seed, int64_t choice, int32_t index,
                      char out[QN_CALL_ID_BYTES_MAX]);
/* An id of the form that stands for text[0..n): that text itself where it has the form already, else one that
 * depends on the text alone. */
void qn_call_id_map(qn_call_id_form form, const char *text, size_t n, char out[QN_CALL_ID_BYTES_MAX]);

#endif
