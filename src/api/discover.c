/* The walk of discover.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "api/discovery.h"
#include "base/arena.h"
#include "base/buf.h"
#include "base/bytes/part_name.h"
#include "base/map.h"
#include "base/mem.h"
#include "format/source/projector_file.h"
#include "seed/seed.h"

enum { DEPTH_DEFAULT = 32, DEPTH_MAX = 256 };
/* What the names of one folder may take; a million of usual length. */
static const size_t listing_bytes_max = (size_t)64 << 20;

typedef struct {
    const qn_discover_options *options;
    int depth_max;
    qn_discover_fn *fn;
    void *user;
    qn_buf path;       /* of the folder at hand */
    qn_map *visited;   /* (device, inode) of folders, only while links are followed; NULL else */
    qn_arena identity; /* its keys */
} walk;

typedef struct {
    dev_t device;
    ino_t inode;
} identity;

typedef struct {
    const char *name;
    size_t size_bytes;
} entry;

typedef struct {
    entry *items;
    size_t count, capacity;
} entries;

/* What one folder holds of interest. */
typedef struct {
    qn_arena arena;
    entries folders, gguf, safetensors;
    int config, index, pickled; /* config.json, a shard index, weights of PyTorch's own format */
} listing;

/* A GGUF file, or the parts of a split one. */
typedef struct {
    const char *name; /* of the lowest part */
    int64_t n_files, n_parts;
    size_t size_bytes;
} gguf_set;

static int ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && memcmp(s + n - m, end, m) == 0;
}

static qn_status add(listing *l, entries *to, const char *name, size_t size_bytes)
{
    if (to->count == to->capacity) {
        size_t wanted = to->capacity ? 2 * to->capacity : 16;
        entry *p = qn_realloc(to->items, wanted * sizeof *p);
        if (!p) return QN_E_NOMEM;
        to->items = p;
        to->capacity = wanted;
    }
    size_t n = strlen(name);
    if (l->arena.total_bytes + n > listing_bytes_max)
        return qn_fail(QN_E_FULL, "there are too many files and folders; the rest is skipped");
    const char *copy = qn_arena_strndup(&l->arena, name, n);
    if (!copy) return QN_E_NOMEM;
    to->items[to->count++] = (entry){copy, size_bytes};
    return QN_OK;
}

static qn_status add_file(listing *l, const char *name, size_t size_bytes)
{
    l->config |= strcmp(name, "config.json") == 0;
    l->index |= strcmp(name, "model.safetensors.index.json") == 0;
    l->pickled |= strncmp(name, "pytorch_model", 13) == 0 && ends_with(name, ".bin");
    if (qn_projector_is_name(name)) return QN_OK; /* the tower of a model, and none itself */
    if (ends_with(name, ".gguf")) return add(l, &l->gguf, name, size_bytes);
    if (ends_with(name, ".safetensors")) return add(l, &l->safetensors, name, size_bytes);
    return QN_OK;
}

static qn_status list_one(const walk *w, listing *l, DIR *dir, const struct dirent *e)
{
    struct stat st = {0};
    int interesting = ends_with(e->d_name, ".gguf") || ends_with(e->d_name, ".safetensors") ||
                      ends_with(e->d_name, ".json") || ends_with(e->d_name, ".bin");
    if (e->d_name[0] == '.' || (e->d_type == DT_REG && !interesting)) return QN_OK;
    if (e->d_type == DT_DIR) return add(l, &l->folders, e->d_name, 0);
    if (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) return QN_OK; /* gone since */
    int is_link = S_ISLNK(st.st_mode);
    /* Of a link that leads nowhere the name counts: who opens it will say so. */
    if (is_link && fstatat(dirfd(dir), e->d_name, &st, 0) != 0)
        return interesting ? add_file(l, e->d_name, 0) : QN_OK;
    if (S_ISDIR(st.st_mode))
        return is_link && !w->options->follow_links ? QN_OK : add(l, &l->folders, e->d_name, 0);
    return S_ISREG(st.st_mode) && interesting ? add_file(l, e->d_name, (size_t)st.st_size) : QN_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

static void sort(entries *e)
{
    if (e->count) qsort(e->items, e->count, sizeof *e->items, by_name);
}

static qn_status fail_io(const walk *w)
{
    /* The end of a very long path, so that the message has room for the reason; the report has all of it. */
    enum { SHOWN_MAX = 512 };
    const char *path = w->path.data, *why = strerror(errno);
    int is_long = w->path.length > SHOWN_MAX;
    return qn_fail(QN_E_IO, "%s%s: %s", is_long ? "..." : "",
                   is_long ? path + w->path.length - SHOWN_MAX : path, why);
}

/* QN_E_IO, QN_E_FULL: what was listed until then counts. */
static qn_status list_folder(const walk *w, listing *l)
{
    DIR *dir = opendir(w->path.data);
    if (!dir) return fail_io(w);
    qn_status status = QN_OK;
    for (struct dirent *e; status == QN_OK && (errno = 0, e = readdir(dir));) status = list_one(w, l, dir, e);
    if (status == QN_OK && errno) status = fail_io(w);
    if (status == QN_E_FULL) qn_fail_prefix(status, "%s", w->path.data);
    closedir(dir);
    sort(&l->folders);
    sort(&l->gguf);
    sort(&l->safetensors);
    return status;
}

static void clear(listing *l)
{
    qn_free(l->folders.items);
    qn_free(l->gguf.items);
    qn_free(l->safetensors.items);
    qn_arena_clear(&l->arena);
}

static qn_status report_problem(const walk *w, qn_status why)
{
    char error[QN_ERROR_TEXT_MAX];
    snprintf(error, sizeof error, "%s", qn_last_error());
    qn_discovery d = {.is_problem = 1,
                      .path = w->path.data,
                      .name = "",
                      .format = "",
                      .model_type = "",
                      .quant = "",
                      .status = why,
                      .error = error};
    return w->fn(w->user, &d);
}

/* Puts "/name" behind the path; returns the length before. */
static size_t push(walk *w, const char *name)
{
    size_t before = w->path.length;
    if (before && w->path.data[before - 1] != '/') qn_buf_putc(&w->path, '/');
    qn_buf_puts(&w->path, name);
    return before;
}

static void pop(walk *w, size_t before)
{
    if (w->path.status != QN_OK) return;
    w->path.length = before;
    w->path.data[before] = 0;
}

/* The model at the path, or at name in it (NULL: at the path itself). */
static qn_status report_model(walk *w, const char *name, qn_discovery *d)
{
    size_t before = w->path.length;
    if (name) push(w, name);
    QN_TRY(w->path.status);
    d->path = w->path.data;
    qn_status status = qn_discovery_report(d, w->fn, w->user);
    pop(w, before);
    return status;
}

/* ---- GGUF files --------------------------------------------------------------------------------------- */

/* Joins parts: their names differ in nothing but the number of the part, so they are found by the name with
 * that number blanked out. */
static qn_status collect_sets(listing *l, qn_map *by_key, gguf_set *sets, size_t *n_sets)
{
    for (size_t i = 0; i < l->gguf.count; i++) {
        const entry *e = &l->gguf.items[i];
        qn_part_name p = {.n_parts = 0};
        int64_t at = 0;
        size_t n = strlen(e->name);
        if (qn_part_name_read(e->name, &p)) {
            char *key = qn_arena_strndup(&l->arena, e->name, n);
            if (!key) return QN_E_NOMEM;
            memset(key + p.n_prefix + 1, '#', 5);
            if (qn_map_get(by_key, key, n, &at)) {
                sets[at].n_files++;
                sets[at].size_bytes += e->size_bytes;
                continue;
            }
            QN_TRY(qn_map_set(by_key, key, n, (int64_t)*n_sets, NULL, NULL));
        }
        sets[(*n_sets)++] = (gguf_set){e->name, 1, p.n_parts, e->size_bytes};
    }
    return QN_OK;
}

static qn_status report_set(walk *w, const gguf_set *set)
{
    char error[128] = "";
    if (set->n_parts && set->n_files != set->n_parts)
        snprintf(error, sizeof error, "only %lld of its %lld parts exist", (long long)set->n_files,
                 (long long)set->n_parts);
    qn_discovery d = {.format = "gguf",
                      .n_files = set->n_files,
                      .size_bytes = set->size_bytes,
                      .status = error[0] ? QN_E_NOT_FOUND : QN_OK,
                      .error = error};
    return report_model(w, set->name, &d);
}

/* The path is named as a part: the others beside it count too. Opening it says which are missing. */
static qn_status report_part(walk *w, const char *path, const qn_part_name *name)
{
    qn_discovery d = {.format = "gguf", .error = ""};
    for (int64_t i = 0; i < name->n_parts; i++) {
        struct stat st;
        qn_buf part = {0};
        qn_part_name_put(&part, path, name, i);
        QN_TRY(part.status);
        if (stat(part.data, &st) == 0) {
            d.n_files++;
            d.size_bytes += (size_t)st.st_size;
        }
        qn_buf_free(&part);
    }
    return report_model(w, NULL, &d);
}

static qn_status report_gguf(walk *w, listing *l)
{
    size_t n = 0;
    if (!l->gguf.count) return QN_OK;
    gguf_set *sets = qn_alloc_array(l->gguf.count, sizeof *sets);
    qn_map *by_key = qn_map_new(16);
    qn_status status = sets && by_key ? collect_sets(l, by_key, sets, &n) : QN_E_NOMEM;
    for (size_t i = 0; i < n && status == QN_OK; i++) {
        status = report_set(w, &sets[i]);
    }
    qn_map_free(by_key);
    qn_free(sets);
    return status;
}

/* ---- safetensors -------------------------------------------------------------------------------------- */

/* Safetensors that are a model's: beside a config.json, or named as a model's weights are. Others (adapters,
 * parts of image generators, test data) are no models by themselves. */
static qn_status report_safetensors(walk *w, const listing *l)
{
    qn_discovery d = {.format = "safetensors", .error = ""};
    const char *last = NULL;
    int named = l->index;
    for (size_t i = 0; i < l->safetensors.count; i++) {
        const entry *e = &l->safetensors.items[i];
        int is_models = strncmp(e->name, "model", 5) == 0;
        if (is_models && !named) { /* the others before it are not the model's */
            d.n_files = 0;
            d.size_bytes = 0;
        }
        named |= is_models;
        if (named && !is_models) continue;
        d.n_files++;
        d.size_bytes += e->size_bytes;
        last = e->name;
    }
    if (!named && !(l->config && (l->safetensors.count || l->pickled))) return QN_OK;
    if (!named && !l->safetensors.count) d.format = "pytorch";
    /* Beside GGUF files the folder as a whole is not one model: name a file of it. */
    const char *name = NULL;
    if (l->gguf.count) name = l->index ? "model.safetensors.index.json" : d.n_files == 1 ? last : NULL;
    return report_model(w, name, &d);
}

/* A folder bin_weights beside config.json, where there is nothing else; whoever opens it counts the files. */
static qn_status report_raw(walk *w, const listing *l)
{
    qn_discovery d = {.format = "bin_weights", .error = ""};
    int is_there = 0;
    for (size_t i = 0; i < l->folders.count; i++)
        is_there |= strcmp(l->folders.items[i].name, "bin_weights") == 0;
    if (!is_there || !l->config || l->safetensors.count || l->index || l->pickled || l->gguf.count)
        return QN_OK;
    return report_model(w, NULL, &d);
}

/* ---- the walk ----------------------------------------------------------------------------------------- */

/* 1: this folder was visited. */
static qn_status mark_visited(walk *w, int *visited)
{
    struct stat st;
    *visited = 0;
    if (!w->visited || stat(w->path.data, &st) != 0) return QN_OK;
    identity *id = qn_arena_calloc(&w->identity, 1, sizeof *id);
    if (!id) return QN_E_NOMEM;
    id->device = st.st_dev;
    id->inode = st.st_ino;
    return qn_map_set(w->visited, id, sizeof *id, 1, NULL, visited);
}

static qn_status visit(walk *w, int depth);

static qn_status visit_folders(walk *w, const listing *l, int depth)
{
    if (!l->folders.count) return QN_OK;
    if (depth == w->depth_max) {
        if (w->options->max_depth) return QN_OK;
        qn_fail(QN_E_FULL, "%s: folders deeper than %d are skipped", w->path.data, depth);
        return report_problem(w, QN_E_FULL);
    }
    for (size_t i = 0; i < l->folders.count; i++) {
        size_t before = push(w, l->folders.items[i].name);
        QN_TRY(w->path.status);
        QN_TRY(visit(w, depth + 1));
        pop(w, before);
    }
    return QN_OK;
}

static qn_status visit(walk *w, int depth)
{
    listing l = {0};
    int visited;
    QN_TRY(mark_visited(w, &visited));
    if (visited) return QN_OK;
    qn_status status = list_folder(w, &l);
    if ((status == QN_E_IO && depth > 1) || status == QN_E_FULL) status = report_problem(w, status);
    if (status == QN_OK) status = report_safetensors(w, &l);
    if (status == QN_OK) status = report_gguf(w, &l);
    if (status == QN_OK) status = report_raw(w, &l);
    if (status == QN_OK) status = visit_folders(w, &l, depth);
    clear(&l);
    return status;
}

static qn_status walk_from(walk *w, const char *path)
{
    struct stat st = {0};
    if (qn_seed_is_path(path)) {
        size_t n;
        qn_seed_bytes(&n);
        st.st_size = (off_t)n;
    } else if (stat(path, &st) != 0) {
        return qn_fail(QN_E_IO, "%s: %s", path, strerror(errno));
    }
    qn_buf_puts(&w->path, path);
    QN_TRY(w->path.status);
    if (S_ISDIR(st.st_mode)) return visit(w, 1);
    qn_part_name part;
    if (qn_part_name_read(path, &part)) return report_part(w, path, &part);
    qn_discovery d = {.format = ends_with(path, ".safetensors") || ends_with(path, ".json") ? "safetensors"
                                                                                            : "gguf",
                      .n_files = 1,
                      .size_bytes = (size_t)st.st_size,
                      .error = ""};
    return report_model(w, NULL, &d);
}

qn_status qn_discover(const char *path, const qn_discover_options *options, qn_discover_fn *fn, void *user)
{
    static const qn_discover_options defaults = {0};
    if (!options) options = &defaults;
    if (!path || !*path || !fn) return qn_fail(QN_E_ARG, "qn_discover: a path and a function are needed");
    if (options->max_depth < 0 || options->max_depth > DEPTH_MAX)
        return qn_fail(QN_E_ARG, "max_depth: %d is not in the range 0 to %d", (int)options->max_depth,
                       DEPTH_MAX);
    walk w = {.options = options,
              .depth_max = options->max_depth ? options->max_depth : DEPTH_DEFAULT,
              .fn = fn,
              .user = user};
    qn_status status = QN_OK;
    if (options->follow_links && !(w.visited = qn_map_new(64))) status = QN_E_NOMEM;
    if (status == QN_OK) status = walk_from(&w, path);
    qn_map_free(w.visited);
    qn_arena_clear(&w.identity);
    qn_buf_free(&w.path);
    return status;
}
