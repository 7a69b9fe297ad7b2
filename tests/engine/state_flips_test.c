/* Saved state that was cut, flipped, moved about or is another file: sequences and whole trees of full
 * attention, sliding windows and recurrent layers. Every variant is refused, nothing of the model changes,
 * and all goes on with the bits that it had. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "format/files/mmap.h"
#include "tests/support/engine_help.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

enum { N_IDS = 90, N_NEW = 6, VARIANTS = 80 };

static uint64_t n_draws;

static size_t draw(size_t n)
{
    return (size_t)(qn_random_bits(11, n_draws++) % n);
}

static void generate(qn_model *model, int32_t *out)
{
    int32_t ids[N_IDS];
    qn_generation *g = NULL;
    qn_token t;
    for (int i = 0; i < N_IDS; i++) ids[i] = 1 + (i * 37 + i * i) % 199;
    qn_test_ok(qn_generation_open(model, &(qn_prompt){.rows = &(qn_ids){ids, N_IDS}, .n_rows = 1},
                                  &(qn_generate_options){.max_tokens = N_NEW, .ignore_eos = 1}, &g));
    for (int i = 0;; i++) {
        qn_test_ok(qn_generation_next(g, &t));
        if (t.end != QN_END_NONE) break;
        out[i] = t.id;
    }
    qn_generation_close(g);
}

/* Writes a variant of good[0..n) and returns its length; it is never what it was. */
static size_t bend(const char *good, size_t n, char *out)
{
    size_t at = draw(n), length = 1 + draw(draw(2) ? 16 : n / 4), from = draw(n);
    memcpy(out, good, n);
    if (length > n - at) length = n - at;
    switch (draw(6)) {
    case 0: /* cut */
        return at;
    case 1: /* a bit; early ones are of the header */
        at = draw(2) ? at : draw(n < 2000 ? n : 2000);
        out[at] = (char)(out[at] ^ 1 << draw(8));
        break;
    case 2: /* a run of one byte */
        memset(out + at, (int)draw(256), length);
        break;
    case 3: /* a run from elsewhere */
        if (length > n - from) length = n - from;
        memmove(out + at, good + from, length);
        break;
    case 4: /* a run is missing */
        memmove(out + at, good + at + length, n - at - length);
        return n - length;
    default: /* more behind the end */
        memcpy(out + n, good, 1 + at % 64);
        return n + 1 + at % 64;
    }
    if (memcmp(out, good, n) == 0) out[at] = (char)~out[at];
    return n;
}

static void flips(void **state)
{
    const char *folder = qn_test_scratch();
    char path[512], bent_path[512];
    int32_t expected[N_NEW], got[N_NEW], ids[N_IDS];
    qn_model *model = NULL;
    qn_model_info info;
    qn_cache *one = NULL, *out = NULL;
    qn_cache_counters before, now;
    qn_memory memory, memory_now;
    snprintf(path, sizeof path, "%s", qn_test_path(folder, "x.state"));
    snprintf(bent_path, sizeof bent_path, "%s", qn_test_path(folder, "bent.state"));
    qn_test_ok(qn_model_open(qn_test_need_fixture(*state),
                             &(qn_model_options){.n_threads = 1, .context_size = 256, .parallel_slots = 4},
                             &model));
    qn_test_ok(qn_model_get_info(model, &info));
    float *logits = test_malloc((size_t)info.vocab_size * sizeof *logits);
    for (int i = 0; i < N_IDS; i++) ids[i] = 1 + i;
    qn_test_ok(qn_forward_with_cache(model, ids, N_IDS, NULL, logits, info.vocab_size, &one));
    generate(model, expected);
    qn_test_ok(qn_cache_get_counters(model, &before));
    qn_test_ok(qn_model_get_memory(model, &memory));
    for (int is_tree = 0; is_tree < 2; is_tree++) {
        char *good;
        size_t n;
        qn_test_ok(is_tree ? qn_model_save_state(model, path) : qn_cache_save(one, path));
        qn_test_ok(qn_file_read(path, (size_t)1 << 30, &good, &n));
        char *bent = test_malloc(n + 64);
        for (int i = 0; i < VARIANTS; i++) {
            qn_test_write(folder, "bent.state", bent, bend(good, n, bent));
            for (int as_tree = 0; as_tree < 2; as_tree++) {
                qn_status status =
                    as_tree ? qn_model_load_state(model, bent_path) : qn_cache_load(model, bent_path, &out);
                int is_other =
                    is_tree && !as_tree && status == QN_E_UNSUPPORTED; /* refused before it is read */
                if (status != QN_E_FORMAT && !is_other)
                    fail_msg("variant %d of a %s, read as a %s: %s: %s", i, is_tree ? "tree" : "sequence",
                             as_tree ? "tree" : "sequence", qn_status_name(status), qn_last_error());
                assert_null(out);
            }
            qn_test_ok(qn_cache_get_counters(model, &now));
            assert_int_equal(now.n_nodes, before.n_nodes);
            assert_int_equal(now.n_tokens, before.n_tokens);
            qn_test_ok(qn_model_get_memory(model, &memory_now));
            assert_int_equal(memory_now.active_memory_bytes, memory.active_memory_bytes);
        }
        test_free(bent);
        qn_free(good);
        generate(model, got);
        assert_memory_equal(got, expected, sizeof got);
        qn_test_ok(qn_model_clear_cache(model));
        qn_test_ok(qn_model_load_state(model, path)); /* what is whole is taken */
        generate(model, got);
        assert_memory_equal(got, expected, sizeof got);
        qn_test_ok(qn_cache_get_counters(model, &before));
        qn_test_ok(qn_model_get_memory(model, &memory));
    }
    qn_cache_free(one);
    test_free(logits);
    qn_model_close(&model);
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(flips, "models/llama"),
                                       cmocka_unit_test_prestate(flips, "models/gemma3_text"),
                                       cmocka_unit_test_prestate(flips, "models/qwen3_5"),
                                       cmocka_unit_test_prestate(flips, "models/phi3_longrope")};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
