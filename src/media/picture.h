/* Pictures for the front ends: the bytes of a PNG, JPEG or WebP file become rows of RGB, which is all that the
 * library takes.
 *
 * Files come from strangers, so the header alone is read before anything is decided: a picture with more
 * pixels than the limit is refused before memory is taken for one of them, and a file that ends early or is
 * damaged is refused, never shown in part. What a viewer shows is what comes out: transparent pixels are laid
 * on white, palettes, greys, 16 bits a channel and CMYK become 8-bit RGB as Pillow makes them, and a picture
 * that a camera held sideways (EXIF orientation) is turned upright. Invariant: width and height are positive,
 * and rgb holds 3 * width * height bytes without gaps. Any thread. */
#ifndef QN_MEDIA_PICTURE_H
#define QN_MEDIA_PICTURE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct {
    uint8_t *rgb;          /* [height, width, 3] */
    int64_t width, height; /* at most 65,535 each */
} qn_picture;

/* A zeroed structure asks for the defaults. */
typedef struct {
    size_t max_bytes;   /* of the file; 0: 64 MiB */
    int64_t max_pixels; /* 0: 67,108,864 (8,192 squared) */
} qn_picture_limits;

/* The file's limit in force, for who reads files. limits may be NULL. */
size_t qn_picture_max_bytes(const qn_picture_limits *limits);

/* Decodes bytes[0..n) of a PNG, JPEG or WebP file. limits may be NULL. *out is owned by the caller
 * (qn_picture_free); untouched on failure. QN_E_UNSUPPORTED: another format (named where it is known), or a
 * kind of JPEG that is not read; QN_E_FULL: more bytes or pixels than the limit; QN_E_FORMAT: truncated or
 * damaged; QN_E_NOMEM. */
qn_status qn_picture_decode(const void *bytes, size_t n, const qn_picture_limits *limits, qn_picture *out);
/* Frees the pixels and zeroes the structure. */
void qn_picture_free(qn_picture *image);

#endif
