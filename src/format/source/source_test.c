#include "format/source/source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "tests/support/fixtures.h"
#include "tests/support/scratch.h"

/* A safetensors file with one-byte tensors of the given names (NULL at the end), whose values count up from
 * `first`. */
static void write_shard(const char *folder, const char *name, uint8_t first, const char *const *tensors)
{
    qn_st_writer *w;
    assert_int_equal(qn_st_writer_new(qn_test_path(folder, name), &w), QN_OK);
    for (int i = 0; tensors[i]; i++)
        assert_int_equal(qn_st_writer_add(w, tensors[i], QN_DTYPE_U8, 1, (const int64_t[]){1}, NULL), QN_OK);
    assert_int_equal(qn_st_writer_begin(w), QN_OK);
    for (int i = 0; tensors[i]; i++, first++) assert_int_equal(qn_st_writer_write(w, i, 0, &first, 1), QN_OK);
    assert_int_equal(qn_st_writer_finish(w), QN_OK);
    qn_st_writer_free(w);
}

/* A GGUF with one float named `tensor` and no metadata. */
static void write_gguf(const char *folder, const char *name, const char *tensor)
{
    qn_buf b = {0};
    const uint64_t counts[2] = {1, 0}, length = strlen(tensor), dims = 1, offset = 0;
    const uint32_t version = 3, n_dims = 1, type = 0;
    qn_buf_puts(&b, "GGUF");
    qn_buf_append(&b, &version, 4);
    qn_buf_append(&b, counts, 16);
    qn_buf_append(&b, &length, 8);
    qn_buf_puts(&b, tensor);
    qn_buf_append(&b, &n_dims, 4);
    qn_buf_append(&b, &dims, 8);
    qn_buf_append(&b, &type, 4);
    qn_buf_append(&b, &offset, 8);
    while (b.length % 32) qn_buf_putc(&b, 0);
    qn_buf_append(&b, &(float){1}, 4);
    qn_test_write(folder, name, b.data, b.length);
    qn_buf_free(&b);
}

static void put_key(qn_buf *b, const char *key, uint32_t type, const void *value, size_t n)
{
    const uint64_t length = strlen(key);
    qn_buf_append(b, &length, 8);
    qn_buf_puts(b, key);
    qn_buf_append(b, &type, 4);
    qn_buf_append(b, value, n);
}

/* One part of a split GGUF, as llama.cpp's gguf-split writes it, with one float named `tensor`. */
static void write_part(const char *folder, const char *name, uint16_t part, uint16_t n_parts,
                       int32_t n_tensors, const char *tensor)
{
    qn_buf b = {0};
    const uint64_t counts[2] = {1, 3}, length = strlen(tensor), dims = 1, offset = 0;
    const uint32_t version = 3, n_dims = 1, type = 0;
    qn_buf_puts(&b, "GGUF");
    qn_buf_append(&b, &version, 4);
    qn_buf_append(&b, counts, 16);
    put_key(&b, "split.no", QN_GGUF_U16, &part, 2);
    put_key(&b, "split.count", QN_GGUF_U16, &n_parts, 2);
    put_key(&b, "split.tensors.count", QN_GGUF_I32, &n_tensors, 4);
    qn_buf_append(&b, &length, 8);
    qn_buf_puts(&b, tensor);
    qn_buf_append(&b, &n_dims, 4);
    qn_buf_append(&b, &dims, 8);
    qn_buf_append(&b, &type, 4);
    qn_buf_append(&b, &offset, 8);
    while (b.length % 32) qn_buf_putc(&b, 0);
    qn_buf_append(&b, &(float){(float)part}, 4);
    qn_test_write(folder, name, b.data, b.length);
    qn_buf_free(&b);
}

static const char *const a_b[] = {"a", "b", NULL}, *const c_d[] = {"c", "d", NULL},
                         *const b_c[] = {"b", "c", NULL};

static qn_source *open_good(const char *path, const qn_source_options *options)
{
    qn_source *s = NULL;
    if (qn_source_open(path, options, &s) != QN_OK) fail_msg("%s", qn_last_error());
    return s;
}

static void expect_failure(const char *path, const qn_source_options *options, qn_status status,
                           const char *const *parts)
{
    qn_source *s = NULL;
    qn_status got = qn_source_open(path, options, &s);
    if (got != status || s) fail_msg("%s: status %s: %s", path, qn_status_name(got), qn_last_error());
    for (; *parts; parts++)
        if (!strstr(qn_last_error(), *parts)) fail_msg("\"%s\" does not say \"%s\"", qn_last_error(), *parts);
}

#define PARTS(...) ((const char *const[]){__VA_ARGS__, NULL})

static int value_of(const qn_source *s, const char *tensor)
{
    const qn_tensor_view *v = qn_source_find(s, tensor);
    return v ? *(const uint8_t *)v->data : -1;
}

static void test_single_file(void **state)
{
    const char *folder = qn_test_scratch();
    write_shard(folder, "model.safetensors", 1, a_b);
    write_shard(folder, "other.safetensors", 50, a_b); /* not named as a model's */
    qn_test_write_text(folder, "config.json", "{\"x\":1}");
    qn_source *s = open_good(folder, NULL);
    const char *text;
    size_t n;
    assert_int_equal(qn_source_get_kind(s), QN_SOURCE_SAFETENSORS);
    assert_string_equal(qn_source_path(s), folder);
    assert_null(qn_source_gguf(s));
    assert_int_equal(qn_source_file_count(s), 1);
    assert_non_null(strstr(qn_source_file_path(s, 0), "/model.safetensors"));
    assert_int_equal(qn_source_count(s), 2);
    assert_int_equal(qn_source_tensor_bytes(s), 2);
    assert_int_equal(value_of(s, "b"), 2);
    assert_non_null(qn_source_side_path(s, QN_SIDE_CONFIG));
    for (int round = 0; round < 2; round++) {
        assert_int_equal(qn_source_side_text(s, QN_SIDE_CONFIG, &text, &n), QN_OK);
        assert_string_equal(text, "{\"x\":1}");
        assert_int_equal(n, 7);
    }
    qn_source_side_drop(s, QN_SIDE_CONFIG);
    assert_int_equal(qn_source_side_text(s, QN_SIDE_CONFIG, &text, NULL), QN_OK);
    assert_null(qn_source_side_path(s, QN_SIDE_TOKENIZER));
    assert_int_equal(qn_source_side_text(s, QN_SIDE_TOKENIZER, &text, &n), QN_E_NOT_FOUND);
    assert_non_null(strstr(qn_last_error(), "there is no tokenizer.json"));
    qn_source_close(s);
    qn_source_close(NULL);
    s = open_good(folder, &(qn_source_options){.file = "other.safetensors"});
    assert_int_equal(value_of(s, "a"), 50);
    qn_source_close(s);
    s = open_good(qn_test_path(folder, "other.safetensors"), NULL);
    assert_int_equal(value_of(s, "a"), 50);
    assert_non_null(qn_source_side_path(s, QN_SIDE_CONFIG));
    qn_source_close(s);
    qn_test_remove(folder);
}

static void test_prefixes(void **state)
{
    static const char *const names[] = {"x", "language_model.y", "p.x", NULL};
    static const char *const prefixes[] = {"", "language_model.", NULL}, *const turned[] = {"p.", "", NULL};
    const char *folder = qn_test_scratch();
    const qn_tensor_view *v = NULL;
    write_shard(folder, "model.safetensors", 1, names);
    qn_source *s = open_good(folder, NULL);
    assert_int_equal(qn_source_tensor(s, "x", prefixes, &v), QN_OK);
    assert_string_equal(v->name, "x");
    assert_int_equal(qn_source_tensor(s, "x", turned, &v), QN_OK);
    assert_string_equal(v->name, "p.x");
    assert_int_equal(qn_source_tensor(s, "y", prefixes, &v), QN_OK);
    assert_string_equal(v->name, "language_model.y");
    assert_int_equal(qn_source_tensor(s, "y", NULL, &v), QN_E_NOT_FOUND);
    assert_non_null(strstr(qn_last_error(), "/model.safetensors: tensor y is missing"));
    assert_int_equal(qn_source_tensor(s, "z", prefixes, &v), QN_E_NOT_FOUND);
    assert_non_null(strstr(qn_last_error(), "tensor z is missing, also with the prefix language_model."));
    qn_source_close(s);
    qn_test_remove(folder);
}

static void test_shards_without_index(void **state)
{
    const char *folder = qn_test_scratch();
    write_shard(folder, "model-00002-of-00002.safetensors", 30, c_d);
    write_shard(folder, "model-00001-of-00002.safetensors", 10, a_b);
    qn_source *s = open_good(folder, NULL);
    assert_int_equal(qn_source_file_count(s), 2);
    assert_int_equal(qn_source_count(s), 4);
    assert_string_equal(qn_source_get(s, 0)->name, "a"); /* files in order of their names */
    assert_int_equal(value_of(s, "d"), 31);
    qn_source_close(s);
    write_shard(folder, "model-00003-of-00002.safetensors", 40, b_c);
    expect_failure(folder, NULL, QN_E_FORMAT,
                   PARTS("tensor b is in two files", "model-00001-of-00002.safetensors",
                         "model-00003-of-00002.safetensors"));
    qn_test_remove(folder);
    folder = qn_test_scratch();
    write_shard(folder, "x.safetensors", 10, a_b);
    write_shard(folder, "y.safetensors", 30, c_d);
    s = open_good(folder, NULL);
    assert_int_equal(qn_source_count(s), 4);
    qn_source_close(s);
    qn_test_remove(folder);
}

static void test_index(void **state)
{
    static const struct {
        const char *index;
        const char *says;
    } bad[] = {
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"q\":\"s2.safetensors\"}}", "tensor q is not in "},
        {"{\"weight_map\":{\"a\":\"s2.safetensors\"}}", "tensor a is not in "},
        {"{\"weight_map\":{\"a\":\"../s1.safetensors\"}}", "tensor a: \"../s1.safetensors\" is not the name"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "is not the name of a file in the same folder"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "is not the name"},
        {"{\"weight_map\":{\"a\":\"\"}}", "is not the name"},
        {"{\"weight_map\":{\"a\":1}}", "expected a string"},
        {"{\"weight_map\":{}}", "missing or empty"},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\"},\"weight_map\":{}}", "appears twice"},
        {"{}", "missing or empty"},
        {"[]", "expected an object"},
        {"", "expected an object"},
        {"{\"metadata\":{\"n\":[1,{\"deep\":[]}]},\"weight_map\":{\"a\":\"s1.safetensors\"", "expected ','"},
        {"{\"metadata\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "nested too deeply"},
    };
    const char *folder = qn_test_scratch(), *name = "model.safetensors.index.json";
    char path[4096];
    snprintf(path, sizeof path, "%s", qn_test_path(folder, name));
    write_shard(folder, "s1.safetensors", 10, a_b);
    write_shard(folder, "s2.safetensors", 30, c_d);
    write_shard(folder, "unused.safetensors", 90, a_b);
    const char *good =
        "{\"metadata\":{\"total_size\":4,\"more\":[true,null,-1.5e3,\"x\\\"\"]},"
        "\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\",\"c\":\"s2.safetensors\"}}";
    qn_test_write_text(folder, name, good);
    for (int by_file = 0; by_file < 2; by_file++) {
        qn_source *s = open_good(by_file ? path : folder, NULL);
        assert_int_equal(qn_source_file_count(s), 2);
        assert_int_equal(value_of(s, "c"), 30);
        qn_source_close(s);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qn_test_write_text(folder, name, bad[i].index);
        expect_failure(folder, NULL, QN_E_FORMAT, PARTS(bad[i].says, name));
    }
    qn_test_write_text(folder, name, "{\"weight_map\":{\"a\":\"absent.safetensors\"}}");
    expect_failure(folder, NULL, QN_E_IO,
                   PARTS("absent.safetensors: No such file", name, "names: the model is incomplete"));
    qn_test_write_text(folder, name,
                       "{\"weight_map\":{\"a\":\"s1.safetensors\",\"x\":\"unused.safetensors\"}}");
    expect_failure(folder, NULL, QN_E_FORMAT,
                   PARTS("tensor a is in two files", "s1.safetensors", "unused.safetensors"));
    qn_test_remove(folder);
}

static void test_gguf(void **state)
{
    const char *folder = qn_test_scratch();
    write_gguf(folder, "m.gguf", "token_embd.weight");
    qn_test_write_text(folder, "tokenizer.json", "{}");
    qn_source *s = open_good(folder, NULL);
    const qn_tensor_view *v;
    assert_int_equal(qn_source_get_kind(s), QN_SOURCE_GGUF);
    assert_non_null(qn_source_gguf(s));
    assert_non_null(qn_source_side_path(s, QN_SIDE_TOKENIZER));
    assert_null(qn_source_side_path(s, QN_SIDE_CONFIG));
    assert_int_equal(qn_source_tensor(s, "token_embd.weight", NULL, &v), QN_OK);
    assert_int_equal(v->dtype, QN_DTYPE_F32);
    qn_view_drop(v, 0, 4);
    assert_true(*(const float *)v->data == 1);
    qn_source_close(s);
    s = open_good(qn_test_path(folder, "m.gguf"), &(qn_source_options){.text_only = 1});
    assert_non_null(qn_source_gguf(s));
    qn_source_close(s);
    /* Its bytes count, not its name. */
    write_gguf(folder, "blob", "x");
    s = open_good(qn_test_path(folder, "blob"), NULL);
    assert_int_equal(qn_source_get_kind(s), QN_SOURCE_GGUF);
    qn_source_close(s);
    write_gguf(folder, "n.gguf", "other");
    expect_failure(folder, NULL, QN_E_ARG, PARTS(folder, "several GGUF files", "m.gguf", "n.gguf", "--file"));
    s = open_good(folder, &(qn_source_options){.file = "n.gguf"});
    assert_non_null(qn_source_find(s, "other"));
    qn_source_close(s);
    expect_failure(folder, &(qn_source_options){.file = "o.gguf"}, QN_E_IO, PARTS("o.gguf: No such file"));
    expect_failure(folder, &(qn_source_options){.file = "tokenizer.json"}, QN_E_ARG,
                   PARTS("tokenizer.json: not a model"));
    expect_failure(qn_test_path(folder, "m.gguf"), &(qn_source_options){.file = "n.gguf"}, QN_E_ARG,
                   PARTS("--file"));
    qn_test_remove(folder);
}

static void test_both_kinds(void **state)
{
    const char *folder = qn_test_scratch();
    write_gguf(folder, "m.gguf", "x");
    write_shard(folder, "model.safetensors", 1, a_b);
    expect_failure(folder, NULL, QN_E_ARG,
                   PARTS(folder, "both GGUF and safetensors", "m.gguf", "model.safetensors", "--file"));
    qn_source *s = open_good(folder, &(qn_source_options){.file = "m.gguf"});
    assert_int_equal(qn_source_get_kind(s), QN_SOURCE_GGUF);
    qn_source_close(s);
    s = open_good(folder, &(qn_source_options){.file = "model.safetensors"});
    assert_int_equal(qn_source_get_kind(s), QN_SOURCE_SAFETENSORS);
    qn_source_close(s);
    qn_test_remove(folder);
    folder = qn_test_scratch();
    write_gguf(folder, "m.gguf", "x");
    qn_test_write_text(folder, "model.safetensors.index.json", "{}");
    expect_failure(folder, NULL, QN_E_ARG, PARTS("m.gguf; model.safetensors.index.json"));
    qn_test_remove(folder);
}

static void test_no_weights(void **state)
{
    const qn_source_options text_only = {.text_only = 1};
    const char *folder = qn_test_scratch(), *text;
    expect_failure(folder, NULL, QN_E_NOT_FOUND, PARTS(folder, "no model in this folder"));
    expect_failure(folder, &text_only, QN_E_NOT_FOUND, PARTS("no model in this folder", "no tokenizer"));
    expect_failure(qn_test_path(folder, "absent"), NULL, QN_E_IO, PARTS("/absent: No such file"));
    expect_failure("", NULL, QN_E_ARG, PARTS("empty"));
    qn_test_write_text(folder, "tokenizer.json", "{}");
    expect_failure(folder, NULL, QN_E_NOT_FOUND, PARTS("no model in this folder"));
    expect_failure(qn_test_path(folder, "tokenizer.json"), NULL, QN_E_ARG,
                   PARTS("tokenizer.json: not a model"));
    qn_source *s = open_good(folder, &text_only);
    assert_int_equal(qn_source_get_kind(s), QN_SOURCE_TEXT);
    assert_int_equal(qn_source_count(s), 0);
    assert_null(qn_source_find(s, "a"));
    assert_int_equal(qn_source_side_text(s, QN_SIDE_TOKENIZER, &text, NULL), QN_OK);
    qn_source_close(s);
    /* Broken weights do not matter to tokenising. */
    qn_test_write_text(folder, "model.safetensors", "broken");
    expect_failure(folder, NULL, QN_E_FORMAT, PARTS("model.safetensors: "));
    s = open_good(folder, &text_only);
    assert_int_equal(qn_source_count(s), 0);
    qn_source_close(s);
    /* Folders and links to nowhere under such names. */
    assert_int_equal(mkdir(qn_test_path(folder, "x.gguf"), 0700), 0);
    qn_source_close(open_good(folder, &text_only));
    assert_int_equal(symlink("nowhere", qn_test_path(folder, "y.gguf")), 0);
    unlink(qn_test_path(folder, "model.safetensors"));
    expect_failure(folder, NULL, QN_E_IO, PARTS("y.gguf: No such file"));
    qn_test_remove(folder);
}

/* A folder without a model says what it has instead and what to do. */
static void test_other_things(void **state)
{
    static const char *const foreign[] = {"pytorch_model.bin",   "pytorch_model-00001-of-00002.bin",
                                          "consolidated.00.pth", "model.pt",
                                          "tf_model.h5",         "flax_model.msgpack",
                                          "weights.npz",         "model.onnx"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        const char *folder = qn_test_scratch();
        qn_test_write_text(folder, foreign[i], "PK");
        qn_test_write_text(folder, "training_args.bin", "PK");
        qn_test_write_text(folder, "config.json", "{}");
        expect_failure(
            folder, NULL, QN_E_NOT_FOUND,
            PARTS(folder, "no model in this folder", foreign[i], "convert the model to safetensors"));
        assert_null(strstr(qn_last_error(), "training_args.bin"));
        expect_failure(qn_test_path(folder, foreign[i]), NULL, QN_E_ARG,
                       PARTS(foreign[i], "convert the model to safetensors"));
        expect_failure(folder, &(qn_source_options){.file = foreign[i]}, QN_E_ARG,
                       PARTS(foreign[i], "convert"));
        qn_test_remove(folder);
    }
    const char *folder = qn_test_scratch();
    qn_test_write_text(folder, "config.json", "{}");
    char below[4096];
    snprintf(below, sizeof below, "%s", qn_test_path(folder, "original"));
    assert_int_equal(mkdir(below, 0700), 0);
    qn_test_write_text(below, "consolidated.00.pth", "PK");
    expect_failure(folder, NULL, QN_E_NOT_FOUND, PARTS(folder, "no model in this folder"));
    assert_null(strstr(qn_last_error(), "original"));
    write_shard(below, "model.safetensors", 1, a_b);
    expect_failure(folder, NULL, QN_E_NOT_FOUND, PARTS("Folders in it hold models: original"));
    expect_failure(qn_test_path(folder, "config.json"), NULL, QN_E_ARG,
                   PARTS("config.json: not a model: give the folder that contains it"));
    qn_source_close(open_good(below, NULL));
    /* What lies below does not count where there is a model. */
    write_shard(folder, "model.safetensors", 50, a_b);
    qn_test_write_text(folder, "pytorch_model.bin", "PK");
    qn_source *s = open_good(folder, NULL);
    assert_int_equal(value_of(s, "a"), 50);
    qn_source_close(s);
    qn_test_remove(folder);
}

static void test_adapters(void **state)
{
    static const char *const lora[] = {"base_model.model.a.lora_A.weight", NULL};
    const char *folder = qn_test_scratch();
    qn_test_write_text(folder, "adapter_config.json", "{}");
    for (int round = 0; round < 3; round++) {
        if (round == 1) write_shard(folder, "adapter_model.safetensors", 1, lora);
        if (round == 2) write_shard(folder, "adapters.safetensors", 1, c_d); /* as mlx_lm writes */
        expect_failure(folder, NULL, QN_E_ARG, PARTS(folder, "an adapter", "not a model", "--adapter"));
    }
    /* For tokenising it will do, with a tokenizer; and a model beside it is one. */
    qn_test_write_text(folder, "tokenizer.json", "{}");
    qn_source_close(open_good(folder, &(qn_source_options){.text_only = 1}));
    write_shard(folder, "model.safetensors", 50, a_b);
    qn_source *s = open_good(folder, NULL);
    assert_int_equal(qn_source_count(s), 2);
    qn_source_close(s);
    qn_test_remove(folder);
}

static void test_numbered_files(void **state)
{
    static const char *const e_f[] = {"e", "f", NULL};
    const char *folder = qn_test_scratch();
    write_shard(folder, "model-00001-of-00003.safetensors", 10, a_b);
    write_shard(folder, "model-00003-of-00003.safetensors", 30, c_d);
    expect_failure(folder, NULL, QN_E_NOT_FOUND,
                   PARTS(folder, "model-00002-of-00003.safetensors is missing", "incomplete"));
    write_shard(folder, "model-00002-of-00003.safetensors", 50, e_f);
    qn_source *s = open_good(folder, NULL);
    assert_int_equal(qn_source_count(s), 6);
    qn_source_close(s);
    /* The same weights as published in another form beside them are left alone. */
    write_shard(folder, "consolidated.safetensors", 90, a_b);
    s = open_good(folder, NULL);
    assert_int_equal(value_of(s, "a"), 10);
    qn_source_close(s);
    /* Two models under a model's name: refused, and --file picks. */
    write_shard(folder, "model.safetensors", 70, a_b);
    expect_failure(folder, NULL, QN_E_FORMAT,
                   PARTS("tensor a is in two files", "/model-00001-of-00003.safetensors",
                         "/model.safetensors", "--file"));
    s = open_good(folder, &(qn_source_options){.file = "model.safetensors"});
    assert_int_equal(value_of(s, "a"), 70);
    qn_source_close(s);
    qn_test_remove(folder);
    /* Names that only look numbered. */
    folder = qn_test_scratch();
    write_shard(folder, "model-00001-of-99999.safetensors", 10, a_b);
    write_shard(folder, "model-of-2.safetensors", 30, c_d);
    qn_source_close(open_good(folder, NULL));
    qn_test_remove(folder);
    folder = qn_test_scratch();
    write_shard(folder, "x1-00001-of-00002.safetensors", 10, a_b);
    qn_source_close(open_good(folder, NULL));
    qn_test_remove(folder);
}

/* What else lies in a folder takes no memory. */
static void test_crowded_folder(void **state)
{
    const char *folder = qn_test_scratch();
    char name[200];
    write_shard(folder, "model.safetensors", 10, a_b);
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "%0190d.txt", i);
        qn_test_write_text(folder, name, "");
    }
    size_t before = qn_mem_reset_peak();
    qn_source *s = open_good(folder, NULL);
    assert_int_equal(qn_source_count(s), 2);
    if (qn_mem_peak_bytes() - before > 128 << 10) fail_msg("%zu bytes", qn_mem_peak_bytes() - before);
    qn_source_close(s);
    qn_test_remove(folder);
}

static void test_file_option(void **state)
{
    static const char *const elsewhere[] = {"../m.gguf", "/etc/passwd", "sub/m.gguf", "..", "", "./m.gguf"};
    const char *folder = qn_test_scratch();
    write_gguf(folder, "m.gguf", "x");
    assert_int_equal(mkdir(qn_test_path(folder, "sub"), 0700), 0);
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        expect_failure(folder, &(qn_source_options){.file = elsewhere[i]}, QN_E_ARG,
                       PARTS(folder, "--file", elsewhere[i], "not the name of a file in this folder"));
    expect_failure(folder, &(qn_source_options){.file = "sub"}, QN_E_ARG, PARTS("/sub: not a file"));
    expect_failure(folder, &(qn_source_options){.file = "."}, QN_E_ARG, PARTS("not a file"));
    assert_int_equal(mkfifo(qn_test_path(folder, "pipe.gguf"), 0600), 0);
    expect_failure(qn_test_path(folder, "pipe.gguf"), NULL, QN_E_ARG, PARTS("pipe.gguf: not a file"));
    expect_failure("/dev/null", NULL, QN_E_ARG, PARTS("/dev/null: not a file"));
    qn_source_close(open_good(folder, NULL)); /* the pipe is no second model */
    qn_test_remove(folder);
}

static void test_links_and_rights(void **state)
{
    char store[4096], path[4096];
    snprintf(store, sizeof store, "%s", qn_test_scratch());
    const char *folder = qn_test_scratch();
    write_shard(store, "0a1b2c", 10, a_b); /* as the hub's cache keeps its files */
    snprintf(path, sizeof path, "%s", qn_test_path(store, "0a1b2c"));
    assert_int_equal(symlink(path, qn_test_path(folder, "model.safetensors")), 0);
    qn_source *s = open_good(folder, NULL);
    assert_int_equal(value_of(s, "b"), 11);
    qn_source_close(s);
    snprintf(path, sizeof path, "%s", qn_test_path(store, "link"));
    assert_int_equal(symlink(folder, path), 0);
    qn_source_close(open_good(path, NULL));
    unlink(qn_test_path(store, "0a1b2c"));
    expect_failure(folder, NULL, QN_E_IO, PARTS("model.safetensors: No such file"));
    assert_int_equal(symlink("loop", qn_test_path(store, "loop")), 0);
    expect_failure(qn_test_path(store, "loop"), NULL, QN_E_IO, PARTS("/loop: "));
    if (geteuid() != 0) { /* root may read all */
        chmod(folder, 0);
        expect_failure(folder, NULL, QN_E_IO, PARTS(folder, "Permission denied"));
        chmod(folder, 0700);
    }
    qn_test_remove(folder);
    qn_test_remove(store);
}

static void test_fixtures(void **state)
{
    static const char *const folders[] = {
        "models/llama",  "models/llama_rope3_tied",      "models/gemma3",
        "models/qwen3",  "models/gemma3_text",           "models/qwen3_no_model_type",
        "models/gemma4", "quant/mlx_models/llama-mixed", "quant/gguf_models/llama-F32.gguf"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        const char *path = qn_test_fixture(folders[i]);
        if (!path) continue;
        qn_source *s = open_good(path, NULL);
        assert_true(qn_source_count(s) > 20);
        assert_null(qn_source_find(s, "promptN.ids"));
        qn_source_close(s);
    }
    qn_test_need_fixture(folders[0]);
    /* Shards without their index. */
    static const char *const shards[] = {"model-00001-of-00002.safetensors",
                                         "model-00002-of-00002.safetensors", "expected.safetensors"};
    const char *tied = qn_test_fixture(folders[1]);
    if (!tied) return;
    char kept[4096];
    snprintf(kept, sizeof kept, "%s", tied);
    const char *folder = qn_test_scratch();
    for (int i = 0; i < 3; i++) qn_test_copy(folder, shards[i], qn_test_path(kept, shards[i]));
    qn_source *with = open_good(kept, NULL), *without = open_good(folder, NULL);
    assert_int_equal(qn_source_count(with), qn_source_count(without));
    for (int64_t i = 0; i < qn_source_count(with); i++) {
        const qn_tensor_view *v = qn_source_get(with, i), *w = qn_source_find(without, v->name);
        assert_non_null(w);
        assert_int_equal(w->size_bytes, v->size_bytes);
        assert_memory_equal(w->data, v->data, v->size_bytes);
    }
    qn_source_close(with);
    qn_source_close(without);
    qn_test_remove(folder);
}

static void check_no_memory(const char *path)
{
    int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int n = 1; n < 2000 && status != QN_OK; n++) {
        qn_source *s = NULL;
        const char *text;
        qn_mem_fail_nth(n);
        status = qn_source_open(path, NULL, &s);
        if (status == QN_OK) status = qn_source_side_text(s, QN_SIDE_CONFIG, &text, NULL);
        qn_mem_fail_nth(0);
        if (status != QN_OK && status != QN_E_NOMEM) fail_msg("allocation %d: %s", n, qn_last_error());
        qn_source_close(s);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_int_equal(status, QN_OK);
}

/* Refusals that list names allocate too. */
static void check_no_memory_refused(const char *path, qn_status refusal)
{
    int64_t before = qn_mem_live_blocks();
    for (int n = 1;; n++) {
        qn_source *s = NULL;
        assert_true(n < 200);
        qn_mem_fail_nth(n);
        qn_status status = qn_source_open(path, NULL, &s);
        qn_mem_fail_nth(0);
        assert_int_equal(qn_mem_live_blocks(), before);
        if (status == refusal) break;
        assert_int_equal(status, QN_E_NOMEM);
    }
}

static void test_no_memory(void **state)
{
    const char *folder = qn_test_scratch();
    write_shard(folder, "model-1.safetensors", 10, a_b);
    write_shard(folder, "model-2.safetensors", 30, c_d);
    qn_test_write_text(folder, "config.json", "{}");
    check_no_memory(folder);
    qn_test_write_text(folder, "model.safetensors.index.json",
                       "{\"weight_map\":{\"a\":\"model-1.safetensors\",\"d\":\"model-2.safetensors\"}}");
    check_no_memory(folder);
    write_gguf(folder, "m.gguf", "x");
    check_no_memory(qn_test_path(folder, "m.gguf"));
    check_no_memory_refused(folder, QN_E_ARG);
    qn_test_remove(folder);
    folder = qn_test_scratch();
    qn_test_write_text(folder, "pytorch_model.bin", "PK");
    assert_int_equal(mkdir(qn_test_path(folder, "sub"), 0700), 0);
    check_no_memory_refused(folder, QN_E_NOT_FOUND);
    qn_test_remove(folder);
}

static void test_parts(void **state)
{
    const char *folder = qn_test_scratch();
    char paths[4][4096];
    write_part(folder, "m-00001-of-00003.gguf", 0, 3, 3, "a");
    write_part(folder, "m-00002-of-00003.gguf", 1, 3, 3, "b");
    write_part(folder, "m-00003-of-00003.gguf", 2, 3, 3, "c");
    snprintf(paths[0], sizeof paths[0], "%s", folder);
    for (int i = 1; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "m-0000%d-of-00003.gguf", i);
        snprintf(paths[i], sizeof paths[i], "%s", qn_test_path(folder, name));
    }
    for (int i = 0; i < 4; i++) {
        qn_source *s = open_good(paths[i], NULL);
        float value = -1;
        assert_int_equal(qn_source_file_count(s), 3);
        assert_int_equal(qn_source_count(s), 3);
        assert_string_equal(qn_source_get(s, 1)->name, "b");
        assert_string_equal(qn_source_file_path(s, 2), paths[3]);
        assert_int_equal(qn_gguf_split(qn_source_gguf(s)).part, 0);
        memcpy(&value, qn_source_find(s, "c")->data, sizeof value);
        assert_true(value == 2);
        qn_source_close(s);
    }
    qn_source *s = open_good(folder, &(qn_source_options){.file = "m-00002-of-00003.gguf"});
    assert_int_equal(qn_source_count(s), 3);
    qn_source_close(s);
    /* Another model's parts beside them are another model. */
    write_part(folder, "n-00001-of-00002.gguf", 0, 2, 2, "a");
    expect_failure(folder, NULL, QN_E_ARG, PARTS("several GGUF files", "m-00001", "n-00001"));
    expect_failure(qn_test_path(folder, "n-00001-of-00002.gguf"), NULL, QN_E_NOT_FOUND,
                   PARTS("part 1 of 2", "missing beside it: n-00002-of-00002.gguf"));
    qn_test_remove(folder);
}

static void test_parts_that_do_not_fit(void **state)
{
    const char *folder = qn_test_scratch();
    write_part(folder, "m-00001-of-00002.gguf", 0, 2, 3, "a");
    write_part(folder, "m-00002-of-00002.gguf", 1, 2, 3, "b");
    expect_failure(folder, NULL, QN_E_FORMAT, PARTS("have 2 tensors, expected 3"));
    write_part(folder, "m-00001-of-00002.gguf", 0, 2, 2, "b");
    expect_failure(folder, NULL, QN_E_FORMAT, PARTS("tensor b is in two files"));
    write_part(folder, "m-00001-of-00002.gguf", 0, 3, 2, "a");
    expect_failure(folder, NULL, QN_E_FORMAT, PARTS("part 1 of 3", "-00001-of-00003.gguf"));
    write_part(folder, "m-00001-of-00002.gguf", 0, 2, 2, "a");
    write_part(folder, "m-00002-of-00002.gguf", 0, 2, 2, "b");
    expect_failure(folder, NULL, QN_E_FORMAT, PARTS("m-00002-of-00002.gguf", "part 1 of 2", "another model"));
    write_gguf(folder, "m-00002-of-00002.gguf", "b");
    expect_failure(folder, NULL, QN_E_FORMAT, PARTS("m-00002-of-00002.gguf", "part 1 of 1"));
    /* A whole file may have any name. */
    qn_source *s = open_good(qn_test_path(folder, "m-00002-of-00002.gguf"), NULL);
    assert_int_equal(qn_source_count(s), 1);
    qn_source_close(s);
    qn_test_remove(folder);
    folder = qn_test_scratch();
    write_part(folder, "renamed.gguf", 1, 3, 3, "b");
    expect_failure(folder, NULL, QN_E_FORMAT,
                   PARTS("renamed.gguf: this is part 2 of 3", "-00002-of-00003.gguf"));
    qn_test_remove(folder);
}

/* A later shard that has a tensor again counts where the index says so; transformers takes the last, too. */
static void test_overlay(void **state)
{
    const char *folder = qn_test_scratch(), *index = "model.safetensors.index.json";
    write_shard(folder, "model-00001-of-00002.safetensors", 10, a_b);
    write_shard(folder, "model-00002-of-00002.safetensors", 30, c_d);
    write_shard(folder, "model-overlay.safetensors", 50, b_c);
    qn_test_write_text(
        folder, index,
        "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-overlay.safetensors\","
        "\"c\":\"model-overlay.safetensors\",\"d\":\"model-00002-of-00002.safetensors\"}}");
    qn_source *s = open_good(folder, NULL);
    assert_int_equal(qn_source_count(s), 4);
    assert_int_equal(value_of(s, "a"), 10);
    assert_int_equal(value_of(s, "b"), 50);
    assert_int_equal(value_of(s, "c"), 51);
    assert_int_equal(value_of(s, "d"), 31);
    qn_source_close(s);
    qn_test_write_text(folder, index,
                       "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00001-of-"
                       "00002.safetensors\","
                       "\"c\":\"model-overlay.safetensors\",\"d\":\"model-00002-of-00002.safetensors\"}}");
    expect_failure(folder, NULL, QN_E_FORMAT, PARTS("tensor b is in two files"));
    qn_test_remove(folder);
}

static void test_lfs_pointers(void **state)
{
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
        "size 12345\n";
    static const char *const names[] = {"model.safetensors", "model.gguf"};
    for (int i = 0; i < 2; i++) {
        const char *folder = qn_test_scratch();
        qn_test_write_text(folder, names[i], pointer);
        expect_failure(folder, NULL, QN_E_FORMAT,
                       PARTS(names[i], "Git LFS pointer", "which has 12345 bytes", "git lfs pull"));
        qn_test_remove(folder);
    }
    const char *folder = qn_test_scratch(), *text;
    write_shard(folder, "model.safetensors", 1, a_b);
    qn_test_write_text(folder, "tokenizer.json", pointer);
    qn_test_write_text(folder, "config.json", "version https://git-lfs.github.com/spec/v1\n");
    qn_source *s = open_good(folder, NULL);
    assert_int_equal(qn_source_side_text(s, QN_SIDE_TOKENIZER, &text, NULL), QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "tokenizer.json: this is a Git LFS pointer"));
    assert_int_equal(qn_source_side_text(s, QN_SIDE_CONFIG, &text, NULL), QN_E_FORMAT);
    assert_non_null(strstr(qn_last_error(), "Git LFS pointer, not the file itself: run"));
    qn_source_close(s);
    qn_test_remove(folder);
}

static void test_parts_out_of_memory(void **state)
{
    const char *folder = qn_test_scratch();
    const int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    write_part(folder, "m-00001-of-00002.gguf", 0, 2, 2, "a");
    write_part(folder, "m-00002-of-00002.gguf", 1, 2, 2, "b");
    for (int64_t n = 1; n < 2000 && status != QN_OK; n++) {
        qn_source *s = NULL;
        qn_mem_fail_nth(n);
        status = qn_source_open(folder, NULL, &s);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        qn_source_close(s);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_int_equal(status, QN_OK);
    qn_test_remove(folder);
}

static const char *write_doubles(double second)
{
    const char *folder = qn_test_scratch();
    const double values[] = {0.1, second, -3};
    qn_st_writer *w;
    assert_int_equal(qn_st_writer_new(qn_test_path(folder, "model.safetensors"), &w), QN_OK);
    assert_int_equal(qn_st_writer_add(w, "wide", QN_DTYPE_F64, 1, (const int64_t[]){3}, NULL), QN_OK);
    assert_int_equal(qn_st_writer_add(w, "byte", QN_DTYPE_U8, 1, (const int64_t[]){1}, NULL), QN_OK);
    assert_int_equal(qn_st_writer_begin(w), QN_OK);
    assert_int_equal(qn_st_writer_write(w, 0, 0, values, sizeof values), QN_OK);
    assert_int_equal(qn_st_writer_write(w, 1, 0, "\7", 1), QN_OK);
    assert_int_equal(qn_st_writer_finish(w), QN_OK);
    qn_st_writer_free(w);
    return folder;
}

static void test_doubles_become_floats(void **state)
{
    const char *folder = write_doubles(1e-300);
    qn_source *s = open_good(folder, NULL);
    const qn_tensor_view *v = qn_source_find(s, "wide");
    float values[3];
    assert_int_equal(v->dtype, QN_DTYPE_F32);
    assert_int_equal(v->size_bytes, 12);
    memcpy(values, v->data, sizeof values);
    assert_true(values[0] == 0.1f && values[1] == 0 && values[2] == -3);
    assert_int_equal(value_of(s, "byte"), 7);
    qn_source_close(s);
    s = open_good(folder, &(qn_source_options){.as_stored = 1});
    assert_int_equal(qn_source_find(s, "wide")->dtype, QN_DTYPE_F64);
    qn_source_close(s);
    const int64_t before = qn_mem_live_blocks();
    qn_status status = QN_E_NOMEM;
    for (int64_t n = 1; n < 2000 && status != QN_OK; n++) {
        s = NULL;
        qn_mem_fail_nth(n);
        status = qn_source_open(folder, NULL, &s);
        qn_mem_fail_nth(0);
        if (status != QN_OK) assert_int_equal(status, QN_E_NOMEM);
        qn_source_close(s);
        assert_int_equal(qn_mem_live_blocks(), before);
    }
    assert_int_equal(status, QN_OK);
    qn_test_remove(folder);
    folder = write_doubles(1e300);
    expect_failure(folder, NULL, QN_E_UNSUPPORTED,
                   PARTS("tensor wide: element 1 is 1e+300", "too large for float32"));
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_doubles_become_floats),
        cmocka_unit_test(test_parts_that_do_not_fit),
        cmocka_unit_test(test_overlay),
        cmocka_unit_test(test_lfs_pointers),
        cmocka_unit_test(test_parts_out_of_memory),
        cmocka_unit_test(test_single_file),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_shards_without_index),
        cmocka_unit_test(test_index),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_both_kinds),
        cmocka_unit_test(test_no_weights),
        cmocka_unit_test(test_other_things),
        cmocka_unit_test(test_adapters),
        cmocka_unit_test(test_numbered_files),
        cmocka_unit_test(test_crowded_folder),
        cmocka_unit_test(test_file_option),
        cmocka_unit_test(test_links_and_rights),
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
