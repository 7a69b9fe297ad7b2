/* The allocator hook and what stands on it: arena and buffer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/mem.h"

#ifdef QN_EVERY_BLOCK
#include <sanitizer/asan_interface.h>

static int is_hidden(const void *p)
{
    return __asan_address_is_poisoned(p);
}
#endif

static int is_aligned(const void *p, size_t to)
{
    return p && (uintptr_t)p % to == 0;
}

static void test_blocks(void **state)
{
    int64_t live = qn_mem_live_blocks(), made = qn_mem_allocations();
    for (size_t n = 0; n < 300; n += 7) {
        uint8_t *p = qn_alloc(n);
        assert_true(is_aligned(p, 64));
        memset(p, 0xee, n);
        qn_free(p);
    }
    uint8_t *zero = qn_calloc(3, 41);
    for (int i = 0; i < 123; i++) assert_int_equal(zero[i], 0);
    assert_int_equal(qn_mem_live_blocks(), live + 1);
    assert_true(qn_mem_allocations() > made);
    qn_free(zero);
    qn_free(NULL);
    char *s = qn_strndup("ab\0cd", 4);
    assert_memory_equal(s, "ab\0c", 5);
    qn_free(s);
    assert_int_equal(qn_mem_live_blocks(), live);
}

/* What AddressSanitizer sees: a block ends with its last byte, and so do a buffer and a piece of an arena;
 * the header before a block is none of it. */
static void test_ends_are_seen(void **state)
{
#ifdef QN_EVERY_BLOCK
    qn_arena a = {0};
    qn_buf b = {0};
    for (size_t n = 1; n < 100; n++) {
        char *p = qn_alloc(n), *piece = qn_arena_alloc(&a, n);
        for (size_t i = 0; i < n; i++) assert_false(is_hidden(p + i) || is_hidden(piece + i));
        assert_true(is_hidden(p - 1) && is_hidden(p + n));
        assert_true(n % 16 == 0 || is_hidden(piece + n));
        qn_free(p);
        qn_buf_putc(&b, 'x');
        assert_false(is_hidden(b.data) || is_hidden(b.data + n));
        assert_true(n + 1 == b.capacity || is_hidden(b.data + n + 1));
    }
    qn_buf_reserve(&b, 10);
    assert_false(is_hidden(b.data + b.length + 10));
    qn_arena_clear(&a);
    qn_buf_free(&b);
#endif
}

static void test_peak(void **state)
{
    size_t before = qn_mem_reset_peak();
    char *a = qn_alloc(1000), *b = qn_alloc(500);
    qn_free(a);
    assert_int_equal(qn_mem_peak_bytes(), before + 1500);
    assert_int_equal(qn_mem_reset_peak(), before + 500);
    b = qn_realloc(b, 2000); /* both live while it copies */
    assert_int_equal(qn_mem_peak_bytes(), before + 2500);
    qn_free(b);
    assert_int_equal(qn_mem_reset_peak(), before);
}

/* The block of an arena is kept and taken again: none of what the arena hid is hidden in it. */
static void test_kept_blocks_are_shown(void **state)
{
#ifdef QN_EVERY_BLOCK
    qn_mem_keep(1 << 20);
    qn_arena a = {0};
    qn_arena_alloc(&a, 10);
    const char *block = (const char *)a.head;
    qn_arena_clear(&a);
    char *p = qn_alloc(20000);
    assert_true(p == block);
    for (int i = 0; i < 20000; i++) assert_false(is_hidden(p + i));
    assert_true(is_hidden(p + 20000));
    qn_free(p);
    qn_mem_keep(0);
#endif
}

/* What is kept is of the sizes that were freed, within the limit, and a block of another size does not get
 * it. */
static void test_kept_blocks(void **state)
{
#ifndef QN_EVERY_BLOCK
    qn_mem_keep(0);
    qn_mem_keep(64 << 10);
    char *a = qn_alloc(20000), *b = qn_alloc(20000);
    const uintptr_t first = (uintptr_t)a, second = (uintptr_t)b;
    qn_free(a);
    qn_free(b);
    a = qn_alloc(20100); /* of the same list */
    assert_true((uintptr_t)a == second);
    b = qn_alloc(24000); /* of the next */
    assert_true((uintptr_t)b != first);
    char *c = qn_alloc(19500);
    assert_true((uintptr_t)c == first);
    memset(a, 1, 20100);
    memset(b, 2, 24000);
    memset(c, 3, 19500);
    qn_free(a);
    qn_free(b);
    qn_free(c);
    char *large = qn_alloc(60000); /* drives out what was asked for longest ago */
    qn_free(large);
    a = qn_alloc(60000);
    assert_true(a == large);
    qn_free(a);
#endif
    qn_mem_keep(0); /* blocks taken before a limit are freed behind it, and the other way round */
    char *before = qn_alloc(5000);
    qn_mem_keep(1 << 20);
    char *behind = qn_alloc(5000);
    qn_free(before);
    char *again = qn_alloc(5100);
    memset(again, 4, 5100);
    qn_mem_keep(0);
    qn_free(behind);
    qn_free(again);
    qn_mem_keep(8 << 20);
    /* every size around the limits of the lists holds what was asked for */
    for (int log2 = 11; log2 <= 23; log2++)
        for (int quarter = 4; quarter < 8; quarter++)
            for (int more = -130; more <= 130; more += 13) {
                const size_t n = ((size_t)quarter << (log2 - 2)) + (size_t)more;
                for (int turn = 0; turn < 2; turn++) {
                    char *p = qn_alloc(n);
                    assert_true(is_aligned(p, 64));
                    p[0] = p[n - 1] = 5;
                    qn_free(p);
                }
            }
}

/* Maps count as allocations that can fail; a thread knows what its calls left behind. */
static void test_maps_and_thread_bytes(void **state)
{
    int64_t live = qn_mem_live_blocks(), mine = qn_mem_thread_bytes();
    char *p = qn_alloc_mapped(3 << 20);
    assert_true(is_aligned(p, 4096));
    for (int i = 0; i < 3 << 20; i += 4095) assert_int_equal(p[i], 0);
    p[5] = 1;
    assert_int_equal(qn_mem_live_blocks(), live + 1);
    qn_mem_fail_nth(1);
    assert_null(qn_alloc_mapped(4096));
    qn_mem_fail_nth(0);
    assert_string_equal(qn_last_error(), "out of memory (4096 bytes)");
    assert_null(qn_alloc_mapped(SIZE_MAX / 2));
    assert_null(qn_alloc_mapped(0));
    qn_free_mapped(p, 3 << 20);
    qn_free_mapped(NULL, 1);
    assert_int_equal(qn_mem_live_blocks(), live);
    char *a = qn_alloc(100), *b = qn_alloc(30);
    qn_free(a);
    assert_int_equal(qn_mem_thread_bytes() - mine, 30);
    qn_free(b);
    assert_int_equal(qn_mem_thread_bytes(), mine);
}

/* Whole pages alone: what they share with others stays. */
static void test_drop_pages(void **state)
{
    size_t page = qn_page_bytes(), n = 4 * page;
    char *p = qn_alloc_mapped(n);
    assert_non_null(p);
    memset(p, 1, n);
    qn_drop_pages(p + 1, page - 1);
    qn_drop_pages(p, page - 1);
    qn_drop_pages(p + 1, 2 * page - 2);
    for (size_t i = 0; i < n; i++) assert_int_equal(p[i], 1);
    qn_drop_pages(p + page - 1, 2 * page + 2);
    for (size_t i = 0; i < n; i++) assert_int_equal(p[i], i / page == 0 || i / page == 3);
    qn_free_mapped(p, n);
}

static void test_sizes_that_overflow(void **state)
{
    assert_null(qn_alloc(SIZE_MAX));
    assert_string_equal(qn_last_error(), "out of memory (18446744073709551615 bytes)");
    assert_null(qn_alloc(SIZE_MAX - 64));
    assert_null(qn_alloc_array(SIZE_MAX / 2, 3));
    assert_null(qn_calloc((size_t)1 << 33, (size_t)1 << 31));
}

static void test_realloc_keeps(void **state)
{
    static const size_t sizes[] = {1, 63, 64, 65, 5000, 100, 100, 0, 10};
    int64_t live = qn_mem_live_blocks();
    uint8_t *p = qn_realloc(NULL, 0);
    size_t had = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        p = qn_realloc(p, sizes[i]);
        assert_true(is_aligned(p, 64));
        size_t kept = had < sizes[i] ? had : sizes[i];
        for (size_t j = 0; j < kept; j++)
            if (p[j] != (uint8_t)(j * 31)) fail_msg("size %zu: byte %zu", sizes[i], j);
        for (size_t j = 0; j < sizes[i]; j++) p[j] = (uint8_t)(j * 31);
        had = sizes[i];
    }
    qn_mem_fail_nth(1);
    assert_null(qn_realloc(p, 1000));
    qn_mem_fail_nth(0);
    assert_int_equal(p[9], (uint8_t)(9 * 31)); /* the old block lives on */
    qn_free(p);
    assert_int_equal(qn_mem_live_blocks(), live);
}

static void test_fail_nth(void **state)
{
    for (int n = 1; n <= 5; n++) {
        qn_mem_fail_nth(n);
        for (int i = 1; i <= 7; i++) {
            void *p = qn_alloc(1);
            assert_int_equal(p == NULL, i == n); /* once */
            qn_free(p);
        }
    }
    qn_mem_fail_nth(1);
    qn_mem_fail_nth(0);
    void *p = qn_alloc(1);
    assert_non_null(p);
    qn_free(p);
}

static void test_arena(void **state)
{
    int64_t live = qn_mem_live_blocks();
    qn_arena a = {0};
    uint8_t *small[200];
    for (int i = 0; i < 200; i++) {
        small[i] = qn_arena_alloc(&a, (size_t)i * 3);
        assert_true(is_aligned(small[i], 16));
        memset(small[i], i, (size_t)i * 3);
    }
    uint8_t *large = qn_arena_calloc(&a, 1000, 5000); /* larger than any block */
    for (int i = 0; i < 5000000; i += 4999) assert_int_equal(large[i], 0);
    for (int i = 0; i < 200; i++)
        for (int j = 0; j < i * 3; j++) assert_int_equal(small[i][j], i);
    char *s = qn_arena_strndup(&a, "xyz", 2);
    assert_string_equal(s, "xy");
    assert_true(a.total_bytes >= 5000000);
    assert_null(qn_arena_calloc(&a, SIZE_MAX / 2, 3));
    assert_null(qn_arena_alloc(&a, SIZE_MAX));
    assert_null(qn_arena_alloc(&a, SIZE_MAX - 40));
    qn_arena_clear(&a);
    assert_int_equal(a.total_bytes, 0);
    assert_int_equal(qn_mem_live_blocks(), live);
    assert_non_null(qn_arena_alloc(&a, 1)); /* empty and valid again */
    qn_arena_clear(&a);
}

/* Blocks double, yet nearly all of the limit can be used, and never more. */
static void test_arena_limit(void **state)
{
    static const size_t limits[] = {1000, 16 << 10, 100000, 3 << 20};
    for (int i = 0; i < 4; i++) {
        qn_arena a = {.limit_bytes = limits[i]};
        size_t used = 0;
        while (qn_arena_alloc(&a, 96)) used += 96;
        assert_true(strstr(qn_last_error(), "memory budget") != NULL);
        assert_true(a.total_bytes <= limits[i]);
        assert_true(used > limits[i] - limits[i] / 16 - 400);
        assert_null(qn_arena_alloc(&a, limits[i]));
        qn_arena_clear(&a);
        assert_int_equal(a.limit_bytes, limits[i]);
        assert_non_null(qn_arena_alloc(&a, 96));
        a.limit_bytes = 1; /* lowered below what is held */
        assert_null(qn_arena_alloc(&a, 1 << 20));
        qn_arena_clear(&a);
    }
}

static void test_buf(void **state)
{
    int64_t live = qn_mem_live_blocks();
    qn_buf b = {0};
    size_t n = 99;
    char *text = qn_buf_take(&b, &n);
    assert_string_equal(text, ""); /* nothing appended is still a text */
    assert_int_equal(n, 0);
    qn_free(text);
    for (int i = 0; i < 1000; i++) {
        qn_buf_printf(&b, "%d", i % 10);
        qn_buf_putc(&b, ',');
    }
    qn_buf_append(&b, NULL, 0);
    qn_buf_puts(&b, "end");
    assert_int_equal(b.length, 2003);
    assert_int_equal(strlen(b.data), 2003);
    assert_memory_equal(b.data + 1996, "8,9,end", 8);
    char *had = b.data;
    qn_buf_reset(&b);
    qn_buf_puts(&b, "x");
    assert_ptr_equal(b.data, had);
    text = qn_buf_take(&b, &n);
    assert_string_equal(text, "x");
    assert_null(b.data);
    qn_free(text);
    qn_buf_free(&b);
    assert_int_equal(qn_mem_live_blocks(), live);
}

static void test_buf_errors_stick(void **state)
{
    int64_t live = qn_mem_live_blocks();
    qn_buf b = {.limit_bytes = 5};
    qn_buf_puts(&b, "abcde");
    assert_int_equal(b.status, QN_OK);
    qn_buf_putc(&b, 'f');
    assert_int_equal(b.status, QN_E_FULL);
    assert_string_equal(qn_last_error(), "more than 5 bytes of output");
    qn_buf_append(&b, "", 0);
    qn_buf_printf(&b, "%s", "");
    assert_int_equal(b.status, QN_E_FULL);
    assert_string_equal(b.data, "abcde");
    assert_null(qn_buf_take(&b, NULL));
    assert_int_equal(qn_mem_live_blocks(), live);

    b = (qn_buf){0};
    qn_buf_reserve(&b, SIZE_MAX);
    assert_int_equal(b.status, QN_E_NOMEM);
    qn_buf_reset(&b);
    qn_buf_puts(&b, "kept");
    qn_mem_fail_nth(1);
    for (int i = 0; i < 100; i++) qn_buf_puts(&b, "more");
    qn_mem_fail_nth(0);
    assert_int_equal(b.status, QN_E_NOMEM);
    assert_int_equal(b.length % 4, 0);
    assert_int_equal(strlen(b.data), b.length);
    qn_buf_free(&b);
    assert_int_equal(qn_mem_live_blocks(), live);
}

static void test_buf_json_string(void **state)
{
    static const char text[] = "a\"\\/\n\t\r\x01\x7f\0\xc2\x9b\xc3\xa9\xff\xf0\x9f\x98z";
    qn_buf b = {0};
    qn_buf_json_string(&b, text, sizeof text - 1);
    assert_string_equal(
        b.data, "\"a\\\"\\\\/\\n\\t\\r\\u0001\\u007f\\u0000\\u009b\xc3\xa9\xef\xbf\xbd\xef\xbf\xbdz\"");
    qn_buf_free(&b);
}

/* Arena and buffer when every n-th allocation fails. */
static void test_allocation_failures(void **state)
{
    int64_t live = qn_mem_live_blocks();
    for (int n = 1, done = 0; !done; n++) {
        qn_arena a = {0};
        qn_buf b = {0};
        assert_true(n < 2000);
        qn_mem_fail_nth(n);
        int ok = 1;
        for (int i = 0; i < 40 && ok; i++) ok = qn_arena_alloc(&a, 4000) != NULL;
        for (int i = 0; i < 1000; i++) qn_buf_puts(&b, "0123456789");
        done = ok && b.status == QN_OK;
        qn_mem_fail_nth(0);
        if (!done) assert_true(strstr(qn_last_error(), "out of memory") != NULL);
        qn_arena_clear(&a);
        qn_buf_free(&b);
        assert_int_equal(qn_mem_live_blocks(), live);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_ends_are_seen),
        cmocka_unit_test(test_peak),
        cmocka_unit_test(test_kept_blocks_are_shown),
        cmocka_unit_test(test_kept_blocks),
        cmocka_unit_test(test_maps_and_thread_bytes),
        cmocka_unit_test(test_drop_pages),
        cmocka_unit_test(test_sizes_that_overflow),
        cmocka_unit_test(test_realloc_keeps),
        cmocka_unit_test(test_fail_nth),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_arena_limit),
        cmocka_unit_test(test_buf),
        cmocka_unit_test(test_buf_errors_stick),
        cmocka_unit_test(test_buf_json_string),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
