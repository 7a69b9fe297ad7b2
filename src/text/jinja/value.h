/* Values of a template run: Python's None, bool, int, float, str, list, tuple, dict and the few
 * objects that Jinja adds.
 *
 * Every byte of every string has a provenance: it was written by the template's author (trusted) or came from
 * the caller's data (user). A string is uniform or carries one mask byte per byte (1 = user); all operations
 * keep the bits with the bytes. Numbers and containers carry one bit, which their digits and brackets get
 * when they are printed.
 *
 * All memory comes from one heap per run (an arena with a limit) and dies with it; nothing is freed earlier.
 * Strings and lists that were handed out never change. One thread at a time, except for a finished program's
 * constants: read only. */
#ifndef QN_TEXT_JINJA_VALUE_H
#define QN_TEXT_JINJA_VALUE_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

/* Memory and budgets of one run or one parse. */
typedef struct {
    qn_arena arena;
    qn_status status; /* why the last allocation failed */
    uint64_t steps, steps_max;
    uint32_t depth, depth_max;
    uint64_t seed; /* of the hash: hostile keys cannot line up */
} qn_jheap;

/* NULL: the message and h->status are set. count * size_bytes is checked. */
void *qn_jheap_alloc(qn_jheap *h, size_t count, size_t size_bytes);
/* Counts n steps; QN_E_FULL when the budget is spent. */
qn_status qn_jheap_step(qn_jheap *h, uint64_t n);
/* For work that takes no memory: n bytes compared or hashed; searched; walked character by character. */
qn_status qn_jheap_scan(qn_jheap *h, size_t n_bytes);
qn_status qn_jheap_search(qn_jheap *h, size_t n_bytes);
qn_status qn_jheap_walk(qn_jheap *h, size_t n_bytes);
/* The budgets grow with the caller's own data: n bytes of it came in. */
void qn_jheap_grant(qn_jheap *h, size_t n_bytes);
/* One level deeper; QN_E_FULL when that is too deep. Each success is paired with a leave. */
qn_status qn_jheap_enter(qn_jheap *h);
void qn_jheap_leave(qn_jheap *h);

typedef enum {
    QN_J_MISSING, /* no value was given: an optional argument, an unresolved name */
    QN_J_UNDEFINED,
    QN_J_NONE,
    QN_J_BOOL,
    QN_J_INT, /* in 64 bits */
    QN_J_BIG, /* an integer beyond: big.h */
    QN_J_FLOAT,
    QN_J_STRING,
    QN_J_LIST, /* all that is iterated by position, see qn_jshape */
    QN_J_DICT,
    QN_J_NAMESPACE,
    QN_J_LOOP,
    QN_J_MACRO,
    QN_J_FUNCTION,
    QN_J_METHOD,
    QN_J_CYCLER,
    QN_J_JOINER,
} qn_jkind;

typedef enum {
    QN_JSHAPE_LIST,
    QN_JSHAPE_TUPLE,
    QN_JSHAPE_GROUP, /* a tuple (grouper, list), from groupby */
    QN_JSHAPE_RANGE,
    QN_JSHAPE_KEYS,
    QN_JSHAPE_VALUES,
    QN_JSHAPE_ITEMS,
    QN_JSHAPE_GENERATOR, /* always true, has no length, can be walked once */
} qn_jshape;

typedef struct {
    const char *data; /* UTF-8; not terminated */
    size_t n;
    const uint8_t *mask; /* NULL: uniform */
    uint8_t user;        /* of a uniform string */
    uint8_t safe;        /* Markup: the other side of a `+` is escaped for HTML */
    int64_t n_chars;     /* code points, -1: not counted yet (never so in a program's constants) */
} qn_jstring;

typedef struct qn_jvalue qn_jvalue;
typedef struct qn_jlist qn_jlist;
typedef struct qn_jdict qn_jdict;
typedef struct qn_jargs qn_jargs;
struct qn_jrun;

/* Why something is undefined, for the message when it is used. */
typedef struct {
    const char *owner; /* type that lacks the attribute; NULL: a variable */
    const char *name;
    size_t n;
    int unsafe;     /* the attribute exists in Python, but not for templates */
    int is_element; /* name is the repr of a key that is no string */
} qn_jhint;

typedef struct qn_jobject qn_jobject; /* loop, macro, method, cycler, joiner: run.h */
typedef qn_status (*qn_jfunction)(struct qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out);

struct qn_jvalue {
    uint8_t kind;
    uint8_t user;
    union {
        int64_t i; /* also bool */
        double f;
        qn_jstring *s;
        qn_jlist *l;
        qn_jdict *d; /* also namespace */
        const qn_jhint *hint;
        const struct qn_jbig *big;
        qn_jobject *o;
        qn_jfunction fn;
    };
};

struct qn_jlist {
    qn_jvalue *items;
    int64_t n;
    int64_t next; /* of a generator: the first item not taken yet; else 0 */
    int64_t stop; /* of a range */
    qn_jshape shape;
};

static inline int qn_jis_tuple(const qn_jlist *l)
{
    return l->shape == QN_JSHAPE_TUPLE || l->shape == QN_JSHAPE_GROUP;
}

/* Keeps the order of insertion; keys are equal as in Python (1, 1.0 and True are one key). */
struct qn_jdict {
    qn_jvalue *keys, *values;
    uint32_t n, capacity;
    uint32_t *index; /* open addressing over hashes, slot = place + 1; NULL while small */
    uint32_t index_size;
};

/* Arguments of a call. */
struct qn_jargs {
    qn_jvalue *items;
    uint32_t n;
    qn_jvalue *names; /* strings */
    qn_jvalue *named;
    uint32_t n_named;
};

static inline qn_jvalue qn_jnone(void)
{
    return (qn_jvalue){.kind = QN_J_NONE};
}
static inline qn_jvalue qn_jbool(int truth, int user)
{
    return (qn_jvalue){.kind = QN_J_BOOL, .user = user != 0, .i = truth != 0};
}
static inline qn_jvalue qn_jint(int64_t i, int user)
{
    return (qn_jvalue){.kind = QN_J_INT, .user = user != 0, .i = i};
}
static inline qn_jvalue qn_jfloat(double f, int user)
{
    return (qn_jvalue){.kind = QN_J_FLOAT, .user = user != 0, .f = f};
}
static inline int qn_jis_whole(qn_jvalue v)
{
    return v.kind == QN_J_INT || v.kind == QN_J_BOOL;
}
static inline int qn_jis_number(qn_jvalue v)
{
    return qn_jis_whole(v) || v.kind == QN_J_FLOAT || v.kind == QN_J_BIG;
}

/* Python's name of the type. Static storage. */
const char *qn_jvalue_type(qn_jvalue v);
int qn_jvalue_truth(qn_jvalue v);
double qn_jvalue_double(qn_jvalue number);
/* The failure for using an undefined value. */
qn_status qn_jfail_undefined(qn_jvalue v);
qn_status qn_jundefined(qn_jheap *h, const char *owner, const char *name, size_t n, int unsafe,
                        qn_jvalue *out);

/* A == B. Never fails on types; counts steps. */
qn_status qn_jvalue_equal(qn_jheap *h, qn_jvalue a, qn_jvalue b, int *equal);
/* *order < 0, 0, > 0, or 2 when a NaN makes both false. An error where Python has no order. */
qn_status qn_jvalue_compare(qn_jheap *h, qn_jvalue a, qn_jvalue b, int *order);
/* needle in haystack. */
qn_status qn_jvalue_contains(qn_jheap *h, qn_jvalue haystack, qn_jvalue needle, int *found);
/* What iterating over v gives, as a borrowed array. A generator is used up. Undefined gives nothing. */
qn_status qn_jvalue_items(qn_jheap *h, qn_jvalue v, qn_jvalue **items, int64_t *n);
/* len(v). */
qn_status qn_jvalue_length(qn_jheap *h, qn_jvalue v, int64_t *n);

/* A string that borrows data and mask, which must outlive the heap's values. */
qn_status qn_jstring_borrow(qn_jheap *h, const char *data, size_t n, const uint8_t *mask, int user,
                            qn_jvalue *out);
/* Bytes [from, to) of s; shares its memory. */
qn_status qn_jstring_bytes(qn_jheap *h, const qn_jstring *s, size_t from, size_t to, qn_jvalue *out);
int64_t qn_jstring_length(qn_jstring *s);
/* Byte offset of the code point with this number, which is at most the length. */
size_t qn_jstring_offset(qn_jstring *s, int64_t i_char);
int qn_jstring_is(const qn_jstring *s, const char *text);
/* 1 when any byte is the user's. */
int qn_jstring_user(const qn_jstring *s);
static inline int qn_jstring_user_at(const qn_jstring *s, size_t i)
{
    return s->mask ? s->mask[i] : s->user;
}
/* Offset of the first needle at or after from, or SIZE_MAX. */
size_t qn_jstring_find(const qn_jstring *s, const qn_jstring *needle, size_t from);
/* White space as str.isspace() sees it. */
int qn_jspace(uint32_t code_point);
/* Decodes the code point at s[i]; invalid bytes count as one code point each. Returns its length. */
size_t qn_jdecode(const char *s, size_t n, uint32_t *code_point);

/* capacity items; n is set by the caller. */
qn_status qn_jlist_new(qn_jheap *h, qn_jshape shape, int64_t capacity, int user, qn_jvalue *out);
qn_status qn_jdict_new(qn_jheap *h, uint32_t capacity, int user, qn_jvalue *out);
/* Adds or replaces (the old key stays, as in Python). An unhashable key is an error. */
qn_status qn_jdict_set(qn_jheap *h, qn_jdict *d, qn_jvalue key, qn_jvalue value);
/* NULL in *value when absent. An unhashable key is an error. */
qn_status qn_jdict_get(qn_jheap *h, const qn_jdict *d, qn_jvalue key, qn_jvalue **value);

/* A growing string. The first failure sticks and take reports it. */
typedef struct {
    qn_jheap *heap;
    char *data;
    uint8_t *mask; /* NULL while uniform */
    size_t n, capacity;
    size_t limit_bytes; /* 0: the heap's limit only */
    int user;           /* of all bytes while uniform */
    qn_status status;
} qn_jbuild;

void qn_jbuild_init(qn_jbuild *b, qn_jheap *h);
/* With room for exactly n bytes, for strings whose length is known. */
qn_status qn_jbuild_exact(qn_jbuild *b, qn_jheap *h, size_t n);
void qn_jbuild_bytes(qn_jbuild *b, const char *data, size_t n, int user);
void qn_jbuild_text(qn_jbuild *b, const char *text, int user);
void qn_jbuild_fill(qn_jbuild *b, char c, int64_t count, int user);
void qn_jbuild_char(qn_jbuild *b, uint32_t code_point, int user);
/* Bytes [from, to) of s with their provenance. */
void qn_jbuild_part(qn_jbuild *b, const qn_jstring *s, size_t from, size_t to);
void qn_jbuild_string(qn_jbuild *b, const qn_jstring *s);
qn_status qn_jbuild_take(qn_jbuild *b, qn_jvalue *out);

#endif
