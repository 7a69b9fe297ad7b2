/* The hash map: growth, keys of all lengths, keys made to collide. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"

static void test_growth(void **state)
{
    enum { N = 20000 };
    static char keys[N][16];
    int64_t live = qn_mem_live_blocks(), value = -1, old = -1;
    int found = -1;
    qn_map *m = qn_map_new(0);
    assert_int_equal(qn_map_count(m), 0);
    assert_false(qn_map_get(m, "x", 1, &value));
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof keys[i], "k%d", i);
        assert_int_equal(qn_map_set(m, keys[i], strlen(keys[i]), i, &old, &found), QN_OK);
        assert_false(found);
    }
    assert_int_equal(old, -1); /* untouched while nothing was replaced */
    assert_int_equal(qn_map_count(m), N);
    for (int i = 0; i < N; i++) {
        assert_true(qn_map_get(m, keys[i], strlen(keys[i]), &value));
        assert_int_equal(value, i);
    }
    assert_false(qn_map_get(m, "k20000", 6, &value));
    assert_false(qn_map_get(m, "k1", 1, &value));
    assert_int_equal(qn_map_set(m, "k7", 2, INT64_MIN, &old, &found), QN_OK);
    assert_true(found);
    assert_int_equal(old, 7);
    assert_int_equal(qn_map_set(m, "k7", 2, 8, NULL, NULL), QN_OK);
    assert_true(qn_map_get(m, "k7", 2, &value));
    assert_int_equal(value, 8);
    assert_int_equal(qn_map_count(m), N);
    qn_map_free(m);
    qn_map_free(NULL);
    assert_int_equal(qn_mem_live_blocks(), live);
}

/* Every prefix of a text of zeros is a key of its own, the empty one too, wherever its bytes are. */
static void test_lengths(void **state)
{
    static const char zeros[100];
    int64_t value;
    qn_map *m = qn_map_new(3);
    assert_int_equal(qn_map_set(m, NULL, 0, 1000, NULL, NULL), QN_OK);
    for (int n = 0; n <= 100; n++) assert_int_equal(qn_map_set(m, zeros, (size_t)n, n, NULL, NULL), QN_OK);
    assert_int_equal(qn_map_count(m), 101);
    for (int n = 0; n <= 100; n++) {
        assert_true(qn_map_get(m, zeros, (size_t)n, &value));
        assert_int_equal(value, n);
    }
    assert_true(qn_map_get(m, NULL, 0, &value));
    assert_int_equal(value, 0);
    qn_map_free(m);
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Keys whose first half is a constant of the hash, the second anything: were the constant not hidden behind
 * the seed, they would all have one hash. */
static void test_keys_made_to_collide(void **state)
{
    static const uint64_t constants[] = {0xa0761d6478bd642fu, 0xe7037ed1a0b428dbu, 0x9e3779b97f4a7c15u,
                                         0x589965cc75374cc3u, 0x8ebc6af09c88c6e3u, 0,
                                         UINT64_MAX};
    enum { N = 2000 };
    static uint64_t hashes[N];
    for (size_t c = 0; c < sizeof constants / sizeof *constants; c++)
        for (size_t length = 9; length <= 32; length++)
            for (uint64_t seed = 12345; seed < 12345 + 2; seed++) {
                for (uint64_t i = 0; i < N; i++) {
                    uint64_t key[4] = {constants[c], i, constants[c], i};
                    if (length == 9) key[1] = i & 0xff;
                    hashes[i] = qn_hash_bytes(key, length, seed);
                }
                qsort(hashes, N, sizeof *hashes, compare);
                int different = 1, want = length == 9 ? 256 : N;
                for (int i = 1; i < N; i++) different += hashes[i] != hashes[i - 1];
                if (different != want)
                    fail_msg("constant %zu, length %zu: %d hashes of %d keys", c, length, different, want);
            }
}

/* Halves that trade places, which would make the same product if both were hidden by the same value. */
static void test_halves_trade_places(void **state)
{
    static const uint64_t c[] = {0xa0761d6478bd642fu, 0xe7037ed1a0b428dbu};
    for (int i = 0; i < 2; i++)
        for (uint64_t seed = 1; seed < 100; seed++) {
            uint64_t d = c[i] ^ 0x9e3779b97f4a7c15u, key[2] = {seed * 77, 5},
                     traded[2] = {5 ^ d, seed * 77 ^ d};
            size_t length = i == 0 ? 16 : 15;
            if (length == 15) key[1] = traded[1] = 0;
            assert_true(qn_hash_bytes(key, length, seed) != qn_hash_bytes(traded, length, seed));
        }
}

/* Seed 0 makes fingerprints that are stored in files: the values stay. */
static void test_fingerprints(void **state)
{
    char text[40];
    uint64_t sum = 0;
    for (int i = 0; i < 40; i++) text[i] = (char)(i * 37);
    for (size_t n = 0; n <= sizeof text; n++) sum = sum * 3 + qn_hash_bytes(text, n, 0);
    assert_true(qn_hash_bytes(text, 20, 0) != qn_hash_bytes(text, 20, 1));
    if (sum != 0x90c72c65c75e300u) fail_msg("%llx", (unsigned long long)sum);
}

static void test_allocation_failures(void **state)
{
    static char keys[200];
    int64_t live = qn_mem_live_blocks(), value;
    for (int n = 1, done = 0; !done; n++) {
        int set = 0;
        assert_true(n < 2000);
        qn_mem_fail_nth(n);
        qn_map *m = qn_map_new(0);
        while (m && set < 200 && qn_map_set(m, keys, (size_t)set, set, NULL, NULL) == QN_OK) set++;
        qn_mem_fail_nth(0);
        done = set == 200;
        /* A map that could not grow still holds what it held. */
        if (m) assert_int_equal(qn_map_count(m), set);
        for (int i = 0; i < set; i++) {
            assert_true(qn_map_get(m, keys, (size_t)i, &value));
            assert_int_equal(value, i);
        }
        qn_map_free(m);
        assert_int_equal(qn_mem_live_blocks(), live);
    }
    assert_null(qn_map_new(SIZE_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_growth),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_keys_made_to_collide),
        cmocka_unit_test(test_halves_trade_places),
        cmocka_unit_test(test_fingerprints),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
