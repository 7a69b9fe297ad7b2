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
#include "tests/support/source_files.h"

static void test_single_file(void **state)
{
    const char *folder = qn_test_scratch();
    qn_test_write_shard(folder, "model.safetensors", 1, qn_test_a_b);
    qn_test_write_shard(folder, "other.safetensors", 50, qn_test_a_b); /* not named as a model's */
    qn_test_write_text(folder, "config.json", "{\"x\":1}");
    qn_source *s = qn_test_open_source(folder, NULL);
    const char *text;
    size_t n;
    assert_int_equal(qn_source_get_kind(s), QN_SOURCE_SAFETENSORS);
    assert_string_equal(qn_source_path(s), folder);
    assert_null(qn_source_gguf(s));
    assert_int_equal(qn_source_file_count(s), 1);
    assert_non_null(strstr(qn_source_file_path(s, 0), "/model.safetensors"));
    assert_int_equal(qn_source_count(s), 2);
    assert_int_equal(qn_source_tensor_bytes(s), 2);
    assert_int_equal(qn_test_byte_of(s, "b"), 2);
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
    s = qn_test_open_source(folder, &(qn_source_options){.file = "other.safetensors"});
    assert_int_equal(qn_test_byte_of(s, "a"), 50);
    qn_source_close(s);
    s = qn_test_open_source(qn_test_path(folder, "other.safetensors"), NULL);
    assert_int_equal(qn_test_byte_of(s, "a"), 50);
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
    qn_test_write_shard(folder, "model.safetensors", 1, names);
    qn_source *s = qn_test_open_source(folder, NULL);
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
    qn_test_write_shard(folder, "model-00002-of-00002.safetensors", 30, qn_test_c_d);
    qn_test_write_shard(folder, "model-00001-of-00002.safetensors", 10, qn_test_a_b);
    qn_source *s = qn_test_open_source(folder, NULL);
    assert_int_equal(qn_source_file_count(s), 2);
    assert_int_equal(qn_source_count(s), 4);
    assert_string_equal(qn_source_get(s, 0)->name, "a"); /* files in order of their names */
    assert_int_equal(qn_test_byte_of(s, "d"), 31);
    qn_source_close(s);
    qn_test_write_shard(folder, "model-00003-of-00002.safetensors", 40, qn_test_b_c);
    qn_test_refused_source(folder, NULL, QN_E_FORMAT,
                           QN_TEST_PARTS("tensor b is in two files", "model-00001-of-00002.safetensors",
                                         "model-00003-of-00002.safetensors"));
    qn_test_remove(folder);
    folder = qn_test_scratch();
    qn_test_write_shard(folder, "x.safetensors", 10, qn_test_a_b);
    qn_test_write_shard(folder, "y.safetensors", 30, qn_test_c_d);
    s = qn_test_open_source(folder, NULL);
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
    qn_test_write_shard(folder, "s1.safetensors", 10, qn_test_a_b);
    qn_test_write_shard(folder, "s2.safetensors", 30, qn_test_c_d);
    qn_test_write_shard(folder, "unused.safetensors", 90, qn_test_a_b);
    const char *good =
        "{\"metadata\":{\"total_size\":4,\"more\":[true,null,-1.5e3,\"x\\\"\"]},"
        "\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\",\"c\":\"s2.safetensors\"}}";
    qn_test_write_text(folder, name, good);
    for (int by_file = 0; by_file < 2; by_file++) {
        qn_source *s = qn_test_open_source(by_file ? path : folder, NULL);
        assert_int_equal(qn_source_file_count(s), 2);
        assert_int_equal(qn_test_byte_of(s, "c"), 30);
        qn_source_close(s);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qn_test_write_text(folder, name, bad[i].index);
        qn_test_refused_source(folder, NULL, QN_E_FORMAT, QN_TEST_PARTS(bad[i].says, name));
    }
    qn_test_write_text(folder, name, "{\"weight_map\":{\"a\":\"absent.safetensors\"}}");
    qn_test_refused_source(
        folder, NULL, QN_E_IO,
        QN_TEST_PARTS("absent.safetensors: No such file", name, "names: the model is incomplete"));
    qn_test_write_text(folder, name,
                       "{\"weight_map\":{\"a\":\"s1.safetensors\",\"x\":\"unused.safetensors\"}}");
    qn_test_refused_source(folder, NULL, QN_E_FORMAT,
                           QN_TEST_PARTS("tensor a is in two files", "s1.safetensors", "unused.safetensors"));
    qn_test_remove(folder);
}

static void test_gguf(void **state)
{
    const char *folder = qn_test_scratch();
    qn_test_write_gguf(folder, "m.gguf", "token_embd.weight");
    qn_test_write_text(folder, "tokenizer.json", "{}");
    qn_source *s = qn_test_open_source(folder, NULL);
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
    s = qn_test_open_source(qn_test_path(folder, "m.gguf"), &(qn_source_options){.text_only = 1});
    assert_non_null(qn_source_gguf(s));
    qn_source_close(s);
    /* Its bytes count, not its name. */
    qn_test_write_gguf(folder, "blob", "x");
    s = qn_test_open_source(qn_test_path(folder, "blob"), NULL);
    assert_int_equal(qn_source_get_kind(s), QN_SOURCE_GGUF);
    qn_source_close(s);
    qn_test_write_gguf(folder, "n.gguf", "other");
    qn_test_refused_source(folder, NULL, QN_E_ARG,
                           QN_TEST_PARTS(folder, "several GGUF files", "m.gguf", "n.gguf", "--file"));
    s = qn_test_open_source(folder, &(qn_source_options){.file = "n.gguf"});
    assert_non_null(qn_source_find(s, "other"));
    qn_source_close(s);
    qn_test_refused_source(folder, &(qn_source_options){.file = "o.gguf"}, QN_E_IO,
                           QN_TEST_PARTS("o.gguf: No such file"));
    qn_test_refused_source(folder, &(qn_source_options){.file = "tokenizer.json"}, QN_E_ARG,
                           QN_TEST_PARTS("tokenizer.json: not a model"));
    qn_test_refused_source(qn_test_path(folder, "m.gguf"), &(qn_source_options){.file = "n.gguf"}, QN_E_ARG,
                           QN_TEST_PARTS("--file"));
    qn_test_remove(folder);
}

static void test_both_kinds(void **state)
{
    const char *folder = qn_test_scratch();
    qn_test_write_gguf(folder, "m.gguf", "x");
    qn_test_write_shard(folder, "model.safetensors", 1, qn_test_a_b);
    qn_test_refused_source(
        folder, NULL, QN_E_ARG,
        QN_TEST_PARTS(folder, "both GGUF and safetensors", "m.gguf", "model.safetensors", "--file"));
    qn_source *s = qn_test_open_source(folder, &(qn_source_options){.file = "m.gguf"});
    assert_int_equal(qn_source_get_kind(s), QN_SOURCE_GGUF);
    qn_source_close(s);
    s = qn_test_open_source(folder, &(qn_source_options){.file = "model.safetensors"});
    assert_int_equal(qn_source_get_kind(s), QN_SOURCE_SAFETENSORS);
    qn_source_close(s);
    qn_test_remove(folder);
    folder = qn_test_scratch();
    qn_test_write_gguf(folder, "m.gguf", "x");
    qn_test_write_text(folder, "model.safetensors.index.json", "{}");
    qn_test_refused_source(folder, NULL, QN_E_ARG, QN_TEST_PARTS("m.gguf; model.safetensors.index.json"));
    qn_test_remove(folder);
}

static void test_no_weights(void **state)
{
    const qn_source_options text_only = {.text_only = 1};
    const char *folder = qn_test_scratch(), *text;
    qn_test_refused_source(folder, NULL, QN_E_NOT_FOUND, QN_TEST_PARTS(folder, "no model in this folder"));
    qn_test_refused_source(folder, &text_only, QN_E_NOT_FOUND,
                           QN_TEST_PARTS("no model in this folder", "no tokenizer"));
    qn_test_refused_source(qn_test_path(folder, "absent"), NULL, QN_E_IO,
                           QN_TEST_PARTS("/absent: No such file"));
    qn_test_refused_source("", NULL, QN_E_ARG, QN_TEST_PARTS("empty"));
    qn_test_write_text(folder, "tokenizer.json", "{}");
    qn_test_refused_source(folder, NULL, QN_E_NOT_FOUND, QN_TEST_PARTS("no model in this folder"));
    qn_test_refused_source(qn_test_path(folder, "tokenizer.json"), NULL, QN_E_ARG,
                           QN_TEST_PARTS("tokenizer.json: not a model"));
    qn_source *s = qn_test_open_source(folder, &text_only);
    assert_int_equal(qn_source_get_kind(s), QN_SOURCE_TEXT);
    assert_int_equal(qn_source_count(s), 0);
    assert_null(qn_source_find(s, "a"));
    assert_int_equal(qn_source_side_text(s, QN_SIDE_TOKENIZER, &text, NULL), QN_OK);
    qn_source_close(s);
    /* Broken weights do not matter to tokenising. */
    qn_test_write_text(folder, "model.safetensors", "broken");
    qn_test_refused_source(folder, NULL, QN_E_FORMAT, QN_TEST_PARTS("model.safetensors: "));
    s = qn_test_open_source(folder, &text_only);
    assert_int_equal(qn_source_count(s), 0);
    qn_source_close(s);
    /* Folders and links to nowhere under such names. */
    assert_int_equal(mkdir(qn_test_path(folder, "x.gguf"), 0700), 0);
    qn_source_close(qn_test_open_source(folder, &text_only));
    assert_int_equal(symlink("nowhere", qn_test_path(folder, "y.gguf")), 0);
    unlink(qn_test_path(folder, "model.safetensors"));
    qn_test_refused_source(folder, NULL, QN_E_IO, QN_TEST_PARTS("y.gguf: No such file"));
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
        qn_test_refused_source(
            folder, NULL, QN_E_NOT_FOUND,
            QN_TEST_PARTS(folder, "no model in this folder", foreign[i], "convert the model to safetensors"));
        assert_null(strstr(qn_last_error(), "training_args.bin"));
        qn_test_refused_source(qn_test_path(folder, foreign[i]), NULL, QN_E_ARG,
                               QN_TEST_PARTS(foreign[i], "convert the model to safetensors"));
        qn_test_refused_source(folder, &(qn_source_options){.file = foreign[i]}, QN_E_ARG,
                               QN_TEST_PARTS(foreign[i], "convert"));
        qn_test_remove(folder);
    }
    const char *folder = qn_test_scratch();
    qn_test_write_text(folder, "config.json", "{}");
    char below[4096];
    snprintf(below, sizeof below, "%s", qn_test_path(folder, "original"));
    assert_int_equal(mkdir(below, 0700), 0);
    qn_test_write_text(below, "consolidated.00.pth", "PK");
    qn_test_refused_source(folder, NULL, QN_E_NOT_FOUND, QN_TEST_PARTS(folder, "no model in this folder"));
    assert_null(strstr(qn_last_error(), "original"));
    qn_test_write_shard(below, "model.safetensors", 1, qn_test_a_b);
    qn_test_refused_source(folder, NULL, QN_E_NOT_FOUND,
                           QN_TEST_PARTS("Folders in it hold models: original"));
    qn_test_refused_source(qn_test_path(folder, "config.json"), NULL, QN_E_ARG,
                           QN_TEST_PARTS("config.json: not a model: give the folder that contains it"));
    qn_source_close(qn_test_open_source(below, NULL));
    /* What lies below does not count where there is a model. */
    qn_test_write_shard(folder, "model.safetensors", 50, qn_test_a_b);
    qn_test_write_text(folder, "pytorch_model.bin", "PK");
    qn_source *s = qn_test_open_source(folder, NULL);
    assert_int_equal(qn_test_byte_of(s, "a"), 50);
    qn_source_close(s);
    qn_test_remove(folder);
}

static void test_adapters(void **state)
{
    static const char *const lora[] = {"base_model.model.a.lora_A.weight", NULL};
    const char *folder = qn_test_scratch();
    qn_test_write_text(folder, "adapter_config.json", "{}");
    for (int round = 0; round < 3; round++) {
        if (round == 1) qn_test_write_shard(folder, "adapter_model.safetensors", 1, lora);
        if (round == 2)
            qn_test_write_shard(folder, "adapters.safetensors", 1, qn_test_c_d); /* as mlx_lm writes */
        qn_test_refused_source(folder, NULL, QN_E_ARG,
                               QN_TEST_PARTS(folder, "an adapter", "not a model", "--adapter"));
    }
    /* For tokenising it will do, with a tokenizer; and a model beside it is one. */
    qn_test_write_text(folder, "tokenizer.json", "{}");
    qn_source_close(qn_test_open_source(folder, &(qn_source_options){.text_only = 1}));
    qn_test_write_shard(folder, "model.safetensors", 50, qn_test_a_b);
    qn_source *s = qn_test_open_source(folder, NULL);
    assert_int_equal(qn_source_count(s), 2);
    qn_source_close(s);
    qn_test_remove(folder);
}

static void test_numbered_files(void **state)
{
    static const char *const e_f[] = {"e", "f", NULL};
    const char *folder = qn_test_scratch();
    qn_test_write_shard(folder, "model-00001-of-00003.safetensors", 10, qn_test_a_b);
    qn_test_write_shard(folder, "model-00003-of-00003.safetensors", 30, qn_test_c_d);
    qn_test_refused_source(
        folder, NULL, QN_E_NOT_FOUND,
        QN_TEST_PARTS(folder, "model-00002-of-00003.safetensors is missing", "incomplete"));
    qn_test_write_shard(folder, "model-00002-of-00003.safetensors", 50, e_f);
    qn_source *s = qn_test_open_source(folder, NULL);
    assert_int_equal(qn_source_count(s), 6);
    qn_source_close(s);
    /* The same weights as published in another form beside them are left alone. */
    qn_test_write_shard(folder, "consolidated.safetensors", 90, qn_test_a_b);
    s = qn_test_open_source(folder, NULL);
    assert_int_equal(qn_test_byte_of(s, "a"), 10);
    qn_source_close(s);
    /* Two models under a model's name: refused, and --file picks. */
    qn_test_write_shard(folder, "model.safetensors", 70, qn_test_a_b);
    qn_test_refused_source(folder, NULL, QN_E_FORMAT,
                           QN_TEST_PARTS("tensor a is in two files", "/model-00001-of-00003.safetensors",
                                         "/model.safetensors", "--file"));
    s = qn_test_open_source(folder, &(qn_source_options){.file = "model.safetensors"});
    assert_int_equal(qn_test_byte_of(s, "a"), 70);
    qn_source_close(s);
    qn_test_remove(folder);
    /* Names that only look numbered. */
    folder = qn_test_scratch();
    qn_test_write_shard(folder, "model-00001-of-99999.safetensors", 10, qn_test_a_b);
    qn_test_write_shard(folder, "model-of-2.safetensors", 30, qn_test_c_d);
    qn_source_close(qn_test_open_source(folder, NULL));
    qn_test_remove(folder);
    folder = qn_test_scratch();
    qn_test_write_shard(folder, "x1-00001-of-00002.safetensors", 10, qn_test_a_b);
    qn_source_close(qn_test_open_source(folder, NULL));
    qn_test_remove(folder);
}

/* What else lies in a folder takes no memory. */
static void test_crowded_folder(void **state)
{
    const char *folder = qn_test_scratch();
    char name[200];
    qn_test_write_shard(folder, "model.safetensors", 10, qn_test_a_b);
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "%0190d.txt", i);
        qn_test_write_text(folder, name, "");
    }
    size_t before = qn_mem_reset_peak();
    qn_source *s = qn_test_open_source(folder, NULL);
    assert_int_equal(qn_source_count(s), 2);
    if (qn_mem_peak_bytes() - before > 128 << 10) fail_msg("%zu bytes", qn_mem_peak_bytes() - before);
    qn_source_close(s);
    qn_test_remove(folder);
}

static void test_file_option(void **state)
{
    static const char *const elsewhere[] = {"../m.gguf", "/etc/passwd", "sub/m.gguf", "..", "", "./m.gguf"};
    const char *folder = qn_test_scratch();
    qn_test_write_gguf(folder, "m.gguf", "x");
    assert_int_equal(mkdir(qn_test_path(folder, "sub"), 0700), 0);
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        qn_test_refused_source(
            folder, &(qn_source_options){.file = elsewhere[i]}, QN_E_ARG,
            QN_TEST_PARTS(folder, "--file", elsewhere[i], "not the name of a file in this folder"));
    qn_test_refused_source(folder, &(qn_source_options){.file = "sub"}, QN_E_ARG,
                           QN_TEST_PARTS("/sub: not a file"));
    qn_test_refused_source(folder, &(qn_source_options){.file = "."}, QN_E_ARG, QN_TEST_PARTS("not a file"));
    assert_int_equal(mkfifo(qn_test_path(folder, "pipe.gguf"), 0600), 0);
    qn_test_refused_source(qn_test_path(folder, "pipe.gguf"), NULL, QN_E_ARG,
                           QN_TEST_PARTS("pipe.gguf: not a file"));
    qn_test_refused_source("/dev/null", NULL, QN_E_ARG, QN_TEST_PARTS("/dev/null: not a file"));
    qn_source_close(qn_test_open_source(folder, NULL)); /* the pipe is no second model */
    qn_test_remove(folder);
}

static void test_links_and_rights(void **state)
{
    char store[4096], path[4096];
    snprintf(store, sizeof store, "%s", qn_test_scratch());
    const char *folder = qn_test_scratch();
    qn_test_write_shard(store, "0a1b2c", 10, qn_test_a_b); /* as the hub's cache keeps its files */
    snprintf(path, sizeof path, "%s", qn_test_path(store, "0a1b2c"));
    assert_int_equal(symlink(path, qn_test_path(folder, "model.safetensors")), 0);
    qn_source *s = qn_test_open_source(folder, NULL);
    assert_int_equal(qn_test_byte_of(s, "b"), 11);
    qn_source_close(s);
    snprintf(path, sizeof path, "%s", qn_test_path(store, "link"));
    assert_int_equal(symlink(folder, path), 0);
    qn_source_close(qn_test_open_source(path, NULL));
    unlink(qn_test_path(store, "0a1b2c"));
    qn_test_refused_source(folder, NULL, QN_E_IO, QN_TEST_PARTS("model.safetensors: No such file"));
    assert_int_equal(symlink("loop", qn_test_path(store, "loop")), 0);
    qn_test_refused_source(qn_test_path(store, "loop"), NULL, QN_E_IO, QN_TEST_PARTS("/loop: "));
    if (geteuid() != 0) { /* root may read all */
        chmod(folder, 0);
        qn_test_refused_source(folder, NULL, QN_E_IO, QN_TEST_PARTS(folder, "Permission denied"));
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
        qn_source *s = qn_test_open_source(path, NULL);
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
    qn_source *with = qn_test_open_source(kept, NULL), *without = qn_test_open_source(folder, NULL);
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
    qn_test_write_shard(folder, "model-1.safetensors", 10, qn_test_a_b);
    qn_test_write_shard(folder, "model-2.safetensors", 30, qn_test_c_d);
    qn_test_write_text(folder, "config.json", "{}");
    check_no_memory(folder);
    qn_test_write_text(folder, "model.safetensors.index.json",
                       "{\"weight_map\":{\"a\":\"model-1.safetensors\",\"d\":\"model-2.safetensors\"}}");
    check_no_memory(folder);
    qn_test_write_gguf(folder, "m.gguf", "x");
    check_no_memory(qn_test_path(folder, "m.gguf"));
    check_no_memory_refused(folder, QN_E_ARG);
    qn_test_remove(folder);
    folder = qn_test_scratch();
    qn_test_write_text(folder, "pytorch_model.bin", "PK");
    assert_int_equal(mkdir(qn_test_path(folder, "sub"), 0700), 0);
    check_no_memory_refused(folder, QN_E_NOT_FOUND);
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
    qn_source *s = qn_test_open_source(folder, NULL);
    const qn_tensor_view *v = qn_source_find(s, "wide");
    float values[3];
    assert_int_equal(v->dtype, QN_DTYPE_F32);
    assert_int_equal(v->size_bytes, 12);
    memcpy(values, v->data, sizeof values);
    assert_true(values[0] == 0.1f && values[1] == 0 && values[2] == -3);
    assert_int_equal(qn_test_byte_of(s, "byte"), 7);
    qn_source_close(s);
    s = qn_test_open_source(folder, &(qn_source_options){.as_stored = 1});
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
    qn_test_refused_source(folder, NULL, QN_E_UNSUPPORTED,
                           QN_TEST_PARTS("tensor wide: element 1 is 1e+300", "too large for float32"));
    qn_test_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_doubles_become_floats),
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
