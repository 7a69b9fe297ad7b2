/* Classes of code points as the library that tokenizer.json files are written for has them. Each of its parts
 * knows another version of Unicode, so no one database gives the same answers. The tables are generated
 * (tools/tokenizer_tables.py). Any thread. */
#ifndef QN_TEXT_TOKENIZER_SPLIT_REFERENCE_H
#define QN_TEXT_TOKENIZER_SPLIT_REFERENCE_H

#include <stdint.h>

typedef struct {
    uint32_t first, last;
} qn_cp_range;
/* Ranges in rising order. */
typedef struct {
    const qn_cp_range *rows;
    int n;
} qn_cp_set;

extern const qn_cp_set qn_removed_by_bert;  /* what BertNormalizer's clean_text drops */
extern const qn_cp_set qn_marks_of_bert;    /* what its strip_accents drops */
extern const qn_cp_set qn_accents;          /* what StripAccents drops */
extern const qn_cp_set qn_punctuation;      /* Punctuation, BertPreTokenizer */
extern const qn_cp_set qn_digits;           /* Digits */
extern const qn_cp_set qn_never_normalized; /* in newer Unicode they decompose or take part in reordering */
extern const qn_cp_set qn_late_extends; /* they join the letter before them; utf8proc may not know it yet */

/* Letters whose lower case may be newer than utf8proc: count letters from `from` on become those from `to` on. */
typedef struct {
    uint32_t from, to, count;
} qn_cp_lower;
extern const qn_cp_lower qn_late_lower[];
extern const int qn_late_lower_count;

/* Code points that the library's expressions know and Unicode 14 does not. stand_in is an older code point of the
 * same category and script, with as many bytes of UTF-8. Rising order. */
typedef struct {
    uint32_t first, last, stand_in;
} qn_cp_stand_in;
extern const qn_cp_stand_in qn_stand_ins[];
extern const int qn_stand_in_count;
/* Bit p: some of the code points 64 p to 64 p + 63 (below U+10000) have a stand-in. */
extern const uint32_t qn_stand_in_pages[32];

static inline int qn_cp_in(const qn_cp_set *set, uint32_t cp)
{
    int low = 0, high = set->n;
    while (low < high) { /* the first range that does not end before cp */
        int middle = low + (high - low) / 2;
        if (set->rows[middle].last < cp)
            low = middle + 1;
        else
            high = middle;
    }
    return low < set->n && set->rows[low].first <= cp;
}

#endif
