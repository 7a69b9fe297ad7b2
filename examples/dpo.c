/* Preferences (DPO, Rafailov et al. 2023): dpo MODEL PAIRS [OUT]. A line of PAIRS is a prompt, a better answer and
 * a worse one, with tabs between; every fourth pair is held out to be tested with. Margin: beta times how much
 * more the better answer has gained than the worse one.
 * Build: cc dpo.c $(pkg-config --cflags --libs quern) -o dpo */
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

enum { EPOCHS = 4, PAIRS_MAX = 512, LENGTH = 512 };

/* Tokens of a prompt and an answer behind it. */
typedef struct {
    int32_t ids[LENGTH];
    int64_t n_prompt, n;
} answer;
static answer pairs[PAIRS_MAX][2]; /* the better one, the worse one */

static qn_status add(qn_model *model, const char *text, int bos, answer *a)
{
    int32_t *ids;
    int64_t n;
    qn_status status = qn_model_encode(model, text, strlen(text), &(qn_encode_options){.bos = bos}, &ids, &n);
    for (int64_t i = 0; status == QN_OK && i < n && a->n < LENGTH; i++) a->ids[a->n++] = ids[i];
    if (bos) a->n_prompt = a->n;
    qn_buffer_free(ids);
    return status;
}

static qn_status read_pairs(qn_model *model, FILE *file, int *n)
{
    char line[4096];
    qn_status status = QN_OK;
    while (status == QN_OK && *n < PAIRS_MAX && fgets(line, sizeof line, file)) {
        char *rest = NULL, *prompt = strtok_r(line, "\t", &rest);
        const char *texts[2] = {strtok_r(NULL, "\t", &rest), strtok_r(NULL, "\t\n", &rest)};
        for (int i = 0; i < 2 && texts[i] && status == QN_OK; i++) {
            status = add(model, prompt, 1, &pairs[*n][i]);
            if (status == QN_OK) status = add(model, texts[i], 0, &pairs[*n][i]);
        }
        *n += texts[0] && texts[1];
    }
    return status;
}

/* How much more likely the answer is than to the model as it was opened: the log of the ratio. */
static qn_array *gain(qn_scope *s, qn_finetune *f, const answer *a)
{
    const qn_forward_options opened = {.without_trained = 1};
    const int64_t dims[2] = {1, a->n - 1};
    qn_array *ids = qn_from_data(s, QN_DTYPE_I32, 2, dims, a->ids);
    qn_array *next = qn_from_data(s, QN_DTYPE_I32, 2, dims, a->ids + 1);
    qn_array *each = qn_sub(s, qn_finetune_losses(f, s, NULL, ids, next, &opened),
                            qn_finetune_losses(f, s, NULL, ids, next, NULL));
    return qn_sum(s, qn_slice(s, each, (int64_t[]){0, a->n_prompt - 1}, dims, NULL), 1);
}

/* A step for each pair that is not held out, or the mean margin of those that are. */
static qn_status go_through(qn_finetune *f, int n, int held_out, double *mean)
{
    qn_optimizer_options adam = qn_optimizer_defaults(QN_OPTIMIZER_ADAMW);
    qn_status status = QN_OK;
    int count = 0;
    adam.rate = 2e-4;
    for (int i = *mean = 0; i < n && status == QN_OK; i++) {
        qn_finetune_report report = {0};
        if ((i % 4 == 3) != held_out) continue;
        qn_scope *s = qn_scope_inner(qn_finetune_scope(f));
        qn_array *more = qn_sub(s, gain(s, f, &pairs[i][0]), gain(s, f, &pairs[i][1]));
        qn_array *margin = qn_scale(s, more, 0.1); /* beta 0.1; the loss is -log sigmoid(margin) */
        status = held_out ? qn_array_item(s, margin, &report.loss)
                          : qn_finetune_step(f, s, qn_softplus(s, qn_neg(s, margin)), &adam, 1, &report);
        *mean += (report.loss - *mean) / ++count;
        qn_scope_close(s);
    }
    return status;
}

int main(int argc, char **argv)
{
    qn_model *model = NULL;
    qn_finetune *f = NULL;
    double loss = 0, held_out = 0;
    int n = 0;
    FILE *file = argc < 3 ? NULL : fopen(argv[2], "r");
    if (!file) return (void)fprintf(stderr, "usage: dpo MODEL PAIRS [OUT] (PAIRS must be readable)\n"), 2;
    qn_status status = qn_model_open(argv[1], NULL, &model);
    if (status == QN_OK) status = qn_finetune_open(model, NULL, &f);
    if (status == QN_OK) status = read_pairs(model, file, &n);
    for (int i = 1; i <= EPOCHS && status == QN_OK; i++) {
        if ((status = go_through(f, n, 0, &loss)) == QN_OK) status = go_through(f, n, 1, &held_out);
        if (status == QN_OK) printf("epoch %d: loss %.4f, held-out margin %+.4f\n", i, loss, held_out);
    }
    if (status == QN_OK && argc > 3) status = qn_finetune_save(f, argv[3], QN_ADAPTER_PEFT);
    if (status != QN_OK) fprintf(stderr, "dpo: %s\n", qn_last_error());
    fclose(file);
    qn_finetune_close(f);
    qn_model_close(&model);
    return status != QN_OK;
}
