/* Checked reading of a model's description: a JSON object with config.json's names, be it config.json itself
 * or what GGUF metadata was mapped to. Every value is checked for type and range; messages name the file and
 * the field as that file spells it. Borrows all that it points to. One thread at a time. */
#ifndef QN_MODEL_CONFIG_FIELDS_H
#define QN_MODEL_CONFIG_FIELDS_H

#include <stdint.h>

#include "base/json/json.h"
#include "base/status.h"

/* What a family takes a field for when the description lacks it. */
typedef struct {
    const char *name; /* NULL ends a list */
    double value;
    int also_gguf; /* 0: only when config.json is read; the GGUF rule is another */
} qn_field_default;

/* A field that a family's files call otherwise. Where both are there, the family's own spelling counts. */
typedef struct {
    const char *name; /* ours; NULL ends a list */
    const char *spelled;
} qn_field_spelling;

typedef struct {
    const char *file;
    const json_t *object;
    const char *path;                 /* where object lies in the file: "", "text_config." */
    const json_t *outer;              /* asked when object lacks a key; NULL: none */
    const qn_field_default *defaults; /* NULL: none */
    const qn_field_spelling *spelled; /* in config.json; NULL: none */
    const char *gguf_architecture;    /* NULL: config.json; else the prefix of the file's keys */
} qn_fields;

/* JSON null counts as a value here: it is returned, and switches a default off. NULL: no such key. */
const json_t *qn_fields_get(const qn_fields *f, const char *name);

/* The value in [min, max]; out is untouched and *found (may be NULL) 0 when the key is absent or null and
 * there is no default. */
qn_status qn_fields_int(const qn_fields *f, const char *name, int64_t min, int64_t max, int64_t *out,
                        int *found);
/* Also takes integers; finite. */
qn_status qn_fields_number(const qn_fields *f, const char *name, double min, double max, double *out,
                           int *found);
/* The same, also of a text that is a number: transformers does not look at the type of some fields. */
qn_status qn_fields_spelt_number(const qn_fields *f, const char *name, double min, double max, double *out,
                                 int *found);
qn_status qn_fields_bool(const qn_fields *f, const char *name, int *out, int *found);
/* Borrowed from the description. */
qn_status qn_fields_string(const qn_fields *f, const char *name, const char **out, int *found);
/* An object as fields of its own, without outer and defaults. path is what its fields' names are preceded by
 * in messages. */
qn_status qn_fields_object(const qn_fields *f, const char *name, const char *path, qn_fields *out,
                           int *found);
/* As qn_fields_int, but absence is an error that names the field. */
qn_status qn_fields_required_int(const qn_fields *f, const char *name, int64_t min, int64_t max,
                                 int64_t *out);

/* The name as the file spells it, into text; returns text. */
const char *qn_fields_label(const qn_fields *f, const char *name, char *text, size_t size);

#endif
