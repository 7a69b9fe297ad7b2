#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/adapter/name_pattern.h"

#include <pcre2.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

enum { KEY_MAX = 4096, MATCH_LIMIT = 200000, HEAP_LIMIT_KIB = 16 << 10, NEST_LIMIT = 64 };

struct qn_name_pattern {
    pcre2_code *code;
    char *key;
};

/* PCRE2 does not always say that memory ran out. */
static _Thread_local int ran_out;

static void *take(size_t size_bytes, void *user)
{
    void *p = qn_alloc(size_bytes);
    (void)user;
    if (!p) ran_out = 1;
    return p;
}

static void give(void *p, void *user)
{
    (void)user;
    qn_free(p);
}

/* n_before: bytes of text before the key. */
static qn_status compile(qn_name_pattern *p, const char *text, size_t n, size_t n_before)
{
    int error = 0;
    size_t offset = 0;
    ran_out = 0;
    pcre2_general_context *memory = pcre2_general_context_create(take, give, NULL);
    pcre2_compile_context *context = memory ? pcre2_compile_context_create(memory) : NULL;
    if (context) {
        pcre2_set_parens_nest_limit(context, NEST_LIMIT);
        p->code = pcre2_compile((PCRE2_SPTR)text, n,
                                PCRE2_ANCHORED | PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C |
                                    PCRE2_NO_AUTO_POSSESS,
                                &error, &offset, context);
    }
    pcre2_compile_context_free(context);
    pcre2_general_context_free(memory);
    if (ran_out) return QN_E_NOMEM;
    if (p->code) return QN_OK;
    char why[128] = "";
    pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
    offset = offset > n_before ? offset - n_before : 0;
    return qn_fail(QN_E_FORMAT, "\"%.60s\" is not a regular expression: %s at byte %zu", p->key, why, offset);
}

qn_status qn_name_pattern_new(const char *key, qn_name_pattern **out)
{
    return qn_name_pattern_between("(.*\\.)?(", key, ")$", out);
}

qn_status qn_name_pattern_between(const char *before, const char *key, const char *after,
                                  qn_name_pattern **out)
{
    qn_buf text = {0};
    const size_t n = strlen(key);
    if (n > KEY_MAX)
        return qn_fail(QN_E_UNSUPPORTED, "\"%.40s\": a key of %zu bytes, at most %d are allowed", key, n,
                       KEY_MAX);
    qn_name_pattern *p = qn_calloc(1, sizeof *p);
    if (!p) return QN_E_NOMEM;
    p->key = qn_strdup(key);
    qn_buf_printf(&text, "%s%s%s", before, key, after);
    qn_status status = p->key ? text.status : QN_E_NOMEM;
    if (status == QN_OK) status = compile(p, text.data, text.length, strlen(before));
    qn_buf_free(&text);
    if (status == QN_OK)
        *out = p;
    else
        qn_name_pattern_free(p);
    return status;
}

void qn_name_pattern_free(qn_name_pattern *p)
{
    if (!p) return;
    pcre2_code_free(p->code);
    qn_free(p->key);
    qn_free(p);
}

/* Runs the expression; *rc: PCRE2's. digits, which may be NULL, gets what the group "idx" matched. */
static qn_status run(const qn_name_pattern *p, const char *name, int *rc, char digits[20])
{
    static const char group[] = "idx";
    PCRE2_SIZE n = 20;
    *rc = PCRE2_ERROR_NOMEMORY;
    ran_out = 0;
    pcre2_general_context *memory = pcre2_general_context_create(take, give, NULL);
    pcre2_match_context *context = memory ? pcre2_match_context_create(memory) : NULL;
    pcre2_match_data *data = context ? pcre2_match_data_create_from_pattern(p->code, memory) : NULL;
    if (data) {
        pcre2_set_match_limit(context, MATCH_LIMIT);
        pcre2_set_heap_limit(context, HEAP_LIMIT_KIB);
        *rc = pcre2_match(p->code, (PCRE2_SPTR)name, strlen(name), 0, 0, data, context);
    }
    if (digits) digits[0] = '\0';
    if (digits && *rc >= 0 &&
        pcre2_substring_copy_byname(data, (PCRE2_SPTR)group, (PCRE2_UCHAR *)digits, &n) != 0)
        digits[0] = '\0';
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_general_context_free(memory);
    if (ran_out) return QN_E_NOMEM;
    if (*rc < 0 && *rc != PCRE2_ERROR_NOMATCH)
        return qn_fail(QN_E_UNSUPPORTED, "\"%.60s\" takes too many steps for the name %.100s", p->key, name);
    return QN_OK;
}

qn_status qn_name_pattern_match(const qn_name_pattern *p, const char *name, int *matches)
{
    int rc;
    QN_TRY(run(p, name, &rc, NULL));
    *matches = rc >= 0;
    return QN_OK;
}

qn_status qn_name_pattern_number(const qn_name_pattern *p, const char *name, int64_t *value)
{
    char digits[20];
    int rc;
    QN_TRY(run(p, name, &rc, digits));
    *value = rc < 0 || !digits[0] || strlen(digits) > 18 ? -1 : 0;
    for (const char *d = digits; *value >= 0 && *d; d++) *value = 10 * *value + (*d - '0');
    return QN_OK;
}
