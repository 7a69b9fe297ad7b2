/* Fuzz target: options out of YAML or JSON. */
#include <stddef.h>
#include <stdint.h>

#include "cli/command.h"
#include "cli/train/config_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    int flag, choice;
    int32_t integer;
    uint64_t large;
    double real;
    size_t bytes;
    const char *text, *words;
    qn_arg_list list;
} fuzz_options;

#define AT(field) offsetof(fuzz_options, field)
static const qn_arg args[] = {
    {"--strict", 0, QN_ARG_FLAG, AT(flag), 0, 0, NULL, ""},
    {"--method", 0, QN_ARG_CHOICE, AT(choice), 0, 0, "lora|dora|full", ""},
    {"--rank", 0, QN_ARG_INT32, AT(integer), 1, 1024, "N", ""},
    {"--seed", 0, QN_ARG_UINT64, AT(large), 0, 0, "N", ""},
    {"--lr", 0, QN_ARG_REAL, AT(real), 0, 1, "RATE", ""},
    {"--memory-limit", 0, QN_ARG_BYTES, AT(bytes), 0, 0, "SIZE", ""},
    {"--data", 0, QN_ARG_TEXT, AT(text), 0, 0, "PATH", ""},
    {"--targets", 0, QN_ARG_TEXT, AT(words), 0, 0, "LIST", ""},
    {"--stop", 0, QN_ARG_LIST, AT(list), 0, 0, "TEXT", ""},
    {"--config", 0, QN_ARG_TEXT, AT(text), 0, 0, "FILE", ""},
    {0},
};
static const qn_arg_group groups[] = {{NULL, args, 0, NULL}, {0}};
static const qn_arg_spec spec = {"", "", groups, 0, 0, NULL};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_options options = {0};
    qn_arena texts = {0};
    qn_config_file_take("fuzz", (const char *)data, size, &spec, "--config", &options, &texts);
    qn_arena_clear(&texts);
    return 0;
}
