#include "cli/constrain/constrain_bench.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/constrain/instance_text.h"
#include "cli/constrain/json_lines.h"
#include "cli/constrain/member_order.h"
#include "cli/term/out.h"
#include "constrain/constraint.h"
#include "constrain/validate/value.h"

/* Times of one kind, in nanoseconds of the thread's processor time. */
typedef struct {
    int64_t *ns;
    size_t n, room;
} times;

typedef struct {
    const qn_tokenizer *tokenizer;
    qn_vocabulary *vocabulary;
    const qn_constrain_bench_options *options;
    uint32_t *mask;
    int64_t n_schemas, n_passed, n_refused, n_invalid_accepted, n_valid_refused, n_order_alone, n_failed;
    times masks, compiles;
} bench;

/* One schema while it is tried. */
typedef struct {
    const char *name;
    const qn_value *schema;
    qn_constraint *constraint;
    int invalid_accepted, valid_refused, order_alone, failed;
} trial;

static qn_status add_time(times *t, int64_t ns)
{
    if (t->n == t->room) {
        size_t room = t->room ? 2 * t->room : 4096;
        int64_t *more = qn_realloc(t->ns, room * sizeof *more);
        if (!more) return QN_E_NOMEM;
        t->ns = more;
        t->room = room;
    }
    t->ns[t->n++] = ns;
    return QN_OK;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void sort(times *t)
{
    if (t->n) qsort(t->ns, t->n, sizeof *t->ns, by_value);
}

/* Microseconds below which the share lies. */
static double at_share(const times *t, double share)
{
    if (!t->n) return 0;
    size_t i = (size_t)((double)t->n * share);
    return (double)t->ns[i < t->n ? i : t->n - 1] * 1e-3;
}

static double mean(const times *t)
{
    double sum = 0;
    for (size_t i = 0; i < t->n; i++) sum += (double)t->ns[i];
    return t->n ? sum / (double)t->n * 1e-3 : 0;
}

/* ---- one instance -------------------------------------------------------------------------------------- */

/* Walks the tokens of a text through masks. *allowed: each was allowed, and the end. A token's time is that of
 * the mask and of taking the token. */
static qn_status walk(bench *b, qn_constraint *c, const char *text, size_t n, int *allowed)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    qn_matcher *m = NULL;
    QN_TRY(qn_tokenizer_encode(b->tokenizer, text, n, 0, &ids, &n_ids));
    qn_status status = qn_matcher_new(c, &m);
    int good = status == QN_OK;
    for (size_t i = 0; i < n_ids && good; i++) {
        int64_t begin = qn_clock_thread_ns();
        status = qn_matcher_mask(m, b->mask);
        if (status != QN_OK) break;
        good = b->mask[ids[i] / 32] >> ids[i] % 32 & 1;
        if (good) status = qn_matcher_accept(m, ids[i]);
        int64_t end = qn_clock_thread_ns();
        if (status == QN_E_ARG)
            status = qn_fail(QN_E_INTERNAL, "token %d is in the mask and not accepted", ids[i]);
        if (status == QN_OK) status = add_time(&b->masks, end - begin);
        if (status != QN_OK) break;
    }
    *allowed = good && status == QN_OK && qn_matcher_may_end(m);
    qn_matcher_free(m);
    qn_free(ids);
    return status;
}

static void name_failure(const bench *b, const trial *t, size_t i, const char *why)
{
    if (b->options->names) qn_out_note("%s: test %zu: %s", t->name, i, why);
}

/* Both spellings of an instance. */
static qn_status try_instance(bench *b, trial *t, size_t i, const qn_value *data, int is_valid)
{
    static const int indents[] = {-1, 4};
    int n_allowed = 0, order = 0;
    for (size_t k = 0; k < 2; k++) {
        qn_buf text = {0};
        int allowed = 0;
        qn_instance_write(data, indents[k], &text);
        qn_status status = text.status;
        if (status == QN_OK) status = walk(b, t->constraint, text.data, text.length, &allowed);
        qn_buf_free(&text);
        if (status == QN_E_NOMEM) return status;
        if (status != QN_OK) {
            t->failed = 1;
            name_failure(b, t, i, qn_last_error());
            return QN_OK;
        }
        n_allowed += allowed;
    }
    if (!is_valid && n_allowed) {
        t->invalid_accepted = 1;
        name_failure(b, t, i, "invalid and accepted");
    }
    if (!is_valid || n_allowed == 2) return QN_OK;
    if (!n_allowed) QN_TRY(qn_member_order_find(t->constraint, t->schema, data, &order, NULL));
    if (order) {
        t->order_alone = 1;
    } else {
        t->valid_refused = 1;
        name_failure(b, t, i, n_allowed ? "valid and refused in one of its layouts" : "valid and refused");
    }
    return QN_OK;
}

/* ---- one schema ---------------------------------------------------------------------------------------- */

static qn_status compile(bench *b, trial *t)
{
    qn_buf text = {0};
    qn_instance_write(t->schema, -1, &text);
    qn_constraint_source source = {.kind = QN_CONSTRAIN_JSON_SCHEMA, .text = text.data, .n = text.length};
    int64_t begin = qn_clock_thread_ns();
    qn_status status =
        text.status == QN_OK ? qn_constraint_new(b->vocabulary, &source, NULL, &t->constraint) : text.status;
    int64_t end = qn_clock_thread_ns();
    if (status == QN_OK) status = add_time(&b->compiles, end - begin);
    qn_buf_free(&text);
    return status;
}

static qn_status try_schema(bench *b, const qn_value *line)
{
    const qn_value *name = qn_value_get(line, "name", 4), *tests = qn_value_get(line, "tests", 5);
    if (!name) name = qn_value_get(line, "description", 11);
    trial t = {.name = name && name->kind == QN_VALUE_STRING ? name->text : "?",
               .schema = qn_value_get(line, "schema", 6)};
    if (!t.schema || !tests || tests->kind != QN_VALUE_ARRAY)
        return qn_fail(QN_E_FORMAT, "a line must have \"schema\" and \"tests\", an array");
    b->n_schemas++;
    qn_status status = compile(b, &t);
    if (status == QN_E_NOMEM) return status;
    if (status != QN_OK) {
        b->n_refused++;
        if (b->options->names) qn_out_note("%s: refused: %s", t.name, qn_last_error());
        return QN_OK;
    }
    for (uint32_t i = 0; i < tests->n && status == QN_OK; i++) {
        const qn_value *data = qn_value_get(&tests->children[i], "data", 4),
                       *valid = qn_value_get(&tests->children[i], "valid", 5);
        if (!data || !valid || valid->kind != QN_VALUE_BOOLEAN)
            status = qn_fail(QN_E_FORMAT, "test %u must have \"data\" and \"valid\", true or false", i);
        else
            status = try_instance(b, &t, i, data, valid->is_true);
    }
    qn_constraint_release(t.constraint);
    b->n_invalid_accepted += t.invalid_accepted;
    b->n_valid_refused += t.valid_refused;
    b->n_order_alone += t.order_alone;
    b->n_failed += t.failed;
    b->n_passed += !t.invalid_accepted && !t.valid_refused && !t.failed;
    return status;
}

static qn_status try_line(void *user, const char *text, size_t n)
{
    qn_arena arena = {0};
    const qn_value *line = NULL;
    qn_status status = qn_value_read(&arena, "line", text, n, &line);
    if (status == QN_OK) status = try_schema(user, line);
    qn_arena_clear(&arena);
    return status;
}

/* ---- the result ---------------------------------------------------------------------------------------- */

static void write_times(qn_buf *out, const char *key, const times *t)
{
    qn_json_key(out, key);
    qn_json_open(out, '{');
    qn_json_put_real(out, "mean", mean(t));
    qn_json_put_real(out, "p50", at_share(t, 0.5));
    qn_json_put_real(out, "p99", at_share(t, 0.99));
    qn_json_put_real(out, "max", at_share(t, 1));
    qn_json_close(out, '}');
}

static qn_status print_json(const bench *b)
{
    qn_buf out = {0};
    qn_json_open(&out, '{');
    qn_json_put_int(&out, "schemas", b->n_schemas);
    qn_json_put_int(&out, "passed", b->n_passed);
    qn_json_put_int(&out, "refused", b->n_refused);
    qn_json_put_int(&out, "invalid_accepted", b->n_invalid_accepted);
    qn_json_put_int(&out, "valid_refused", b->n_valid_refused);
    qn_json_put_int(&out, "order_alone", b->n_order_alone);
    write_times(&out, "mask_us", &b->masks);
    write_times(&out, "compile_us", &b->compiles);
    qn_json_close(&out, '}');
    return qn_out_line(&out);
}

static qn_status print_text(const bench *b)
{
    qn_buf out = {0};
    double share = b->n_schemas ? 100.0 * (double)b->n_passed / (double)b->n_schemas : 0;
    qn_buf_printf(&out, "schemas           %8lld\n", (long long)b->n_schemas);
    qn_buf_printf(&out, "passed            %8lld  %.1f%%\n", (long long)b->n_passed, share);
    qn_buf_printf(&out, "refused           %8lld\n", (long long)b->n_refused);
    qn_buf_printf(&out, "invalid accepted  %8lld\n", (long long)b->n_invalid_accepted);
    qn_buf_printf(&out, "valid refused     %8lld\n", (long long)b->n_valid_refused);
    qn_buf_printf(&out, "order alone       %8lld\n", (long long)b->n_order_alone);
    qn_buf_printf(&out, "mask, us              mean %.1f, median %.1f, p99 %.1f, max %.1f (%zu masks)\n",
                  mean(&b->masks), at_share(&b->masks, 0.5), at_share(&b->masks, 0.99),
                  at_share(&b->masks, 1), b->masks.n);
    qn_buf_printf(&out, "compile, us           mean %.1f, median %.1f, p99 %.1f, max %.1f",
                  mean(&b->compiles), at_share(&b->compiles, 0.5), at_share(&b->compiles, 0.99),
                  at_share(&b->compiles, 1));
    return qn_out_line(&out);
}

qn_status qn_constrain_bench(const char *path, const qn_tokenizer *t, const qn_constrain_bench_options *o)
{
    bench b = {.tokenizer = t, .options = o};
    /* No end ids: where the text may end is asked of the automaton. */
    qn_status status = qn_vocabulary_new(t, NULL, 0, &b.vocabulary);
    if (status == QN_OK) {
        b.mask = qn_calloc(qn_vocabulary_mask_words(b.vocabulary), sizeof *b.mask);
        status = b.mask ? qn_json_lines_read(path, try_line, &b) : QN_E_NOMEM;
    }
    sort(&b.masks);
    sort(&b.compiles);
    if (status == QN_OK && b.n_failed)
        qn_out_note("%lld schemas compiled and failed on the way (--names says which)",
                    (long long)b.n_failed);
    if (status == QN_OK) status = o->json ? print_json(&b) : print_text(&b);
    qn_free(b.masks.ns);
    qn_free(b.compiles.ns);
    qn_free(b.mask);
    qn_vocabulary_release(b.vocabulary);
    return status;
}
