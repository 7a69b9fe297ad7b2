/* A JSON schema's text: its draft, and where its references lead.
 *
 * Nothing is fetched: a reference leads to a place of the same document or is refused. Values are jansson's, and
 * one is known by its address, so the document must live as long as what was taken out of it. One thread at a
 * time. */
#ifndef QN_CONSTRAIN_JSON_DOCUMENT_H
#define QN_CONSTRAIN_JSON_DOCUMENT_H

#include <jansson.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/map.h"
#include "base/status.h"

/* QN_DRAFT_ANY: no $schema: 2020-12 with `definitions`, `dependencies` and arrays of `items` as in draft 7. */
typedef enum { QN_DRAFT_4, QN_DRAFT_6, QN_DRAFT_7, QN_DRAFT_2019, QN_DRAFT_2020, QN_DRAFT_ANY } qn_draft;

typedef struct {
    const char *uri;
    const json_t *value;
} qn_resource;

typedef struct {
    uint32_t resource;
    int is_dynamic;
    const char *name;
    const json_t *value;
} qn_anchor;

typedef struct {
    json_t *root;
    qn_draft draft;
    qn_arena arena;
    qn_resource *resources;
    qn_anchor *anchors;
    size_t n_resources, resources_room, n_anchors, anchors_room;
    qn_map *bases; /* address of an object below an identifier -> resource */
} qn_document;

qn_status qn_document_open(qn_document *d, const char *text, size_t n, int depth_max);
void qn_document_close(qn_document *d);
/* Where a $ref of the object `from` leads. QN_E_UNSUPPORTED, without the place in the message. */
qn_status qn_document_resolve(const qn_document *d, const json_t *from, const char *ref, const json_t **out);
/* The same for a $dynamicRef: refused if the dynamic scope decides. */
qn_status qn_document_resolve_dynamic(const qn_document *d, const json_t *from, const char *ref,
                                      const json_t **out);
/* Appends the JSON pointer of a value of the document; "?" if it is none of it. */
void qn_document_pointer(const qn_document *d, const json_t *value, qn_buf *out);
/* 1: members beside $ref are ignored. */
static inline int qn_document_ref_is_alone(const qn_document *d)
{
    return d->draft <= QN_DRAFT_7;
}

#endif
