/* Mean squared error: learn_prompt MODEL PROMPT TEXT [OUT]. Trains an adapter that makes the model read TEXT as if
 * PROMPT stood before it: the hidden states of TEXT come to be those that the model had behind PROMPT.
 * Build: cc learn_prompt.c $(pkg-config --cflags --libs quern) -o learn_prompt */
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 20 };

typedef struct {
    int32_t *ids; /* of PROMPT, then of TEXT */
    int64_t n_prompt, n_text;
} tokens;

static qn_status encode(qn_model *model, const char *prompt, const char *text, tokens *out)
{
    int32_t *first = NULL, *second = NULL;
    qn_status status = qn_model_encode(model, prompt, strlen(prompt), &(qn_encode_options){.bos = 1}, &first,
                                       &out->n_prompt);
    if (status == QN_OK) status = qn_model_encode(model, text, strlen(text), NULL, &second, &out->n_text);
    if (status == QN_OK) {
        const size_t n = (size_t)out->n_prompt, m = (size_t)out->n_text;
        out->ids = malloc((n + m) * sizeof *out->ids);
        if (out->ids) {
            memcpy(out->ids, first, n * sizeof *first);
            memcpy(out->ids + n, second, m * sizeof *second);
        }
    }
    qn_buffer_free(first);
    qn_buffer_free(second);
    return status == QN_OK && !out->ids ? QN_E_NOMEM : status;
}

static qn_array *error(qn_scope *s, qn_finetune *f, const tokens *t)
{
    const int64_t n = t->n_prompt, all = n + t->n_text;
    const qn_forward_options before = {.without_trained = 1}; /* the model as it was opened: a constant */
    qn_array *whole = qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){1, all}, t->ids);
    qn_array *text = qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){1, t->n_text}, t->ids + n);
    qn_array *wanted = qn_slice(s, qn_finetune_hidden(f, s, NULL, whole, &before), (int64_t[]){0, n, 0},
                                (int64_t[]){1, all, QN_TO_END}, NULL);
    return qn_loss_mse(s, qn_finetune_hidden(f, s, NULL, text, NULL), wanted, NULL);
}

static qn_status learn(qn_finetune *f, const tokens *t)
{
    qn_optimizer_options optimizer = qn_optimizer_defaults(QN_OPTIMIZER_ADAMW);
    optimizer.rate = 3e-3;
    for (int i = 0; i < STEPS; i++) {
        qn_finetune_report report;
        qn_scope *s = qn_scope_inner(qn_finetune_scope(f));
        if (!s) return QN_E_NOMEM;
        qn_status status = qn_finetune_step(f, s, error(s, f, t), &optimizer, 1, &report);
        qn_scope_close(s);
        if (status != QN_OK) return status;
        printf("step %lld: loss %.6f\n", (long long)report.step, report.loss);
    }
    return QN_OK;
}

int main(int argc, char **argv)
{
    qn_model *model = NULL;
    qn_finetune *f = NULL;
    tokens t = {0};
    if (argc < 4 || argc > 5) {
        fprintf(stderr, "usage: learn_prompt MODEL PROMPT TEXT [OUT]\n");
        return 2;
    }
    qn_finetune_options lora = {0};
    qn_status status = qn_model_open(argv[1], NULL, &model);
    if (status == QN_OK) status = qn_finetune_open(model, &lora, &f);
    if (status == QN_OK) status = encode(model, argv[2], argv[3], &t);
    if (status == QN_OK) status = learn(f, &t);
    if (status == QN_OK && argc == 5) status = qn_finetune_save(f, argv[4], QN_ADAPTER_PEFT);
    if (status != QN_OK) fprintf(stderr, "learn_prompt: %s\n", qn_last_error());
    free(t.ids);
    qn_finetune_close(f);
    qn_model_close(&model);
    return status == QN_OK ? 0 : 1;
}
