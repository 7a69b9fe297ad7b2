#include "cli/constrain/constrain_check.h"

#include <string.h>

#include "base/mem.h"
#include "cli/constrain/instance_text.h"
#include "cli/constrain/member_order.h"
#include "cli/constrain/text_place.h"
#include "cli/term/input.h"
#include "cli/term/out.h"
#include "constrain/constraint.h"
#include "constrain/validate/validate.h"
#include "constrain/validate/value.h"

enum { FAILURES_MAX = 20, SHOWN_BYTES = 40 };

typedef struct {
    qn_buf text; /* the file */
    const qn_value *value;
} document;

typedef struct {
    qn_arena arena;
    document schema, instance;
    qn_constraint *constraint;
    char *refusal; /* of the constraint; NULL: it was compiled */
    qn_schema *validator;
    char *validator_refusal;
    /* The instance. */
    int has_instance, is_allowed, is_layout_alone, is_validated;
    size_t n_taken; /* bytes of the instance that the constraint allows */
    char *stopped;  /* the constraint passed a limit */
    qn_buf order;   /* the instance in an order that is allowed */
    qn_schema_report report;
} check;

static char *copy_message(void)
{
    return qn_strdup(qn_last_error());
}

static qn_status read_document(check *k, const char *path, document *d)
{
    QN_TRY(qn_input_read(path, &d->text));
    while (d->text.length && strchr(" \n\r\t", d->text.data[d->text.length - 1]))
        d->text.data[--d->text.length] = 0;
    return qn_value_read(&k->arena, path, d->text.data ? d->text.data : "", d->text.length, &d->value);
}

/* Keeps the sentence of a refusal; a failure that is none of the schema's goes on. */
static qn_status keep_refusal(qn_status status, char **out)
{
    if (status == QN_OK || status == QN_E_NOMEM) return status;
    *out = copy_message();
    return *out ? QN_OK : QN_E_NOMEM;
}

static qn_status compile(check *k, const qn_tokenizer *t)
{
    qn_vocabulary *v = NULL;
    QN_TRY(qn_vocabulary_new(t, NULL, 0, &v));
    qn_constraint_source source = {
        .kind = QN_CONSTRAIN_JSON_SCHEMA, .text = k->schema.text.data, .n = k->schema.text.length};
    qn_status status = keep_refusal(qn_constraint_new(v, &source, NULL, &k->constraint), &k->refusal);
    qn_vocabulary_release(v);
    if (status != QN_OK) return status;
    return keep_refusal(qn_schema_open(k->schema.text.data, k->schema.text.length, NULL, &k->validator),
                        &k->validator_refusal);
}

/* ---- the instance -------------------------------------------------------------------------------------- */

/* Is a text allowed from begin to end? */
static qn_status is_allowed(check *k, const char *text, size_t n, int *allowed, size_t *n_taken)
{
    qn_matcher *m = NULL;
    QN_TRY(qn_matcher_new(k->constraint, &m));
    qn_status status = qn_matcher_accept_text(m, text, n, n_taken);
    *allowed = status == QN_OK && *n_taken == n && qn_matcher_may_end(m);
    qn_matcher_free(m);
    return status == QN_E_ARG ? QN_OK : status;
}

static qn_status try_instance(check *k)
{
    const qn_buf *text = &k->instance.text;
    QN_TRY(is_allowed(k, text->data, text->length, &k->is_allowed, &k->n_taken));
    if (k->is_allowed) return QN_OK;
    /* The same value in another layout, and in another order. */
    qn_buf line = {0};
    size_t n_taken = 0;
    qn_instance_write(k->instance.value, -1, &line);
    qn_status status = line.status;
    if (status == QN_OK) status = is_allowed(k, line.data, line.length, &k->is_layout_alone, &n_taken);
    qn_buf_free(&line);
    int found = 0;
    if (status == QN_OK && !k->is_layout_alone)
        status = qn_member_order_find(k->constraint, k->schema.value, k->instance.value, &found, &k->order);
    return status;
}

static qn_status check_instance(check *k, const char *path)
{
    k->has_instance = 1;
    QN_TRY(read_document(k, path, &k->instance));
    if (k->constraint) QN_TRY(keep_refusal(try_instance(k), &k->stopped));
    k->report.failures_max = FAILURES_MAX;
    if (!k->validator) return QN_OK;
    k->is_validated = 1;
    return qn_schema_validate_text(k->validator, k->instance.text.data, k->instance.text.length, &k->report);
}

/* ---- as text ------------------------------------------------------------------------------------------- */

static void put(qn_buf *out, const char *text)
{
    qn_out_put_shown(out, text, strlen(text), 0);
}

static void put_root(qn_buf *out, const char *pointer)
{
    put(out, *pointer ? pointer : "(the whole)");
}

static void print_keywords(const check *k, qn_buf *out)
{
    size_t n = 0, n_shown = 0;
    const char *name;
    for (size_t i = 0; (name = qn_schema_keyword(k->validator, i, &n)); i++) {
        if (!n) continue;
        qn_buf_printf(out, n_shown++ ? ", %s" : "enforced: %s", name);
        if (n > 1) qn_buf_printf(out, " (%zu)", n);
    }
    qn_buf_puts(out, n_shown ? "\n" : "enforced: JSON; the schema asserts nothing\n");
}

static void print_note(qn_buf *out, const char *pointer, const char *message)
{
    qn_buf_puts(out, "annotation: ");
    put_root(out, pointer);
    qn_buf_puts(out, ": ");
    put(out, message);
    qn_buf_putc(out, '\n');
}

static void print_notes(const check *k, qn_buf *out)
{
    size_t n_own = 0, n = 0;
    const qn_schema_note *own = k->validator ? qn_schema_notes(k->validator, &n_own) : NULL;
    const qn_constraint_note *notes = k->constraint ? qn_constraint_notes(k->constraint, &n) : NULL;
    for (size_t i = 0; i < n_own; i++) print_note(out, own[i].pointer, own[i].message);
    for (size_t i = 0; i < n; i++) {
        size_t known = 0;
        while (known < n_own && strcmp(own[known].pointer, notes[i].pointer)) known++;
        if (known == n_own) print_note(out, notes[i].pointer, notes[i].message);
    }
}

static void print_refusal(const check *k, qn_buf *out)
{
    qn_text_place place;
    const qn_buf *text = &k->instance.text;
    qn_text_place_find(text->data, text->length, k->n_taken, &place);
    qn_buf_puts(out, "not allowed: ");
    if (k->n_taken == text->length)
        qn_buf_puts(out, "the text may not end here");
    else
        qn_buf_printf(out, "line %zu column %zu", place.line, place.column);
    qn_buf_puts(out, ", in ");
    put_root(out, place.pointer.data ? place.pointer.data : "");
    qn_buf_puts(out, ", behind ");
    size_t begin = k->n_taken > SHOWN_BYTES ? k->n_taken - SHOWN_BYTES : 0;
    while (begin && begin < k->n_taken && ((unsigned char)text->data[begin] & 0xc0) == 0x80) begin++;
    if (begin) qn_buf_puts(out, "...");
    qn_out_put_shown(out, text->data + begin, k->n_taken - begin, 0);
    qn_buf_putc(out, '\n');
    qn_buf_free(&place.pointer);
}

static void print_instance(const check *k, qn_buf *out)
{
    if (k->stopped) {
        qn_buf_puts(out, "not decided: ");
        put(out, k->stopped);
        qn_buf_putc(out, '\n');
    } else if (k->is_allowed) {
        qn_buf_puts(out, "allowed\n");
    } else if (k->constraint) {
        print_refusal(k, out);
        if (k->is_layout_alone)
            qn_buf_puts(out,
                        "  The value is allowed as json.dumps writes it: the file's white space is not.\n");
        if (k->order.length) {
            qn_buf_puts(out, "  It is allowed with its members in this order: ");
            qn_out_put_shown(out, k->order.data, k->order.length, 400);
            qn_buf_putc(out, '\n');
        }
    }
    if (k->is_validated) qn_buf_puts(out, k->report.is_valid ? "valid\n" : "");
    for (size_t i = 0; i < k->report.n_failures; i++) {
        qn_buf_puts(out, "not valid: ");
        put_root(out, k->report.failures[i].instance);
        qn_buf_putc(out, ' ');
        put(out, k->report.failures[i].message);
        qn_buf_puts(out, " (");
        put(out, k->report.failures[i].schema);
        qn_buf_puts(out, ")\n");
    }
    if (k->report.is_cut) qn_buf_puts(out, "not valid: there is more\n");
}

static qn_status print_text(const check *k)
{
    qn_buf out = {0};
    if (k->validator) qn_buf_printf(&out, "schema: %s\n", qn_schema_draft_name(k->validator));
    if (k->refusal) {
        qn_buf_puts(&out, "refused: ");
        put(&out, k->refusal);
        qn_buf_putc(&out, '\n');
    } else if (k->validator) {
        print_keywords(k, &out);
    }
    if (k->validator_refusal && (!k->refusal || strcmp(k->refusal, k->validator_refusal))) {
        qn_buf_puts(&out, "refused by the validator: ");
        put(&out, k->validator_refusal);
        qn_buf_putc(&out, '\n');
    }
    print_notes(k, &out);
    if (k->has_instance) print_instance(k, &out);
    qn_status status = out.status;
    if (status == QN_OK) status = qn_out_write(out.data ? out.data : "", out.length);
    qn_buf_free(&out);
    return status;
}

/* ---- as JSON ------------------------------------------------------------------------------------------- */

static void put_or_null(qn_buf *out, const char *key, const char *text)
{
    if (text) {
        qn_json_put_text(out, key, text);
    } else {
        qn_json_key(out, key);
        qn_buf_puts(out, "null");
    }
}

static void write_notes(const check *k, qn_buf *out)
{
    size_t n = 0;
    const qn_schema_note *notes = k->validator ? qn_schema_notes(k->validator, &n) : NULL;
    qn_json_key(out, "annotations");
    qn_json_open(out, '[');
    for (size_t i = 0; i < n; i++) {
        qn_json_open(out, '{');
        qn_json_put_text(out, "pointer", notes[i].pointer);
        qn_json_put_text(out, "keyword", notes[i].keyword);
        qn_json_put_text(out, "message", notes[i].message);
        qn_json_close(out, '}');
    }
    qn_json_close(out, ']');
}

static void write_instance(const check *k, qn_buf *out)
{
    qn_text_place place;
    const qn_buf *text = &k->instance.text;
    qn_text_place_find(text->data, text->length, k->n_taken, &place);
    qn_json_key(out, "instance");
    qn_json_open(out, '{');
    qn_json_put_bool(out, "allowed", k->is_allowed);
    if (k->constraint && !k->is_allowed) {
        qn_json_put_int(out, "byte", (int64_t)k->n_taken);
        qn_json_put_int(out, "line", (int64_t)place.line);
        qn_json_put_int(out, "column", (int64_t)place.column);
        qn_json_put_text(out, "pointer", place.pointer.data ? place.pointer.data : "");
        qn_json_put_bool(out, "layout_alone", k->is_layout_alone);
        qn_json_put_bool(out, "order_alone", k->order.length > 0);
    }
    if (k->stopped) qn_json_put_text(out, "stopped", k->stopped);
    qn_json_key(out, "valid");
    qn_buf_puts(out, !k->is_validated ? "null" : k->report.is_valid ? "true" : "false");
    qn_json_key(out, "failures");
    qn_json_open(out, '[');
    for (size_t i = 0; i < k->report.n_failures; i++) {
        const qn_schema_failure *f = &k->report.failures[i];
        qn_json_open(out, '{');
        qn_json_put_text(out, "instance", f->instance);
        qn_json_put_text(out, "schema", f->schema);
        qn_json_put_text(out, "keyword", f->keyword);
        qn_json_put_text(out, "message", f->message);
        qn_json_close(out, '}');
    }
    qn_json_close(out, ']');
    qn_json_close(out, '}');
    qn_buf_free(&place.pointer);
}

static qn_status print_json(const check *k)
{
    qn_buf out = {0};
    qn_json_open(&out, '{');
    put_or_null(&out, "draft", k->validator ? qn_schema_draft_name(k->validator) : NULL);
    put_or_null(&out, "refused", k->refusal ? k->refusal : k->validator_refusal);
    qn_json_key(&out, "enforced");
    qn_json_open(&out, '{');
    size_t n;
    const char *name;
    for (size_t i = 0; k->validator && k->constraint && (name = qn_schema_keyword(k->validator, i, &n)); i++)
        if (n) qn_json_put_int(&out, name, (int64_t)n);
    qn_json_close(&out, '}');
    write_notes(k, &out);
    if (k->has_instance) write_instance(k, &out);
    qn_json_close(&out, '}');
    return qn_out_line(&out);
}

static void clear(check *k)
{
    qn_constraint_release(k->constraint);
    qn_schema_close(k->validator);
    qn_schema_report_clear(&k->report);
    qn_free(k->refusal);
    qn_free(k->validator_refusal);
    qn_free(k->stopped);
    qn_buf_free(&k->order);
    qn_buf_free(&k->schema.text);
    qn_buf_free(&k->instance.text);
    qn_arena_clear(&k->arena);
}

qn_status qn_constrain_check(const char *schema, const char *instance, const qn_tokenizer *t, int json,
                             int *is_good)
{
    check k = {0};
    qn_status status = read_document(&k, schema, &k.schema);
    if (status == QN_OK) status = compile(&k, t);
    if (status == QN_OK && instance) status = check_instance(&k, instance);
    if (status == QN_OK) status = json ? print_json(&k) : print_text(&k);
    *is_good = k.constraint && !k.validator_refusal && (!instance || (k.is_allowed && k.report.is_valid));
    clear(&k);
    return status;
}
