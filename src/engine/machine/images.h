/* The images of one sequence: where their tokens lie in its prompt, the three positions by which every token
 * of it is turned, and the vectors that stand for an image's tokens in place of embeddings.
 *
 * A prompt has the model's image token where an image belongs: once for each image, or already as often as
 * the image has tokens. Where a model has marks between the tokens of an image, the prompt has them all. Made from
 * pixels, which are resized and copied at once; the vectors are computed later, one image at a time, before the first
 * of its tokens is fed. Images whose tokens all came from the prefix tree need none. Positions rise by one from token to
 * token; those of an image's tokens are all that of its first, plus the row and the column of the place;
 * behind it they go on from the largest. One thread at a time. */
#ifndef QN_ENGINE_MACHINE_IMAGES_H
#define QN_ENGINE_MACHINE_IMAGES_H

#include <quern/generate.h>

#include "cache/tree.h"
#include "engine/machine/engine.h"

/* ids[0..n_ids): the prompt. max_tokens: most that it may have with its images. QN_E_UNSUPPORTED: the model
 * takes no images. QN_E_ARG: more images than places or the other way round, a place that has neither one
 * token nor as many as its image, an image of no size, or too many tokens; messages give both figures. */
qn_status qn_images_new(const qn_model_config *c, size_t n, const qn_image *images, const int32_t *ids,
                        int64_t n_ids, int64_t max_tokens, qn_images **out);
void qn_images_free(qn_images *im);
/* The prompt with as many image tokens as the images have. Borrowed. */
qn_ids qn_images_prompt(const qn_images *im);
/* Computes what tells the images from others in the prefix tree: without it a sequence of them stays out of the tree.
 * Takes as long as a SHA-256 of the resized pixels. */
qn_status qn_images_identify(qn_images *im);
/* What qn_images_identify computed: one for each image, at its first token; where tokens of images see those behind
 * them, one for each row of such tokens, for all that stands in it. Borrowed; NULL: it was not called. */
const qn_tree_content *qn_images_contents(const qn_images *im, int64_t *n);
/* Images that have tokens at or behind this index, and no vectors yet. */
int64_t qn_images_unseen(const qn_images *im, int64_t index);
/* Computes the vectors of the first of these; *left is how many are left afterwards. */
qn_status qn_images_see(qn_images *im, qn_engine *e, int64_t index, int64_t *left);
/* Where the last of its image tokens ends. */
int64_t qn_images_end(const qn_images *im);
/* Of n tokens that two prompts have in common by their ids, those that they have in common by their images too. Either
 * may be NULL. */
int64_t qn_images_common(const qn_images *im, const qn_images *other, int64_t n);

/* The positions (time, row, column) of the token at this index of the sequence. im NULL: all are the index.
 */
void qn_images_positions(const qn_images *im, int64_t index, int32_t out[QN_ROPE_SECTIONS]);
/* The vector [qn_vision_width] of the token at this index, whose image was seen; NULL: it is text. im may be NULL. */
const float *qn_images_vector(const qn_images *im, int64_t index);
/* Where the model's tokens of pictures see those behind them, a step must have all that stand in a row: tokens from
 * `index` on that may be one part of a step, of at most n: the text before a picture, or such a row as a whole; 0: it
 * has more than n. All n for other models. im may be NULL. */
int64_t qn_images_part(const qn_images *im, int64_t index, int64_t n);
/* `end`, or where the row of a picture's tokens ends that it would cut. im may be NULL. */
int64_t qn_images_extend(const qn_images *im, int64_t end);
/* `end`, or where the row of a picture's tokens begins that it would cut. im may be NULL. */
int64_t qn_images_shrink(const qn_images *im, int64_t end);
/* 1: the token is one of a picture whose tokens see those behind them. im may be NULL. */
int qn_images_is_whole(const qn_images *im, int64_t index);

#endif
