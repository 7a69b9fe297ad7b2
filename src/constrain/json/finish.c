/* Cases become rules: literals, numbers, strings. */
#include "constrain/json/compiler.h"

static qn_status finish_number(qn_compiler *k, const qn_case *c, qn_union *u)
{
    int32_t all = QN_NONE;
    for (const qn_fact *f = c->facts; f; f = f->next) {
        if (f->kind != QN_FACT_NUMBERS) continue;
        if (f->number->dfa == QN_NONE) {
            qn_status status = qn_number_dfa(k, &f->number->bounds, &f->number->dfa);
            if (status != QN_OK) return qn_compiler_refuse_as(k, status, f->schema, "number");
        }
        if (all == QN_NONE)
            all = f->number->dfa;
        else
            QN_TRY(qn_dfa_both(k, all, f->number->dfa, &all));
    }
    if (all == QN_NONE) QN_TRY(qn_number_dfa(k, &(qn_number_bounds){0}, &all));
    if (u->number == QN_NONE || u->number == all) {
        u->number = all;
        return QN_OK;
    }
    return qn_dfa_either(k, u->number, all, &u->number);
}

static qn_status finish_string(qn_compiler *k, const qn_case *c, qn_union *u)
{
    int32_t all = k->p->all;
    const json_t *at = NULL;
    for (const qn_fact *f = c->facts; f; f = f->next) {
        if (f->kind != QN_FACT_TEXTS) continue;
        at = f->schema;
        qn_status status = qn_dfa_both(k, f->dfa, all, &all);
        if (status != QN_OK) return qn_compiler_refuse_as(k, status, at, "pattern");
    }
    if (all == k->p->all && c->length_max != 0 && (c->length_min > 0 || c->length_max >= 0)) {
        int32_t string;
        QN_TRY(qn_program_add_string(
            k->p, &(qn_string_rule){.dfa = all, .min = c->length_min, .max = c->length_max}, &string));
        return qn_union_add(&u->strings, &u->n_strings, &u->strings_room, string);
    }
    if (c->length_min > 0 || c->length_max >= 0) {
        qn_dfa_lengths lengths;
        QN_TRY(qn_dfa_measure(k->p->dfas[all], &lengths));
        int fits = lengths.min_chars >= c->length_min &&
                   (c->length_max < 0 || (lengths.max_chars >= 0 && lengths.max_chars <= c->length_max));
        if (!fits) {
            qn_dfa *d;
            int32_t bounded;
            qn_status status = qn_dfa_length(c->length_min, c->length_max, &k->p->dfa_limits, &d);
            if (status == QN_OK) status = qn_program_add_dfa(k->p, d, &bounded);
            if (status == QN_OK) status = qn_dfa_both(k, all, bounded, &all);
            if (status != QN_OK) return qn_compiler_refuse_as(k, status, at, "maxLength");
        }
    }
    if (u->text == QN_NONE || u->text == all) {
        u->text = all;
        return QN_OK;
    }
    return qn_dfa_either(k, u->text, all, &u->text);
}

qn_status qn_case_finish(qn_compiler *k, const qn_case *c, qn_union *u)
{
    if (c->types & QN_TYPE_NULL) u->literals |= 1 << QN_LITERAL_NULL;
    if (c->types & QN_TYPE_TRUE) u->literals |= 1 << QN_LITERAL_TRUE;
    if (c->types & QN_TYPE_FALSE) u->literals |= 1 << QN_LITERAL_FALSE;
    if (c->types & QN_TYPE_NUMBER) QN_TRY(finish_number(k, c, u));
    if (c->types & QN_TYPE_STRING) QN_TRY(finish_string(k, c, u));
    if (c->types & QN_TYPE_OBJECT) QN_TRY(qn_case_finish_object(k, c, u));
    if (c->types & QN_TYPE_ARRAY) QN_TRY(qn_case_finish_array(k, c, u));
    return QN_OK;
}

/* ---- strings of a value, for names --------------------------------------------------------------------- */

qn_status qn_value_texts(qn_compiler *k, const json_t *at, int32_t value, int32_t *dfa)
{
    QN_TRY(qn_compiler_expand(k->p, value));
    qn_value v = k->p->values[value];
    *dfa = QN_NONE;
    for (uint32_t i = 0; i < v.n_strings; i++) {
        qn_string_rule r = k->p->strings[v.strings[i]];
        if (r.min > 0 || r.max >= 0) {
            qn_dfa *d;
            qn_status status = qn_dfa_length(r.min, r.max, &k->p->dfa_limits, &d);
            if (status != QN_OK) return qn_compiler_refuse_as(k, status, at, "maxLength");
            int32_t bounded;
            QN_TRY(qn_program_add_dfa(k->p, d, &bounded));
            QN_TRY(qn_dfa_both(k, r.dfa, bounded, &r.dfa));
        }
        if (*dfa == QN_NONE) {
            *dfa = r.dfa;
            continue;
        }
        QN_TRY(qn_dfa_either(k, *dfa, r.dfa, dfa));
    }
    return QN_OK;
}
