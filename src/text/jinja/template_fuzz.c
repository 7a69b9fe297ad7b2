/* A stranger's template and context: template, a 0xff byte (which no UTF-8 has), the context as JSON, whose
 * messages are prepared and merged first. Budgets
 * are small, so that every input ends soon; what is rendered must be whole: valid UTF-8 covered by its
 * segments, spans inside it. */
#include <stdint.h>
#include <string.h>

#include "base/json/json.h"
#include "base/utf8.h"
#include "text/jinja/template.h"

static void check(int ok)
{
    if (!ok) __builtin_trap();
}

static void check_result(const qn_rendered *r)
{
    size_t at = 0;
    for (size_t i = 0; i < r->n_segments; i++) {
        check(r->segments[i].offset == at && r->segments[i].n > 0);
        at += r->segments[i].n;
    }
    check(at == r->n);
    for (size_t i = 0; i < r->n_generations; i++)
        check(r->generations[i].offset <= r->n && r->generations[i].n <= r->n - r->generations[i].offset);
    check(qn_utf8_valid_prefix(r->text, r->n) == r->n);
}

/* What the callers do to messages before a template sees them. */
static void use_messages(json_t *context)
{
    json_t *messages = NULL;
    if (qn_template_prepare_messages(json_object_get(context, "messages"), &messages) != QN_OK) return;
    json_object_set_new(context, "messages", messages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, 0xff, size) : NULL;
    size_t n = end ? (size_t)(end - data) : size;
    const qn_render_options o = {.now = "2026-03-14T15:09:26",
                                 .steps_max = 20000,
                                 .output_max = 1 << 20,
                                 .memory_max = 8 << 20,
                                 .depth_max = 200};
    qn_template *t = NULL;
    qn_rendered r = {0};
    json_t *context = NULL;
    if (qn_template_parse("fuzz", (const char *)data, n, &t) != QN_OK) return 0;
    if (!end || qn_json_parse_exact("fuzz", (const char *)end + 1, size - n - 1, &context) != QN_OK)
        context = json_object();
    if (context) use_messages(context);
    if (context && qn_template_render(t, context, &o, &r) == QN_OK) check_result(&r);
    qn_rendered_free(&r);
    qn_template_free(t);
    json_decref(context);
    return 0;
}
