/* Cross-entropy: learn_text MODEL TEXT [OUT]. Trains an adapter until the model says TEXT, and writes it to OUT.
 * Build: cc learn_text.c $(pkg-config --cflags --libs quern) -o learn_text */
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 20 };

static int fail(void)
{
    fprintf(stderr, "learn_text: %s\n", qn_last_error());
    return 1;
}

/* -log p(next token | the tokens before it), the mean over all rows of ids [1, L]. */
static qn_array *cross_entropy(qn_scope *s, qn_finetune *f, const int32_t *ids, int64_t n)
{
    qn_array *rows = qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){1, n - 1}, ids);
    qn_array *next = qn_from_data(s, QN_DTYPE_I32, 2, (int64_t[]){1, n - 1}, ids + 1);
    qn_array *logits = qn_finetune_forward(f, s, NULL, rows, NULL);
    return qn_loss_cross_entropy(s, logits, next, NULL);
}

static qn_status learn(qn_finetune *f, const int32_t *ids, int64_t n)
{
    qn_optimizer_options optimizer = qn_optimizer_defaults(QN_OPTIMIZER_ADAMW);
    optimizer.rate = 1e-3;
    for (int i = 0; i < STEPS; i++) {
        qn_finetune_report report;
        qn_scope *s = qn_scope_inner(qn_finetune_scope(f)); /* the step's arrays go with it */
        if (!s) return QN_E_NOMEM;
        qn_status status = qn_finetune_step(f, s, cross_entropy(s, f, ids, n), &optimizer, 1, &report);
        qn_scope_close(s);
        if (status != QN_OK) return status;
        printf("step %lld: loss %.4f\n", (long long)report.step, report.loss);
    }
    return QN_OK;
}

int main(int argc, char **argv)
{
    qn_model *model = NULL;
    qn_finetune *f = NULL;
    int32_t *ids = NULL;
    int64_t n = 0;
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: learn_text MODEL TEXT [OUT]\n");
        return 2;
    }
    qn_finetune_options lora = {0}; /* rank 8, all linear layers */
    qn_status status = qn_model_open(argv[1], NULL, &model);
    if (status == QN_OK) status = qn_finetune_open(model, &lora, &f);
    if (status == QN_OK)
        status = qn_model_encode(model, argv[2], strlen(argv[2]), &(qn_encode_options){.bos = 1}, &ids, &n);
    if (status == QN_OK && n < 2) {
        fprintf(stderr, "learn_text: the text is a single token, which nothing predicts\n");
        status = QN_E_ARG;
    } else if (status == QN_OK) {
        status = learn(f, ids, n);
        if (status == QN_OK && argc == 4) status = qn_finetune_save(f, argv[3], QN_ADAPTER_PEFT);
        if (status != QN_OK) fail();
    } else {
        fail();
    }
    qn_buffer_free(ids);
    qn_finetune_close(f);
    qn_model_close(&model);
    return status == QN_OK ? 0 : 1;
}
