/* Places in a rendered chat: a mark that the template wrote gives way to a text. What a message says stays as
 * it is, be it spelled like the mark. Any thread. */
#ifndef QN_TEXT_CHAT_CHAT_PLACES_H
#define QN_TEXT_CHAT_CHAT_PLACES_H

#include "text/jinja/template.h"

/* Borrowed. */
typedef struct {
    const char *mark;         /* not empty */
    const char *const *texts; /* [n_texts]: of each mark, in order */
    size_t n_texts;
} qn_chat_places;

/* Replaces each mark in the template's bytes of r, whose `generations` are dropped. QN_E_ARG: there are more or
 * fewer marks than texts; r stays as it is then, and when memory is out. */
qn_status qn_chat_places_fill(qn_rendered *r, const qn_chat_places *places);

#endif
