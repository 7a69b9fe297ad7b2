/* Writing files of saved state: everything about nodes is gathered, then the header and the sections go out,
 * then pages and slots as they come; their checksums last. */
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/checked.h"
#include "base/mem.h"
#include "format/safetensors/safetensors.h"
#include "format/state/state_file.h"
#include "format/state/state_sections.h"

enum { DATA_ALIGN = 64 };

struct qn_state_writer {
    qn_st_writer *tensors;
    qn_state_sizes sizes;
    qn_buf sections[QN_STATE_SECTION_COUNT]; /* rows as they are written; that of the sums: begin's */
    qn_buf pins; /* rows of these; empty: the file is of the first version, which has none */
    int64_t n_keys, n_nodes, n_pages[QN_STATE_FILE_GROUPS_MAX], n_slots;
    int64_t most_pages[QN_STATE_FILE_GROUPS_MAX], most_slots; /* that nodes name */
    int64_t pin_index, index[QN_STATE_SECTION_COUNT], page_index[QN_STATE_FILE_GROUPS_MAX],
        slot_index; /* of tensors */
    int64_t binding_sum;
    int has_begun;
};

static int64_t *sums_of(qn_state_writer *w)
{
    return (int64_t *)(void *)w->sections[QN_STATE_SUMS].data;
}

qn_status qn_state_writer_new(const char *path, const qn_state_binding *binding, const qn_state_sizes *sizes,
                              qn_state_writer **out)
{
    char print[24];
    qn_state_writer *w = qn_calloc(1, sizeof *w);
    if (!w) return QN_E_NOMEM;
    w->sizes = *sizes;
    w->binding_sum = qn_state_sum_binding(binding, sizes);
    snprintf(print, sizeof print, "%016" PRIx64, binding->fingerprint);
    const char *const pairs[][2] = {
        {QN_STATE_META_FINGERPRINT, print},        {QN_STATE_META_PRECISION, binding->precision},
        {QN_STATE_META_KV_TYPE, binding->kv_type}, {QN_STATE_META_SET, binding->set},
        {QN_STATE_META_LAYOUT, binding->layout},   {QN_STATE_META_POSITIONS, binding->positions},
    };
    qn_status status = qn_st_writer_new(path, &w->tensors);
    for (size_t i = 0; status == QN_OK && i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i][1]) status = qn_st_writer_metadata(w->tensors, pairs[i][0], pairs[i][1]);
    if (status == QN_OK) status = qn_st_writer_align(w->tensors, DATA_ALIGN);
    if (status == QN_OK) qn_st_writer_private(w->tensors); /* it is what somebody wrote */
    if (status == QN_OK)
        *out = w;
    else
        qn_state_writer_free(w);
    return status;
}

void qn_state_writer_free(qn_state_writer *w)
{
    if (!w) return;
    qn_st_writer_free(w->tensors);
    for (int i = 0; i < QN_STATE_SECTION_COUNT; i++) qn_buf_free(&w->sections[i]);
    qn_buf_free(&w->pins);
    qn_free(w);
}

/* Appends bytes to a section; returns where they lie, in elements. */
static int64_t put(qn_state_writer *w, qn_state_section section, const void *data, int64_t n, size_t size)
{
    qn_buf *b = &w->sections[section];
    int64_t at = (int64_t)(b->length / size);
    if (n) qn_buf_append(b, data, (size_t)n * size);
    return at;
}

qn_status qn_state_writer_key(qn_state_writer *w, const qn_state_key *key, int64_t *index)
{
    int64_t row[QN_STATE_KEY_FIELDS] = {
        [QN_STATE_KEY_ADAPTER] = put(w, QN_STATE_TEXTS, key->adapter, (int64_t)key->adapter_length, 1),
        [QN_STATE_KEY_ADAPTER_BYTES] = (int64_t)key->adapter_length,
        [QN_STATE_KEY_FINGERPRINT] = (int64_t)key->adapter_fingerprint,
        [QN_STATE_KEY_LONG] = key->is_long != 0,
        [QN_STATE_KEY_SALT_BYTES] = (int64_t)key->salt_bytes};
    row[QN_STATE_KEY_SALT] = put(w, QN_STATE_TEXTS, key->salt, (int64_t)key->salt_bytes, 1);
    put(w, QN_STATE_KEYS, row, QN_STATE_KEY_FIELDS, sizeof *row);
    if (w->sections[QN_STATE_TEXTS].status != QN_OK) return w->sections[QN_STATE_TEXTS].status;
    if (w->sections[QN_STATE_KEYS].status != QN_OK) return w->sections[QN_STATE_KEYS].status;
    if (index) *index = w->n_keys;
    w->n_keys++;
    return QN_OK;
}

static qn_status check_node(const qn_state_writer *w, const qn_state_node *n)
{
    int sound = n->parent >= -1 && n->parent < w->n_nodes && n->key >= 0 && n->key < w->n_keys &&
                n->n_ids >= 1 && n->slot >= -1 && n->cost_ns >= 0;
    for (int g = 0; sound && g < w->sizes.n_groups; g++) sound = n->pages[g].first >= 0 && n->pages[g].n >= 0;
    return sound ? QN_OK : qn_fail(QN_E_ARG, "node %lld cannot be written", (long long)w->n_nodes);
}

qn_status qn_state_writer_node(qn_state_writer *w, const qn_state_node *node, int64_t *index)
{
    int64_t row[QN_STATE_NODE_GROUPS + QN_STATE_FILE_GROUPS_MAX * QN_STATE_GROUP_FIELDS] = {
        [QN_STATE_NODE_PARENT] = node->parent,  [QN_STATE_NODE_KEY] = node->key,
        [QN_STATE_NODE_N_TOKENS] = node->n_ids, [QN_STATE_NODE_SLOT] = node->slot,
        [QN_STATE_NODE_COST] = node->cost_ns,
    };
    QN_TRY(check_node(w, node));
    row[QN_STATE_NODE_TOKENS] = put(w, QN_STATE_TOKENS, node->ids, node->n_ids, sizeof *node->ids);
    for (int g = 0; g < w->sizes.n_groups; g++) {
        const qn_state_pages *p = &node->pages[g];
        int64_t *r = row + QN_STATE_NODE_GROUPS + g * QN_STATE_GROUP_FIELDS;
        r[QN_STATE_GROUP_FIRST] = p->first;
        r[QN_STATE_GROUP_N] = p->n;
        r[QN_STATE_GROUP_AT] = put(w, QN_STATE_NUMBERS, p->numbers, p->n, sizeof *p->numbers);
        for (int64_t i = 0; i < p->n; i++)
            if (p->numbers[i] >= w->most_pages[g]) w->most_pages[g] = p->numbers[i] + 1;
    }
    if (node->slot >= w->most_slots) w->most_slots = node->slot + 1;
    put(w, QN_STATE_NODES, row, qn_state_section_width(QN_STATE_NODES, w->sizes.n_groups), sizeof *row);
    for (int i = 0; i < QN_STATE_SECTION_COUNT; i++)
        if (w->sections[i].status != QN_OK) return w->sections[i].status;
    if (index) *index = w->n_nodes;
    w->n_nodes++;
    return QN_OK;
}

qn_status qn_state_writer_pin(qn_state_writer *w, int64_t node, const char *name)
{
    const size_t n = strlen(name);
    if (node < 0 || node >= w->n_nodes || !n)
        return qn_fail(QN_E_ARG, "the pin '%s' of node %lld cannot be written", name, (long long)node);
    int64_t row[QN_STATE_PIN_FIELDS] = {[QN_STATE_PIN_NODE] = node,
                                        [QN_STATE_PIN_NAME] = put(w, QN_STATE_TEXTS, name, (int64_t)n, 1),
                                        [QN_STATE_PIN_NAME_BYTES] = (int64_t)n};
    qn_buf_append(&w->pins, row, sizeof row);
    return w->sections[QN_STATE_TEXTS].status != QN_OK ? w->sections[QN_STATE_TEXTS].status : w->pins.status;
}

static qn_status declare(qn_state_writer *w)
{
    const int64_t n_pins = (int64_t)(w->pins.length / sizeof(int64_t)) / QN_STATE_PIN_FIELDS;
    QN_TRY(qn_st_writer_metadata(w->tensors, QN_STATE_META_VERSION,
                                 n_pins ? QN_STATE_VERSION_PINS : QN_STATE_VERSION));
    if (n_pins)
        QN_TRY(qn_st_writer_add(w->tensors, QN_STATE_PINS, QN_DTYPE_I64, 2,
                                (int64_t[]){n_pins, QN_STATE_PIN_FIELDS}, &w->pin_index));
    for (int i = 0; i < QN_STATE_SECTION_COUNT; i++) {
        int64_t width = qn_state_section_width((qn_state_section)i, w->sizes.n_groups);
        qn_dtype dtype = qn_state_sections[i].dtype;
        size_t size = dtype == QN_DTYPE_I64 ? sizeof(int64_t) : dtype == QN_DTYPE_I32 ? sizeof(int32_t) : 1;
        int64_t shape[2] = {(int64_t)(w->sections[i].length / size), width};
        if (width) shape[0] /= width;
        QN_TRY(qn_st_writer_add(w->tensors, qn_state_sections[i].name, dtype, width ? 2 : 1, shape,
                                &w->index[i]));
    }
    for (int g = 0; g < w->sizes.n_groups; g++) {
        char name[QN_STATE_NAME_BYTES];
        qn_state_group_name(g, name);
        QN_TRY(qn_st_writer_add(w->tensors, name, QN_DTYPE_U8, 2,
                                (int64_t[]){w->n_pages[g], (int64_t)w->sizes.page_bytes[g]},
                                &w->page_index[g]));
    }
    if (!w->sizes.slot_bytes) return QN_OK;
    return qn_st_writer_add(w->tensors, QN_STATE_SLOTS, QN_DTYPE_U8, 2,
                            (int64_t[]){w->n_slots, (int64_t)w->sizes.slot_bytes}, &w->slot_index);
}

qn_status qn_state_writer_begin(qn_state_writer *w, const int64_t *n_pages, int64_t n_slots)
{
    int64_t n_sums = QN_STATE_SUM_UNITS + n_slots + (w->pins.length > 0);
    if (w->has_begun || n_slots < w->most_slots || (n_slots && !w->sizes.slot_bytes))
        return qn_fail(QN_E_ARG, "%lld slots: nodes use more, or the file was already begun",
                       (long long)n_slots);
    for (int g = 0; g < w->sizes.n_groups; g++) {
        if (n_pages[g] < w->most_pages[g])
            return qn_fail(QN_E_ARG, "%lld pages of group %d: nodes use more", (long long)n_pages[g], g);
        w->n_pages[g] = n_pages[g];
        n_sums += n_pages[g];
    }
    w->has_begun = 1;
    w->n_slots = n_slots;
    qn_buf *sums = &w->sections[QN_STATE_SUMS];
    qn_buf_reserve(sums, (size_t)n_sums * sizeof(int64_t));
    if (sums->status != QN_OK) return sums->status;
    memset(sums->data, 0, (size_t)n_sums * sizeof(int64_t));
    sums->length = (size_t)n_sums * sizeof(int64_t);
    QN_TRY(declare(w));
    QN_TRY(qn_st_writer_begin(w->tensors));
    for (int i = QN_STATE_SUMS + 1; i < QN_STATE_SECTION_COUNT; i++) {
        const qn_buf *b = &w->sections[i];
        sums_of(w)[QN_STATE_SUM_BINDING + i] = qn_state_sum(b->data, b->length);
        if (b->length) QN_TRY(qn_st_writer_write(w->tensors, w->index[i], 0, b->data, b->length));
    }
    if (!w->pins.length) return QN_OK;
    sums_of(w)[n_sums - 1] = qn_state_sum(w->pins.data, w->pins.length);
    return qn_st_writer_write(w->tensors, w->pin_index, 0, w->pins.data, w->pins.length);
}

qn_status qn_state_writer_page(qn_state_writer *w, int group, int64_t number, const void *bytes)
{
    const size_t size = w->sizes.page_bytes[group];
    int64_t sum = QN_STATE_SUM_UNITS + number;
    for (int g = 0; g < group; g++) sum += w->n_pages[g];
    QN_TRY(qn_st_writer_write(w->tensors, w->page_index[group], (size_t)number * size, bytes, size));
    sums_of(w)[sum] = qn_state_sum(bytes, size);
    return QN_OK;
}

qn_status qn_state_writer_slot(qn_state_writer *w, int64_t number, const void *bytes)
{
    const size_t size = w->sizes.slot_bytes;
    int64_t n_sums = (int64_t)(w->sections[QN_STATE_SUMS].length / sizeof(int64_t));
    QN_TRY(qn_st_writer_write(w->tensors, w->slot_index, (size_t)number * size, bytes, size));
    sums_of(w)[n_sums - (w->pins.length > 0) - w->n_slots + number] = qn_state_sum(bytes, size);
    return QN_OK;
}

qn_status qn_state_writer_finish(qn_state_writer *w)
{
    qn_buf *b = &w->sections[QN_STATE_SUMS];
    int64_t *sums = sums_of(w);
    if (!w->has_begun) return qn_fail(QN_E_ARG, "the file of state was never begun");
    sums[QN_STATE_SUM_BINDING] = w->binding_sum;
    sums[QN_STATE_SUM_SUMS] = qn_state_sum(sums + 1, b->length - sizeof *sums);
    QN_TRY(qn_st_writer_write(w->tensors, w->index[QN_STATE_SUMS], 0, b->data, b->length));
    return qn_st_writer_finish(w->tensors);
}
