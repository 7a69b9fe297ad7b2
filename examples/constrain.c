/* Answers with JSON that satisfies a schema: constrain MODEL PROMPT.
 * Build: cc constrain.c $(pkg-config --cflags --libs quern) -o constrain */
#include <quern/quern.h>
#include <stdio.h>

static const char schema[] = "{\"type\": \"object\","
                             " \"properties\": {\"answer\": {\"enum\": [\"yes\", \"no\", \"unknown\"]},"
                             "                \"sure\": {\"type\": \"boolean\"}},"
                             " \"required\": [\"answer\", \"sure\"], \"additionalProperties\": false}";

static int fail(void)
{
    fprintf(stderr, "constrain: %s\n", qn_last_error());
    return 1;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: constrain MODEL PROMPT\n");
        return 2;
    }
    qn_model *model = NULL;
    qn_model_options load = {0}; /* all defaults */
    if (qn_model_open(argv[1], &load, &model) != QN_OK) return fail();

    /* Compiled once; a schema that cannot be enforced is refused here, with the place and the reason. */
    qn_constraint *constraint = NULL;
    qn_constraint_options form = {.kind = QN_CONSTRAIN_JSON_SCHEMA, .text = schema};
    qn_status status = qn_constraint_open(model, &form, &constraint);
    qn_constraint_note note;
    for (size_t i = 0; status == QN_OK && qn_constraint_get_note(constraint, i, &note) == QN_OK; i++)
        fprintf(stderr, "not enforced: %s: %s: %s\n", note.pointer, note.keyword, note.message);

    qn_generation *generation = NULL;
    qn_generate_options options = {.max_tokens = 64, .constraint = constraint};
    if (status == QN_OK) status = qn_generate(model, argv[2], &options, &generation);
    qn_token token = {0};
    while (status == QN_OK && token.end == QN_END_NONE) {
        status = qn_generation_next(generation, &token);
        if (status == QN_OK) fwrite(token.text, 1, token.text_bytes, stdout);
    }
    printf("\n");
    if (status == QN_OK && token.end != QN_END_STOP) /* max_tokens came first */
        fprintf(stderr, "the answer is not complete: %s\n", qn_end_name(token.end));
    int code = status == QN_OK ? 0 : fail();
    qn_generation_close(generation);
    qn_constraint_close(constraint);
    qn_model_close(&model);
    return code;
}
