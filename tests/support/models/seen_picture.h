/* The golden picture of a kind that sees, and the prompt around it, in an engine of that kind. Failures end the running
 * test. */
#ifndef QUERN_TESTS_SEEN_PICTURE_H
#define QUERN_TESTS_SEEN_PICTURE_H

#include "engine/machine/images.h"
#include "format/safetensors/safetensors.h"

typedef struct {
    qn_safetensors *st; /* the fixture's expected.safetensors, which has the picture and the prompt's ids */
    qn_images *im;      /* the tower has run */
    const int32_t *ids;
    int64_t n_ids;
} qn_test_picture;

qn_test_picture qn_test_picture_open(qn_engine *e, const char *kind);
void qn_test_picture_close(qn_test_picture *p);
/* A new sequence of the engine, with the picture. */
qn_sequence *qn_test_picture_sequence(qn_engine *e, const qn_test_picture *p);

#endif
