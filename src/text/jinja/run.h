/* One rendering of a program: its state, and the functions by which expressions, statements, filters, tests,
 * methods and globals call each other. A run belongs to one thread; the program it reads may be shared. */
#ifndef QN_TEXT_JINJA_RUN_H
#define QN_TEXT_JINJA_RUN_H

#include <jansson.h>
#include <time.h>

#include "text/jinja/parse.h"

typedef struct qn_jrun qn_jrun;

/* Names and values of one block; the innermost that has a name wins. Its values may change, its memory stays.
 */
typedef struct qn_jscope {
    struct qn_jscope *outer; /* NULL: the next is the root, then context and globals */
    int32_t *names;
    qn_jvalue *values;
    uint32_t n, capacity;
} qn_jscope;

struct qn_jobject {
    union {
        struct {
            const qn_jnode *node;
            qn_jscope *scope; /* where it was defined */
        } macro;
        struct {
            const qn_jnode *node; /* the for-statement */
            qn_jscope *scope;
            qn_jvalue *items;
            int64_t n, index0;
            int depth0;
            qn_jvalue changed; /* last value given to changed(); MISSING at first */
        } loop;
        struct {
            qn_jvalue self;
            qn_jfunction fn;
        } method;
        struct {
            qn_jvalue *items;
            int64_t n, next;
        } cycler;
        struct {
            qn_jvalue separator;
            int used;
        } joiner;
    };
};

typedef enum { QN_JFLOW_ON, QN_JFLOW_BREAK, QN_JFLOW_CONTINUE } qn_jflow;

typedef struct {
    size_t offset, n;
} qn_jspan;

struct qn_jrun {
    qn_jheap heap;
    const qn_jprogram *program;
    const json_t *context;
    const char *const *trusted; /* context variables whose bytes count as the template's */
    size_t n_trusted;
    qn_jvalue *root; /* by place of the name; MISSING: not asked for yet */
    qn_jscope *scope;
    qn_jbuild *out;
    qn_jbuild main_out;
    qn_jflow flow;
    uint32_t line; /* of the node at work */
    struct tm now;
    size_t output_max;
    qn_jspan *spans;
    size_t n_spans, spans_capacity;
    const qn_jstring *raised; /* the words of raise_exception */
};

/* expr.c */
qn_status qn_jeval(qn_jrun *r, const qn_jnode *n, qn_jvalue *out);
/* Calls any callable value. */
qn_status qn_jcall_value(qn_jrun *r, qn_jvalue callee, const qn_jargs *a, qn_jvalue *out);
/* The call of node n with one more named argument, caller. */
qn_status qn_jeval_call_with(qn_jrun *r, const qn_jnode *n, qn_jvalue caller, qn_jvalue *out);
/* The filter of node n with its arguments applied to v. */
qn_status qn_japply_filter(qn_jrun *r, const qn_jnode *n, qn_jvalue v, qn_jvalue *out);

/* exec.c */
qn_status qn_jexec(qn_jrun *r, qn_jnode *const *body, uint32_t n);
qn_status qn_jcall_macro(qn_jrun *r, const qn_jobject *macro, const qn_jargs *a, qn_jvalue *out);
qn_status qn_jcall_loop(qn_jrun *r, const qn_jobject *loop, const qn_jargs *a, qn_jvalue *out);
qn_status qn_jname_value(qn_jrun *r, int32_t name, qn_jvalue *out);

/* access.c: object.name and object[key]. */
qn_status qn_jgetattr(qn_jrun *r, qn_jvalue v, const qn_jstring *name, qn_jvalue *out);
qn_status qn_jgetitem(qn_jrun *r, qn_jvalue v, qn_jvalue key, qn_jvalue *out);
/* v[from:to:step]; MISSING or None: left out. */
qn_status qn_jgetslice(qn_jrun *r, qn_jvalue v, const qn_jvalue bounds[3], qn_jvalue *out);
/* An attribute path of a filter, "function.name" or 0; default_value (may be MISSING) stands in for
 * undefined. */
qn_status qn_jgetpath(qn_jrun *r, qn_jvalue v, qn_jvalue path, qn_jvalue default_value, qn_jvalue *out);

/* math.c: op as in the token. */
qn_status qn_jbinary(qn_jrun *r, int op, qn_jvalue a, qn_jvalue b, qn_jvalue *out);
qn_status qn_jnegate(qn_jrun *r, qn_jvalue v, qn_jvalue *out);

/* filters.c: text with & < > ' " escaped for HTML. */
qn_status qn_jescape(qn_jrun *r, const qn_jstring *s, qn_jvalue *out);

/* text.c: values as text. */
/* str(v) and repr(v), appended. */
qn_status qn_jwrite_str(qn_jrun *r, qn_jbuild *b, qn_jvalue v);
qn_status qn_jwrite_repr(qn_jrun *r, qn_jbuild *b, qn_jvalue v);
/* str(v); a string stays itself. */
qn_status qn_jstr(qn_jrun *r, qn_jvalue v, qn_jvalue *out);
/* Python's repr of a float; out holds at least 64 bytes. */
void qn_jfloat_repr(double f, char *out);
qn_status qn_jfilter_tojson(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out);
qn_status qn_jfrom_json(qn_jrun *r, const json_t *json, int user, qn_jvalue *out);

/* wrap.c */
qn_status qn_jfilter_wordwrap(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out);

/* pretty.c */
qn_status qn_jfilter_pprint(qn_jrun *r, qn_jvalue v, const qn_jargs *a, qn_jvalue *out);

/* format.c */
qn_status qn_jformat_percent(qn_jrun *r, const qn_jstring *format, qn_jvalue arguments, qn_jvalue *out);
qn_status qn_jmethod_format(qn_jrun *r, qn_jvalue self, const qn_jargs *a, qn_jvalue *out);

/* methods_string.c, also behind filters. count < 0: all. */
qn_status qn_jreplace(qn_jrun *r, const qn_jstring *s, const qn_jstring *old, const qn_jstring *fresh,
                      int64_t count, qn_jvalue *out);
qn_status qn_jsplitlines(qn_jrun *r, const qn_jstring *s, int keep_ends, qn_jvalue *out);

/* Tables by name; NULL: there is none. */
qn_jfunction qn_jmethod_find(qn_jvalue self, const qn_jstring *name); /* methods.c */
const void *qn_jfilter_find(const qn_jstring *name);                  /* filters.c */
qn_status qn_jfilter_call(qn_jrun *r, const void *filter, qn_jvalue v, const qn_jargs *a, qn_jvalue *out);
const void *qn_jtest_find(const qn_jstring *name); /* predicates.c */
qn_status qn_jtest_call(qn_jrun *r, const void *test, qn_jvalue v, const qn_jargs *a, int *truth);
int qn_jglobal_find(const qn_jstring *name, qn_jvalue *out); /* globals.c */

/* Sorts places[0..n) by the values of keys, stably. */
qn_status qn_jsort(qn_jrun *r, const qn_jvalue *keys, int64_t *places, int64_t n, int reverse);

typedef struct {
    const char *name;
    qn_jfunction fn;
} qn_jfunction_row;

const qn_jfunction_row *qn_jstring_method_find(const qn_jstring *name);

static inline const qn_jfunction_row *qn_jrow_find(const qn_jfunction_row *rows, size_t n,
                                                   const qn_jstring *name)
{
    for (size_t i = 0; i < n; i++)
        if (qn_jstring_is(name, rows[i].name)) return &rows[i];
    return NULL;
}

/* Arguments by position or name into out[0..n); what is not given is MISSING. names is one string, "old new
 * count", of which the first n_required must be given. */
qn_status qn_jargs_bind(qn_jrun *r, const char *function, const qn_jargs *a, const char *names,
                        int n_required, qn_jvalue *out);
/* Typed views of bound arguments; MISSING or None gives the default. */
qn_status qn_jarg_int(qn_jvalue v, const char *what, int64_t default_value, int64_t *out);
qn_status qn_jarg_string(qn_jvalue v, const char *what, qn_jstring **out);

#endif
