/* quern run: one answer, or the greedy continuation of rows of ids. */
#include <quern/quern.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/command.h"
#include "cli/options/options.h"
#include "cli/options/pictures.h"
#include "cli/options/prompt_cache.h"
#include "cli/term/input.h"
#include "cli/term/interrupt.h"
#include "cli/term/out.h"

typedef struct {
    qn_load_options load;
    qn_sampling_options sampling;
    const char *prompt, *prompt_file, *system, *ids_path, *prompt_cache;
    qn_arg_list images;
    int raw, special, json, stats;
    int32_t logprobs; /* negative: not asked for */
} run_options;

#define AT(field) offsetof(run_options, field)
static const qn_arg run_args[] = {
    {"--prompt", 'p', QN_ARG_TEXT, AT(prompt), 0, 0, "TEXT",
     "prompt (default: standard input without its last line end)"},
    {"--prompt-file", 'f', QN_ARG_TEXT, AT(prompt_file), 0, 0, "FILE",
     "file with the prompt, without its last line end"},
    {"--system", 0, QN_ARG_TEXT, AT(system), 0, 0, "TEXT", "system message to put before the prompt"},
    {"--image", 0, QN_ARG_LIST, AT(images), 0, 0, "FILE",
     "PNG, JPEG or WebP file to put before the prompt, if the model takes images; may be repeated"},
    {"--raw", 0, QN_ARG_FLAG, AT(raw), 0, 0, NULL, "continue the text as it is, without a chat template"},
    {"--special", 0, QN_ARG_FLAG, AT(special), 0, 0, NULL,
     "with --raw: recognise special tokens in the text"},
    {"--ids", 0, QN_ARG_TEXT, AT(ids_path), 0, 0, "FILE",
     "file with rows of token ids, {\"ids\":[[...]]}, which run together"},
    {"--logprobs", 0, QN_ARG_INT32, AT(logprobs), 0, QN_TOP_LOGPROBS_MAX, "N",
     "with --json: print log-probabilities of each token and of the N most likely tokens at its place"},
    {"--prompt-cache", 0, QN_ARG_TEXT, AT(prompt_cache), 0, 0, "FILE",
     "reuse the state of earlier prompts in FILE, and save the state of this prompt there too"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print one JSON object at the end"},
    {"--stats", 0, QN_ARG_FLAG, AT(stats), 0, 0, NULL, "print speeds on standard error"},
    {0},
};

static const qn_arg_rule run_rules[] = {
    {"--ids", .excludes = "--prompt --prompt-file --system --raw --special"},
    {"--prompt", .excludes = "--prompt-file"},
    {"--raw", .excludes = "--system", .why = "--system needs the chat template"},
    {"--logprobs", .needs = "--json --ids"},
    {0},
};

/* What came for one row. */
typedef struct {
    qn_buf ids; /* int32_t */
    qn_buf text;
    qn_buf logprobs; /* the JSON of the tokens' so far */
    qn_end end;
} row_result;

static void put_logprobs(qn_buf *b, const qn_token *token)
{
    qn_json_open(b, '{');
    qn_json_put_int(b, "id", token->id);
    qn_json_put_real(b, "logprob", (double)token->logprob);
    qn_json_key(b, "top");
    qn_json_open(b, '[');
    for (int32_t i = 0; i < token->n_top; i++) {
        qn_json_open(b, '{');
        qn_json_put_int(b, "id", token->top[i].id);
        qn_json_put_real(b, "logprob", (double)token->top[i].logprob);
        qn_json_close(b, '}');
    }
    qn_json_close(b, ']');
    qn_json_close(b, '}');
}

static qn_status keep(row_result *rows, const qn_token *token)
{
    row_result *r = &rows[token->row];
    if (token->id >= 0) {
        qn_buf_append(&r->ids, &token->id, sizeof token->id);
        put_logprobs(&r->logprobs, token);
    }
    qn_buf_append(&r->text, token->text, token->text_bytes);
    r->end = token->end;
    if (r->logprobs.status != QN_OK) return r->logprobs.status;
    return r->ids.status != QN_OK ? r->ids.status : r->text.status;
}

/* Pulls events until every row has ended: into rows, or to standard output where rows is NULL. */
static qn_status pull(qn_generation *generation, int64_t n_rows, row_result *rows, qn_end *end)
{
    char last = '\n';
    for (int64_t n_open = n_rows; n_open > 0;) {
        qn_token token;
        QN_TRY(qn_generation_next(generation, &token));
        if (token.end != QN_END_NONE) n_open--, *end = token.end;
        if (rows) {
            QN_TRY(keep(rows, &token));
        } else if (token.text_bytes) {
            QN_TRY(qn_out_write(token.text, token.text_bytes));
            last = token.text[token.text_bytes - 1];
        }
    }
    return last == '\n' ? QN_OK : qn_out_write("\n", 1);
}

static qn_status print_json(const qn_model *model, const run_options *o, const row_result *rows,
                            int64_t n_rows, const qn_generation_stats *stats)
{
    qn_buf b = {0};
    qn_model_info info;
    qn_metrics metrics;
    QN_TRY(qn_model_get_info(model, &info));
    QN_TRY(qn_model_get_metrics(model, &metrics));
    qn_json_open(&b, '{');
    qn_json_key(&b, "ids");
    qn_json_open(&b, '[');
    for (int64_t i = 0; i < n_rows; i++)
        qn_json_ids(&b, (const int32_t *)(const void *)rows[i].ids.data,
                    (int64_t)(rows[i].ids.length / sizeof(int32_t)));
    qn_json_close(&b, ']');
    qn_json_key(&b, "text");
    qn_json_open(&b, '[');
    for (int64_t i = 0; i < n_rows; i++) qn_json_text(&b, rows[i].text.data, rows[i].text.length);
    qn_json_close(&b, ']');
    qn_json_key(&b, "end");
    qn_json_open(&b, '[');
    for (int64_t i = 0; i < n_rows; i++)
        qn_json_text(&b, qn_end_name(rows[i].end), strlen(qn_end_name(rows[i].end)));
    qn_json_close(&b, ']');
    if (o->logprobs >= 0) {
        qn_json_key(&b, "logprobs");
        qn_json_open(&b, '[');
        for (int64_t i = 0; i < n_rows; i++) {
            qn_json_open(&b, '[');
            qn_buf_append(&b, rows[i].logprobs.data, rows[i].logprobs.length);
            qn_json_close(&b, ']');
        }
        qn_json_close(&b, ']');
    }
    qn_json_put_stats(&b, stats);
    qn_json_key(&b, "metrics");
    qn_json_metrics(&b, &metrics);
    qn_json_key(&b, "model");
    qn_json_info(&b, &info);
    qn_json_close(&b, '}');
    return qn_out_line(&b);
}

/* Why a text ends that its model did not end. */
static qn_status note_end(const qn_model *model, const run_options *o, const qn_generation_stats *stats,
                          qn_end end)
{
    qn_model_info info;
    int64_t max_tokens = o->sampling.o.max_tokens;
    QN_TRY(qn_model_get_info(model, &info));
    if (end == QN_END_DEADLINE)
        qn_out_note("ended by the deadline");
    else if (end == QN_END_LENGTH && (!max_tokens || stats->n_generated_tokens < max_tokens))
        qn_out_note("ended: the context of %lld tokens is full", (long long)info.context_size);
    return QN_OK;
}

static qn_status generate(qn_model *model, const run_options *o, const qn_prompt *prompt, qn_end *end)
{
    int64_t n_rows = prompt->rows ? prompt->n_rows : 1;
    qn_generation *generation = NULL;
    qn_generation_stats stats;
    /* Ids without --json have no text form of their own: they are printed as JSON too. */
    int json = o->json || prompt->rows;
    row_result *rows = json ? qn_calloc((size_t)n_rows, sizeof *rows) : NULL;
    if (json && !rows) return QN_E_NOMEM;
    qn_status status = qn_generation_open(model, prompt, &o->sampling.o, &generation);
    if (status != QN_OK) goto out;
    qn_interrupt_watch(generation);
    status = pull(generation, n_rows, rows, end);
    if (status == QN_OK) status = qn_generation_get_stats(generation, &stats);
    if (status != QN_OK) goto out;
    if (json) status = print_json(model, o, rows, n_rows, &stats);
    if (status == QN_OK && !json) status = note_end(model, o, &stats, *end);
    if (o->stats) qn_note_stats(&stats, *end);
out:
    qn_interrupt_watch(NULL);
    qn_generation_close(generation);
    for (int64_t i = 0; rows && i < n_rows; i++) {
        qn_buf_free(&rows[i].ids);
        qn_buf_free(&rows[i].text);
        qn_buf_free(&rows[i].logprobs);
    }
    qn_free(rows);
    return status;
}

/* The prompt of -p, or standard input without its last line end. */
static qn_status read_prompt(const run_options *o, qn_buf *text)
{
    if (o->prompt) {
        qn_buf_puts(text, o->prompt);
        return text->status;
    }
    QN_TRY(qn_input_read(o->prompt_file, text));
    if (text->length && text->data[text->length - 1] == '\n') text->data[--text->length] = 0;
    return QN_OK;
}

/* A chat where the model has a template, else (or with --raw) the text as it is. */
static qn_status run_text(qn_model *model, const run_options *o, const qn_buf *text, const qn_pictures *seen,
                          qn_end *end)
{
    qn_model_info info;
    QN_TRY(qn_model_get_info(model, &info));
    if (o->raw || !info.has_chat_template) {
        if (o->system) return qn_fail(QN_E_ARG, "--system needs a chat template, and the model has none");
        qn_prompt prompt = {.text = text->data,
                            .text_bytes = text->length,
                            .special = o->special,
                            .images = seen->images,
                            .n_images = seen->n};
        return generate(model, o, &prompt, end);
    }
    if (o->special) qn_out_note("--special is ignored: without --raw a prompt is plain text");
    if (memchr(text->data, 0, text->length)) return qn_fail(QN_E_FORMAT, "the prompt has a NUL character");
    qn_message messages[2] = {{"system", o->system}, {"user", text->data}};
    int first = o->system ? 0 : 1;
    qn_prompt prompt = {.messages = messages + first,
                        .n_messages = (size_t)(2 - first),
                        .images = seen->images,
                        .n_images = seen->n};
    return generate(model, o, &prompt, end);
}

static const qn_arg_group run_groups[] = {{NULL, run_args, 0, run_rules},
                                          {"Sampling", qn_sampling_args, AT(sampling), qn_sampling_rules},
                                          {"Loading", qn_load_args, AT(load), NULL},
                                          {"Rotary positions", qn_rope_args, AT(load.rope), qn_rope_rules},
                                          {0}};
const qn_arg_spec qn_run_spec = {"quern run [MODEL] [-p PROMPT] [options]",
                                 "Prints the model's answer to a prompt (from -p or standard input) as it "
                                 "is generated. Without MODEL,\nthe seed answers: a toy model inside quern. "
                                 "quern run \"A QUESTION\" asks it too.",
                                 run_groups,
                                 0,
                                 1,
                                 NULL};

/* Is the one argument what the seed is asked, and no model? Words with spaces that name nothing; who names a
 * folder is told that it is not there, but no folder ends with a question mark. */
static int is_question(const char *text, const run_options *o)
{
    const size_t n = strlen(text);
    if (o->prompt || o->prompt_file || o->ids_path || !strchr(text, ' ') || access(text, F_OK) == 0) return 0;
    return !strchr(text, '/') || text[n - 1] == '?';
}

int qn_cmd_run(int argc, char **argv)
{
    run_options o = {.sampling = QN_SAMPLING_UNSET, .logprobs = -1};
    const char *path = NULL;
    int n, code, keeps;
    if (qn_args_parse(&qn_run_spec, &o, argc, argv, &path, &n, &code)) return code;
    if (qn_sampling_finish("run", &o.sampling)) return QN_EXIT_USAGE;
    if (n && is_question(path, &o)) {
        o.prompt = path;
        n = 0;
    }
    for (size_t i = 0; i < o.images.n; i++)
        if (strcmp(o.images.items[i], "-") == 0 &&
            (i || !(o.prompt || (o.ids_path && strcmp(o.ids_path, "-")))))
            return qn_args_fail("run", "standard input is one thing: the prompt, the ids, or one image");
    o.sampling.o.logprobs = o.logprobs >= 0;
    o.sampling.o.n_top_logprobs = o.logprobs > 0 ? o.logprobs : 0;
    if (!o.ids_path && !o.prompt && !o.prompt_file && isatty(STDIN_FILENO))
        return qn_args_fail("run", "no prompt: give one by -p or on standard input");

    qn_model *model = NULL;
    qn_id_rows ids = {0};
    qn_buf text = {0};
    qn_pictures seen = {.n = 0};
    qn_end end = QN_END_NONE;
    qn_status status = o.ids_path ? qn_input_ids(o.ids_path, &ids) : read_prompt(&o, &text);
    if (status == QN_OK && !n && !o.ids_path && !text.length) {
        code = qn_args_fail("run", "no model and no prompt: name a model, or ask the seed a question");
        goto out;
    }
    if (status == QN_OK) status = qn_pictures_read(&o.images, &seen);
    if (status == QN_OK && !o.load.o.parallel_slots && ids.n_rows)
        o.load.o.parallel_slots = (int32_t)(ids.n_rows < 1024 ? ids.n_rows : 1024);
    o.load.may_fetch = 1;
    if (status == QN_OK) status = qn_load_open(n ? path : QN_SEED, &o.load, &model);
    if (status == QN_OK && !n) status = qn_note_seed("run", model);
    qn_interrupt_start(); /* until here Ctrl-C just ends the process: nothing is half done */
    if (status == QN_OK) status = qn_form_open(model, &o.sampling.form, &o.sampling.o.constraint);
    keeps = status == QN_OK && o.prompt_cache && qn_prompt_cache_load(model, o.prompt_cache);
    if (status == QN_OK && o.ids_path)
        status = generate(
            model, &o,
            &(qn_prompt){.rows = ids.rows, .n_rows = ids.n_rows, .images = seen.images, .n_images = seen.n},
            &end);
    else if (status == QN_OK)
        status = run_text(model, &o, &text, &seen, &end);
    if (status == QN_OK && keeps) qn_prompt_cache_save(model, o.prompt_cache);
    code = status == QN_E_CANCELLED  ? QN_EXIT_INTERRUPTED
           : status != QN_OK         ? qn_out_fail()
           : end == QN_END_CANCELLED ? QN_EXIT_INTERRUPTED
                                     : QN_EXIT_OK;
out:
    qn_constraint_close(o.sampling.o.constraint);
    qn_model_close(&model);
    qn_load_end(&o.load);
    qn_id_rows_free(&ids);
    qn_buf_free(&text);
    qn_pictures_free(&seen);
    return code;
}
