#include "tests/support/models/kinds.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"

/* Kinds that must be known. Others that lie in models/ are tried too, and tested where the library takes
 * them. */
static const char *const known[] = {"llama",
                                    "llama_rope3_tied",
                                    "llama_head_dim",
                                    "mistral",
                                    "qwen2",
                                    "qwen2_yarn",
                                    "qwen2_window",
                                    "deepseek_r1_distill",
                                    "qwen3",
                                    "qwen3_tied",
                                    "qwen3_no_model_type",
                                    "gemma",
                                    "gemma2",
                                    "gemma3_text",
                                    "gemma3",
                                    "qwen3_5",
                                    "qwen3_next",
                                    "deepseek_v3",
                                    "smollm3",
                                    "olmo2",
                                    "phi3",
                                    "phi3_longrope",
                                    "qwen2_vl",
                                    "granite",
                                    "gemma4_text",
                                    "gemma4",
                                    "gemma4_k_eq_v",
                                    "gemma4_moe",
                                    "qwen3_moe",
                                    "mixtral",
                                    "gpt_oss",
                                    NULL};

/* tests/models/models_test.c checks that each is refused: whoever teaches the library a kind takes its line out. */
const qn_test_waiting_kind qn_test_waiting_kinds[] = {{NULL, NULL}};

static int is_waiting(const char *name)
{
    for (const qn_test_waiting_kind *w = qn_test_waiting_kinds; w->name; w++)
        if (strcmp(w->name, name) == 0) return 1;
    return 0;
}

static void add_kind(qn_test_kind_list *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->names[i], name) == 0) return;
    if (l->n == QN_TEST_KINDS_MAX ||
        strlen(name) >= QN_TEST_KIND_BYTES) { /* before cmocka runs: none is left out unseen */
        fprintf(stderr, "no room for the kind %s\n", name);
        exit(1);
    }
    snprintf(l->names[l->n++], QN_TEST_KIND_BYTES, "%s", name);
}

/* 1: the library says that it does not know this kind of model; whatever else is wrong with it is a failure.
 */
static int is_unsupported(const char *dir)
{
    qn_engine *e = NULL;
    qn_status status =
        qn_test_engine_try(dir, &(qn_engine_options){.precision = QN_PRECISION_EXACT, .n_threads = 1}, &e);
    qn_engine_close(e);
    return status == QN_E_UNSUPPORTED;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* 1: a tensor is stored among the golden values. */
static int stores(const char *name, const char *tensor)
{
    char path[160];
    qn_safetensors *st;
    snprintf(path, sizeof path, "models/%.60s/expected.safetensors", name);
    const char *expected = qn_test_fixture(path);
    if (!expected || qn_safetensors_open(expected, &st) != QN_OK) return 0;
    int is_there = qn_safetensors_find(st, tensor) != NULL;
    qn_safetensors_close(st);
    return is_there;
}

/* Adds, in the order of names, what lies in a folder of fixtures. */
static void add_folder(qn_test_kind_list *l, const char *folder, int (*is_kind)(const char *name))
{
    const char *path = qn_test_fixture(folder);
    DIR *dir = path ? opendir(path) : NULL;
    int first = l->n;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char config[160];
        snprintf(config, sizeof config, "%.40s/%.60s/config.json", folder, e->d_name);
        if (qn_test_fixture(config) && is_kind(e->d_name)) add_kind(l, e->d_name);
    }
    if (dir) closedir(dir);
    qsort(l->names[first], (size_t)(l->n - first), sizeof l->names[0], by_name);
}

static int is_taken(const char *name)
{
    char dir[128];
    snprintf(dir, sizeof dir, "models/%.60s", name);
    return !is_unsupported(qn_test_fixture(dir));
}

static int is_further(const char *name)
{
    return !is_waiting(name) && stores(name, "prompt0.logits");
}

/* Encoders have hidden states or types of tokens. */
static int is_encoder(const char *name)
{
    char path[160], config[64 << 10];
    if (is_waiting(name) || stores(name, "prompt0.logits") || stores(name, "pair0.logits")) return 0;
    snprintf(path, sizeof path, "models/%.60s/config.json", name);
    FILE *f = fopen(qn_test_fixture(path), "r");
    const size_t n = f ? fread(config, 1, sizeof config - 1, f) : 0;
    config[n] = '\0';
    if (f) fclose(f);
    return !strstr(config, "ForCausalLM"); /* a decoder that is made to embed is none */
}

void qn_test_encoder_kinds(qn_test_kind_list *l)
{
    add_folder(l, "families2", is_encoder);
}

void qn_test_kinds(qn_test_kind_list *l)
{
    for (int i = 0; known[i]; i++) add_kind(l, known[i]);
    add_folder(l, "models", is_taken);
    add_folder(l, "families2", is_further);
}

int qn_test_kind_rows(int n_rows, const qn_test_kind_row *rows, struct CMUnitTest *tests)
{
    static qn_test_kind_list kinds;
    qn_test_kinds(&kinds);
    return qn_test_rows_of(&kinds, n_rows, rows, tests);
}

int qn_test_rows_of(const qn_test_kind_list *kinds, int n_rows, const qn_test_kind_row *rows,
                    struct CMUnitTest *tests)
{
    enum { ROWS_MAX = 6 };
    static char names[ROWS_MAX * QN_TEST_KINDS_MAX][2 * QN_TEST_KIND_BYTES];
    int n = 0;
    assert_true(n_rows <= ROWS_MAX);
    for (int i = 0; i < kinds->n; i++)
        for (int k = 0; k < n_rows; k++, n++) {
            snprintf(names[n], sizeof names[n], "%.60s%s", rows[k].label, kinds->names[i]);
            tests[n] =
                (struct CMUnitTest){names[n], rows[k].test, NULL, NULL, (void *)(size_t)kinds->names[i]};
        }
    return n;
}
