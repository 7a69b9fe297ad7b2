#include "convert/rewrite_plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/weights/weight_roles.h"

enum { RANGE_ELEMENTS = 1 << 18, COPY_BYTES = 1 << 22, KEPT = 4 };

/* ---- covers -------------------------------------------------------------------------------------------- */

int qn_rewrite_is_float(const qn_tensor_view *v)
{
    return v->supported &&
           (v->dtype == QN_DTYPE_F32 || v->dtype == QN_DTYPE_F16 || v->dtype == QN_DTYPE_BF16);
}

int qn_rewrite_is_changed(const qn_rewrite_cover *c)
{
    return c->target || c->other || c->numbers;
}

int64_t qn_rewrite_columns(const qn_tensor_view *stored, int64_t joined)
{
    if (joined) return joined;
    if (!stored->n_dims || (stored->n_dims == 1 && qn_rewrite_is_float(stored))) return 1;
    return stored->shape[stored->n_dims - 1];
}

int64_t qn_rewrite_tensor(const qn_rewrite_plan *p, const qn_tensor_view *v)
{
    int64_t number = -1;
    const char *name = v->whole ? v->whole->name : v->name;
    return qn_map_get(p->names, name, strlen(name), &number) ? number : -1;
}

const qn_adapter_target *qn_rewrite_target(const qn_rewrite_plan *p, qn_weight_role role, int64_t layer)
{
    const qn_rewrite_changes *a = p->changes;
    for (int64_t i = 0; i < a->n_targets; i++)
        if (a->targets[i].role == role && a->targets[i].layer == layer) return &a->targets[i];
    return NULL;
}

static qn_status add_cover(qn_rewrite_plan *p, const qn_rewrite_cover *c)
{
    if (p->n == p->capacity) {
        const int64_t more = p->capacity ? 2 * p->capacity : 256;
        qn_rewrite_cover *covers = qn_realloc(p->covers, (size_t)more * sizeof *covers);
        if (!covers) return QN_E_NOMEM;
        p->covers = covers;
        p->capacity = more;
    }
    p->covers[p->n++] = *c;
    return QN_OK;
}

/* A tensor of matrices as one matrix, all rows one below the other. */
static qn_status flatten(qn_rewrite_plan *p, const qn_tensor_view *v, const qn_tensor_view **out)
{
    qn_tensor_view *flat = qn_arena_calloc(&p->arena, 1, sizeof *flat);
    if (!flat) return QN_E_NOMEM;
    *flat = *v;
    flat->n_dims = 2;
    flat->shape[1] = v->shape[v->n_dims - 1];
    flat->shape[0] = 1;
    for (int d = 0; d < v->n_dims - 1; d++) flat->shape[0] *= v->shape[d];
    flat->n_elements = flat->shape[0] * flat->shape[1];
    *out = flat;
    return QN_OK;
}

/* Of a role of experts: a cover for each tensor; the second role of a tensor is added to the cover of the first. */
static qn_status cover_experts(qn_rewrite_plan *p, const qn_weight_experts *e, qn_weight_role role,
                               int64_t layer)
{
    const qn_tensor_view *v;
    const qn_adapter_target *target = qn_rewrite_target(p, role, layer);
    const int in_one = qn_weight_experts_matrices(e, 1) == NULL;
    for (int64_t i = 0; (v = qn_weight_experts_matrices(e, i)); i++) {
        qn_rewrite_cover c = {.role = role,
                              .layer = layer,
                              .target = target,
                              .is_experts = 1,
                              .expert = in_one ? -1 : i,
                              .lines = qn_weight_experts_get_lines(e)};
        qn_rewrite_cover *last = p->n ? &p->covers[p->n - 1] : NULL;
        if ((c.tensor = qn_rewrite_tensor(p, v)) < 0) return QN_OK;
        if (last && last->tensor == c.tensor) {
            last->other = target;
            last->other_lines = c.lines;
            continue;
        }
        QN_TRY(flatten(p, v, &c.view));
        c.n_rows = c.view->shape[0];
        QN_TRY(add_cover(p, &c));
    }
    return QN_OK;
}

static qn_status cover_role(qn_rewrite_plan *p, qn_weight_role role, int64_t layer)
{
    const qn_rewrite_changes *changes = p->changes;
    const qn_tensor_view *v = qn_weights_get(p->model->weights, role, layer);
    qn_rewrite_cover c = {.view = v, .role = role, .layer = layer};
    if (v && v->experts && v->n_dims > 2) return cover_experts(p, v->experts, role, layer);
    if (!v || v->n_dims > 2 || v->experts || v->matrix_bytes) return QN_OK;
    if (role == QN_WEIGHT_LM_HEAD && qn_weights_tied(p->model->weights)) return QN_OK;
    if ((c.tensor = qn_rewrite_tensor(p, v)) < 0) return QN_OK;
    c.target = qn_rewrite_target(p, role, layer);
    c.numbers = changes->numbers ? changes->numbers(changes->user, role, layer) : NULL;
    if (v->n_dims < 2 && !c.numbers) return QN_OK;
    c.n_rows = v->n_elements / qn_rewrite_columns(v->whole ? v->whole : v, v->scales ? v->shape[1] : 0);
    if (v->whole)
        c.first = ((const char *)v->data - (const char *)v->whole->data) /
                  (ptrdiff_t)(v->size_bytes / (size_t)c.n_rows);
    return add_cover(p, &c);
}

static int by_place(const void *x, const void *y)
{
    const qn_rewrite_cover *a = x, *b = y;
    if (a->tensor != b->tensor) return a->tensor < b->tensor ? -1 : 1;
    return a->first < b->first ? -1 : a->first > b->first;
}

/* Everything that changes has its place. */
static qn_status check_changes(const qn_rewrite_plan *p)
{
    const qn_rewrite_changes *a = p->changes;
    int64_t n_numbers = 0;
    for (int64_t k = 0; k < p->n; k++) n_numbers += p->covers[k].numbers != NULL;
    if (n_numbers != p->changes->n_numbers)
        return qn_fail(
            QN_E_UNSUPPORTED, "%s: only %lld of %lld changed tensors have a place in the model's files",
            qn_source_path(p->model->source), (long long)n_numbers, (long long)p->changes->n_numbers);
    for (int64_t i = 0; i < a->n_targets; i++) {
        const qn_adapter_target *t = &a->targets[i];
        int found = 0;
        for (int64_t k = 0; k < p->n && !found; k++)
            found = p->covers[k].target == t || p->covers[k].other == t;
        if (found) continue;
        if (t->role == QN_WEIGHT_LM_HEAD && qn_weights_tied(p->model->weights))
            return qn_fail(
                QN_E_UNSUPPORTED,
                "%s: tensor %s: it changes the head but not the embedding, and both are one matrix in the "
                "model's files",
                t->a->file, t->a->name);
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: the model's files have no separate matrix for it",
                       t->a->file, t->a->name);
    }
    return QN_OK;
}

qn_status qn_rewrite_plan_make(const qn_rewrite_model *model, const qn_rewrite_changes *changes,
                               qn_rewrite_plan *p)
{
    const int64_t n = qn_source_count(model->source);
    *p = (qn_rewrite_plan){.model = model, .changes = changes, .names = qn_map_new((size_t)n)};
    if (!p->names) return QN_E_NOMEM;
    for (int64_t i = 0; i < n; i++) {
        const char *name = qn_source_get(model->source, i)->name;
        QN_TRY(qn_map_set(p->names, name, strlen(name), i, NULL, NULL));
    }
    for (int role = 0; role < QN_WEIGHT_MODEL_COUNT; role++) QN_TRY(cover_role(p, (qn_weight_role)role, 0));
    for (int64_t i = 0; i < model->config->num_hidden_layers; i++)
        for (int role = QN_WEIGHT_MODEL_COUNT; role < QN_WEIGHT_ROLE_COUNT; role++)
            QN_TRY(cover_role(p, (qn_weight_role)role, i));
    if (p->n) qsort(p->covers, (size_t)p->n, sizeof *p->covers, by_place);
    QN_TRY(check_changes(p));
    p->n_changed = changes->n_numbers + changes->n_targets;
    p->merges = qn_calloc(1, sizeof *p->merges);
    return p->merges ? QN_OK : QN_E_NOMEM;
}

void qn_rewrite_plan_free(qn_rewrite_plan *p)
{
    for (int i = 0; p->merges && i < KEPT; i++) qn_merge_free(&p->merges->kept[i]);
    qn_free(p->merges);
    qn_free(p->covers);
    qn_arena_clear(&p->arena);
    qn_map_free(p->names);
    *p = (qn_rewrite_plan){0};
}

int64_t qn_rewrite_covers(const qn_rewrite_plan *p, int64_t tensor, const qn_rewrite_cover **first)
{
    int64_t begin = 0, end = p->n, n = 0;
    while (begin < end) {
        const int64_t middle = begin + (end - begin) / 2;
        if (p->covers[middle].tensor < tensor)
            begin = middle + 1;
        else
            end = middle;
    }
    *first = p->covers + begin;
    while (begin + n < p->n && p->covers[begin + n].tensor == tensor) n++;
    return n;
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

/* The factors of a target, kept in the plan; *out NULL for none. */
static qn_status get_merge(const qn_rewrite_plan *p, const qn_adapter_target *t, const qn_merge **out)
{
    *out = NULL;
    for (int i = 0; t && i < KEPT && !*out; i++)
        if (p->merges->kept[i].target == t) *out = &p->merges->kept[i];
    if (!t || *out) return QN_OK;
    qn_merge *to = &p->merges->kept[p->merges->next++ % KEPT];
    qn_merge_free(to);
    QN_TRY(qn_merge_read(p->model->config, t, to));
    *out = to;
    return QN_OK;
}

qn_status qn_rewrite_rows_open(const qn_rewrite_plan *p, const qn_rewrite_cover *c, int64_t n_cols,
                               qn_rewrite_rows *r)
{
    *r = (qn_rewrite_rows){.view = c->view, .n_cols = n_cols, .numbers = c->numbers};
    if (!c->target && !c->other) return QN_OK;
    if (!(r->change = qn_alloc_array((size_t)n_cols, sizeof *r->change))) return QN_E_NOMEM;
    if (!c->is_experts) return qn_merge_read(p->model->config, c->target, &r->merge);
    r->cover = c;
    QN_TRY(get_merge(p, c->target, &r->experts[0]));
    return get_merge(p, c->other, &r->experts[1]);
}

/* Row `row` of a tensor of experts: it is an output of one, or an input with all of its outputs. */
static qn_status merge_row(const qn_rewrite_rows *r, const qn_merge *m, const qn_weight_experts_lines *l,
                           int64_t row, float *out)
{
    const qn_adapter_target *t = m->target;
    const int64_t each = l->transposed ? t->n_in : l->n_lines,
                  expert = r->cover->expert < 0 ? row / each : r->cover->expert, line = row % each;
    if (l->transposed) return qn_merge_inputs(m, expert, line, l->step, out + l->first);
    const int64_t o = (line - l->first) / l->step;
    if (line < l->first || (line - l->first) % l->step || o >= t->n_out) return QN_OK; /* of the other role */
    return qn_merge_rows(m, expert * t->n_out + o, 1, out, r->change);
}

qn_status qn_rewrite_rows_read(const qn_rewrite_rows *r, int64_t first, int64_t n, float *out)
{
    if (r->numbers)
        memcpy(out, r->numbers + first * r->n_cols, (size_t)(n * r->n_cols) * sizeof *out);
    else
        QN_TRY(qn_weights_rows(r->view, r->n_cols, first, n, out));
    for (int64_t i = 0; r->cover && i < n; i++)
        for (int k = 0; k < 2; k++)
            if (r->experts[k])
                QN_TRY(merge_row(r, r->experts[k], k ? &r->cover->other_lines : &r->cover->lines, first + i,
                                 out + i * r->n_cols));
    return r->merge.target ? qn_merge_rows(&r->merge, first, n, out, r->change) : QN_OK;
}

void qn_rewrite_rows_free(qn_rewrite_rows *r)
{
    qn_merge_free(&r->merge);
    qn_free(r->change);
    *r = (qn_rewrite_rows){0};
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

/* Rows up to `end` of the tensor, which are r's from row to->at - first on. */
static qn_status pass_rows(const qn_rewrite_rows *r, int64_t first, int64_t end, float *rows,
                           qn_row_writer *to)
{
    const int64_t most = to->n_cols < RANGE_ELEMENTS ? RANGE_ELEMENTS / to->n_cols : 1;
    const int is_copy = !r->numbers && !r->merge.target && !r->cover && r->view->dtype == to->type->dtype &&
                        !r->view->scales == (to->part == QN_ROW_BLOCKS) && !r->view->experts;
    while (to->at < end) {
        const int64_t n = end - to->at < most ? end - to->at : most;
        if (is_copy) {
            QN_TRY(qn_row_writer_copy(to, r->view, to->at - first, n));
            continue;
        }
        QN_TRY(qn_rewrite_rows_read(r, to->at - first, n, rows));
        QN_TRY(qn_row_writer_put(to, rows, n));
    }
    return QN_OK;
}

static qn_status pass_cover(const qn_rewrite_plan *p, const qn_rewrite_rows *rest, const qn_rewrite_cover *c,
                            float *rows, qn_row_writer *to)
{
    qn_rewrite_rows own;
    if (to->at < c->first) QN_TRY(pass_rows(rest, 0, c->first, rows, to));
    if (to->at > c->first)
        return qn_fail(QN_E_UNSUPPORTED, "%s: tensor %s: its rows belong to two matrices of the model",
                       to->file, to->name);
    qn_status status = qn_rewrite_rows_open(p, c, to->n_cols, &own);
    if (status == QN_OK) status = pass_rows(&own, c->first, c->first + c->n_rows, rows, to);
    qn_rewrite_rows_free(&own);
    return status;
}

qn_status qn_rewrite_pass(const qn_rewrite_plan *p, const qn_tensor_view *whole, int64_t n_rows,
                          const qn_rewrite_cover *covers, int64_t n, qn_row_writer *to)
{
    const qn_rewrite_rows rest = {.view = whole, .n_cols = to->n_cols};
    const int64_t range = to->n_cols < RANGE_ELEMENTS ? RANGE_ELEMENTS : to->n_cols;
    float *rows = qn_alloc_array((size_t)range, sizeof *rows);
    qn_status status = rows ? QN_OK : QN_E_NOMEM;
    for (int64_t i = 0; i < n && status == QN_OK; i++) status = pass_cover(p, &rest, &covers[i], rows, to);
    if (status == QN_OK) status = pass_rows(&rest, 0, n_rows, rows, to);
    qn_free(rows);
    return status;
}

qn_status qn_rewrite_copy(const qn_tensor_file *to, int64_t index, const qn_tensor_view *v)
{
    for (size_t at = 0; at < v->size_bytes; at += COPY_BYTES) {
        const size_t n = v->size_bytes - at < COPY_BYTES ? v->size_bytes - at : COPY_BYTES;
        QN_TRY(qn_tensor_file_write(to, index, at, (const char *)v->data + at, n));
        qn_view_drop(v, at, n);
    }
    return QN_OK;
}
