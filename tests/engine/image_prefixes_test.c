/* Prompts with pictures in the prefix tree, for every kind that has a tower: the same bits as without the tree, a
 * picture is never taken for another one of its size, and the tower rests where a prefix has the whole picture. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "engine/clients/evaluate.h"
#include "engine/clients/state_io.h"
#include "engine/machine/engine_parts.h"
#include "engine/machine/images.h"
#include "engine/machine/prefixes.h"
#include "engine/schedule/scheduler_parts.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/models/model_dir.h"
#include "tests/support/scratch.h"

enum { VOCAB_MAX = 2048, IDS_MAX = 2048, PICTURES = 3, PLACES_MAX = 4, RANDOM_ROWS = 24 };

static const char *const kinds[] = {
    "qwen2_vl",       "qwen2_5_vl", "qwen3_vl",     "qwen3_vl_moe", "qwen3_5_vision", "qwen3_5_moe_vision",
    "gemma3_vision",  "smolvlm",    "lfm2_vl",      "internvl",     "mistral3",       "gemma4_vision",
    "gemma4_unified", "llama4",     "muse_glimmer", "qwen4_exp"};

typedef struct {
    qn_engine *e;
    qn_scheduler *s;
    qn_safetensors *st;
    const int32_t *ids; /* the golden prompt: text, one picture, text */
    int64_t n_ids, first, end, vocab;
    uint8_t *rgb[PICTURES];
    qn_image pictures[PICTURES]; /* the golden one, noise, and the golden one with another pixel */
    int64_t n_tower_steps;
} world;

/* What is asked, and what came of it. */
typedef struct {
    int32_t ids[IDS_MAX];
    int64_t n_ids;
    qn_image images[PLACES_MAX];
    size_t n_images;
    const char *salt;
} row;

typedef struct {
    float logits[VOCAB_MAX];
    int64_t n_reused, n_tower_steps;
} answer;

static void count_tower(void *user, const qn_probe_view *view)
{
    world *w = user;
    w->n_tower_steps += strncmp(view->step->label, "vision.", 7) == 0;
}

/* patch: of config.json; NULL: none. */
static void open_world(world *w, const char *kind, const char *patch, qn_engine_options o)
{
    char path[160], dir[QN_TEST_DIR_MAX];
    *w = (world){0};
    snprintf(path, sizeof path, "models/%s/expected.safetensors", kind);
    qn_test_ok(qn_safetensors_open(qn_test_need_fixture(path), &w->st));
    snprintf(path, sizeof path, "models/%s", kind);
    qn_test_model_copy(qn_test_need_fixture(path), patch, NULL, dir);
    w->e = qn_test_engine(dir, NULL, o);
    qn_test_model_remove(dir);
    qn_test_ok(qn_scheduler_new(w->e, &(qn_scheduler_options){0}, &w->s));
    qn_engine_set_probe(w->e, count_tower, w);
    const qn_tensor_view *rgb = qn_safetensors_find(w->st, "image.rgb"),
                         *ids = qn_test_tensor(w->st, "image.ids", 0);
    const size_t bytes = (size_t)rgb->n_elements;
    w->ids = ids->data;
    w->n_ids = ids->n_elements;
    w->vocab = qn_engine_config(w->e)->vocab_size;
    assert_true(w->vocab <= VOCAB_MAX && 4 * w->n_ids <= IDS_MAX);
    const int32_t token = qn_engine_config(w->e)->vision.image_token_id;
    while (w->ids[w->first] != token) w->first++;
    for (int64_t i = 0; i < w->n_ids; i++)
        if (w->ids[i] == token) w->end = i + 1;
    for (int i = 0; i < PICTURES; i++) {
        w->rgb[i] = qn_alloc(bytes);
        memcpy(w->rgb[i], rgb->data, bytes);
        w->pictures[i] = (qn_image){w->rgb[i], rgb->shape[1], rgb->shape[0], 0};
    }
    for (size_t i = 0; i < bytes; i++) w->rgb[1][i] = (uint8_t)qn_random_bits(5, i);
    uint8_t *pixel = w->rgb[2] + bytes / 3 / 2 * 3;
    for (int k = 0; k < 3; k++) pixel[k] = pixel[k] < 128 ? 255 : 0;
}

static void close_world(world *w)
{
    assert_int_equal(qn_ledger_held(w->e->ledger, QN_LEDGER_KV), 0);
    assert_null(w->e->tree ? qn_tree_check(w->e->tree) : NULL);
    qn_scheduler_free(w->s);
    qn_engine_close(w->e);
    qn_safetensors_close(w->st);
    for (int i = 0; i < PICTURES; i++) qn_free(w->rgb[i]);
}

static int32_t text_id(const world *w, int64_t number)
{
    const int32_t id = (int32_t)(number % 90 + 3);
    return id == qn_engine_config(w->e)->vision.image_token_id ? 2 : id;
}

/* Appends the golden prompt with this picture; other: another question behind it. */
static void put(const world *w, row *r, int picture, int other)
{
    for (int64_t i = 0; i < w->n_ids; i++)
        r->ids[r->n_ids++] = i < w->end || !other ? w->ids[i] : text_id(w, w->ids[i] + other);
    r->images[r->n_images++] = w->pictures[picture];
}

static qn_status take(void *user, int64_t i_row, int64_t position, int64_t n, float *logits)
{
    const world *w = ((void **)user)[0];
    answer *a = ((void **)user)[1];
    memcpy(a->logits, logits + (n - 1) * w->vocab, (size_t)w->vocab * sizeof *logits);
    return QN_OK;
}

static void ask(world *w, const row *r, int no_cache, answer *out)
{
    const int32_t none = -1;
    const qn_ids ids = {r->ids, r->n_ids};
    const qn_evaluation what = {.rows = &ids,
                                .n_rows = 1,
                                .adapters = &none,
                                .last_only = 1,
                                .no_cache = no_cache,
                                .salt = r->salt,
                                .images = r->images,
                                .n_images = r->n_images};
    qn_tree_counters before, after;
    void *user[] = {w, out};
    qn_tree_get_counters(w->e->tree, &before);
    w->n_tower_steps = 0;
    qn_test_ok(qn_evaluate(w->s, w->e, &what, take, user));
    qn_tree_get_counters(w->e->tree, &after);
    out->n_reused = after.tokens_reused - before.tokens_reused;
    out->n_tower_steps = w->n_tower_steps;
    assert_null(qn_tree_check(w->e->tree));
}

/* Asks with and without the tree. Returns how many tokens came from it; *n_towers: of how many pictures the tower ran,
 * for all are of one size. */
static int64_t compare(world *w, const char *kind, const char *what, const row *r, int64_t *n_towers)
{
    static answer plain, cached;
    ask(w, r, 1, &plain);
    ask(w, r, 0, &cached);
    assert_int_equal(plain.n_reused, 0);
    assert_true(plain.n_tower_steps > 0 && plain.n_tower_steps % (int64_t)r->n_images == 0);
    const int64_t each = plain.n_tower_steps / (int64_t)r->n_images;
    assert_int_equal(cached.n_tower_steps % each, 0);
    *n_towers = cached.n_tower_steps / each;
    if (memcmp(plain.logits, cached.logits, (size_t)w->vocab * sizeof(float)) != 0)
        fail_msg("%s, %s: other bits behind %lld tokens of the tree", kind, what, (long long)cached.n_reused);
    return cached.n_reused;
}

static void expect(world *w, const char *kind, const char *what, const row *r, int64_t least, int64_t most,
                   int64_t towers)
{
    int64_t n_towers, n = compare(w, kind, what, r, &n_towers);
    if (n < least || n > most || n_towers != towers)
        fail_msg(
            "%s, %s: %lld tokens of the tree, expected %lld to %lld; the tower ran %lld times, expected %lld",
            kind, what, (long long)n, (long long)least, (long long)most, (long long)n_towers,
            (long long)towers);
}

static void check_kind(const char *kind, qn_precision precision, int64_t max_rows)
{
    static world w;
    static row r;
    open_world(&w, kind, NULL,
               (qn_engine_options){.precision = precision, .n_threads = 2, .max_rows = max_rows});
    const int64_t n = w.n_ids;
    r = (row){0}, put(&w, &r, 0, 0);
    expect(&w, kind, "a picture", &r, 0, 0, 1);
    expect(&w, kind, "the same again", &r, n - 1, n - 1, 0);
    r = (row){0}, put(&w, &r, 0, 1);
    expect(&w, kind, "another question", &r, w.end, n - 1, 0);
    r = (row){0}, put(&w, &r, 1, 0);
    expect(&w, kind, "another picture", &r, 0, w.first, 1);
    r = (row){0}, put(&w, &r, 2, 0);
    expect(&w, kind, "another pixel", &r, 0, w.first, 1);
    r = (row){0}, put(&w, &r, 0, 0), put(&w, &r, 1, 0);
    expect(&w, kind, "another picture behind it", &r, n, n, 1);
    r = (row){0}, put(&w, &r, 1, 0), put(&w, &r, 0, 0);
    expect(&w, kind, "the other way round", &r, n, n, 1);
    r = (row){0}, put(&w, &r, 0, 0), put(&w, &r, 0, 0);
    expect(&w, kind, "the same twice", &r, n, n + w.first, 1);
    put(&w, &r, 2, 3);
    expect(&w, kind, "three", &r, 2 * n, 2 * n, 1);
    r = (row){0}, put(&w, &r, 0, 0), put(&w, &r, 1, 4);
    expect(&w, kind, "another question about two", &r, n + w.end, 2 * n - 1, 0);
    r.salt = "other";
    expect(&w, kind, "another salt", &r, 0, 0, 2);
    close_world(&w);
}

static void test_kinds(void **state)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int p = 0; p < 3; p++) check_kind(kinds[i], (qn_precision)p, 0);
}

/* Chunks end within pictures, but where their tokens see each other. */
static void test_chunks(void **state)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const int sees_behind = strncmp(kinds[i], "gemma", 5) == 0;
        check_kind(kinds[i], QN_PRECISION_HIGH, sees_behind ? 64 : 7);
    }
}

/* Pages go from the ends of rows on: what is left of a picture is of use, unless its tokens see each other. */
static void test_evicted(void **state)
{
    static world w;
    static row r;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int64_t n_towers, n_inside = 0;
        /* Windows that see all lack no page. */
        open_world(&w, kinds[i], "{\"text_config\": {\"sliding_window\": 512}}",
                   (qn_engine_options){.n_threads = 2});
        const int64_t n_text = 3 * QN_PAGE_TOKENS - 2 - w.first, first = w.first + n_text,
                      end = w.end + n_text;
        r = (row){0};
        for (; r.n_ids < n_text; r.n_ids++) r.ids[r.n_ids] = text_id(&w, r.n_ids * 7);
        put(&w, &r, 0, 0);
        compare(&w, kinds[i], "nothing evicted", &r, &n_towers);
        for (size_t pages = 1; pages < 12; pages++) {
            for (size_t k = 0; k < pages; k++) qn_tree_evict(w.e->tree, 1);
            const int64_t n = compare(&w, kinds[i], "evicted", &r, &n_towers);
            assert_int_equal(n_towers, n < end);
            n_inside += n > first && n < end;
        }
        const int is_whole = qn_engine_config(w.e)->vision.seen != QN_VISION_SEEN_BEFORE;
        if (is_whole && n_inside) fail_msg("%s: a prefix ends inside of a picture", kinds[i]);
        if (!is_whole && !n_inside && !qn_engine_has_state(w.e))
            fail_msg("%s: no prefix ends inside of a picture", kinds[i]);
        close_world(&w);
    }
}

/* Rows that begin like others, in a cache that holds few of them. */
static void test_random(void **state)
{
    static world w;
    static row r;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int64_t n_reused = 0, n_towers;
        open_world(&w, kinds[i], NULL, (qn_engine_options){.n_threads = 2});
        const qn_ledger_figures f = qn_ledger_get(w.e->ledger);
        for (int k = 0; k < RANDOM_ROWS; k++) {
            r = (row){0};
            const int64_t n = 1 + (int64_t)(qn_random_bits(11, (uint64_t)(k + 100 * (int)i)) % 3);
            for (int64_t j = 0; j < n; j++) {
                const uint64_t bits = qn_random_bits(12, (uint64_t)(k * 8 + j));
                put(&w, &r, (int)(bits % PICTURES), (int)(bits >> 8 & 1));
            }
            n_reused += compare(&w, kinds[i], "at random", &r, &n_towers);
            if (k % 3 == 2) qn_tree_evict(w.e->tree, qn_ledger_held(w.e->ledger, QN_LEDGER_CACHE) / 2);
        }
        if (!n_reused) fail_msg("%s: nothing came from the tree", kinds[i]);
        assert_true(qn_ledger_get(w.e->ledger).held[QN_LEDGER_CACHE] <= f.cache_limit);
        close_world(&w);
    }
}

/* ---- what begins again -------------------------------------------------------------------------------- */

enum { N_DRAWN = 6 };

/* A request that draws, with the pictures of the row. */
static void begin_request(world *w, const row *r, int is_known, qn_client *client, qn_request *out)
{
    const qn_generate_options o = {.ignore_eos = 1};
    qn_images *im = NULL;
    *out = (qn_request){.client = client, .adapter = -1, .max_tokens = N_DRAWN};
    out->room = qn_engine_get_info(w->e)->context_size;
    qn_test_ok(qn_images_new(qn_engine_config(w->e), r->n_images, r->images, r->ids, r->n_ids, 1 << 20, &im));
    if (is_known) qn_test_ok(qn_images_identify(im));
    qn_test_ok(qn_sampler_new(qn_engine_logits_kernels(w->e), &o, (int32_t)w->vocab, NULL, &out->sampler));
    qn_test_ok(qn_request_init(out, r->ids, r->n_ids, 2 * N_DRAWN, 0));
    out->images = im;
    out->n_unseen = (int64_t)r->n_images;
    qn_test_ok(qn_scheduler_submit(w->s, 1, out));
}

static void quit(qn_client *client)
{
}

static void finish_request(world *w, qn_request *r, int32_t *drawn)
{
    qn_images *im = r->images;
    while (!atomic_load(&r->is_done)) qn_test_ok(qn_scheduler_wait(w->s, r->client, 1));
    assert_int_equal(r->end, QN_END_LENGTH);
    memcpy(drawn, qn_request_id_at(r, r->n_prompt), N_DRAWN * sizeof *drawn);
    qn_scheduler_quit(w->s, r->client, 1, r, quit);
    qn_ledger_release(w->e->ledger, QN_LEDGER_OTHER, r->held_bytes);
    qn_sampler_free(r->sampler);
    qn_request_end(r);
    qn_images_free(im);
}

/* A request whose picture came from the tree gives its place away, and the tree forgets: then the tower runs. */
static void test_preempted(void **state)
{
    static world w;
    static row r;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        qn_client client = {0};
        qn_request q;
        int32_t want[N_DRAWN], got[N_DRAWN];
        open_world(&w, kinds[i], NULL, (qn_engine_options){.n_threads = 2});
        r = (row){0}, put(&w, &r, 0, 0);
        begin_request(&w, &r, 0, &client, &q); /* not identified: it stays out of the tree */
        finish_request(&w, &q, want);
        assert_int_equal(q.n_cached, 0);
        begin_request(&w, &r, 1, &client, &q);
        finish_request(&w, &q, got);
        assert_int_equal(q.n_cached, 0);
        assert_memory_equal(got, want, sizeof want);
        w.n_tower_steps = 0;
        client = (qn_client){0};
        begin_request(&w, &r, 1, &client, &q);
        qn_test_ok(qn_scheduler_enter(w.s));
        qn_batch_step(w.s, NULL);
        assert_int_equal(q.n_cached, w.n_ids - 1);
        assert_int_equal(w.n_tower_steps, 0);
        assert_false(atomic_load(&q.is_done));
        qn_batch_preempt(w.s, &q);
        qn_tree_clear(w.e->tree);
        qn_scheduler_leave(w.s);
        finish_request(&w, &q, got);
        assert_true(w.n_tower_steps > 0);
        assert_memory_equal(got, want, sizeof want);
        close_world(&w);
    }
}

/* ---- files -------------------------------------------------------------------------------------------- */

/* A file of a tree has the text before the first picture. */
static void test_saved(void **state)
{
    static world w, other;
    static row r;
    qn_tree_counters now;
    const char *folder = qn_test_scratch(), *path = qn_test_path(folder, "state");
    open_world(&w, "qwen2_vl", NULL, (qn_engine_options){.n_threads = 2});
    r = (row){0}, put(&w, &r, 0, 0);
    static answer a;
    ask(&w, &r, 0, &a);
    qn_test_ok(qn_state_save_tree(w.e, w.s, 1, path));
    close_world(&w);
    open_world(&other, "qwen2_vl", NULL, (qn_engine_options){.n_threads = 2});
    qn_test_ok(qn_state_load_tree(other.e, other.s, 1, path));
    qn_tree_get_counters(other.e->tree, &now);
    assert_int_equal(now.tokens, other.first);
    r = (row){0}, put(&other, &r, 0, 0);
    expect(&other, "qwen2_vl", "loaded", &r, other.first, other.first, 1);
    close_world(&other);
    qn_test_remove(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kinds),     cmocka_unit_test(test_chunks),
                                       cmocka_unit_test(test_evicted),   cmocka_unit_test(test_random),
                                       cmocka_unit_test(test_preempted), cmocka_unit_test(test_saved)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
