#include "hub/hub.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "hub/sources.h"
#include "hub/transfer.h"

/* What qn_hub_transfer takes, with the texts that its items borrow. */
typedef struct {
    qn_hub_item *items;
    qn_buf *texts; /* three for each item: what, URL, place */
    size_t n;
    int64_t needed_bytes; /* on the disk */
} order;

static int64_t size_of(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) ? (int64_t)info.st_size : -1;
}

/* Is the file here already, as a blob or (where Python could make no links) as a file of the snapshot? */
static qn_status look(const char *folder, const char *commit, const qn_hub_file *file, qn_buf *blob,
                      int *is_here)
{
    qn_buf link = {0};
    qn_status status = qn_store_blob(folder, file->hex, blob);
    *is_here = status == QN_OK && size_of(blob->data) == file->size;
    if (status == QN_OK && !*is_here) {
        status = qn_store_snapshot(folder, commit, file->path, &link);
        *is_here = status == QN_OK && size_of(link.data) == file->size;
    }
    qn_buf_free(&link);
    return status;
}

static int is_ordered(const order *o, const char *hex)
{
    for (size_t i = 0; i < o->n; i++)
        if (strcmp(o->items[i].hex, hex) == 0) return 1;
    return 0;
}

static qn_status add_item(const qn_hub_session *s, const char *what, const qn_hub_name *name,
                          const qn_hub_listing *l, const qn_hub_file *file, const char *place, order *o)
{
    qn_buf *texts = &o->texts[3 * o->n];
    qn_buf_printf(&texts[0], "%s: %s", what, file->path);
    qn_buf_puts(&texts[2], place);
    QN_TRY(qn_hub_file_url(s->settings, name, l, file, &texts[1]));
    QN_TRY(texts[0].status);
    QN_TRY(texts[2].status);
    o->items[o->n++] = (qn_hub_item){.what = texts[0].data,
                                     .url = texts[1].data,
                                     .token = l->token,
                                     .place = texts[2].data,
                                     .etag = file->etag,
                                     .size = file->size,
                                     .sum = file->sum,
                                     .hex = file->hex,
                                     .must_be_gguf = l->must_be_gguf};
    const int64_t left = qn_store_left_bytes(place);
    o->needed_bytes += file->size > left ? file->size - left : 0;
    return QN_OK;
}

/* Which of the chosen files have to come. */
static qn_status make_order(const qn_hub_session *s, const char *what, const qn_hub_name *name,
                            const char *folder, const qn_hub_listing *l, qn_hub_pulled *out, order *o)
{
    qn_buf blob = {0};
    qn_status status = QN_OK;
    o->items = qn_calloc(out->files.n, sizeof *o->items);
    o->texts = qn_calloc(3 * out->files.n, sizeof *o->texts);
    if (!o->items || !o->texts) return QN_E_NOMEM;
    out->total_bytes = out->here_bytes = 0;
    for (size_t i = 0; i < out->files.n && status == QN_OK; i++) {
        const qn_hub_file *file = &out->files.files[i];
        int is_here = 0;
        out->total_bytes += file->size;
        status = look(folder, l->commit, file, &blob, &is_here);
        if (is_here || is_ordered(o, file->hex))
            out->here_bytes += file->size;
        else if (status == QN_OK)
            status = add_item(s, what, name, l, file, blob.data, o);
    }
    qn_buf_free(&blob);
    return status;
}

static void free_order(order *o, size_t n_files)
{
    for (size_t i = 0; o->texts && i < 3 * n_files; i++) qn_buf_free(&o->texts[i]);
    qn_free(o->texts);
    qn_free(o->items);
}

/* The URL that a folder is called after only by a sum. */
static qn_status note_url(const char *folder, const qn_hub_name *name)
{
    qn_buf path = {0};
    qn_status status = QN_OK;
    if (name->kind != QN_HUB_URL) return QN_OK;
    qn_buf_printf(&path, "%s/url", folder);
    QN_TRY(path.status);
    int file = open(path.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file < 0 || write(file, name->url, strlen(name->url)) != (ssize_t)strlen(name->url))
        status = qn_fail(QN_E_IO, "%s: %s", path.data, strerror(errno));
    if (file >= 0) close(file);
    qn_buf_free(&path);
    return status;
}

/* With the lock held: what is missing comes, then links and the reference. */
static qn_status fetch(const qn_hub_session *s, const char *what, const qn_hub_name *name, const char *folder,
                       const qn_hub_listing *l, qn_hub_pulled *out)
{
    order o = {0};
    qn_buf blob = {0};
    qn_status status = make_order(s, what, name, folder, l, out, &o);
    if (status == QN_OK) status = qn_store_blob(folder, "x", &blob);
    if (status == QN_OK) status = qn_store_make_parents(blob.data);
    if (status == QN_OK) status = qn_store_check_room(folder, o.needed_bytes);
    if (status == QN_OK) status = qn_hub_transfer(s, o.items, o.n, out->here_bytes);
    if (status == QN_OK) status = note_url(folder, name);
    if (status == QN_OK) status = qn_store_link(folder, l->commit, &out->files);
    if (status == QN_OK)
        status = qn_store_set_ref(folder, name->kind == QN_HUB_URL ? "main" : name->revision, l->commit);
    if (status == QN_OK) out->came_bytes = out->total_bytes - out->here_bytes;
    qn_buf_free(&blob);
    free_order(&o, out->files.n);
    return status;
}

/* Which files: those that the source lists, or the choice among them. */
static qn_status choose(const char *what, const qn_hub_name *name, const qn_hub_listing *l, int64_t memory,
                        qn_hub_choice *c)
{
    if (name->kind == QN_HUB_HF) return qn_hub_choose(what, &l->files, name->pick, memory, c);
    return qn_hub_choose(what, &l->files, "", memory, c);
}

static qn_status pull(const qn_hub_session *s, const char *what, const qn_hub_name *name,
                      const qn_hub_pull_options *options, qn_hub_pulled *out)
{
    qn_hub_listing listing = {0};
    qn_hub_choice choice = {.no_tower = options->no_mmproj};
    qn_buf folder = {0};
    order o = {0};
    int lock = -1;
    const int64_t memory = options->memory_bytes ? options->memory_bytes : qn_hub_machine_memory();
    qn_status status = qn_hub_list_source(s, what, name, &listing);
    if (status == QN_OK) status = choose(what, name, &listing, memory, &choice);
    if (status == QN_OK) status = qn_store_folder(s->settings, name, &folder);
    if (status == QN_OK) status = qn_store_model_path(folder.data, listing.commit, choice.main, &out->path);
    if (status != QN_OK) goto out;
    out->files = choice.files; /* taken over */
    choice.files = (qn_hub_files){0};
    memcpy(out->commit, listing.commit, sizeof out->commit);
    memcpy(out->why, choice.why, sizeof out->why);
    if (options->dry_run) {
        status = make_order(s, what, name, folder.data, &listing, out, &o);
        goto out;
    }
    if (out->why[0]) qn_hub_note(s, "%s", out->why);
    status = qn_store_lock(s, folder.data, &lock);
    if (status == QN_OK) status = fetch(s, what, name, folder.data, &listing, out);
    if (status == QN_OK) status = qn_store_model_path(folder.data, listing.commit, choice.main, &out->path);
out:
    qn_store_unlock(lock);
    free_order(&o, out->files.n);
    qn_buf_free(&folder);
    qn_hub_choice_free(&choice);
    qn_hub_listing_free(&listing);
    return status;
}

qn_status qn_hub_pull(qn_hub_session *s, const qn_hub_name *name, const qn_hub_pull_options *options,
                      qn_hub_pulled *out)
{
    qn_buf what = {0};
    qn_hub_name_put(&what, name);
    qn_status status = what.status;
    if (status == QN_OK) status = qn_hub_settings_check_online(s->settings, what.data);
    if (status == QN_OK) status = qn_net_open(s->settings->timeout_s, &s->net);
    if (status == QN_OK) status = pull(s, what.data, name, options, out);
    qn_net_close(s->net);
    s->net = NULL;
    qn_buf_free(&what);
    return status;
}

void qn_hub_pulled_free(qn_hub_pulled *p)
{
    qn_buf_free(&p->path);
    qn_hub_files_free(&p->files);
}
