/* Lists of prompts, as classify, embed, score and batch read them: one a line, or a JSON object a line. */
#ifndef QN_CLI_COMMANDS_PROMPT_LIST_H
#define QN_CLI_COMMANDS_PROMPT_LIST_H

#include <jansson.h>
#include <quern/classify.h>

#include "base/buf.h"
#include "cli/options/args.h"

/* Where they come from. */
typedef struct {
    const char *path;  /* -f; NULL: standard input */
    qn_arg_list texts; /* -p, in place of a file */
    int jsonl;
} qn_prompt_list_options;
extern const qn_arg qn_prompt_list_args[];
extern const qn_arg_rule qn_prompt_list_rules[];

/* One prompt; what it points to is the list's. */
typedef struct {
    const char *text; /* NUL-terminated; NULL: ids or messages */
    size_t n_bytes;
    qn_ids ids;
    qn_buf messages;       /* JSON */
    const json_t *choices; /* a list of strings and lists of ids; NULL: none */
    const json_t *form;    /* of its answer, if it is no choice; NULL: none */
    const char *form_name; /* "json_schema", "regex" or "grammar" */
    json_t *json;          /* the line, of which text and choices are parts; NULL: it is no JSON */
    int64_t line;          /* from 1 on */
    qn_message chat[2];    /* of a text that becomes one */
} qn_prompt_line;

typedef struct {
    const char *name; /* of the file */
    qn_buf file;
    qn_prompt_line *lines;
    qn_prompt *prompts; /* [n] */
    size_t n;
} qn_prompt_list;

/* Reads the prompts; whole: a file is one text, unless it is JSON. QN_E_FORMAT names file and line of what is
 * no prompt; QN_E_ARG: there are none. */
qn_status qn_prompt_list_read(const qn_prompt_list_options *o, int whole, qn_prompt_list *out);
/* The same of the text of a file, which is taken over whatever comes of it; name lives as long as the list.
 */
qn_status qn_prompt_list_take(const char *name, qn_buf *text, int jsonl, int whole, qn_prompt_list *out);
/* Fills list->prompts. as_chats: texts are messages of a user, behind one of the system where it is not NULL;
 * else they are taken as they are. QN_E_FORMAT: a text with a NUL character cannot be a message. */
qn_status qn_prompt_list_finish(qn_prompt_list *list, int as_chats, const char *system);
void qn_prompt_list_free(qn_prompt_list *list);

/* The answers of a line, or NULL where it has none; *n of them. Owned by the caller: qn_free(*out) and
 * qn_free(*ids).
 */
qn_status qn_prompt_list_choices(const qn_prompt_list *list, size_t i, qn_choice **out, size_t *n,
                                 int32_t **ids);

#endif
