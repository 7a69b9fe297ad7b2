/* The table of models that `models` and `list` print, or its JSON. */
#include "cli/commands/model_table.h"

#include <stdio.h>
#include <string.h>

#include "cli/term/fold.h"
#include "cli/term/out.h"

enum { TYPE_COLUMNS = 15, QUANT_COLUMNS = 17, NAME_COLUMN = TYPE_COLUMNS + QUANT_COLUMNS + 25 };

static void put_json(qn_buf *b, const qn_discovery *d, const char *name)
{
    qn_json_open(b, '{');
    qn_json_put_text(b, "path", d->path);
    if (!d->is_problem) {
        qn_json_put_text(b, "name", name);
        qn_json_put_text(b, "format", d->format);
        qn_json_put_text(b, "model_type", d->model_type);
        qn_json_put_text(b, "quant", d->quant);
        qn_json_put_int(b, "quant_bits", d->quant_bits);
        qn_json_put_int(b, "n_files", d->n_files);
        qn_json_put_int(b, "size_bytes", (int64_t)d->size_bytes);
        qn_json_put_text(b, "status", qn_status_name(d->status));
    }
    qn_json_put_text(b, "error", d->error);
    qn_json_close(b, '}');
}

/* What is not known is no number. */
static const char *show_count(int64_t n, char *text, size_t size)
{
    snprintf(text, size, n ? "%lld" : "-", (long long)n);
    return text;
}

/* A name or path stays whole: it is there to be copied. */
static void put_name(qn_buf *b, const char *name, int columns)
{
    qn_buf shown = {0};
    const int width = qn_out_put_shown(&shown, name, strlen(name), 0);
    if (shown.status != QN_OK) b->status = shown.status;
    if (columns && NAME_COLUMN + width > columns) qn_fold_line_end(b, 2);
    qn_buf_append(b, shown.data, shown.length);
    qn_buf_free(&shown);
}

static qn_status print_line(const qn_discovery *d, const char *shown, int is_first)
{
    char size[32] = "-", bits[32], files[32];
    qn_buf b = {0};
    const int style = qn_out_has_style(stdout), columns = qn_fold_terminal(stdout);
    if (is_first) {
        qn_buf_printf(&b, "%s%-*s %-*s %4s  %9s %5s  ", style ? "\033[1m" : "", TYPE_COLUMNS, "TYPE",
                      QUANT_COLUMNS, "QUANT", "BITS", "SIZE", "FILES");
        put_name(&b, "MODEL", columns);
        qn_buf_puts(&b, style ? "\033[0m\n" : "\n");
    }
    qn_out_put_column(&b, d->model_type, TYPE_COLUMNS);
    qn_buf_putc(&b, ' ');
    qn_out_put_column(&b, d->quant, QUANT_COLUMNS);
    if (d->size_bytes) qn_out_size_text(d->size_bytes, size, sizeof size);
    qn_buf_printf(&b, " %4s  %9s %5s  ", show_count(d->quant_bits, bits, sizeof bits), size,
                  show_count(d->n_files, files, sizeof files));
    put_name(&b, shown, columns);
    if (d->status != QN_OK) {
        static const char begin[] = "    not usable: ";
        qn_buf_printf(&b, "\n%s", begin);
        qn_fold_put_shown(&b, d->error, strlen(d->error), (int)sizeof begin - 1, 4, columns, 0);
    }
    return qn_out_line(&b);
}

qn_status qn_model_table_put(qn_model_table *l, const qn_discovery *d, const char *name)
{
    l->n_models += !d->is_problem;
    l->n_unusable += !d->is_problem && d->status != QN_OK;
    l->n_problems += d->is_problem;
    if (l->json) {
        put_json(d->is_problem ? &l->problems : &l->out, d, name ? name : d->name);
        return qn_json_drain(&l->out);
    }
    if (!d->is_problem) return print_line(d, name ? name : d->path, l->n_models == 1);
    qn_out_note("%s", d->error);
    return QN_OK;
}

void qn_model_table_begin(qn_model_table *l, int json, const char *path)
{
    *l = (qn_model_table){.json = json};
    qn_json_open(&l->problems, '[');
    if (!json) return;
    qn_json_open(&l->out, '{');
    qn_json_put_text(&l->out, "path", path);
    qn_json_key(&l->out, "models");
    qn_json_open(&l->out, '[');
}

qn_status qn_model_table_finish(qn_model_table *l, const char *path)
{
    if (l->json) {
        qn_json_close(&l->out, ']');
        qn_json_close(&l->problems, ']');
        qn_json_key(&l->out, "problems");
        if (l->problems.status == QN_OK) qn_buf_append(&l->out, l->problems.data, l->problems.length);
        qn_json_put_int(&l->out, "n_models", l->n_models);
        qn_json_put_int(&l->out, "n_unusable", l->n_unusable);
        qn_json_close(&l->out, '}');
        return l->problems.status == QN_OK ? qn_out_line(&l->out) : l->problems.status;
    }
    if (!l->n_models) qn_out_note("no models below %s", path);
    return QN_OK;
}

void qn_model_table_free(qn_model_table *l)
{
    qn_buf_free(&l->out);
    qn_buf_free(&l->problems);
}
