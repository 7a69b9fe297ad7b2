#include "hub/names/gguf_set.h"

#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/bytes/part_name.h"

int qn_hub_gguf_read(const qn_hub_files *all, size_t i, qn_hub_gguf *out)
{
    const qn_hub_file *file = &all->files[i];
    const size_t n = strlen(file->path);
    qn_part_name own, other;
    if (n < 5 || strcasecmp(file->path + n - 5, ".gguf") != 0) return 0;
    qn_hub_gguf g = {.first = file, .n_parts = 1, .n_here = 1, .size = file->size};
    if (!qn_part_name_read(file->path, &own)) {
        *out = g;
        return 1;
    }
    g.n_parts = own.n_parts;
    for (size_t j = 0; j < all->n; j++) {
        const char *path = all->files[j].path;
        if (j == i || strncmp(path, file->path, own.n_prefix) != 0 || !qn_part_name_is_same(path, file->path))
            continue;
        if (!qn_part_name_read(path, &other) || other.part < own.part) return 0;
        g.n_here++;
        g.size += all->files[j].size;
    }
    *out = g;
    return 1;
}

/* *out: the file of part i; NULL: it is missing. */
static qn_status find_part(const qn_hub_files *all, const qn_hub_gguf *g, int64_t i, const qn_hub_file **out)
{
    qn_part_name name;
    qn_buf path = {0};
    *out = g->first;
    if (!qn_part_name_read(g->first->path, &name)) return QN_OK;
    *out = NULL;
    qn_part_name_put(&path, g->first->path, &name, i);
    for (size_t k = 0; path.status == QN_OK && !*out && k < all->n; k++)
        if (strcmp(all->files[k].path, path.data) == 0) *out = &all->files[k];
    const qn_status status = path.status;
    qn_buf_free(&path);
    return status;
}

static qn_status fail_missing(const char *what, const qn_hub_gguf *g, int64_t i)
{
    qn_part_name name;
    qn_buf path = {0};
    qn_part_name_read(g->first->path, &name);
    qn_part_name_put(&path, g->first->path, &name, i);
    const qn_status status =
        path.status != QN_OK
            ? path.status
            : qn_fail(QN_E_NOT_FOUND, "%s: %s is missing (parts that are there: %lld of %lld)", what,
                      path.data, (long long)g->n_here, (long long)g->n_parts);
    qn_buf_free(&path);
    return status;
}

qn_status qn_hub_gguf_take(const char *what, const qn_hub_files *all, const qn_hub_gguf *g,
                           qn_hub_files *files)
{
    for (int64_t i = 0; i < g->n_parts; i++) {
        const qn_hub_file *part;
        QN_TRY(find_part(all, g, i, &part));
        if (!part) return fail_missing(what, g, i);
        QN_TRY(qn_hub_files_add(files, part));
    }
    return QN_OK;
}
