/* Data sets: files and their lines, the order of epochs, packing, positions, bad lines, what is shown. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"
#include "train/data/dataset.h"
#include "train/data/permutation.h"

static qn_chat_text *open_chat(void)
{
    qn_source *source = NULL;
    qn_chat_text *c = NULL;
    assert_int_equal(
        qn_source_open(qn_test_need_fixture("models/llama"), &(qn_source_options){.text_only = 1}, &source),
        QN_OK);
    assert_int_equal(qn_chat_text_open(source, NULL, &c), QN_OK);
    qn_source_close(source);
    return c;
}

/* A folder with one file, a tokenizer, and the data set of both. */
typedef struct {
    const char *folder, *file;
    qn_chat_text *text;
    qn_dataset *set;
} fixture;

static fixture begin(const char *text, const qn_dataset_options *options)
{
    fixture f = {.folder = qn_test_scratch(), .text = open_chat()};
    f.file = qn_test_write_text(f.folder, "train.jsonl", text);
    if (qn_dataset_open(f.file, f.text, options, &f.set) != QN_OK) fail_msg("%s", qn_last_error());
    return f;
}

static void end(fixture *f)
{
    qn_dataset_close(f->set);
    qn_chat_text_close(f->text);
    qn_test_remove(f->folder);
}

/* n lines of texts of different lengths, line i with 1 + i * step % 37 words. */
static char *make_lines(int n, int step)
{
    qn_buf b = {0};
    for (int i = 0; i < n; i++) {
        qn_buf_printf(&b, "{\"text\":\"%d", i);
        for (int k = 0; k < 1 + i * step % 37; k++) qn_buf_puts(&b, " word");
        qn_buf_puts(&b, "\"}\n");
    }
    char *text = qn_buf_take(&b, NULL);
    assert_non_null(text);
    return text;
}

static qn_train_batch next(qn_dataset *d)
{
    qn_train_batch b;
    if (qn_dataset_next(d, &b) != QN_OK) fail_msg("%s", qn_last_error());
    return b;
}

/* A hash of a batch's contents. */
static uint64_t digest(const qn_train_batch *b)
{
    uint64_t h = 1469598103934665603u;
    for (int64_t i = 0; i < b->n_rows; i++) h = (h ^ (uint32_t)b->ids[i]) * 1099511628211u;
    for (int64_t i = 0; i <= b->n_sequences; i++) h = (h ^ (uint32_t)b->row_begin[i]) * 1099511628211u;
    for (int64_t i = 0; i < b->n_targets; i++) {
        h = (h ^ (uint32_t)b->rows[i]) * 1099511628211u;
        h = (h ^ (uint32_t)b->targets[i]) * 1099511628211u;
    }
    return h;
}

static void test_permutation(void **state)
{
    uint8_t seen[300];
    for (int64_t n = 1; n <= 300; n++)
        for (uint64_t key = 0; key < 3; key++) {
            memset(seen, 0, sizeof seen);
            for (int64_t i = 0; i < n; i++) {
                int64_t at = qn_permutation_at(n, key, i);
                assert_true(at >= 0 && at < n && !seen[at]);
                seen[at] = 1;
            }
        }
    /* Every line comes first about as often. */
    int first[10] = {0};
    for (uint64_t key = 0; key < 10000; key++) first[qn_permutation_at(10, key, 0)]++;
    for (int i = 0; i < 10; i++) assert_true(first[i] > 800 && first[i] < 1200);
    const int64_t many = (int64_t)1 << 40;
    for (int64_t i = 0; i < 1000; i++) {
        int64_t at = qn_permutation_at(many - 3, 7, many - 4 - i);
        assert_true(at >= 0 && at < many - 3);
    }
}

static void test_find(void **state)
{
    const char *folder = qn_test_scratch();
    char *path = NULL;
    assert_int_equal(qn_dataset_find(folder, QN_SPLIT_TRAIN, &path), QN_E_NOT_FOUND);
    assert_int_equal(qn_dataset_find("no/such/folder", QN_SPLIT_TRAIN, &path), QN_E_IO);
    const char *file = qn_test_write_text(folder, "train.json", "{}");
    assert_int_equal(qn_dataset_find(folder, QN_SPLIT_TRAIN, &path), QN_OK);
    assert_string_equal(path, file);
    qn_free(path);
    file = qn_test_write_text(folder, "train.jsonl", "{}");
    assert_int_equal(qn_dataset_find(folder, QN_SPLIT_TRAIN, &path), QN_OK);
    assert_string_equal(path, file);
    qn_free(path);
    assert_int_equal(qn_dataset_find(file, QN_SPLIT_TRAIN, &path), QN_OK);
    assert_string_equal(path, file);
    qn_free(path);
    assert_int_equal(qn_dataset_find(file, QN_SPLIT_VALID, &path), QN_OK);
    assert_null(path);
    assert_int_equal(qn_dataset_find(folder, QN_SPLIT_TEST, &path), QN_OK);
    assert_null(path);
    file = qn_test_write_text(folder, "valid.jsonl", "{}");
    assert_int_equal(qn_dataset_find(folder, QN_SPLIT_VALID, &path), QN_OK);
    assert_string_equal(path, file);
    qn_free(path);
    qn_test_remove(folder);
}

/* Byte order mark, blank lines, both ends of line, none at the end. */
static void test_lines(void **state)
{
    static const char text[] =
        "\xef\xbb\xbf{\"text\":\"a b\"}\r\n\n  \t\r\n{\"text\":\"c d\"}\nbad\n\n\n{\"text\":\"e f\"}";
    fixture f = begin(text, &(qn_dataset_options){.in_order = 1, .batch_tokens = 4096});
    qn_train_batch b = next(f.set);
    const int64_t *lines = qn_dataset_batch_lines(f.set);
    assert_int_equal(b.n_sequences, 3);
    assert_int_equal(lines[0], 1);
    assert_int_equal(lines[1], 4);
    assert_int_equal(lines[2], 8);
    qn_dataset_summary s = qn_dataset_summarize(f.set);
    assert_int_equal(s.n_lines, 4);
    assert_int_equal(s.n_bad, 1);
    assert_int_equal(s.bad[0].line, 5);
    assert_int_equal(s.bad[0].offset, strstr(text, "bad") - text);
    assert_non_null(strstr(s.bad[0].reason, "JSON"));
    assert_int_equal(next(f.set).n_sequences, 0);
    end(&f);
}

/* What a batch must be, and which lines it has. */
static void check_batch(const fixture *f, const qn_train_batch *b, const qn_dataset_options *o, uint8_t *seen)
{
    const qn_tokenizer *t = qn_chat_text_tokenizer(f->text);
    const int64_t *lines = qn_dataset_batch_lines(f->set);
    int64_t target = 0;
    assert_true(b->n_sequences > 0 && b->n_rows <= o->batch_tokens);
    assert_true(!o->max_sequences || b->n_sequences <= o->max_sequences);
    assert_int_equal(b->row_begin[0], 0);
    assert_int_equal(b->row_begin[b->n_sequences], b->n_rows);
    for (int64_t s = 0; s < b->n_sequences; s++) {
        qn_buf text = {0};
        int number = -1;
        assert_false(seen[lines[s] - 1]);
        seen[lines[s] - 1] = 1;
        for (int64_t r = b->row_begin[s]; r < b->row_begin[s + 1];
             r++) { /* each row has the next as its target */
            assert_int_equal(b->rows[target], r);
            if (r + 1 < b->row_begin[s + 1]) assert_int_equal(b->targets[target], b->ids[r + 1]);
            if (r > b->row_begin[s]) assert_int_equal(qn_tokenizer_piece(t, b->ids[r], &text), QN_OK);
            target++;
        }
        assert_int_equal(b->targets[target - 1], qn_tokenizer_eos_id(t));
        assert_int_equal(sscanf(text.data, "%d", &number), 1);
        assert_int_equal(number, lines[s] - 1);
        qn_buf_free(&text);
    }
    assert_int_equal(target, b->n_targets);
}

static void test_epochs(void **state)
{
    enum { N = 200 };
    char *text = make_lines(N, 11);
    const qn_dataset_options options[] = {
        {.batch_tokens = 600, .max_length = 256, .seed = 3},
        {.batch_tokens = 1000, .max_length = 256, .max_sequences = 4, .seed = 3},
        {.batch_tokens = 255, .max_length = 256, .in_order = 1},
    };
    for (int i = 0; i < 3; i++) {
        fixture f = begin(text, &options[i]);
        uint64_t order[2] = {0};
        int64_t n_rows = 0, n_batches = 0;
        for (int epoch = 0; epoch < 2; epoch++) {
            uint8_t seen[N] = {0};
            for (;;) {
                qn_train_batch b = next(f.set);
                if (!b.n_sequences) break;
                check_batch(&f, &b, &options[i], seen);
                order[epoch] = order[epoch] * 31 + digest(&b);
                n_rows += b.n_rows;
                n_batches++;
            }
            for (int k = 0; k < N; k++) assert_true(seen[k]);
        }
        assert_true((order[0] == order[1]) == options[i].in_order);
        if (i == 0)
            assert_true(n_rows * 100 > n_batches * options[i].batch_tokens * 85); /* batches are full */
        qn_dataset_summary s = qn_dataset_summarize(f.set);
        assert_int_equal(s.n_read, N);
        assert_int_equal(s.n_tokens, n_rows / 2 + N);
        assert_int_equal(s.n_counted, n_rows / 2);
        end(&f);
    }
    qn_free(text);
}

/* What is counted by lengths is what comes. */
static void test_counts(void **state)
{
    static const qn_dataset_options ways[] = {{.max_length = 30, .seed = 3},
                                              {.max_length = 30, .batch_tokens = 100, .max_sequences = 3},
                                              {.max_length = 64, .in_order = 1},
                                              {.max_length = 8, .batch_tokens = 7, .seed = 9}};
    char *lines = make_lines(67, 11);
    qn_buf text = {0};
    qn_buf_printf(&text, "{\"text\":4}\n%s{}\n\n", lines);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        fixture f = begin(text.data, &ways[w]);
        assert_int_equal(qn_dataset_check(f.set), QN_OK);
        const qn_dataset_summary summary = qn_dataset_summarize(f.set);
        int64_t longest = 0;
        for (int64_t epoch = 0; epoch < 4; epoch++) {
            qn_train_batch b;
            int64_t n = 0;
            for (;; n++) {
                assert_int_equal(qn_dataset_next(f.set, &b), QN_OK);
                if (!b.n_sequences) break;
                for (int64_t s = 0; s < b.n_sequences; s++)
                    if (b.row_begin[s + 1] - b.row_begin[s] + 1 > longest)
                        longest = b.row_begin[s + 1] - b.row_begin[s] + 1;
                assert_int_equal(qn_dataset_at_end(f.set), n + 1 == qn_dataset_count_batches(f.set, epoch));
            }
            assert_int_equal(n, qn_dataset_count_batches(f.set, epoch));
        }
        assert_int_equal(summary.n_longest, longest);
        const uint64_t hash = qn_dataset_hash(f.set);
        end(&f);
        text.data[text.length / 2] ^= 1; /* every byte is in the hash */
        f = begin(text.data, &ways[w]);
        assert_true(qn_dataset_hash(f.set) != hash);
        end(&f);
        text.data[text.length / 2] ^= 1;
    }
    qn_buf_free(&text);
    qn_free(lines);
}

/* From any position the same batches follow, in another process too. */
static void test_positions(void **state)
{
    enum { BATCHES = 60 };
    char *text = make_lines(40, 7);
    const qn_dataset_options o = {.batch_tokens = 90, .max_length = 64, .seed = 9};
    fixture f = begin(text, &o);
    qn_dataset_position at[BATCHES];
    uint64_t want[BATCHES];
    for (int i = 0; i < BATCHES; i++) {
        qn_dataset_tell(f.set, &at[i]);
        qn_train_batch b = next(f.set);
        want[i] = digest(&b);
    }
    assert_true(at[BATCHES - 1].epoch > 0);
    for (int i = 0; i < BATCHES; i += 7) {
        qn_dataset *again = NULL;
        assert_int_equal(qn_dataset_open(f.file, f.text, &o, &again), QN_OK);
        assert_int_equal(qn_dataset_seek(again, &at[i]), QN_OK);
        for (int k = i; k < BATCHES; k++) {
            qn_dataset_position here;
            qn_dataset_tell(again, &here);
            assert_memory_equal(&here, &at[k], sizeof here);
            qn_train_batch b = next(again);
            assert_int_equal(digest(&b), want[k]);
        }
        qn_dataset_close(again);
    }
    qn_dataset_position bad = at[3];
    bad.next = 41;
    assert_int_equal(qn_dataset_seek(f.set, &bad), QN_E_ARG);
    bad = at[3];
    bad.n_held = QN_DATASET_WINDOW + 1;
    assert_int_equal(qn_dataset_seek(f.set, &bad), QN_E_ARG);
    bad = at[3];
    bad.held[0] = -1;
    bad.n_held = 1;
    assert_int_equal(qn_dataset_seek(f.set, &bad), QN_E_ARG);
    bad = at[3];
    bad.epoch = -1;
    assert_int_equal(qn_dataset_seek(f.set, &bad), QN_E_ARG);
    bad.epoch = INT64_MAX; /* none could follow */
    assert_int_equal(qn_dataset_seek(f.set, &bad), QN_E_ARG);
    end(&f);
    qn_free(text);
}

static void test_bad_lines(void **state)
{
    qn_buf b = {0};
    for (int i = 0; i < 30; i++)
        qn_buf_printf(&b, "{\"txt\":%d}\n{\"text\":\"line %d\",\"id\":%d}\n", i, i, i);
    fixture f = begin(b.data, NULL);
    assert_int_equal(qn_dataset_check(f.set), QN_OK);
    qn_dataset_summary s = qn_dataset_summarize(f.set);
    assert_int_equal(s.n_lines, 60);
    assert_int_equal(s.n_read, 60);
    assert_int_equal(s.n_bad, 30);
    assert_int_equal(s.n_bad_kept, QN_DATASET_BAD_KEPT);
    for (int64_t i = 0; i < s.n_bad_kept; i++) {
        assert_int_equal(s.bad[i].line, 2 * i + 1);
        assert_non_null(strstr(s.bad[i].reason, "none of the keys"));
    }
    assert_int_equal(s.n_other_keys, 1);
    assert_string_equal(s.other_keys[0].name, "id");
    assert_int_equal(s.other_keys[0].line, 2);
    int64_t n = 0;
    for (qn_train_batch batch = next(f.set); batch.n_sequences; batch = next(f.set)) n += batch.n_sequences;
    assert_int_equal(n, 30);
    assert_int_equal(qn_dataset_check(f.set), QN_OK); /* nothing is counted twice */
    assert_int_equal(qn_dataset_summarize(f.set).n_bad, 30);
    /* Strict: the first one is an error, by name, again and again. */
    qn_dataset *strict = NULL;
    qn_train_batch batch;
    char want[600];
    snprintf(want, sizeof want, "%s:1: it has none of the keys", f.file);
    assert_int_equal(
        qn_dataset_open(f.file, f.text, &(qn_dataset_options){.strict = 1, .in_order = 1}, &strict), QN_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(qn_dataset_next(strict, &batch), QN_E_ARG);
        assert_memory_equal(qn_last_error(), want, strlen(want));
        assert_int_equal(qn_dataset_check(strict), QN_E_ARG);
        assert_memory_equal(qn_last_error(), want, strlen(want));
    }
    qn_dataset_close(strict);
    end(&f);
    qn_buf_free(&b);
    /* Nothing to train on is an error, not an endless loop. */
    f = begin("{\"a\":1}\n{\"b\":2}\n", NULL);
    assert_int_equal(qn_dataset_next(f.set, &batch), QN_E_ARG);
    assert_non_null(strstr(qn_last_error(), "no line is usable for training; line"));
    assert_int_equal(qn_dataset_check(f.set), QN_E_ARG);
    end(&f);
}

static void test_refused(void **state)
{
    const char *folder = qn_test_scratch();
    const char *empty = qn_test_write_text(folder, "empty", "\n \n");
    const char *file = qn_test_write_text(folder, "file", "{\"text\":\"a b c\"}\n");
    qn_chat_text *text = open_chat();
    qn_dataset *d = NULL;
    assert_int_equal(qn_dataset_open(empty, text, NULL, &d), QN_E_FORMAT);
    assert_int_equal(qn_dataset_open(folder, text, NULL, &d), QN_E_ARG);
    assert_int_equal(qn_dataset_open("no/such/file", text, NULL, &d), QN_E_IO);
    const qn_dataset_options bad[] = {{.max_length = 1},     {.max_length = 100, .batch_tokens = 98},
                                      {.max_sequences = -1}, {.max_length = -5},
                                      {.mask = (qn_mask)7},  {.batch_tokens = (int64_t)1 << 40}};
    for (int i = 0; i < 6; i++) assert_int_equal(qn_dataset_open(file, text, &bad[i], &d), QN_E_ARG);
    assert_null(d);
    /* A file that changes under way is no longer the one that was counted. */
    assert_int_equal(qn_dataset_open(file, text, NULL, &d), QN_OK);
    FILE *more = fopen(file, "a");
    assert_non_null(more);
    fputs("{\"text\":\"d\"}\n", more);
    fclose(more);
    qn_train_batch b;
    assert_int_equal(qn_dataset_next(d, &b), QN_E_IO);
    assert_non_null(strstr(qn_last_error(), "has changed"));
    qn_dataset_close(d);
    qn_chat_text_close(text);
    qn_test_remove(folder);
}

static void test_cut_and_long(void **state)
{
    enum { LONG = 10 << 20 };
    qn_buf b = {0};
    qn_buf_puts(&b, "{\"text\":\"");
    while (b.length < LONG) qn_buf_puts(&b, "many words in a line ");
    qn_buf_puts(&b, "\"}\n{\"text\":\"short\"}\n");
    fixture f = begin(b.data, &(qn_dataset_options){.max_length = 16, .batch_tokens = 64, .in_order = 1});
    qn_train_batch batch = next(f.set);
    assert_int_equal(batch.n_sequences, 2);
    assert_int_equal(batch.row_begin[1], 15);
    qn_dataset_summary s = qn_dataset_summarize(f.set);
    assert_int_equal(s.n_cut, 1);
    assert_int_equal(s.n_bad, 0);
    end(&f);
    qn_buf_free(&b);
}

/* What an epoch holds in memory does not grow with the file. */
static void test_memory_is_flat(void **state)
{
    size_t peak[2];
    for (int i = 0; i < 2; i++) {
        char *text = make_lines(i ? 4000 : 1000, 5);
        fixture f = begin(text, &(qn_dataset_options){.batch_tokens = 256, .max_length = 64});
        qn_free(text);
        size_t before = qn_mem_reset_peak();
        while (next(f.set).n_sequences) continue;
        peak[i] = qn_mem_peak_bytes() - before;
        end(&f);
    }
    assert_true(peak[1] < peak[0] + 65536);
}

static void test_show(void **state)
{
    fixture f = begin("{\"prompt\":\"Who?\",\"completion\":\"Me\\u001b[31m.\"}\n{\"text\":\"one two\"}\n",
                      &(qn_dataset_options){.in_order = 1});
    const qn_tokenizer *t = qn_chat_text_tokenizer(f.text);
    qn_train_batch b = next(f.set);
    qn_buf plain = {0}, coloured = {0};
    assert_int_equal(qn_dataset_show(t, &b, qn_dataset_batch_lines(f.set), 0, &plain), QN_OK);
    assert_int_equal(qn_dataset_show(t, &b, NULL, 1, &coloured), QN_OK);
    assert_non_null(strstr(plain.data, "--- sequence 1 of 2, line 1: "));
    assert_non_null(strstr(plain.data, "--- sequence 2 of 2, line 2: "));
    assert_non_null(strstr(plain.data, "Who?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
                                       "\xe2\x9f\xa6Me\\x1b[31m.<|eot_id|>\xe2\x9f\xa7\n---"));
    assert_null(strchr(plain.data, 0x1b));
    assert_non_null(strstr(coloured.data, "<|end_header_id|>\n\n\x1b[32mMe\\x1b[31m.<|eot_id|>\x1b[0m\n"));
    assert_non_null(strstr(coloured.data, "<|begin_of_text|>\x1b[32mone two<|eot_id|>\x1b[0m\n"));
    qn_buf_free(&plain);
    qn_buf_free(&coloured);
    end(&f);
}

/* A failed call leaves everything as it was: the batch comes all the same when there is memory again. */
static void test_allocation_failures(void **state)
{
    static const char text[] = "{\"text\":\"a b c\"}\n\n{\"text\":\"d e f\"}\n{\"text\":\"g\",\"x\":1}\n{}\n";
    const qn_dataset_options o = {.batch_tokens = 8, .max_length = 8, .seed = 1};
    fixture f = begin(text, &o);
    uint64_t want[2];
    for (int i = 0; i < 2; i++) {
        qn_train_batch b = next(f.set);
        want[i] = digest(&b);
    }
    const int64_t live = qn_mem_live_blocks();
    int done = 0;
    for (int64_t n = 1; n <= 2000 && !done; n++) {
        qn_dataset *d = NULL;
        qn_train_batch b = {0};
        qn_buf shown = {0};
        qn_mem_fail_nth(n);
        qn_status status = qn_dataset_open(f.file, f.text, &o, &d);
        for (int i = 0; i < 2 && status == QN_OK; i++) {
            status = qn_dataset_next(d, &b);
            if (status == QN_E_NOMEM) {
                assert_int_equal(qn_dataset_next(d, &b), QN_OK);
                assert_int_equal(digest(&b), want[i]);
            }
        }
        if (status == QN_OK)
            status =
                qn_dataset_show(qn_chat_text_tokenizer(f.text), &b, qn_dataset_batch_lines(d), 1, &shown);
        qn_mem_fail_nth(0);
        done = status == QN_OK;
        if (!done && status != QN_E_NOMEM) fail_msg("allocation %lld: %s", (long long)n, qn_last_error());
        qn_buf_free(&shown);
        qn_dataset_close(d);
        assert_int_equal(qn_mem_live_blocks(), live);
    }
    assert_true(done);
    end(&f);
}

/* A JSON array is the lines that its elements are, wherever its line ends lie. */
static void test_json_array(void **state)
{
    static const char *const arrays[] = {
        "[{\"text\":\"one, [two]\"},{\"text\":\"three \\\"]\\\\\"},{\"text\":\"four\"}]",
        "\xef\xbb\xbf \n[\n  {\n    \"text\": \"one, [two]\"\n  },\n  {\n    \"text\": \"three \\\"]\\\\\"\n "
        " },\n"
        "  {\"text\": \"four\"}\n]\n"};
    static const int64_t numbers[2][3] = {{1, 1, 1}, {3, 6, 9}};
    fixture lines = begin("{\"text\":\"one, [two]\"}\n{\"text\":\"three \\\"]\\\\\"}\n{\"text\":\"four\"}\n",
                          &(qn_dataset_options){.in_order = 1});
    qn_train_batch want;
    assert_int_equal(qn_dataset_next(lines.set, &want), QN_OK);
    for (int k = 0; k < 2; k++) {
        fixture f = begin(arrays[k], &(qn_dataset_options){.in_order = 1});
        qn_train_batch got;
        assert_int_equal(qn_dataset_next(f.set, &got), QN_OK);
        assert_int_equal(got.n_sequences, 3);
        assert_int_equal(got.n_rows, want.n_rows);
        assert_memory_equal(got.ids, want.ids, (size_t)want.n_rows * sizeof *want.ids);
        assert_memory_equal(qn_dataset_batch_lines(f.set), numbers[k], sizeof numbers[k]);
        end(&f);
    }
    end(&lines);
    fixture f = {.folder = qn_test_scratch(), .text = open_chat()};
    f.file = qn_test_write_text(f.folder, "train.json", "[{\"text\":\"a\"},{\"text\":\"b]");
    assert_int_equal(qn_dataset_open(f.file, f.text, NULL, &f.set), QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "JSON array, which does not end"));
    f.file = qn_test_write_text(f.folder, "train.json", " [ ] ");
    assert_int_equal(qn_dataset_open(f.file, f.text, NULL, &f.set), QN_E_FORMAT);
    end(&f);
    f = begin("[\n{\"text\":\"a b c\"},\n{\"nothing\":1},\n{\"text\": }\n]", NULL);
    assert_int_equal(qn_dataset_check(f.set), QN_OK);
    const qn_dataset_summary s = qn_dataset_summarize(f.set);
    assert_true(s.n_lines == 3 && s.n_bad == 2 && s.bad[0].line == 3 && s.bad[1].line == 4);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_array),
        cmocka_unit_test(test_permutation),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_cut_and_long),
        cmocka_unit_test(test_memory_is_flat),
        cmocka_unit_test(test_show),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
