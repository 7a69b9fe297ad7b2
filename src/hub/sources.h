/* The three places that models come from. Each says which revision a name means now, and which files it has; the
 * rest is alike (hub.c). */
#ifndef QN_HUB_SOURCES_H
#define QN_HUB_SOURCES_H

#include "hub/names/listing.h"
#include "hub/names/name.h"
#include "hub/net/session.h"

/* A repository as its server shows it. */
typedef struct {
    qn_hub_files files;
    char commit[QN_SUM_HEX_MAX]; /* 40 hexadecimal digits */
    const char *token;           /* for the files; NULL: none */
    int must_be_gguf;            /* the files may have no sums */
} qn_hub_listing;

/* out is zeroed by the caller and freed by qn_hub_listing_free, whatever came. what: the name, for messages. */
qn_status qn_hub_list_source(const qn_hub_session *s, const char *what, const qn_hub_name *name,
                             qn_hub_listing *out);
void qn_hub_listing_free(qn_hub_listing *l);
/* Puts into out (replaced) the URL of a listed file. */
qn_status qn_hub_file_url(const qn_hub_settings *settings, const qn_hub_name *name, const qn_hub_listing *l,
                          const qn_hub_file *file, qn_buf *out);
/* The URL of the next page in a Link header (RFC 8288, rel="next"), seen from url, into out (replaced); "" for none.
 * QN_E_FORMAT where it leads to another server. */
qn_status qn_hub_next_page(const char *url, const char *link, qn_buf *out);

#endif
