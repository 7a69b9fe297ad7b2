/* The doctor's steps over text: tokenizer, template. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/doctor/doctor.h"
#include "cli/term/out.h"
#include "text/chat/chat.h"
#include "text/tokenizer/named_tokens.h"
#include "text/tokenizer/tokenizer_source.h"

/* Line ends, runs of spaces, accents composed and not, scripts, an emoji of several code points, digits, and
 * what looks like special tokens. Tools that get a tokenizer wrong get this wrong. */
static const char torture[] =
    "Hello  world\n\n   Caf\xc3\xa9 e\xcc\x81 don't 123456 \xe4\xbd\xa0\xe5\xa5\xbd "
    "\xd9\x85\xd8\xb1 \xf0\x9f\x91\xa9\xf0\x9f\x8f\xbd\xe2\x80\x8d\xf0\x9f\x94\xa7\t</s><|im_end|>";

enum { IDS_SHOWN = 12 };

/* ---- tokenizer ---------------------------------------------------------------------------------------- */

static void say_ids(qn_doctor *d, const int32_t *ids, size_t n)
{
    char text[256] = "";
    size_t at = 0;
    for (size_t i = 0; i < n && i < IDS_SHOWN; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%d", i ? " " : "", (int)ids[i]);
    qn_doctor_say(d, QN_FOUND_OK, NULL, "a mixed text has %zu ids: %s%s", n, text,
                  n > IDS_SHOWN ? " ..." : "");
    qn_json_key(&d->figures, "torture_text");
    qn_json_text(&d->figures, torture, sizeof torture - 1);
    qn_json_key(&d->figures, "torture_ids");
    qn_json_ids(&d->figures, ids, (int64_t)n);
}

/* 1: the text that came back makes the same ids, so what differs was normalised away, not lost. */
static qn_status makes_same_ids(const qn_tokenizer *t, const qn_buf *text, const int32_t *ids, size_t n,
                                int *same)
{
    int32_t *again = NULL;
    size_t n_again = 0;
    QN_TRY(qn_tokenizer_encode(t, text->length ? text->data : "", text->length, 0, &again, &n_again));
    *same = n_again == n && memcmp(again, ids, n * sizeof *ids) == 0;
    qn_free(again);
    return QN_OK;
}

static qn_status check_round_trip(qn_doctor *d, const qn_tokenizer *t)
{
    int32_t *ids = NULL;
    size_t n = 0;
    int same = 0;
    qn_buf back = {0};
    qn_status status = qn_tokenizer_encode(t, torture, sizeof torture - 1, 0, &ids, &n);
    if (status == QN_OK) status = qn_tokenizer_decode(t, ids, n, 0, &back);
    if (status == QN_OK) status = back.status;
    if (status == QN_OK) status = makes_same_ids(t, &back, ids, n, &same);
    if (status == QN_OK) {
        say_ids(d, ids, n);
        if (back.length == sizeof torture - 1 && memcmp(back.data, torture, back.length) == 0)
            qn_doctor_say(d, QN_FOUND_OK, NULL, "decoding them gives the same text");
        else if (same)
            qn_doctor_say(d, QN_FOUND_OK, NULL,
                          "decoding them gives the normalised text, which has the same ids");
        else
            qn_doctor_say(
                d, QN_FOUND_WARNING,
                "the vocabulary lacks characters, or the tokenizer's file was changed: compare the ids with "
                "the reference's; --json prints all of them",
                "decoding them gives \"%s\"", back.data ? back.data : "");
    }
    qn_buf_free(&back);
    qn_free(ids);
    return status;
}

/* Tokens that the model has no embedding for. alone: without those that say_added tells. */
static void check_size(qn_doctor *d, const qn_tokenizer *t, const qn_tokenizer *alone)
{
    size_t size = qn_tokenizer_vocab_size(t), n_plain = 0, n_special = 0, n,
           rows = (size_t)d->config.vocab_size;
    if (!d->has_config) {
        qn_doctor_say(d, QN_FOUND_OK, NULL, "%zu tokens", size);
        return;
    }
    for (size_t id = rows; id < size; id++)
        if (qn_tokenizer_token_text(alone, (int32_t)id, &n))
            ++*(qn_tokenizer_is_special(t, (int32_t)id) ? &n_special : &n_plain);
    if (n_plain)
        qn_doctor_say(d, QN_FOUND_FAILURE,
                      "tokenizer and weights belong to different models: get both from the same source",
                      "the tokenizer has %zu tokens, but the embedding has %zu rows", size, rows);
    else if (n_special)
        qn_doctor_say(d, QN_FOUND_WARNING, "nothing to do: only texts that use them are refused",
                      "special tokens beyond the %zu rows of the embedding: %zu", rows, n_special);
    else
        qn_doctor_say(d, QN_FOUND_OK, NULL, "%zu tokens for %zu rows of the embedding", size, rows);
}

/* The name of a token of tokenizer_config.json with a space behind it; "": it has none. */
static const char *name_of(const qn_named_tokens *named, const char *text, size_t n)
{
    const char *name;
    json_t *value;
    size_t m;
    json_object_foreach(named->names, name, value)
    {
        const char *own = qn_tokenizer_config_text(value, &m);
        if (own && m == n && memcmp(own, text, n) == 0) return name;
    }
    return "";
}

/* Tokens that only the files beside tokenizer.json name are added, as transformers does. The model may never have
 * seen them. */
static void say_added(qn_doctor *d, const qn_tokenizer *t, const qn_tokenizer *alone,
                      const qn_named_tokens *named)
{
    enum { SAID_MAX = 4 };
    const int64_t rows = d->has_config ? d->config.vocab_size : 0;
    int64_t n_said = 0, n_more = 0;
    for (size_t id = 0; id < qn_tokenizer_vocab_size(t); id++) {
        size_t n;
        const char *text = qn_tokenizer_token_text(t, (int32_t)id, &n);
        if (!text || qn_tokenizer_find(alone, text, n) >= 0) continue;
        if (n_said == SAID_MAX) {
            n_more++;
            continue;
        }
        n_said++;
        const char *name = name_of(named, text, n);
        const int is_beyond = rows && (int64_t)id >= rows;
        qn_doctor_say(d, QN_FOUND_WARNING,
                      "tokenizer.json and tokenizer_config.json belong to different models, or the token was "
                      "forgotten when they were changed",
                      "%s%s\"%.*s\" is not in tokenizer.json; it gets the id %zu%s", name, *name ? " " : "",
                      n < 64 ? (int)n : 64, text, id,
                      is_beyond ? ", which the model's embedding does not have" : "");
    }
    if (n_more)
        qn_doctor_say(d, QN_FOUND_WARNING, NULL, "%lld more tokens are not in tokenizer.json",
                      (long long)n_more);
}

/* What tokenizer.json alone says; *out NULL: there is none. */
static qn_status open_alone(qn_doctor *d, qn_tokenizer **out)
{
    const char *path = qn_source_side_path(d->source, QN_SIDE_TOKENIZER), *text;
    size_t n;
    if (!path) return QN_OK;
    QN_TRY(qn_source_side_text(d->source, QN_SIDE_TOKENIZER, &text, &n));
    qn_status status = qn_tokenizer_from_json(path, text, n, out);
    qn_source_side_drop(d->source, QN_SIDE_TOKENIZER);
    return status;
}

static qn_status check_named_tokens(qn_doctor *d, const qn_tokenizer *t, const qn_tokenizer *alone)
{
    json_t *config = NULL;
    qn_named_tokens named = {0};
    if (!alone) return QN_OK;
    QN_TRY(qn_tokenizer_config_read(d->source, &config));
    qn_status status = qn_named_tokens_read(d->source, config, &named);
    if (status == QN_OK) say_added(d, t, alone, &named);
    qn_named_tokens_free(&named);
    json_decref(config);
    return status;
}

static void put_token(char *text, size_t size, const qn_tokenizer *t, int32_t id)
{
    size_t n = 0, at = strlen(text);
    const char *name = qn_tokenizer_token_text(t, id, &n);
    snprintf(text + at, size - at, "%s%.*s (%d)", at ? ", " : "", (int)(n < 40 ? n : 40), name ? name : "?",
             (int)id);
}

enum { ENDS_MAX = 64 };

static void add_end(int32_t *ends, size_t *n, int32_t id)
{
    for (size_t i = 0; i < *n; i++)
        if (ends[i] == id) return;
    if (*n < ENDS_MAX) ends[(*n)++] = id;
}

/* What ends an answer, as the engine collects it. */
static void check_ends(qn_doctor *d, const qn_tokenizer *t)
{
    char begin[128] = "", text[1024] = "";
    int32_t ends[ENDS_MAX];
    size_t n_eos, n_ends = 0, n;
    const int32_t *eos = qn_tokenizer_eos_ids(t, &n_eos);
    const qn_model_config *c = &d->config; /* zeroed where there is none */
    for (int i = 0; i < c->n_stop_ids; i++) {
        add_end(ends, &n_ends, c->stop_ids[i]);
        if (!qn_tokenizer_token_text(t, c->stop_ids[i], &n))
            qn_doctor_say(d, QN_FOUND_WARNING,
                          "generation_config.json or config.json belongs to another model than the tokenizer",
                          "the end token %d is not in the vocabulary", (int)c->stop_ids[i]);
    }
    for (size_t i = 0; i < n_eos; i++) add_end(ends, &n_ends, eos[i]);
    for (size_t i = 0; c->stop_tokens && c->stop_tokens[i]; i++) {
        int32_t id = qn_tokenizer_find(t, c->stop_tokens[i], strlen(c->stop_tokens[i]));
        if (id >= 0 && qn_tokenizer_is_special(t, id)) add_end(ends, &n_ends, id);
    }
    int32_t bos = qn_tokenizer_bos_id(t);
    if (bos < 0 && d->has_config) bos = c->bos_token_id;
    if (bos >= 0) put_token(begin, sizeof begin, t, bos);
    for (size_t i = 0; i < n_ends; i++) put_token(text, sizeof text, t, ends[i]);
    if (!n_ends)
        qn_doctor_say(
            d, QN_FOUND_WARNING,
            "answers continue until --max-tokens: write eos_token_id into generation_config.json, or give "
            "--stop-id ID",
            "no token is known to end an answer");
    else
        qn_doctor_say(d, QN_FOUND_OK, NULL, "BOS is %s; answers end with %s", begin[0] ? begin : "not known",
                      text);
}

static const char *advise_tokenizer(qn_doctor *d, qn_status status)
{
    if (status == QN_E_NOT_FOUND)
        return "download tokenizer.json and tokenizer_config.json from the source of the weights; without "
               "them only `quern run --ids` works, with ids from other tools";
    if (status == QN_E_UNSUPPORTED && qn_source_gguf(d->source))
        return "give its pre-tokenizer by --pre REGEX, or put the publisher's tokenizer.json beside the file";
    if (status == QN_E_UNSUPPORTED)
        return "this version of quern does not support that part; a newer one may";
    return "the file is damaged or was changed by hand: use the publisher's";
}

void qn_doctor_tokenizer(qn_doctor *d)
{
    qn_tokenizer *t = NULL, *alone = NULL;
    if (!d->source) {
        qn_doctor_say(d, QN_FOUND_SKIPPED, NULL, "skipped: there is no file to read it from");
        return;
    }
    qn_status status = qn_tokenizer_open(d->source, d->load->o.pre_tokenizer_regex, &t);
    if (status != QN_OK) {
        qn_doctor_fail(d, advise_tokenizer(d, status));
        return;
    }
    d->has_tokenizer = 1;
    status = open_alone(d, &alone);
    if (status == QN_OK) {
        check_size(d, t, alone ? alone : t);
        check_ends(d, t);
        status = check_named_tokens(d, t, alone);
    }
    if (status == QN_OK) status = check_round_trip(d, t);
    if (status != QN_OK) qn_doctor_fail(d, advise_tokenizer(d, status));
    qn_tokenizer_free(alone);
    qn_tokenizer_free(t);
}

/* ---- template ----------------------------------------------------------------------------------------- */

/* Where the template comes from. */
static void say_origin(qn_doctor *d, const qn_chat_text *c)
{
    const char *origin = qn_chat_text_origin(c);
    if (d->load->template_path)
        qn_doctor_say(d, QN_FOUND_OK, NULL, "the one given by --template");
    else if (origin)
        qn_doctor_say(d, QN_FOUND_OK, NULL, "the model's own, %s", origin);
    else
        qn_doctor_say(d, QN_FOUND_OK, NULL, "a built-in one that matches the vocabulary: the model has none");
}

typedef struct {
    qn_buf text;
    int32_t *ids;
    size_t n_ids;
} rendering;

/* Renders a JSON request. */
static qn_status render(const qn_chat_text *c, const char *request, rendering *out)
{
    json_error_t error;
    json_t *json = json_loads(request, 0, &error);
    *out = (rendering){.ids = NULL};
    if (!json) return qn_fail_nomem(strlen(request));
    qn_status status =
        qn_chat_text_render(c, json, QN_CHAT_TRUST_TEMPLATE, &out->text, &out->ids, &out->n_ids);
    json_decref(json);
    return status;
}

static void end_rendering(rendering *r)
{
    qn_buf_free(&r->text);
    qn_free(r->ids);
}

static int has_text(const rendering *r, const char *text)
{
    return r->text.data && strstr(r->text.data, text) != NULL;
}

/* BOS must begin a chat once: by the template or not at all. */
static void check_bos(qn_doctor *d, const qn_tokenizer *t, const rendering *r)
{
    int32_t bos = qn_tokenizer_bos_id(t), *ids = NULL;
    size_t n = 0;
    if (bos < 0) return;
    if (r->n_ids > 1 && r->ids[0] == bos && r->ids[1] == bos) {
        qn_doctor_say(d, QN_FOUND_WARNING,
                      "remove one of the two from the template and give it by --template FILE",
                      "the template begins with the token BOS twice");
        return;
    }
    int wanted = qn_tokenizer_encode(t, "x", 1, QN_ENCODE_BOS, &ids, &n) == QN_OK && n > 1 && ids[0] == bos;
    qn_free(ids);
    if (wanted && (!r->n_ids || r->ids[0] != bos))
        qn_doctor_say(d, QN_FOUND_WARNING, "answers may be poor; compare with the publisher's template",
                      "the tokenizer puts BOS before a text, but the template does not begin with it");
}

static void check_user(qn_doctor *d, const qn_chat_text *c)
{
    rendering r;
    qn_status status = render(
        c, "{\"messages\":[{\"role\":\"user\",\"content\":\"Good day\"}],\"add_generation_prompt\":true}",
        &r);
    if (status != QN_OK) {
        qn_doctor_fail(
            d, "`quern run --raw` works without it; a corrected template can be given by --template FILE");
    } else if (!has_text(&r, "Good day")) {
        qn_doctor_say(d, QN_FOUND_FAILURE,
                      "give a template by --template FILE; `quern run --raw` works without it",
                      "a user's message does not appear in the rendered text");
    } else {
        qn_doctor_say(d, QN_FOUND_OK, NULL, "a user's message becomes %zu ids: %s", r.n_ids, r.text.data);
        check_bos(d, qn_chat_text_tokenizer(c), &r);
    }
    end_rendering(&r);
}

#define TOOL                                                                                             \
    "{\"type\":\"function\",\"function\":{\"name\":\"tell_time\",\"description\":\"Tells the time\","    \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"zone\":{\"type\":\"string\",\"description\":" \
    "\"time zone\""                                                                                      \
    "}},\"required\":[\"zone\"]}}}"

/* Messages that not every template takes: what happens is said, none of it is a fault. */
static void check_more(qn_doctor *d, const qn_chat_text *c)
{
    static const struct {
        const char *what, *sign, *request;
    } cases[] = {
        {"a system message", "Be brief",
         "{\"messages\":[{\"role\":\"system\",\"content\":\"Be "
         "brief\"},{\"role\":\"user\",\"content\":\"Good day\"}],"
         "\"add_generation_prompt\":true}"},
        {"tools", "tell_time",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"Good day\"}],\"tools\":[" TOOL "],"
         "\"add_generation_prompt\":true}"},
        {"a tool's result", "half past noon",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"Good "
         "day\"},{\"role\":\"assistant\",\"content\":\"\","
         "\"tool_calls\":[{\"id\":\"call12345\",\"type\":\"function\",\"function\":{\"name\":\"tell_time\","
         "\"arguments\":{\"zone\":\"UTC\"}}}]},{\"role\":\"tool\",\"name\":\"tell_time\",\"tool_call_id\":"
         "\"call12345\","
         "\"content\":\"half past noon\"}],\"tools\":[" TOOL "],\"add_generation_prompt\":true}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rendering r;
        qn_status status = render(c, cases[i].request, &r);
        if (status != QN_OK)
            qn_doctor_say(d, QN_FOUND_OK, NULL, "%s: refused by the template: %s", cases[i].what,
                          qn_last_error());
        else
            qn_doctor_say(d, QN_FOUND_OK, NULL, "%s: %s", cases[i].what,
                          has_text(&r, cases[i].sign) ? "understood" : "ignored by the template");
        end_rendering(&r);
    }
}

void qn_doctor_template(qn_doctor *d)
{
    qn_chat_text *c = NULL;
    if (!d->has_tokenizer) {
        qn_doctor_say(d, QN_FOUND_SKIPPED, NULL, "skipped: there is no tokenizer");
        return;
    }
    qn_chat_text_options options = {.pre_regex = d->load->o.pre_tokenizer_regex,
                                    .chat_template = d->load->o.chat_template};
    qn_status status = qn_chat_text_open(d->source, &options, &c);
    if (status != QN_OK) {
        qn_doctor_fail(d, "use the publisher's tokenizer_config.json and chat_template.jinja");
        return;
    }
    int64_t n_failed = d->n_found[QN_FOUND_FAILURE];
    if (!qn_chat_text_has_template(c)) {
        qn_doctor_say(
            d, QN_FOUND_WARNING,
            "usual for a model that only continues texts: use `quern run --raw`; otherwise give a template "
            "by --template FILE",
            "there is no chat template");
    } else {
        say_origin(d, c);
        check_user(d, c);
        if (d->n_found[QN_FOUND_FAILURE] == n_failed) check_more(d, c);
    }
    qn_chat_text_close(c);
}
