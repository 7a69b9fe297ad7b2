/* GGUF version 2 and 3, little-endian: metadata (typed key-value pairs) and tensors, all as views into the
 * file.
 *
 * Everything is checked at open, before anything is shown: each length against the bytes left, types, unique
 * keys and names, dimensions (1 to 4, positive), offsets (aligned, inside the file, without overlap). Cost:
 * time linear in the metadata; memory for one entry per key and tensor, none for array elements. A tensor
 * type that quern does not know is an error only when that tensor is asked for. Refused: version 1,
 * big-endian files, and by qn_gguf_open one of several parts (split.count > 1). Open and close by one owner; an open reader is
 * immutable, any thread. */
#ifndef QN_FORMAT_GGUF_GGUF_H
#define QN_FORMAT_GGUF_GGUF_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "format/files/tensor_view.h"

/* Numbers as in the file. */
typedef enum {
    QN_GGUF_U8,
    QN_GGUF_I8,
    QN_GGUF_U16,
    QN_GGUF_I16,
    QN_GGUF_U32,
    QN_GGUF_I32,
    QN_GGUF_F32,
    QN_GGUF_BOOL,
    QN_GGUF_STRING,
    QN_GGUF_ARRAY,
    QN_GGUF_U64,
    QN_GGUF_I64,
    QN_GGUF_F64,
    QN_GGUF_TYPE_COUNT
} qn_gguf_type;

enum { QN_GGUF_PARTS_MAX = 9999 };

typedef struct qn_gguf qn_gguf;

/* One pair of the metadata. */
typedef struct {
    const char *key; /* NUL-terminated, never empty */
    qn_gguf_type type;
    qn_gguf_type element_type; /* of an array; else equal to type */
    int64_t count;             /* elements of an array; else 1 */
    const uint8_t *data;       /* the value, or the first element; little-endian, of any alignment */
    size_t size_bytes;
} qn_gguf_value;

/* Bytes of a string: not NUL-terminated, any bytes (the format promises UTF-8, files break it). */
typedef struct {
    const char *data;
    size_t length;
} qn_gguf_string;

/* Walks the strings of an array: for (qn_gguf_string s; qn_gguf_strings_next(&it, &s);) */
typedef struct {
    const uint8_t *at;
    int64_t left; /* strings still to come; the array's count right after qn_gguf_get_strings */
} qn_gguf_strings;

/* QN_E_IO, QN_E_FORMAT, QN_E_UNSUPPORTED (version 1, big-endian, split), QN_E_NOMEM; the message begins with
 * the path. */
qn_status qn_gguf_open(const char *path, qn_gguf **out);
/* The same, also of one of several parts: see qn_gguf_split. */
qn_status qn_gguf_open_part(const char *path, qn_gguf **out);
/* What a file says of the parts that it is one of (llama.cpp's split files). */
typedef struct {
    int64_t part, n_parts; /* from 0; 1: the file is whole */
    int64_t n_tensors;     /* of all parts; -1: it does not say */
} qn_gguf_parts;
qn_gguf_parts qn_gguf_split(const qn_gguf *g);
/* The same over bytes[0..n), which must outlive the reader; name stands for the path in messages. */
qn_status qn_gguf_open_bytes(const char *name, const void *bytes, size_t n, qn_gguf **out);
void qn_gguf_close(qn_gguf *g);
const char *qn_gguf_path(const qn_gguf *g);
uint32_t qn_gguf_version(const qn_gguf *g);

/* Metadata, in the order of the file. i in [0, count). */
int64_t qn_gguf_value_count(const qn_gguf *g);
const qn_gguf_value *qn_gguf_value_get(const qn_gguf *g, int64_t i);
/* NULL (without a message) when there is no such key. */
const qn_gguf_value *qn_gguf_value_find(const qn_gguf *g, const char *key);
/* "u32", "string", "array"; static storage. */
const char *qn_gguf_type_name(qn_gguf_type type);
/* Bytes of a value; 0 for strings and arrays. */
size_t qn_gguf_type_size(qn_gguf_type type);

/* Typed access. All of them: QN_E_NOT_FOUND when the key is missing, QN_E_FORMAT when its type or range is
 * wrong (the message names file, key, value and what was expected); outputs are untouched on failure. Any
 * integer type is good for an integer that fits; a float key also takes integers. */
qn_status qn_gguf_get_i64(const qn_gguf *g, const char *key, int64_t min, int64_t max, int64_t *out);
qn_status qn_gguf_get_u64(const qn_gguf *g, const char *key, uint64_t max, uint64_t *out);
/* Finite and in [min, max]. */
qn_status qn_gguf_get_f64(const qn_gguf *g, const char *key, double min, double max, double *out);
qn_status qn_gguf_get_bool(const qn_gguf *g, const char *key, int *out);
qn_status qn_gguf_get_string(const qn_gguf *g, const char *key, qn_gguf_string *out);
qn_status qn_gguf_get_strings(const qn_gguf *g, const char *key, qn_gguf_strings *out);
int qn_gguf_strings_next(qn_gguf_strings *it, qn_gguf_string *out);
/* Number of elements of an array of any type. */
qn_status qn_gguf_get_array_count(const qn_gguf *g, const char *key, int64_t *out);
/* Exactly n elements of an integer (or bool) array; a single integer stands for n equal ones, as per-layer
 * keys may be written. On failure out[0..n) is undefined. */
qn_status qn_gguf_get_i64s(const qn_gguf *g, const char *key, int64_t min, int64_t max, int64_t n,
                           int64_t *out);
/* The same for floats; finite. A single float does not stand for n. */
qn_status qn_gguf_get_f32s(const qn_gguf *g, const char *key, int64_t n, float *out);
/* For keys that may be missing: *out keeps its default. QN_TRY(qn_gguf_optional(qn_gguf_get_i64(...))) */
static inline qn_status qn_gguf_optional(qn_status status)
{
    return status == QN_E_NOT_FOUND ? QN_OK : status;
}

/* Tensors, in the order of the file; shapes slowest dimension first. i in [0, count). */
int64_t qn_gguf_count(const qn_gguf *g);
const qn_tensor_view *qn_gguf_get(const qn_gguf *g, int64_t i);
/* NULL (without a message) when there is no such tensor. */
const qn_tensor_view *qn_gguf_find(const qn_gguf *g, const char *name);
/* QN_E_NOT_FOUND: no such tensor; QN_E_UNSUPPORTED: its type, which is named with its number. */
qn_status qn_gguf_tensor(const qn_gguf *g, const char *name, const qn_tensor_view **out);

#endif
