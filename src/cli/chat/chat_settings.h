/* What can be set in a conversation: one table for what is typed, shown, saved and loaded.
 *
 * A setting has a range; what lies outside is refused by name and changes nothing. Zero means that a setting
 * is off, which has a word of its own where zero is not a value like any other. */
#ifndef QN_CLI_CHAT_CHAT_SETTINGS_H
#define QN_CLI_CHAT_CHAT_SETTINGS_H

#include <jansson.h>
#include <quern/generate.h>

#include "base/buf.h"
#include "base/status.h"

typedef enum { QN_CHAT_THINK_UNSET, QN_CHAT_THINK_ON, QN_CHAT_THINK_OFF } qn_chat_think;

typedef struct {
    /* What its pointers refer to (stop strings and the like) belongs to the command line and is not saved. */
    qn_generate_options o;
    qn_chat_think think; /* UNSET: as the template does without being told */
} qn_chat_settings;

typedef struct {
    const char *name; /* as it is typed: "top-p" */
    const char *key;  /* as it is saved: "top_p", OpenAI's name where it has one */
    enum { QN_CHAT_INT32, QN_CHAT_INT64, QN_CHAT_UINT64, QN_CHAT_FLOAT } kind;
    size_t offset;    /* in qn_chat_settings */
    double low, high; /* of UINT64: all of them */
    const char *zero; /* the word for 0; NULL: a number like others */
    const char *help;
} qn_chat_setting;

/* Up to a row without a name. */
extern const qn_chat_setting qn_chat_setting_table[];
/* By name or key; NULL: there is none. */
const qn_chat_setting *qn_chat_setting_find(const char *name);
/* QN_E_ARG: "top-p: 2 is not in the range 0 to 1". */
qn_status qn_chat_setting_set(const qn_chat_setting *setting, const char *value, qn_chat_settings *s);
/* Appends the value: as short as it can be read back exactly, or the word for 0. */
void qn_chat_setting_show(const qn_chat_setting *setting, const qn_chat_settings *s, qn_buf *out);
/* Appends the range: "0 to 1, or off". */
void qn_chat_setting_show_range(const qn_chat_setting *setting, qn_buf *out);

/* Appends `"temperature": 0.7` and the others as members of a JSON object, one a line after indent, the last
 * without a comma. What is off is null. */
void qn_chat_settings_write(const qn_chat_settings *s, const char *indent, qn_buf *out);
/* Takes one member of such an object; *known: it is one of ours. QN_E_FORMAT begins with what and the key. */
qn_status qn_chat_settings_take(const char *what, const char *key, const json_t *value, qn_chat_settings *s,
                                int *known);
/* The variables of a template that say whether to think, as a JSON object: its two usual names. NULL: unset.
 */
const char *qn_chat_think_variables(qn_chat_think think);

#endif
