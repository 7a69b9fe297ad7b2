/* The automata of patterns and formats, one for each text. */
#include <string.h>

#include "base/mem.h"
#include "constrain/automaton/formats.h"
#include "constrain/automaton/regex.h"
#include "constrain/validate/schema.h"

enum {
    AUTOMATA_MAX = 2000,
    AUTOMATA_LARGE = 50, /* so many may take the steps that are usual */
    OTHERS_SHARE = 20,   /* the others may take so much less */
    AUTOMATA_BYTES_MAX = 64 << 20
};

static qn_status keep(qn_schema *s, qn_map *by_text, const char *text, size_t n, qn_dfa *automaton)
{
    if (s->n_automata == s->automata_room) {
        size_t room = s->automata_room ? 2 * s->automata_room : 16;
        qn_dfa **automata = qn_realloc(s->automata, room * sizeof *automata);
        if (!automata) return qn_fail_nomem(room * sizeof *automata);
        s->automata = automata;
        s->automata_room = room;
    }
    QN_TRY(qn_map_set(by_text, text, n, (int64_t)s->n_automata, NULL, NULL));
    s->automata[s->n_automata++] = automaton;
    s->automata_bytes += automaton->size_bytes;
    return QN_OK;
}

static qn_status make_format(qn_keyword kind, const char *text, const qn_dfa_limits *limits, qn_dfa **out)
{
    if (kind == QN_KEYWORD_FORMAT) return qn_dfa_format(text, limits, out);
    return qn_dfa_content(kind == QN_KEYWORD_CONTENT_ENCODING ? "contentEncoding" : "contentMediaType", text,
                          limits, out);
}

qn_status qn_schema_automaton(qn_schema *s, const qn_value *keyword, const char *text, size_t n,
                              qn_keyword kind, qn_dfa **out)
{
    int is_format = qn_keyword_is_format(kind);
    qn_map *by_text = kind == QN_KEYWORD_PATTERN  ? s->patterns
                      : kind == QN_KEYWORD_FORMAT ? s->formats
                                                  : s->encodings;
    int64_t known;
    /* No media type has an automaton. */
    if (kind != QN_KEYWORD_CONTENT_MEDIA_TYPE && qn_map_get(by_text, text, n, &known)) {
        *out = s->automata[known];
        return QN_OK;
    }
    if (s->n_automata >= AUTOMATA_MAX || s->automata_bytes > AUTOMATA_BYTES_MAX)
        return qn_schema_fail(QN_E_UNSUPPORTED, keyword,
                              "the schema's patterns are more than %d, or larger than %d MiB", AUTOMATA_MAX,
                              AUTOMATA_BYTES_MAX >> 20);
    int64_t steps_max = s->limits.pattern_steps_max;
    qn_dfa_limits limits = {.steps_max =
                                s->n_automata < AUTOMATA_LARGE ? steps_max : steps_max / OTHERS_SHARE + 1};
    qn_dfa *automaton = NULL;
    qn_status status = is_format
                           ? strlen(text) < n ? QN_E_NOT_FOUND : make_format(kind, text, &limits, &automaton)
                           : qn_dfa_regex(text, n, QN_REGEX_SEARCH, &limits, &automaton);
    if (is_format && status == QN_E_NOT_FOUND)
        return qn_schema_add_note(s, keyword, "\"%.100s\" is an annotation%s", text,
                                  kind == QN_KEYWORD_FORMAT ? ": no format of the drafts" : "");
    if (status == QN_E_NOMEM) return status;
    if (status != QN_OK) {
        char why[300];
        size_t length = strlen(qn_last_error());
        if (length >= sizeof why) length = sizeof why - 1;
        memcpy(why, qn_last_error(), length);
        why[length] = 0;
        return qn_schema_fail(status, keyword, "%s", why);
    }
    status = keep(s, by_text, text, n, automaton);
    if (status != QN_OK) {
        qn_dfa_release(automaton);
        return status;
    }
    *out = automaton;
    return QN_OK;
}
