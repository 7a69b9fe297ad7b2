/* LoRA adapters on whole models: against the reference's logits, in both layouts, on bases in GGUF and of
 * every weight type, with a head, with fused matrices; and the promise that a sequence's bits are its own
 * whatever adapters run beside it. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "device/cpu/kernels/kernels.h"
#include "format/files/mmap.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/adapter_dir.h"
#include "tests/support/models/gguf_file.h"
#include "tests/support/models/typed_model.h"
#include "tests/support/scratch.h"

enum { IDS_MAX = 64, GREEDY = 16 };

/* ---- helpers ------------------------------------------------------------------------------------------ */

static void load(qn_engine *e, const char *name, const char *path, float scale)
{
    qn_buf notes = {0};
    qn_test_ok(qn_engine_adapter_load(e, name, path, scale, &notes));
    if (notes.length) fail_msg("notes: %s", notes.data);
}

typedef struct {
    float *out;
    int64_t vocab;
} copies;

static qn_status copy_logits(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    const copies *c = user;
    memcpy(c->out + first * c->vocab, logits, (size_t)(n * c->vocab) * sizeof *logits);
    return QN_OK;
}

static qn_sequence *sequence(qn_engine *e, const char *adapter, int32_t *id)
{
    qn_sequence *s = qn_test_sequence(e);
    qn_test_ok(qn_adapters_hold(qn_engine_adapters(e), adapter, id));
    qn_sequence_set_adapter(s, *id);
    return s;
}

static void free_sequence(qn_engine *e, qn_sequence *s, int32_t id)
{
    qn_sequence_free(s);
    qn_adapters_release(qn_engine_adapters(e), id);
}

/* The logits [n, vocab] of a new sequence, in steps of `piece` tokens. test_free. */
static float *logits_of(qn_engine *e, const char *adapter, const int32_t *ids, int64_t n, int64_t piece)
{
    int32_t id;
    int64_t vocab = qn_engine_config(e)->vocab_size;
    float *out = test_calloc((size_t)(n * vocab), sizeof *out);
    qn_sequence *s = sequence(e, adapter, &id);
    for (int64_t i = 0; i < n; i += piece) {
        copies c = {out + i * vocab, vocab};
        qn_feed feed = {s, ids + i, n - i < piece ? n - i : piece, QN_LOGITS_ALL};
        qn_test_ok(qn_engine_step(e, 1, &feed, copy_logits, NULL, &c));
    }
    free_sequence(e, s, id);
    return out;
}

static double largest_difference(const float *a, const float *b, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static void draw_ids(int32_t *ids, int64_t n, int64_t vocab, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(qn_random_bits(seed, (uint64_t)i) % (uint64_t)vocab);
}

/* ---- the reference's numbers -------------------------------------------------------------------------- */

typedef struct {
    int64_t vocab;
    int32_t id;
} pick;

static qn_status pick_best(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    pick *p = user;
    p->id = (int32_t)qn_test_argmax(logits + (n - 1) * p->vocab, p->vocab);
    return QN_OK;
}

static void check_greedy(qn_engine *e, const char *adapter, const qn_tensor_view *ids, const int32_t *want,
                         const char *where)
{
    int32_t id, got[GREEDY];
    pick p = {.vocab = qn_engine_config(e)->vocab_size};
    qn_sequence *s = sequence(e, adapter, &id);
    qn_feed feed = {s, ids->data, ids->n_elements, QN_LOGITS_LAST};
    for (int i = 0; i < GREEDY; i++) {
        qn_test_ok(qn_engine_step(e, 1, &feed, pick_best, NULL, &p));
        got[i] = p.id;
        feed = (qn_feed){s, got + i, 1, QN_LOGITS_LAST};
        if (got[i] != want[i]) fail_msg("%s: greedy token %d is %d, expected %d", where, i, got[i], want[i]);
    }
    free_sequence(e, s, id);
}

/* The README's tolerances for logits, by kind of base. */
static double tolerance_of(const char *base)
{
    if (strncmp(base, "gemma4", 6) == 0) return 1e-3;
    return strncmp(base, "qwen3_next", 10) == 0 || strncmp(base, "qwen3_5", 7) == 0 ? 2e-3 : 2e-4;
}

/* Logits of the stored prompts within the tolerance, and the greedy tokens. */
static void check_reference(qn_engine *e, const char *adapter, const char *dir, double tolerance)
{
    qn_safetensors *st;
    double worst = 0;
    qn_test_ok(qn_safetensors_open(qn_test_path(dir, "expected.safetensors"), &st));
    for (int i = 1; i <= 3; i += 2) {
        const qn_tensor_view *ids = qn_test_tensor(st, "prompt%d.ids", i);
        const qn_tensor_view *want = qn_test_tensor(st, "prompt%d.logits", i);
        float *got = logits_of(e, adapter, ids->data, ids->n_elements, 7);
        double d = largest_difference(got, want->data, want->n_elements);
        if (d > worst) worst = d;
        test_free(got);
        check_greedy(e, adapter, ids, qn_test_tensor(st, "prompt%d.greedy", i)->data, dir);
    }
    printf("%s: largest difference of logits %.2g\n", strrchr(dir, '/') + 1, worst);
    if (!(worst <= tolerance)) fail_msg("%s: logits differ by %g, allowed are %g", dir, worst, tolerance);
    qn_safetensors_close(st);
}

static void read_base(const char *dir, char base[64])
{
    char *text;
    size_t n;
    json_t *json;
    qn_test_ok(qn_file_read(qn_test_path(dir, "expected.json"), 1 << 24, &text, &n));
    qn_test_ok(qn_json_parse("expected.json", text, n, &json));
    snprintf(base, 64, "%s", json_string_value(json_object_get(json, "base")));
    json_decref(json);
    qn_free(text);
}

static qn_engine *open_exact(const char *path)
{
    return qn_test_engine(
        path, NULL, (qn_engine_options){.precision = QN_PRECISION_EXACT, .max_rows = 64, .n_threads = 2});
}

/* All adapters of the fixtures, each in PEFT's layout as it is and in mlx_lm's: the same bits. */
static void reference_numbers(void **state)
{
    char path[512], base[64], model[80];
    int n = 0;
    snprintf(path, sizeof path, "%s", qn_test_need_fixture("lora"));
    DIR *d = opendir(path);
    assert_non_null(d);
    const char *scratch = qn_test_scratch();
    for (struct dirent *entry; (entry = readdir(d));) {
        char dir[800];
        if (entry->d_name[0] == '.') continue;
        snprintf(dir, sizeof dir, "%s/%s", path, entry->d_name);
        read_base(dir, base);
        snprintf(model, sizeof model, "models/%s", base);
        if (!qn_test_fixture(model)) continue;
        qn_engine *e = open_exact(qn_test_fixture(model));
        load(e, "peft", dir, 1);
        check_reference(e, "peft", dir, tolerance_of(base));
        qn_test_adapter *a = qn_test_adapter_read(dir);
        load(e, "mlx", qn_test_adapter_write(a, scratch, "mlx", QN_ADAPTER_MLX), 1);
        int32_t ids[IDS_MAX];
        int64_t vocab = qn_engine_config(e)->vocab_size;
        draw_ids(ids, IDS_MAX, vocab, 5);
        float *one = logits_of(e, "peft", ids, IDS_MAX, 64), *other = logits_of(e, "mlx", ids, IDS_MAX, 64);
        assert_memory_equal(one, other, (size_t)(IDS_MAX * vocab) * sizeof *one);
        test_free(one);
        test_free(other);
        qn_test_adapter_free(a);
        qn_engine_close(e);
        n++;
    }
    closedir(d);
    qn_test_remove(scratch);
    if (!n) qn_test_leave_out("no adapter's base is there");
}

/* ---- a base in GGUF ----------------------------------------------------------------------------------- */

/* As llama.cpp's converter orders the rows of q and k: halves of a head interleaved. */
static void interleave(float *rows, int64_t n_rows, int64_t n_cols, int64_t head_dim)
{
    float *copy = test_calloc((size_t)(n_rows * n_cols), sizeof *copy);
    memcpy(copy, rows, (size_t)(n_rows * n_cols) * sizeof *copy);
    for (int64_t r = 0; r < n_rows; r++) {
        int64_t head = r / head_dim, i = r % head_dim, pair = i % (head_dim / 2), half = i / (head_dim / 2);
        memcpy(rows + (head * head_dim + 2 * pair + half) * n_cols, copy + r * n_cols,
               (size_t)n_cols * sizeof *copy);
    }
    test_free(copy);
}

static const char *gguf_name(const char *name, char out[64])
{
    static const char *const names[][2] = {
        {"self_attn.q_proj", "attn_q"},          {"self_attn.k_proj", "attn_k"},
        {"self_attn.v_proj", "attn_v"},          {"self_attn.o_proj", "attn_output"},
        {"mlp.gate_proj", "ffn_gate"},           {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"},           {"input_layernorm", "attn_norm"},
        {"post_attention_layernorm", "ffn_norm"}};
    int layer;
    char part[64];
    if (sscanf(name, "model.layers.%d.%63s", &layer, part) == 2) {
        *strstr(part, ".weight") = '\0';
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (strcmp(names[i][0], part) == 0) snprintf(out, 64, "blk.%d.%s.weight", layer, names[i][1]);
    } else {
        snprintf(out, 64, "%s",
                 strstr(name, "embed")     ? "token_embd.weight"
                 : strstr(name, "lm_head") ? "output.weight"
                                           : "output_norm.weight");
    }
    return out;
}

/* The fixture llama as a GGUF of f32. */
static const char *make_gguf(const char *folder, const qn_model_config *c, const qn_safetensors *st)
{
    const struct {
        const char *key;
        int64_t value;
    } numbers[] = {{"llama.block_count", c->num_hidden_layers},
                   {"llama.embedding_length", c->hidden_size},
                   {"llama.feed_forward_length", c->intermediate_size},
                   {"llama.attention.head_count", c->num_attention_heads},
                   {"llama.attention.head_count_kv", c->num_key_value_heads},
                   {"llama.context_length", c->max_position_embeddings},
                   {"llama.vocab_size", c->vocab_size}};
    qn_test_gguf *f = qn_test_gguf_empty();
    qn_test_gguf_set_text(f, "general.architecture", "llama");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        qn_test_gguf_set_u32(f, numbers[i].key, (uint32_t)numbers[i].value);
    qn_test_gguf_set_f32(f, "llama.attention.layer_norm_rms_epsilon", c->rms_norm_eps);
    qn_test_gguf_set_f32(f, "llama.rope.freq_base", (float)c->rope[0].theta);
    for (int64_t i = 0; i < qn_safetensors_count(st); i++) {
        const qn_tensor_view *v = qn_safetensors_get(st, i);
        char name[64];
        float *values = test_calloc((size_t)v->n_elements, sizeof *values);
        qn_test_ok(qn_weights_floats(v, values));
        if (strstr(v->name, "q_proj") || strstr(v->name, "k_proj"))
            interleave(values, v->shape[0], v->shape[1], c->head_dim);
        int64_t rows = v->n_dims == 2 ? v->shape[0] : 0;
        qn_test_gguf_tensor_add(f, gguf_name(v->name, name), QN_DTYPE_F32, rows, v->shape[v->n_dims - 1],
                                values);
    }
    qn_test_gguf_place(f);
    const char *path = qn_test_gguf_write(f, folder, "llama.gguf");
    for (size_t i = 0; i < f->n_tensors; i++) test_free((void *)(uintptr_t)f->tensors[i].data);
    qn_test_gguf_free(f);
    return path;
}

/* DoRA looks at the rows of the weights, too: on queries and keys, whose rows stand in another order there.
 */
static void same_with_magnitudes(qn_engine *plain, qn_engine *gguf, const char *folder)
{
    const qn_model_config *c = qn_engine_config(plain);
    int64_t n = IDS_MAX * c->vocab_size;
    int32_t ids[IDS_MAX];
    qn_test_adapter *a = qn_test_adapter_new(2, 2);
    for (int i = 0; i < 4; i++) {
        char module[80];
        int64_t n_out = (i % 2 ? c->num_key_value_heads : c->num_attention_heads) * c->head_dim;
        snprintf(module, sizeof module, "model.layers.%d.self_attn.%c_proj", i / 2, "qk"[i % 2]);
        qn_test_adapter_add(a, module, 2, c->hidden_size, n_out, (uint64_t)i);
        qn_test_adapter_add_magnitudes(a, module, n_out, 1, (uint64_t)i);
    }
    char path[512];
    snprintf(path, sizeof path, "%s", qn_test_adapter_write(a, folder, "dora", QN_ADAPTER_PEFT));
    qn_test_adapter_free(a);
    load(plain, "dora", path, 1);
    load(gguf, "dora", path, 1);
    draw_ids(ids, IDS_MAX, c->vocab_size, 12);
    float *x = logits_of(plain, "dora", ids, IDS_MAX, 64), *y = logits_of(gguf, "dora", ids, IDS_MAX, 64),
          *bare = logits_of(plain, "none", ids, IDS_MAX, 64);
    assert_true(largest_difference(x, y, n) <= 2e-4);
    assert_true(largest_difference(x, bare, n) > 0.1);
    test_free(x);
    test_free(y);
    test_free(bare);
}

static void base_in_gguf(void **state)
{
    char adapter[512];
    qn_safetensors *st;
    snprintf(adapter, sizeof adapter, "%s",
             qn_test_fixture("lora/llama_all") ? qn_test_fixture("lora/llama_all")
                                               : qn_test_need_fixture("lora/llama_qv"));
    const char *folder = qn_test_scratch();
    qn_engine *plain = open_exact(qn_test_need_fixture("models/llama"));
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture("models/llama/model.safetensors"), &st));
    qn_engine *e = open_exact(make_gguf(folder, qn_engine_config(plain), st));
    assert_int_equal(qn_engine_config(e)->rope_interleaved, 1);
    load(e, "gguf", adapter, 1);
    check_reference(e, "gguf", adapter, 2e-4);
    same_with_magnitudes(plain, e, folder);
    qn_safetensors_close(st);
    qn_engine_close(plain);
    qn_engine_close(e);
    qn_test_remove(folder);
}

/* ---- the same bits ------------------------------------------------------------------------------------ */

enum { N_SEQUENCES = 7, LONGEST = 45 };

typedef struct {
    const char *path, *adapters[3]; /* folders; the second is loaded twice, with two scales */
    int32_t ids[N_SEQUENCES][LONGEST];
    int64_t length[N_SEQUENCES], vocab;
} company;

static const char *const used[N_SEQUENCES] = {"one", "none", "two", "half", "one", "none", "three"};

static qn_engine *open_company(const company *c, const char *set, qn_precision precision, int n_threads,
                               int64_t max_rows, int with_adapters)
{
    qn_engine *e = qn_test_engine(c->path, set,
                                  (qn_engine_options){.precision = precision,
                                                      .n_threads = n_threads,
                                                      .max_sequences = N_SEQUENCES,
                                                      .max_rows = max_rows,
                                                      .context_size = 64});
    if (!with_adapters) return e;
    load(e, "one", c->adapters[0], 1);
    load(e, "two", c->adapters[1], -1.5f);
    load(e, "half", c->adapters[1], 0.5f);
    load(e, "three", c->adapters[2], 1);
    return e;
}

typedef struct {
    float *out[N_SEQUENCES];
    int64_t vocab, at;
} gathered;

static qn_status gather(void *user, int64_t feed, int64_t first, int64_t n, float *logits)
{
    const gathered *g = user;
    memcpy(g->out[feed] + (g->at + first) * g->vocab, logits, (size_t)(n * g->vocab) * sizeof *logits);
    return QN_OK;
}

/* All sequences in steps of `piece` tokens each. */
static void run_together(qn_engine *e, const company *c, int64_t piece, float *const *expected,
                         const char *how)
{
    qn_sequence *s[N_SEQUENCES];
    int32_t id[N_SEQUENCES];
    float *got[N_SEQUENCES];
    for (int i = 0; i < N_SEQUENCES; i++) {
        s[i] = sequence(e, used[i], &id[i]);
        got[i] = test_calloc((size_t)(LONGEST * c->vocab), sizeof **got);
    }
    for (int64_t t = 0; t < LONGEST; t += piece) {
        gathered g = {.vocab = c->vocab, .at = t};
        qn_feed feeds[N_SEQUENCES];
        int n = 0;
        for (int i = 0; i < N_SEQUENCES; i++) {
            int64_t left = c->length[i] - t;
            if (left <= 0) continue;
            g.out[n] = got[i];
            feeds[n++] = (qn_feed){s[i], c->ids[i] + t, left < piece ? left : piece, QN_LOGITS_ALL};
        }
        qn_test_ok(qn_engine_step(e, n, feeds, gather, NULL, &g));
    }
    for (int i = 0; i < N_SEQUENCES; i++) {
        if (memcmp(got[i], expected[i], (size_t)(c->length[i] * c->vocab) * sizeof(float)) != 0)
            fail_msg("%s: bits of sequence %d (%s) differ", how, i, used[i]);
        free_sequence(e, s[i], id[i]);
        test_free(got[i]);
    }
}

static void check_company(company *c, const char *set, qn_precision precision)
{
    float *expected[N_SEQUENCES];
    qn_engine *e = open_company(c, set, precision, 1, 64, 1),
              *bare = open_company(c, set, precision, 1, 64, 0);
    c->vocab = qn_engine_config(e)->vocab_size;
    for (int i = 0; i < N_SEQUENCES; i++) {
        c->length[i] = LONGEST - 6 * i;
        draw_ids(c->ids[i], LONGEST, c->vocab, (uint64_t)i / 2); /* the same text by two adapters */
        expected[i] = logits_of(e, used[i], c->ids[i], c->length[i], 64);
        size_t bytes = (size_t)(c->length[i] * c->vocab) * sizeof(float);
        float *without = logits_of(bare, NULL, c->ids[i], c->length[i], 64);
        int same = memcmp(without, expected[i], bytes) == 0;
        if (same != (strcmp(used[i], "none") == 0))
            fail_msg("sequence %d: an adapter is none, or none is one", i);
        test_free(without);
    }
    qn_engine_close(bare);
    float *pieces = logits_of(e, used[0], c->ids[0], c->length[0], 1);
    assert_memory_equal(pieces, expected[0], (size_t)(c->length[0] * c->vocab) * sizeof(float));
    test_free(pieces);
    run_together(e, c, LONGEST, expected, "all in one step");
    run_together(e, c, 1, expected, "token by token");
    qn_engine_close(e);
    e = open_company(c, set, precision, 3, 29, 1);
    run_together(e, c, LONGEST, expected, "chunks of 29, 3 threads");
    qn_engine_close(e);
    for (int i = 0; i < N_SEQUENCES; i++) test_free(expected[i]);
}

static void find_adapters(company *c, const char *folder, char paths[3][512])
{
    qn_test_adapter *a = qn_test_adapter_new(3, 6);
    for (int i = 1; i < 4; i++) {
        char module[80];
        snprintf(module, sizeof module, "model.layers.%d.mlp.down_proj", i);
        qn_test_adapter_add(a, module, 3, 128, 64, (uint64_t)i);
    }
    qn_test_adapter_add(a, "lm_head", 3, 64, 640, 77);
    snprintf(paths[2], 512, "%s", qn_test_adapter_write(a, folder, "three", QN_ADAPTER_PEFT));
    qn_test_adapter_free(a);
    snprintf(paths[0], 512, "%s", qn_test_need_fixture("lora/llama_qv"));
    snprintf(paths[1], 512, "%s",
             qn_test_fixture("lora/llama_all") ? qn_test_fixture("lora/llama_all") : paths[0]);
    for (int i = 0; i < 3; i++) c->adapters[i] = paths[i];
}

static void same_bits_in_company(void **state)
{
    static company c;
    static const qn_precision all[] = {QN_PRECISION_EXACT, QN_PRECISION_HIGH, QN_PRECISION_FAST};
    char paths[3][512];
    const char *folder = qn_test_scratch();
    find_adapters(&c, folder, paths);
    char path[512];
    snprintf(path, sizeof path, "%s", qn_test_need_fixture("models/llama"));
    c.path = path;
    for (const char *const *set = qn_kernels_names(); *set; set++)
        for (int p = 0; p < 3; p++) check_company(&c, *set, all[p]);
    qn_test_remove(folder);
}

/* ---- every weight type -------------------------------------------------------------------------------- */

enum { TYPED_HIDDEN = 256, TYPED_RANK = 5, TYPED_ROWS = 9 };

/* What the steps of the products and their additions gave, for layer 1's output of attention; rows may come
 * in several runs. */
enum { SEEN_X, SEEN_Y, SEEN_SUM, SEEN_COUNT };
typedef struct {
    float of[SEEN_COUNT][TYPED_ROWS * TYPED_HIDDEN];
    int64_t n[SEEN_COUNT];
} seen;

static void look(void *user, const qn_probe_view *view)
{
    static const char *const labels[] = {"layer.1.attend", "layer.1.o", "layer.1.o.lora"};
    seen *s = user;
    int i = 0;
    while (i < SEEN_COUNT && strcmp(view->step->label, labels[i]) != 0) i++;
    if (i == SEEN_COUNT) return;
    int64_t n = qn_shape_elements(&view->step->out.shape, view->sizes);
    assert_true(s->n[i] + n <= TYPED_ROWS * TYPED_HIDDEN);
    memcpy(s->of[i] + s->n[i], view->out, (size_t)n * sizeof(float));
    s->n[i] += n;
}

/* The addition is in f32 whatever the weights are. */
static void check_addition(const seen *s, const qn_test_adapter *a, const char *type)
{
    for (int i = 0; i < SEEN_COUNT; i++) assert_int_equal(s->n[i], TYPED_ROWS * TYPED_HIDDEN);
    for (int r = 0; r < TYPED_ROWS; r++)
        for (int o = 0; o < TYPED_HIDDEN; o++) {
            double want = s->of[SEEN_Y][r * TYPED_HIDDEN + o];
            for (int k = 0; k < TYPED_RANK; k++) {
                double h = 0;
                for (int i = 0; i < TYPED_HIDDEN; i++)
                    h += (double)a->tensors[0].values[k * TYPED_HIDDEN + i] *
                         (double)s->of[SEEN_X][r * TYPED_HIDDEN + i];
                want += 2 * h * (double)a->tensors[1].values[o * TYPED_RANK + k];
            }
            double got = s->of[SEEN_SUM][r * TYPED_HIDDEN + o];
            if (!(fabs(got - want) <= 1e-4 * (1 + fabs(want))))
                fail_msg("%s: %g, expected %g", type, got, want);
        }
}

static void every_weight_type(void **state)
{
    static seen s;
    const char *folder = qn_test_scratch();
    qn_test_adapter *a = qn_test_adapter_new(TYPED_RANK, 2 * TYPED_RANK);
    qn_test_adapter_add(a, "model.layers.1.self_attn.o_proj", TYPED_RANK, TYPED_HIDDEN, TYPED_HIDDEN, 3);
    char path[512];
    snprintf(path, sizeof path, "%s", qn_test_adapter_write(a, folder, "adapter", QN_ADAPTER_PEFT));
    for (const qn_dtype *type = qn_test_weight_types; *type != QN_DTYPE_COUNT; type++) {
        const char *model = qn_test_typed_model(folder, *type);
        for (int p = 0; p < 2; p++) {
            int32_t ids[TYPED_ROWS];
            qn_engine *e =
                qn_test_engine(model, NULL,
                               (qn_engine_options){.precision = p ? QN_PRECISION_FAST : QN_PRECISION_HIGH,
                                                   .n_threads = 2,
                                                   .adapter_path = path,
                                                   .context_size = 64});
            draw_ids(ids, TYPED_ROWS, QN_TEST_TYPED_VOCAB, 1);
            qn_engine_set_probe(e, look, &s);
            memset(&s, 0, sizeof s);
            test_free(logits_of(e, NULL, ids, TYPED_ROWS, TYPED_ROWS)); /* the one of the opening */
            check_addition(&s, a, qn_dtype_name(*type));
            qn_engine_close(e);
        }
    }
    qn_test_adapter_free(a);
    qn_test_remove(folder);
}

/* ---- fused matrices ----------------------------------------------------------------------------------- */

/* An adapter of a fused matrix is the same as one of its parts, each with the same A and its rows of B. */
static void fused_matrices(void **state)
{
    const char *folder = qn_test_scratch();
    qn_engine *e = open_exact(qn_test_need_fixture("models/phi3"));
    const qn_model_config *c = qn_engine_config(e);
    int64_t q = c->num_attention_heads * c->head_dim, k = c->num_key_value_heads * c->head_dim;
    const struct {
        const char *module, *whole;
        int64_t rows;
    } parts[] = {{"self_attn.q_proj", "self_attn.qkv_proj", q},
                 {"self_attn.k_proj", "self_attn.qkv_proj", k},
                 {"self_attn.v_proj", "self_attn.qkv_proj", k},
                 {"mlp.gate_proj", "mlp.gate_up_proj", c->intermediate_size},
                 {"mlp.up_proj", "mlp.gate_up_proj", c->intermediate_size}};
    qn_test_adapter *whole = qn_test_adapter_new(4, 8), *apart = qn_test_adapter_new(4, 8);
    for (int layer = 0; layer < 2; layer++) {
        int64_t row = 0;
        qn_test_adapter_tensor *fused = NULL;
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            char module[80];
            if (i == 0 || strcmp(parts[i].whole, parts[i - 1].whole) != 0) {
                int64_t total = i == 0 ? q + 2 * k : 2 * c->intermediate_size;
                snprintf(module, sizeof module, "model.layers.%d.%s", layer, parts[i].whole);
                qn_test_adapter_add(whole, module, 4, c->hidden_size, total, 10 * (uint64_t)layer + i);
                fused = &whole->tensors[whole->n - 2];
                row = 0;
            }
            snprintf(module, sizeof module, "model.layers.%d.%s", layer, parts[i].module);
            qn_test_adapter_add(apart, module, 4, c->hidden_size, parts[i].rows, 0);
            qn_test_adapter_tensor *t = &apart->tensors[apart->n - 2];
            memcpy(t[0].values, fused[0].values, (size_t)(4 * c->hidden_size) * sizeof(float));
            memcpy(t[1].values, fused[1].values + row * 4, (size_t)(4 * parts[i].rows) * sizeof(float));
            row += parts[i].rows;
        }
    }
    load(e, "whole", qn_test_adapter_write(whole, folder, "whole", QN_ADAPTER_PEFT), 1);
    load(e, "mlx", qn_test_adapter_write(whole, folder, "mlx", QN_ADAPTER_MLX), 1);
    load(e, "apart", qn_test_adapter_write(apart, folder, "apart", QN_ADAPTER_PEFT), 1);
    int32_t ids[IDS_MAX];
    draw_ids(ids, IDS_MAX, c->vocab_size, 8);
    float *x = logits_of(e, "whole", ids, IDS_MAX, 64), *y = logits_of(e, "apart", ids, IDS_MAX, 64),
          *z = logits_of(e, "mlx", ids, IDS_MAX, 64), *w = logits_of(e, "none", ids, IDS_MAX, 64);
    size_t bytes = (size_t)(IDS_MAX * c->vocab_size) * sizeof *x;
    assert_memory_equal(x, y, bytes);
    assert_memory_equal(x, z, bytes);
    assert_true(largest_difference(x, w, IDS_MAX * c->vocab_size) > 0.1);
    test_free(x);
    test_free(y);
    test_free(z);
    test_free(w);
    qn_test_adapter_free(whole);
    qn_test_adapter_free(apart);
    qn_engine_close(e);
    qn_test_remove(folder);
}

/* ---- coming and going --------------------------------------------------------------------------------- */

/* Sequences that are open go on with the same bits while adapters come and go. */
static void loaded_and_unloaded_between_steps(void **state)
{
    int32_t ids[IDS_MAX], id, none;
    const char *path = qn_test_need_fixture("lora/llama_qv");
    qn_engine *e =
        qn_test_engine(qn_test_need_fixture("models/llama"), NULL,
                       (qn_engine_options){.max_sequences = 2, .n_threads = 2, .context_size = 64});
    int64_t vocab = qn_engine_config(e)->vocab_size;
    size_t weights = qn_ledger_held(qn_engine_ledger(e), QN_LEDGER_WEIGHTS);
    draw_ids(ids, IDS_MAX, vocab, 4);
    float *bare = logits_of(e, NULL, ids, IDS_MAX, 64);
    load(e, "one", path, 1);
    assert_true(qn_ledger_held(qn_engine_ledger(e), QN_LEDGER_WEIGHTS) >= weights + 8192);
    float *with = logits_of(e, "one", ids, IDS_MAX, 64);
    float *got = test_calloc((size_t)(2 * IDS_MAX * vocab), sizeof *got);
    qn_sequence *s[2] = {sequence(e, "none", &none), sequence(e, "one", &id)};
    for (int64_t i = 0; i < IDS_MAX; i += 8) {
        char name[32];
        gathered g = {.out = {got, got + IDS_MAX * vocab}, .vocab = vocab, .at = i};
        qn_feed feeds[2] = {{s[0], ids + i, 8, QN_LOGITS_ALL}, {s[1], ids + i, 8, QN_LOGITS_ALL}};
        qn_test_ok(qn_engine_step(e, 2, feeds, gather, NULL, &g));
        snprintf(name, sizeof name, "more-%d", (int)i);
        load(e, name, path, 1 + (float)i);
        if (i % 16) qn_test_ok(qn_engine_adapter_unload(e, name));
        assert_int_equal(qn_engine_adapter_unload(e, "one"), QN_E_ARG);
        assert_non_null(strstr(qn_last_error(), "in use by 1 rows"));
    }
    assert_memory_equal(got, bare, (size_t)(IDS_MAX * vocab) * sizeof *got);
    assert_memory_equal(got + IDS_MAX * vocab, with, (size_t)(IDS_MAX * vocab) * sizeof *got);
    free_sequence(e, s[0], none);
    free_sequence(e, s[1], id);
    for (qn_adapter_about about; qn_adapters_about(qn_engine_adapters(e), 0, &about) == QN_OK;) {
        qn_test_ok(qn_engine_adapter_unload(e, about.name));
        qn_free(about.path);
    }
    assert_int_equal(qn_ledger_held(qn_engine_ledger(e), QN_LEDGER_WEIGHTS), weights);
    test_free(bare);
    bare = logits_of(e, NULL, ids, IDS_MAX, 64);
    assert_memory_equal(got, bare, (size_t)(IDS_MAX * vocab) * sizeof *got);
    test_free(bare);
    test_free(with);
    test_free(got);
    qn_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_numbers),    cmocka_unit_test(base_in_gguf),
        cmocka_unit_test(same_bits_in_company), cmocka_unit_test(every_weight_type),
        cmocka_unit_test(fused_matrices),       cmocka_unit_test(loaded_and_unloaded_between_steps),
    };
    return cmocka_run_group_tests_name("adapters", tests, NULL, NULL);
}
