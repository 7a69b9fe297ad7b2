#include "api/lists/list_parts.h"

#include "base/mem.h"
#include "base/status.h"

typedef struct {
    const qn_list_work *work;
    char *items;
    size_t n_items, most; /* most: fewer where memory is short */
    qn_wanted_row *rows;  /* of the pass that is evaluated */
    qn_list_memory memory;
} part;

/* The item, too. */
static qn_prompt_row *get_row(const part *p, size_t i)
{
    return (qn_prompt_row *)(void *)(p->items + i * p->work->item_bytes);
}

static void end_part(part *p)
{
    for (size_t i = 0; i < p->n_items; i++) {
        p->work->end(get_row(p, i));
        qn_prompt_row_end(get_row(p, i));
    }
    qn_free(p->items);
    qn_free(p->rows);
    p->items = NULL;
    p->rows = NULL;
    p->n_items = 0;
    qn_list_memory_release(&p->memory);
}

static int64_t add_rows(const part *p, size_t i, int pass, qn_wanted_row *rows)
{
    qn_prompt_row *item = get_row(p, i);
    return item->status == QN_OK ? p->work->add_rows(p->work->user, pass, item, rows) : 0;
}

/* Makes items of the prompts from `first` on, and room for the rows of all passes. */
static qn_status make_items(part *p, size_t first, size_t n_left)
{
    const qn_list_work *w = p->work;
    const size_t most = n_left < p->most ? n_left : p->most;
    int64_t n_rows = 0;
    p->items = qn_calloc(most, w->item_bytes);
    if (!p->items) return QN_E_NOMEM;
    for (; p->n_items < most && n_rows < QN_PROMPT_WINDOW; p->n_items++) {
        qn_prompt_row *item = get_row(p, p->n_items);
        qn_status status = w->prepare(w->user, first + p->n_items, item);
        if (status != QN_OK) qn_prompt_row_fail(item, status);
        for (int pass = 0; pass < w->n_passes; pass++) n_rows += add_rows(p, p->n_items, pass, NULL);
    }
    p->rows = qn_alloc_array((size_t)(n_rows ? n_rows : 1), sizeof *p->rows);
    return p->rows ? QN_OK : QN_E_NOMEM;
}

static qn_status take(void *user, int64_t row, int64_t position, int64_t n, const float *values)
{
    const part *p = user;
    return p->work->take(p->work->user, &p->rows[row], position, n, values);
}

static qn_status evaluate(part *p, int pass)
{
    int64_t n_rows = 0;
    for (size_t i = 0; i < p->n_items; i++) n_rows += add_rows(p, i, pass, p->rows + n_rows);
    if (!n_rows) return QN_OK;
    return qn_wanted_rows_evaluate(p->work->model, p->rows, n_rows, p->work->logits, p->work->scores, take,
                                   p);
}

/* Did one of several items fail for want of memory? Fewer at a time may find room. */
static int lacks_memory(const part *p)
{
    for (size_t i = 0; p->n_items > 1 && i < p->n_items; i++)
        if (get_row(p, i)->status == QN_E_NOMEM) return 1;
    return 0;
}

/* *n_done: the prompts whose results were given. 0: memory did not suffice for so many. */
static qn_status run_part(part *p, size_t first, size_t n_left, size_t *n_done)
{
    const int64_t mark = qn_mem_thread_bytes();
    const qn_list_work *w = p->work;
    *n_done = 0;
    QN_TRY(make_items(p, first, n_left));
    qn_status held = qn_list_memory_hold(&p->memory, mark);
    if (held != QN_OK) qn_prompt_row_fail(get_row(p, 0), held);
    for (int pass = 0; held == QN_OK && pass < w->n_passes; pass++) QN_TRY(evaluate(p, pass));
    if (lacks_memory(p)) {
        p->most = p->n_items / 2;
        return QN_OK;
    }
    for (size_t i = 0; i < p->n_items; i++) QN_TRY(w->give(w->user, first + i, get_row(p, i)));
    *n_done = p->n_items;
    return QN_OK;
}

qn_status qn_list_work_run(const qn_list_work *w, size_t n_prompts)
{
    part p = {.work = w, .most = w->items_max, .memory = {.model = w->model}};
    qn_status status = QN_OK;
    if (!p.most || p.most > QN_PROMPT_WINDOW) p.most = QN_PROMPT_WINDOW;
    for (size_t i = 0, n = 0; status == QN_OK && i < n_prompts; i += n) {
        status = run_part(&p, i, n_prompts - i, &n);
        end_part(&p);
    }
    return status;
}
