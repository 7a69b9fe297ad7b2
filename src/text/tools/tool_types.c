#include "text/tools/tool_types.h"

#include <stdlib.h>
#include <string.h>

enum { NULLS = 1, STRINGS = 2, OTHERS = 4, ALL = 7, DEPTH_MAX = 16, SCHEMAS_MAX = 1000 };

typedef struct {
    const json_t *root;
    int n_left; /* schemas that may still be looked at */
} lookup;

static unsigned type_of(const char *name)
{
    if (!name) return 0;
    return strcmp(name, "string") == 0 ? STRINGS : strcmp(name, "null") == 0 ? NULLS : OTHERS;
}

static unsigned type_of_value(const json_t *value)
{
    return json_is_string(value) ? STRINGS : json_is_null(value) ? NULLS : OTHERS;
}

/* What a "type" names; 0: there is none. */
static unsigned named_types(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    unsigned types = type_of(json_string_value(type));
    for (size_t i = 0; i < json_array_size(type); i++)
        types |= type_of(json_string_value(json_array_get(type, i)));
    return types;
}

/* The next part of a JSON pointer, unescaped, into part [n]. NULL: it has none, or is too long. */
static const char *next_part(const char *at, char *part, size_t n)
{
    size_t used = 0;
    if (*at++ != '/') return NULL;
    for (; *at && *at != '/'; at++) {
        char c = *at;
        if (c == '~' && (at[1] == '0' || at[1] == '1')) c = *++at == '0' ? '~' : '/';
        if (used + 1 >= n) return NULL;
        part[used++] = c;
    }
    part[used] = 0;
    return at;
}

/* What a reference inside of the document points to; NULL: nothing that is known here. */
static const json_t *find_reference(const json_t *root, const char *reference)
{
    char part[256];
    if (*reference++ != '#') return NULL;
    while (root && *reference) {
        reference = next_part(reference, part, sizeof part);
        if (!reference) return NULL;
        root =
            json_is_array(root) ? json_array_get(root, strtoul(part, NULL, 10)) : json_object_get(root, part);
    }
    return root;
}

static unsigned types_of(lookup *l, const json_t *schema, int depth);

static unsigned types_of_any(lookup *l, const json_t *list, int depth)
{
    unsigned types = json_is_array(list) ? 0 : ALL;
    for (size_t i = 0; i < json_array_size(list); i++) types |= types_of(l, json_array_get(list, i), depth);
    return types;
}

/* The types that a value of the schema may have, as far as they show without looking at values. */
static unsigned types_of(lookup *l, const json_t *schema, int depth)
{
    unsigned types = named_types(schema), some = 0;
    if (depth == 0 || l->n_left-- <= 0) return ALL;
    if (!types) types = ALL;
    const json_t *list = json_object_get(schema, "enum"), *value = json_object_get(schema, "const");
    for (size_t i = 0; i < json_array_size(list); i++) some |= type_of_value(json_array_get(list, i));
    if (some) types &= some;
    if (value) types &= type_of_value(value);
    const char *reference = json_string_value(json_object_get(schema, "$ref"));
    const json_t *target = reference ? find_reference(l->root, reference) : NULL;
    if (target) types &= types_of(l, target, depth - 1);
    types &= types_of_any(l, json_object_get(schema, "anyOf"), depth - 1);
    types &= types_of_any(l, json_object_get(schema, "oneOf"), depth - 1);
    list = json_object_get(schema, "allOf");
    for (size_t i = 0; i < json_array_size(list); i++)
        types &= types_of(l, json_array_get(list, i), depth - 1);
    return types;
}

qn_call_reading qn_call_reads(const json_t *parameters, const char *key, size_t n)
{
    const json_t *schema = json_object_getn(json_object_get(parameters, "properties"), key, n);
    unsigned types = named_types(schema);
    if (!(types & STRINGS)) {
        lookup l = {.root = parameters, .n_left = SCHEMAS_MAX};
        types = types_of(&l, schema, DEPTH_MAX);
        if (types & OTHERS) types = 0;
    }
    if (!(types & STRINGS)) return QN_READS_GUESS;
    return types & NULLS ? QN_READS_TEXT_OR_NULL : QN_READS_TEXT;
}

int qn_call_is_tool(const json_t *tools, const char *name, size_t n)
{
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        const char *known = json_string_value(json_object_get(function ? function : tool, "name"));
        if (known && strlen(known) == n && memcmp(known, name, n) == 0) return 1;
    }
    return 0;
}
