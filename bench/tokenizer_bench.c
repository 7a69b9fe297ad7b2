/* Loading of a tokenizer.json and encoding of texts, one thread: a line of JSON with the best of some rounds, in
 * seconds of the processor, so that other programs on the machine count for little.
 *
 *     tokenizer_bench FILE ROUNDS TEXT...     FILE is a tokenizer.json, or a folder with a tokenizer; each TEXT a file
 *
 * bench/tokenizers runs it beside the package tokenizers. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/mem.h"
#include "format/source/source.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_source.h"

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int fail(void)
{
    fprintf(stderr, "tokenizer_bench: %s\n", qn_last_error());
    return 1;
}

static qn_status open_once(const char *path, qn_tokenizer **out, double *ms)
{
    qn_source *source = NULL;
    const double start = cpu_seconds();
    QN_TRY(qn_source_open(path, &(qn_source_options){.text_only = 1}, &source));
    qn_status status = qn_tokenizer_open(source, NULL, out);
    qn_source_close(source);
    const double took = (cpu_seconds() - start) * 1e3;
    if (*ms <= 0 || took < *ms) *ms = took;
    return status;
}

static qn_status read_text(const char *path, qn_buf *out)
{
    char block[65536];
    FILE *f = fopen(path, "rb");
    if (!f) return qn_fail(QN_E_IO, "%s cannot be opened", path);
    for (size_t got; (got = fread(block, 1, sizeof block, f)) > 0;) qn_buf_append(out, block, got);
    fclose(f);
    return out->status;
}

static qn_status encode(const qn_tokenizer *t, const char *path, int rounds)
{
    qn_buf text = {0};
    double best = 0;
    size_t n = 0;
    qn_status status = read_text(path, &text);
    for (int i = 0; i < rounds && status == QN_OK; i++) {
        int32_t *ids = NULL;
        const double start = cpu_seconds();
        status = qn_tokenizer_encode(t, text.data, text.length, QN_ENCODE_SPECIAL, &ids, &n);
        const double seconds = cpu_seconds() - start;
        if (best <= 0 || seconds < best) best = seconds;
        qn_free(ids);
    }
    if (status == QN_OK) printf("{\"bytes\":%zu,\"ids\":%zu,\"seconds\":%.6f}\n", text.length, n, best);
    qn_buf_free(&text);
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        printf("tokenizer_bench FILE ROUNDS TEXT... (see bench/tokenizers)\n");
        return 0;
    }
    const int rounds = (int)strtol(argv[2], NULL, 10);
    qn_tokenizer *t = NULL;
    double ms = 0;
    for (int i = 0; i < rounds; i++) {
        qn_tokenizer_free(t);
        t = NULL;
        if (open_once(argv[1], &t, &ms) != QN_OK) return fail();
    }
    printf("{\"load_ms\":%.2f}\n", ms);
    for (int i = 3; i < argc; i++)
        if (encode(t, argv[i], rounds) != QN_OK) return fail();
    qn_tokenizer_free(t);
    return 0;
}
