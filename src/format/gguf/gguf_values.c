#include <math.h>
#include <string.h>

#include "format/gguf/gguf.h"

static const struct {
    const char *name;
    size_t size; /* bytes of a value; 0: it depends */
} value_types[QN_GGUF_TYPE_COUNT] = {
    [QN_GGUF_U8] = {"u8", 1},       [QN_GGUF_I8] = {"i8", 1},     [QN_GGUF_U16] = {"u16", 2},
    [QN_GGUF_I16] = {"i16", 2},     [QN_GGUF_U32] = {"u32", 4},   [QN_GGUF_I32] = {"i32", 4},
    [QN_GGUF_F32] = {"f32", 4},     [QN_GGUF_BOOL] = {"bool", 1}, [QN_GGUF_STRING] = {"string", 0},
    [QN_GGUF_ARRAY] = {"array", 0}, [QN_GGUF_U64] = {"u64", 8},   [QN_GGUF_I64] = {"i64", 8},
    [QN_GGUF_F64] = {"f64", 8},
};

const char *qn_gguf_type_name(qn_gguf_type type)
{
    return (unsigned)type < QN_GGUF_TYPE_COUNT ? value_types[type].name : "?";
}

size_t qn_gguf_type_size(qn_gguf_type type)
{
    return (unsigned)type < QN_GGUF_TYPE_COUNT ? value_types[type].size : 0;
}

/* An integer of any of the types: its bits, and whether it is below zero. */
typedef struct {
    uint64_t bits;
    int negative;
} integer;

static int load_integer(qn_gguf_type type, const uint8_t *p, integer *out)
{
    int64_t i = 0;
    uint64_t u = 0;
    switch (type) {
    case QN_GGUF_BOOL:
    case QN_GGUF_U8:
    case QN_GGUF_U16:
    case QN_GGUF_U32:
    case QN_GGUF_U64:
        memcpy(&u, p, value_types[type].size); /* little-endian on both sides */
        *out = (integer){u, 0};
        return 1;
    case QN_GGUF_I8:
        i = (int8_t)*p;
        break;
    case QN_GGUF_I16: {
        int16_t v;
        memcpy(&v, p, sizeof v);
        i = v;
        break;
    }
    case QN_GGUF_I32: {
        int32_t v;
        memcpy(&v, p, sizeof v);
        i = v;
        break;
    }
    case QN_GGUF_I64:
        memcpy(&i, p, sizeof i);
        break;
    default:
        return 0;
    }
    *out = (integer){(uint64_t)i, i < 0};
    return 1;
}

static int load_float(qn_gguf_type type, const uint8_t *p, double *out)
{
    integer v;
    if (type == QN_GGUF_F64) {
        memcpy(out, p, sizeof *out);
    } else if (type == QN_GGUF_F32) {
        float f;
        memcpy(&f, p, sizeof f);
        *out = f;
    } else if (type != QN_GGUF_BOOL && load_integer(type, p, &v)) {
        *out = v.negative ? (double)(int64_t)v.bits : (double)v.bits;
    } else {
        return 0;
    }
    return 1;
}

static qn_status find(const qn_gguf *g, const char *key, const qn_gguf_value **out)
{
    *out = qn_gguf_value_find(g, key);
    return *out ? QN_OK : qn_fail(QN_E_NOT_FOUND, "%s: there is no metadata key %s", qn_gguf_path(g), key);
}

static qn_status wrong_type(const qn_gguf *g, const qn_gguf_value *v, const char *expected)
{
    int array = v->type == QN_GGUF_ARRAY;
    return qn_fail(QN_E_FORMAT, "%s: metadata key %s is %s%s, expected %s", qn_gguf_path(g), v->key,
                   array ? "an array of " : "", qn_gguf_type_name(v->element_type), expected);
}

static qn_status wrong_count(const qn_gguf *g, const qn_gguf_value *v, int64_t n)
{
    return qn_fail(QN_E_FORMAT, "%s: metadata key %s has %lld values, expected %lld", qn_gguf_path(g), v->key,
                   (long long)v->count, (long long)n);
}

/* The integer at p in [min, max]. */
static qn_status ranged(const qn_gguf *g, const qn_gguf_value *v, const uint8_t *p, int64_t min, int64_t max,
                        int64_t *out)
{
    integer i;
    if (!load_integer(v->element_type, p, &i)) return wrong_type(g, v, "integers");
    int too_large = !i.negative && i.bits > INT64_MAX;
    int64_t value = (int64_t)i.bits;
    if (too_large || value < min || value > max)
        return i.negative ? qn_fail(QN_E_FORMAT, "%s: metadata key %s: %lld is not in the range %lld to %lld",
                                    qn_gguf_path(g), v->key, (long long)value, (long long)min, (long long)max)
                          : qn_fail(QN_E_FORMAT, "%s: metadata key %s: %llu is not in the range %lld to %lld",
                                    qn_gguf_path(g), v->key, (unsigned long long)i.bits, (long long)min,
                                    (long long)max);
    *out = value;
    return QN_OK;
}

qn_status qn_gguf_get_i64(const qn_gguf *g, const char *key, int64_t min, int64_t max, int64_t *out)
{
    const qn_gguf_value *v;
    QN_TRY(find(g, key, &v));
    if (v->type == QN_GGUF_ARRAY || v->type == QN_GGUF_BOOL) return wrong_type(g, v, "an integer");
    return ranged(g, v, v->data, min, max, out);
}

qn_status qn_gguf_get_u64(const qn_gguf *g, const char *key, uint64_t max, uint64_t *out)
{
    const qn_gguf_value *v;
    integer i;
    QN_TRY(find(g, key, &v));
    if (v->type == QN_GGUF_ARRAY || v->type == QN_GGUF_BOOL || !load_integer(v->type, v->data, &i))
        return wrong_type(g, v, "an integer");
    if (i.negative)
        return qn_fail(QN_E_FORMAT, "%s: metadata key %s: %lld is negative", qn_gguf_path(g), key,
                       (long long)i.bits);
    if (i.bits > max)
        return qn_fail(QN_E_FORMAT, "%s: metadata key %s: %llu is above %llu", qn_gguf_path(g), key,
                       (unsigned long long)i.bits, (unsigned long long)max);
    *out = i.bits;
    return QN_OK;
}

qn_status qn_gguf_get_f64(const qn_gguf *g, const char *key, double min, double max, double *out)
{
    const qn_gguf_value *v;
    double d;
    QN_TRY(find(g, key, &v));
    if (v->type == QN_GGUF_ARRAY || !load_float(v->type, v->data, &d)) return wrong_type(g, v, "a number");
    if (!isfinite(d) || d < min || d > max)
        return qn_fail(QN_E_FORMAT, "%s: metadata key %s: %g is not in the range %g to %g", qn_gguf_path(g),
                       key, d, min, max);
    *out = d;
    return QN_OK;
}

qn_status qn_gguf_get_bool(const qn_gguf *g, const char *key, int *out)
{
    const qn_gguf_value *v;
    QN_TRY(find(g, key, &v));
    if (v->type != QN_GGUF_BOOL) return wrong_type(g, v, "bool");
    *out = v->data[0];
    return QN_OK;
}

qn_status qn_gguf_get_string(const qn_gguf *g, const char *key, qn_gguf_string *out)
{
    const qn_gguf_value *v;
    QN_TRY(find(g, key, &v));
    if (v->type != QN_GGUF_STRING) return wrong_type(g, v, "a string");
    *out = (qn_gguf_string){(const char *)v->data + sizeof(uint64_t), v->size_bytes - sizeof(uint64_t)};
    return QN_OK;
}

qn_status qn_gguf_get_strings(const qn_gguf *g, const char *key, qn_gguf_strings *out)
{
    const qn_gguf_value *v;
    QN_TRY(find(g, key, &v));
    if (v->type != QN_GGUF_ARRAY || v->element_type != QN_GGUF_STRING)
        return wrong_type(g, v, "an array of strings");
    *out = (qn_gguf_strings){v->data, v->count};
    return QN_OK;
}

/* The lengths were checked against the file when it was opened. */
int qn_gguf_strings_next(qn_gguf_strings *it, qn_gguf_string *out)
{
    uint64_t n;
    if (it->left <= 0) return 0;
    memcpy(&n, it->at, sizeof n);
    *out = (qn_gguf_string){(const char *)it->at + sizeof n, (size_t)n};
    it->at += sizeof n + n;
    it->left--;
    return 1;
}

qn_status qn_gguf_get_array_count(const qn_gguf *g, const char *key, int64_t *out)
{
    const qn_gguf_value *v;
    QN_TRY(find(g, key, &v));
    if (v->type != QN_GGUF_ARRAY) return wrong_type(g, v, "an array");
    *out = v->count;
    return QN_OK;
}

qn_status qn_gguf_get_i64s(const qn_gguf *g, const char *key, int64_t min, int64_t max, int64_t n,
                           int64_t *out)
{
    const qn_gguf_value *v;
    QN_TRY(find(g, key, &v));
    int array = v->type == QN_GGUF_ARRAY;
    size_t step = array ? qn_gguf_type_size(v->element_type) : 0;
    if (array && v->count != n) return wrong_count(g, v, n);
    for (int64_t i = 0; i < n; i++) QN_TRY(ranged(g, v, v->data + (size_t)i * step, min, max, &out[i]));
    return QN_OK;
}

qn_status qn_gguf_get_f32s(const qn_gguf *g, const char *key, int64_t n, float *out)
{
    const qn_gguf_value *v;
    double d;
    QN_TRY(find(g, key, &v));
    if (v->type != QN_GGUF_ARRAY || v->element_type == QN_GGUF_STRING)
        return wrong_type(g, v, "an array of numbers");
    if (v->count != n) return wrong_count(g, v, n);
    for (int64_t i = 0; i < n; i++) {
        if (!load_float(v->element_type, v->data + (size_t)i * qn_gguf_type_size(v->element_type), &d))
            return wrong_type(g, v, "an array of numbers");
        out[i] = (float)d;
        if (!isfinite(out[i]))
            return qn_fail(QN_E_FORMAT, "%s: metadata key %s: value %lld is not finite", qn_gguf_path(g), key,
                           (long long)i);
    }
    return QN_OK;
}
