/* A JSON value that is checked byte by byte as it arrives (RFC 8259).
 *
 * Zeroed, a qn_json_steps waits for the first byte of a value. It accepts exactly what qn_json_parse accepts,
 * except that duplicate keys and numbers too large for a double pass: both need the whole text. The caller
 * hands over one byte of each character and checks the UTF-8 itself. No memory is allocated. One thread at a
 * time. */
#ifndef QN_BASE_JSON_JSON_STEPS_H
#define QN_BASE_JSON_JSON_STEPS_H

#include <stdint.h>

#include "base/json/json.h"

typedef enum {
    QN_JSON_MORE, /* the byte belongs to the value, which goes on */
    QN_JSON_LAST, /* the byte is the last one of the value */
    QN_JSON_PAST, /* the value ended before the byte: numbers do not show their end */
    QN_JSON_BAD   /* no JSON value continues so */
} qn_json_step_result;

typedef struct {
    uint8_t state;
    uint8_t left;       /* bytes of a word, or hexadecimal digits, that are still due */
    uint16_t unit;      /* the UTF-16 code unit of a \u escape */
    uint8_t is_low_due; /* a high surrogate was read: \u and a low one must follow */
    uint8_t is_key;     /* the string that is read is a key */
    const char *word;   /* what is left of true, false or null */
    int depth;          /* open brackets */
    uint32_t is_array[(QN_JSON_DEPTH_MAX + 31) / 32]; /* one bit a level */
} qn_json_steps;

qn_json_step_result qn_json_step(qn_json_steps *s, char c);
/* 1: the next byte is a plain character of a string, or its end. */
int qn_json_is_in_string(const qn_json_steps *s);

#endif
