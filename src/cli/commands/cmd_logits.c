/* quern logits: the logits of rows of ids into a safetensors file. */
#include <quern/quern.h>
#include <stdio.h>

#include "cli/command.h"
#include "cli/options/options.h"
#include "cli/options/pictures.h"
#include "cli/term/input.h"
#include "cli/term/interrupt.h"
#include "cli/term/out.h"
#include "format/safetensors/safetensors.h"

typedef struct {
    qn_load_options load;
    const char *ids_path, *out_path, *adapter;
    qn_arg_list images;
    int positions; /* 0: all, 1: last */
    int json;
} logits_options;

#define AT(field) offsetof(logits_options, field)
static const qn_arg logits_args[] = {
    {"--ids", 0, QN_ARG_TEXT, AT(ids_path), 0, 0, "FILE",
     "file with rows of token ids, {\"ids\":[[...],...]}"},
    {"--output", 'o', QN_ARG_TEXT, AT(out_path), 0, 0, "FILE",
     "safetensors file to write: logits.I [L, vocab] in float32 for each row"},
    {"--image", 0, QN_ARG_LIST, AT(images), 0, 0, "FILE",
     "picture file of the only row, whose ids have a token for each of its places; may be repeated"},
    {"--positions", 0, QN_ARG_CHOICE, AT(positions), 0, 0, "all|last",
     "positions whose logits are written (default all)"},
    {"--use", 0, QN_ARG_TEXT, AT(adapter), 0, 0, "NAME",
     "name of the adapter to use; `none`: the model without an adapter"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print a JSON summary"},
    {0},
};

typedef struct {
    qn_st_writer *writer;
    size_t row_bytes; /* of one position */
    int last_only;
} sink;

static qn_status take(void *user, int64_t row, int64_t position, int64_t n_positions, const float *logits)
{
    if (qn_interrupt_taken()) return qn_fail(QN_E_CANCELLED, "cancelled; nothing was written");
    const sink *s = user;
    size_t first = s->last_only ? 0 : (size_t)position;
    return qn_st_writer_write(s->writer, row, first * s->row_bytes, logits,
                              (size_t)n_positions * s->row_bytes);
}

static qn_status write_logits(qn_model *model, const logits_options *o, const qn_id_rows *ids,
                              const qn_pictures *seen)
{
    qn_model_info info;
    QN_TRY(qn_model_get_info(model, &info));
    sink s = {.row_bytes = (size_t)info.vocab_size * sizeof(float), .last_only = o->positions == 1};
    qn_status status = qn_st_writer_new(o->out_path, &s.writer);
    for (int64_t i = 0; status == QN_OK && i < ids->n_rows; i++) {
        char name[40];
        int64_t shape[2] = {s.last_only ? 1 : ids->rows[i].n_ids, info.vocab_size};
        snprintf(name, sizeof name, "logits.%lld", (long long)i);
        status = qn_st_writer_add(s.writer, name, QN_DTYPE_F32, 2, shape, NULL);
    }
    qn_interrupt_start_for_files(); /* from here on there is a file to remove */
    if (status == QN_OK) status = qn_st_writer_begin(s.writer);
    if (status == QN_OK) {
        qn_logits_options options = {
            .last_only = s.last_only, .adapter = o->adapter, .images = seen->images, .n_images = seen->n};
        status = qn_model_logits(model, ids->rows, ids->n_rows, &options, take, &s);
    }
    if (status == QN_OK) status = qn_st_writer_finish(s.writer);
    qn_st_writer_free(s.writer);
    return status;
}

static qn_status print_summary(const qn_model *model, const logits_options *o, const qn_id_rows *ids)
{
    qn_buf b = {0};
    qn_model_info info;
    QN_TRY(qn_model_get_info(model, &info));
    qn_json_open(&b, '{');
    qn_json_put_text(&b, "output", o->out_path);
    qn_json_put_int(&b, "n_rows", ids->n_rows);
    qn_json_put_text(&b, "positions", o->positions ? "last" : "all");
    qn_json_key(&b, "model");
    qn_json_info(&b, &info);
    qn_json_close(&b, '}');
    return qn_out_line(&b);
}

static const qn_arg_group logits_groups[] = {{NULL, logits_args, 0, NULL},
                                             {"Loading", qn_load_args, AT(load), NULL},
                                             {"Rotary positions", qn_rope_args, AT(load.rope), qn_rope_rules},
                                             {0}};
const qn_arg_spec qn_logits_spec = {"quern logits MODEL --ids IDS.json -o OUT.safetensors [options]",
                                    "Computes the logits of all rows as one batch and writes them in blocks.",
                                    logits_groups,
                                    1,
                                    1,
                                    NULL};

int qn_cmd_logits(int argc, char **argv)
{
    logits_options o = {0};
    const char *path;
    int n, code;
    if (qn_args_parse(&qn_logits_spec, &o, argc, argv, &path, &n, &code)) return code;
    if (!o.ids_path || !o.out_path) return qn_args_fail("logits", "--ids and -o are needed");

    qn_model *model = NULL;
    qn_id_rows ids = {0};
    qn_pictures seen = {.n = 0};
    qn_status status = qn_input_ids(o.ids_path, &ids);
    if (status == QN_OK && o.images.n && ids.n_rows != 1)
        status = qn_fail(QN_E_ARG, "%s has %lld rows: with --image it must have one", o.ids_path,
                         (long long)ids.n_rows);
    if (status == QN_OK) status = qn_pictures_read(&o.images, &seen);
    if (status == QN_OK && !o.load.o.parallel_slots)
        o.load.o.parallel_slots = (int32_t)(ids.n_rows < 1024 ? ids.n_rows : 1024);
    if (status == QN_OK) status = qn_load_open(path, &o.load, &model);
    if (status == QN_OK) status = write_logits(model, &o, &ids, &seen);
    if (status == QN_OK && o.json) status = print_summary(model, &o, &ids);
    code = status == QN_OK ? QN_EXIT_OK : qn_out_fail();
    if (status == QN_E_CANCELLED) code = QN_EXIT_INTERRUPTED;
    qn_model_close(&model);
    qn_load_end(&o.load);
    qn_id_rows_free(&ids);
    qn_pictures_free(&seen);
    return code;
}
