/* Which files are taken: by memory, by name, and what is left alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "hub/names/choose.h"

static const int64_t gb = 1000000000;

/* "path=size in MB" with spaces between. */
static qn_hub_files make(const char *text)
{
    qn_hub_files l = {0};
    while (*text) {
        char path[128];
        int size, n;
        assert_int_equal(sscanf(text, "%127[^=]=%d%n", path, &size, &n), 2);
        assert_int_equal(qn_hub_files_add(&l, &(qn_hub_file){.path = path, .size = (int64_t)size * 1000000}),
                         QN_OK);
        text += n;
        text += strspn(text, " ");
    }
    return l;
}

/* want: the GGUF file; "" for safetensors; NULL: a failure with this status, whose sentence has `said`. */
static void expect(const char *files, const char *pick, int64_t memory, const char *want, size_t n,
                   qn_status status, const char *said)
{
    qn_hub_files l = make(files);
    qn_hub_choice c = {0};
    const qn_status got = qn_hub_choose("x", &l, pick, memory, &c);
    if (got != status) fail_msg("%s: status %d, %s", files, got, qn_last_error());
    if (want) {
        assert_string_equal(c.main, want);
        assert_int_equal(c.files.n, n);
    }
    if (said && !strstr(want ? c.why : qn_last_error(), said))
        fail_msg("%s: %s", said, want ? c.why : qn_last_error());
    qn_hub_choice_free(&c);
    qn_hub_files_free(&l);
}

#define GGUFS "m-Q8_0.gguf=8000 m-Q4_K_M.gguf=4000 m-Q2_K.gguf=2000 m-BF16.gguf=16000 mmproj-m.gguf=100"

static void test_by_memory(void **state)
{
    expect(GGUFS, "", 64 * gb, "m-Q8_0.gguf", 2, QN_OK, "of 3 files m-Q8_0.gguf (8.0 GB) is the largest");
    expect(GGUFS, "", 12 * gb, "m-Q4_K_M.gguf", 2, QN_OK, "largest");
    expect(GGUFS, "", 6 * gb, "m-Q4_K_M.gguf", 2, QN_OK, "smallest");
    expect(GGUFS, "", 4 * gb, NULL, 0, QN_E_FULL, "even the smallest of 3");
    expect("m-F16.gguf=1000 m-F32.gguf=2000", "", 64 * gb, "m-F32.gguf", 1, QN_OK, NULL);
    expect("only.gguf=4000", "", gb, "only.gguf", 1, QN_OK, "of memory");
    expect("only.gguf=4000", "", 64 * gb, "only.gguf", 1, QN_OK, NULL);
    expect("m-Q2_K.gguf=1 m-IQ4_XS.gguf=1", "", 64 * gb, NULL, 0, QN_E_NOT_FOUND, "m-IQ4_XS.gguf");
    expect("m-UD-Q4_K_XL.gguf=1 m-Q4_0.gguf=1", "", 64 * gb, "m-Q4_0.gguf", 1, QN_OK, NULL);
    /* An importance matrix is no model, though it is a GGUF file and small. */
    expect("m-imatrix.gguf=5 m-imatrix-Q8_0.gguf=8000", "", 12 * gb, "m-imatrix-Q8_0.gguf", 1, QN_OK, NULL);
    expect("m-imatrix.gguf=5", "", 12 * gb, NULL, 0, QN_E_NOT_FOUND, "no GGUF file");
}

static void test_by_name(void **state)
{
    expect(GGUFS, "q8_0", 1, "m-Q8_0.gguf", 2, QN_OK, NULL);
    expect(GGUFS, "m-BF16.gguf", 1, "m-BF16.gguf", 2, QN_OK, NULL);
    expect(GGUFS, "Q2_K", 1, "m-Q2_K.gguf", 2, QN_OK, "does not compute with Q2_K");
    expect(GGUFS, "Q8", 1, NULL, 0, QN_E_NOT_FOUND, "no GGUF file 'Q8'");
    expect(GGUFS, "mmproj-m.gguf", 1, "mmproj-m.gguf", 1, QN_OK, NULL);
    expect("a/m-Q8_0.gguf=1 b/m-Q8_0.gguf=1", "Q8_0", 1, NULL, 0, QN_E_ARG, "several");
    expect("a/m-Q8_0.gguf=1 b/m-Q8_0.gguf=1", "b/m-Q8_0.gguf", 1, "b/m-Q8_0.gguf", 1, QN_OK, NULL);
    expect("m-Q8_0.gguf=1 m-Q8_0-00001-of-00002.gguf=1", "Q8_0", 1, "m-Q8_0.gguf", 1, QN_OK, NULL);
    /* A path that is a file's means this file alone. */
    expect("a/m-Q8_0.gguf=1 m-Q8_0.gguf=1", "m-Q8_0.gguf", 1, "m-Q8_0.gguf", 1, QN_OK, NULL);
    expect("a/m-Q8_0.gguf=1 m-Q8_0.gguf=1", "Q8_0", 1, NULL, 0, QN_E_ARG, "several");
    /* What its maker calls a quantisation, and a folder's name. */
    expect("m-Q4_K_M.gguf=1 m-UD-Q4_K_XL.gguf=1", "ud-q4_k_xl", 1, "m-UD-Q4_K_XL.gguf", 1, QN_OK, NULL);
    expect("m-Q4_K_M.gguf=1 m-UD-Q4_K_XL.gguf=1", "D-Q4_K_XL", 1, NULL, 0, QN_E_NOT_FOUND, "D-Q4_K_XL");
    expect("Q4_K_M/m.gguf=1 Q8_0/m.gguf=1", "Q8_0", 1, "Q8_0/m.gguf", 1, QN_OK, NULL);
    expect("Q4_K_M/m-Q8_0.gguf=1", "Q4_K_M", 1, NULL, 0, QN_E_NOT_FOUND, "Q4_K_M");
}

#define PARTS                                                                                             \
    "Q4_K_M/m-Q4_K_M-00002-of-00003.gguf=1000 Q4_K_M/m-Q4_K_M-00001-of-00003.gguf=1000 m-Q2_K.gguf=1000 " \
    "Q4_K_M/m-Q4_K_M-00003-of-00003.gguf=1000 m-Q8_0-00001-of-00002.gguf=5000 "                           \
    "m-Q8_0-00002-of-00002.gguf=5000 mmproj-F16.gguf=7"
static const char part_1_of_3[] = "Q4_K_M/m-Q4_K_M-00001-of-00003.gguf",
                  part_1_of_2[] = "m-Q8_0-00001-of-00002.gguf";

static void test_parts(void **state)
{
    expect(PARTS, "q4_k_m", 1, part_1_of_3, 3, QN_OK, NULL);
    expect(PARTS, "m-Q4_K_M-00003-of-00003.gguf", 1, part_1_of_3, 3, QN_OK, NULL);
    expect(PARTS, "Q4_K_M/m-Q4_K_M-00002-of-00003.gguf", 1, part_1_of_3, 3, QN_OK, NULL);
    expect(PARTS, "Q8_0", 1, part_1_of_2, 3, QN_OK, "the vision tower mmproj-F16.gguf");
    /* Memory sees the bytes of all parts. */
    expect(PARTS, "", 64 * gb, part_1_of_2, 3, QN_OK,
           "of 2 files m-Q8_0-00001-of-00002.gguf (10.0 GB in 2 parts) is the largest");
    expect(PARTS, "", 12 * gb, part_1_of_3, 3, QN_OK,
           "of 2 files m-Q4_K_M-00001-of-00003.gguf (3.0 GB in 3 parts) is the largest");
    expect(PARTS, "", 3 * gb, NULL, 0, QN_E_FULL, "even the smallest of 2 files takes about 3.9 GB");
    expect("Q2_K/m-00001-of-00002.gguf=1 Q2_K/m-00002-of-00002.gguf=1 Q4_0/m.gguf=1", "", 64 * gb,
           "Q4_0/m.gguf", 1, QN_OK, NULL);
    expect("m-00001-of-00001.gguf=1", "", 64 * gb, "m-00001-of-00001.gguf", 1, QN_OK, NULL);
    /* The parts are in order, and no other's are among them. */
    qn_hub_files l = make(PARTS);
    qn_hub_choice c = {0};
    assert_int_equal(qn_hub_choose("x", &l, "Q4_K_M", 1, &c), QN_OK);
    for (size_t i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "Q4_K_M/m-Q4_K_M-%05d-of-00003.gguf", (int)i + 1);
        assert_string_equal(c.files.files[i].path, name);
    }
    qn_hub_choice_free(&c);
    qn_hub_files_free(&l);
}

static void test_missing_parts(void **state)
{
    static const char cut[] = "m-Q8_0-00001-of-00003.gguf=1 m-Q8_0-00003-of-00003.gguf=1",
                      both[] = "m-Q8_0-00002-of-00002.gguf=1 m-Q4_0.gguf=1";
    static const char said[] = "x: m-Q8_0-00002-of-00003.gguf is missing (parts that are there: 2 of 3)";
    expect(cut, "Q8_0", 1, NULL, 0, QN_E_NOT_FOUND, said);
    expect(cut, "m-Q8_0-00001-of-00003.gguf", 1, NULL, 0, QN_E_NOT_FOUND, said);
    expect(cut, "", 64 * gb, NULL, 0, QN_E_NOT_FOUND, said);
    expect(both, "Q8_0", 1, NULL, 0, QN_E_NOT_FOUND, "m-Q8_0-00001-of-00002.gguf is missing");
    expect(both, "", 64 * gb, "m-Q4_0.gguf", 1, QN_OK,
           "m-Q8_0-00002-of-00002.gguf is left out (parts that are there: 1 of 2)");
    /* Parts of other counts, folders and endings are others' parts. */
    expect("m-Q8_0-00001-of-00002.gguf=1 m-Q8_0-00002-of-00003.gguf=1 a/m-Q8_0-00002-of-00002.gguf=1 "
           "m-Q8_0-00002-of-00002.GGUF=1",
           "m-Q8_0-00001-of-00002.gguf", 1, NULL, 0, QN_E_NOT_FOUND, "m-Q8_0-00002-of-00002.gguf is missing");
    expect("config.json=1 model.safetensors=8000 m-Q4_0-00001-of-00002.gguf=2000", "", 8 * gb, "", 2, QN_OK,
           NULL);
}

/* The tower beside the model comes too: of the best type, and of these the one that is named alike. */
static void test_towers(void **state)
{
    static const char types[] =
        "m-Q8_0.gguf=8000 mmproj-Q8_0.gguf=1 mmproj-F32.gguf=4 mmproj-BF16.gguf=2 mmproj-F16.gguf=2";
    static const char both[] =
        "small-Q8_0.gguf=1 large-Q8_0.gguf=2 mmproj-small-f16.gguf=1 mmproj-large-f16.gguf=1";
    expect(GGUFS, "", 64 * gb, "m-Q8_0.gguf", 2, QN_OK,
           "; the vision tower mmproj-m.gguf (100 MB) comes with it");
    expect(types, "Q8_0", 1, "m-Q8_0.gguf", 2, QN_OK, "the vision tower mmproj-F16.gguf");
    expect("m-Q8_0.gguf=1 mmproj-F32.gguf=4 mmproj-BF16.gguf=2", "", 64 * gb, "m-Q8_0.gguf", 2, QN_OK,
           "mmproj-BF16.gguf");
    expect(both, "large-Q8_0.gguf", 1, "large-Q8_0.gguf", 2, QN_OK, "mmproj-large-f16.gguf");
    expect("m-Q8_0.gguf=1 mmproj-a-f16.gguf=1 mmproj-b-f16.gguf=1", "", 64 * gb, "m-Q8_0.gguf", 1, QN_OK,
           "2 vision towers are there, and none is taken");
    expect("a/m-Q8_0.gguf=1 mmproj-F16.gguf=1", "", 64 * gb, "a/m-Q8_0.gguf", 1, QN_OK, NULL);
    expect("config.json=1 model.safetensors=1 mmproj-F16.gguf=1", "", 64 * gb, "", 2, QN_OK, NULL);
    qn_hub_files l = make(types);
    qn_hub_choice c = {.no_tower = 1};
    assert_int_equal(qn_hub_choose("x", &l, "", 64 * gb, &c), QN_OK);
    assert_int_equal(c.files.n, 1);
    qn_hub_choice_free(&c);
    qn_hub_files_free(&l);
}

static void test_safetensors(void **state)
{
    static const char files[] =
        "config.json=1 tokenizer.json=1 model-00001-of-00002.safetensors=1000 "
        "model-00002-of-00002.safetensors=1000 model.safetensors.index.json=1 merges.txt=1 "
        "README.md=1 pytorch_model.bin=1 pytorch_model.bin.index.json=1 .gitattributes=1 "
        "consolidated.safetensors=1000 onnx/model.safetensors=9 data.json=300 chat_template.jinja=1 "
        "x/y.json=1";
    expect(files, "", 64 * gb, "", 7, QN_OK, NULL);
    expect(files, "", gb, "", 7, QN_OK, "of memory"); /* there is nothing smaller */
    expect("config.json=1 weights.safetensors=1", "", 64 * gb, "", 2, QN_OK, NULL);
    /* Modules of sentence-transformers come with modules.json. */
    expect("config.json=1 model.safetensors=1 modules.json=1 1_Pooling/config.json=1 2_Dense/config.json=1 "
           "2_Dense/model.safetensors=9 2_Dense/pytorch_model.bin=9 onnx/config.json=1",
           "", 64 * gb, "", 6, QN_OK, NULL);
    expect("config.json=1 model.safetensors=1 1_Pooling/config.json=1", "", 64 * gb, "", 2, QN_OK, NULL);
    expect("config.json=1 model.safetensors=8000 m-Q4_0.gguf=2000", "", 64 * gb, "", 2, QN_OK, "safetensors");
    expect("config.json=1 model.safetensors=8000 m-Q4_0.gguf=2000", "", 8 * gb, "m-Q4_0.gguf", 1, QN_OK,
           NULL);
    expect("config.json=1 model.safetensors=8000 m-Q4_0.gguf=2000", "Q4_0", 64 * gb, "m-Q4_0.gguf", 1, QN_OK,
           NULL);
    expect("config.json=1 model.safetensors=1", "Q4_0", 64 * gb, NULL, 0, QN_E_NOT_FOUND, "Q4_0");
    expect("config.json=1 pytorch_model.bin=1", "", 64 * gb, NULL, 0, QN_E_NOT_FOUND, "PyTorch");
    expect("", "", 64 * gb, NULL, 0, QN_E_NOT_FOUND, "neither");
}

static void test_quants_in_names(void **state)
{
    static const char *const rows[][2] = {{"a/Model-1.5B-Q4_K_M.gguf", "Q4_K_M"},
                                          {"model.q8_0.gguf", "Q8_0"},
                                          {"gpt-oss-20b-mxfp4.gguf", "MXFP4"},
                                          {"m-fp16.gguf", "FP16"},
                                          {"Q4_0/model.gguf", ""},
                                          {"mQ4_0.gguf", ""},
                                          {"m-Q4_0x.gguf", ""},
                                          {"m-UD-Q4_K_XL.gguf", "Q4_K_XL"},
                                          {"", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_string_equal(qn_hub_quant_of(rows[i][0]), rows[i][1]);
}

static void test_sizes(void **state)
{
    char text[32];
    assert_string_equal(qn_hub_size_text(0, text, sizeof text), "0 B");
    assert_string_equal(qn_hub_size_text(999, text, sizeof text), "999 B");
    assert_string_equal(qn_hub_size_text(1000, text, sizeof text), "1.0 kB");
    assert_string_equal(qn_hub_size_text(999999, text, sizeof text), "1.0 MB");
    assert_string_equal(qn_hub_size_text(123456789, text, sizeof text), "123 MB");
    assert_string_equal(qn_hub_size_text((int64_t)1 << 40, text, sizeof text), "1.1 TB");
    assert_true(qn_hub_machine_memory() > 0 && qn_hub_memory_needed(gb) > gb);
}

static void test_memory_runs_out(void **state)
{
    qn_hub_files l = make(PARTS), both = make("config.json=1 model.safetensors=8000 m-Q4_0.gguf=2000");
    for (int i = 0; i < 3; i++)
        for (int n = 1;; n++) {
            qn_hub_choice c = {0};
            const int64_t live = qn_mem_live_blocks();
            qn_mem_fail_nth(n);
            qn_status status = qn_hub_choose("x", i ? &l : &both, i == 2 ? "Q9" : "", 64 * gb, &c);
            qn_mem_fail_nth(0);
            qn_hub_choice_free(&c);
            assert_int_equal(qn_mem_live_blocks(), live);
            if (status == (i == 2 ? QN_E_NOT_FOUND : QN_OK)) break;
            assert_int_equal(status, QN_E_NOMEM);
            assert_true(n < 2000);
        }
    qn_hub_files_free(&l);
    qn_hub_files_free(&both);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_memory),       cmocka_unit_test(test_by_name),
        cmocka_unit_test(test_parts),           cmocka_unit_test(test_missing_parts),
        cmocka_unit_test(test_towers),          cmocka_unit_test(test_safetensors),
        cmocka_unit_test(test_quants_in_names), cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
