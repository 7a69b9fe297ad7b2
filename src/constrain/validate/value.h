/* A JSON text as a tree of values with exact numbers, for the validator.
 *
 * Values lie in an arena, children of one value side by side, in the order of the text. Each value knows its
 * parent and its place there, so any of them has a JSON pointer. A finished tree is not changed: any thread may
 * read it. */
#ifndef QN_CONSTRAIN_VALIDATE_VALUE_H
#define QN_CONSTRAIN_VALIDATE_VALUE_H

#include <jansson.h>

#include "base/arena.h"
#include "base/buf.h"
#include "constrain/validate/decimal.h"

enum { QN_VALUE_TEXT_MAX = 64 << 20 };

typedef enum {
    QN_VALUE_NULL,
    QN_VALUE_BOOLEAN,
    QN_VALUE_NUMBER,
    QN_VALUE_STRING,
    QN_VALUE_ARRAY,
    QN_VALUE_OBJECT
} qn_value_kind;

typedef struct qn_value qn_value;
struct qn_value {
    const qn_value *parent; /* NULL: the root */
    const char *key;        /* in an object, with a NUL behind it; else NULL */
    uint32_t key_bytes;
    uint32_t index; /* among the parent's children */
    uint8_t kind;
    uint8_t is_true;
    uint32_t n; /* children; or bytes of the text */
    union {
        const char *text; /* a string's, with a NUL behind it */
        qn_decimal number;
        struct {
            qn_value *children;
            uint32_t *sorted; /* an object's children by key; NULL: few, look at each */
        };
    };
};

/* Reads a JSON text into the arena. what names it in messages. QN_E_FORMAT: no JSON, or a key twice, or nested
 * deeper than QN_JSON_DEPTH_MAX. */
qn_status qn_value_read(qn_arena *arena, const char *what, const char *text, size_t n, const qn_value **out);
/* The same of a value that was read before. A real number counts as the shortest decimal that reads as it. */
qn_status qn_value_of_json(qn_arena *arena, const json_t *json, const qn_value **out);

/* NULL: no such member, or no object. */
const qn_value *qn_value_get(const qn_value *object, const char *key, size_t key_bytes);
/* Equal as JSON schema says: 1 and 1.0 are, the order of members does not count. Takes one from *steps for each
 * value looked at, and 0 is returned when it falls below 0. */
int qn_value_equal(const qn_value *a, const qn_value *b, int64_t *steps);
/* Equal values have equal hashes. */
uint64_t qn_value_hash(const qn_value *v, int64_t *steps);
/* The JSON pointer of v in its tree: "" is the root, else "/a/0". */
void qn_value_pointer(const qn_value *v, qn_buf *out);
/* v as JSON, cut with "..." where it is longer than n_max bytes, for messages. */
void qn_value_show(const qn_value *v, size_t n_max, qn_buf *out);
/* The value at a JSON pointer (not percent-encoded) below root; NULL: none. */
const qn_value *qn_value_at(const qn_value *root, const char *pointer, size_t n);
/* Characters (code points) of a string. */
int64_t qn_value_length(const qn_value *string);

#endif
