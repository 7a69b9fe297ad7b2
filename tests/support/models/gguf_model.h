/* A fixture's directory as the GGUF file that llama.cpp's converter makes of it: names, keys, rows of queries
 * and keys in the order of its rotation. For families whose files a test cannot get otherwise. Failures end
 * the running test. */
#ifndef QUERN_TESTS_GGUF_MODEL_H
#define QUERN_TESTS_GGUF_MODEL_H

/* Writes folder/NAME.gguf of the fixture directory `from`, a phi3, smollm3, olmo2 or granite, and returns its
 * path, as qn_test_path does. Without a tokenizer. */
const char *qn_test_gguf_model(const char *folder, const char *from);

#endif
