#include "backend/native/native_draft.h"

#include <string.h>

#include "engine/machine/encode.h"
#include "text/tokenizer/tokenizer_source.h"

enum { KV_BYTES_MAX = 64 << 20 /* of a drafter's keys and values, and prefixes of them */ };

/* Guessed ids mean the same tokens. */
static qn_status check_vocabulary(qn_source *source, const qn_model_config *config, const qn_engine *target,
                                  const qn_tokenizer *t)
{
    const int64_t n_vocab = qn_engine_config(target)->vocab_size;
    qn_tokenizer *own = NULL;
    if (config->vocab_size != n_vocab)
        return qn_fail(QN_E_ARG, "its vocabulary has %lld tokens, the model's has %lld",
                       (long long)config->vocab_size, (long long)n_vocab);
    if (!t || !qn_tokenizer_is_there(source)) return QN_OK;
    QN_TRY(qn_tokenizer_open(source, NULL, &own));
    qn_status status = QN_OK;
    for (int32_t id = 0; id < n_vocab && status == QN_OK; id++) {
        size_t n = 0, n_own = 0;
        const char *text = qn_tokenizer_token_text(t, id, &n),
                   *other = qn_tokenizer_token_text(own, id, &n_own);
        if (!text != !other || n != n_own || (n && memcmp(text, other, n) != 0))
            status = qn_fail(QN_E_ARG, "its token %d differs from the model's", (int)id);
    }
    qn_tokenizer_free(own);
    return status;
}

static qn_status count_in(qn_ledger *draft, qn_ledger *target)
{
    const size_t most = qn_ledger_total(draft) + KV_BYTES_MAX;
    QN_TRY(qn_ledger_reserve(target, QN_LEDGER_OTHER, most));
    qn_ledger_set_limit(draft, most);
    return QN_OK;
}

static void discount(qn_ledger *draft, qn_ledger *target)
{
    qn_ledger_release(target, QN_LEDGER_OTHER, qn_ledger_get_limit(draft));
}

/* All it may ever hold is the target's, from now on. */
static qn_status count(qn_engine *draft, qn_engine *target)
{
    QN_TRY(count_in(qn_engine_ledger(draft), qn_engine_ledger(target)));
    if (!qn_device_has_memory(qn_engine_device(draft))) return QN_OK;
    const qn_status status = count_in(qn_engine_device_ledger(draft), qn_engine_device_ledger(target));
    if (status != QN_OK) discount(qn_engine_ledger(draft), qn_engine_ledger(target));
    return status;
}

static qn_status open_draft(const char *path, qn_engine *target, const qn_tokenizer *t,
                            const qn_model_options *o, qn_engine **out)
{
    qn_source *source = NULL;
    qn_model_config config = {0};
    qn_engine *draft = NULL;
    /* Where a card has no room for all of the target it has none for the drafter. */
    const int is_divided = qn_engine_card(target) && qn_engine_device(target) != qn_engine_card(target);
    const qn_engine_options options = {.device = is_divided ? "cpu" : qn_engine_get_info(target)->device,
                                       .gpu_layers = QN_ALL_LAYERS,
                                       .precision = QN_PRECISION_FAST,
                                       .n_threads = o->n_threads,
                                       .context_size = qn_engine_get_info(target)->context_size,
                                       .max_sequences = 1,
                                       .packed = o->packed && strcmp(o->packed, "none") == 0 ? "none" : NULL,
                                       .no_prefix_cache = o->no_prefix_cache};
    qn_status status = qn_source_open(path, NULL, &source);
    if (status == QN_OK) status = qn_config_read(source, &config);
    if (status == QN_OK) status = check_vocabulary(source, &config, target, t);
    if (status == QN_OK) status = qn_engine_open(source, &config, &options, &draft);
    if (status == QN_OK && (qn_engine_encodes(draft) || qn_engine_encodes(target)))
        status = qn_fail(QN_E_UNSUPPORTED, "one of both models is an encoder, which generates no text");
    if (status == QN_OK && !qn_engine_takes_back(draft))
        status = qn_fail(QN_E_UNSUPPORTED, "it has recurrent layers, which cannot take tokens back, so it "
                                           "cannot guess");
    if (status == QN_OK) status = count(draft, target);
    if (status == QN_OK)
        *out = draft;
    else
        qn_engine_close(draft);
    qn_config_free(&config);
    qn_source_close(source);
    return status;
}

qn_status qn_native_draft_open(const char *path, qn_engine *target, const qn_tokenizer *t,
                               const qn_model_options *options, qn_engine **out)
{
    qn_status status = open_draft(path, target, t, options, out);
    return status == QN_OK ? QN_OK : qn_fail_prefix(status, "draft model %s", path);
}

void qn_native_draft_close(qn_engine *draft, qn_engine *target)
{
    if (!draft) return;
    discount(qn_engine_ledger(draft), qn_engine_ledger(target));
    if (qn_device_has_memory(qn_engine_device(draft)))
        discount(qn_engine_device_ledger(draft), qn_engine_device_ledger(target));
    qn_engine_close(draft);
}
