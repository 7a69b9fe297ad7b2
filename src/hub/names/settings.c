#include "hub/names/settings.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/cache_folder.h"
#include "hub/names/hosts_table.h"
#include "hub/names/url.h"

enum { TIMEOUT_S = 30, TOKEN_BYTES_MAX = 4096 };

/* NULL for what is unset or empty. */
static const char *get(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* As huggingface_hub reads a switch. */
static int is_true(const char *name)
{
    static const char *const words[] = {"1", "on", "yes", "true"};
    const char *value = get(name);
    for (size_t i = 0; value && i < sizeof words / sizeof *words; i++)
        if (strcasecmp(value, words[i]) == 0) return 1;
    return 0;
}

/* Appends a path whose "~/" is the home folder. */
static void put_path(qn_buf *b, const char *path)
{
    const char *home = get("HOME");
    if (home && path[0] == '~' && (path[1] == '/' || !path[1]))
        qn_buf_printf(b, "%s%s", home, path + 1);
    else
        qn_buf_puts(b, path);
    while (b->status == QN_OK && b->length > 1 && b->data[b->length - 1] == '/') b->data[--b->length] = 0;
}

static qn_status put_hf_home(qn_buf *b)
{
    if (get("HF_HOME"))
        put_path(b, get("HF_HOME"));
    else if (get("XDG_CACHE_HOME"))
        put_path(b, get("XDG_CACHE_HOME")), qn_buf_puts(b, "/huggingface");
    else if (get("HOME"))
        put_path(b, get("HOME")), qn_buf_puts(b, "/.cache/huggingface");
    else
        return qn_fail(QN_E_NOT_FOUND, "there is no folder for models: neither HF_HUB_CACHE nor HOME is set");
    return b->status;
}

static qn_status read_folders(qn_hub_settings *s)
{
    const char *cache = get("HF_HUB_CACHE") ? get("HF_HUB_CACHE") : get("HUGGINGFACE_HUB_CACHE");
    if (cache) {
        put_path(&s->cache, cache);
    } else {
        QN_TRY(put_hf_home(&s->cache));
        qn_buf_puts(&s->cache, "/hub");
    }
    QN_TRY(s->cache.status);
    QN_TRY(qn_cache_folder(&s->own));
    qn_buf_puts(&s->own, "/hub");
    return s->own.status;
}

static qn_status read_endpoint(const char *name, const char *otherwise, qn_buf *out)
{
    qn_url url;
    const char *value = get(name);
    put_path(out, value ? value : otherwise);
    QN_TRY(out->status);
    qn_status status = qn_url_parse(out->data, &url);
    if (status == QN_OK && strpbrk(url.path, "?#")) status = qn_fail(QN_E_ARG, "the URL has a '?' or '#'");
    return status == QN_OK ? QN_OK : qn_fail_prefix(status, "%s", name);
}

/* Takes text as a token, without the white space around it. from names it in messages, which never show it. */
static qn_status take_token(const char *from, const char *text, size_t n, qn_buf *out)
{
    while (n && strchr(" \t\r\n", text[n - 1])) n--;
    while (n && strchr(" \t\r\n", *text)) text++, n--;
    for (size_t i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return qn_fail(QN_E_ARG, "%s: the token has a character that no token has", from);
    qn_buf_append(out, text, n);
    return out->status;
}

static qn_status read_token_file(qn_buf *out)
{
    char text[TOKEN_BYTES_MAX + 1];
    qn_buf path = {0};
    qn_status status = QN_OK;
    if (get("HF_TOKEN_PATH"))
        put_path(&path, get("HF_TOKEN_PATH"));
    else if ((status = put_hf_home(&path)) == QN_OK)
        qn_buf_puts(&path, "/token");
    if (status == QN_OK) status = path.status;
    int file = status == QN_OK ? open(path.data, O_RDONLY | O_CLOEXEC) : -1;
    if (status == QN_OK && file < 0 && errno != ENOENT && errno != ENOTDIR)
        status = qn_fail(QN_E_IO, "%s: %s", path.data, strerror(errno));
    if (file >= 0) {
        ssize_t n = read(file, text, sizeof text);
        if (n < 0)
            status = qn_fail(QN_E_IO, "%s: %s", path.data, strerror(errno));
        else if (n > TOKEN_BYTES_MAX)
            status = qn_fail(QN_E_FORMAT, "%s: larger than any token", path.data);
        else
            status = take_token(path.data, text, (size_t)n, out);
        close(file);
    }
    qn_buf_free(&path);
    return status;
}

static qn_status read_token(qn_buf *out)
{
    static const char *const names[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"};
    if (is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return QN_OK;
    for (size_t i = 0; i < 2; i++)
        if (get(names[i])) return take_token(names[i], get(names[i]), strlen(get(names[i])), out);
    return read_token_file(out);
}

static qn_status read_timeout(int *out)
{
    const char *text = get("HF_HUB_DOWNLOAD_TIMEOUT");
    *out = TIMEOUT_S;
    if (!text) return QN_OK;
    if (strlen(text) > 5 || strspn(text, "0123456789") != strlen(text) || strtol(text, NULL, 10) < 1)
        return qn_fail(QN_E_ARG, "HF_HUB_DOWNLOAD_TIMEOUT: '%s' is not a number of seconds", text);
    *out = (int)strtol(text, NULL, 10);
    return QN_OK;
}

qn_status qn_hub_settings_read(qn_hub_settings *s)
{
    static const char *const offline[] = {"QUERN_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"};
    for (size_t i = 0; i < 3 && !s->offline_by; i++)
        if (is_true(offline[i])) s->offline_by = offline[i];
    QN_TRY(read_folders(s));
    QN_TRY(read_endpoint("HF_ENDPOINT", QN_HUB_HF_HOST, &s->endpoint));
    QN_TRY(read_endpoint("QUERN_OLLAMA_ENDPOINT", QN_HUB_OLLAMA_HOST, &s->ollama));
    QN_TRY(read_timeout(&s->timeout_s));
    return read_token(&s->token);
}

void qn_hub_settings_free(qn_hub_settings *s)
{
    qn_buf_free(&s->cache);
    qn_buf_free(&s->own);
    qn_buf_free(&s->endpoint);
    qn_buf_free(&s->ollama);
    if (s->token.data) explicit_bzero(s->token.data, s->token.length);
    qn_buf_free(&s->token);
}

qn_status qn_hub_settings_check_online(const qn_hub_settings *s, const char *what)
{
    if (!s->offline_by) return QN_OK;
    return qn_fail(QN_E_NOT_FOUND, "%s is not on this machine, and %s forbids to fetch it", what,
                   s->offline_by);
}
