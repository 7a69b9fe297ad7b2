/* quern rerank: how relevant documents are to a query. */
#include <math.h>
#include <quern/quern.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/command.h"
#include "cli/commands/rerank_list.h"
#include "cli/options/options.h"
#include "cli/term/input.h"
#include "cli/term/interrupt.h"
#include "cli/term/out.h"

typedef struct {
    qn_load_options load;
    const char *query, *path;
    qn_arg_list documents;
    qn_rerank_options rerank;
    int kind, json;
} rerank_options;

#define AT(field) offsetof(rerank_options, field)
static const qn_arg rerank_args[] = {
    {"--query", 'q', QN_ARG_TEXT, AT(query), 0, 0, "TEXT", "what the documents are compared with"},
    {"--document", 'p', QN_ARG_LIST, AT(documents), 0, 0, "TEXT", "one document; may be repeated"},
    {"--documents", 'f', QN_ARG_TEXT, AT(path), 0, 0, "FILE",
     "file with a document a line or, with --json, an object a line (default: standard input)"},
    {"--kind", 0, QN_ARG_CHOICE, AT(kind), 0, 0, "auto|cross-encoder|yes-no",
     "by the classification head of an encoder, or by asking a language model for yes or no (default: what "
     "the model "
     "is)"},
    {"--instruction", 0, QN_ARG_TEXT, AT(rerank.instruction), 0, 0, "TEXT", "the task, of yes-no"},
    {"--use", 0, QN_ARG_TEXT, AT(rerank.adapter), 0, 0, "NAME",
     "name of the adapter to use; `none`: the model without an adapter"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL,
     "each line is {\"query\":TEXT,\"documents\":[...]} or {\"ids\":[[...]],\"types\":[[...]]}; print "
     "{\"scores\":[...],\"probabilities\":[...]} for it"},
    {0},
};

static const qn_arg_rule rerank_rules[] = {
    {"--document", .excludes = "--documents --json"}, {"--query", .excludes = "--json"}, {0}};

/* What came of the pairs of one query. */
typedef struct {
    double score, probability;
    int failed;
    size_t i_pair;
} outcome;

typedef struct {
    outcome *all; /* [n_pairs] */
    size_t n_failed, i_line;
    qn_buf error; /* of the first that failed */
} outcomes;

static qn_status take(void *user, const qn_rerank_result *r)
{
    outcomes *o = user;
    o->all[r->i_pair] = (outcome){r->score, r->probability, r->status != QN_OK, r->i_pair};
    if (r->status == QN_OK) return QN_OK;
    if (!o->n_failed++)
        qn_buf_printf(&o->error, "document %zu: %s", r->i_pair,
                      r->message ? r->message : qn_status_text(r->status));
    return o->error.status;
}

static void put_numbers(qn_buf *b, const char *key, const outcomes *o, size_t n, int probabilities)
{
    qn_json_key(b, key);
    qn_json_open(b, '[');
    for (size_t i = 0; i < n; i++) {
        if (o->all[i].failed)
            qn_json_real(b, NAN); /* null */
        else
            qn_json_real(b, probabilities ? o->all[i].probability : o->all[i].score);
    }
    qn_json_close(b, ']');
}

static qn_status print_json(const outcomes *o, size_t n)
{
    qn_buf b = {0};
    qn_json_open(&b, '{');
    qn_json_put_int(&b, "index", (int64_t)o->i_line);
    if (o->n_failed) qn_json_put_text(&b, "error", o->error.data);
    put_numbers(&b, "scores", o, n, 0);
    put_numbers(&b, "probabilities", o, n, 1);
    qn_json_close(&b, '}');
    return qn_out_line(&b);
}

/* The most relevant first; those that failed last. */
static int by_score(const void *a, const void *b)
{
    const outcome *x = a, *y = b;
    if (x->failed != y->failed) return x->failed - y->failed;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return x->i_pair < y->i_pair ? -1 : 1;
}

/* "PROBABILITY<tab>DOCUMENT". */
static qn_status print_text(outcomes *o, const qn_pair *pairs, size_t n)
{
    if (o->n_failed) qn_out_note("%s", o->error.data);
    qsort(o->all, n, sizeof *o->all, by_score);
    for (size_t i = 0; i < n && !o->all[i].failed; i++) {
        qn_buf b = {0};
        const qn_pair *p = &pairs[o->all[i].i_pair];
        qn_buf_printf(&b, "%.4f\t", o->all[i].probability);
        qn_out_put_shown(&b, p->document, p->document_bytes, 0);
        QN_TRY(qn_out_line(&b));
    }
    return QN_OK;
}

/* The pairs of one query. *n_failed counts those that failed. */
static qn_status judge(qn_model *model, const rerank_options *o, const qn_pair *pairs, size_t n,
                       size_t i_line, size_t *n_failed)
{
    outcomes made = {.all = qn_calloc(n, sizeof *made.all), .i_line = i_line};
    qn_status status = made.all ? qn_rerank(model, pairs, n, &o->rerank, take, &made) : QN_E_NOMEM;
    if (status == QN_OK) status = o->json ? print_json(&made, n) : print_text(&made, pairs, n);
    *n_failed += made.n_failed;
    qn_buf_free(&made.error);
    qn_free(made.all);
    return status;
}

/* The documents of the command line, or a line of the file each; an empty line is none. text is cut. */
static qn_status make_pairs(const rerank_options *o, qn_buf *text, qn_pair **out, size_t *n)
{
    size_t most = o->documents.n + 1;
    for (size_t i = 0; i < text->length; i++) most += text->data[i] == '\n';
    qn_pair *pairs = qn_calloc(most, sizeof *pairs);
    if (!pairs) return QN_E_NOMEM;
    for (size_t i = 0; i < o->documents.n; i++)
        pairs[(*n)++] = (qn_pair){.query = o->query,
                                  .document = o->documents.items[i],
                                  .document_bytes = strlen(o->documents.items[i])};
    for (char *at = text->data, *end = at + text->length; at < end;) {
        char *stop = memchr(at, '\n', (size_t)(end - at)), *next;
        if (!stop) stop = end;
        next = stop + 1;
        if (stop > at && stop[-1] == '\r') stop--;
        if (stop > at)
            pairs[(*n)++] =
                (qn_pair){.query = o->query, .document = at, .document_bytes = (size_t)(stop - at)};
        at = next;
    }
    *out = pairs;
    return *n ? QN_OK : qn_fail(QN_E_ARG, "there are no documents in the input");
}

static qn_status run(const char *path, rerank_options *o, size_t *n_failed)
{
    const char *name = o->path && strcmp(o->path, "-") ? o->path : "standard input";
    qn_buf text = {0};
    qn_rerank_list list = {0};
    qn_pair *pairs = NULL;
    qn_model *model = NULL;
    qn_cancel *cancel = NULL;
    size_t n = 0;
    qn_status status = o->documents.n ? QN_OK : qn_input_read(o->path, &text);
    if (status == QN_OK)
        status = o->json ? qn_rerank_list_read(name, text.data, text.length, &list)
                         : make_pairs(o, &text, &pairs, &n);
    for (size_t i = 0; i < list.n; i++) n = list.lines[i].n > n ? list.lines[i].n : n;
    if (status == QN_OK) status = qn_load_open_for(path, &o->load, n, &model);
    if (status == QN_OK) status = qn_cancel_new(&cancel);
    if (status == QN_OK) {
        o->rerank.cancel = cancel;
        qn_interrupt_start();
        qn_interrupt_watch_call(cancel);
        if (pairs) status = judge(model, o, pairs, n, 0, n_failed);
        for (size_t i = 0; i < list.n && status == QN_OK; i++)
            status = judge(model, o, list.lines[i].pairs, list.lines[i].n, i, n_failed);
        qn_interrupt_watch_call(NULL);
    }
    qn_cancel_free(cancel);
    qn_model_close(&model);
    qn_rerank_list_free(&list);
    qn_free(pairs);
    qn_buf_free(&text);
    return status;
}

static const qn_arg_group rerank_groups[] = {{NULL, rerank_args, 0, rerank_rules},
                                             {"Loading", qn_load_args, AT(load), NULL},
                                             {"Rotary positions", qn_rope_args, AT(load.rope), qn_rope_rules},
                                             {0}};
const qn_arg_spec qn_rerank_spec = {
    "quern rerank MODEL -q QUERY [-f DOCUMENTS] [options]",
    "Prints the documents with the probability that each is relevant to the query, the "
    "most relevant first.",
    rerank_groups,
    1,
    1,
    NULL};

int qn_cmd_rerank(int argc, char **argv)
{
    rerank_options o = {0};
    const char *path;
    size_t n_failed = 0;
    int n, code;
    if (qn_args_parse(&qn_rerank_spec, &o, argc, argv, &path, &n, &code)) return code;
    if (!o.query && !o.json)
        return qn_args_fail("rerank", "no query: give one by --query, or lines of JSON by --json");
    if (!o.path && !o.documents.n && isatty(STDIN_FILENO))
        return qn_args_fail("rerank", "no documents: give a file by -f, texts by -p, or pipe them in");
    o.rerank.kind = (qn_rerank_kind)o.kind;
    qn_status status = run(path, &o, &n_failed);
    code = status != QN_OK ? qn_out_fail() : n_failed ? QN_EXIT_ERROR : QN_EXIT_OK;
    if (status == QN_E_CANCELLED) code = QN_EXIT_INTERRUPTED;
    qn_load_end(&o.load);
    return code;
}
