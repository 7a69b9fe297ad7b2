#include "constrain/json/any.h"

#include <string.h>

#include "base/mem.h"
#include "constrain/automaton/regex.h"

const char qn_readable_numbers[] =
    "-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE]\\+?0*[0-9]{1,2})?|"
    "-?[0-9](\\.[0-9]+)?[eE]\\+?0*([12][0-9]{2}|30[0-7])|"
    "-?1(\\.[0-6][0-9]*)?[eE]\\+?0*308|"
    "-?(0|[1-9][0-9]*)(\\.[0-9]+)?[eE]-0*([0-9]{1,2}|[12][0-9]{2}|3[01][0-9]|32[0-3])";

/* Strings, numbers and literals of any value are set; objects and arrays hold any values again. */
static qn_status fill(qn_program *p, int32_t value)
{
    qn_dfa *d;
    int32_t number, string, object, array;
    QN_TRY(
        qn_dfa_regex(qn_readable_numbers, strlen(qn_readable_numbers), QN_REGEX_WHOLE, &p->dfa_limits, &d));
    QN_TRY(qn_program_add_dfa(p, d, &number));
    QN_TRY(qn_program_add_string(p, &(qn_string_rule){.dfa = p->all, .max = -1}, &string));
    qn_object_rule o = {
        .classes = qn_arena_calloc(&p->arena, 1, sizeof *o.classes), .n_classes = 1, .max = -1};
    qn_array_rule a = {.items = qn_program_numbers(p, &value, 1), .max = -1, .counted_max = -1};
    if (!o.classes || !a.items) return QN_E_NOMEM;
    o.classes[0] = (qn_key_class){.dfa = QN_NONE, .value = value, .marked = QN_NONE};
    QN_TRY(qn_program_add_object(p, &o, &object));
    QN_TRY(qn_program_add_array(p, &a, &array));
    qn_value v = {.is_expanded = 1, .possible = 1, .literals = (1 << QN_LITERAL_COUNT) - 1, .number = number};
    v.strings = qn_program_numbers(p, &string, 1);
    v.objects = qn_program_numbers(p, &object, 1);
    v.arrays = qn_program_numbers(p, &array, 1);
    if (!v.strings || !v.objects || !v.arrays) return QN_E_NOMEM;
    v.n_strings = v.n_objects = v.n_arrays = 1;
    p->values[value] = v;
    p->any = value;
    return QN_OK;
}

qn_status qn_any_value(qn_program *p, int32_t *out)
{
    if (p->any == QN_NONE) {
        int32_t value;
        QN_TRY(qn_program_add_value(p, &value));
        QN_TRY(fill(p, value));
    }
    *out = p->any;
    return QN_OK;
}

qn_status qn_any_object(qn_program *p, int32_t *out)
{
    int32_t any, value;
    QN_TRY(qn_any_value(p, &any));
    QN_TRY(qn_program_add_value(p, &value));
    qn_value v = {.is_expanded = 1, .possible = 1, .number = QN_NONE};
    v.objects = p->values[any].objects;
    v.n_objects = 1;
    p->values[value] = v;
    *out = value;
    return QN_OK;
}
