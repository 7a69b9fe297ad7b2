/* Constraints: answers that must have a form, such as a JSON schema, a regular expression or a grammar.
 *
 * A constraint is compiled once for a model and may be used by any number of generations (generate.h,
 * `constraint`), one after the other or at once. What cannot be enforced is refused when it is compiled, never
 * ignored. A model that reasons first does so freely; the form begins behind its reasoning. Where only one
 * text can come next, its tokens are computed together, without a draw each.
 * A handle is immutable: any thread. It may outlive the generations that use it, and it must be closed before
 * its model. */
#ifndef QUERN_CONSTRAIN_H
#define QUERN_CONSTRAIN_H

#include <quern/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the text of a constraint is: X(NAME, "name"). */
#define QN_CONSTRAIN_LIST(X)                                                                \
    X(JSON_SCHEMA, "json_schema") /* drafts 4 to 2020-12 */                                 \
    X(JSON_OBJECT, "json_object") /* any JSON object; the text is not used */               \
    X(REGEX, "regex")             /* ECMA-262; the whole answer matches */                  \
    X(GBNF, "gbnf")               /* a grammar as llama.cpp's, from its rule root */        \
    X(EBNF, "ebnf")               /* the same with the operators of EBNF */                 \
    X(LARK, "lark")               /* a grammar as Lark's, from its rule start */            \
    X(CHOICES, "choices")         /* a JSON array of strings, one of which is the answer */ \
    X(TOOLS, "tools") /* calls in the model's own format; a JSON array of tools as OpenAI's API has it */

typedef enum {
#define QN_CONSTRAIN_ENUM(name, text) QN_CONSTRAIN_##name,
    QN_CONSTRAIN_LIST(QN_CONSTRAIN_ENUM)
#undef QN_CONSTRAIN_ENUM
} qn_constraint_kind;

typedef enum {
    QN_TOOL_CALLS_AUTO,     /* free text; what opens a call goes on as one */
    QN_TOOL_CALLS_REQUIRED, /* at least one call, and nothing before it but reasoning */
    QN_TOOL_CALLS_NAMED     /* one call of one tool */
} qn_tool_calls_mode;

/* Zero means the default. Everything is borrowed during the call. */
typedef struct {
    qn_constraint_kind kind;
    const char *text;  /* UTF-8 */
    size_t text_bytes; /* 0: up to the NUL */
    /* TOOLS */
    qn_tool_calls_mode tool_calls;
    const char *tool_name; /* NAMED */
    int is_one_call;       /* at most one */
} qn_constraint_options;

/* Something that was accepted though it is not enforced, such as a keyword that is an annotation. */
typedef struct {
    const char *pointer; /* JSON pointer into the text */
    const char *keyword;
    const char *message;
} qn_constraint_note;

typedef struct qn_constraint qn_constraint;

/* Compiles a constraint, or finds it among those that the model has kept. QN_E_FORMAT: the text is no schema,
 * pattern or grammar. QN_E_UNSUPPORTED: it cannot be enforced, or passes a limit; for schemas the message is
 * "POINTER: KEYWORD: why". *out is owned by the caller: qn_constraint_close. */
QN_API qn_status qn_constraint_open(qn_model *model, const qn_constraint_options *options,
                                    qn_constraint **out);
/* The i-th note, borrowed from the constraint. QN_E_NOT_FOUND: there are fewer. */
QN_API qn_status qn_constraint_get_note(const qn_constraint *constraint, size_t i_note,
                                        qn_constraint_note *out);
/* Generations that are open go on with it. NULL is accepted. */
QN_API void qn_constraint_close(qn_constraint *constraint);
/* What kind of grammar a text is: GBNF if it has "::=", else LARK if it has ":". Returns 0 if it has neither. */
QN_API int qn_constraint_grammar_kind(const char *text, size_t text_bytes, qn_constraint_kind *out);
/* "json_schema". Static storage. */
QN_API const char *qn_constraint_kind_name(qn_constraint_kind kind);

#ifdef __cplusplus
}
#endif
#endif
