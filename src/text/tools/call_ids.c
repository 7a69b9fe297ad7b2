#include "text/tools/call_ids.h"

#include <string.h>

#include "base/random.h"

static const struct {
    const char *prefix;
    int n_characters; /* behind it */
    int alphabet;     /* so many of the characters below */
} forms[QN_CALL_ID_FORMS] = {{"call_", 24, 16}, {"", 9, 62}};

static const char characters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
enum { CHARACTERS_PER_DRAW = 9 }; /* 62^9 < 2^64 */

static void write_id(qn_call_id_form form, uint64_t key, char *out)
{
    size_t n = strlen(forms[form].prefix);
    uint64_t bits = 0;
    memcpy(out, forms[form].prefix, n);
    for (int i = 0; i < forms[form].n_characters; i++) {
        if (i % CHARACTERS_PER_DRAW == 0) bits = qn_random_bits(key, (uint64_t)i);
        out[n++] = characters[bits % (uint64_t)forms[form].alphabet];
        bits /= (uint64_t)forms[form].alphabet;
    }
    out[n] = 0;
}

void qn_call_id_write(qn_call_id_form form, uint64_t seed, int64_t choice, int32_t index,
                      char out[QN_CALL_ID_BYTES_MAX])
{
    write_id(form, qn_random_bits(qn_random_bits(seed, (uint64_t)choice), (uint64_t)index), out);
}

static int has_form(qn_call_id_form form, const char *text, size_t n)
{
    const size_t prefix = strlen(forms[form].prefix);
    if (n != prefix + (size_t)forms[form].n_characters || memcmp(text, forms[form].prefix, prefix) != 0)
        return 0;
    for (size_t i = prefix; i < n; i++)
        if (!memchr(characters, text[i], (size_t)forms[form].alphabet)) return 0;
    return 1;
}

void qn_call_id_map(qn_call_id_form form, const char *text, size_t n, char out[QN_CALL_ID_BYTES_MAX])
{
    uint64_t key = n;
    if (has_form(form, text, n)) {
        memcpy(out, text, n);
        out[n] = 0;
        return;
    }
    for (size_t i = 0; i < n; i++) key = qn_random_bits(key, (unsigned char)text[i]);
    write_id(form, key, out);
}
