/* SentencePiece's precompiled map of characters: rules from sequences of bytes to texts, as a double array.
 *
 * The bytes come from files, so every step is checked against their size. Built by one owner, then read-only:
 * any thread. */
#ifndef QN_TEXT_TOKENIZER_SPLIT_CHARSMAP_H
#define QN_TEXT_TOKENIZER_SPLIT_CHARSMAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

/* Zeroed is empty: it has no rule. */
typedef struct {
    uint32_t *units;
    size_t n_units;
    char *texts; /* each ends with a NUL */
    size_t n_texts;
} qn_charsmap;

/* data: the size of the double array in bytes (4 bytes, little-endian), the array, the texts. Copied. QN_E_FORMAT:
 * not such a map, or texts that are not UTF-8. */
qn_status qn_charsmap_read(const void *data, size_t n, qn_charsmap *out);
void qn_charsmap_free(qn_charsmap *m);
/* What the longest rule that begins text[0..n) makes of it: its text, *used bytes of the input and *n_out of
 * the output. NULL: no rule. */
const char *qn_charsmap_longest(const qn_charsmap *m, const char *text, size_t n, size_t *used,
                                size_t *n_out);
/* Appends text[0..n) as the library tokenizers maps it: a cluster of less than 6 bytes, else each character,
 * becomes what the shortest rule says that begins it. */
void qn_charsmap_clusters(const qn_charsmap *m, const char *text, size_t n, qn_buf *out);

#endif
