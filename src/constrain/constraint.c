#include "constrain/constraint.h"

#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "constrain/automaton/regex.h"
#include "constrain/constraint_parts.h"
#include "constrain/json/any.h"
#include "constrain/json/schema.h"
#include "constrain/tools.h"

enum {
    SOURCE_BYTES = 1 << 20,
    DEPTH = 64,
    STATES = 50000,
    STEPS = 50000000,
    MEMORY = 64 << 20,
    SCHEMA_STEP = 50, /* steps that one of the compiler of schemas stands for */
    MASKS_SHARE = 4   /* of the memory, for masks */
};

static qn_constraint_limits filled(const qn_constraint_limits *l)
{
    qn_constraint_limits f = l ? *l : (qn_constraint_limits){0};
    if (f.source_bytes_max == 0) f.source_bytes_max = SOURCE_BYTES;
    if (f.depth_max == 0) f.depth_max = DEPTH;
    if (f.states_max == 0) f.states_max = STATES;
    if (f.steps_max == 0) f.steps_max = STEPS;
    if (f.memory_max == 0) f.memory_max = MEMORY;
    return f;
}

/* ---- sources ------------------------------------------------------------------------------------------- */

static qn_status text_node(qn_constraint *c, qn_dfa *d, uint32_t next, uint32_t *out)
{
    if (qn_dfa_is_empty(d)) {
        qn_dfa_release(d);
        return qn_fail(QN_E_UNSUPPORTED, "no text satisfies the constraint");
    }
    qn_graph_node node = {.kind = QN_GRAPH_TEXT, .next = next};
    QN_TRY(qn_program_add_dfa(&c->program, d, &node.what));
    return qn_program_add_graph(&c->program, &node, out);
}

static qn_status compile_choices(qn_constraint *c, const qn_constraint_source *s, uint32_t *out)
{
    json_t *list;
    QN_TRY(qn_json_parse("choices", s->text, s->n, &list));
    size_t n = json_is_array(list) ? json_array_size(list) : 0;
    qn_text_ref *texts = qn_alloc_array(n + 1, sizeof *texts);
    qn_status status = texts ? QN_OK : QN_E_NOMEM;
    if (status == QN_OK && n == 0)
        status = qn_fail(QN_E_FORMAT, "choices: expected a JSON array of strings that is not empty");
    for (size_t i = 0; status == QN_OK && i < n; i++) {
        const json_t *x = json_array_get(list, i);
        if (json_is_string(x))
            texts[i] = (qn_text_ref){json_string_value(x), json_string_length(x)};
        else
            status = qn_fail(QN_E_FORMAT, "choices: item %zu is not a string", i);
    }
    qn_dfa *d = NULL;
    if (status == QN_OK) status = qn_dfa_texts(texts, n, &c->program.dfa_limits, &d);
    if (status == QN_OK) status = text_node(c, d, 0, out);
    qn_free(texts);
    json_decref(list);
    return status;
}

static qn_status compile_regex(qn_constraint *c, const qn_constraint_source *s, uint32_t *out)
{
    qn_dfa *d;
    qn_status status = qn_dfa_regex(s->text, s->n, QN_REGEX_WHOLE, &c->program.dfa_limits, &d);
    if (status != QN_OK) return qn_fail_prefix(status, "regex");
    return text_node(c, d, 0, out);
}

static qn_status value_node(qn_constraint *c, int32_t value, uint32_t *out)
{
    return qn_program_add_graph(&c->program, &(qn_graph_node){.kind = QN_GRAPH_VALUE, .what = value}, out);
}

static qn_status take_note(void *context, const char *pointer, const char *keyword, const char *message)
{
    return qn_constraint_add_note(context, pointer, keyword, message);
}

qn_status qn_constraint_compile_schema(qn_constraint *c, const char *text, size_t n, int32_t *value)
{
    qn_schema_options o = {.depth_max = c->limits.depth_max,
                           .steps_max = c->limits.steps_max / SCHEMA_STEP,
                           .note = take_note,
                           .context = c};
    return qn_schema_compile(&c->program, text, n, &o, value);
}

static qn_status compile_grammar(qn_constraint *c, const qn_constraint_source *s, uint32_t *out)
{
    qn_grammar_limits l = {.bytes_max = c->limits.source_bytes_max,
                           .depth_max = c->limits.depth_max,
                           .dfa = c->program.dfa_limits};
    qn_grammar *g;
    qn_status status = s->kind == QN_CONSTRAIN_GBNF   ? qn_grammar_gbnf(s->text, s->n, &l, &g)
                       : s->kind == QN_CONSTRAIN_EBNF ? qn_grammar_ebnf(s->text, s->n, &l, &g)
                                                      : qn_grammar_lark(s->text, s->n, &l, &g);
    if (status != QN_OK) return qn_fail_prefix(status, "grammar");
    qn_grammar_run_limits r = {.bytes_max = c->limits.memory_max};
    status = qn_grammar_run_new(g, &r, &c->program.grammar);
    qn_grammar_release(g);
    if (status != QN_OK) return status;
    return qn_program_add_graph(&c->program, &(qn_graph_node){.kind = QN_GRAPH_GRAMMAR}, out);
}

static qn_status compile_source(qn_constraint *c, const qn_constraint_source *s, uint32_t *out)
{
    int32_t value;
    if (s->n > c->limits.source_bytes_max)
        return qn_fail(QN_E_UNSUPPORTED, "the constraint's text has %zu bytes; at most %zu are taken", s->n,
                       c->limits.source_bytes_max);
    switch (s->kind) {
    case QN_CONSTRAIN_JSON_SCHEMA:
        QN_TRY(qn_constraint_compile_schema(c, s->text, s->n, &value));
        return value_node(c, value, out);
    case QN_CONSTRAIN_JSON_OBJECT:
        QN_TRY(qn_any_object(&c->program, &value));
        return value_node(c, value, out);
    case QN_CONSTRAIN_REGEX:
        return compile_regex(c, s, out);
    case QN_CONSTRAIN_CHOICES:
        return compile_choices(c, s, out);
    case QN_CONSTRAIN_TOOLS:
        return qn_tools_compile(c, s, out);
    default:
        return compile_grammar(c, s, out);
    }
}

/* A mark that is a special token is asked for as one. */
static const char *mark_text(qn_constraint *c, const char *text, size_t *n)
{
    const int32_t id = qn_tokenizer_find(c->v->tokenizer, text, *n);
    return id >= 0 && qn_tokenizer_is_special(c->v->tokenizer, id) ? qn_vocabulary_text(c->v, id, n) : text;
}

static qn_status put_choice(qn_constraint *c, uint32_t next, uint32_t other, uint32_t *out)
{
    qn_graph_node node = {.kind = QN_GRAPH_CHOICE, .next = next, .other = other};
    return qn_program_add_graph(&c->program, &node, out);
}

static qn_status put_mark(qn_constraint *c, const char *text, size_t n, uint32_t next, uint32_t *out)
{
    qn_graph_node node = {.kind = QN_GRAPH_MARK, .next = next};
    text = mark_text(c, text, &n);
    QN_TRY(qn_program_add_marker(&c->program, text, n, &node.what));
    return qn_program_add_graph(&c->program, &node, out);
}

/* [opens] free text, after, and an empty line or none before the form. */
static qn_status put_after(qn_constraint *c, const qn_constraint_source *s, uint32_t form, uint32_t *out)
{
    qn_graph_node node = {.kind = QN_GRAPH_FREE};
    uint32_t spaced;
    QN_TRY(put_mark(c, "\n\n", 2, form, &spaced));
    QN_TRY(put_choice(c, form, spaced, &node.next));
    qn_scan_mark mark = {.n = s->n_after};
    mark.text = mark_text(c, s->after, &mark.n);
    QN_TRY(qn_program_add_scan(&c->program, &mark, 1, 0, &node.what));
    QN_TRY(qn_program_add_graph(&c->program, &node, out));
    if (s->opens) QN_TRY(put_mark(c, s->opens, s->n_opens, *out, out));
    return s->may_skip_after ? put_choice(c, form, *out, out) : QN_OK;
}

static qn_status compile(qn_constraint *c, const qn_constraint_source *s)
{
    qn_dfa_limits l = {.states_max = c->limits.states_max,
                       .steps_max = c->limits.steps_max,
                       .depth_max = c->limits.depth_max};
    QN_TRY(qn_program_init(&c->program, &l));
    uint32_t node;
    QN_TRY(compile_source(c, s, &node));
    if (s->messages) QN_TRY(qn_tools_put_form(c, s->messages, node, &node));
    if (s->after) QN_TRY(put_after(c, s, node, &node));
    c->program.start = node;
    QN_TRY(qn_machine_init(&c->machine, &c->program));
    c->machine.steps_max = c->machine.n_steps = c->limits.steps_max;
    QN_TRY(qn_masks_init(&c->masks, c->v, &c->machine, c->limits.memory_max / MASKS_SHARE));
    c->start = qn_machine_start(&c->machine);
    return c->machine.status;
}

/* A copy without its length is a C string, too. */
static qn_status copy_text(qn_constraint *c, const char **text, size_t n)
{
    if (!*text) return QN_OK;
    *text = qn_arena_strndup(&c->arena, *text, n);
    return *text ? QN_OK : QN_E_NOMEM;
}

static qn_status copy_source(qn_constraint *c, const qn_constraint_source *s)
{
    c->source = *s;
    QN_TRY(copy_text(c, &c->source.text, s->n));
    QN_TRY(copy_text(c, &c->source.after, s->n_after));
    QN_TRY(copy_text(c, &c->source.opens, s->n_opens));
    return copy_text(c, &c->source.tools.name, s->tools.name ? strlen(s->tools.name) : 0);
}

/* ---- constraints --------------------------------------------------------------------------------------- */

qn_status qn_constraint_new(qn_vocabulary *v, const qn_constraint_source *source,
                            const qn_constraint_limits *limits, qn_constraint **out)
{
    qn_constraint *c = qn_calloc(1, sizeof *c);
    if (!c) return QN_E_NOMEM;
    atomic_init(&c->n_references, 1);
    c->v = qn_vocabulary_retain(v);
    c->limits = filled(limits);
    c->has_lock = pthread_mutex_init(&c->lock, NULL) == 0;
    qn_status status = copy_source(c, source);
    if (status == QN_OK)
        status = c->has_lock ? compile(c, source) : qn_fail(QN_E_NOMEM, "no lock could be made");
    if (status != QN_OK) {
        qn_constraint_release(c);
        return status;
    }
    *out = c;
    return QN_OK;
}

qn_constraint *qn_constraint_retain(qn_constraint *c)
{
    if (c) atomic_fetch_add_explicit(&c->n_references, 1, memory_order_relaxed);
    return c;
}

void qn_constraint_release(qn_constraint *c)
{
    if (!c || atomic_fetch_sub_explicit(&c->n_references, 1, memory_order_acq_rel) != 1) return;
    qn_schema_close(c->validator);
    qn_masks_clear(&c->masks);
    qn_machine_clear(&c->machine);
    qn_program_clear(&c->program);
    if (c->has_lock) pthread_mutex_destroy(&c->lock);
    qn_vocabulary_release(c->v);
    qn_free(c->notes);
    qn_arena_clear(&c->arena);
    qn_free(c);
}

size_t qn_constraint_bytes(qn_constraint *c)
{
    pthread_mutex_lock(&c->lock);
    size_t n = sizeof *c + qn_program_held_bytes(&c->program) + qn_machine_bytes(&c->machine) +
               qn_masks_bytes(&c->masks) + c->arena.total_bytes +
               (c->validator ? qn_schema_bytes(c->validator) : 0);
    pthread_mutex_unlock(&c->lock);
    return n;
}

qn_status qn_constraint_get_validator(qn_constraint *c, const qn_schema **out)
{
    *out = NULL;
    if (c->source.kind != QN_CONSTRAIN_JSON_SCHEMA) return QN_OK;
    pthread_mutex_lock(&c->lock);
    int is_known = c->has_validator;
    pthread_mutex_unlock(&c->lock);
    qn_schema *opened = NULL;
    if (!is_known) { /* without the lock, which matchers wait for */
        const qn_schema_limits limits = {.steps_max = QN_CHECK_STEPS};
        if (qn_schema_open(c->source.text, c->source.n, &limits, &opened) == QN_E_NOMEM) return QN_E_NOMEM;
    }
    pthread_mutex_lock(&c->lock);
    if (!c->has_validator) {
        c->validator = opened;
        c->has_validator = 1;
        opened = NULL;
    }
    *out = c->validator;
    pthread_mutex_unlock(&c->lock);
    qn_schema_close(opened);
    return QN_OK;
}

const qn_constraint_source *qn_constraint_get_source(const qn_constraint *c)
{
    return &c->source;
}

size_t qn_constraint_find_form(const qn_constraint_source *source, const char *text, size_t n)
{
    if (source->messages) return qn_tools_find_form(source->messages, text, n);
    const char *mark = source->after ? memmem(text, n, source->after, source->n_after) : NULL;
    return mark ? (size_t)(mark - text) + source->n_after : 0;
}

qn_vocabulary *qn_constraint_get_vocabulary(const qn_constraint *c)
{
    return c->v;
}

const qn_constraint_note *qn_constraint_notes(const qn_constraint *c, size_t *n)
{
    *n = c->n_notes;
    return c->notes;
}

qn_status qn_constraint_add_note(qn_constraint *c, const char *pointer, const char *keyword,
                                 const char *message)
{
    enum { NOTES_MAX = 1000 };
    if (c->n_notes >= NOTES_MAX) return QN_OK;
    if (c->n_notes == c->notes_room) {
        size_t more = c->notes_room ? 2 * c->notes_room : 8;
        qn_constraint_note *p = qn_realloc(c->notes, more * sizeof *p);
        if (!p) return QN_E_NOMEM;
        c->notes = p;
        c->notes_room = more;
    }
    qn_constraint_note n = {.pointer = qn_arena_strndup(&c->arena, pointer, strlen(pointer)),
                            .keyword = qn_arena_strndup(&c->arena, keyword, strlen(keyword)),
                            .message = qn_arena_strndup(&c->arena, message, strlen(message))};
    if (!n.pointer || !n.keyword || !n.message) return QN_E_NOMEM;
    c->notes[c->n_notes++] = n;
    return QN_OK;
}
