/* The decoders behind picture.h, and what they share. Those of PNG and JPEG report an error by calling back
 * and must not be returned to, so each jumps out of it (setjmp) within one function whose state lies in a
 * structure that the caller of that function owns: nothing that lives in registers is needed after the jump.
 * Private to media. */
#ifndef QN_MEDIA_DECODERS_H
#define QN_MEDIA_DECODERS_H

#include "media/picture.h"

/* Bytes of a file that is at hand, and what came out of it so far. */
typedef struct {
    const uint8_t *bytes;
    size_t n;
    int64_t max_pixels;
    qn_picture image; /* rgb NULL until the header was accepted */
    int orientation;  /* EXIF's, 1 to 8; 1 where the file names none */
} qn_decoding;

/* On success d->image is complete. On failure the caller frees it. */
qn_status qn_png_decode(qn_decoding *d);
qn_status qn_jpeg_decode(qn_decoding *d);
/* QN_E_UNSUPPORTED if the build has no libwebp (webp_none.c), or the file is an animation. */
qn_status qn_webp_decode(qn_decoding *d);

/* Checks the size that a header gives. QN_E_FORMAT: no pixels; QN_E_FULL: too many. */
qn_status qn_decoding_check_size(const qn_decoding *d, uint64_t width, uint64_t height);

/* The orientation that an EXIF block (TIFF bytes, from the byte order on) names; 1 when it names none or is
 * damaged. */
int qn_exif_orientation(const uint8_t *tiff, size_t n);
/* Pixels of four bytes, RGBA, become three, in place. */
void qn_picture_lay_on_white(qn_picture *image);
/* Turns the picture as the orientation asks: values 5 to 8 swap its sides. */
qn_status qn_picture_orient(qn_picture *image, int orientation);

#endif
