#include "model/config/families.h"

#include <stdio.h>
#include <string.h>

static const char *in_list(const char *const *list, const char *name)
{
    for (; *list; list++)
        if (strcmp(*list, name) == 0) return *list;
    return NULL;
}

const qn_family *qn_family_at(int i)
{
    if (i < qn_family_count) return &qn_family_rows[i];
    i -= qn_family_count;
    if (i < qn_family_experts_count) return &qn_family_experts_rows[i];
    i -= qn_family_experts_count;
    if (i < qn_family_recurrent_count) return &qn_family_recurrent_rows[i];
    i -= qn_family_recurrent_count;
    if (i < qn_family_seeing_count) return &qn_family_seeing_rows[i];
    i -= qn_family_seeing_count;
    return i < qn_family_encoder_count ? &qn_family_encoder_rows[i] : NULL;
}

const qn_family *qn_family_by_model_type(const char *model_type, const char **name)
{
    for (int i = 0; qn_family_at(i); i++) {
        const char *own = in_list(qn_family_at(i)->model_types, model_type);
        if (own) {
            *name = own;
            return qn_family_at(i);
        }
    }
    return NULL;
}

const qn_family *qn_family_by_architecture(const char *architecture)
{
    for (int i = 0; qn_family_at(i); i++)
        if (in_list(qn_family_at(i)->architectures, architecture)) return qn_family_at(i);
    return NULL;
}

const qn_family *qn_family_by_gguf(const char *architecture, size_t length, const char **name)
{
    for (int i = 0; qn_family_at(i); i++) {
        const char *const own[] = {qn_family_at(i)->gguf_architecture, qn_family_at(i)->gguf_both_ways,
                                   qn_family_at(i)->gguf_with_experts};
        for (size_t k = 0; k < sizeof own / sizeof own[0]; k++)
            if (own[k] && strlen(own[k]) == length && memcmp(own[k], architecture, length) == 0) {
                if (name) *name = own[k];
                return qn_family_at(i);
            }
    }
    return NULL;
}

const qn_family *qn_family_with_experts(const qn_family *family, qn_expert_score score)
{
    const qn_family *found = NULL;
    for (int i = 0; qn_family_at(i); i++) {
        const qn_family *other = qn_family_at(i);
        if (!other->experts || !other->gguf_architecture ||
            strcmp(other->gguf_architecture, family->gguf_architecture) != 0)
            continue;
        if (!found || (found->experts->score != score && other->experts->score == score)) found = other;
    }
    return found ? found : family;
}

static int has_tensor(const qn_source *src, const char *name)
{
    char full[QN_TENSOR_NAME_MAX];
    for (const char *const *prefix = qn_decoder_prefixes; *prefix; prefix++) {
        snprintf(full, sizeof full, "%slayers.0.%s", *prefix, name);
        if (qn_source_find(src, full)) return 1;
    }
    return 0;
}

const qn_family *qn_family_by_tensors(const qn_source *src, const char **words)
{
    for (int i = 0; qn_family_at(i); i++)
        for (const qn_known_by *k = qn_family_at(i)->known_by; k && k->tensor; k++) {
            int fits = has_tensor(src, k->tensor);
            for (const char *const *other = k->without; fits && *other; other++)
                fits = !has_tensor(src, *other);
            if (!fits) continue;
            *words = k->words;
            return qn_family_at(i);
        }
    return NULL;
}

const char *qn_families_known(int gguf, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; qn_family_at(i); i++) {
        const char *const own[] = {qn_family_at(i)->gguf_architecture, qn_family_at(i)->gguf_both_ways, NULL};
        /* Two rows may share GGUF's name. */
        if (gguf && own[0] && qn_family_by_gguf(own[0], strlen(own[0]), NULL) != qn_family_at(i)) continue;
        for (const char *const *name = gguf ? own : qn_family_at(i)->model_types; *name && used < size;
             name++)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", *name);
    }
    return text;
}
