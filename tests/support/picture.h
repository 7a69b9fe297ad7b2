/* The pictures of tests/golden/media, which tools/make_images.py makes. Failures end the running test. */
#ifndef QUERN_TESTS_PICTURE_H
#define QUERN_TESTS_PICTURE_H

#include <stdint.h>

#include "base/buf.h"

typedef struct {
    int64_t width, height;
    uint8_t *rgb; /* [height, width, 3], inside file */
    qn_buf file;
} qn_test_ppm;

/* Appends the file's bytes to b, which the caller frees. */
void qn_test_media_file(const char *name, qn_buf *b);
/* A PPM (P6, 255). Free with qn_test_ppm_free. */
qn_test_ppm qn_test_ppm_read(const char *name);
void qn_test_ppm_free(qn_test_ppm *p);

#endif
