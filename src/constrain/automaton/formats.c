#include "constrain/automaton/formats.h"

#include <stdatomic.h>
#include <string.h>

#include "constrain/automaton/dates.h"
#include "constrain/automaton/explore.h"
#include "constrain/automaton/regex.h"
#include "constrain/automaton/work.h"

/* RFC 3986 and 3987, RFC 4291, RFC 5321 and 6531, RFC 6570, RFC 6901, appendix A of RFC 3339. */
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4 OCTET "(?:\\." OCTET "){3}"
#define IPV6 "\\u{1}" /* stands for an address: see put_addresses */
#define PERCENT "%[\\dA-Fa-f]{2}"
#define PLAIN "A-Za-z\\d\\-._~!$&'()*+,;="
#define UCS                                                                                             \
    "\\u{a0}-\\u{d7ff}\\u{f900}-\\u{fdcf}\\u{fdf0}-\\u{ffef}\\u{10000}-\\u{1fffd}\\u{20000}-\\u{2fffd}" \
    "\\u{30000}-\\u{3fffd}\\u{40000}-\\u{4fffd}\\u{50000}-\\u{5fffd}\\u{60000}-\\u{6fffd}\\u{70000}-"   \
    "\\u{7fffd}\\u{80000}-\\u{8fffd}\\u{90000}-\\u{9fffd}\\u{a0000}-\\u{afffd}\\u{b0000}-\\u{bfffd}"    \
    "\\u{c0000}-\\u{cfffd}\\u{d0000}-\\u{dfffd}\\u{e1000}-\\u{efffd}"
#define PRIVATE "\\u{e000}-\\u{f8ff}\\u{f0000}-\\u{ffffd}\\u{100000}-\\u{10fffd}"
#define PCHAR(more) "(?:[" PLAIN ":@" more "]|" PERCENT ")"
#define HOST(more) "(?:\\[(?:" IPV6 "|[vV][\\dA-Fa-f]+\\.[" PLAIN ":]+)\\]|(?:[" PLAIN more "]|" PERCENT ")*)"
#define AUTHORITY(more) "(?:(?:[" PLAIN ":" more "]|" PERCENT ")*@)?" HOST(more) "(?::\\d*)?"
#define SEGMENTS(more) "(?:/" PCHAR(more) "*)*"
#define ROOTED(more) "//" AUTHORITY(more) SEGMENTS(more) "|/(?:" PCHAR(more) "+" SEGMENTS(more) ")?"
#define SCHEME "[A-Za-z][A-Za-z\\d+\\-.]*:"
#define TAIL(more, private) \
    "(?:\\?(?:[" PLAIN ":@/?" more private "]|" PERCENT ")*)?(?:#(?:[" PLAIN ":@/?" more "]|" PERCENT ")*)?"
#define URI(more, private) \
    SCHEME "(?:" ROOTED(more) "|" PCHAR(more) "+" SEGMENTS(more) "|)" TAIL(more, private)
#define RELATIVE(more, private) \
    "(?:" ROOTED(more) "|(?:[" PLAIN "@" more "]|" PERCENT ")+" SEGMENTS(more) "|)" TAIL(more, private)
#define POINTER "(?:/(?:[^~/]|~[01])*)*"
#define VARIABLE "(?:\\w|" PERCENT ")(?:\\.?(?:\\w|" PERCENT "))*(?::[1-9]\\d{0,3}|\\*)?"
#define DAYS "\\d+D"
#define MONTHS "\\d+M(?:" DAYS ")?"
#define SECONDS "\\d+S"
#define MINUTES "\\d+M(?:" SECONDS ")?"
#define CLOCK "T(?:\\d+H(?:" MINUTES ")?|" MINUTES "|" SECONDS ")"
#define ATEXT "[A-Za-z\\d!#$%&'*+\\-/=?^_`{|}~"
#define QUOTED(more) "\"(?:[ !#-\\[\\]-~" more "]|\\\\[ -~])*\""
#define LOCAL(more) "(?:" ATEXT more "]+(?:\\." ATEXT more "]+)*|" QUOTED(more) ")"
#define LITERAL "\\[(?:" IPV4 "|IPv6:" IPV6 ")\\]"
/* Nearly what IDNA takes in a label: letters that are not upper case, marks, digits; no compatibility forms. */
#define LABEL_BEGIN \
    "A-Za-z\\d\\u{df}-\\u{f6}\\u{f8}-\\u{2ff}\\u{370}-\\u{1fff}\\u{2c00}-\\u{d7ff}\\u{10000}-\\u{3fffd}"
#define LABEL_CHAR "[\\p{Ll}\\p{Lo}\\p{Lm}\\p{Mn}\\p{Mc}\\p{Nd}A-Z]"
#define LABEL_EDGE "(?=" LABEL_CHAR ")[" LABEL_BEGIN "]"
#define LABEL                                                                                 \
    LABEL_EDGE "(?:(?:-|(?=" LABEL_CHAR ")[" LABEL_BEGIN "\\u{300}-\\u{36f}])*(?=" LABEL_CHAR \
               ")[" LABEL_BEGIN "\\u{300}-\\u{36f}])?"

static const struct {
    const char *name, *pattern;
} PATTERNS[] = {
    {"duration", "P(?:(?:\\d+Y(?:" MONTHS ")?|" MONTHS "|" DAYS ")(?:" CLOCK ")?|" CLOCK "|\\d+W)"},
    {"ipv4", IPV4},
    {"uri", URI("", "")},
    {"uri-reference", URI("", "") "|" RELATIVE("", "")},
    {"iri", URI(UCS, PRIVATE)},
    {"iri-reference", URI(UCS, PRIVATE) "|" RELATIVE(UCS, PRIVATE)},
    {"uri-template", "(?:[!#$&'()*+,\\-./:;=?@\\[\\]_~\\w" UCS PRIVATE "]|" PERCENT
                     "|\\{[+#./;?&=,!@|]?" VARIABLE "(?:," VARIABLE ")*\\})*"},
    {"json-pointer", POINTER},
    {"relative-json-pointer", "(?:0|[1-9]\\d*)(?:#|" POINTER ")"},
    {"uuid", "[\\dA-Fa-f]{8}(?:-[\\dA-Fa-f]{4}){3}-[\\dA-Fa-f]{12}"},
};

/* --- IPv6: up to eight groups of up to four hexadecimal digits; an IPv4 address may stand for the last two, and
 * "::" once for one group or more. As a regular expression it is slow to compile: what it may still be is much. --- */

typedef struct {
    uint8_t n_groups; /* begun; an IPv4 address counts two */
    uint8_t is_short; /* "::" was there */
    uint8_t n_digits; /* of this group; 0: behind a colon, or at the begin */
    uint8_t n_colons; /* just before */
    uint8_t octet;    /* what its digits are as a number up to 255 */
    uint8_t n_dots;
    uint8_t unused[2];
} address_state;

/* The digits of an octet so far: no octet; "0"; "1"; "2"; "3" to "9"; two digits that any third may follow; "25"; an
 * octet that takes no further digit. */
enum { OCTET_NONE, OCTET_0, OCTET_1, OCTET_2, OCTET_3, OCTET_TWO, OCTET_25, OCTET_FULL };

static uint8_t octet_behind(uint8_t octet, int is_first, uint8_t byte)
{
    if (byte < '0' || byte > '9') return OCTET_NONE;
    if (is_first) return byte > '2' ? OCTET_3 : (uint8_t)(OCTET_0 + byte - '0');
    switch (octet) {
    case OCTET_1:
        return OCTET_TWO;
    case OCTET_2:
        return byte < '5' ? OCTET_TWO : byte == '5' ? OCTET_25 : OCTET_FULL;
    case OCTET_3:
    case OCTET_TWO:
        return OCTET_FULL;
    case OCTET_25:
        return byte < '6' ? OCTET_FULL : OCTET_NONE;
    default:
        return OCTET_NONE;
    }
}

static int move_address(const void *context, uint32_t *words, uint8_t byte)
{
    address_state s;
    memcpy(&s, words, sizeof s);
    if (byte == ':') {
        if (s.n_dots) return 0;
        if (s.n_digits == 0 && s.n_groups && s.n_colons == 0) return 0;
        if (s.n_colons == 2 || (s.n_colons == 1 && s.is_short)) return 0;
        if (s.n_digits && s.n_groups == 8) return 0;
        s.is_short |= s.n_colons == 1;
        s.n_colons++;
        s.n_digits = s.octet = 0;
    } else if (byte == '.') {
        if (!s.octet || s.n_dots == 3 || !s.n_digits) return 0;
        if (s.n_dots == 0) {
            if (s.n_groups == 8 || (!s.is_short && s.n_groups != 7)) return 0;
            s.n_groups++;
        }
        s.n_dots++;
        s.n_digits = s.octet = 0;
    } else {
        if (s.n_digits == 0 && s.n_dots == 0) {
            if (s.n_colons == 1 && s.n_groups == 0) return 0; /* ":1" */
            s.n_groups++;
            if (s.n_groups > 8 || (s.is_short && s.n_groups > 7)) return 0;
        }
        s.n_colons = 0;
        if (++s.n_digits > 4) return 0;
        s.octet = octet_behind(s.octet, s.n_digits == 1, byte);
        if (s.n_dots && !s.octet) return 0;
        /* An octet matters only where an IPv4 address fits. */
        if (!s.n_dots && (s.is_short ? s.n_groups > 6 : s.n_groups != 7)) s.octet = OCTET_NONE;
    }
    memcpy(words, &s, sizeof s);
    return 1;
}

static int accepts_address(const void *context, const uint32_t *words)
{
    address_state s;
    memcpy(&s, words, sizeof s);
    if (s.n_dots) return s.n_dots == 3 && s.n_digits && (s.is_short || s.n_groups == 8);
    if (s.n_colons) return s.n_colons == 2;
    return s.n_digits && (s.is_short || s.n_groups == 8);
}

static qn_status ipv6(qn_dfa_work *w, qn_dfa **out)
{
    qn_explorer e = {.n_words = sizeof(address_state) / sizeof(uint32_t),
                     .move = move_address,
                     .accepts = accepts_address};
    qn_explorer_classes(&e, "0125:.", "3469af");
    for (int b = 'A'; b <= 'F'; b++) e.class_of[b] = e.class_of[b | 32];
    address_state start = {0};
    return qn_dfa_explore(w, &e, &start, out);
}

/* The texts of d with an address in place of each character U+0001, which stands in one place of the pattern: one
 * state has an edge with it, and behind it comes what begins no address and goes on with none. */
static qn_status put_addresses(qn_dfa_work *w, const qn_dfa *d, qn_dfa **out)
{
    qn_dfa *a;
    QN_TRY(ipv6(w, &a));
    int32_t n = d->n_states + a->n_states, n_classes = 0, at = 0;
    uint8_t class_of[256], byte_of[256];
    for (int b = 0; b < 256; b++) {
        int32_t c = 0;
        while (c < n_classes &&
               (d->class_of[byte_of[c]] != d->class_of[b] || a->class_of[byte_of[c]] != a->class_of[b]))
            c++;
        if (c == n_classes) byte_of[n_classes++] = (uint8_t)b;
        class_of[b] = (uint8_t)c;
    }
    qn_status s = QN_OK;
    int32_t *next = qn_arena_calloc(&w->arena, (size_t)n * (size_t)n_classes, sizeof *next);
    uint8_t *accepts = qn_arena_calloc(&w->arena, (size_t)n, 1);
    if (!next || !accepts) s = QN_E_NOMEM;
    while (at < d->n_states && !qn_dfa_step(d, at, 1)) at++;
    for (int32_t i = 0; i < n && s == QN_OK; i++) {
        int in_address = i >= d->n_states;
        int32_t state = in_address ? i - d->n_states : a->start; /* of a; meaningful at `at` too */
        if (!in_address) accepts[i] = d->flags[i] & QN_DFA_ACCEPTS;
        for (int32_t c = 0; c < n_classes; c++) {
            int32_t in_a = in_address || i == at ? qn_dfa_step(a, state, byte_of[c]) : 0, to;
            if (in_a) {
                to = d->n_states + in_a;
            } else if (in_address) {
                to = a->flags[state] & QN_DFA_ACCEPTS ? qn_dfa_step(d, qn_dfa_step(d, at, 1), byte_of[c]) : 0;
            } else {
                to = byte_of[c] == 1 ? 0 : qn_dfa_step(d, i, byte_of[c]);
            }
            next[(size_t)i * (size_t)n_classes + (size_t)c] = to;
        }
    }
    qn_dfa_limits limits = qn_dfa_work_limits(w);
    if (s == QN_OK) s = qn_dfa_new(n, n_classes, class_of, next, accepts, d->start, &limits, out);
    qn_dfa_release(a);
    return s;
}

static qn_status from_pattern(qn_dfa_work *w, const char *pattern, qn_dfa **out)
{
    qn_dfa_limits limits = qn_dfa_work_limits(w);
    limits.pattern_bytes_max = 1 << 20;
    if (!strstr(pattern, IPV6)) return qn_dfa_regex(pattern, strlen(pattern), QN_REGEX_WHOLE, &limits, out);
    qn_dfa *d;
    QN_TRY(qn_dfa_regex(pattern, strlen(pattern), QN_REGEX_WHOLE, &limits, &d));
    qn_status s = put_addresses(w, d, out);
    qn_dfa_release(d);
    return s;
}

/* --- Host names: labels of 1 to 63 letters, digits and hyphens, which stand at no edge; 253 bytes at most. The
 * sum of the lengths is counted in units, rounded up label by label, so that states stay few: a name of very
 * many very short labels may be refused although it is just short enough. --- */

typedef struct {
    uint32_t unit_bytes;
    int may_be_encoded; /* labels that begin with "xn--" */
} host_rules;

typedef struct {
    uint32_t n_units, n_label, is_hyphen, n_prefix; /* of "xn--"; 5: none */
} host_state;

enum { LABEL_MAX = 63, HOST_MAX = 253, NO_PREFIX = 5 };

static int move_host(const void *context, uint32_t *words, uint8_t byte)
{
    const host_rules *r = context;
    host_state s;
    memcpy(&s, words, sizeof s);
    if (byte == '.') {
        if (!s.n_label || s.is_hyphen) return 0;
        s.n_units += (s.n_label + 1 + r->unit_bytes - 1) / r->unit_bytes;
        s.n_label = s.n_prefix = 0;
    } else {
        if (byte == '-' && !s.n_label) return 0;
        s.is_hyphen = byte == '-';
        s.n_label++;
        if (s.n_prefix < 4) {
            int is_next = (s.n_prefix < 2 ? byte | 32 : byte) == "xn--"[s.n_prefix];
            s.n_prefix = is_next ? s.n_prefix + 1 : NO_PREFIX;
            if (s.n_prefix == 4 && !r->may_be_encoded) return 0;
            if (s.n_prefix == 4) s.n_prefix = NO_PREFIX;
        }
    }
    if (s.n_label > LABEL_MAX || s.n_units * r->unit_bytes + s.n_label + (s.n_label == 0) > HOST_MAX)
        return 0;
    memcpy(words, &s, sizeof s);
    return 1;
}

static int accepts_host(const void *context, const uint32_t *words)
{
    host_state s;
    memcpy(&s, words, sizeof s);
    return s.n_label && !s.is_hyphen;
}

static qn_status host(qn_dfa_work *w, host_rules rules, qn_dfa **out)
{
    qn_explorer e = {.context = &rules,
                     .n_words = sizeof(host_state) / sizeof(uint32_t),
                     .move = move_host,
                     .accepts = accepts_host};
    qn_explorer_classes(&e, ".-xXnN", "azAZ09");
    host_state start = {.n_prefix = rules.may_be_encoded ? NO_PREFIX : 0};
    return qn_dfa_explore(w, &e, &start, out);
}

/* Texts of at most n bytes, whatever bytes. To be intersected. */
static qn_status bytes_at_most(const qn_dfa_work *w, int32_t n, qn_dfa **out)
{
    int32_t next[257];
    uint8_t accepts[257], class_of[256] = {0};
    memset(accepts, 1, sizeof accepts);
    accepts[n + 1] = 0;
    for (int32_t i = 0; i <= n + 1; i++) next[i] = i <= n ? i + 1 : i;
    qn_dfa_limits limits = qn_dfa_work_limits(w);
    return qn_dfa_new(n + 2, 1, class_of, next, accepts, 0, &limits, out);
}

static qn_status email(qn_dfa_work *w, int is_international, qn_dfa **out)
{
    enum { LOCAL_MAX = 64, UNIT = 16 };
    qn_dfa *local = NULL, *few = NULL, *short_local = NULL, *at = NULL, *domain = NULL, *literal = NULL,
           *behind = NULL;
    qn_dfa_limits limits = qn_dfa_work_limits(w);
    qn_status s = from_pattern(w, is_international ? LOCAL("\\u{80}-\\u{10ffff}") : LOCAL(""), &local);
    if (s == QN_OK) s = bytes_at_most(w, LOCAL_MAX, &few);
    if (s == QN_OK) s = qn_dfa_intersect(local, few, &limits, &short_local);
    if (s == QN_OK) s = qn_dfa_texts(&(qn_text_ref){"@", 1}, 1, &limits, &at);
    if (s == QN_OK && is_international) s = from_pattern(w, LABEL "(?:\\." LABEL ")*", &domain);
    if (s == QN_OK && !is_international) s = host(w, (host_rules){UNIT, 1}, &domain);
    if (s == QN_OK) s = from_pattern(w, LITERAL, &literal);
    if (s == QN_OK) s = qn_dfa_unite(domain, literal, &limits, &behind);
    if (s == QN_OK) s = qn_dfa_concatenate_all((qn_dfa *[]){short_local, at, behind}, 3, &limits, out);
    qn_dfa *all[] = {local, few, short_local, at, domain, literal, behind};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) qn_dfa_release(all[i]);
    return s;
}

static qn_status format(qn_dfa_work *w, const char *name, qn_dfa **out)
{
    if (!strcmp(name, "date")) return qn_dfa_dates(w, QN_DATE, out);
    if (!strcmp(name, "time")) return qn_dfa_dates(w, QN_TIME, out);
    if (!strcmp(name, "date-time")) return qn_dfa_dates(w, QN_DATE | QN_TIME, out);
    if (!strcmp(name, "ipv6")) return ipv6(w, out);
    if (!strcmp(name, "hostname")) return host(w, (host_rules){4, 0}, out);
    if (!strcmp(name, "email")) return email(w, 0, out);
    if (!strcmp(name, "idn-email")) return email(w, 1, out);
    for (size_t i = 0; i < sizeof PATTERNS / sizeof *PATTERNS; i++) {
        if (!strcmp(name, PATTERNS[i].name)) return from_pattern(w, PATTERNS[i].pattern, out);
    }
    if (!strcmp(name, "regex"))
        return qn_fail(QN_E_UNSUPPORTED,
                       "format regex: what is a regular expression is not a regular language");
    if (!strcmp(name, "idn-hostname"))
        return qn_fail(QN_E_UNSUPPORTED, "format idn-hostname: IDNA2008 is not a regular language");
    return qn_fail(QN_E_NOT_FOUND, "no format of the drafts is named \"%.60s\"", name);
}

/* ---- kept ---------------------------------------------------------------------------------------------- */

/* Those that take long to make are made once for the process: a name always means the same. */
static const char *const KEPT[] = {"email", "idn-email",     "hostname", "time",         "date-time",
                                   "uri",   "uri-reference", "iri",      "iri-reference"};
enum { N_KEPT = sizeof KEPT / sizeof *KEPT };
static _Atomic(qn_dfa *) kept[N_KEPT];

/* Whether a format is refused must not depend on what was made before. The usual limits suffice for all that are
 * kept, so they are given to callers with these or larger ones. */
static int find_kept(const qn_dfa_work *w, const char *name)
{
    qn_dfa_work usual;
    qn_dfa_work_begin(&usual, NULL);
    int is_enough = w->pattern_bytes_max >= usual.pattern_bytes_max && w->depth_max >= usual.depth_max &&
                    w->states_max >= usual.states_max && w->steps_max >= usual.steps_max;
    qn_dfa_work_end(&usual);
    for (int i = 0; i < N_KEPT && is_enough; i++)
        if (strcmp(name, KEPT[i]) == 0) return i;
    return -1;
}

static void keep(int i, qn_dfa *d)
{
    qn_dfa *none = NULL;
    qn_dfa_retain(d);
    if (!atomic_compare_exchange_strong(&kept[i], &none, d)) qn_dfa_release(d);
}

void qn_dfa_formats_forget(void)
{
    for (int i = 0; i < N_KEPT; i++) qn_dfa_release(atomic_exchange(&kept[i], NULL));
}

qn_status qn_dfa_format(const char *name, const qn_dfa_limits *limits, qn_dfa **out)
{
    qn_dfa_work w;
    qn_dfa_work_begin(&w, limits);
    int i = find_kept(&w, name);
    qn_dfa *d = i < 0 ? NULL : atomic_load(&kept[i]);
    qn_status s = QN_OK;
    if (d)
        *out = qn_dfa_retain(d);
    else
        s = format(&w, name, out);
    if (!d && s == QN_OK && i >= 0) keep(i, *out);
    qn_dfa_work_end(&w);
    return s;
}

qn_status qn_dfa_content(const char *keyword, const char *value, const qn_dfa_limits *limits, qn_dfa **out)
{
    static const char base64[] =
        "(?:[A-Za-z0-9+/]{4}(?:\\r?\\n)?)*(?:(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)(?:\\r?\\n)?)?";
    if (!strcmp(keyword, "contentEncoding") && !strcmp(value, "base64"))
        return qn_dfa_regex(base64, sizeof base64 - 1, QN_REGEX_WHOLE, limits, out);
    if (!strcmp(keyword, "contentMediaType") && !strcmp(value, "application/json"))
        return qn_fail(QN_E_UNSUPPORTED, "what is JSON is not a regular language");
    return qn_fail(QN_E_NOT_FOUND, "%s %.60s is an annotation", keyword, value);
}
