/* The form of answers, as a user names it: by options, in a line of a list, in a chat. Main thread. */
#ifndef QN_CLI_OPTIONS_FORM_H
#define QN_CLI_OPTIONS_FORM_H

#include <jansson.h>
#include <quern/constrain.h>

/* Options; at most one is given. */
typedef struct {
    const char *json_schema, *grammar; /* files */
    const char *regex, *choices;
} qn_form_options;

/* Compiles what is given for the model; what is not enforced is said on standard error. *out is NULL where nothing
 * is given; the caller closes it. */
qn_status qn_form_open(qn_model *model, const qn_form_options *o, qn_constraint **out);
/* The same of a value in JSON: name "json_schema" (a schema, or its text), "regex", "grammar" (texts) or "choices"
 * (a list of texts). */
qn_status qn_form_open_json(qn_model *model, const char *name, const json_t *value, qn_constraint **out);
/* Any JSON object. */
qn_status qn_form_open_object(qn_model *model, qn_constraint **out);

#endif
