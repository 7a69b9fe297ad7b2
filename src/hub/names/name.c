#include "hub/names/name.h"

#include <string.h>
#include <strings.h>

#include "base/utf8.h"
#include "hub/names/url.h"

enum { PART_MAX = 96 };

int qn_hub_is_plain_path(const char *path)
{
    const size_t n = strlen(path);
    if (!n || n >= QN_HUB_PICK_MAX || qn_utf8_valid_prefix(path, n) != n) return 0;
    for (const char *p = path; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f || *p == '\\') return 0;
    for (const char *p = path;; p++) {
        const size_t part = strcspn(p, "/");
        if (!part || (part == 1 && p[0] == '.') || (part == 2 && p[0] == '.' && p[1] == '.')) return 0;
        p += part;
        if (!*p) return 1;
    }
}

/* A part of a repository's name, as the Hub allows it; "--" would be its separator in the cache. */
static int is_part(const char *s, size_t n)
{
    if (!n || n > PART_MAX || s[0] == '.' || s[0] == '-' || s[n - 1] == '.' || s[n - 1] == '-') return 0;
    for (size_t i = 0; i < n; i++) {
        const char c = s[i], next = i + 1 < n ? s[i + 1] : 0;
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
              c == '_' || c == '-'))
            return 0;
        if ((c == '-' && next == '-') || (c == '.' && next == '.')) return 0;
    }
    return 1;
}

static int is_repo(const char *s, size_t n, int n_parts_min)
{
    const char *slash = memchr(s, '/', n);
    if (!slash) return n_parts_min < 2 && is_part(s, n);
    const size_t first = (size_t)(slash - s);
    return is_part(s, first) && is_part(slash + 1, n - first - 1);
}

static int is_revision(const char *s)
{
    for (const char *p = s; *p; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
              strchr("._-/", *p)))
            return 0;
    return qn_hub_is_plain_path(s) && s[0] != '-' && s[0] != '.' && !strstr(s, "..");
}

/* Copies text[0..n); 0: too long. */
static int take(char *to, size_t size, const char *text, size_t n)
{
    if (n >= size) return 0;
    memcpy(to, text, n);
    to[n] = 0;
    return 1;
}

/* org/name[@revision][:pick]; whole is what the user wrote. */
static qn_status read_hf(const char *whole, const char *text, int n_parts_min, qn_hub_name *out)
{
    const size_t n_repo = strcspn(text, "@:");
    const char *rest = text + n_repo;
    if (!is_repo(text, n_repo, n_parts_min) || !take(out->repo, sizeof out->repo, text, n_repo))
        return qn_fail(QN_E_ARG, "%s: '%.*s' is not the name of a repository (ORG/NAME)", whole,
                       (int)(n_repo < 200 ? n_repo : 200), text);
    take(out->revision, sizeof out->revision, "main", 4);
    if (*rest == '@') {
        const size_t n = strcspn(rest + 1, ":");
        if (!take(out->revision, sizeof out->revision, rest + 1, n) || !is_revision(out->revision))
            return qn_fail(QN_E_ARG, "%s: what follows '@' is not a branch, tag or commit", whole);
        rest += 1 + n;
    }
    if (*rest == ':' &&
        (!take(out->pick, sizeof out->pick, rest + 1, strlen(rest + 1)) || !qn_hub_is_plain_path(out->pick)))
        return qn_fail(QN_E_ARG, "%s: what follows ':' is neither a file nor a quantisation", whole);
    out->kind = QN_HUB_HF;
    return QN_OK;
}

static qn_status read_ollama(const char *whole, const char *text, qn_hub_name *out)
{
    const size_t n_repo = strcspn(text, ":");
    const char *tag = text[n_repo] ? text + n_repo + 1 : "latest";
    char repo[QN_HUB_REPO_MAX];
    if (!is_repo(text, n_repo, 1) || !take(repo, sizeof repo - 16, text, n_repo))
        return qn_fail(QN_E_ARG, "%s: after 'ollama:' a name, or NAMESPACE/NAME, is expected", whole);
    memcpy(out->repo, "library/", memchr(repo, '/', n_repo) ? 0 : 8);
    memcpy(out->repo + (memchr(repo, '/', n_repo) ? 0 : 8), repo, n_repo + 1);
    if (!is_part(tag, strlen(tag)) || !take(out->revision, sizeof out->revision, tag, strlen(tag)))
        return qn_fail(QN_E_ARG, "%s: what follows the second ':' is not a tag", whole);
    out->kind = QN_HUB_OLLAMA;
    return QN_OK;
}

static int ends_with(const char *s, size_t n, const char *end)
{
    const size_t length = strlen(end);
    return n > length && strncasecmp(s + n - length, end, length) == 0;
}

static qn_status read_url(const char *text, qn_hub_name *out)
{
    qn_url url;
    size_t n;
    qn_status status = qn_url_parse(text, &url);
    if (status != QN_OK) return qn_fail_prefix(status, "%s", text);
    const char *file = qn_url_file(&url, &n);
    if (!ends_with(file, n, ".gguf") || strchr(url.path, '#') ||
        !take(out->url, sizeof out->url, text, strlen(text)))
        return qn_fail(QN_E_ARG, "%s: the URL names no .gguf file; a model of the Hub is called hf:ORG/NAME",
                       text);
    if (!take(out->pick, sizeof out->pick, file, n) || !qn_hub_is_plain_path(out->pick) ||
        out->pick[0] == '.')
        return qn_fail(QN_E_ARG, "%s: the file's name is not a plain one", text);
    out->kind = QN_HUB_URL;
    return QN_OK;
}

/* "qwen3" and "qwen3:0.6b". */
static const qn_hub_short *find_short(const char *text)
{
    const size_t n = strlen(text);
    for (const qn_hub_short *s = qn_hub_shorts; s->name; s++)
        if (strcasecmp(s->name, text) == 0 ||
            (strncasecmp(s->name, text, n) == 0 && s->name[n] == ':' && !strchr(text, ':')))
            return s;
    return NULL;
}

static qn_status read_short(const qn_hub_short *known, qn_hub_name *out)
{
    QN_TRY(read_hf(known->name, known->repo, 2, out));
    if (strcmp(known->quant, "bf16") != 0)
        take(out->pick, sizeof out->pick, known->quant, strlen(known->quant));
    return QN_OK;
}

qn_status qn_hub_name_read(const char *text, int bare, qn_hub_name *out)
{
    qn_hub_name name = {.kind = QN_HUB_NONE};
    const qn_hub_short *known;
    qn_status status = QN_OK;
    if (strncmp(text, "hf:", 3) == 0)
        status = read_hf(text, text + (strncmp(text, "hf://", 5) == 0 ? 5 : 3), 1, &name);
    else if (strncmp(text, "ollama:", 7) == 0)
        status = read_ollama(text, text + 7, &name);
    else if (strncasecmp(text, "https://", 8) == 0 || strncasecmp(text, "http://", 7) == 0)
        status = read_url(text, &name);
    else if ((known = find_short(text)) != NULL)
        status = read_short(known, &name);
    else if (bare)
        status = read_hf(text, text, 2, &name);
    if (status == QN_OK) *out = name;
    return status;
}

void qn_hub_name_put(qn_buf *b, const qn_hub_name *name)
{
    if (name->kind == QN_HUB_URL) {
        qn_buf_puts(b, name->url);
    } else if (name->kind == QN_HUB_OLLAMA) {
        const int is_library = strncmp(name->repo, "library/", 8) == 0;
        qn_buf_printf(b, "ollama:%s", name->repo + (is_library ? 8 : 0));
        if (strcmp(name->revision, "latest") != 0) qn_buf_printf(b, ":%s", name->revision);
    } else {
        qn_buf_printf(b, "hf:%s", name->repo);
        if (strcmp(name->revision, "main") != 0) qn_buf_printf(b, "@%s", name->revision);
        if (name->pick[0]) qn_buf_printf(b, ":%s", name->pick);
    }
}
