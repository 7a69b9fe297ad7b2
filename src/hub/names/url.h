/* The little of URLs that fetching needs: their parts, where a redirect leads, and whether two lead to the same
 * server (a token follows to the same one alone). Only http and https; a URL with a user or password in it is
 * refused. Pure functions, any thread. */
#ifndef QN_HUB_NAMES_URL_H
#define QN_HUB_NAMES_URL_H

#include "base/buf.h"

enum { QN_URL_BYTES_MAX = 8192 };

/* Views into the text that was parsed. */
typedef struct {
    const char *host;
    size_t n_host; /* with the brackets of IPv6 */
    int port;      /* 80 or 443 where none is written */
    int is_https;
    const char *path; /* from the first '/', '?' or '#', or the text's end */
} qn_url;

/* QN_E_ARG: another scheme, no host, a bad port, user or password, spaces or control characters, too long. */
qn_status qn_url_parse(const char *text, qn_url *out);
/* The same scheme, host and port? */
int qn_url_same_server(const qn_url *a, const qn_url *b);
/* Does its host mean this machine: localhost, 127.x.x.x or [::1]? */
int qn_url_is_local(const qn_url *u);
/* The last part of the path, without query: "model.gguf". Length in *n; 0: the path ends with '/'. */
const char *qn_url_file(const qn_url *u, size_t *n);
/* Puts into out (replaced) where a Location leads, as seen from base. QN_E_FORMAT. */
qn_status qn_url_join(const char *base, const char *location, qn_buf *out);
/* Appends text with all but letters, digits, "-._~" and '/' as %XX. */
void qn_url_put_escaped(qn_buf *b, const char *text);

#endif
