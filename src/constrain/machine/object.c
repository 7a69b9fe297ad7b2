/* Objects: which members may come, and their keys. */
#include <string.h>

#include "base/utf8.h"
#include "constrain/machine/machine.h"

static const qn_object_rule *rule_of(qn_machine *m, const qn_frame *f)
{
    const qn_object_rule *o = NULL;
    if (m->status == QN_OK) m->status = qn_program_prepare(m->program, (int32_t)f->a, &o);
    return o;
}

/* ---- members ------------------------------------------------------------------------------------------- */

/* Of the floating members: those that were not written, all or the required ones. */
static int64_t floating_left(const qn_object_rule *o, const qn_frame *f, int required)
{
    int64_t n = 0;
    for (uint32_t i = o->n_ordered; i < o->n_members; i++)
        if (!(f->e & o->members[i].marks) &&
            (required ? o->members[i].is_required : o->members[i].is_possible))
            n++;
    return n;
}

static int has_room(const qn_object_rule *o, int64_t count, int64_t required, int64_t possible)
{
    if (o->max >= 0 && count + required > o->max) return 0;
    return o->n_classes > 0 || count + possible >= o->min;
}

/* 1: all that is due and not met by `met` can be met by what comes behind member b. */
static int can_meet(const qn_object_rule *o, uint32_t b, uint32_t met)
{
    uint32_t left = o->due & ~met;
    if (!left) return 1;
    left &= ~(o->meets_from[b] | o->meets_by_keys);
    for (uint32_t i = o->n_ordered; left && i < o->n_members; i++) {
        const qn_member *x = &o->members[i];
        if ((met & x->marks) || !x->is_possible) continue;
        left &= ~(x->meets | (x->is_marked_possible ? o->marked_bit : 0));
    }
    return left == 0;
}

/* The bits of an object behind member i, with its value or its marked value. 0: it may not come so. */
static int member_leads_on(const qn_object_rule *o, const qn_frame *f, uint32_t i, int marked, uint32_t *met)
{
    const qn_member *x = &o->members[i];
    if (marked && !x->is_marked_possible) return 0;
    *met = f->e | x->marks | x->meets | (marked ? o->marked_bit : 0);
    return can_meet(o, i < o->n_ordered ? i + 1 : o->n_ordered, *met);
}

static int class_leads_on(const qn_object_rule *o, const qn_frame *f, uint32_t i, int marked, uint32_t *met)
{
    const qn_key_class *k = &o->classes[i];
    if (marked && !k->is_marked_possible) return 0;
    *met = f->e | k->meets | (marked ? o->marked_bit : 0);
    return can_meet(o, o->n_ordered, *met);
}

static int may_name(const qn_object_rule *o, const qn_frame *f, uint32_t i)
{
    const qn_member *x = &o->members[i];
    uint32_t met;
    if (!x->is_possible) return 0;
    if (o->due && !member_leads_on(o, f, i, 0, &met) && !member_leads_on(o, f, i, 1, &met)) return 0;
    int64_t required = floating_left(o, f, 1), possible = floating_left(o, f, 0);
    if (i < o->n_ordered) {
        if (i < f->b || o->required_from[f->b] != o->required_from[i]) return 0;
        return has_room(o, f->c + 1, required + o->required_from[i + 1], possible + o->possible_from[i + 1]);
    }
    if (o->required_from[f->b] || (f->e & x->marks)) return 0;
    return has_room(o, f->c + 1, required - x->is_required, possible - 1);
}

static int may_class(const qn_object_rule *o, const qn_frame *f, uint32_t i)
{
    uint32_t met;
    return !o->due || class_leads_on(o, f, i, 0, &met) || class_leads_on(o, f, i, 1, &met);
}

/* 1: some other key of a class is left that is none so far. */
static int some_is_left(qn_machine *m, const qn_object_rule *o, const qn_frame *f)
{
    for (uint32_t i = 0; i < o->n_classes; i++)
        if (o->classes[i].dfa == QN_NONE || qn_texts_never_end(m, o->classes[i].dfa)) return 1;
    if (f->flags & QN_FLAG_UNRECORDED) {
        m->is_suspect = 1;
        return 0;
    }
    int was_loose = m->is_loose, left = 0;
    qn_frame key = {.kind = QN_FRAME_OTHER_KEY, .depth = f->depth, .parent = qn_machine_stack(m, f)};
    m->is_loose = 0;
    for (uint32_t i = 0; i < o->n_classes && !left && m->status == QN_OK; i++) {
        key.a = i;
        key.b = (uint32_t)m->program->dfas[o->classes[i].dfa]->start;
        left = qn_other_key_alive(m, &key);
    }
    m->is_loose = was_loose;
    return left;
}

static int may_other(qn_machine *m, const qn_object_rule *o, const qn_frame *f)
{
    if (o->n_classes == 0 || o->required_from[f->b]) return 0;
    if (o->max >= 0 && f->c + 1 + floating_left(o, f, 1) > o->max) return 0;
    uint32_t i = 0;
    while (i < o->n_classes && !may_class(o, f, i)) i++;
    if (i == o->n_classes) return 0;
    return some_is_left(m, o, f);
}

static int may_go_on(qn_machine *m, const qn_object_rule *o, const qn_frame *f)
{
    if (may_other(m, o, f)) return 1;
    for (uint32_t i = f->b; i < o->n_members; i++) {
        if (may_name(o, f, i)) return 1;
        if (i < o->n_ordered && o->members[i].is_required) return 0;
    }
    return 0;
}

static int may_close(const qn_object_rule *o, const qn_frame *f)
{
    if (o->due & ~f->e) return 0;
    return o->required_from[f->b] == 0 && floating_left(o, f, 1) == 0 && f->c >= o->min;
}

/* Counts beyond what bounds ask for are one. */
static uint32_t count_more(const qn_object_rule *o, uint32_t count)
{
    int64_t cap = o->max >= 0 ? o->max : o->min;
    return count < cap ? count + 1 : count;
}

/* ---- keys ---------------------------------------------------------------------------------------------- */

int qn_named_key_closes(qn_machine *m, const qn_frame *f)
{
    const qn_frame *object = &m->frames[f->parent];
    const qn_object_rule *o = rule_of(m, object);
    if (!o || f->a >= f->b) return 0;
    uint32_t i = o->sorted[f->a];
    return o->members[i].n == f->d && may_name(o, object, i);
}

int qn_named_key_alive(qn_machine *m, const qn_frame *f)
{
    const qn_frame *object = &m->frames[f->parent];
    const qn_object_rule *o = rule_of(m, object);
    if (!o) return 0;
    for (uint32_t k = f->a; k < f->b; k++) {
        uint32_t i = o->sorted[k];
        if (!may_name(o, object, i)) continue;
        if (f->c <= 3) return 1;
        /* Inside an escape the next character must be one that the escape can become. */
        qn_escape_range ranges[2];
        int n = qn_escape_ranges(f->c, ranges);
        uint32_t c;
        if (o->members[i].n == f->d) continue;
        qn_utf8_decode(o->members[i].name + f->d, o->members[i].n - f->d, &c);
        for (int r = 0; r < n; r++)
            if (c >= ranges[r].begin && c <= ranges[r].end) return 1;
    }
    return 0;
}

static void begin_key(qn_machine *m, const qn_object_rule *o, const qn_frame *f)
{
    qn_frame object = *f;
    object.phase = QN_PHASE_COMMA;
    object.space = QN_SPACE_NONE;
    qn_frame key = {.kind = QN_FRAME_NAMED_KEY, .depth = f->depth, .b = o->n_members};
    key.parent = qn_machine_stack(m, &object);
    if (m->status != QN_OK) return;
    if (qn_named_key_alive(m, &key)) qn_step_give(m, qn_machine_stack(m, &key));
    if (!may_other(m, o, f)) return;
    key = (qn_frame){.kind = QN_FRAME_OTHER_KEY, .depth = f->depth, .parent = key.parent};
    for (uint32_t i = 0; i < o->n_classes; i++) {
        int32_t dfa = o->classes[i].dfa;
        if (!may_class(o, f, i)) continue;
        key.a = i;
        key.b = (uint32_t)m->program->dfas[dfa == QN_NONE ? m->program->all : dfa]->start;
        if (qn_other_key_begins(m, &key)) qn_step_give(m, qn_machine_stack(m, &key));
    }
}

void qn_close_key(qn_machine *m, const qn_frame *f)
{
    qn_frame object = m->frames[f->parent];
    const qn_object_rule *o = rule_of(m, &object);
    if (!o) return;
    uint32_t i = f->a;
    int is_named = f->kind == QN_FRAME_NAMED_KEY;
    qn_frame to = object;
    if (is_named) {
        i = o->sorted[f->a];
        to.b = i < o->n_ordered ? i + 1 : o->n_ordered;
    } else {
        if (m->is_loose && object.flags & QN_FLAG_UNRECORDED) {
            m->is_suspect = 1;
            return;
        }
        to.b = o->n_ordered;
        if (m->is_loose)
            to.flags |= QN_FLAG_UNRECORDED;
        else
            to.d = qn_machine_link(m, object.d, f->d);
    }
    to.c = count_more(o, object.c);
    to.phase = QN_PHASE_AFTER;
    for (int marked = 0; marked < 2 && m->status == QN_OK; marked++) {
        if (!(is_named ? member_leads_on : class_leads_on)(o, &object, i, marked, &to.e)) continue;
        qn_frame colon = {.kind = QN_FRAME_COLON, .depth = object.depth, .parent = qn_machine_stack(m, &to)};
        int32_t value = is_named ? (marked ? o->members[i].marked : o->members[i].value)
                                 : (marked ? o->classes[i].marked : o->classes[i].value);
        colon.a = (uint32_t)value;
        uint32_t stack = qn_machine_stack(m, &colon);
        if (stack) qn_step_give(m, stack);
    }
}

/* ---- steps --------------------------------------------------------------------------------------------- */

void qn_step_object(qn_machine *m, const qn_frame *f, uint8_t byte)
{
    const qn_object_rule *o = rule_of(m, f);
    if (!o) return;
    switch (byte) {
    case '"':
        if (f->phase != QN_PHASE_AFTER) begin_key(m, o, f);
        return;
    case ',':
        if (f->phase == QN_PHASE_AFTER && f->space == QN_SPACE_NONE && may_go_on(m, o, f)) {
            qn_frame to = *f;
            to.phase = QN_PHASE_COMMA;
            qn_step_give(m, qn_machine_stack(m, &to));
        }
        return;
    case '}':
        if (f->phase != QN_PHASE_COMMA && may_close(o, f)) qn_step_give(m, f->parent);
        return;
    default:
        /* Space behind a value comes before the closing bracket alone. */
        if (f->phase != QN_PHASE_AFTER || may_close(o, f)) qn_step_space(m, f, byte);
    }
}

/* ---- forced text --------------------------------------------------------------------------------------- */

int qn_object_byte(qn_machine *m, const qn_frame *f, int has_lines)
{
    const qn_object_rule *o = rule_of(m, f);
    if (!o) return -1;
    int closes = may_close(o, f) && f->phase != QN_PHASE_COMMA, goes_on = may_go_on(m, o, f);
    if (closes == goes_on) return -1;
    /* A comma comes behind a value without space before it. */
    if (goes_on && f->phase == QN_PHASE_AFTER) return f->space == QN_SPACE_NONE ? ',' : -1;
    return has_lines ? -1 : closes ? '}' : '"';
}

int qn_named_key_byte(qn_machine *m, const qn_frame *f)
{
    const qn_frame *object = &m->frames[f->parent];
    const qn_object_rule *o = rule_of(m, object);
    int byte = -1;
    if (!o || f->c > 3) return -1;
    for (uint32_t k = f->a; k < f->b; k++) {
        const qn_member *x = &o->members[o->sorted[k]];
        if (!may_name(o, object, o->sorted[k])) continue;
        int next = x->n == f->d ? '"' : (uint8_t)x->name[f->d];
        if (x->n > f->d && (next < 0x20 || next == '"' || next == '\\')) return -1;
        if (byte >= 0 && byte != next) return -1;
        byte = next;
    }
    return byte;
}
