/* quern pack: keeps a model's packed weights in a file, so that later starts map it. */
#include <quern/quern.h>
#include <string.h>

#include "cli/command.h"
#include "cli/options/model_name.h"
#include "cli/term/interrupt.h"
#include "cli/term/out.h"

typedef struct {
    qn_pack_options o;
    int json;
} pack_options;

#define AT(field) offsetof(pack_options, field)
static const qn_arg pack_args[] = {
    {"--output", 'o', QN_ARG_TEXT, AT(o.out_path), 0, 0, "FILE",
     "file to write (default: beside the model; if that is not writable, in the cache)"},
    {"--file", 0, QN_ARG_TEXT, AT(o.file), 0, 0, "NAME",
     "which weights file to use, if the directory has several"},
    {"--threads", 't', QN_ARG_INT32, AT(o.n_threads), 1, 1024, "N",
     "number of threads (default: the number of physical cores)"},
    {"--force", 0, QN_ARG_FLAG, AT(o.force), 0, 0, NULL,
     "pack again even if a valid file exists; replace any file"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print one JSON object"},
    {0},
};

static const qn_arg_group pack_groups[] = {{NULL, pack_args, 0, NULL}, {0}};
const qn_arg_spec qn_pack_spec = {
    "quern pack MODEL [-o FILE] [options]",
    "Writes the packed weights to MODEL.gguf.qpack or model.qpack beside the model. Without such a file,\n"
    "every start packs the weights again. With it, a start only maps the file, and processes share its\n"
    "memory. The model's own files are still needed. A packed file that does not match the model or\n"
    "quern's layout is ignored, with a note. A start compares samples of the model; quern pack compares\n"
    "the whole model.",
    pack_groups,
    1,
    1,
    NULL};

/* On a terminal a line that is written over. */
static qn_status show_progress(void *user, size_t done, size_t total)
{
    int *shown = user, percent = total ? (int)(100.0 * (double)done / (double)total) : 100;
    char a[32], b[32];
    if (qn_interrupt_taken()) return qn_fail(QN_E_CANCELLED, "cancelled; nothing was written");
    if (*shown == percent || !qn_out_has_style(stderr)) return QN_OK;
    *shown = percent;
    fprintf(stderr, "\rpacking %3d%%, %s of %s\033[K", percent, qn_out_size_text(done, a, sizeof a),
            qn_out_size_text(total, b, sizeof b));
    fflush(stderr);
    return QN_OK;
}

static qn_status print_result(const qn_pack_result *r, int json)
{
    char size[32];
    qn_buf b = {0};
    if (json) {
        qn_json_open(&b, '{');
        qn_json_put_text(&b, "output", r->path);
        qn_json_put_int(&b, "size_bytes", (int64_t)r->size_bytes);
        qn_json_put_bool(&b, "was_there", r->was_there);
        qn_json_close(&b, '}');
        return qn_out_line(&b);
    }
    qn_out_put_shown(&b, r->path, strlen(r->path), 0);
    qn_buf_printf(&b, ": %s of packed weights%s", qn_out_size_text(r->size_bytes, size, sizeof size),
                  r->was_there ? ", which already exist and are correct" : "");
    return qn_out_line(&b);
}

int qn_cmd_pack(int argc, char **argv)
{
    pack_options o = {.json = 0};
    qn_pack_result result;
    const char *path;
    int n, code, shown = -1;
    if (qn_args_parse(&qn_pack_spec, &o, argc, argv, &path, &n, &code)) return code;
    if (o.o.out_path && !*o.o.out_path) return qn_args_fail("pack", "--output: the path is empty");
    qn_interrupt_start_for_files(); /* there is a file to remove */
    o.o.progress = show_progress;
    o.o.user = &shown;
    qn_buf found = {0};
    qn_status status = qn_model_name_take(&path, &found);
    if (status == QN_OK) status = qn_model_pack(path, &o.o, &result);
    qn_buf_free(&found);
    if (shown >= 0) fprintf(stderr, "\r\033[K");
    if (status == QN_OK) status = print_result(&result, o.json);
    code = status == QN_OK ? QN_EXIT_OK : qn_out_fail();
    return status == QN_E_CANCELLED ? QN_EXIT_INTERRUPTED : code;
}
