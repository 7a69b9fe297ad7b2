/* Whole models against golden values of the reference: logits, greedy ids, hidden states, keys and attention,
 * for every fixture of a known family, with the largest difference of each; and the promise that a sequence's
 * bits do not depend on its company, on chunks or on threads. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tests/engine_help.h"
#include "tests/fixtures.h"
#include "tests/golden_states.h"

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

/* ---- golden values ------------------------------------------------------------------------------------ */

/* The greedy continuation from scratch: one decode step a token. */
static void check_greedy(qn_engine *e, const qn_safetensors *st, int i, const char *kind)
{
    int32_t picked[64];
    const qn_tensor_view *ids = qn_test_tensor(st, "prompt%d.ids", i),
                         *greedy = qn_test_tensor(st, "prompt%d.greedy", i);
    assert_true(greedy->n_elements <= 64);
    qn_test_greedy(e, ids->data, ids->n_elements, picked, greedy->n_elements);
    for (int64_t k = 0; k < greedy->n_elements; k++)
        if (picked[k] != ((const int32_t *)greedy->data)[k])
            fail_msg("%s prompt %d: greedy token %ld is %d, expected %d", kind, i, k, picked[k],
                     ((const int32_t *)greedy->data)[k]);
}

static void golden(void **state)
{
    const char *kind = *state;
    char path[128];
    double logits = 0;
    qn_golden_errors errors = {0};
    snprintf(path, sizeof path, "models/%s", kind);
    const char *dir = qn_test_need_fixture(path);
    snprintf(path, sizeof path, "models/%s/expected.safetensors", kind);
    qn_safetensors *st;
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    qn_engine *e = qn_test_engine(
        dir, NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT, .max_rows = 64, .n_threads = 2});
    for (int i = 0; i < 5; i++) {
        double worst = qn_golden_logits(e, st, i, i == 3 ? &errors : NULL);
        if (!(worst <= logits)) logits = worst;
    }
    print_message("%s: largest differences: logits %.1e, hidden states %.1e, keys %.1e, attention %.1e\n",
                  kind, logits, errors.hidden, errors.keys, errors.attention);
    assert_true(errors.n_hidden >= 2); /* a layer at least */
    if (errors.first[0]) fail_msg("%s is the first to leave the tolerance", errors.first);
    assert_true(logits <= qn_golden_tolerance(kind));
    for (int i = 0; i < 5; i++) check_greedy(e, st, i, kind);
    qn_engine_close(e);
    qn_safetensors_close(st);
}

/* Long enough that windows of 16 and 20 leave pages of 32 behind; on the slower sets just so. */
static void same_bits(void **state)
{
    char path[128];
    snprintf(path, sizeof path, "models/%s", (const char *)*state);
    const char *dir = qn_test_need_fixture(path);
    for (const char *const *set = qn_kernels_names(); *set; set++)
        for (int p = 0; p < 3; p++)
            qn_test_same_bits(&(qn_test_bits){*state, dir, *set, (qn_precision)p, set[1] ? 54 : 70, 400,
                                              set[1] != NULL, QN_KV_AUTO});
}

/* ---- which models ------------------------------------------------------------------------------------- */

enum { KINDS_MAX = 256, NAME_BYTES = 64 };

typedef struct {
    char names[KINDS_MAX][NAME_BYTES];
    int n;
} kind_list;

static void add_kind(kind_list *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->names[i], name) == 0) return;
    if (l->n == KINDS_MAX || strlen(name) >= NAME_BYTES) { /* before cmocka runs: none is left out unseen */
        fprintf(stderr, "models_test: no room for the kind %s\n", name);
        exit(1);
    }
    snprintf(l->names[l->n++], NAME_BYTES, "%s", name);
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

static void find_kinds(kind_list *l)
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

/* An argument picks tests by name: '*phi3*'. */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[2 * KINDS_MAX];
    static char labels[2 * KINDS_MAX][2 * NAME_BYTES];
    static kind_list kinds;
    int n = 0;
    find_kinds(&kinds);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    for (int i = 0; i < kinds.n; i++) {
        snprintf(labels[n], sizeof labels[n], "golden_%s", kinds.names[i]);
        tests[n] = (struct CMUnitTest){labels[n], golden, NULL, NULL, kinds.names[i]};
        n++;
        snprintf(labels[n], sizeof labels[n], "same_bits_%s", kinds.names[i]);
        tests[n] = (struct CMUnitTest){labels[n], same_bits, NULL, NULL, kinds.names[i]};
        n++;
    }
    return _cmocka_run_group_tests("models", tests, (size_t)n, NULL, NULL);
}
