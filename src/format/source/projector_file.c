#include "format/source/projector_file.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

enum { NAME_MAX_BYTES = 256, FILES_MAX = 64 };
static const char mark[] = "mmproj", end[] = ".gguf";

typedef struct {
    char name[NAME_MAX_BYTES];
    char stem[NAME_MAX_BYTES]; /* the name without the mark, the type and the end, in small letters */
    int rank;                  /* of the type; the least is taken */
} candidate;

static const struct {
    const char *type;
    int rank;
} types[] = {{"bf16", 1}, {"f16", 0}, {"fp16", 0}, {"f32", 2}, {"q8_0", 3}};
enum { RANK_OTHER = 4 };

int qn_projector_is_name(const char *name)
{
    const size_t n = strlen(name), m = sizeof end - 1;
    return n > m && strcasecmp(name + n - m, end) == 0 && strcasestr(name, mark);
}

/* Takes text[at, at + n) out, and a mark that parts words before or behind it. */
static void cut(char *text, size_t at, size_t n)
{
    static const char marks[] = "-_.";
    const size_t length = strlen(text);
    if (text[at + n] && strchr(marks, text[at + n]))
        n++;
    else if (at && strchr(marks, text[at - 1]))
        at--, n++;
    memmove(text + at, text + at + n, length - at - n + 1);
}

static void describe(candidate *c)
{
    for (size_t i = 0; i <= strlen(c->name); i++) c->stem[i] = (char)tolower((unsigned char)c->name[i]);
    c->stem[strlen(c->stem) - (sizeof end - 1)] = '\0';
    cut(c->stem, (size_t)(strstr(c->stem, mark) - c->stem), sizeof mark - 1);
    c->rank = RANK_OTHER;
    for (size_t i = 0; i < sizeof types / sizeof *types && c->rank == RANK_OTHER; i++) {
        const char *at = strstr(c->stem, types[i].type);
        if (!at) continue;
        c->rank = types[i].rank;
        cut(c->stem, (size_t)(at - c->stem), strlen(types[i].type));
    }
    if (strcmp(c->stem, "model") == 0) c->stem[0] = '\0'; /* mmproj-model-f16.gguf */
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const candidate *)a)->name, ((const candidate *)b)->name);
}

static qn_status list(const char *folder, candidate *found, size_t *n)
{
    DIR *dir = opendir(*folder ? folder : ".");
    if (!dir) return QN_OK; /* a file in it was opened: it may be readable, but not its folder */
    for (struct dirent *e; *n < FILES_MAX && (e = readdir(dir));) {
        if (e->d_name[0] == '.' || !qn_projector_is_name(e->d_name) || strlen(e->d_name) >= NAME_MAX_BYTES)
            continue;
        memcpy(found[*n].name, e->d_name, strlen(e->d_name) + 1);
        describe(&found[(*n)++]);
    }
    closedir(dir);
    if (*n) qsort(found, *n, sizeof *found, by_name);
    return QN_OK;
}

/* Leaves those whose stem is in the model's name, if there are any. */
static void keep_named(candidate *found, size_t *n, const char *model)
{
    size_t kept = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < *n; i++) {
            if (!found[i].stem[0] || !strcasestr(model, found[i].stem)) continue;
            if (pass) found[kept] = found[i];
            kept++;
        }
        if (!kept) return;
        if (!pass) kept = 0;
    }
    *n = kept;
}

static void put_path(qn_buf *out, const char *folder, const char *name)
{
    const size_t n = strlen(folder);
    qn_buf_printf(out, "%s%s%s", folder, n && folder[n - 1] != '/' ? "/" : "", name);
}

qn_status qn_projector_find(const char *folder, const char *model, qn_buf *out, qn_buf *why)
{
    size_t n = 0, best = 0;
    int is_one = 1;
    candidate *found = qn_alloc_array(FILES_MAX, sizeof *found);
    if (!found) return QN_E_NOMEM;
    qn_status status = list(folder, found, &n);
    if (n > 1) keep_named(found, &n, model);
    for (size_t i = 1; i < n; i++) {
        is_one &= strcmp(found[i].stem, found[0].stem) == 0;
        if (found[i].rank < found[best].rank) best = i;
    }
    for (size_t i = 0; i < n; i++) is_one &= i == best || found[i].rank != found[best].rank;
    if (status == QN_OK && n && is_one) {
        put_path(out, folder, found[best].name);
    } else if (status == QN_OK && n) {
        qn_buf_printf(why, "%zu vision towers lie beside the model, and none is taken (", n);
        for (size_t i = 0; i < n && i < 4; i++) qn_buf_printf(why, "%s%s", i ? ", " : "", found[i].name);
        qn_buf_printf(why, "%s): --mmproj names one", n > 4 ? ", .." : "");
    }
    qn_free(found);
    if (status == QN_OK) status = out->status;
    return status == QN_OK ? why->status : status;
}
