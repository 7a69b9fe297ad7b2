/* quern inspect: what model files hold, as their readers see it. */
#include <inttypes.h>
#include <jansson.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json/json.h"
#include "cli/command.h"
#include "cli/commands/inspect_attention.h"
#include "cli/commands/inspect_summary.h"
#include "cli/options/args.h"
#include "cli/options/model_name.h"
#include "cli/term/fold.h"
#include "cli/term/out.h"
#include "format/source/packed.h"
#include "format/source/source.h"
#include "model/config/sampling_defaults.h"
#include "seed/seed.h"

typedef struct {
    qn_load_options load; /* its file is that of the other forms, too */
    qn_attention_options of_attention;
    int metadata, tensors, attention, json;
} inspect_options;

#define AT(field) offsetof(inspect_options, field)
static const qn_arg inspect_args[] = {
    {"--metadata", 0, QN_ARG_FLAG, AT(metadata), 0, 0, NULL, "print only the metadata"},
    {"--tensors", 0, QN_ARG_FLAG, AT(tensors), 0, 0, NULL, "print only the tensors"},
    {"--attention", 0, QN_ARG_FLAG, AT(attention), 0, 0, NULL,
     "show keys and attention that the model computes for a prompt"},
    {"--json", 0, QN_ARG_FLAG, AT(json), 0, 0, NULL, "print one JSON object, with complete arrays"},
    {0},
};

static const qn_arg_rule inspect_rules[] = {{"--attention", .excludes = "--metadata --tensors"}, {0}};

enum {
    ELEMENTS_SHOWN = 8,     /* of an array, in the table */
    STRING_SHOWN = 400,     /* bytes of a string in an array, in the table */
    VALUE_COLUMNS = 100,    /* of a value, in the table */
    VALUE_COLUMNS_MIN = 24, /* beside its key; else it has lines for itself */
    TYPE_COLUMNS_MAX = 12,  /* of a type's name */
    NAME_COLUMNS_MAX = 60,  /* of a tensor's name, in the table, before the column gives way */
    TYPES_MAX = 64
};

/* Elements and bytes by type. */
typedef struct {
    const char *name;
    int supported;
    int64_t n_tensors, n_elements;
    size_t size_bytes;
} type_total;

typedef struct {
    int64_t n_elements;
    size_t size_bytes;
    type_total
        types[TYPES_MAX]; /* in the order in which they turn up; more than these are in the sums alone */
    int n_types;
} totals;

static void add_up(const qn_source *s, totals *t)
{
    for (int64_t i = 0; i < qn_source_count(s); i++) {
        const qn_tensor_view *v = qn_source_get(s, i);
        int j = 0;
        t->n_elements += v->n_elements;
        t->size_bytes += v->size_bytes;
        while (j < t->n_types && strcmp(t->types[j].name, v->type_name) != 0) j++;
        if (j == TYPES_MAX) continue;
        if (j == t->n_types)
            t->types[t->n_types++] = (type_total){.name = v->type_name, .supported = v->supported};
        t->types[j].n_tensors++;
        t->types[j].n_elements += v->n_elements;
        t->types[j].size_bytes += v->size_bytes;
    }
}

/* 1: the type has no known size (a number that ggml has not given out). */
static int is_unmeasured(int supported, int64_t n_elements, size_t size_bytes)
{
    return !supported && !size_bytes && n_elements;
}

static void put_size_json(qn_buf *b, int supported, int64_t n_elements, size_t size_bytes)
{
    qn_json_key(b, "size_bytes");
    if (is_unmeasured(supported, n_elements, size_bytes))
        qn_buf_puts(b, "null");
    else
        qn_json_int(b, (int64_t)size_bytes);
}

static size_t file_offset(const qn_tensor_view *v)
{
    size_t n;
    const uint8_t *begin = v->mapping ? qn_mapping_data(v->mapping) : qn_seed_bytes(&n);
    return (size_t)((const uint8_t *)v->data - begin);
}

/* ---- values of a GGUF --------------------------------------------------------------------------------- */

static void put_integer(qn_buf *b, const uint8_t *p, size_t size, int is_signed)
{
    uint64_t bits = 0;
    memcpy(&bits, p, size);
    if (is_signed && size < sizeof bits && bits >> (8 * size - 1)) bits |= ~(uint64_t)0 << 8 * size;
    if (is_signed)
        qn_buf_printf(b, "%" PRId64, (int64_t)bits);
    else
        qn_buf_printf(b, "%" PRIu64, bits);
}

/* JSON has no infinities and no NaN. */
static void put_real(qn_buf *b, double value, int digits, int json)
{
    if (json && (value != value || value - value != 0))
        qn_buf_puts(b, "null");
    else
        qn_buf_printf(b, "%.*g", digits, value);
}

/* An element that is no string. */
static void put_element(qn_buf *b, qn_gguf_type type, const uint8_t *p, int json)
{
    float single;
    double wide;
    switch (type) {
    case QN_GGUF_I8:
    case QN_GGUF_I16:
    case QN_GGUF_I32:
    case QN_GGUF_I64:
        put_integer(b, p, qn_gguf_type_size(type), 1);
        return;
    case QN_GGUF_F32:
        memcpy(&single, p, sizeof single);
        put_real(b, single, 9, json);
        return;
    case QN_GGUF_F64:
        memcpy(&wide, p, sizeof wide);
        put_real(b, wide, 17, json);
        return;
    case QN_GGUF_BOOL:
        qn_buf_puts(b, *p ? "true" : "false");
        return;
    default:
        put_integer(b, p, qn_gguf_type_size(type), 0);
    }
}

/* The first `most` elements of a value, one after the other with commas. */
static qn_status put_elements(qn_buf *b, const qn_gguf_value *v, int64_t most, int json)
{
    qn_gguf_strings it = {v->data, v->count};
    qn_gguf_string s;
    for (int64_t i = 0; i < v->count && i < most; i++) {
        if (i) qn_buf_puts(b, json ? "," : ", ");
        if (v->element_type == QN_GGUF_STRING) {
            if (!qn_gguf_strings_next(&it, &s)) break;
            qn_buf_json_string(b, s.data, json || s.length < STRING_SHOWN ? s.length : STRING_SHOWN);
        } else {
            put_element(b, v->element_type, v->data + (size_t)i * qn_gguf_type_size(v->element_type), json);
        }
        if (json) QN_TRY(qn_json_drain(b));
    }
    return b->status;
}

static qn_status put_gguf_json(qn_buf *b, const qn_gguf *g)
{
    for (int64_t i = 0; i < qn_gguf_value_count(g); i++) {
        const qn_gguf_value *v = qn_gguf_value_get(g, i);
        qn_json_open(b, '{');
        qn_json_put_text(b, "key", v->key);
        qn_json_put_text(b, "type", qn_gguf_type_name(v->type));
        if (v->type == QN_GGUF_ARRAY) {
            qn_json_put_text(b, "element_type", qn_gguf_type_name(v->element_type));
            qn_json_put_int(b, "count", v->count);
        }
        qn_json_key(b, "value");
        if (v->type == QN_GGUF_ARRAY) qn_buf_putc(b, '[');
        QN_TRY(put_elements(b, v, v->count, 1));
        if (v->type == QN_GGUF_ARRAY) qn_buf_putc(b, ']');
        qn_json_close(b, '}');
        QN_TRY(qn_json_drain(b));
    }
    return b->status;
}

/* "  key    value" with what comes from the file made fit for a terminal. */
static void put_pair(qn_buf *b, const char *key, const char *type, const char *value, size_t n)
{
    qn_buf_puts(b, "  ");
    int used = qn_out_put_shown(b, key, strlen(key), 0);
    qn_buf_printf(b, "%*s %-6s ", used < 40 ? 40 - used : 0, "", type);
    qn_buf shown = {0};
    const int width = qn_out_put_shown(&shown, value, n, VALUE_COLUMNS);
    if (shown.status != QN_OK) b->status = shown.status;
    const int at = 10 + (used < 40 ? 40 : used), columns = qn_fold_terminal(stdout),
              has_place = !columns || at + width <= columns || columns - at >= VALUE_COLUMNS_MIN;
    if (!has_place) qn_fold_line_end(b, 6);
    if (shown.length)
        qn_fold_put(b, shown.data, has_place ? at : 6, has_place ? at : 6, columns, QN_FOLD_LONG);
    qn_buf_putc(b, '\n');
    qn_buf_free(&shown);
}

static qn_status print_gguf_values(qn_buf *b, const qn_gguf *g)
{
    qn_buf value = {0};
    qn_status status = QN_OK;
    for (int64_t i = 0; i < qn_gguf_value_count(g) && status == QN_OK; i++) {
        const qn_gguf_value *v = qn_gguf_value_get(g, i);
        qn_gguf_string s;
        qn_buf_reset(&value);
        if (v->type == QN_GGUF_STRING) {
            status = qn_gguf_get_string(g, v->key, &s);
            if (status == QN_OK) put_pair(b, v->key, "string", s.data, s.length);
            continue;
        }
        if (v->type == QN_GGUF_ARRAY) {
            qn_buf_printf(&value, "%" PRId64 " %s: ", v->count, qn_gguf_type_name(v->element_type));
            status = put_elements(&value, v, ELEMENTS_SHOWN, 0);
            if (v->count > ELEMENTS_SHOWN) qn_buf_puts(&value, ", ...");
        } else {
            status = put_elements(&value, v, 1, 0);
        }
        if (status == QN_OK) status = value.status;
        if (status == QN_OK) put_pair(b, v->key, qn_gguf_type_name(v->type), value.data, value.length);
    }
    qn_buf_free(&value);
    return status == QN_OK ? b->status : status;
}

/* ---- what stands beside safetensors ------------------------------------------------------------------- */

static qn_status dump(qn_buf *b, const json_t *value, int digits)
{
    return qn_json_write(b, value,
                         JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(digits));
}

/* config.json of a folder, parsed; NULL where there is none, and for a single file. *out: json_decref. */
static qn_status read_config(qn_source *s, json_t **out)
{
    const char *text, *path = qn_source_side_path(s, QN_SIDE_CONFIG);
    size_t n;
    struct stat st;
    *out = NULL;
    if (!path || stat(qn_source_path(s), &st) != 0 || !S_ISDIR(st.st_mode)) return QN_OK;
    QN_TRY(qn_source_side_text(s, QN_SIDE_CONFIG, &text, &n));
    return qn_json_parse_python(path, text, n, out);
}

static qn_status print_config(qn_buf *b, qn_source *s)
{
    json_t *config = NULL, *value;
    const char *key;
    qn_buf text = {0};
    QN_TRY(read_config(s, &config));
    qn_status status = QN_OK;
    if (config) qn_buf_puts(b, "config.json\n");
    json_object_foreach(config, key, value)
    {
        qn_buf_reset(&text);
        if (status == QN_OK) status = dump(&text, value, 15);
        if (status == QN_OK) put_pair(b, key, "", text.data, text.length);
    }
    qn_buf_free(&text);
    json_decref(config);
    return status;
}

/* The __metadata__ of every file; as JSON, elements of an open list. Plain files of weights have none. */
static qn_status put_safetensors_metadata(qn_buf *b, const qn_source *s, int json)
{
    if (qn_source_get_kind(s) == QN_SOURCE_RAW) return QN_OK;
    for (int64_t i = 0; i < qn_source_file_count(s); i++) {
        const char *path = qn_source_file_path(s, i), *key, *value;
        qn_safetensors *file = NULL;
        QN_TRY(qn_safetensors_open(path, &file));
        for (int64_t j = 0; qn_safetensors_metadata_at(file, j, &key, &value); j++) {
            if (json) {
                qn_json_open(b, '{');
                qn_json_put_text(b, "key", key);
                qn_json_put_text(b, "type", "string");
                qn_json_put_text(b, "value", value);
                qn_json_put_int(b, "file", i);
                qn_json_close(b, '}');
            } else {
                put_pair(b, key, "string", value, strlen(value));
            }
        }
        qn_safetensors_close(file);
        if (json) QN_TRY(qn_json_drain(b));
    }
    return b->status;
}

/* ---- JSON --------------------------------------------------------------------------------------------- */

static int64_t file_number(const qn_source *s, const qn_tensor_view *v)
{
    for (int64_t i = 0; i < qn_source_file_count(s); i++)
        if (strcmp(qn_source_file_path(s, i), v->file) == 0) return i;
    return 0;
}

static qn_status put_tensors_json(qn_buf *b, const qn_source *s, const totals *t)
{
    qn_json_key(b, "tensors");
    qn_json_open(b, '[');
    for (int64_t i = 0; i < qn_source_count(s); i++) {
        const qn_tensor_view *v = qn_source_get(s, i);
        qn_json_open(b, '{');
        qn_json_put_text(b, "name", v->name);
        qn_json_put_text(b, "type", v->type_name);
        qn_json_put_bool(b, "supported", v->supported);
        qn_json_key(b, "shape");
        qn_json_open(b, '[');
        for (int d = 0; d < v->n_dims; d++) qn_json_int(b, v->shape[d]);
        qn_json_close(b, ']');
        qn_json_put_int(b, "n_elements", v->n_elements);
        put_size_json(b, v->supported, v->n_elements, v->size_bytes);
        qn_json_put_int(b, "offset_bytes", (int64_t)file_offset(v));
        qn_json_put_int(b, "file", file_number(s, v));
        qn_json_close(b, '}');
        QN_TRY(qn_json_drain(b));
    }
    qn_json_close(b, ']');
    qn_json_key(b, "types");
    qn_json_open(b, '[');
    for (int i = 0; i < t->n_types; i++) {
        qn_json_open(b, '{');
        qn_json_put_text(b, "type", t->types[i].name);
        qn_json_put_bool(b, "supported", t->types[i].supported);
        qn_json_put_int(b, "n_tensors", t->types[i].n_tensors);
        qn_json_put_int(b, "n_elements", t->types[i].n_elements);
        put_size_json(b, t->types[i].supported, t->types[i].n_elements, t->types[i].size_bytes);
        qn_json_close(b, '}');
    }
    qn_json_close(b, ']');
    return b->status;
}

static qn_status put_metadata_json(qn_buf *b, qn_source *s)
{
    json_t *config = NULL;
    qn_json_key(b, "metadata");
    qn_json_open(b, '[');
    QN_TRY(qn_source_gguf(s) ? put_gguf_json(b, qn_source_gguf(s)) : put_safetensors_metadata(b, s, 1));
    qn_json_close(b, ']');
    QN_TRY(read_config(s, &config));
    if (!config) return QN_OK;
    qn_json_key(b, "config");
    qn_status status = dump(b, config, 17);
    json_decref(config);
    return status;
}

static qn_status print_json(qn_source *s, const inspect_options *o, const totals *t)
{
    qn_buf b = {0};
    qn_json_open(&b, '{');
    qn_json_put_text(&b, "path", qn_source_path(s));
    qn_json_put_text(&b, "format",
                     qn_source_gguf(s)                        ? "gguf"
                     : qn_source_get_kind(s) == QN_SOURCE_RAW ? "bin_weights"
                     : qn_packed_is_name(qn_source_path(s))   ? "packed"
                                                              : "safetensors");
    if (qn_source_gguf(s)) qn_json_put_int(&b, "version", qn_gguf_version(qn_source_gguf(s)));
    qn_json_key(&b, "files");
    qn_json_open(&b, '[');
    for (int64_t i = 0; i < qn_source_file_count(s); i++) {
        qn_json_open(&b, '{');
        qn_json_put_text(&b, "path", qn_source_file_path(s, i));
        qn_json_put_int(&b, "size_bytes", (int64_t)qn_source_file_bytes(s, i));
        qn_json_close(&b, '}');
    }
    qn_json_close(&b, ']');
    qn_json_put_int(&b, "n_tensors", qn_source_count(s));
    qn_json_put_int(&b, "n_elements", t->n_elements);
    qn_json_put_int(&b, "size_bytes", (int64_t)t->size_bytes);
    qn_status status = o->metadata ? put_metadata_json(&b, s) : QN_OK;
    if (status == QN_OK && o->tensors) status = put_tensors_json(&b, s, t);
    qn_json_close(&b, '}');
    if (status == QN_OK) status = qn_out_line(&b);
    qn_buf_free(&b);
    return status;
}

/* ---- tables ------------------------------------------------------------------------------------------- */

/* What packed weights are for. */
static qn_status put_packed(qn_buf *b, const char *path)
{
    qn_packed *p;
    qn_status status = qn_packed_open(path, &p);
    if (status == QN_OK) {
        const qn_packed_key *key = qn_packed_get_key(p);
        qn_buf_puts(b, ", packed weights of ");
        qn_out_put_shown(b, qn_packed_source(p), strlen(qn_packed_source(p)), 0);
        qn_buf_puts(b, " for the device ");
        qn_out_put_shown(b, key->device, strlen(key->device), 0);
        qn_buf_printf(b, ", version %d of its layout", key->layout);
        qn_packed_close(p);
    } else {
        qn_buf_free(b);
    }
    return status;
}

/* "640 KiB, safetensors" of a file. */
static qn_status put_file_kind(qn_buf *b, const qn_source *s, int64_t i)
{
    char size[32];
    const char *path = qn_source_file_path(s, i);
    qn_buf_puts(b, qn_out_size_text(qn_source_file_bytes(s, i), size, sizeof size));
    if (qn_source_gguf(s))
        qn_buf_printf(b, ", GGUF version %u", (unsigned)qn_gguf_version(qn_source_gguf(s)));
    else if (qn_packed_is_name(path))
        QN_TRY(put_packed(b, path));
    else if (qn_source_get_kind(s) != QN_SOURCE_RAW)
        qn_buf_puts(b, ", safetensors");
    const qn_status status = b->status;
    if (status != QN_OK) qn_buf_free(b);
    return status;
}

static qn_status print_summary(const qn_source *s, const totals *t)
{
    char size[32];
    qn_buf b = {0}, kind = {0};
    for (int64_t i = 0; i < qn_source_file_count(s); i++) {
        const char *path = qn_source_file_path(s, i);
        QN_TRY(put_file_kind(&kind, s, i));
        const int at = qn_out_put_shown(&b, path, strlen(path), 0);
        qn_buf_puts(&b, ": ");
        qn_fold_put(&b, kind.data, at + 2, 2, qn_fold_terminal(stdout), 0);
        qn_buf_putc(&b, '\n');
        qn_buf_free(&kind);
    }
    qn_buf_printf(&b, "%" PRId64 " tensor%s, %" PRId64 " elements, %s", qn_source_count(s),
                  qn_out_plural(qn_source_count(s)), t->n_elements,
                  qn_out_size_text(t->size_bytes, size, sizeof size));
    return qn_out_line(&b);
}

/* How its makers would sample. */
static qn_status print_generation(qn_source *s)
{
    qn_sampling_defaults defaults;
    qn_buf b = {0};
    qn_status status = qn_sampling_defaults_read(s, &defaults);
    if (status == QN_OK && defaults.text[0]) {
        qn_buf_puts(&b, "generation_config.json asks for ");
        qn_fold_put_shown(&b, defaults.text, strlen(defaults.text), (int)b.length, 2,
                          qn_fold_terminal(stdout), 0);
        status = qn_out_line(&b);
    }
    qn_sampling_defaults_free(&defaults);
    return status;
}

static qn_status print_metadata(qn_source *s)
{
    qn_buf b = {0};
    qn_buf_puts(&b, "\nmetadata\n");
    size_t before = b.length;
    qn_status status =
        qn_source_gguf(s) ? print_gguf_values(&b, qn_source_gguf(s)) : put_safetensors_metadata(&b, s, 0);
    if (b.length == before) qn_buf_puts(&b, "  (none)\n");
    if (status == QN_OK) status = print_config(&b, s);
    if (status == QN_OK) status = b.status;
    if (status == QN_OK) status = qn_out_write(b.data, b.length);
    qn_buf_free(&b);
    return status;
}

/* How the table of tensors is laid out. */
typedef struct {
    int name, type, shape, bytes, offset; /* columns */
    int terminal;                         /* columns of the terminal; 0: there is none */
    int is_split;                         /* a row does not fit: the name has a line for itself */
} tensor_table;

static void widen(int *columns, int used)
{
    if (used > *columns) *columns = used;
}

static const char *bytes_text(const qn_tensor_view *v, char *text, size_t size)
{
    snprintf(text, size, is_unmeasured(v->supported, v->n_elements, v->size_bytes) ? "?" : "%zu",
             v->size_bytes);
    return text;
}

static qn_status measure_tensors(const qn_source *s, tensor_table *t)
{
    qn_buf b = {0};
    char text[160];
    *t = (tensor_table){4, 4, 5, 5, 6, qn_fold_terminal(stdout), 0};
    for (int64_t i = 0; i < qn_source_count(s); i++) {
        const qn_tensor_view *v = qn_source_get(s, i);
        widen(&t->name, qn_out_put_shown(&b, v->name, strlen(v->name), 0));
        widen(&t->type, qn_out_put_shown(&b, v->type_name, strlen(v->type_name), TYPE_COLUMNS_MAX));
        widen(&t->shape, (int)strlen(qn_view_shape_text(v, text, sizeof text)));
        widen(&t->bytes, (int)strlen(bytes_text(v, text, sizeof text)));
        widen(&t->offset, snprintf(text, sizeof text, "%zu", file_offset(v)));
        b.length = 0;
    }
    if (t->name > NAME_COLUMNS_MAX) t->name = NAME_COLUMNS_MAX;
    t->is_split =
        t->terminal && 2 + t->name + 2 + t->type + 2 + t->shape + 2 + t->bytes + 2 + t->offset > t->terminal;
    qn_status status = b.status;
    qn_buf_free(&b);
    return status;
}

static void put_tensor_line(qn_buf *b, const qn_source *s, const qn_tensor_view *v, const tensor_table *t)
{
    char shape[160], size[32];
    const char *slash = strrchr(v->file, '/'), *file = slash ? slash + 1 : v->file;
    int at = 2 + t->name + 2;
    qn_buf_puts(b, "  ");
    int used = qn_out_put_shown(b, v->name, strlen(v->name), 0);
    if (t->is_split)
        qn_buf_printf(b, "\n%*s", at = 4, "");
    else
        qn_buf_printf(b, "%*s  ", used < t->name ? t->name - used : 0, "");
    qn_out_put_column(b, v->type_name, t->type);
    qn_buf_printf(b, "  %-*s  %*s  %*zu", t->shape, qn_view_shape_text(v, shape, sizeof shape), t->bytes,
                  bytes_text(v, size, sizeof size), t->offset, file_offset(v));
    at += t->type + 2 + t->shape + 2 + t->bytes + 2 + t->offset;
    if (qn_source_file_count(s) > 1) {
        const int is_over = t->terminal && at + 2 + (int)strlen(file) > t->terminal;
        qn_buf_printf(b, is_over ? "\n%4s" : "%2s", "");
        at = (is_over ? 4 : at + 2) + qn_out_put_shown(b, file, strlen(file), 0);
    }
    if (!v->supported && t->terminal && at + 15 > t->terminal) qn_buf_puts(b, "\n  ");
    if (!v->supported) qn_buf_puts(b, "  not supported");
    qn_buf_putc(b, '\n');
}

static void put_types(qn_buf *b, const totals *t)
{
    char size[32];
    int name = 0, tensors = 0, elements = 0;
    for (int i = 0; i < t->n_types; i++) {
        const size_t before = b->length;
        widen(&name, qn_out_put_shown(b, t->types[i].name, strlen(t->types[i].name), TYPE_COLUMNS_MAX));
        b->length = before;
        widen(&tensors, snprintf(size, sizeof size, "%" PRId64, t->types[i].n_tensors));
        widen(&elements, snprintf(size, sizeof size, "%" PRId64, t->types[i].n_elements));
    }
    qn_buf_puts(b, "\ntypes\n");
    for (int i = 0; i < t->n_types; i++) {
        const type_total *type = &t->types[i];
        qn_out_size_text(type->size_bytes, size, sizeof size);
        qn_buf_puts(b, "  ");
        qn_out_put_column(b, type->name, name);
        qn_buf_printf(b, "  %*" PRId64 " tensors  %*" PRId64 " elements  %8s%s\n", tensors, type->n_tensors,
                      elements, type->n_elements,
                      is_unmeasured(type->supported, type->n_elements, type->size_bytes) ? "?" : size,
                      type->supported ? "" : "  not supported");
    }
}

qn_status qn_inspect_summary(const char *path)
{
    qn_source *source = NULL;
    totals t = {0};
    qn_buf b = {0};
    qn_status status = qn_source_open(path, NULL, &source);
    if (status != QN_OK) return status;
    add_up(source, &t);
    status = print_summary(source, &t);
    put_types(&b, &t);
    if (status == QN_OK) status = b.status;
    if (status == QN_OK) status = qn_out_write(b.data, b.length);
    qn_buf_free(&b);
    qn_source_close(source);
    return status;
}

static qn_status print_tensors(const qn_source *s, const totals *t)
{
    qn_buf b = {0};
    tensor_table table;
    qn_status status = measure_tensors(s, &table);
    qn_buf_printf(&b, "\ntensors\n  %-*s%s%-*s  %-*s  %*s  %*s\n", table.is_split ? 4 : table.name, "name",
                  table.is_split ? "\n    " : "  ", table.type, "type", table.shape, "shape", table.bytes,
                  "bytes", table.offset, "offset");
    for (int64_t i = 0; i < qn_source_count(s) && status == QN_OK; i++) {
        put_tensor_line(&b, s, qn_source_get(s, i), &table);
        if (b.status == QN_OK) status = qn_out_write(b.data, b.length);
        if (b.status == QN_OK) b.length = 0;
    }
    put_types(&b, t);
    if (status == QN_OK) status = b.status;
    if (status == QN_OK) status = qn_out_write(b.data, b.length);
    qn_buf_free(&b);
    return status;
}

static const qn_arg_group inspect_groups[] = {
    {NULL, inspect_args, 0, inspect_rules},
    {"Attention", qn_attention_args, AT(of_attention), qn_attention_rules},
    {"Loading", qn_load_args, AT(load), NULL},
    {"Rotary positions", qn_rope_args, AT(load.rope), qn_rope_rules},
    {0}};
const qn_arg_spec qn_inspect_spec = {
    "quern inspect FILE|DIR [--metadata] [--tensors] [--json] | MODEL --attention -p PROMPT [options]",
    "Shows the contents of GGUF, safetensors and .qpack files: the metadata, and the type, shape, size\n"
    "and offset of each tensor. The file need not be a model. With --attention, the command runs the\n"
    "model on a prompt and shows keys and attention.",
    inspect_groups,
    1,
    1,
    NULL};

int qn_cmd_inspect(int argc, char **argv)
{
    inspect_options o = {0};
    const char *path;
    int n, code;
    if (qn_args_parse(&qn_inspect_spec, &o, argc, argv, &path, &n, &code)) return code;
    qn_buf found = {0};
    if (o.attention) return qn_inspect_attention(path, &o.load, &o.of_attention, o.json);
    if (!o.metadata && !o.tensors) o.metadata = o.tensors = 1;
    qn_source *source = NULL;
    totals t = {0};
    qn_status status = qn_model_name_take(&path, &found);
    if (status == QN_OK)
        status = qn_source_open(
            path, &(qn_source_options){.file = o.load.o.file, .packed = 1, .as_stored = 1}, &source);
    if (status == QN_OK) {
        add_up(source, &t);
        if (o.json)
            status = print_json(source, &o, &t);
        else
            status = print_summary(source, &t);
        if (status == QN_OK && !o.json) status = print_generation(source);
    }
    if (status == QN_OK && !o.json && o.metadata) status = print_metadata(source);
    if (status == QN_OK && !o.json && o.tensors) status = print_tensors(source, &t);
    qn_source_close(source);
    qn_buf_free(&found);
    return status == QN_OK ? QN_EXIT_OK : qn_out_fail();
}
