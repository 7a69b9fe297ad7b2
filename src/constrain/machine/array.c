/* Arrays: which items may come. */
#include <stdio.h>
#include <string.h>

#include "constrain/machine/machine.h"

static const qn_array_rule *rule_of(qn_machine *m, const qn_frame *f)
{
    const qn_array_rule *a = NULL;
    if (m->status == QN_OK) m->status = qn_program_prepare_array(m->program, (int32_t)f->a, &a);
    return a;
}

static uint32_t slot_of(const qn_array_rule *a, const qn_frame *f)
{
    return f->b < a->n_prefix ? f->b : a->n_prefix;
}

/* Items that may still come and count, behind the first n. */
static int64_t countable_behind(const qn_array_rule *a, int64_t n)
{
    int64_t in_prefix = n < a->n_prefix ? a->counted_from[n] : 0;
    if (a->counted[a->n_prefix] == QN_NONE) return in_prefix;
    if (a->max < 0) return INT64_MAX / 2;
    int64_t behind = a->max - (n > a->n_prefix ? n : a->n_prefix);
    return in_prefix + (behind > 0 ? behind : 0);
}

/* Behind n items that met a set: 1: the others can be met. */
static int may_meet(const qn_array_rule *a, int64_t n, uint32_t met)
{
    int64_t slot = n < a->n_prefix ? n : a->n_prefix;
    uint32_t left = a->due_from[slot * (a->due + 1) + (a->due & ~met)];
    return left < UINT32_MAX && (a->max < 0 || n + left <= a->max);
}

/* counted: with due, the set that was met. */
static int may_count(const qn_array_rule *a, int64_t n, int64_t counted)
{
    if (a->due) return may_meet(a, n, (uint32_t)counted);
    return !a->counted || (counted + countable_behind(a, n) >= a->counted_min &&
                           (a->counted_max < 0 || counted <= a->counted_max));
}

/* 1: a string, literal or number of the value can be written above the array that is none of its items. */
static int some_is_alive(qn_machine *m, const qn_value *value, int32_t numbers, uint32_t array,
                         uint16_t depth)
{
    qn_frame item = {.kind = QN_FRAME_ITEM, .depth = depth, .parent = array, .d = qn_machine_link(m, 0, '"')};
    for (uint32_t i = 0; i < value->n_strings && m->status == QN_OK; i++) {
        item.a = (uint32_t)value->strings[i];
        item.b = (uint32_t)m->program->dfas[m->program->strings[item.a].dfa]->start;
        if (qn_other_key_alive(m, &item)) return 1;
    }
    for (int i = 0; i < QN_LITERAL_COUNT && m->status == QN_OK; i++)
        if ((value->literals >> i & 1) && qn_literal_item(m, array, (qn_literal)i)) return 1;
    if (numbers == QN_NONE || m->status != QN_OK) return 0;
    item.kind = QN_FRAME_NUMBER;
    item.a = (uint32_t)numbers;
    item.b = (uint32_t)m->program->dfas[numbers]->start;
    item.d = 0;
    return qn_other_key_alive(m, &item);
}

/* Of a unique array: 1: some item is left that is none so far. */
static int some_is_left(qn_machine *m, const qn_array_rule *a, const qn_frame *f)
{
    if (!a->is_unique || f->d == 0) return 1;
    const qn_value *v;
    if (m->status == QN_OK) m->status = qn_program_value(m->program, a->items[slot_of(a, f)], &v);
    if (m->status != QN_OK) return 0;
    qn_value value = *v;
    int32_t numbers = value.number == QN_NONE ? QN_NONE : a->unique_numbers;
    /* Only few texts are ever used up. */
    if (numbers != QN_NONE && qn_texts_never_end(m, numbers)) return 1;
    for (uint32_t i = 0; i < value.n_strings; i++)
        if (qn_texts_never_end(m, m->program->strings[value.strings[i]].dfa)) return 1;
    if (f->flags & QN_FLAG_UNRECORDED) {
        m->is_suspect = 1;
        return 0;
    }
    int was_loose = m->is_loose;
    m->is_loose = 0;
    int left = some_is_alive(m, &value, numbers, qn_machine_stack(m, f), f->depth);
    m->is_loose = was_loose;
    return left;
}

static int may_plain(qn_machine *m, const qn_array_rule *a, const qn_frame *f)
{
    if (a->max >= 0 && f->b >= a->max) return 0;
    if (a->items[slot_of(a, f)] == QN_NONE || !may_count(a, (int64_t)f->b + 1, f->c)) return 0;
    return some_is_left(m, a, f);
}

static int may_counted(const qn_array_rule *a, const qn_frame *f)
{
    if (!a->counted || (a->max >= 0 && f->b >= a->max)) return 0;
    return a->counted[slot_of(a, f)] != QN_NONE && may_count(a, (int64_t)f->b + 1, (int64_t)f->c + 1);
}

static int may_meeting(const qn_array_rule *a, const qn_frame *f, uint32_t set)
{
    if ((a->max >= 0 && f->b >= a->max) || (set & f->c)) return 0;
    return a->meeting[set][slot_of(a, f)] != QN_NONE && may_meet(a, (int64_t)f->b + 1, f->c | set);
}

static int may_meet_some(const qn_array_rule *a, const qn_frame *f)
{
    for (uint32_t set = 1; set <= a->due; set++)
        if (may_meeting(a, f, set)) return 1;
    return 0;
}

static int may_close(const qn_array_rule *a, const qn_frame *f)
{
    if (a->due & ~f->c) return 0;
    return f->b >= a->min && (!a->counted || f->c >= a->counted_min);
}

/* met: the set of due bits that the item meets. */
static void begin_item(qn_machine *m, const qn_array_rule *a, const qn_frame *f, int counts, uint32_t met,
                       uint8_t byte)
{
    qn_frame to = *f;
    int64_t cap = a->max >= 0 ? a->max : a->min > a->n_prefix ? a->min : a->n_prefix;
    if (to.b < cap) to.b++;
    cap = a->counted_max >= 0 ? a->counted_max : a->counted_min;
    if (counts && to.c < cap) to.c++;
    to.c |= met;
    to.phase = QN_PHASE_AFTER;
    to.space = QN_SPACE_NONE;
    qn_frame value = {.kind = QN_FRAME_VALUE, .depth = f->depth};
    value.a = (uint32_t)(met ? a->meeting[met] : counts ? a->counted : a->items)[slot_of(a, f)];
    if (a->is_unique) value.flags = QN_FLAG_UNIQUE;
    value.parent = qn_machine_stack(m, &to);
    if (value.parent) qn_step_value(m, &value, byte);
}

void qn_close_item(qn_machine *m, const qn_frame *f)
{
    qn_frame array = m->frames[f->parent];
    if (m->is_loose) {
        if (array.flags & QN_FLAG_UNRECORDED) {
            m->is_suspect = 1;
            return;
        }
        array.flags |= QN_FLAG_UNRECORDED;
    } else {
        array.d = qn_machine_link(m, array.d, f->d);
    }
    qn_step_give(m, qn_machine_stack(m, &array));
}

/* The array behind an item, among whose texts so far it is. */
static void add_text(qn_machine *m, qn_frame *array, const char *text)
{
    uint32_t link = 0;
    for (; *text; text++) link = qn_machine_link(m, link, (uint8_t)*text);
    array->d = qn_machine_link(m, array->d, link);
}

uint32_t qn_literal_item(qn_machine *m, uint32_t array, qn_literal which)
{
    qn_frame to = m->frames[array], item = {.kind = QN_FRAME_NUMBER, .parent = array};
    for (const char *text = qn_literal_text(which); *text; text++)
        item.d = qn_machine_link(m, item.d, (uint8_t)*text);
    if (m->status != QN_OK || qn_other_key_is_taken(m, &item)) return 0;
    add_text(m, &to, qn_literal_text(which));
    return qn_machine_stack(m, &to);
}

/* Numbers are written without exponents, and with no zero at the end of a fraction but ".0". So a number has two
 * spellings (zero has four), and all of them are taken with one. */
static uint32_t number_item(qn_machine *m, const qn_frame *f)
{
    qn_frame array = m->frames[f->parent];
    char text[512];
    size_t n = 0, at = sizeof text;
    for (uint32_t i = f->d; i; i = m->links[i].parent) n++;
    if (n + 8 > sizeof text) return 0;
    text[--at] = 0;
    for (uint32_t i = f->d; i; i = m->links[i].parent) text[--at] = (char)m->links[i].value;
    char *number = text + at;
    if (n > 2 && strcmp(number + n - 2, ".0") == 0) number[n - 2] = 0;
    if (strcmp(number, "0") == 0 || strcmp(number, "-0") == 0) {
        add_text(m, &array, "0");
        add_text(m, &array, "0.0");
        add_text(m, &array, "-0");
        add_text(m, &array, "-0.0");
    } else {
        add_text(m, &array, number);
        if (!strchr(number, '.')) {
            char whole[sizeof text + 2];
            snprintf(whole, sizeof whole, "%s.0", number);
            add_text(m, &array, whole);
        }
    }
    return qn_machine_stack(m, &array);
}

void qn_step_number_item(qn_machine *m, const qn_frame *f, uint8_t byte)
{
    enum { BYTES_MAX = 500 };
    const qn_dfa *d = m->program->dfas[f->a];
    qn_frame to = *f;
    to.b = (uint32_t)qn_dfa_step(d, (int32_t)f->b, byte);
    to.d = qn_machine_link(m, f->d, byte);
    to.e++;
    /* Masks record numbers, too. */
    int was_loose = m->is_loose;
    m->is_loose = 0;
    int alive = to.b && to.e < BYTES_MAX && m->status == QN_OK && qn_other_key_alive(m, &to);
    m->is_loose = was_loose;
    if (alive) qn_step_give(m, qn_machine_stack(m, &to));
    if (!f->b || !(d->flags[f->b] & QN_DFA_ACCEPTS) || qn_other_key_is_taken(m, f)) return;
    uint32_t stack = number_item(m, f);
    if (stack) qn_step_stack(m, stack, byte);
}

void qn_step_array(qn_machine *m, const qn_frame *f, uint8_t byte)
{
    const qn_array_rule *a = rule_of(m, f);
    if (!a) return;
    switch (byte) {
    case ',':
        if (f->phase == QN_PHASE_AFTER && f->space == QN_SPACE_NONE &&
            (may_plain(m, a, f) || may_counted(a, f) || may_meet_some(a, f))) {
            qn_frame to = *f;
            to.phase = QN_PHASE_COMMA;
            qn_step_give(m, qn_machine_stack(m, &to));
        }
        return;
    case ']':
        if (f->phase != QN_PHASE_COMMA && may_close(a, f)) qn_step_give(m, f->parent);
        return;
    case ' ':
    case '\n':
        if (f->phase != QN_PHASE_AFTER || may_close(a, f)) qn_step_space(m, f, byte);
        return;
    default:
        if (f->phase == QN_PHASE_AFTER) return;
        /* The rule may move while values are expanded. */
        if (may_plain(m, a, f)) begin_item(m, a, f, 0, 0, byte);
        a = rule_of(m, f);
        if (a && may_counted(a, f)) begin_item(m, a, f, 1, 0, byte);
        for (uint32_t set = 1; a && set <= a->due; set++, a = rule_of(m, f))
            if (may_meeting(a, f, set)) begin_item(m, a, f, 0, set, byte);
    }
}

int qn_array_byte(qn_machine *m, const qn_frame *f, int has_lines, int32_t *value)
{
    const qn_array_rule *a = rule_of(m, f);
    *value = QN_NONE;
    if (!a) return -1;
    int closes = may_close(a, f) && f->phase != QN_PHASE_COMMA, plain = may_plain(m, a, f),
        counted = may_counted(a, f), meets = may_meet_some(a, f), goes_on = plain || counted || meets;
    if (closes == goes_on) return -1;
    if (goes_on && f->phase == QN_PHASE_AFTER) return f->space == QN_SPACE_NONE ? ',' : -1;
    if (has_lines) return -1;
    if (closes) return ']';
    if ((plain && counted) || meets) return -1;
    *value = (plain ? a->items : a->counted)[slot_of(a, f)];
    return -1;
}
