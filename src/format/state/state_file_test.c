/* Files of saved state: written and read back, every way in which one may not fit or be damaged. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/random.h"
#include "format/files/mmap.h"
#include "format/safetensors/safetensors.h"
#include "format/state/state_file.h"
#include "format/state/state_sections.h"
#include "tests/support/scratch.h"

#define OK(expr)                                              \
    do {                                                      \
        if ((expr) != QN_OK) fail_msg("%s", qn_last_error()); \
    } while (0)

static const qn_state_binding binding = {0x0123456789abcdef, "high",     "bf16",
                                         "cpu avx512",       "2 groups", "00ff"};
static const qn_state_sizes sizes = {2, {96, 40}, 24};
static const int64_t page_counts[] = {3, 2};
enum { N_SLOTS = 2 };

static void refused(qn_status got, qn_status want, const char *words)
{
    assert_int_equal(got, want);
    if (!strstr(qn_last_error(), words)) fail_msg("'%s' is not in: %s", words, qn_last_error());
}

static void fill(uint8_t *bytes, size_t n, int group, int64_t number)
{
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(i * 7 + (size_t)group * 31 + (size_t)number * 13);
}

static qn_status add_nodes(qn_state_writer *w)
{
    static const int32_t ids[] = {5, 6, 7, 8, 9}, first[] = {0, 1}, other[] = {-1, 1}, second[] = {1, 2};
    const qn_state_key keys[] = {{0},
                                 {.adapter = "poet",
                                  .adapter_length = 4,
                                  .adapter_fingerprint = 42,
                                  .is_long = 1,
                                  .salt = "a\0b",
                                  .salt_bytes = 3}};
    for (int i = 0; i < 2; i++) QN_TRY(qn_state_writer_key(w, &keys[i], NULL));
    const qn_state_node nodes[] = {
        {.parent = -1, .key = 0, .ids = ids, .n_ids = 3, .slot = -1, .pages = {{0, 2, first}, {4, 2, other}}},
        {.parent = 0,
         .key = 0,
         .ids = ids + 3,
         .n_ids = 2,
         .slot = 1,
         .cost_ns = 9,
         .pages = {{1, 2, second}}},
        {.parent = -1, .key = 1, .ids = ids, .n_ids = 5, .slot = 0, .pages = {{0, 1, first}, {0, 0, NULL}}}};
    for (int64_t i = 0, at; i < 3; i++) {
        QN_TRY(qn_state_writer_node(w, &nodes[i], &at));
        assert_int_equal(at, i);
    }
    return QN_OK;
}

static qn_status add_units(qn_state_writer *w)
{
    uint8_t bytes[128];
    for (int g = 0; g < 2; g++)
        for (int64_t i = page_counts[g] - 1; i >= 0; i--) {
            fill(bytes, sizes.page_bytes[g], g, i);
            QN_TRY(qn_state_writer_page(w, g, i, bytes));
        }
    for (int64_t i = 0; i < N_SLOTS; i++) {
        fill(bytes, sizes.slot_bytes, 9, i);
        QN_TRY(qn_state_writer_slot(w, i, bytes));
    }
    return QN_OK;
}

static qn_status write_with(const char *path, int has_pins)
{
    qn_state_writer *w;
    QN_TRY(qn_state_writer_new(path, &binding, &sizes, &w));
    qn_status status = add_nodes(w);
    if (status == QN_OK && has_pins) status = qn_state_writer_pin(w, 1, "system");
    if (status == QN_OK && has_pins) status = qn_state_writer_pin(w, 2, "b");
    if (status == QN_OK) status = qn_state_writer_begin(w, page_counts, N_SLOTS);
    if (status == QN_OK) status = add_units(w);
    if (status == QN_OK) status = qn_state_writer_finish(w);
    qn_state_writer_free(w);
    return status;
}

static qn_status write_one(const char *path)
{
    return write_with(path, 1);
}

/* Everything that an open file gives is read; QN_E_FORMAT where a page or slot is damaged. */
static qn_status read_all(const qn_state_file *f)
{
    const void *unit;
    uint64_t sum = 0;
    for (int64_t i = 0; i < qn_state_file_keys(f); i++) {
        qn_state_key k = qn_state_file_key(f, i);
        for (size_t j = 0; j < k.adapter_length; j++) sum += (uint8_t)k.adapter[j];
        for (size_t j = 0; j < k.salt_bytes; j++) sum += ((const uint8_t *)k.salt)[j];
    }
    for (int64_t i = 0; i < qn_state_file_pins(f); i++) {
        qn_state_pin pin = qn_state_file_pin(f, i);
        for (size_t j = 0; j < pin.name_length; j++) sum += (uint8_t)pin.name[j];
    }
    for (int64_t i = 0; i < qn_state_file_nodes(f); i++) {
        qn_state_node n = qn_state_file_node(f, i);
        assert_true(n.parent < i && n.key < qn_state_file_keys(f) && n.slot < qn_state_file_slots(f));
        for (int64_t j = 0; j < n.n_ids; j++) sum += (uint32_t)n.ids[j];
        for (int g = 0; g < qn_state_file_sizes(f)->n_groups; g++)
            for (int64_t j = 0; j < n.pages[g].n; j++)
                assert_true(n.pages[g].numbers[j] < qn_state_file_pages(f, g));
    }
    for (int g = 0; g < qn_state_file_sizes(f)->n_groups; g++)
        for (int64_t i = 0; i < qn_state_file_pages(f, g); i++) QN_TRY(qn_state_file_page(f, g, i, &unit));
    for (int64_t i = 0; i < qn_state_file_slots(f); i++) QN_TRY(qn_state_file_slot(f, i, &unit));
    return sum ? QN_OK : QN_E_FORMAT;
}

static void comes_back(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "x.state");
    qn_state_file *f;
    uint8_t bytes[128];
    const void *unit;
    OK(write_one(path));
    assert_int_equal(qn_test_count_files(folder), 1);
    OK(qn_state_file_open(path, &f));
    assert_string_equal(qn_state_file_path(f), path);
    assert_true(qn_state_file_binding(f)->fingerprint == binding.fingerprint);
    assert_string_equal(qn_state_file_binding(f)->layout, binding.layout);
    assert_int_equal(qn_state_file_keys(f), 2);
    assert_int_equal(qn_state_file_nodes(f), 3);
    assert_int_equal(qn_state_file_slots(f), N_SLOTS);
    qn_state_key key = qn_state_file_key(f, 1);
    assert_int_equal(key.adapter_length, 4);
    assert_memory_equal(key.adapter, "poet", 4);
    assert_int_equal(key.adapter_fingerprint, 42);
    assert_int_equal(key.is_long, 1);
    assert_int_equal(key.salt_bytes, 3);
    assert_memory_equal(key.salt, "a\0b", 3);
    assert_int_equal(qn_state_file_key(f, 0).adapter_length, 0);
    qn_state_node node = qn_state_file_node(f, 1);
    assert_int_equal(node.parent, 0);
    assert_int_equal(node.n_ids, 2);
    assert_int_equal(node.ids[1], 9);
    assert_int_equal(node.slot, 1);
    assert_int_equal(node.cost_ns, 9);
    assert_int_equal(node.pages[0].first, 1);
    assert_int_equal(node.pages[0].n, 2);
    assert_int_equal(node.pages[0].numbers[1], 2);
    assert_int_equal(node.pages[1].n, 0);
    assert_int_equal(qn_state_file_node(f, 0).pages[1].numbers[0], -1);
    assert_int_equal(qn_state_file_node(f, 2).key, 1);
    for (int g = 0; g < 2; g++)
        for (int64_t i = 0; i < page_counts[g]; i++) {
            OK(qn_state_file_page(f, g, i, &unit));
            fill(bytes, sizes.page_bytes[g], g, i);
            assert_memory_equal(unit, bytes, sizes.page_bytes[g]);
        }
    OK(qn_state_file_slot(f, 1, &unit));
    fill(bytes, sizes.slot_bytes, 9, 1);
    assert_memory_equal(unit, bytes, sizes.slot_bytes);
    qn_state_file_close(f);
    qn_test_remove(folder);
}

/* Files with pins are of the second version; those without are of the first, which had none. */
static void versions(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "x.state");
    for (int has_pins = 0; has_pins < 2; has_pins++) {
        qn_safetensors *st;
        qn_state_file *f;
        char *text;
        size_t n;
        OK(write_with(path, has_pins));
        OK(qn_state_file_open(path, &f));
        assert_int_equal(qn_state_file_nodes(f), 3);
        assert_int_equal(qn_state_file_pins(f), 2 * has_pins);
        OK(read_all(f));
        if (has_pins) {
            const qn_state_pin pin = qn_state_file_pin(f, 0), second = qn_state_file_pin(f, 1);
            assert_int_equal(pin.node, 1);
            assert_int_equal(pin.name_length, 6);
            assert_memory_equal(pin.name, "system", 6);
            assert_int_equal(second.node, 2);
            assert_memory_equal(second.name, "b", 1);
        }
        qn_state_file_close(f);
        OK(qn_file_read(path, 1 << 20, &text, &n));
        OK(qn_safetensors_open_bytes("x", text, n, &st));
        assert_string_equal(qn_safetensors_metadata(st, QN_STATE_META_VERSION), has_pins ? "2" : "1");
        assert_int_equal(qn_safetensors_find(st, QN_STATE_PINS) != NULL, has_pins);
        qn_safetensors_close(st);
        char *at = strstr(text + 8, "\"" QN_STATE_META_VERSION "\":\"");
        assert_non_null(at);
        at += strlen("\"" QN_STATE_META_VERSION "\":\"");
        *at = has_pins ? '1' : '2';
        refused(qn_state_file_open_bytes("x", text, n, &f), QN_E_FORMAT,
                has_pins ? "tensors, expected" : "pins");
        *at = '3';
        refused(qn_state_file_open_bytes("x", text, n, &f), QN_E_FORMAT, "format 3");
        qn_free(text);
    }
    qn_test_remove(folder);
}

static void other_models_are_refused(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "x.state");
    qn_state_writer *w;
    qn_state_file *f;
    OK(write_one(path));
    OK(qn_state_file_open(path, &f));
    OK(qn_state_file_check(f, &binding, &sizes));
    qn_state_binding others[7];
    for (int i = 0; i < 7; i++) others[i] = binding;
    others[0].fingerprint = 1;
    others[1].precision = "fast";
    others[2].kv_type = "f16";
    others[3].set = "cpu avx2";
    others[4].layout = "1 group";
    others[5].positions = "00fe";
    others[6].positions = NULL;
    static const char *const words[] = {"another model",
                                        "precision is high, the model's is fast",
                                        "keys and values is bf16",
                                        "set is cpu avx512",
                                        "layout",
                                        "other rotary positions",
                                        "other rotary positions"};
    for (int i = 0; i < 7; i++)
        refused(qn_state_file_check(f, &others[i], &sizes), QN_E_UNSUPPORTED, words[i]);
    const qn_state_sizes wrong[] = {{1, {96}, 24}, {2, {96, 41}, 24}, {2, {96, 40}, 0}};
    for (int i = 0; i < 3; i++)
        refused(qn_state_file_check(f, &binding, &wrong[i]), QN_E_UNSUPPORTED, "another size");
    qn_state_file_close(f);
    OK(qn_state_writer_new(path, &others[6], &sizes, &w));
    OK(qn_state_writer_begin(w, (int64_t[]){0, 0}, 0));
    OK(qn_state_writer_finish(w));
    qn_state_writer_free(w);
    OK(qn_state_file_open(path, &f));
    assert_null(qn_state_file_binding(f)->positions);
    OK(qn_state_file_check(f, &others[6], &sizes));
    refused(qn_state_file_check(f, &binding, &sizes), QN_E_UNSUPPORTED, words[6]);
    qn_state_file_close(f);
    qn_test_remove(folder);
}

/* A file without nodes, of a model without recurrent layers. */
static void empty(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "x.state");
    const qn_state_sizes one = {1, {64}, 0};
    qn_state_writer *w;
    qn_state_file *f;
    OK(qn_state_writer_new(path, &binding, &one, &w));
    OK(qn_state_writer_begin(w, (int64_t[]){0}, 0));
    OK(qn_state_writer_finish(w));
    qn_state_writer_free(w);
    OK(qn_state_file_open(path, &f));
    OK(qn_state_file_check(f, &binding, &one));
    assert_int_equal(qn_state_file_nodes(f) + qn_state_file_keys(f) + qn_state_file_slots(f), 0);
    qn_state_file_close(f);
    qn_test_remove(folder);
}

/* What cannot be written is said before a file is there; a writer that is given up leaves nothing. */
static void wrong_writes(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "x.state");
    static const int32_t ids[] = {1};
    const qn_state_node sound = {.parent = -1, .ids = ids, .n_ids = 1, .slot = 1};
    qn_state_node n;
    qn_state_writer *w;
    OK(qn_state_writer_new(path, &binding, &sizes, &w));
    refused(qn_state_writer_node(w, &sound, NULL), QN_E_ARG, "node 0"); /* no key yet */
    OK(qn_state_writer_key(w, &(qn_state_key){0}, NULL));
    n = sound, n.parent = 0;
    refused(qn_state_writer_node(w, &n, NULL), QN_E_ARG, "node 0");
    n = sound, n.n_ids = 0;
    refused(qn_state_writer_node(w, &n, NULL), QN_E_ARG, "node 0");
    n = sound, n.pages[0] = (qn_state_pages){0, 1, (int32_t[]){7}};
    OK(qn_state_writer_node(w, &n, NULL));
    refused(qn_state_writer_pin(w, 1, "x"), QN_E_ARG, "node 1");
    refused(qn_state_writer_pin(w, -1, "x"), QN_E_ARG, "node -1");
    refused(qn_state_writer_pin(w, 0, ""), QN_E_ARG, "''");
    refused(qn_state_writer_finish(w), QN_E_ARG, "never begun");
    refused(qn_state_writer_begin(w, (int64_t[]){7, 0}, 2), QN_E_ARG, "group 0");
    refused(qn_state_writer_begin(w, (int64_t[]){8, 0}, 1), QN_E_ARG, "slots");
    OK(qn_state_writer_begin(w, (int64_t[]){8, 0}, 2));
    refused(qn_state_writer_begin(w, (int64_t[]){8, 0}, 2), QN_E_ARG, "already begun");
    refused(qn_state_writer_finish(w), QN_E_ARG, "were written");
    qn_state_writer_free(w);
    assert_int_equal(qn_test_count_files(folder), 0);
    qn_test_remove(folder);
}

/* Every bit of the file flipped, every length: refused with the path, by open or by who reads pages. */
static void damaged(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "x.state");
    char *text;
    size_t n, n_passed = 0;
    qn_state_file *f;
    OK(write_one(path));
    OK(qn_file_read(path, 1 << 20, &text, &n));
    for (size_t length = 0; length < n; length++)
        refused(qn_state_file_open_bytes("cut.state", text, length, &f), QN_E_FORMAT, "cut.state");
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            text[i] = (char)(text[i] ^ 1 << bit);
            qn_status status = qn_state_file_open_bytes("bent.state", text, n, &f);
            if (status == QN_OK) {
                status = read_all(f);
                qn_state_file_close(f);
            }
            if (status == QN_OK)
                n_passed++; /* white space of the header */
            else
                refused(status, QN_E_FORMAT, "bent.state");
            text[i] = (char)(text[i] ^ 1 << bit);
        }
    assert_true(n_passed < 8 * 64);
    qn_free(text);
    refused(qn_state_file_open(qn_test_path(folder, "none"), &f), QN_E_IO, "none");
    refused(qn_state_file_open(folder, &f), QN_E_IO, "directory");
    const char *other = qn_test_write_text(folder, "plain.txt", "no state at all, but some text");
    refused(qn_state_file_open(other, &f), QN_E_FORMAT, "plain.txt");
    qn_test_remove(folder);
}

/* Whole blocks overwritten at random, as a disk may do: never a crash, never wrong bytes. */
static void overwritten(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "x.state");
    char *text, *bent;
    size_t n;
    OK(write_one(path));
    OK(qn_file_read(path, 1 << 20, &text, &n));
    bent = qn_alloc(n);
    assert_non_null(bent);
    for (uint64_t round = 0; round < 3000; round++) {
        qn_state_file *f;
        uint64_t a = qn_random_bits(1, 3 * round) % n, b = qn_random_bits(1, 3 * round + 1) % 64;
        memcpy(bent, text, n);
        for (uint64_t i = a; i < n && i < a + b; i++) bent[i] = (char)qn_random_bits(2, round * 64 + i - a);
        if (qn_state_file_open_bytes("bent.state", bent, n, &f) == QN_OK) {
            read_all(f);
            qn_state_file_close(f);
        }
    }
    qn_free(bent);
    qn_free(text);
    qn_test_remove(folder);
}

/* Files whose checksums are right, and whose numbers are not: each is refused by the row's name. */
static void lies(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "x.state");
    enum { NODE = QN_STATE_NODE_GROUPS + 2 * QN_STATE_GROUP_FIELDS };
    static const struct {
        qn_state_section section;
        int64_t at, value;
        const char *words;
    } rows[] = {
        {QN_STATE_NODES, QN_STATE_NODE_PARENT, 0, "node 0: parent 0"},
        {QN_STATE_NODES, QN_STATE_NODE_PARENT, -2, "node 0: parent -2"},
        {QN_STATE_NODES, NODE + QN_STATE_NODE_PARENT, 2, "node 1: parent 2"},
        {QN_STATE_NODES, QN_STATE_NODE_KEY, 2, "node 0: key 2"},
        {QN_STATE_NODES, QN_STATE_NODE_KEY, -1, "node 0: key -1"},
        {QN_STATE_NODES, NODE + QN_STATE_NODE_KEY, 1, "node 1: a parent with key 1"},
        {QN_STATE_NODES, QN_STATE_NODE_N_TOKENS, 0, "node 0: a run of tokens"},
        {QN_STATE_NODES, QN_STATE_NODE_N_TOKENS, 4, "node 2: it has more tokens or pages"},
        {QN_STATE_NODES, QN_STATE_NODE_N_TOKENS, INT64_MAX, "node 0: it has more tokens or pages"},
        {QN_STATE_NODES, QN_STATE_NODE_N_TOKENS, INT64_MIN, "node 0: it has more tokens or pages"},
        {QN_STATE_NODES, QN_STATE_NODE_TOKENS, -1, "node 0: a run of tokens"},
        {QN_STATE_NODES, QN_STATE_NODE_TOKENS, 8, "node 0: a run of tokens"},
        {QN_STATE_NODES, QN_STATE_NODE_SLOT, 2, "node 0: slot 2"},
        {QN_STATE_NODES, QN_STATE_NODE_COST, -1, "node 0: cost -1"},
        {QN_STATE_NODES, QN_STATE_NODE_GROUPS + QN_STATE_GROUP_FIRST, -1, "node 0: first page -1"},
        {QN_STATE_NODES, QN_STATE_NODE_GROUPS + QN_STATE_GROUP_FIRST, INT64_MAX, "node 0: first page"},
        {QN_STATE_NODES, QN_STATE_NODE_GROUPS + QN_STATE_GROUP_AT, 6, "node 0: a run of pages"},
        {QN_STATE_NODES, QN_STATE_NODE_GROUPS + QN_STATE_GROUP_N, INT64_MAX,
         "node 0: it has more tokens or pages"},
        {QN_STATE_KEYS, QN_STATE_KEY_LONG, 2, "key 0"},
        {QN_STATE_KEYS, QN_STATE_KEY_FIELDS + QN_STATE_KEY_ADAPTER_BYTES, 8, "key 1"},
        {QN_STATE_KEYS, QN_STATE_KEY_FIELDS + QN_STATE_KEY_SALT, -1, "key 1"},
        {QN_STATE_NUMBERS, 0, 3, "node 0: page 3"},
        {QN_STATE_NUMBERS, 2, -2, "node 0: page -2"},
    };
    OK(write_with(path, 0));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *text;
        size_t n;
        qn_safetensors *st;
        qn_state_file *f;
        OK(qn_file_read(path, 1 << 20, &text, &n));
        OK(qn_safetensors_open_bytes("x", text, n, &st));
        const qn_tensor_view *v = qn_safetensors_find(st, qn_state_sections[rows[i].section].name);
        const qn_tensor_view *w = qn_safetensors_find(st, qn_state_sections[QN_STATE_SUMS].name);
        int64_t *sums = (int64_t *)(uintptr_t)w->data;
        if (v->dtype == QN_DTYPE_I64)
            ((int64_t *)(uintptr_t)v->data)[rows[i].at] = rows[i].value;
        else
            ((int32_t *)(uintptr_t)v->data)[rows[i].at] = (int32_t)rows[i].value;
        sums[QN_STATE_SUM_BINDING + rows[i].section] = qn_state_sum(v->data, v->size_bytes);
        sums[QN_STATE_SUM_SUMS] = qn_state_sum(sums + 1, w->size_bytes - sizeof *sums);
        refused(qn_state_file_open_bytes("lie.state", text, n, &f), QN_E_FORMAT, rows[i].words);
        qn_safetensors_close(st);
        qn_free(text);
    }
    qn_test_remove(folder);
}

static void pins_that_lie(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "x.state");
    enum { SECOND = QN_STATE_PIN_FIELDS };
    static const struct {
        int64_t at, value;
        const char *words;
    } rows[] = {
        {QN_STATE_PIN_NODE, 3, "pin 0"},
        {QN_STATE_PIN_NODE, -1, "pin 0"},
        {SECOND + QN_STATE_PIN_NAME, -1, "pin 1"},
        {SECOND + QN_STATE_PIN_NAME, INT64_MAX, "pin 1"},
        {SECOND + QN_STATE_PIN_NAME_BYTES, 0, "pin 1"},
        {SECOND + QN_STATE_PIN_NAME_BYTES, 2, "pin 1"},
        {QN_STATE_PIN_NAME_BYTES, INT64_MAX, "pin 0"},
        {QN_STATE_PIN_NAME, 4, "pin 0"}, /* where a NUL is */
        {QN_STATE_PIN_NAME_BYTES, 7, "pin 1"},
    };
    OK(write_one(path));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *text;
        size_t n;
        qn_safetensors *st;
        qn_state_file *f;
        OK(qn_file_read(path, 1 << 20, &text, &n));
        OK(qn_safetensors_open_bytes("x", text, n, &st));
        const qn_tensor_view *v = qn_safetensors_find(st, QN_STATE_PINS);
        const qn_tensor_view *w = qn_safetensors_find(st, qn_state_sections[QN_STATE_SUMS].name);
        int64_t *sums = (int64_t *)(uintptr_t)w->data, *pins = (int64_t *)(uintptr_t)v->data;
        pins[rows[i].at] = rows[i].value;
        if (i == sizeof rows / sizeof *rows - 1) { /* each fits, and both together are more than there is */
            const qn_tensor_view *texts = qn_safetensors_find(st, qn_state_sections[QN_STATE_TEXTS].name);
            pins[QN_STATE_PIN_NAME_BYTES] = pins[SECOND + QN_STATE_PIN_NAME_BYTES] = 8;
            pins[SECOND + QN_STATE_PIN_NAME] = pins[QN_STATE_PIN_NAME] = texts->shape[0] - 8;
            assert_true(texts->shape[0] < 2 * 8);
        }
        sums[w->shape[0] - 1] = qn_state_sum(v->data, v->size_bytes);
        sums[QN_STATE_SUM_SUMS] = qn_state_sum(sums + 1, w->size_bytes - sizeof *sums);
        refused(qn_state_file_open_bytes("lie.state", text, n, &f), QN_E_FORMAT, rows[i].words);
        qn_safetensors_close(st);
        qn_free(text);
    }
    qn_test_remove(folder);
}

static void out_of_memory(void **state)
{
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "x.state");
    qn_status status = QN_E_NOMEM;
    int64_t blocks = qn_mem_live_blocks(), nth = 1;
    for (; status != QN_OK && nth < 2000; nth++) {
        qn_mem_fail_nth(nth);
        status = write_one(path);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        assert_int_equal(qn_mem_live_blocks(), blocks);
        assert_int_equal(qn_test_count_files(folder), status == QN_OK);
    }
    assert_true(nth > 3);
    status = QN_E_NOMEM;
    for (nth = 1; status != QN_OK && nth < 2000; nth++) {
        qn_state_file *f;
        qn_mem_fail_nth(nth);
        status = qn_state_file_open(path, &f);
        qn_mem_fail_nth(0);
        if (status == QN_OK)
            qn_state_file_close(f);
        else
            assert_int_equal(status, QN_E_NOMEM);
        assert_int_equal(qn_mem_live_blocks(), blocks);
    }
    assert_int_equal(status, QN_OK);
    assert_true(nth > 3);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(comes_back),
                                       cmocka_unit_test(versions),
                                       cmocka_unit_test(other_models_are_refused),
                                       cmocka_unit_test(empty),
                                       cmocka_unit_test(wrong_writes),
                                       cmocka_unit_test(damaged),
                                       cmocka_unit_test(overwritten),
                                       cmocka_unit_test(lies),
                                       cmocka_unit_test(pins_that_lie),
                                       cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
