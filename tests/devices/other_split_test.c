/* A model divided between a card and the CPU: the first layers on the device that is tested, the others and the
 * head on the CPU. Golden values of every kind of model at several borders; the same bits in any company; pages,
 * prefixes, saved states, adapters and images over both sides; what each side's memory is, and what is refused.
 * Devices without memory of their own divide nothing. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <math.h>
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/handles.h"
#include "backend/native/native.h"
#include "backend/native/native_parts.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/random.h"
#include "engine/machine/engine_parts.h"
#include "engine/machine/images.h"
#include "tests/devices/other_compare.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/golden_states.h"
#include "tests/support/models/kinds.h"
#include "tests/support/scratch.h"

/* Of both devices: each orders its sums in its own way. */
static double tolerance_of(const char *kind)
{
    return qn_test_bound_of(qn_golden_tolerance(kind) > 2e-4 ? QN_TEST_LOGITS_WIDE : QN_TEST_LOGITS);
}

static const char *card(void)
{
    return qn_test_other()->name;
}

/* 0: the device divides nothing, and a line says so. */
static int is_card(void)
{
    qn_device *d = NULL;
    qn_test_ok(qn_device_open(card(), &(qn_device_options){.n_threads = 1}, &d));
    const int has_memory = qn_device_has_memory(d);
    qn_device_close(d);
    if (!has_memory) print_message("%s has no memory of its own\n", card());
    return has_memory;
}

static const char *model_dir(const char *kind)
{
    char path[128];
    snprintf(path, sizeof path, "models/%s", kind);
    return qn_test_need_fixture(path);
}

static qn_engine *open_engine(const char *path, int64_t n_layers, int64_t max_sequences)
{
    return qn_test_engine(path, NULL,
                          (qn_engine_options){.device = card(),
                                              .gpu_layers = (int32_t)n_layers,
                                              .precision = QN_PRECISION_EXACT,
                                              .max_rows = 64,
                                              .max_sequences = max_sequences,
                                              .n_threads = 2});
}

/* Layers of a model; *has_border: it can be divided. */
static int64_t look(const char *path, int *has_border)
{
    qn_source *source = NULL;
    qn_model_config c = {0};
    qn_test_ok(qn_source_open(path, NULL, &source));
    qn_test_ok(qn_config_read(source, &c));
    const int64_t n = c.num_hidden_layers;
    *has_border = !c.altup_num_inputs && !c.hyper.hc_count;
    qn_config_free(&c);
    qn_source_close(source);
    return n;
}

static int64_t count_layers(const char *path)
{
    int has_border;
    return look(path, &has_border);
}

/* 1: the kind cannot be divided, and a number of layers is refused with a sentence. */
static int is_refused(const char *path)
{
    int has_border;
    look(path, &has_border);
    if (has_border) return 0;
    const qn_engine_options o = {.device = card(), .gpu_layers = 1, .max_rows = 64};
    qn_engine *e = NULL;
    assert_int_equal(qn_test_engine_try(path, &o, &e), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(),
                           "the model cannot be divided behind its first 1 layers: it has several "
                           "streams"));
    return 1;
}

/* ---- golden values ------------------------------------------------------------------------------------ */

/* The prompts from the first on up to number 3, of which more than the logits is known. Returns the border. */
static int64_t check_golden(const char *kind, const char *dir, int64_t n, int first)
{
    char path[128];
    double logits = 0;
    qn_golden_errors errors = {0};
    qn_safetensors *st;
    snprintf(path, sizeof path, "models/%s/expected.safetensors", kind);
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    qn_engine *e = open_engine(dir, n, 1);
    const int64_t border = qn_engine_get_info(e)->gpu_layers, all = qn_engine_config(e)->num_hidden_layers;
    assert_int_equal(border, qn_layer_border(qn_engine_config(e), n));
    assert_string_equal(qn_engine_get_info(e)->device, card());
    assert_non_null(strstr(qn_engine_get_info(e)->notes, "layers, the CPU the others\n"));
    for (int i = first; i <= 3; i++) {
        const double worst = qn_golden_logits(e, st, i, i == 3 ? &errors : NULL);
        if (!(worst <= logits)) logits = worst;
    }
    print_message("%s, %d of %d layers: largest differences: logits %.1e, hidden states %.1e, keys %.1e, "
                  "attention %.1e\n",
                  kind, (int)border, (int)all, logits, errors.hidden, errors.keys, errors.attention);
    assert_true(errors.n_hidden >= 2);
    if (errors.first[0]) fail_msg("%s is the first to leave the tolerance", errors.first);
    assert_true(logits <= tolerance_of(kind));
    for (int i = first; i <= 3; i++) qn_golden_greedy(e, st, i, 2 * tolerance_of(kind), kind);
    qn_engine_close(e);
    qn_safetensors_close(st);
    return border;
}

/* Behind the first layer, in the middle (all prompts), and before the last. */
static void golden(void **state)
{
    if (!is_card()) return;
    const char *kind = *state, *dir = model_dir(kind);
    if (is_refused(dir)) return;
    const int64_t all = count_layers(dir), middle = check_golden(kind, dir, (all + 1) / 2, 0);
    if (middle > 1) check_golden(kind, dir, 1, 3);
    if (all - 1 > middle) check_golden(kind, dir, all - 1, 3);
}

/* ---- bits --------------------------------------------------------------------------------------------- */

enum { SEQUENCES = 4, LONGEST = 70, STEPS = 5 };

typedef struct {
    float *out; /* of each sequence the logits of its last row */
    int64_t vocab;
} last_rows;

static qn_status copy_last(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    const last_rows *l = user;
    memcpy(l->out + feed * l->vocab, logits + (n - 1) * l->vocab, (size_t)l->vocab * sizeof *logits);
    return QN_OK;
}

static void draw_ids(int32_t *ids, int64_t n, int64_t vocab, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)(1 + qn_random_bits(seed, (uint64_t)i) % (uint64_t)(vocab - 1));
}

/* Alone and whole, in pieces, token by token, and beside others: the same bits. */
static void bits(void **state)
{
    if (!is_card()) return;
    const char *kind = *state, *dir = model_dir(kind);
    if (is_refused(dir)) return;
    qn_engine *e = open_engine(dir, (count_layers(dir) + 1) / 2, SEQUENCES);
    const int64_t vocab = qn_engine_config(e)->vocab_size, lengths[SEQUENCES] = {LONGEST - STEPS, 1, 33, 20};
    const size_t row_bytes = (size_t)vocab * sizeof(float);
    float *whole = qn_alloc_array(LONGEST, row_bytes), *pieces = qn_alloc_array(LONGEST, row_bytes),
          *together = qn_alloc_array(SEQUENCES, row_bytes);
    int32_t ids[SEQUENCES][LONGEST];
    qn_sequence *s[SEQUENCES];
    qn_feed feeds[SEQUENCES];
    last_rows rows = {together, vocab};
    for (int i = 0; i < SEQUENCES; i++) draw_ids(ids[i], LONGEST, vocab, 9 + (uint64_t)i);
    qn_test_logits(e, ids[0], LONGEST, 0, whole);
    for (int64_t piece = 1; piece <= 33; piece += 32) {
        qn_test_logits(e, ids[0], LONGEST, piece, pieces);
        if (memcmp(whole, pieces, LONGEST * row_bytes) != 0)
            fail_msg("%s: other bits in pieces of %d", kind, (int)piece);
    }
    for (int i = 0; i < SEQUENCES; i++) {
        s[i] = qn_test_sequence(e);
        feeds[i] = (qn_feed){s[i], ids[i], lengths[i], QN_LOGITS_LAST};
    }
    for (int step = 0; step <= STEPS; step++) {
        qn_test_ok(qn_engine_step(e, SEQUENCES, feeds, copy_last, NULL, &rows));
        for (int i = 0; i < SEQUENCES; i++)
            feeds[i] = (qn_feed){s[i], feeds[i].ids + feeds[i].n_ids, 1, QN_LOGITS_LAST};
    }
    for (int i = 0; i < SEQUENCES; i++) {
        const int64_t n = lengths[i] + STEPS;
        qn_test_logits(e, ids[i], n, 0, pieces);
        if (memcmp(pieces + (n - 1) * vocab, together + i * vocab, row_bytes) != 0)
            fail_msg("%s: sequence %d has other bits in company", kind, i);
        qn_sequence_free(s[i]);
    }
    qn_free(whole);
    qn_free(pieces);
    qn_free(together);
    qn_engine_close(e);
}

/* ---- the public API ----------------------------------------------------------------------------------- */

enum { PROMPT = 100, ANSWER = 12 };

static qn_status try_model(const char *path, qn_model_options o, qn_model **out)
{
    o.precision = QN_PRECISION_EXACT;
    if (!o.context_size) o.context_size = 512;
    if (!o.prefill_chunk) o.prefill_chunk = 32;
    return qn_model_open(path, &o, out);
}

static qn_model *open_model(const char *path, int32_t n_layers)
{
    qn_model *m = NULL;
    qn_test_ok(try_model(path, (qn_model_options){.device = card(), .gpu_layers = n_layers}, &m));
    return m;
}

static qn_model_info info_of(qn_model *m)
{
    qn_model_info info;
    qn_test_ok(qn_model_get_info(m, &info));
    return info;
}

static void fill(int32_t *ids, int64_t n, uint64_t seed)
{
    draw_ids(ids, n, 200, seed);
}

/* The ids of a greedy answer; n_cached (NULL: not wanted): tokens of the prompt that were there already. */
static qn_status answer(qn_model *m, const int32_t *prompt, int64_t n_prompt, int64_t n, int32_t *out,
                        int64_t *n_cached)
{
    const qn_ids row = {prompt, (size_t)n_prompt};
    const qn_generate_options o = {.max_tokens = n, .ignore_eos = 1};
    qn_generation *g = NULL;
    qn_generation_stats stats;
    qn_token t = {.end = QN_END_NONE};
    QN_TRY(qn_generation_open(m, &(qn_prompt){.rows = &row, .n_rows = 1}, &o, &g));
    qn_status status = QN_OK;
    for (int64_t made = 0; status == QN_OK && t.end == QN_END_NONE; made++) {
        status = qn_generation_next(g, &t);
        if (status == QN_OK && t.end == QN_END_NONE && out) out[made] = t.id;
    }
    if (n_cached && qn_generation_get_stats(g, &stats) == QN_OK) *n_cached = stats.n_cached_tokens;
    qn_generation_close(g);
    return status;
}

/* Prefixes are found again, in the model and in another one that loads its state, which a model with another
 * border does not take. */
static void prefixes(void **state)
{
    if (!is_card()) return;
    const char *dir = model_dir(*state), *scratch = qn_test_scratch();
    const int32_t n = (int32_t)(count_layers(dir) + 1) / 2;
    int32_t ids[PROMPT], first[ANSWER], again[ANSWER];
    int64_t n_cached;
    fill(ids, PROMPT, 3);
    qn_model *m = open_model(dir, n);
    const int64_t border = info_of(m).gpu_layers;
    qn_test_ok(answer(m, ids, PROMPT, ANSWER, first, &n_cached));
    assert_int_equal(n_cached, 0);
    qn_test_ok(answer(m, ids, PROMPT, ANSWER, again, &n_cached));
    assert_true(n_cached >= PROMPT / 2);
    assert_memory_equal(first, again, sizeof first);
    qn_test_ok(qn_model_save_state(m, qn_test_path(scratch, "state")));
    qn_model_close(&m);

    m = open_model(dir, n);
    qn_test_ok(qn_model_load_state(m, qn_test_path(scratch, "state")));
    qn_test_ok(answer(m, ids, PROMPT, ANSWER, again, &n_cached));
    assert_true(n_cached >= PROMPT / 2);
    assert_memory_equal(first, again, sizeof first);
    qn_model_close(&m);

    m = open_model(dir, 1);
    if (info_of(m).gpu_layers != border) {
        assert_int_equal(qn_model_load_state(m, qn_test_path(scratch, "state")), QN_E_UNSUPPORTED);
        assert_non_null(strstr(qn_last_error(), "layers on "));
    }
    qn_model_close(&m);
    m = open_model(dir, QN_ALL_LAYERS);
    assert_int_equal(qn_model_load_state(m, qn_test_path(scratch, "state")), QN_E_UNSUPPORTED);
    qn_model_close(&m);
    qn_test_remove(scratch);
}

static qn_memory host_memory(qn_model *m)
{
    qn_memory now;
    qn_test_ok(qn_model_get_memory(m, &now));
    return now;
}

static qn_device_memory card_memory(qn_model *m)
{
    qn_device_memory now;
    qn_test_ok(qn_model_get_device_memory(m, &now));
    return now;
}

/* Weights and pages lie where they are used, and are counted there. */
static void memory(void **state)
{
    if (!is_card()) return;
    const char *dir = model_dir(*state);
    const int32_t n = (int32_t)count_layers(dir);
    int32_t ids[PROMPT];
    size_t weights = 0, pages = 0;
    fill(ids, PROMPT, 4);
    for (int32_t i = 1; i < n; i++) {
        qn_model *m = open_model(dir, i);
        const size_t on_card = card_memory(m).weights_bytes, on_host = host_memory(m).weights_bytes;
        assert_int_equal(info_of(m).gpu_layers, i);
        assert_true(on_card > weights && on_host > 0);
        weights = on_card;
        qn_test_ok(answer(m, ids, PROMPT, 2, NULL, NULL));
        const qn_device_memory of_card = card_memory(m);
        const qn_memory of_host = host_memory(m);
        const size_t card_pages = of_card.kv_bytes + of_card.cache_memory_bytes,
                     host_pages = of_host.kv_bytes + of_host.cache_memory_bytes;
        assert_true(card_pages > pages && host_pages > 0);
        pages = card_pages;
        assert_true(of_card.peak_memory_bytes >= of_card.active_memory_bytes);

        /* Both give up what they keep. */
        qn_test_ok(qn_model_clear_cache(m));
        assert_int_equal(card_memory(m).cache_memory_bytes, 0);
        assert_int_equal(host_memory(m).cache_memory_bytes, 0);
        size_t old;
        qn_test_ok(qn_model_set_cache_limit(m, 0, &old));
        qn_test_ok(answer(m, ids, PROMPT, 2, NULL, NULL));
        assert_int_equal(card_memory(m).cache_memory_bytes, 0);
        assert_int_equal(host_memory(m).cache_memory_bytes, 0);
        qn_model_close(&m);
    }
}

/* The limit of one side ends a request in its sentence; then the next one goes on, and what was kept gives way. */
static void limits(void **state)
{
    if (!is_card()) return;
    enum { LONG = 400 };
    const char *dir = model_dir(*state);
    int32_t ids[LONG], first[ANSWER], again[ANSWER];
    fill(ids, LONG, 6);
    for (int side = 0; side < 2; side++) {
        qn_model *m = open_model(dir, (int32_t)(count_layers(dir) + 1) / 2);
        size_t old;
        qn_test_ok(answer(m, ids, PROMPT, ANSWER, first, NULL));
        qn_test_ok(qn_model_clear_cache(m));
        const size_t kept = side ? card_memory(m).active_memory_bytes : host_memory(m).active_memory_bytes;
        qn_test_ok(answer(m, ids, PROMPT, ANSWER, again, NULL));
        const size_t used = side ? card_memory(m).cache_memory_bytes : host_memory(m).cache_memory_bytes;
        qn_test_ok(side ? qn_model_set_device_memory_limit(m, kept + used, &old)
                        : qn_model_set_memory_limit(m, kept + used + (64 << 10), &old));
        qn_test_ok(qn_model_reset_peak_memory(m));
        assert_int_equal(answer(m, ids, LONG, ANSWER, again, NULL), QN_E_NOMEM);
        assert_non_null(strstr(qn_last_error(), side ? "device memory limit: " : "memory limit: "));
        if (side) assert_true(card_memory(m).peak_memory_bytes <= kept + used);
        for (int i = 0; i < 3; i++) { /* other prompts each time, for which kept pages are given up */
            fill(ids, LONG, 7 + (uint64_t)i);
            qn_test_ok(answer(m, ids, PROMPT - 10, 2, NULL, NULL));
        }
        fill(ids, LONG, 6);
        qn_test_ok(side ? qn_model_set_device_memory_limit(m, 0, &old)
                        : qn_model_set_memory_limit(m, 0, &old));
        qn_test_ok(answer(m, ids, PROMPT, ANSWER, again, NULL));
        assert_memory_equal(first, again, sizeof first);
        qn_model_close(&m);
    }
}

/* ---- choices and refusals ----------------------------------------------------------------------------- */

enum { CONTEXT = 4096 };

/* What a model with so many layers on the card needs there, with CONTEXT tokens of context. */
static size_t needed(const char *dir, int32_t n_layers)
{
    qn_model *m = NULL;
    qn_test_ok(try_model(
        dir, (qn_model_options){.device = card(), .gpu_layers = n_layers, .context_size = CONTEXT}, &m));
    const size_t scratch = card_memory(m).active_memory_bytes;
    const qn_engine *e = ((native_model *)m->object)->engine;
    const qn_part part = e->card.device ? QN_PART_CARD : QN_PART_OWN;
    const size_t kv = (size_t)qn_engine_kv_bytes(e, part, CONTEXT);
    qn_model_close(&m);
    return scratch + kv;
}

/* 0 layers mean as many as fit, and a line says how many. */
static void choice(void **state)
{
    if (!is_card()) return;
    const char *dir = model_dir(*state);
    const int64_t all = count_layers(dir);
    int64_t last = 0;
    for (int64_t i = 1; i <= all; i++) {
        qn_model *m = NULL;
        char note[96];
        /* Some more: a choice leaves a tenth for what only compiled programs say. */
        const size_t limit = needed(dir, (int32_t)i) * 5 / 4;
        const qn_model_options o = {
            .device = i % 2 ? card() : "auto", .context_size = CONTEXT, .device_memory_limit_bytes = limit};
        qn_test_ok(try_model(dir, o, &m));
        const qn_model_info info = info_of(m);
        print_message("%zu bytes: %d of %d layers\n", limit, (int)info.gpu_layers, (int)all);
        assert_string_equal(info.device, card());
        assert_true(info.gpu_layers >= 1 && info.gpu_layers >= last && info.gpu_layers <= all);
        if (info.gpu_layers < all) {
            snprintf(note, sizeof note,
                     "the card has no room for all layers: the device %s computes the first "
                     "%d of %d layers, the CPU the others\n",
                     card(), (int)info.gpu_layers, (int)all);
            assert_non_null(strstr(info.notes, note));
        }
        int32_t ids[PROMPT];
        fill(ids, PROMPT, 8);
        qn_test_ok(answer(m, ids, PROMPT, 3, NULL, NULL));
        assert_true(card_memory(m).peak_memory_bytes <= limit);
        last = info.gpu_layers;
        qn_model_close(&m);
    }
    assert_true(last > 1);
}

/* A number of layers that does not fit is refused with what would, and "auto" takes the CPU. */
static void refusals(void **state)
{
    if (!is_card()) return;
    const char *dir = model_dir(*state);
    const int32_t all = (int32_t)count_layers(dir);
    qn_model *m = NULL;
    const size_t limit = needed(dir, 1) * 5 / 4;
    char text[64];
    qn_model_options o = {
        .device = card(), .gpu_layers = all - 1, .context_size = CONTEXT, .device_memory_limit_bytes = limit};
    assert_int_equal(try_model(dir, o, &m), QN_E_NOMEM);
    snprintf(text, sizeof text, "the first %d of %d layers need ", (int)all - 1, (int)all);
    assert_non_null(strstr(qn_last_error(), text));
    assert_non_null(strstr(qn_last_error(), "left under the device memory limit. What fits: "));
    assert_non_null(strstr(qn_last_error(), "on the card (gpu_layers: 1)"));
    o.gpu_layers = QN_ALL_LAYERS;
    assert_int_equal(try_model(dir, o, &m), QN_E_NOMEM);
    assert_non_null(strstr(qn_last_error(), "the model needs "));
    assert_non_null(strstr(qn_last_error(), "on the card (gpu_layers: 1)"));
    o.device = "auto";
    for (int i = 0; i < 2; i++) {
        o.gpu_layers = i ? QN_ALL_LAYERS : all - 1;
        qn_test_ok(try_model(dir, o, &m));
        assert_string_equal(info_of(m).device, "cpu");
        assert_int_equal(info_of(m).gpu_layers, 0);
        assert_non_null(strstr(info_of(m).notes, "The CPU computes instead"));
        qn_model_close(&m);
    }
    /* Too little even for one layer. */
    o = (qn_model_options){.device = card(), .device_memory_limit_bytes = 20000};
    assert_int_equal(try_model(dir, o, &m), QN_E_NOMEM);
    assert_non_null(strstr(qn_last_error(), "no layer on the card"));
    assert_null(strstr(qn_last_error(), "layers on the card (gpu_layers: "));

    /* Weights of two devices are no base of a training. */
    m = open_model(dir, 1);
    qn_native_view view;
    assert_int_equal(qn_native_get_view(m->object, &view), QN_E_UNSUPPORTED);
    assert_non_null(strstr(qn_last_error(), "open the model on the device cpu"));
    qn_model_close(&m);
    /* All layers, by a number. */
    m = open_model(dir, all);
    assert_int_equal(info_of(m).gpu_layers, all);
    assert_string_equal(info_of(m).notes, "");
    qn_model_close(&m);
}

/* Layers that read the keys and values of one before them stay on its side. */
static void shared_keys(void **state)
{
    if (!is_card()) return;
    const char *dir = model_dir(*state);
    qn_model *m = open_model(dir, (int32_t)count_layers(dir) - 1);
    const qn_model_config *c = qn_engine_config(((native_model *)m->object)->engine);
    const int64_t border = info_of(m).gpu_layers;
    assert_true(border > 0 && border < c->num_hidden_layers - 1);
    for (int64_t i = border; i < c->num_hidden_layers; i++) assert_true(c->layers[i].kv_layer >= border);
    assert_non_null(strstr(info_of(m).notes, "read keys and values of these: "));
    qn_model_close(&m);
}

/* ---- adapters, images, drafts ------------------------------------------------------------------------- */

static qn_status copy_all(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    const last_rows *c = user;
    memcpy(c->out + first * c->vocab, logits, (size_t)(n * c->vocab) * sizeof *logits);
    return QN_OK;
}

/* Factors lie beside their matrices; loaded and unloaded while the model is open. */
static void adapters(void **state)
{
    if (!is_card()) return;
    char path[128];
    const char *name = *state;
    const char *dir = model_dir(strncmp(name, "llama", 5) == 0 ? "llama" : "gemma3_text");
    snprintf(path, sizeof path, "lora/%s/expected.safetensors", name);
    qn_safetensors *st;
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &st));
    snprintf(path, sizeof path, "lora/%s", name);
    const char *adapter = qn_test_need_fixture(path);
    qn_engine *e = open_engine(dir, count_layers(dir) / 2, 1);
    const size_t on_card = qn_ledger_held(e->card.device->ledger, QN_LEDGER_WEIGHTS),
                 on_host = qn_ledger_held(e->ledger, QN_LEDGER_WEIGHTS);
    for (int turn = 0; turn < 2; turn++) {
        qn_buf notes = {0};
        int32_t id;
        double worst = 0;
        qn_test_ok(qn_engine_adapter_load(e, "one", adapter, 1, &notes));
        qn_buf_free(&notes);
        qn_test_ok(qn_adapters_hold(qn_engine_adapters(e), "one", &id));
        for (int i = 1; i <= 3; i += 2) {
            const qn_tensor_view *ids = qn_test_tensor(st, "prompt%d.ids", i),
                                 *want = qn_test_tensor(st, "prompt%d.logits", i);
            last_rows rows = {qn_alloc_array((size_t)want->n_elements, sizeof(float)),
                              qn_engine_config(e)->vocab_size};
            qn_sequence *s = qn_test_sequence(e);
            qn_sequence_set_adapter(s, id);
            const qn_feed feed = {s, ids->data, ids->n_elements, QN_LOGITS_ALL};
            qn_test_ok(qn_engine_step(e, 1, &feed, copy_all, NULL, &rows));
            for (int64_t k = 0; k < want->n_elements; k++)
                worst = fmax(worst, fabs((double)rows.out[k] - (double)((const float *)want->data)[k]));
            qn_sequence_free(s);
            qn_free(rows.out);
        }
        print_message("%s: largest difference of logits %.1e\n", name, worst);
        assert_true(worst <= tolerance_of("llama"));
        assert_true(qn_ledger_held(e->card.device->ledger, QN_LEDGER_WEIGHTS) > on_card);
        assert_true(qn_ledger_held(e->ledger, QN_LEDGER_WEIGHTS) > on_host);
        qn_adapters_release(qn_engine_adapters(e), id);
        qn_test_ok(qn_engine_adapter_unload(e, "one"));
        assert_int_equal(qn_ledger_held(e->card.device->ledger, QN_LEDGER_WEIGHTS), on_card);
        assert_int_equal(qn_ledger_held(e->ledger, QN_LEDGER_WEIGHTS), on_host);
    }
    qn_engine_close(e);
    qn_safetensors_close(st);
}

/* The tower runs on the CPU, and its vectors stand for rows of both sides. */
static void images(void **state)
{
    if (!is_card()) return;
    const char *dir = model_dir("qwen2_vl");
    qn_safetensors *st;
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture("models/qwen2_vl/expected.safetensors"), &st));
    const qn_tensor_view *rgb = qn_safetensors_find(st, "image.rgb"),
                         *ids = qn_test_tensor(st, "image.ids", 0),
                         *want = qn_test_tensor(st, "image.logits", 0);
    assert_non_null(rgb);
    qn_engine *e = open_engine(dir, count_layers(dir) / 2, 1);
    const qn_image image = {rgb->data, rgb->shape[1], rgb->shape[0], 0};
    qn_images *im = NULL;
    int64_t left = 1;
    double worst = 0;
    qn_test_ok(qn_images_new(qn_engine_config(e), 1, &image, ids->data, ids->n_elements, 1 << 20, &im));
    while (left) qn_test_ok(qn_images_see(im, e, 0, &left));
    last_rows rows = {qn_alloc_array((size_t)want->n_elements, sizeof(float)),
                      qn_engine_config(e)->vocab_size};
    for (int64_t piece = 200; piece > 0; piece -= 193) {
        const qn_ids prompt = qn_images_prompt(im);
        qn_sequence *s = qn_test_sequence(e);
        qn_sequence_set_images(s, im);
        for (int64_t i = 0; i < (int64_t)prompt.n_ids; i += piece) {
            const int64_t n = (int64_t)prompt.n_ids - i < piece ? (int64_t)prompt.n_ids - i : piece;
            last_rows to = {rows.out + i * rows.vocab, rows.vocab};
            const qn_feed feed = {s, prompt.ids + i, n, QN_LOGITS_ALL};
            qn_test_ok(qn_engine_step(e, 1, &feed, copy_all, NULL, &to));
        }
        for (int64_t k = 0; k < want->n_elements; k++)
            worst = fmax(worst, fabs((double)rows.out[k] - (double)((const float *)want->data)[k]));
        qn_sequence_free(s);
    }
    print_message("an image: largest difference of logits %.1e\n", worst);
    assert_true(worst <= tolerance_of("qwen2_vl"));
    qn_free(rows.out);
    qn_images_free(im);
    qn_engine_close(e);
    qn_safetensors_close(st);
}

/* A drafter beside a divided model computes on the CPU, and the answer stays the same. */
static void draft(void **state)
{
    if (!is_card()) return;
    const char *dir = model_dir("llama");
    int32_t ids[PROMPT], plain[ANSWER], drafted[ANSWER];
    qn_model *m = open_model(dir, 2);
    fill(ids, PROMPT, 12);
    qn_test_ok(answer(m, ids, PROMPT, ANSWER, plain, NULL));
    qn_model_close(&m);
    qn_test_ok(try_model(
        dir, (qn_model_options){.device = card(), .gpu_layers = 2, .draft_model = dir, .parallel_slots = 1},
        &m));
    const qn_engine *drafter = ((native_model *)m->object)->draft;
    assert_string_equal(qn_engine_get_info(drafter)->device, "cpu");
    const qn_ids row = {ids, PROMPT};
    const qn_generate_options o = {.max_tokens = ANSWER, .ignore_eos = 1, .n_draft = 3};
    qn_generation *g = NULL;
    qn_token t;
    int64_t made = 0;
    qn_test_ok(qn_generation_open(m, &(qn_prompt){.rows = &row, .n_rows = 1}, &o, &g));
    for (qn_test_ok(qn_generation_next(g, &t)); t.end == QN_END_NONE; qn_test_ok(qn_generation_next(g, &t)))
        drafted[made++] = t.id;
    qn_generation_close(g);
    assert_int_equal(made, ANSWER);
    assert_memory_equal(plain, drafted, sizeof plain);
    qn_model_close(&m);
}

/* ---- what is left behind ------------------------------------------------------------------------------ */

static qn_status ignore(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    return QN_OK;
}

static qn_status open_and_step(const char *path)
{
    static const int32_t ids[] = {5, 9, 2, 77, 31, 8};
    qn_engine *e = NULL;
    qn_sequence *s = NULL;
    const qn_engine_options o = {
        .device = card(), .gpu_layers = 2, .n_threads = 1, .max_rows = 16, .context_size = 64};
    qn_status status = qn_test_engine_try(path, &o, &e);
    if (status == QN_OK) status = qn_sequence_new(e, &s);
    const qn_feed feed = {s, ids, 6, QN_LOGITS_LAST};
    if (status == QN_OK) status = qn_engine_step(e, 1, &feed, ignore, NULL, NULL);
    qn_sequence_free(s);
    qn_engine_close(e);
    return status;
}

/* Some of the allocations of quern's own fail, one at a time. */
static void out_of_memory(void **state)
{
    if (!is_card()) return;
    const char *dir = model_dir(*state);
    qn_test_ok(open_and_step(dir));
    const int64_t live = qn_mem_live_blocks();
    int64_t n = 1;
    for (;; n += n < 20 ? 1 : 41) {
        const int64_t made = qn_mem_allocations();
        qn_mem_fail_nth(n);
        const qn_status status = open_and_step(dir);
        qn_mem_fail_nth(0);
        const int reached = qn_mem_allocations() - made >= n;
        if (status != (reached ? QN_E_NOMEM : QN_OK))
            fail_msg("allocation %d: %s, %s", (int)n, qn_status_name(status), qn_last_error());
        assert_int_equal(qn_mem_live_blocks(), live);
        if (!reached) break;
    }
    assert_true(n > 500);
}

/* An argument picks tests by name: '*phi3*'. */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[2 * QN_TEST_KINDS_MAX + 24];
    setenv("QUERN_DEVICE", "", 1); /* "auto" is free to choose */
    static const qn_test_kind_row rows[] = {{"golden_", golden}, {"bits_", bits}};
    int n = qn_test_kind_rows(2, rows, tests);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    static const struct CMUnitTest others[] = {{"prefixes_llama", prefixes, NULL, NULL, "llama"},
                                               {"prefixes_gemma3", prefixes, NULL, NULL, "gemma3_text"},
                                               {"prefixes_qwen3_next", prefixes, NULL, NULL, "qwen3_next"},
                                               {"prefixes_deepseek_v3", prefixes, NULL, NULL, "deepseek_v3"},
                                               {"memory_llama", memory, NULL, NULL, "llama"},
                                               {"memory_qwen3_next", memory, NULL, NULL, "qwen3_next"},
                                               {"limits_llama", limits, NULL, NULL, "llama"},
                                               {"limits_deepseek_v3", limits, NULL, NULL, "deepseek_v3"},
                                               {"choice_llama", choice, NULL, NULL, "llama"},
                                               {"choice_gemma3", choice, NULL, NULL, "gemma3_text"},
                                               {"refusals_llama", refusals, NULL, NULL, "llama"},
                                               {"shared_keys", shared_keys, NULL, NULL, "gemma4_text"},
                                               {"adapters_llama", adapters, NULL, NULL, "llama_all"},
                                               {"adapters_gemma3", adapters, NULL, NULL, "gemma3_text_qv"},
                                               {"images", images, NULL, NULL, NULL},
                                               {"draft", draft, NULL, NULL, NULL},
                                               {"out_of_memory", out_of_memory, NULL, NULL, "qwen3_next"}};
    memcpy(tests + n, others, sizeof others);
    n += (int)(sizeof others / sizeof others[0]);
    return qn_test_run_others("split", tests, (size_t)n, NULL, NULL);
}
