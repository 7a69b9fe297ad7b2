/* Arrays as text. Numbers are written once into a table of equal widths, then laid out in brackets. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "array/graph.h"
#include "base/buf.h"
#include "base/mem.h"
#include "prim/convert.h"

/* Above ALL elements only EDGE are shown at both ends of each dimension. */
enum { ALL = 1000, EDGE = 3, NUMBER_MAX = 40, LINE = 75 };

static const char head[] = "array(";

typedef struct {
    const qn_view *view;
    int elided, width;
    qn_buf *out;
    int column; /* of the line that is being written */
} printing;

/* Six digits, with a point that says it is no integer. */
static void write_number(qn_dtype dtype, const void *x, char text[NUMBER_MAX])
{
    double d;
    int64_t i;
    uint64_t u;
    qn_convert(dtype, x, QN_DTYPE_F64, &d, 1);
    qn_convert(dtype, x, QN_DTYPE_I64, &i, 1);
    qn_convert(dtype, x, QN_DTYPE_U64, &u, 1);
    if (dtype == QN_DTYPE_BOOL)
        snprintf(text, NUMBER_MAX, "%s", i ? "true" : "false");
    else if (dtype == QN_DTYPE_U64)
        snprintf(text, NUMBER_MAX, "%" PRIu64, u);
    else if (!qn_dtype_is_float(dtype))
        snprintf(text, NUMBER_MAX, "%" PRId64, i);
    else
        snprintf(text, NUMBER_MAX, isnan(d) ? "nan" : "%.6g", d);
    if (qn_dtype_is_float(dtype) && isfinite(d) && !strpbrk(text, ".e"))
        snprintf(text + strlen(text), NUMBER_MAX - strlen(text), ".");
}

/* What stands at place k along dimension d: an index, -1 for the dots, -2 behind the end. */
static int64_t shown(const printing *p, int d, int64_t k)
{
    const int64_t n = p->view->dims[d];
    if (!p->elided || n <= 2 * EDGE) return k < n ? k : -2;
    if (k == EDGE) return -1;
    return k < EDGE ? k : k <= 2 * EDGE ? n - (2 * EDGE + 1) + k : -2;
}

static void measure(printing *p, int d, const char *at)
{
    const qn_view *v = p->view;
    if (d == v->n_dims) {
        char text[NUMBER_MAX];
        write_number(v->dtype, at, text);
        if ((int)strlen(text) > p->width) p->width = (int)strlen(text);
        return;
    }
    for (int64_t k = 0, i; (i = shown(p, d, k)) != -2; k++)
        if (i >= 0) measure(p, d + 1, at + i * v->strides[d] * qn_dtype_width(v->dtype));
}

static void put(printing *p, const char *text, int n)
{
    p->column += n;
    qn_buf_append(p->out, text, (size_t)n);
}

static void new_line(printing *p, int depth)
{
    put(p, "\n", 1);
    p->column = 0;
    for (int i = 0; i < (int)sizeof head - 1 + depth; i++) put(p, " ", 1);
}

static void lay_out(printing *p, int d, const char *at)
{
    const qn_view *v = p->view;
    char text[2 * NUMBER_MAX];
    if (d == v->n_dims) {
        char number[NUMBER_MAX];
        write_number(v->dtype, at, number);
        snprintf(text, sizeof text, "%*s", p->width, number);
        put(p, text, (int)strlen(text));
        return;
    }
    const int last = d == v->n_dims - 1;
    put(p, "[", 1);
    for (int64_t k = 0, i; (i = shown(p, d, k)) != -2; k++) {
        if (k) {
            put(p, ",", 1);
            if (!last)
                for (int blank = v->n_dims - d - 2; blank > 0; blank--) put(p, "\n", 1);
            if (!last || p->column + p->width + 1 > LINE)
                new_line(p, d + 1);
            else
                put(p, " ", 1);
        }
        if (i < 0)
            put(p, "...", 3);
        else
            lay_out(p, d + 1, at + i * v->strides[d] * qn_dtype_width(v->dtype));
    }
    put(p, "]", 1);
}

static void print(const qn_view *v, qn_buf *out)
{
    printing p = {.view = v, .out = out};
    int64_t n = 1;
    char text[64];
    for (int i = 0; i < v->n_dims; i++) n *= v->dims[i];
    p.elided = n > ALL;
    if (n) measure(&p, 0, v->data);
    put(&p, head, (int)sizeof head - 1);
    if (n)
        lay_out(&p, 0, v->data);
    else
        put(&p, "[]", 2);
    put(&p, ", shape=[", 9);
    for (int i = 0; i < v->n_dims; i++) {
        snprintf(text, sizeof text, "%s%" PRId64, i ? ", " : "", v->dims[i]);
        put(&p, text, (int)strlen(text));
    }
    snprintf(text, sizeof text, "], dtype=%s)", qn_dtype_name(v->dtype));
    put(&p, text, (int)strlen(text));
}

/* The scope owns text from then on. */
static const char *own(qn_scope *s, char *text)
{
    if (s->n_texts == s->texts_capacity) {
        int64_t more = s->texts_capacity ? 2 * s->texts_capacity : 16;
        char **texts = qn_realloc(s->texts, (size_t)more * sizeof *texts);
        if (!texts) {
            qn_free(text);
            return NULL;
        }
        s->texts = texts;
        s->texts_capacity = more;
    }
    return s->texts[s->n_texts++] = text;
}

const char *qn_array_text(qn_scope *s, qn_array *a)
{
    qn_view v;
    qn_buf out = {0};
    if (!a || qn_array_view(s, a, &v) != QN_OK) return "null";
    print(&v, &out);
    char *text = qn_buf_take(&out, NULL);
    const char *owned = text ? own(s, text) : NULL;
    return owned ? owned : "null";
}
