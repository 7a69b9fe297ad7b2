/* Any bytes: refused, or everything that the file gives lies inside them and every number is in range. */
#include "format/state/state_file.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static const uint8_t *begin;
static size_t length;

static void check(const void *data, size_t size_bytes)
{
    const uint8_t *p = data;
    if (size_bytes && (p < begin || p > begin + length || size_bytes > (size_t)(begin + length - p))) abort();
}

static void check_node(const qn_state_file *f, int64_t i)
{
    const qn_state_node n = qn_state_file_node(f, i);
    if (n.parent >= i || n.key < 0 || n.key >= qn_state_file_keys(f) || n.n_ids < 1) abort();
    if (n.slot < -1 || n.slot >= qn_state_file_slots(f)) abort();
    check(n.ids, (size_t)n.n_ids * sizeof *n.ids);
    for (int g = 0; g < qn_state_file_sizes(f)->n_groups; g++) {
        check(n.pages[g].numbers, (size_t)n.pages[g].n * sizeof(int32_t));
        for (int64_t j = 0; j < n.pages[g].n; j++)
            if (n.pages[g].numbers[j] < -1 || n.pages[g].numbers[j] >= qn_state_file_pages(f, g)) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_state_file *f = NULL;
    uint8_t *bytes = qn_alloc(size); /* aligned, as a mapping is */
    if (!bytes) return 0;
    if (size) memcpy(bytes, data, size);
    begin = bytes;
    length = size;
    if (qn_state_file_open_bytes("fuzz.state", bytes, size, &f) == QN_OK) {
        const qn_state_sizes *s = qn_state_file_sizes(f);
        const void *unit;
        if (qn_state_file_check(f, qn_state_file_binding(f), s) != QN_OK) abort();
        for (int64_t i = 0; i < qn_state_file_keys(f); i++) {
            qn_state_key key = qn_state_file_key(f, i);
            check(key.adapter, key.adapter_length);
            check(key.salt, key.salt_bytes);
        }
        for (int64_t i = 0; i < qn_state_file_nodes(f); i++) check_node(f, i);
        for (int64_t i = 0; i < qn_state_file_pins(f); i++) {
            qn_state_pin pin = qn_state_file_pin(f, i);
            check(pin.name, pin.name_length);
            if (pin.node < 0 || pin.node >= qn_state_file_nodes(f)) abort();
        }
        for (int g = 0; g < s->n_groups; g++)
            for (int64_t i = 0; i < qn_state_file_pages(f, g); i++)
                if (qn_state_file_page(f, g, i, &unit) == QN_OK) check(unit, s->page_bytes[g]);
        for (int64_t i = 0; i < qn_state_file_slots(f); i++)
            if (qn_state_file_slot(f, i, &unit) == QN_OK) check(unit, s->slot_bytes);
        qn_state_file_close(f);
    }
    qn_free(bytes);
    return 0;
}
