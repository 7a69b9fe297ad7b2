/* Streams a model's answer: generate MODEL PROMPT.
 * Build: cc generate.c $(pkg-config --cflags --libs quern) -o generate */
#include <quern/quern.h>
#include <stdio.h>

static int fail(void)
{
    fprintf(stderr, "generate: %s\n", qn_last_error());
    return 1;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: generate MODEL PROMPT\n");
        return 2;
    }
    qn_model *model = NULL;
    qn_model_options load = {0}; /* all defaults */
    qn_model_info info;
    if (qn_model_open(argv[1], &load, &model) != QN_OK) return fail();
    if (qn_model_get_info(model, &info) != QN_OK) {
        qn_model_close(&model);
        return fail();
    }
    fprintf(stderr, "%s, %lld layers, %d bits\n", info.architecture, (long long)info.num_layers,
            (int)info.quant_bits);

    /* A chat where the model knows how; else the text goes on as it is. */
    qn_generation *generation = NULL;
    qn_generate_options options = {.max_tokens = 64};
    qn_message message = {"user", argv[2]};
    qn_status status = info.has_chat_template ? qn_chat(model, &message, 1, &options, &generation)
                                              : qn_generate(model, argv[2], &options, &generation);
    qn_token token = {0};
    while (status == QN_OK && token.end == QN_END_NONE) {
        status = qn_generation_next(generation, &token);
        if (status == QN_OK) fwrite(token.text, 1, token.text_bytes, stdout);
        fflush(stdout);
    }
    printf("\n");
    qn_generation_stats stats;
    if (status == QN_OK) status = qn_generation_get_stats(generation, &stats);
    if (status == QN_OK)
        fprintf(stderr, "%lld tokens, %.1f per second, ended by %s\n", (long long)stats.n_generated_tokens,
                stats.decode_tokens_per_sec, qn_end_name(token.end));
    int code = status == QN_OK ? 0 : fail();
    qn_generation_close(generation);
    qn_model_close(&model);
    return code;
}
