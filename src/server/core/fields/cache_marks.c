#include "server/core/fields/cache_marks.h"

#include <stdio.h>
#include <string.h>

enum { PLACE_MAX = 112, MINUTE_MS = 60000, KEY_BYTES_MAX = 1024 };

static int is_given(const json_t *value)
{
    return value && !json_is_null(value);
}

/* ---- times --------------------------------------------------------------------------------------------- */

typedef struct {
    const char *text;
    int64_t ms;
} time_name;

static const time_name anthropic_times[] = {{"5m", 5 * MINUTE_MS}, {"1h", 60 * MINUTE_MS}, {0}},
                       openai_times[] = {{"30m", 30 * MINUTE_MS}, {"12h", 12 * 60 * MINUTE_MS}, {0}},
                       retentions[] = {{"in_memory", 30 * MINUTE_MS},
                                       {"in-memory", 30 * MINUTE_MS},
                                       {"24h", 24 * 60 * (int64_t)MINUTE_MS},
                                       {0}};

/* One of the names; `place` is at fault. */
static int read_time(const json_t *value, const char *place, const time_name *names, int64_t *ms,
                     qn_api_error *error)
{
    const char *text = json_string_value(value);
    const time_name *n = names;
    while (text && n->text && strcmp(n->text, text) != 0) n++;
    if (!text || !n->text)
        return qn_api_fail(error, 400, "invalid_value", place, "%s must be \"%s\" or \"%s\"", place,
                           names[0].text, names == retentions ? names[2].text : names[1].text);
    *ms = n->ms;
    return 0;
}

/* ---- objects ------------------------------------------------------------------------------------------- */

/* An object of two texts: `first`, which is one of `allowed`, and "ttl". */
static int read_object(const json_t *value, const char *place, const char *first, const char *const *allowed,
                       const time_name *times, const char **found, int64_t *ms, qn_api_error *error)
{
    char param[PLACE_MAX + 80];
    const char *key;
    json_t *each;
    if (!json_is_object(value))
        return qn_api_fail(error, 400, "invalid_value", place, "%s must be an object", place);
    json_object_foreach((json_t *)value, key, each)
    {
        snprintf(param, sizeof param, "%s.%.64s", place, key);
        if (json_is_null(each)) continue;
        if (strcmp(key, first) == 0) {
            const char *text = json_string_value(each);
            while (text && *allowed && strcmp(*allowed, text) != 0) allowed++;
            if (!text || !*allowed)
                return qn_api_fail(error, 400, "invalid_value", param, "%s has an unknown value", param);
            *found = *allowed;
        } else if (strcmp(key, "ttl") == 0) {
            const int refused = read_time(each, param, times, ms, error);
            if (refused) return refused;
        } else {
            return qn_api_fail(error, 400, "unknown_parameter", param, "unknown parameter: %s", param);
        }
    }
    return 0;
}

static int read_control(const json_t *value, const char *place, int64_t *ms, qn_api_error *error)
{
    static const char *const types[] = {"ephemeral", NULL};
    const char *type = NULL;
    *ms = anthropic_times[0].ms;
    return read_object(value, place, "type", types, anthropic_times, &type, ms, error);
}

static int read_breakpoint(const json_t *value, const char *place, int64_t *ms, qn_api_error *error)
{
    static const char *const modes[] = {"explicit", NULL};
    const char *mode = NULL;
    *ms = 0;
    return read_object(value, place, "mode", modes, openai_times, &mode, ms, error);
}

int qn_cache_mark_read(qn_api_request *r, const json_t *object, const char *place, size_t n_messages,
                       size_t n_text, qn_api_error *error)
{
    const json_t *control = json_object_get(object, "cache_control"),
                 *breakpoint = json_object_get(object, "prompt_cache_breakpoint");
    char where[PLACE_MAX + 32];
    int64_t ms = 0;
    int refused = 0;
    if (is_given(control)) {
        snprintf(where, sizeof where, "%.*s.cache_control", PLACE_MAX, place);
        refused = read_control(control, where, &ms, error);
        if (!refused && r->n_marks == QN_PREFIX_PINS_MAX)
            return qn_api_fail(error, 400, "invalid_value", where,
                               "%s: at most %d blocks may have cache_control", where,
                               (int)QN_PREFIX_PINS_MAX);
    } else if (is_given(breakpoint)) {
        snprintf(where, sizeof where, "%.*s.prompt_cache_breakpoint", PLACE_MAX, place);
        refused = read_breakpoint(breakpoint, where, &ms, error);
        if (!refused && r->n_marks == QN_PREFIX_PINS_MAX)
            memmove(r->marks, r->marks + 1, --r->n_marks * sizeof *r->marks);
    } else {
        return 0;
    }
    if (!refused) r->marks[r->n_marks++] = (qn_cache_mark){n_messages, n_text, ms};
    return refused;
}

int qn_cache_is_marked(const qn_api_request *r)
{
    return r->n_marks > 0 || (r->keep_whole && !r->no_whole);
}

/* ---- fields -------------------------------------------------------------------------------------------- */

static void keep_for(qn_api_request *r, int64_t ms)
{
    r->keep_whole = 1;
    if (ms > r->keep_ttl_ms) r->keep_ttl_ms = ms;
}

int qn_field_read_cache_control(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                                qn_api_error *error)
{
    int64_t ms = 0;
    const int refused = read_control(value, "cache_control", &ms, error);
    (void)limits;
    if (!refused) keep_for(r, ms);
    return refused;
}

int qn_field_read_cache_breakpoint(qn_api_request *r, const json_t *value,
                                   const qn_api_request_limits *limits, qn_api_error *error)
{
    int64_t ms = 0;
    const int refused = read_breakpoint(value, "prompt_cache_breakpoint", &ms, error);
    (void)limits;
    if (!refused) keep_for(r, ms);
    return refused;
}

/* A key says that more requests of this kind will come. Prefixes are found by their tokens alone. */
int qn_field_read_cache_key(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                            qn_api_error *error)
{
    (void)limits;
    if (!json_is_string(value) || json_string_length(value) > KEY_BYTES_MAX)
        return qn_api_fail(error, 400, "invalid_value", "prompt_cache_key",
                           "prompt_cache_key must be a string of at most %d bytes", (int)KEY_BYTES_MAX);
    keep_for(r, 0);
    return 0;
}

int qn_field_read_cache_options(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                                qn_api_error *error)
{
    static const char *const modes[] = {"implicit", "explicit", NULL};
    const char *mode = NULL;
    int64_t ms = 0;
    const int refused =
        read_object(value, "prompt_cache_options", "mode", modes, openai_times, &mode, &ms, error);
    (void)limits;
    if (refused) return refused;
    keep_for(r, ms);
    r->no_whole |= mode == modes[1];
    return 0;
}

int qn_field_read_cache_retention(qn_api_request *r, const json_t *value, const qn_api_request_limits *limits,
                                  qn_api_error *error)
{
    int64_t ms = 0;
    const int refused = read_time(value, "prompt_cache_retention", retentions, &ms, error);
    (void)limits;
    if (!refused) keep_for(r, ms);
    return refused;
}
