#include "format/state/state_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/map.h"
#include "base/mem.h"
#include "format/safetensors/safetensors.h"
#include "format/state/state_sections.h"

struct qn_state_file {
    qn_mapping *mapping; /* NULL: bytes of the caller */
    qn_safetensors *tensors;
    qn_state_binding binding;
    qn_state_sizes sizes;
    const int64_t *sums, *keys, *nodes; /* [n_sums], [n_keys, KEY_FIELDS], [n_nodes, node_fields] */
    const int64_t *pins;                /* [n_pins, PIN_FIELDS]; NULL: the file is of the first version */
    const int32_t *tokens, *numbers;
    const uint8_t *texts, *slots, *pages[QN_STATE_FILE_GROUPS_MAX];
    int64_t n_sums, n_keys, n_nodes, n_tokens, n_numbers, n_texts, n_slots, n_pins,
        n_pages[QN_STATE_FILE_GROUPS_MAX];
};

static qn_status damaged(const qn_state_file *f, const char *where)
{
    return qn_fail(QN_E_FORMAT, "%s: %s: the checksum is wrong: the file is damaged", qn_state_file_path(f),
                   where);
}

/* ---- metadata ----------------------------------------------------------------------------------------- */

static qn_status read_text(qn_state_file *f, const char *key, const char **out)
{
    *out = qn_safetensors_metadata(f->tensors, key);
    return *out ? QN_OK : qn_fail(QN_E_FORMAT, "%s: __metadata__ has no %s", qn_state_file_path(f), key);
}

static qn_status read_version(const qn_state_file *f, int *has_pins)
{
    const char *path = qn_state_file_path(f);
    const char *version = qn_safetensors_metadata(f->tensors, QN_STATE_META_VERSION);
    if (!version) return qn_fail(QN_E_FORMAT, "%s: not a file of saved state", path);
    *has_pins = strcmp(version, QN_STATE_VERSION_PINS) == 0;
    if (*has_pins || strcmp(version, QN_STATE_VERSION) == 0) return QN_OK;
    return qn_fail(QN_E_FORMAT,
                   "%s: saved state of format %.16s; this version of quern reads formats up to %s", path,
                   version, QN_STATE_VERSION_PINS);
}

static qn_status read_binding(qn_state_file *f)
{
    const char *path = qn_state_file_path(f), *print = NULL;
    QN_TRY(read_text(f, QN_STATE_META_PRECISION, &f->binding.precision));
    QN_TRY(read_text(f, QN_STATE_META_KV_TYPE, &f->binding.kv_type));
    QN_TRY(read_text(f, QN_STATE_META_SET, &f->binding.set));
    QN_TRY(read_text(f, QN_STATE_META_LAYOUT, &f->binding.layout));
    f->binding.positions = qn_safetensors_metadata(f->tensors, QN_STATE_META_POSITIONS);
    QN_TRY(read_text(f, QN_STATE_META_FINGERPRINT, &print));
    if (strlen(print) != 16 || strspn(print, "0123456789abcdef") != 16)
        return qn_fail(QN_E_FORMAT, "%s: %s \"%.32s\" is not a hash", path, QN_STATE_META_FINGERPRINT, print);
    f->binding.fingerprint = strtoull(print, NULL, 16);
    return QN_OK;
}

/* ---- sections ----------------------------------------------------------------------------------------- */

/* A tensor of [n] or, where width is not 0, [n, width]. */
static qn_status find(qn_state_file *f, const char *name, qn_dtype dtype, int64_t width, const void **data,
                      int64_t *n)
{
    const char *path = qn_state_file_path(f);
    const qn_tensor_view *v = qn_safetensors_find(f->tensors, name);
    size_t align = dtype == QN_DTYPE_I64 ? sizeof(int64_t) : dtype == QN_DTYPE_I32 ? sizeof(int32_t) : 1;
    char text[128];
    if (!v) return qn_fail(QN_E_FORMAT, "%s: tensor %s: missing", path, name);
    if (!v->supported || v->dtype != dtype)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: its type is %s, expected %s", path, name, v->type_name,
                       qn_dtype_name(dtype));
    if (v->n_dims != (width ? 2 : 1) || (width && v->shape[1] != width) || v->shape[0] > INT32_MAX)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: shape %s is not valid in a file of saved state", path,
                       name, qn_view_shape_text(v, text, sizeof text));
    if ((uintptr_t)v->data % align) return qn_fail(QN_E_FORMAT, "%s: tensor %s: not aligned", path, name);
    *data = v->data;
    *n = v->shape[0];
    return QN_OK;
}

/* Units of bytes: [n, bytes], of at least one byte. */
static qn_status find_units(qn_state_file *f, const char *name, size_t *unit_bytes, const uint8_t **data,
                            int64_t *n)
{
    const qn_tensor_view *v = qn_safetensors_find(f->tensors, name);
    const void *at = NULL;
    if (!v || v->n_dims != 2 || v->shape[1] < 1)
        return qn_fail(QN_E_FORMAT, "%s: tensor %s: missing, or not a list of units", qn_state_file_path(f),
                       name);
    QN_TRY(find(f, name, QN_DTYPE_U8, v->shape[1], &at, n));
    *unit_bytes = (size_t)v->shape[1];
    *data = at;
    return QN_OK;
}

static qn_status find_groups(qn_state_file *f, int has_pins)
{
    const void *pins = NULL;
    if (has_pins) QN_TRY(find(f, QN_STATE_PINS, QN_DTYPE_I64, QN_STATE_PIN_FIELDS, &pins, &f->n_pins));
    f->pins = pins;
    for (; f->sizes.n_groups < QN_STATE_FILE_GROUPS_MAX; f->sizes.n_groups++) {
        int g = f->sizes.n_groups;
        char name[QN_STATE_NAME_BYTES];
        qn_state_group_name(g, name);
        if (!qn_safetensors_find(f->tensors, name)) break;
        QN_TRY(find_units(f, name, &f->sizes.page_bytes[g], &f->pages[g], &f->n_pages[g]));
    }
    if (qn_safetensors_find(f->tensors, QN_STATE_SLOTS))
        QN_TRY(find_units(f, QN_STATE_SLOTS, &f->sizes.slot_bytes, &f->slots, &f->n_slots));
    int64_t known = QN_STATE_SECTION_COUNT + f->sizes.n_groups + (f->slots != NULL) + has_pins;
    if (qn_safetensors_count(f->tensors) == known) return QN_OK;
    return qn_fail(QN_E_FORMAT, "%s: it has %lld tensors, expected %lld", qn_state_file_path(f),
                   (long long)qn_safetensors_count(f->tensors), (long long)known);
}

static qn_status find_sections(qn_state_file *f, int has_pins)
{
    const void *at[QN_STATE_SECTION_COUNT] = {NULL};
    int64_t n[QN_STATE_SECTION_COUNT] = {0};
    QN_TRY(find_groups(f, has_pins));
    for (int i = 0; i < QN_STATE_SECTION_COUNT; i++)
        QN_TRY(find(f, qn_state_sections[i].name, qn_state_sections[i].dtype,
                    qn_state_section_width((qn_state_section)i, f->sizes.n_groups), &at[i], &n[i]));
    f->sums = at[QN_STATE_SUMS], f->n_sums = n[QN_STATE_SUMS];
    f->nodes = at[QN_STATE_NODES], f->n_nodes = n[QN_STATE_NODES];
    f->keys = at[QN_STATE_KEYS], f->n_keys = n[QN_STATE_KEYS];
    f->tokens = at[QN_STATE_TOKENS], f->n_tokens = n[QN_STATE_TOKENS];
    f->numbers = at[QN_STATE_NUMBERS], f->n_numbers = n[QN_STATE_NUMBERS];
    f->texts = at[QN_STATE_TEXTS], f->n_texts = n[QN_STATE_TEXTS];
    return QN_OK;
}

/* Those of pages and slots are looked at when these are asked for. */
static qn_status check_sums(qn_state_file *f)
{
    int64_t wanted = QN_STATE_SUM_UNITS + f->n_slots + (f->pins != NULL);
    for (int g = 0; g < f->sizes.n_groups; g++) wanted += f->n_pages[g];
    if (f->n_sums != wanted)
        return qn_fail(QN_E_FORMAT, "%s: %lld checksums, expected %lld", qn_state_file_path(f),
                       (long long)f->n_sums, (long long)wanted);
    if (f->sums[QN_STATE_SUM_SUMS] != qn_state_sum(f->sums + 1, (size_t)(f->n_sums - 1) * sizeof *f->sums))
        return damaged(f, "tensor sums");
    if (f->sums[QN_STATE_SUM_BINDING] != qn_state_sum_binding(&f->binding, &f->sizes))
        return damaged(f, "__metadata__");
    for (int i = QN_STATE_SUMS + 1; i < QN_STATE_SECTION_COUNT; i++) {
        const qn_tensor_view *v = qn_safetensors_find(f->tensors, qn_state_sections[i].name);
        char where[QN_STATE_NAME_BYTES + 8];
        snprintf(where, sizeof where, "tensor %s", v->name);
        if (f->sums[QN_STATE_SUM_BINDING + i] != qn_state_sum(v->data, v->size_bytes))
            return damaged(f, where);
    }
    const size_t pin_bytes = (size_t)f->n_pins * QN_STATE_PIN_FIELDS * sizeof *f->pins;
    if (f->pins && f->sums[f->n_sums - 1] != qn_state_sum(f->pins, pin_bytes))
        return damaged(f, "tensor " QN_STATE_PINS);
    return QN_OK;
}

/* ---- nodes -------------------------------------------------------------------------------------------- */

static qn_status bad_node(const qn_state_file *f, int64_t i, const char *what, int64_t value)
{
    return qn_fail(QN_E_FORMAT, "%s: node %lld: %s %lld is not in the file", qn_state_file_path(f),
                   (long long)i, what, (long long)value);
}

static int inside(int64_t first, int64_t n, int64_t total)
{
    return first >= 0 && n >= 0 && qn_range_ok((uint64_t)first, (uint64_t)n, (uint64_t)total);
}

static qn_status check_node(const qn_state_file *f, int64_t i)
{
    const int64_t *r = f->nodes + i * qn_state_section_width(QN_STATE_NODES, f->sizes.n_groups);
    const int64_t parent = r[QN_STATE_NODE_PARENT], key = r[QN_STATE_NODE_KEY], slot = r[QN_STATE_NODE_SLOT];
    if (parent < -1 || parent >= i) return bad_node(f, i, "parent", parent);
    if (key < 0 || key >= f->n_keys) return bad_node(f, i, "key", key);
    if (parent >= 0 && qn_state_file_node(f, parent).key != key)
        return bad_node(f, i, "a parent with key", key);
    if (r[QN_STATE_NODE_N_TOKENS] < 1 ||
        !inside(r[QN_STATE_NODE_TOKENS], r[QN_STATE_NODE_N_TOKENS], f->n_tokens))
        return bad_node(f, i, "a run of tokens at", r[QN_STATE_NODE_TOKENS]);
    if (slot < -1 || slot >= f->n_slots) return bad_node(f, i, "slot", slot);
    if (r[QN_STATE_NODE_COST] < 0) return bad_node(f, i, "cost", r[QN_STATE_NODE_COST]);
    for (int g = 0; g < f->sizes.n_groups; g++) {
        const int64_t *p = r + QN_STATE_NODE_GROUPS + g * QN_STATE_GROUP_FIELDS;
        if (p[QN_STATE_GROUP_FIRST] < 0 || p[QN_STATE_GROUP_FIRST] > INT32_MAX)
            return bad_node(f, i, "first page", p[QN_STATE_GROUP_FIRST]);
        if (!inside(p[QN_STATE_GROUP_AT], p[QN_STATE_GROUP_N], f->n_numbers))
            return bad_node(f, i, "a run of pages at", p[QN_STATE_GROUP_AT]);
        for (int64_t j = 0; j < p[QN_STATE_GROUP_N]; j++) {
            int32_t number = f->numbers[p[QN_STATE_GROUP_AT] + j];
            if (number < -1 || number >= f->n_pages[g]) return bad_node(f, i, "page", number);
        }
    }
    return QN_OK;
}

static qn_status check_keys(const qn_state_file *f)
{
    for (int64_t i = 0; i < f->n_keys; i++) {
        const int64_t *r = f->keys + i * QN_STATE_KEY_FIELDS;
        if (!inside(r[QN_STATE_KEY_ADAPTER], r[QN_STATE_KEY_ADAPTER_BYTES], f->n_texts) ||
            !inside(r[QN_STATE_KEY_SALT], r[QN_STATE_KEY_SALT_BYTES], f->n_texts) ||
            r[QN_STATE_KEY_LONG] < 0 || r[QN_STATE_KEY_LONG] > 1)
            return qn_fail(QN_E_FORMAT, "%s: key %lld is not in the file", qn_state_file_path(f),
                           (long long)i);
    }
    return QN_OK;
}

/* A damaged file of runs that overlap could ask for more work than it has bytes: the runs of all nodes
 * together are as long as the tensors that hold them. */
static qn_status check_totals(const qn_state_file *f)
{
    int64_t tokens = 0, numbers = 0;
    for (int64_t i = 0; i < f->n_nodes; i++) {
        const int64_t *r = f->nodes + i * qn_state_section_width(QN_STATE_NODES, f->sizes.n_groups);
        int fits = qn_add_i64(tokens, r[QN_STATE_NODE_N_TOKENS], &tokens) && tokens <= f->n_tokens;
        for (int g = 0; fits && g < f->sizes.n_groups; g++)
            fits = qn_add_i64(numbers, r[QN_STATE_NODE_GROUPS + g * QN_STATE_GROUP_FIELDS + QN_STATE_GROUP_N],
                              &numbers) &&
                   numbers <= f->n_numbers;
        if (!fits)
            return qn_fail(QN_E_FORMAT, "%s: node %lld: it has more tokens or pages than the file",
                           qn_state_file_path(f), (long long)i);
    }
    return QN_OK;
}

/* Names do not overlap, for the same reason. */
static qn_status check_pins(const qn_state_file *f)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < f->n_pins; i++) {
        const int64_t *r = f->pins + i * QN_STATE_PIN_FIELDS, n = r[QN_STATE_PIN_NAME_BYTES];
        int fits = r[QN_STATE_PIN_NODE] >= 0 && r[QN_STATE_PIN_NODE] < f->n_nodes && n > 0 &&
                   inside(r[QN_STATE_PIN_NAME], n, f->n_texts) && qn_add_i64(bytes, n, &bytes) &&
                   bytes <= f->n_texts && !memchr(f->texts + r[QN_STATE_PIN_NAME], 0, (size_t)n);
        if (!fits)
            return qn_fail(QN_E_FORMAT, "%s: pin %lld is not in the file", qn_state_file_path(f),
                           (long long)i);
    }
    return QN_OK;
}

static qn_status check(qn_state_file *f)
{
    int has_pins;
    QN_TRY(read_version(f, &has_pins));
    QN_TRY(read_binding(f));
    QN_TRY(find_sections(f, has_pins));
    QN_TRY(check_sums(f));
    QN_TRY(check_keys(f));
    QN_TRY(check_totals(f));
    QN_TRY(check_pins(f));
    for (int64_t i = 0; i < f->n_nodes; i++) QN_TRY(check_node(f, i));
    return QN_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------ */

static qn_status open_bytes(qn_state_file *f, const char *name, const void *bytes, size_t n)
{
    QN_TRY(qn_safetensors_open_bytes(name, bytes, n, &f->tensors));
    return check(f);
}

qn_status qn_state_file_open_bytes(const char *name, const void *bytes, size_t n, qn_state_file **out)
{
    qn_state_file *f = qn_calloc(1, sizeof *f);
    if (!f) return QN_E_NOMEM;
    qn_status status = open_bytes(f, name, bytes, n);
    if (status == QN_OK)
        *out = f;
    else
        qn_state_file_close(f);
    return status;
}

qn_status qn_state_file_open(const char *path, qn_state_file **out)
{
    qn_state_file *f = qn_calloc(1, sizeof *f);
    if (!f) return QN_E_NOMEM;
    qn_status status = qn_mapping_open(path, &f->mapping);
    if (status == QN_OK)
        status = open_bytes(f, path, qn_mapping_data(f->mapping), qn_mapping_size(f->mapping));
    if (status == QN_OK)
        *out = f;
    else
        qn_state_file_close(f);
    return status;
}

void qn_state_file_close(qn_state_file *f)
{
    if (!f) return;
    qn_safetensors_close(f->tensors);
    qn_mapping_close(f->mapping);
    qn_free(f);
}

const char *qn_state_file_path(const qn_state_file *f)
{
    return qn_safetensors_path(f->tensors);
}

const qn_state_binding *qn_state_file_binding(const qn_state_file *f)
{
    return &f->binding;
}

const qn_state_sizes *qn_state_file_sizes(const qn_state_file *f)
{
    return &f->sizes;
}

int64_t qn_state_file_keys(const qn_state_file *f)
{
    return f->n_keys;
}

int64_t qn_state_file_nodes(const qn_state_file *f)
{
    return f->n_nodes;
}

int64_t qn_state_file_pages(const qn_state_file *f, int group)
{
    return f->n_pages[group];
}

int64_t qn_state_file_slots(const qn_state_file *f)
{
    return f->n_slots;
}

int64_t qn_state_file_pins(const qn_state_file *f)
{
    return f->n_pins;
}

static qn_status other(const qn_state_file *f, const char *what, const char *is, const char *wanted)
{
    return qn_fail(QN_E_UNSUPPORTED, "%s: its %s is %.400s, the model's is %.400s", qn_state_file_path(f),
                   what, is, wanted);
}

/* "cpu avx512": the device, and what it says of itself. */
static int is_same_device(const char *a, const char *b)
{
    const size_t n = strcspn(a, " ");
    return n == strcspn(b, " ") && strncmp(a, b, n) == 0;
}

qn_status qn_state_file_check(const qn_state_file *f, const qn_state_binding *wanted,
                              const qn_state_sizes *sizes)
{
    const qn_state_binding *b = &f->binding;
    if (b->fingerprint != wanted->fingerprint)
        return qn_fail(QN_E_UNSUPPORTED, "%s: saved from another model, or before the model was changed",
                       qn_state_file_path(f));
    if (strcmp(b->precision, wanted->precision) != 0)
        return other(f, "precision", b->precision, wanted->precision);
    if (strcmp(b->kv_type, wanted->kv_type) != 0)
        return other(f, "type of keys and values", b->kv_type, wanted->kv_type);
    if (strcmp(b->set, wanted->set) != 0)
        return other(f, is_same_device(b->set, wanted->set) ? "instruction set" : "device", b->set,
                     wanted->set);
    if (strcmp(b->layout, wanted->layout) != 0) return other(f, "layout", b->layout, wanted->layout);
    if (strcmp(b->positions ? b->positions : "", wanted->positions ? wanted->positions : "") != 0)
        return qn_fail(QN_E_UNSUPPORTED, "%s: saved with other rotary positions (RoPE) than the model's",
                       qn_state_file_path(f));
    int same = f->sizes.n_groups == sizes->n_groups && f->sizes.slot_bytes == sizes->slot_bytes;
    for (int g = 0; same && g < sizes->n_groups; g++) same = f->sizes.page_bytes[g] == sizes->page_bytes[g];
    if (same) return QN_OK;
    return qn_fail(QN_E_UNSUPPORTED, "%s: its pages have another size than the model's",
                   qn_state_file_path(f));
}

qn_state_key qn_state_file_key(const qn_state_file *f, int64_t i)
{
    const int64_t *r = f->keys + i * QN_STATE_KEY_FIELDS;
    return (qn_state_key){.adapter = (const char *)f->texts + r[QN_STATE_KEY_ADAPTER],
                          .adapter_length = (size_t)r[QN_STATE_KEY_ADAPTER_BYTES],
                          .adapter_fingerprint = (uint64_t)r[QN_STATE_KEY_FINGERPRINT],
                          .is_long = (int)r[QN_STATE_KEY_LONG],
                          .salt = f->texts + r[QN_STATE_KEY_SALT],
                          .salt_bytes = (size_t)r[QN_STATE_KEY_SALT_BYTES]};
}

qn_state_node qn_state_file_node(const qn_state_file *f, int64_t i)
{
    const int64_t *r = f->nodes + i * qn_state_section_width(QN_STATE_NODES, f->sizes.n_groups);
    qn_state_node node = {.parent = r[QN_STATE_NODE_PARENT],
                          .key = r[QN_STATE_NODE_KEY],
                          .ids = f->tokens + r[QN_STATE_NODE_TOKENS],
                          .n_ids = r[QN_STATE_NODE_N_TOKENS],
                          .slot = r[QN_STATE_NODE_SLOT],
                          .cost_ns = r[QN_STATE_NODE_COST]};
    for (int g = 0; g < f->sizes.n_groups; g++) {
        const int64_t *p = r + QN_STATE_NODE_GROUPS + g * QN_STATE_GROUP_FIELDS;
        node.pages[g] = (qn_state_pages){.first = p[QN_STATE_GROUP_FIRST],
                                         .n = p[QN_STATE_GROUP_N],
                                         .numbers = f->numbers + p[QN_STATE_GROUP_AT]};
    }
    return node;
}

qn_state_pin qn_state_file_pin(const qn_state_file *f, int64_t i)
{
    const int64_t *r = f->pins + i * QN_STATE_PIN_FIELDS;
    return (qn_state_pin){.node = r[QN_STATE_PIN_NODE],
                          .name = (const char *)f->texts + r[QN_STATE_PIN_NAME],
                          .name_length = (size_t)r[QN_STATE_PIN_NAME_BYTES]};
}

qn_status qn_state_file_page(const qn_state_file *f, int group, int64_t number, const void **out)
{
    const size_t bytes = f->sizes.page_bytes[group];
    const uint8_t *at = f->pages[group] + (size_t)number * bytes;
    int64_t sum = QN_STATE_SUM_UNITS + number;
    char where[64];
    for (int g = 0; g < group; g++) sum += f->n_pages[g];
    snprintf(where, sizeof where, "page %lld of group %d", (long long)number, group);
    if (qn_state_sum(at, bytes) != f->sums[sum]) return damaged(f, where);
    *out = at;
    return QN_OK;
}

qn_status qn_state_file_slot(const qn_state_file *f, int64_t number, const void **out)
{
    const uint8_t *at = f->slots + (size_t)number * f->sizes.slot_bytes;
    char where[32];
    snprintf(where, sizeof where, "slot %lld", (long long)number);
    if (qn_state_sum(at, f->sizes.slot_bytes) != f->sums[f->n_sums - (f->pins != NULL) - f->n_slots + number])
        return damaged(f, where);
    *out = at;
    return QN_OK;
}
