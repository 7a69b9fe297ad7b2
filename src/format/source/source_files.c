#include "format/source/source_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/bytes/part_name.h"
#include "base/map.h"
#include "base/mem.h"
#include "format/safetensors/json_scan.h"
#include "format/source/packed.h"
#include "format/source/projector_file.h"
#include "seed/seed.h"

enum { NAMES_MAX = 10000, SHARDS_MAX = 10000, NAMES_SHOWN = 8, TEMPLATES_MAX = 64 };
static const size_t index_bytes_max = (size_t)64 << 20;
static const char index_name[] = "model.safetensors.index.json", raw_name[] = "bin_weights";
static const char template_folder[] = "additional_chat_templates", template_end[] = ".jinja";

static const char tiktoken_end[] = ".tiktoken";

static const char *const side_names[QN_SIDE_COUNT] = {
    [QN_SIDE_CONFIG] = "config.json",
    [QN_SIDE_GENERATION_CONFIG] = "generation_config.json",
    [QN_SIDE_TOKENIZER] = "tokenizer.json",
    [QN_SIDE_TOKENIZER_CONFIG] = "tokenizer_config.json",
    [QN_SIDE_CHAT_TEMPLATE] = "chat_template.jinja",
    [QN_SIDE_PREPROCESSOR_CONFIG] = "preprocessor_config.json",
    [QN_SIDE_PROCESSOR_CONFIG] = "processor_config.json",
    [QN_SIDE_SPECIAL_TOKENS_MAP] = "special_tokens_map.json",
    [QN_SIDE_ADDED_TOKENS] = "added_tokens.json",
    [QN_SIDE_CHAT_TEMPLATE_JSON] = "chat_template.json",
    [QN_SIDE_VOCAB] = "vocab.json",
    [QN_SIDE_MERGES] = "merges.txt",
    [QN_SIDE_VOCAB_TXT] = "vocab.txt",
    [QN_SIDE_TOKENIZER_MODEL] = "tokenizer.model",
    [QN_SIDE_TIKTOKEN] = "tiktoken.model",
};

const char *qn_side_file_name(qn_side_file which)
{
    return side_names[which];
}

const char *qn_source_join(qn_arena *arena, const char *folder, const char *name)
{
    size_t n = strlen(folder), m = strlen(name), slash = n && folder[n - 1] != '/';
    char *p = qn_arena_alloc(arena, n + slash + m + 1);
    if (!p) return NULL;
    memcpy(p, folder, n);
    if (slash) p[n] = '/';
    memcpy(p + n + slash, name, m + 1);
    return p;
}

static int ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && memcmp(s + n - m, end, m) == 0;
}

static int is_index(const char *name)
{
    return ends_with(name, ".safetensors.index.json");
}

/* A growing list of borrowed names. */
typedef struct {
    const char **items;
    size_t count, capacity;
} names;

static qn_status names_add(names *l, qn_arena *arena, const char *name)
{
    if (!name) return QN_E_NOMEM;
    if (l->count == l->capacity) {
        size_t wanted = l->capacity ? 2 * l->capacity : 16;
        const char **p = qn_realloc(l->items, wanted * sizeof *p);
        if (!p) return QN_E_NOMEM;
        l->items = p;
        l->capacity = wanted;
    }
    const char *copy = qn_arena_strndup(arena, name, strlen(name));
    if (!copy) return QN_E_NOMEM;
    l->items[l->count++] = copy;
    return QN_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void names_sort(names *l)
{
    if (l->count) qsort(l->items, l->count, sizeof *l->items, by_name);
}

/* "a.gguf, b.gguf and 3 more" for a message. */
static void names_show(const names *l, qn_buf *b)
{
    for (size_t i = 0; i < l->count && i < NAMES_SHOWN; i++)
        qn_buf_printf(b, "%s%s", i ? ", " : "", l->items[i]);
    if (l->count > NAMES_SHOWN) qn_buf_printf(b, " and %zu more", l->count - NAMES_SHOWN);
}

/* What a folder holds of interest. */
typedef struct {
    names gguf, safetensors;
    names foreign, folders; /* weights in formats that are not read; folders in it */
    int index, text;        /* a shard index; a file that tokenising can start from */
    int adapter;            /* adapter_config.json */
} listing;

static void listing_free(listing *l)
{
    qn_free(l->gguf.items);
    qn_free(l->safetensors.items);
    qn_free(l->foreign.items);
    qn_free(l->folders.items);
}

/* Weights of PyTorch, TensorFlow, JAX and NumPy; what a training leaves beside them is none. */
static int is_foreign(const char *name)
{
    static const char *const ends[] = {".pth", ".pt", ".ckpt", ".h5", ".msgpack", ".npz", ".onnx"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, ends[i])) return 1;
    return ends_with(name, ".bin") && (strstr(name, "model") != NULL);
}

static qn_status list_one(listing *l, qn_arena *arena, const char *folder, int fd, const char *name)
{
    struct stat st;
    int gguf = ends_with(name, ".gguf"), safetensors = ends_with(name, ".safetensors");
    int index = strcmp(name, index_name) == 0;
    static const qn_side_file texts[] = {QN_SIDE_TOKENIZER,     QN_SIDE_MERGES,    QN_SIDE_TOKENIZER_CONFIG,
                                         QN_SIDE_CHAT_TEMPLATE, QN_SIDE_VOCAB_TXT, QN_SIDE_TOKENIZER_MODEL,
                                         QN_SIDE_TIKTOKEN};
    int text = ends_with(name, tiktoken_end);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) text |= strcmp(name, side_names[texts[i]]) == 0;
    if (name[0] == '.') return QN_OK;
    /* A link that leads nowhere stays in the list: opening it will say so. */
    int known = fstatat(fd, name, &st, 0) == 0;
    if (known && S_ISDIR(st.st_mode) && l->folders.count < NAMES_MAX)
        return names_add(&l->folders, arena, name);
    if (known && !S_ISREG(st.st_mode)) return QN_OK;
    l->index |= index;
    l->text |= text;
    l->adapter |= strcmp(name, "adapter_config.json") == 0;
    names *list = gguf ? &l->gguf : safetensors ? &l->safetensors : is_foreign(name) ? &l->foreign : NULL;
    if (!list) return QN_OK;
    if (list->count == NAMES_MAX) return qn_fail(QN_E_ARG, "%s: more than %d model files", folder, NAMES_MAX);
    return names_add(list, arena, name);
}

qn_status qn_source_files_find_tiktoken(qn_source_files *f, const char **out)
{
    DIR *dir = opendir(f->folder);
    const char *found = NULL;
    if (!dir) return QN_OK; /* what cannot be listed has been complained of, or is not a folder of a model */
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.' || !ends_with(e->d_name, tiktoken_end)) continue;
        const char *path = qn_source_join(&f->arena, f->folder, e->d_name);
        if (!path) {
            closedir(dir);
            return QN_E_NOMEM;
        }
        if (!found || strcmp(path, found) < 0) found = path;
    }
    closedir(dir);
    if (found) *out = found;
    return QN_OK;
}

/* Files of vision towers are no models, where another file is one. */
static void leave_projectors_out(listing *l)
{
    size_t kept = 0;
    int others = l->index || l->safetensors.count;
    for (size_t i = 0; i < l->gguf.count; i++) others |= !qn_projector_is_name(l->gguf.items[i]);
    if (!others) return;
    for (size_t i = 0; i < l->gguf.count; i++)
        if (!qn_projector_is_name(l->gguf.items[i])) l->gguf.items[kept++] = l->gguf.items[i];
    l->gguf.count = kept;
}

static qn_status list_folder(listing *l, qn_arena *arena, const char *folder)
{
    DIR *dir = opendir(folder);
    if (!dir) return qn_fail(QN_E_IO, "%s: %s", folder, strerror(errno));
    qn_status status = QN_OK;
    for (struct dirent *e; status == QN_OK && (errno = 0, e = readdir(dir));)
        status = list_one(l, arena, folder, dirfd(dir), e->d_name);
    if (status == QN_OK && errno) status = qn_fail(QN_E_IO, "%s: %s", folder, strerror(errno));
    closedir(dir);
    leave_projectors_out(l);
    names_sort(&l->gguf);
    names_sort(&l->safetensors);
    names_sort(&l->foreign);
    names_sort(&l->folders);
    return status;
}

static qn_status set_files(qn_source_files *f, const char *const *file_names, size_t n)
{
    f->files = qn_arena_calloc(&f->arena, n, sizeof *f->files);
    if (!f->files) return QN_E_NOMEM;
    for (; f->n_files < n; f->n_files++) {
        f->files[f->n_files] = qn_source_join(&f->arena, f->folder, file_names[f->n_files]);
        if (!f->files[f->n_files]) return QN_E_NOMEM;
    }
    return QN_OK;
}

/* The parts of an index while it is read. */
typedef struct {
    qn_arena *arena;
    const char *path, *folder;
    names files;
    qn_map *file_numbers; /* name -> place in files */
    qn_index_entry *entries;
    size_t count, capacity;
} index_reader;

static qn_status index_add(index_reader *r, const char *tensor, const char *file)
{
    int64_t number;
    /* A plain name cannot lead out of the folder. */
    if (!*file || strchr(file, '/') || strcmp(file, "..") == 0 || strcmp(file, ".") == 0)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: \"%s\" is not the name of a file in the same folder",
                       r->path, tensor, file);
    if (!qn_map_get(r->file_numbers, file, strlen(file), &number)) {
        if (r->files.count == SHARDS_MAX)
            return qn_fail(QN_E_FORMAT, "%s: more than %d files", r->path, SHARDS_MAX);
        const char *path = qn_source_join(r->arena, r->folder, file);
        if (!path) return QN_E_NOMEM;
        if (access(path, F_OK) != 0)
            return qn_fail(QN_E_IO,
                           "%s: %s, which %s names: the model is incomplete, download the file again", path,
                           strerror(errno), r->path);
        number = (int64_t)r->files.count;
        QN_TRY(names_add(&r->files, r->arena, file));
        const char *kept = r->files.items[number];
        QN_TRY(qn_map_set(r->file_numbers, kept, strlen(kept), number, NULL, NULL));
    }
    if (r->count == r->capacity) {
        size_t wanted = r->capacity ? 2 * r->capacity : 256;
        qn_index_entry *p = qn_realloc(r->entries, wanted * sizeof *p);
        if (!p) return QN_E_NOMEM;
        r->entries = p;
        r->capacity = wanted;
    }
    r->entries[r->count++] = (qn_index_entry){tensor, (size_t)number};
    return QN_OK;
}

static qn_status index_parse(index_reader *r, const char *text, size_t n)
{
    qn_json_scan scan = {.what = r->path, .begin = text, .at = text, .end = text + n, .arena = r->arena};
    int first = 1, seen = 0;
    char *key, *file;
    size_t length;
    qn_scan_begin(&scan, '{');
    while (qn_scan_key(&scan, &first, &key, &length)) {
        if (strcmp(key, "weight_map") != 0) {
            qn_scan_skip(&scan);
            continue;
        }
        int first_pair = 1;
        if (seen++) return qn_fail(QN_E_FORMAT, "%s: weight_map appears twice", r->path);
        qn_scan_begin(&scan, '{');
        while (qn_scan_key(&scan, &first_pair, &key, &length)) {
            if (!qn_scan_string(&scan, &file, &length)) break;
            QN_TRY(index_add(r, key, file));
        }
    }
    if (scan.status == QN_OK) qn_scan_end(&scan);
    if (scan.status != QN_OK) return scan.status;
    if (!r->count) return qn_fail(QN_E_FORMAT, "%s: weight_map is missing or empty", r->path);
    return QN_OK;
}

static qn_status read_index(qn_source_files *f, const char *name)
{
    index_reader r = {
        .arena = &f->arena, .path = qn_source_join(&f->arena, f->folder, name), .folder = f->folder};
    char *text = NULL;
    size_t n;
    qn_status status = QN_E_NOMEM;
    r.file_numbers = qn_map_new(64);
    if (!r.path || !r.file_numbers) goto out;
    status = qn_file_read(r.path, index_bytes_max, &text, &n);
    if (status == QN_OK) status = index_parse(&r, text, n);
    if (status != QN_OK) goto out;
    f->index_path = r.path;
    status = set_files(f, r.files.items, r.files.count);
    if (status != QN_OK) goto out;
    qn_index_entry *entries = qn_arena_calloc(&f->arena, r.count, sizeof *entries);
    if (!entries) {
        status = QN_E_NOMEM;
        goto out;
    }
    memcpy(entries, r.entries, r.count * sizeof *entries);
    f->entries = entries;
    f->n_entries = r.count;
out:
    qn_free(text);
    qn_free(r.entries);
    qn_free(r.files.items);
    qn_map_free(r.file_numbers);
    return status;
}

/* Files of one model are numbered: model-00002-of-00005.safetensors. One that is missing is said here, where
 * it has a name, and not later by a tensor that it holds. */
static qn_status check_numbers(const qn_source_files *f, const char *const *picked, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int begin = -1, end = -1, number = 0, of = 0;
        if (sscanf(picked[i], "%*[^0-9]%n%5d-of-%5d.safetensors%n", &begin, &number, &of, &end) != 2 ||
            end < 0 || picked[i][end] || of > SHARDS_MAX)
            continue;
        for (int want = 1; want <= of; want++) {
            char name[512];
            int there = 0;
            snprintf(name, sizeof name, "%.*s%05d-of-%05d.safetensors", begin, picked[i], want, of);
            for (size_t j = 0; !there && j < n; j++) there = strcmp(picked[j], name) == 0;
            if (!there)
                return qn_fail(QN_E_NOT_FOUND,
                               "%s: %s is missing beside %s: the model is incomplete, download the file "
                               "again",
                               f->folder, name, picked[i]);
        }
        return QN_OK;
    }
    return QN_OK;
}

/* Of several safetensors without an index those that are named as a model's are taken, else all. */
static qn_status take_shards(qn_source_files *f, const names *all)
{
    const char **picked = qn_arena_calloc(&f->arena, all->count, sizeof *picked);
    size_t n = 0;
    if (!picked) return QN_E_NOMEM;
    for (size_t i = 0; i < all->count; i++)
        if (strncmp(all->items[i], "model", 5) == 0) picked[n++] = all->items[i];
    QN_TRY(check_numbers(f, n ? picked : all->items, n ? n : all->count));
    return n ? set_files(f, picked, n) : set_files(f, all->items, all->count);
}

static qn_status refuse(const char *folder, const char *what, const names *a, const names *b)
{
    qn_buf text = {0};
    names_show(a, &text);
    if (b->count) {
        qn_buf_puts(&text, "; ");
        names_show(b, &text);
    }
    qn_status status = text.status;
    if (status == QN_OK)
        status = qn_fail(QN_E_ARG, "%s: %s: %s. Pick one with --file", folder, what, text.data);
    qn_buf_free(&text);
    return status;
}

/* 1: an adapter's weights, which are no model. */
static int is_adapter_file(const char *name)
{
    return strncmp(name, "adapter", 7) == 0;
}

/* The folders in it that hold models, by a look at their names alone. */
static qn_status find_below(const listing *l, qn_arena *arena, const char *folder, names *found)
{
    enum { FOLDERS_SEEN = 64 };
    for (size_t i = 0; i < l->folders.count && i < FOLDERS_SEEN; i++) {
        const char *path = qn_source_join(arena, folder, l->folders.items[i]);
        if (!path) return QN_E_NOMEM;
        DIR *dir = opendir(path);
        int there = 0;
        for (struct dirent *e; dir && !there && (e = readdir(dir));)
            there = ends_with(e->d_name, ".gguf") || ends_with(e->d_name, ".safetensors");
        if (dir) closedir(dir);
        if (there) QN_TRY(names_add(found, arena, l->folders.items[i]));
    }
    return QN_OK;
}

/* Why this folder is no model, and what to do. */
static qn_status refuse_folder(qn_source_files *f, const listing *l, int text_only)
{
    names below = {0};
    qn_buf text = {0};
    qn_status status = find_below(l, &f->arena, f->folder, &below);
    qn_buf_printf(&text, "%s: ", f->folder);
    if (l->adapter) {
        qn_buf_puts(&text,
                    "this is an adapter (adapter_config.json), not a model: give the model that it was made "
                    "for, and this folder with --adapter");
    } else {
        qn_buf_printf(&text, "there is no model in this folder (no .safetensors and no .gguf file%s)",
                      text_only ? ", no tokenizer" : "");
        if (l->foreign.count) {
            qn_buf_puts(&text, ". It holds ");
            names_show(&l->foreign, &text);
            qn_buf_puts(&text, ": convert the model to safetensors or GGUF");
        }
        if (below.count) {
            qn_buf_puts(&text, ". Folders in it hold models: ");
            names_show(&below, &text);
        }
    }
    if (status == QN_OK) status = text.status;
    if (status == QN_OK) status = qn_fail(l->adapter ? QN_E_ARG : QN_E_NOT_FOUND, "%s", text.data);
    qn_buf_free(&text);
    qn_free(below.items);
    return status;
}

static int holds_folder(const listing *l, const char *name)
{
    for (size_t i = 0; i < l->folders.count; i++)
        if (strcmp(l->folders.items[i], name) == 0) return 1;
    return 0;
}

/* The .bin files in the folder of raw weights. */
static qn_status take_raw(qn_source_files *f)
{
    const char *folder = qn_source_join(&f->arena, f->folder, raw_name);
    names found = {0};
    struct stat st;
    if (!folder) return QN_E_NOMEM;
    DIR *dir = opendir(folder);
    if (!dir) return qn_fail(QN_E_IO, "%s: %s", folder, strerror(errno));
    qn_status status = QN_OK;
    for (struct dirent *e; status == QN_OK && (errno = 0, e = readdir(dir));) {
        if (!ends_with(e->d_name, ".bin") || e->d_name[0] == '.') continue;
        if (fstatat(dirfd(dir), e->d_name, &st, 0) == 0 && !S_ISREG(st.st_mode)) continue;
        if (found.count == NAMES_MAX)
            status = qn_fail(QN_E_ARG, "%s: more than %d files of weights", folder, NAMES_MAX);
        else
            status = names_add(&found, &f->arena, qn_source_join(&f->arena, raw_name, e->d_name));
    }
    if (status == QN_OK && errno) status = qn_fail(QN_E_IO, "%s: %s", folder, strerror(errno));
    closedir(dir);
    names_sort(&found);
    if (status == QN_OK && !found.count)
        status = qn_fail(QN_E_NOT_FOUND, "%s: there are no .bin files in this folder", folder);
    f->kind = QN_SOURCE_RAW;
    if (status == QN_OK) status = set_files(f, found.items, found.count);
    qn_free(found.items);
    return status;
}

static int are_parts(const names *l);

static qn_status take_folder(qn_source_files *f, const qn_source_options *options)
{
    static const names none = {0};
    listing l = {0};
    qn_status status = list_folder(&l, &f->arena, f->folder);
    if (status != QN_OK) goto out;
    int all_adapters = l.adapter && !l.gguf.count && !l.index;
    for (size_t i = 0; i < l.safetensors.count; i++) all_adapters &= is_adapter_file(l.safetensors.items[i]);
    names index_alone = {.items = (const char *[]){index_name}, .count = 1};
    const names *safetensors = l.safetensors.count ? &l.safetensors : l.index ? &index_alone : &none;
    if (all_adapters && !(options->text_only && l.text)) {
        status = refuse_folder(f, &l, options->text_only);
    } else if (l.gguf.count && safetensors->count) {
        status = refuse(f->folder, "holds both GGUF and safetensors", &l.gguf, safetensors);
    } else if (l.gguf.count > 1 && !are_parts(&l.gguf)) {
        status = refuse(f->folder, "holds several GGUF files", &l.gguf, &none);
    } else if (l.gguf.count) {
        f->kind = QN_SOURCE_GGUF;
        status = set_files(f, l.gguf.items, 1);
    } else if (safetensors->count) {
        f->kind = QN_SOURCE_SAFETENSORS;
        if (!options->text_only) status = l.index ? read_index(f, index_name) : take_shards(f, safetensors);
    } else if (options->text_only && l.text) {
        f->kind = QN_SOURCE_TEXT;
    } else if (holds_folder(&l, raw_name)) {
        status = take_raw(f);
    } else {
        status = refuse_folder(f, &l, options->text_only);
    }
out:
    listing_free(&l);
    return status;
}

/* 1: the file begins as a GGUF does. */
static int has_gguf_magic(const char *path)
{
    char magic[4];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return 0;
    int yes =
        read(fd, magic, sizeof magic) == (ssize_t)sizeof magic && memcmp(magic, "GGUF", sizeof magic) == 0;
    close(fd);
    return yes;
}

static qn_status take_file(qn_source_files *f, const char *name, const qn_source_options *options)
{
    const char *path = qn_source_join(&f->arena, f->folder, name);
    if (!path) return QN_E_NOMEM;
    struct stat st;
    if (stat(path, &st) != 0) return qn_fail(QN_E_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return qn_fail(QN_E_ARG, "%s: not a file", path);
    if (ends_with(name, ".gguf") || has_gguf_magic(path)) {
        f->kind = QN_SOURCE_GGUF;
        return set_files(f, &name, 1);
    }
    int packed = qn_packed_is_name(name);
    if (packed && !options->packed)
        return qn_fail(QN_E_ARG,
                       "%s: this file holds packed weights, not a model: give the model that they were made "
                       "from",
                       path);
    if (is_foreign(name))
        return qn_fail(QN_E_ARG, "%s: this format is not supported: convert the model to safetensors or GGUF",
                       path);
    if (ends_with(name, ".json") && !is_index(name))
        return qn_fail(QN_E_ARG, "%s: not a model: give the folder that contains it", path);
    if (!is_index(name) && !packed && !ends_with(name, ".safetensors"))
        return qn_fail(QN_E_ARG, "%s: not a model (neither GGUF nor .safetensors nor a folder)", path);
    f->kind = QN_SOURCE_SAFETENSORS;
    if (options->text_only) return QN_OK;
    return is_index(name) ? read_index(f, name) : set_files(f, &name, 1);
}

/* Nothing lies beside it. */
static qn_status take_seed(qn_source_files *f)
{
    static const char *file = QN_SEED_PATH;
    f->folder = "";
    f->kind = QN_SOURCE_GGUF;
    f->is_seed = 1;
    QN_TRY(set_files(f, &file, 1));
    f->folder = QN_SEED_PATH;
    return QN_OK;
}

qn_status qn_source_files_find(const char *path, const qn_source_options *options, qn_source_files *f)
{
    struct stat st;
    if (!*path) return qn_fail(QN_E_ARG, "the path of the model is empty");
    if (!options->file && qn_seed_is_path(path)) return take_seed(f);
    if (stat(path, &st) != 0) return qn_fail(QN_E_IO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) {
        f->folder = qn_arena_strndup(&f->arena, path, strlen(path));
        if (!f->folder) return QN_E_NOMEM;
        if (!options->file) return take_folder(f, options);
        if (!*options->file || strchr(options->file, '/') || strcmp(options->file, "..") == 0)
            return qn_fail(
                QN_E_ARG,
                "%s: --file \"%s\" is not the name of a file in this folder; to use a file elsewhere, give "
                "its path instead of the folder",
                path, options->file);
        return take_file(f, options->file, options);
    }
    if (options->file)
        return qn_fail(QN_E_ARG, "%s: --file %s selects a file in a folder, but this is a file", path,
                       options->file);
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + 1 : 0;
    f->folder = n ? qn_arena_strndup(&f->arena, path, n) : qn_arena_strndup(&f->arena, ".", 1);
    if (!f->folder) return QN_E_NOMEM;
    return take_file(f, path + n, options);
}

/* ---- parts of a GGUF ------------------------------------------------------------------------------------ */

/* 1: all of them are parts of one model. */
static int are_parts(const names *l)
{
    for (size_t i = 0; i < l->count; i++)
        if (!qn_part_name_is_same(l->items[i], l->items[0])) return 0;
    return l->count > 0;
}

qn_status qn_source_files_add_parts(qn_source_files *f, int64_t part, int64_t n_parts)
{
    const char *path = f->files[0], *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    qn_part_name by_name;
    if (!qn_part_name_read(path, &by_name) || by_name.part != part || by_name.n_parts != n_parts)
        return qn_fail(
            QN_E_FORMAT,
            "%s: this is part %lld of %lld, so its name must end in -%05lld-of-%05lld.gguf: give the "
            "parts their own names again",
            path, (long long)part + 1, (long long)n_parts, (long long)part + 1, (long long)n_parts);
    const char **files = qn_arena_calloc(&f->arena, (size_t)n_parts, sizeof *files);
    names missing = {0};
    qn_status status = files ? QN_OK : QN_E_NOMEM;
    for (int64_t i = 0; i < n_parts && status == QN_OK; i++) {
        qn_buf b = {0};
        qn_part_name_put(&b, path, &by_name, i);
        status = b.status;
        if (status == QN_OK && !(files[i] = qn_arena_strndup(&f->arena, b.data, b.length)))
            status = QN_E_NOMEM;
        if (status == QN_OK && access(files[i], F_OK) != 0)
            status = names_add(&missing, &f->arena, files[i] + (name - path));
        qn_buf_free(&b);
    }
    if (status == QN_OK && missing.count) {
        qn_buf b = {0};
        names_show(&missing, &b);
        status = b.status != QN_OK ? b.status
                                   : qn_fail(QN_E_NOT_FOUND,
                                             "%s: this is part %lld of %lld; missing beside it: %s. Download "
                                             "all parts into one folder",
                                             path, (long long)part + 1, (long long)n_parts, b.data);
        qn_buf_free(&b);
    }
    qn_free(missing.items);
    if (status != QN_OK) return status;
    f->files = files;
    f->n_files = (size_t)n_parts;
    return QN_OK;
}

/* ---- chat templates ------------------------------------------------------------------------------------- */

qn_status qn_source_files_find_templates(qn_source_files *f)
{
    names found = {0};
    const char *folder = qn_source_join(&f->arena, f->folder, template_folder);
    if (!folder) return QN_E_NOMEM;
    DIR *dir = opendir(folder);
    if (!dir && errno != ENOENT && errno != ENOTDIR)
        return qn_fail(QN_E_IO, "%s: %s", folder, strerror(errno));
    qn_status status = QN_OK;
    for (struct dirent *e; dir && status == QN_OK && (errno = 0, e = readdir(dir));) {
        if (!ends_with(e->d_name, template_end) || e->d_name[0] == '.') continue;
        if (found.count == TEMPLATES_MAX)
            status = qn_fail(QN_E_UNSUPPORTED, "%s: more than %d chat templates", folder, TEMPLATES_MAX);
        else
            status = names_add(&found, &f->arena, e->d_name);
    }
    if (dir && status == QN_OK && errno) status = qn_fail(QN_E_IO, "%s: %s", folder, strerror(errno));
    if (dir) closedir(dir);
    names_sort(&found);
    const char **kept = status == QN_OK ? qn_arena_calloc(&f->arena, found.count + 1, sizeof *kept) : NULL;
    if (status == QN_OK && !kept) status = QN_E_NOMEM;
    for (size_t i = 0; kept && i < found.count && status == QN_OK; i++) {
        kept[i] = qn_arena_strndup(&f->arena, found.items[i], strlen(found.items[i]) - strlen(template_end));
        if (!kept[i]) status = QN_E_NOMEM;
    }
    if (status == QN_OK) {
        f->templates = kept;
        f->n_templates = found.count;
    }
    qn_free(found.items);
    return status;
}

char *qn_source_files_template_path(const qn_source_files *f, size_t i)
{
    qn_buf b = {0};
    const size_t n = strlen(f->folder);
    qn_buf_printf(&b, "%s%s%s/%s%s", f->folder, n && f->folder[n - 1] == '/' ? "" : "/", template_folder,
                  f->templates[i], template_end);
    char *path = qn_buf_take(&b, NULL);
    qn_buf_free(&b);
    return path;
}

void qn_source_files_clear(qn_source_files *f)
{
    qn_arena_clear(&f->arena);
    *f = (qn_source_files){0};
}
