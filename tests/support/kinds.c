#include "tests/support/kinds.h"

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

void qn_test_kinds(qn_test_kind_list *l)
{
    const char *models = qn_test_fixture("models");
    DIR *folder = models ? opendir(models) : NULL;
    for (int i = 0; known[i]; i++) add_kind(l, known[i]);
    int n_known = l->n;
    for (struct dirent *e; folder && (e = readdir(folder));) {
        char config[160], dir[128];
        snprintf(dir, sizeof dir, "models/%.60s", e->d_name);
        snprintf(config, sizeof config, "%s/config.json", dir);
        if (qn_test_fixture(config) && !is_unsupported(qn_test_fixture(dir))) add_kind(l, e->d_name);
    }
    if (folder) closedir(folder);
    qsort(l->names[n_known], (size_t)(l->n - n_known), sizeof l->names[0], by_name);
}

int qn_test_kind_rows(int n_rows, const qn_test_kind_row *rows, struct CMUnitTest *tests)
{
    enum { ROWS_MAX = 6 };
    static qn_test_kind_list kinds;
    static char names[ROWS_MAX * QN_TEST_KINDS_MAX][2 * QN_TEST_KIND_BYTES];
    int n = 0;
    assert_true(n_rows <= ROWS_MAX);
    qn_test_kinds(&kinds);
    for (int i = 0; i < kinds.n; i++)
        for (int k = 0; k < n_rows; k++, n++) {
            snprintf(names[n], sizeof names[n], "%.60s%s", rows[k].label, kinds.names[i]);
            tests[n] = (struct CMUnitTest){names[n], rows[k].test, NULL, NULL, kinds.names[i]};
        }
    return n;
}
