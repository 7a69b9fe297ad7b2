/* Looking at a model's weights without loading them: is every tensor there and fit, what is left over, are
 * the small ones numbers. Any thread. */
#ifndef QN_ENGINE_MACHINE_EXAMINE_H
#define QN_ENGINE_MACHINE_EXAMINE_H

#include "base/status.h"
#include "model/config/config.h"

/* Texts are borrowed from the source. */
typedef struct {
    int64_t n_tensors; /* that the model uses; a tied head counts once, scales go with their matrix */
    size_t size_bytes; /* of these, as they lie in the files */
    int tied;
    const char *type_name; /* of most elements, as the files spell it */
    int bits;              /* that its name speaks of: 4 for Q4_K, 16 for BF16 */
    int64_t n_unused;      /* tensors that the model does not use */
    size_t unused_bytes;
    const char *unused; /* the first of them; NULL: none */
} qn_examination;

/* Reads headers only. QN_E_FORMAT, QN_E_UNSUPPORTED: the first tensor that is missing or does not fit. */
qn_status qn_examine_weights(const qn_source *src, const qn_model_config *c, qn_examination *out);
/* Reads all norms and biases. QN_E_FORMAT names the first with a NaN or an infinity, and the element. *n: how
 * many there are. */
qn_status qn_examine_vectors(const qn_source *src, const qn_model_config *c, int64_t *n);
/* Counts the matrices in use that are nothing but zeros, as a hole in a file leaves them; *name: of the
 * first, valid while src lives, NULL: there is none. Of any other matrix no more than its beginning is read.
 */
qn_status qn_examine_zeros(const qn_source *src, const qn_model_config *c, int64_t *n, const char **name);
/* The type of most elements of all tensors, whether a model uses them or not; "": there are none. Borrowed.
 */
const char *qn_examine_type(const qn_source *src);
/* The first number in the name of a type: 4 for "Q4_K"; 0: none, or a type without a name. */
int qn_examine_bits(const char *type_name);

#endif
