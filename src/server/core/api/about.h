/* What a route takes and gives, beside its row in a table of routes. /openapi.json is written from these, from the rows
 * and from the tables of fields. Constant data. */
#ifndef QN_SERVER_CORE_API_ABOUT_H
#define QN_SERVER_CORE_API_ABOUT_H

#include "server/core/fields/request_fields.h"
#include "server/http/routes.h"

struct qn_route_about {
    const char *summary; /* one sentence without its point */
    /* The body: a table of fields, the bit of the route in it, and the names that must be there, with spaces
     * between them. fields NULL: the route takes no body, or one of the type `body`. */
    const qn_field *fields;
    unsigned route;
    const char *required;
    const char *member; /* a field of the body whose own members have a table; NULL: none */
    const qn_field *member_fields;
    const char *body;   /* the content type of a body that is no JSON; NULL: JSON, or none */
    const char *parts;  /* its parts as properties of a JSON schema, the first two required; NULL: none */
    const char *query;  /* names of parameters, with spaces between them; NULL: none */
    const char *answer; /* the content type; NULL: JSON */
    const char *stream; /* the content type with "stream": true; NULL: there are no streams */
    int status;         /* of what can only be refused, such as 501; 0: 200 */
};

#endif
