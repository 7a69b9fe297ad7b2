#include "constrain/json/any.h"

#include "base/mem.h"
#include "constrain/automaton/dfa.h"

/* The numbers that a double holds. A machine may write others with an exponent, and readers make infinity or 0 of
 * 1e999 and 1e-999, which no bound of a schema means. The table is the minimal automaton of the pattern of
 * any_test.c: compiling that takes five times as long. */
enum { NUMBER_STATES = 33, NUMBER_CLASSES = 13 };
static const uint8_t number_next[NUMBER_STATES][NUMBER_CLASSES] = {
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},           {0, 0, 2, 0, 3, 4, 5, 5, 5, 5, 5, 5, 0},
    {0, 0, 0, 0, 3, 4, 5, 5, 5, 5, 5, 5, 0},           {0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 7},
    {0, 0, 0, 8, 9, 9, 9, 9, 9, 9, 9, 9, 10},          {0, 0, 0, 6, 9, 9, 9, 9, 9, 9, 9, 9, 7},
    {0, 0, 0, 0, 11, 11, 11, 11, 11, 11, 11, 11, 0},   {0, 12, 13, 0, 14, 15, 15, 16, 17, 17, 17, 17, 0},
    {0, 0, 0, 0, 18, 18, 18, 18, 18, 11, 11, 11, 0},   {0, 0, 0, 19, 9, 9, 9, 9, 9, 9, 9, 9, 20},
    {0, 21, 13, 0, 22, 15, 15, 23, 17, 17, 17, 17, 0}, {0, 0, 0, 0, 11, 11, 11, 11, 11, 11, 11, 11, 7},
    {0, 0, 0, 0, 14, 15, 15, 16, 17, 17, 17, 17, 0},   {0, 0, 0, 0, 24, 15, 15, 25, 17, 17, 17, 17, 0},
    {0, 0, 0, 0, 14, 15, 15, 16, 17, 17, 17, 17, 0},   {0, 0, 0, 0, 17, 17, 17, 17, 17, 17, 17, 17, 0},
    {0, 0, 0, 0, 26, 27, 27, 27, 27, 27, 27, 27, 0},   {0, 0, 0, 0, 27, 27, 27, 27, 27, 27, 27, 27, 0},
    {0, 0, 0, 0, 18, 18, 18, 18, 18, 18, 18, 18, 10},  {0, 0, 0, 0, 28, 28, 28, 28, 28, 28, 28, 28, 0},
    {0, 29, 13, 0, 30, 17, 17, 17, 17, 17, 17, 17, 0}, {0, 0, 0, 0, 22, 15, 15, 23, 17, 17, 17, 17, 0},
    {0, 0, 0, 0, 22, 15, 15, 23, 17, 17, 17, 17, 0},   {0, 0, 0, 0, 31, 27, 27, 27, 27, 27, 27, 27, 0},
    {0, 0, 0, 0, 24, 15, 15, 25, 17, 17, 17, 17, 0},   {0, 0, 0, 0, 17, 17, 32, 27, 27, 27, 27, 27, 0},
    {0, 0, 0, 0, 27, 27, 27, 27, 27, 27, 0, 0, 0},     {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    {0, 0, 0, 0, 28, 28, 28, 28, 28, 28, 28, 28, 20},  {0, 0, 0, 0, 30, 17, 17, 17, 17, 17, 17, 17, 0},
    {0, 0, 0, 0, 30, 17, 17, 17, 17, 17, 17, 17, 0},   {0, 0, 0, 0, 27, 27, 27, 27, 27, 27, 27, 0, 0},
    {0, 0, 0, 0, 27, 27, 27, 27, 0, 0, 0, 0, 0}};
static const uint8_t number_accepts[NUMBER_STATES] = {0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 1, 1, 1,
                                                      1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1};

static qn_status make_numbers(const qn_dfa_limits *limits, qn_dfa **out)
{
    static const char bytes[] = "+-.0123456789eE";
    static const uint8_t classes[] = {1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 9, 10, 11, 12, 12};
    uint8_t class_of[256] = {0};
    int32_t next[NUMBER_STATES * NUMBER_CLASSES];
    for (size_t i = 0; i < sizeof classes; i++) class_of[(uint8_t)bytes[i]] = classes[i];
    for (int i = 0; i < NUMBER_STATES * NUMBER_CLASSES; i++)
        next[i] = number_next[i / NUMBER_CLASSES][i % NUMBER_CLASSES];
    return qn_dfa_new(NUMBER_STATES, NUMBER_CLASSES, class_of, next, number_accepts, 1, limits, out);
}

/* Strings, numbers and literals of any value are set; objects and arrays hold any values again. */
static qn_status fill(qn_program *p, int32_t value)
{
    qn_dfa *d;
    int32_t number, string, object, array;
    QN_TRY(make_numbers(&p->dfa_limits, &d));
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
