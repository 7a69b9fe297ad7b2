/* What stands in a prompt for a picture, as text: its tokens with the marks around and between them, as the
 * Processor beside the model writes them. Any thread. */
#ifndef QN_MODEL_VISION_IMAGE_PROMPT_H
#define QN_MODEL_VISION_IMAGE_PROMPT_H

#include "base/buf.h"
#include "model/vision/image_processor.h"

/* Spellings of tokens. Borrowed. */
typedef struct {
    const char *image;       /* the token of each vector */
    const char *begin, *end; /* around a picture; NULL: the form has none */
} qn_image_words;

/* The pairs that models put around a picture: i = 0, 1, ..; NULL behind the last. A model's own is the first
 * whose tokens are both in its vocabulary. Static storage. */
const char *qn_image_begin_word(int i);
const char *qn_image_end_word(int i);
/* What a chat template writes where a picture belongs. */
const char *qn_image_mark(const qn_image_processor *p, const qn_image_words *words);
/* Appends what takes the mark's place. */
void qn_image_prompt_put(const qn_image_processor *p, const qn_image_plan *plan, const qn_image_words *words,
                         qn_buf *out);

#endif
