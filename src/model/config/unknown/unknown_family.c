#include "model/config/unknown/unknown_family.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "model/config/families.h"

enum { FORMS_MAX = 512 };

/* Names of tensors, each number between dots as '#': one for all layers, and for all experts. */
typedef struct {
    char form[FORMS_MAX][QN_TENSOR_NAME_MAX], first[FORMS_MAX][QN_TENSOR_NAME_MAX];
    int n;
} forms;

static void form_of(const char *name, char *form)
{
    size_t n = 0;
    for (const char *at = name; *at && n + 1 < QN_TENSOR_NAME_MAX;) {
        const size_t digits = strspn(at, "0123456789");
        const int is_number = digits && (at == name || at[-1] == '.') && (at[digits] == '.' || !at[digits]);
        form[n++] = is_number ? '#' : *at;
        at += is_number ? digits : 1;
    }
    form[n] = '\0';
}

/* Beside the decoder: towers, what joins them to it, layers for drafts. */
static int is_beside(const char *name)
{
    static const char *const words[] = {"vision", "visual", "audio", "multi_modal",
                                        "mtp.",   "nextn",  "v.",    "mm."};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        const char *at = strstr(name, words[i]);
        if (at && (strlen(words[i]) > 2 || at == name)) return 1;
    }
    return 0;
}

static void add_form(forms *f, const char *name)
{
    if (f->n == FORMS_MAX || is_beside(name)) return;
    form_of(name, f->form[f->n]);
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->form[i], f->form[f->n]) == 0) return;
    snprintf(f->first[f->n++], QN_TENSOR_NAME_MAX, "%s", name);
}

typedef struct {
    const qn_family *nearest;
    int n_known, n_unknown;    /* forms that the nearest family has; that none has */
    const char *first_unknown; /* a tensor */
} seen_weights;

static seen_weights look_at(const forms *f, qn_source_kind kind)
{
    seen_weights s = {.nearest = NULL};
    for (int i = 0; i < f->n; i++) {
        int is_known = 0;
        for (int k = 0; qn_family_at(k) && !is_known; k++)
            is_known = qn_family_has_name(qn_family_at(k), kind, f->first[i]);
        if (!is_known && !s.n_unknown++) s.first_unknown = f->first[i];
    }
    for (int k = 0; qn_family_at(k); k++) {
        int n = 0;
        for (int i = 0; i < f->n; i++) n += qn_family_has_name(qn_family_at(k), kind, f->first[i]);
        if (n <= s.n_known) continue;
        s.n_known = n;
        s.nearest = qn_family_at(k);
    }
    return s;
}

static int count_fields(const json_t *config, const char **first)
{
    const char *name;
    json_t *value;
    int n = 0;
    json_object_foreach((json_t *)(uintptr_t)config, name, value)
    {
        if (qn_is_known_field(name)) continue;
        if (!n++) *first = name;
    }
    return n;
}

const char *qn_unknown_family_text(const qn_source *src, const json_t *config, char text[QN_UNKNOWN_TEXT_MAX])
{
    forms *f = qn_calloc(1, sizeof *f);
    const char *field = NULL;
    qn_buf b = {0};
    text[0] = '\0';
    if (!f) return text;
    for (int64_t i = 0; i < qn_source_count(src); i++) add_form(f, qn_source_get(src, i)->name);
    const seen_weights s = look_at(f, qn_source_get_kind(src));
    const int n_fields = config ? count_fields(config, &field) : 0;
    if (s.nearest)
        qn_buf_printf(&b, "%s has %d of its %d kinds of weights", s.nearest->model_types[0], s.n_known, f->n);
    else
        qn_buf_puts(&b, "no family has one of its weights");
    if (s.n_unknown) qn_buf_printf(&b, "; no family has the weight %s", s.first_unknown);
    if (s.n_unknown > 1) qn_buf_printf(&b, " and %d kinds more", s.n_unknown - 1);
    if (n_fields) qn_buf_printf(&b, "; no family has the field %.64s", field);
    if (n_fields > 1) qn_buf_printf(&b, " and %d more", n_fields - 1);
    if (b.status == QN_OK) snprintf(text, QN_UNKNOWN_TEXT_MAX, "%s", b.data);
    qn_buf_free(&b);
    qn_free(f);
    return text;
}
