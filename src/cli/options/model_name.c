#include "cli/options/model_name.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/term/interrupt.h"
#include "cli/term/out.h"
#include "cli/term/transfer_line.h"
#include "seed/seed.h"

typedef struct {
    qn_transfer_line line;
    int is_cancelled;
} watching;

static int is_cancelled(void *user)
{
    watching *w = user;
    if (qn_interrupt_taken()) w->is_cancelled = 1;
    return w->is_cancelled;
}

static void note(void *user, const char *text)
{
    watching *w = user;
    qn_transfer_line_clear(&w->line);
    qn_out_note("%s", text);
}

static void show(void *user, const qn_hub_progress *p)
{
    watching *w = user;
    qn_transfer_line_put(&w->line, p);
}

qn_status qn_model_name_pull(const qn_hub_settings *settings, const qn_hub_name *name,
                             const qn_hub_pull_options *options, qn_hub_pulled *out)
{
    watching w = {.is_cancelled = 0};
    qn_hub_session session = {
        .settings = settings, .is_cancelled = is_cancelled, .note = note, .progress = show, .user = &w};
    const int64_t began_ns = qn_clock_ns();
    char size[32];
    qn_transfer_line_open(&w.line);
    qn_interrupt_start_for_files();
    qn_status status = qn_hub_pull(&session, name, options, out);
    qn_transfer_line_clear(&w.line);
    if (status == QN_OK && out->came_bytes)
        qn_out_note("%s fetched and checked in %.1f s", qn_hub_size_text(out->came_bytes, size, sizeof size),
                    (double)(qn_clock_ns() - began_ns) * 1e-9);
    if (status == QN_E_CANCELLED) qn_out_note("%s", qn_last_error());
    qn_interrupt_stop();
    return status;
}

static qn_status pull(const qn_hub_settings *settings, const qn_hub_name *name, qn_buf *kept)
{
    qn_hub_pulled pulled = {.total_bytes = 0};
    qn_hub_pull_options options = {0};
    qn_buf what = {0};
    qn_hub_name_put(&what, name);
    qn_status status = what.status;
    if (status == QN_OK && !settings->offline_by) qn_out_note("%s is not here yet: fetching it", what.data);
    if (status == QN_OK) status = qn_model_name_pull(settings, name, &options, &pulled);
    if (status == QN_OK) {
        qn_buf_reset(kept);
        qn_buf_puts(kept, pulled.path.data);
        status = kept->status;
    }
    qn_hub_pulled_free(&pulled);
    qn_buf_free(&what);
    return status;
}

static qn_status find(const qn_hub_name *name, const qn_model_name_options *o, qn_buf *kept)
{
    qn_hub_settings settings = {.timeout_s = 0};
    char commit[QN_SUM_HEX_MAX];
    qn_buf what = {0};
    qn_status status = qn_hub_settings_read(&settings);
    if (o->offline) settings.offline_by = "--offline";
    const int is_final = !o->may_fetch || settings.offline_by;
    qn_buf_reset(kept);
    if (status == QN_OK)
        status = qn_store_find(&settings, name, qn_hub_machine_memory(), is_final, kept, commit);
    if (status == QN_E_NOT_FOUND && o->may_fetch) {
        status = pull(&settings, name, kept);
    } else if (status == QN_E_NOT_FOUND) {
        qn_hub_name_put(&what, name);
        status = qn_fail(QN_E_NOT_FOUND, "%s is not on this machine; `quern pull %s` fetches it",
                         what.data ? what.data : "the model", what.data ? what.data : "NAME");
    }
    qn_hub_settings_free(&settings);
    qn_buf_free(&what);
    return status;
}

qn_status qn_model_name_find(const char *text, const qn_model_name_options *options, qn_buf *kept,
                             const char **path)
{
    static const qn_model_name_options none = {0};
    qn_hub_name name = {.kind = QN_HUB_NONE};
    if (!qn_seed_is_path(text) && access(text, F_OK) != 0) QN_TRY(qn_hub_name_read(text, 0, &name));
    if (name.kind == QN_HUB_NONE) {
        *path = text;
        return QN_OK;
    }
    QN_TRY(find(&name, options ? options : &none, kept));
    *path = kept->data;
    return QN_OK;
}

qn_status qn_model_name_take(const char **path, qn_buf *kept)
{
    return qn_model_name_find(*path, NULL, kept, path);
}

qn_status qn_model_name_hint(const char *text, qn_status status)
{
    qn_hub_name name;
    char said[QN_ERROR_TEXT_MAX];
    if (status == QN_OK || access(text, F_OK) == 0) return status;
    snprintf(said, sizeof said, "%s", qn_last_error());
    if (qn_hub_name_read(text, 1, &name) == QN_OK && name.kind == QN_HUB_HF && strncmp(text, "hf:", 3) != 0)
        return qn_fail(status, "%s (a model of the Hub is called hf:%s)", said, text);
    return qn_fail(status, "%s", said);
}
