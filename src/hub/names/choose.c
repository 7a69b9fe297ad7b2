#include "hub/names/choose.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/bytes/part_name.h"
#include "hub/names/gguf_set.h"

typedef enum { COMPUTED, LARGE, ONLY_NAMED, NOT_COMPUTED } quant_use;
static const struct {
    const char *label;
    quant_use
        use; /* LARGE: more than 8 bits gain nothing that shows. ONLY_NAMED: mixtures that differ by maker */
} quants[] = {
    {"Q4_K_M", COMPUTED},      {"Q4_K_S", COMPUTED},      {"Q4_K_L", COMPUTED},
    {"Q4_0", COMPUTED},        {"Q4_1", COMPUTED},        {"Q5_K_M", COMPUTED},
    {"Q5_K_S", COMPUTED},      {"Q5_K_L", COMPUTED},      {"Q5_0", COMPUTED},
    {"Q5_1", COMPUTED},        {"Q6_K", COMPUTED},        {"Q6_K_L", COMPUTED},
    {"Q8_0", COMPUTED},        {"MXFP4", COMPUTED},       {"F16", LARGE},
    {"FP16", LARGE},           {"BF16", LARGE},           {"F32", LARGE},
    {"Q4_K_XL", ONLY_NAMED},   {"Q5_K_XL", ONLY_NAMED},   {"Q6_K_XL", ONLY_NAMED},
    {"Q8_K_XL", ONLY_NAMED},   {"Q2_K", NOT_COMPUTED},    {"Q2_K_S", NOT_COMPUTED},
    {"Q2_K_L", NOT_COMPUTED},  {"Q2_K_XL", NOT_COMPUTED}, {"Q3_K_S", NOT_COMPUTED},
    {"Q3_K_M", NOT_COMPUTED},  {"Q3_K_L", NOT_COMPUTED},  {"Q3_K_XL", NOT_COMPUTED},
    {"IQ1_S", NOT_COMPUTED},   {"IQ1_M", NOT_COMPUTED},   {"IQ2_XXS", NOT_COMPUTED},
    {"IQ2_XS", NOT_COMPUTED},  {"IQ2_S", NOT_COMPUTED},   {"IQ2_M", NOT_COMPUTED},
    {"IQ3_XXS", NOT_COMPUTED}, {"IQ3_XS", NOT_COMPUTED},  {"IQ3_S", NOT_COMPUTED},
    {"IQ3_M", NOT_COMPUTED},   {"IQ4_XS", NOT_COMPUTED},  {"IQ4_NL", NOT_COMPUTED},
    {"TQ1_0", NOT_COMPUTED},   {"TQ2_0", NOT_COMPUTED},
};
enum { N_QUANTS = sizeof quants / sizeof *quants };

/* No tokenizer or configuration is larger: what is larger is data. */
#define BESIDE_BYTES_MAX ((int64_t)256 << 20)

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), length = strlen(end);
    return n >= length && strcasecmp(s + n - length, end) == 0;
}

static int is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* -1: name, up to end, has none of the table. */
static int find_quant(const char *name, const char *end)
{
    for (const char *p = name; p < end; p++) {
        if (p > name && is_word(p[-1])) continue;
        for (int i = 0; i < N_QUANTS; i++) {
            const size_t n = strlen(quants[i].label);
            if (strncasecmp(p, quants[i].label, n) == 0 && !is_word(p[n])) return i;
        }
    }
    return -1;
}

/* By the file's own name. */
static int quant_index(const char *path)
{
    return find_quant(last_part(path), path + strlen(path));
}

/* By the file's name, or if it has none by its folder's: Q4_K_M/model-00001-of-00003.gguf. */
static int quant_index_with_folder(const char *path)
{
    const char *name = last_part(path), *folder = name > path ? name - 1 : name;
    const int i = quant_index(path);
    while (folder > path && folder[-1] != '/') folder--;
    return i < 0 && name > path ? find_quant(folder, name - 1) : i;
}

const char *qn_hub_quant_of(const char *path)
{
    const int i = quant_index(path);
    return i < 0 ? "" : quants[i].label;
}

int qn_hub_is_tower(const char *path)
{
    return strcasestr(last_part(path), "mmproj") != NULL;
}

qn_hub_pick qn_hub_pick_read(const qn_hub_files *all, const char *text)
{
    qn_hub_pick pick = {.text = text};
    for (size_t i = 0; i < all->n && !pick.is_path; i++) pick.is_path = strcmp(all->files[i].path, text) == 0;
    return pick;
}

/* "UD-Q4_K_XL" of m-UD-Q4_K_XL.gguf: a quantisation with what its maker calls it. */
static int ends_with_quant(const char *path, const char *text)
{
    const char *name = last_part(path), *end = strrchr(name, '.');
    const size_t n = strlen(text);
    qn_part_name part;
    if (qn_part_name_read(path, &part)) end = path + part.n_prefix;
    if (!end || (size_t)(end - name) < n || quant_index(text) < 0) return 0;
    const char *at = end - n;
    return strncasecmp(at, text, n) == 0 && (at == name || at[-1] == '-' || at[-1] == '.');
}

int qn_hub_pick_fits(const qn_hub_pick *pick, const char *path)
{
    const char *name = last_part(path);
    if (strcmp(path, pick->text) == 0 || qn_part_name_is_same(path, pick->text)) return 1;
    if (pick->is_path) return 0;
    if (strcmp(name, pick->text) == 0 || qn_part_name_is_same(name, pick->text)) return 1;
    const int i = quant_index_with_folder(path);
    return (i >= 0 && strcasecmp(quants[i].label, pick->text) == 0) || ends_with_quant(path, pick->text);
}

int64_t qn_hub_memory_needed(int64_t file_bytes)
{
    return file_bytes + file_bytes / 8 + ((int64_t)512 << 20);
}

int64_t qn_hub_machine_memory(void)
{
    const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    int64_t all = pages > 0 && page > 0 ? pages * page : (int64_t)4 << 30;
    char text[32] = "";
    FILE *f = fopen("/sys/fs/cgroup/memory.max", "re");
    if (!f) return all;
    if (fgets(text, sizeof text, f)) {
        const int64_t limit = strtoll(text, NULL, 10); /* "max": 0 */
        if (limit > 0 && limit < all) all = limit;
    }
    fclose(f);
    return all;
}

const char *qn_hub_size_text(int64_t n_bytes, char *text, size_t size)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    double n = (double)n_bytes;
    size_t i = 0;
    while (i < 4 && n >= 999.5) n /= 1000, i++;
    snprintf(text, size, i && n < 99.95 ? "%.1f %s" : "%.0f %s", n, units[i]);
    return text;
}

static qn_status take(qn_hub_choice *c, const qn_hub_file *file)
{
    return qn_hub_files_add(&c->files, file);
}

/* ---- vision towers -------------------------------------------------------------------------------------- */

/* Of the types of towers the least is taken. */
static int tower_rank(const char *path)
{
    static const char *const labels[] = {"F16", "FP16", "BF16", "F32", "Q8_0"};
    enum { N = sizeof labels / sizeof *labels };
    int i = 0;
    while (i < N && strcmp(qn_hub_quant_of(path), labels[i]) != 0) i++;
    return i;
}

/* Letters that a tower's name, behind its mark, begins with as the model's does. */
static size_t shared_letters(const char *tower, const char *model)
{
    static const char mark[] = "mmproj";
    const char *a = last_part(tower), *b = last_part(model);
    size_t n = 0;
    if (strncasecmp(a, mark, sizeof mark - 1) == 0) a += sizeof mark; /* and the dash behind it */
    while (a[n] && tolower((unsigned char)a[n]) == tolower((unsigned char)b[n])) n++;
    return n;
}

static int is_beside_main(const char *path, const char *main)
{
    const size_t n = (size_t)(last_part(main) - main);
    return (size_t)(last_part(path) - path) == n && strncmp(path, main, n) == 0;
}

/* The tower beside the model, of several the one of the best type; of these the one that is named most alike. */
static qn_status take_tower(const qn_hub_files *all, qn_hub_choice *c)
{
    const qn_hub_file *best = NULL;
    int n_best = 0;
    if (c->no_tower || !c->main[0] || qn_hub_is_tower(c->main)) return QN_OK;
    for (size_t i = 0; i < all->n; i++) {
        const qn_hub_file *file = &all->files[i];
        qn_part_name part;
        if (!ends_with(file->path, ".gguf") || !qn_hub_is_tower(file->path) ||
            qn_part_name_read(file->path, &part) || !is_beside_main(file->path, c->main))
            continue;
        const int ahead = best ? tower_rank(best->path) - tower_rank(file->path) : 1;
        const size_t own = shared_letters(file->path, c->main),
                     other = best ? shared_letters(best->path, c->main) : 0;
        if (ahead < 0 || (ahead == 0 && own < other)) continue;
        n_best = ahead == 0 && own == other ? n_best + 1 : 1;
        best = file;
    }
    if (!best) return QN_OK;
    const size_t at = strlen(c->why);
    char size[32];
    if (n_best > 1) {
        snprintf(c->why + at, sizeof c->why - at, "%s%d vision towers are there, and none is taken",
                 at ? "; " : "", n_best);
        return QN_OK;
    }
    snprintf(c->why + at, sizeof c->why - at, "%sthe vision tower %s (%s) comes with it", at ? "; " : "",
             last_part(best->path), qn_hub_size_text(best->size, size, sizeof size));
    return take(c, best);
}

/* ---- models --------------------------------------------------------------------------------------------- */

static qn_status take_gguf(const char *what, const qn_hub_files *all, const qn_hub_gguf *g, qn_hub_choice *c)
{
    const char *path = g->first->path;
    const int i = quant_index_with_folder(path);
    QN_TRY(qn_hub_gguf_take(what, all, g, &c->files));
    snprintf(c->main, sizeof c->main, "%s", path);
    if (!c->why[0] && i >= 0 && quants[i].use == NOT_COMPUTED)
        snprintf(c->why, sizeof c->why, "%s, as named; quern shows such files, but does not compute with %s",
                 path, quants[i].label);
    return QN_OK;
}

/* The names of up to 12 GGUF models, for messages. */
static void put_names(qn_buf *b, const qn_hub_files *all)
{
    int n = 0;
    for (size_t i = 0; i < all->n; i++) {
        qn_hub_gguf g;
        if (!qn_hub_gguf_read(all, i, &g) || qn_hub_is_tower(g.first->path)) continue;
        if (n++ < 12) qn_buf_printf(b, "%s%s", n > 1 ? ", " : "", g.first->path);
    }
    if (n > 12) qn_buf_printf(b, " and %d more", n - 12);
}

static qn_status refuse(qn_status status, const char *what, const char *why, const qn_hub_files *all)
{
    qn_buf names = {0};
    put_names(&names, all);
    if (names.status == QN_OK)
        status = qn_fail(status, "%s: %s%s%s", what, why, names.length ? ". There are: " : "",
                         names.length ? names.data : "");
    else
        status = names.status;
    qn_buf_free(&names);
    return status;
}

/* Of a whole file and a split one of the same name, the whole file is taken. */
static qn_status take_named(const char *what, const qn_hub_files *all, const char *text, qn_hub_choice *c)
{
    const qn_hub_pick pick = qn_hub_pick_read(all, text);
    qn_hub_gguf whole = {0}, set = {0}, g;
    int n_whole = 0, n_sets = 0;
    for (size_t i = 0; i < all->n; i++) {
        if (!qn_hub_pick_fits(&pick, all->files[i].path) || !qn_hub_gguf_read(all, i, &g)) continue;
        if (qn_hub_is_tower(g.first->path) && strcmp(g.first->path, text) != 0) continue;
        if (g.n_parts > 1)
            set = g, n_sets++;
        else
            whole = g, n_whole++;
    }
    if (n_whole == 1) return take_gguf(what, all, &whole, c);
    if (!n_whole && n_sets == 1) return take_gguf(what, all, &set, c);
    char why[640];
    snprintf(why, sizeof why,
             n_whole || n_sets ? "'%s' means several files: name one"
                               : "there is no GGUF file '%s', and none of that quantisation",
             text);
    return refuse(n_whole || n_sets ? QN_E_ARG : QN_E_NOT_FOUND, what, why, all);
}

/* Root level, as a directory of Hugging Face has it. */
static int is_weights(const qn_hub_files *all, const char *path)
{
    int has_model = 0;
    if (strchr(path, '/') || !ends_with(path, ".safetensors")) return 0;
    for (size_t i = 0; i < all->n; i++)
        has_model |= strncmp(all->files[i].path, "model", 5) == 0 && !strchr(all->files[i].path, '/') &&
                     ends_with(all->files[i].path, ".safetensors");
    return !has_model || strncmp(path, "model", 5) == 0;
}

static int is_beside(const qn_hub_file *file)
{
    const char *path = file->path;
    static const char *const names[] = {"merges.txt", "vocab.txt", "tokenizer.model"};
    if (strchr(path, '/') || strstr(path, ".bin.index") || file->size > BESIDE_BYTES_MAX) return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(path, names[i]) == 0) return 1;
    return path[0] != '.' && (ends_with(path, ".json") || ends_with(path, ".jinja"));
}

/* Of a module of sentence-transformers, as modules.json names them: 1_Pooling/config.json, 2_Dense/model.safetensors. */
static int is_of_module(const qn_hub_files *all, const char *path)
{
    int has_modules = 0;
    const char *slash = strchr(path, '/'), *at = path;
    for (size_t i = 0; i < all->n; i++) has_modules |= strcmp(all->files[i].path, "modules.json") == 0;
    while (*at >= '0' && *at <= '9') at++;
    if (!has_modules || !slash || at == path || *at != '_') return 0;
    return strcmp(slash + 1, "config.json") == 0 || strcmp(slash + 1, "model.safetensors") == 0;
}

static qn_status take_safetensors(const qn_hub_files *all, qn_hub_choice *c)
{
    for (size_t i = 0; i < all->n; i++)
        if (is_weights(all, all->files[i].path) || is_beside(&all->files[i]) ||
            is_of_module(all, all->files[i].path))
            QN_TRY(take(c, &all->files[i]));
    return QN_OK;
}

/* May memory decide for it? rank 1: before those of rank 0. */
static int can_be_chosen(const qn_hub_gguf *g, int *rank)
{
    const int i = quant_index_with_folder(g->first->path);
    if (qn_hub_is_tower(g->first->path)) return 0;
    if (i < 0 && strcasestr(last_part(g->first->path), "imatrix"))
        return 0; /* what quantisation was led by */
    if (i >= 0 && (quants[i].use == NOT_COMPUTED || quants[i].use == ONLY_NAMED)) return 0;
    *rank = i < 0 || quants[i].use == COMPUTED;
    return 1;
}

/* What memory decides between. */
typedef struct {
    qn_hub_gguf best, least, cut; /* cut: the first without all of its parts */
    int n, n_cut, has_best;
} gguf_models;

static gguf_models find_models(const qn_hub_files *all, int64_t memory)
{
    gguf_models m = {.n = 0};
    int best_rank = -1, rank;
    for (size_t i = 0; i < all->n; i++) {
        qn_hub_gguf g;
        if (!qn_hub_gguf_read(all, i, &g) || !can_be_chosen(&g, &rank)) continue;
        if (!qn_hub_gguf_is_whole(&g)) {
            if (!m.n_cut++) m.cut = g;
            continue;
        }
        if (!m.n++ || g.size < m.least.size) m.least = g;
        if (qn_hub_memory_needed(g.size) > memory / 2) continue;
        if (!m.has_best || rank > best_rank || (rank == best_rank && g.size > m.best.size))
            m.best = g, best_rank = rank, m.has_best = 1;
    }
    return m;
}

static void add_cut(const gguf_models *m, qn_hub_choice *c)
{
    const size_t at = strlen(c->why);
    if (m->n_cut)
        snprintf(c->why + at, sizeof c->why - at, "%s%s is left out (parts that are there: %lld of %lld)",
                 at ? "; " : "", last_part(m->cut.first->path), (long long)m->cut.n_here,
                 (long long)m->cut.n_parts);
}

static qn_status take_by_memory(const char *what, const qn_hub_files *all, int64_t memory, qn_hub_choice *c)
{
    gguf_models m = find_models(all, memory);
    char size[32], has[32], need[32], parts[48] = "";
    if (!m.n && m.n_cut) return take_gguf(what, all, &m.cut, c); /* which says what is missing */
    if (!m.n)
        return refuse(QN_E_NOT_FOUND, what,
                      "no GGUF file is of a type that quern computes with; one can be named after ':'", all);
    qn_hub_size_text(memory, has, sizeof has);
    if (m.n == 1) {
        qn_hub_size_text(qn_hub_memory_needed(m.least.size), need, sizeof need);
        if (qn_hub_memory_needed(m.least.size) > memory)
            snprintf(c->why, sizeof c->why, "%s takes about %s of memory, of %s", m.least.first->path, need,
                     has);
        add_cut(&m, c);
        return take_gguf(what, all, &m.least, c);
    }
    const char *reason = "is the largest of at most 8 bits that leaves half of the memory free";
    if (!m.has_best) {
        m.best = m.least;
        reason = "is the smallest; none leaves half of the memory free";
    }
    if (qn_hub_memory_needed(m.best.size) > memory) {
        char why[256];
        snprintf(why, sizeof why, "even the smallest of %d files takes about %s of memory, of %s", m.n,
                 qn_hub_size_text(qn_hub_memory_needed(m.best.size), need, sizeof need), has);
        return refuse(QN_E_FULL, what, why, all);
    }
    if (m.best.n_parts > 1) snprintf(parts, sizeof parts, " in %lld parts", (long long)m.best.n_parts);
    snprintf(c->why, sizeof c->why, "of %d files %s (%s%s) %s (%s); another can be named after ':'", m.n,
             last_part(m.best.first->path), qn_hub_size_text(m.best.size, size, sizeof size), parts, reason,
             has);
    add_cut(&m, c);
    return take_gguf(what, all, &m.best, c);
}

static qn_status choose(const char *what, const qn_hub_files *all, const char *pick, int64_t memory,
                        qn_hub_choice *out)
{
    int64_t weights = 0;
    int n_weights = 0, n_gguf = 0, n_torch = 0;
    char size[32], has[32];
    for (size_t i = 0; i < all->n; i++) {
        const char *path = all->files[i].path;
        if (is_weights(all, path)) weights += all->files[i].size, n_weights++;
        n_gguf += ends_with(path, ".gguf") && !qn_hub_is_tower(path);
        n_torch += ends_with(path, ".bin") || ends_with(path, ".pth") || ends_with(path, ".pt");
    }
    if (pick[0] && !(n_weights && ends_with(pick, ".safetensors"))) return take_named(what, all, pick, out);
    if (!n_weights && !n_gguf)
        return qn_fail(QN_E_NOT_FOUND, "%s: there are neither safetensors nor GGUF files%s", what,
                       n_torch ? "; PyTorch's files must be converted first" : "");
    if (!n_weights) return take_by_memory(what, all, memory, out);
    const int fits = qn_hub_memory_needed(weights) <= memory / 2;
    if (!pick[0] && !fits && n_gguf && take_by_memory(what, all, memory, out) == QN_OK) return QN_OK;
    const int no_tower = out->no_tower;
    qn_hub_choice_free(out);
    out->no_tower = no_tower;
    qn_hub_size_text(qn_hub_memory_needed(weights), size, sizeof size);
    qn_hub_size_text(memory, has, sizeof has);
    if (qn_hub_memory_needed(weights) > memory)
        snprintf(out->why, sizeof out->why, "%s takes about %s of memory, of %s", what, size, has);
    else if (n_gguf && !pick[0])
        snprintf(out->why, sizeof out->why, "the safetensors, which fit; GGUF files are named after ':'");
    return take_safetensors(all, out);
}

qn_status qn_hub_choose(const char *what, const qn_hub_files *all, const char *pick, int64_t memory,
                        qn_hub_choice *out)
{
    QN_TRY(choose(what, all, pick, memory, out));
    return take_tower(all, out);
}

void qn_hub_choice_free(qn_hub_choice *c)
{
    qn_hub_files_free(&c->files);
    *c = (qn_hub_choice){0};
}
