#include "hub/sources.h"

#include <stdio.h>
#include <string.h>

#include "base/bytes/part_name.h"
#include "hub/names/url.h"
#include "hub/net/ask.h"

enum { INFO_BYTES_MAX = 4 << 20, PAGES_MAX = 100 };

/* The token, unless it would go over an open line. */
static const char *token_for(const qn_hub_session *s, const char *url)
{
    qn_url u;
    if (!s->settings->token.length || qn_url_parse(url, &u) != QN_OK) return NULL;
    if (u.is_https || qn_url_is_local(&u)) return s->settings->token.data;
    qn_hub_note(s, "the token is not sent to %.*s: http is not encrypted", (int)u.n_host, u.host);
    return NULL;
}

static qn_status ask_info(const qn_hub_session *s, const char *what, const char *url, const char *token,
                          const char *accept, qn_hub_answer *out)
{
    return qn_hub_ask(
        s,
        &(qn_hub_question){
            .what = what, .url = url, .token = token, .accept = accept, .bytes_max = INFO_BYTES_MAX},
        out);
}

qn_status qn_hub_next_page(const char *url, const char *link, qn_buf *out)
{
    qn_url here, there;
    qn_buf target = {0};
    qn_buf_reset(out);
    const char *rel = strstr(link, "rel=\"next\""), *close = rel;
    while (close && close > link && *close != '>') close--;
    const char *open = close;
    while (open && open > link && *open != '<') open--;
    if (!rel || *close != '>' || *open != '<') return QN_OK;
    qn_buf_append(&target, open + 1, (size_t)(close - open) - 1);
    qn_status status = target.status;
    if (status == QN_OK) status = qn_url_join(url, target.data, out);
    if (status == QN_OK && qn_url_parse(url, &here) == QN_OK && qn_url_parse(out->data, &there) == QN_OK &&
        !qn_url_same_server(&here, &there))
        status = qn_fail(QN_E_FORMAT, "the next page of the list lies on another server");
    qn_buf_free(&target);
    return status;
}

static qn_status list_tree(const qn_hub_session *s, const char *what, const qn_hub_name *name,
                           qn_hub_listing *out)
{
    qn_buf url = {0}, next = {0};
    qn_status status = QN_OK;
    int n_pages = 0;
    qn_buf_printf(&url, "%s/api/models/%s/tree/%s?recursive=true", s->settings->endpoint.data, name->repo,
                  out->commit);
    status = url.status;
    while (status == QN_OK && url.length) {
        qn_hub_answer answer = {0};
        if (++n_pages > PAGES_MAX) status = qn_fail(QN_E_FORMAT, "%s: the list of files has no end", what);
        if (status == QN_OK) status = ask_info(s, what, url.data, out->token, NULL, &answer);
        if (status == QN_OK)
            status = qn_hub_read_tree(what, answer.body.data ? answer.body.data : "", answer.body.length,
                                      &out->files);
        if (status == QN_OK) status = qn_hub_next_page(answer.url.data, answer.link.data, &next);
        qn_hub_answer_free(&answer);
        qn_buf_reset(&url);
        if (status == QN_OK && next.length) qn_buf_puts(&url, next.data);
        if (status == QN_OK) status = url.status;
    }
    qn_buf_free(&url);
    qn_buf_free(&next);
    return status;
}

static qn_status list_hf(const qn_hub_session *s, const char *what, const qn_hub_name *name,
                         qn_hub_listing *out)
{
    qn_buf url = {0};
    qn_hub_answer answer = {0};
    out->token = token_for(s, s->settings->endpoint.data);
    qn_buf_printf(&url, "%s/api/models/%s/revision/", s->settings->endpoint.data, name->repo);
    for (const char *p = name->revision; *p; p++) /* a branch may have slashes, and is one part of the path */
        if (*p == '/')
            qn_buf_puts(&url, "%2F");
        else
            qn_buf_putc(&url, *p);
    qn_status status =
        url.status == QN_OK ? ask_info(s, what, url.data, out->token, NULL, &answer) : url.status;
    if (status == QN_OK)
        status = qn_hub_read_revision(what, answer.body.data ? answer.body.data : "", answer.body.length,
                                      out->commit);
    qn_hub_answer_free(&answer);
    qn_buf_free(&url);
    return status == QN_OK ? list_tree(s, what, name, out) : status;
}

static qn_status list_ollama(const qn_hub_session *s, const char *what, const qn_hub_name *name,
                             qn_hub_listing *out)
{
    qn_buf url = {0}, file_name = {0}, tower_name = {0};
    qn_hub_answer answer = {0};
    qn_hub_file file, tower;
    qn_buf_printf(&url, "%s/v2/%s/manifests/%s", s->settings->ollama.data, name->repo, name->revision);
    qn_buf_printf(&file_name, "%s-%s.gguf", strchr(name->repo, '/') + 1, name->revision);
    qn_buf_printf(&tower_name, "mmproj-%s", file_name.data ? file_name.data : "");
    qn_status status = url.status != QN_OK ? url.status : tower_name.status;
    if (status == QN_OK) status = file_name.status;
    if (status == QN_OK)
        status = ask_info(s, what, url.data, NULL, "application/vnd.docker.distribution.manifest.v2+json",
                          &answer);
    if (status == QN_OK)
        status = qn_hub_read_manifest(what, answer.body.data ? answer.body.data : "", answer.body.length,
                                      file_name.data, tower_name.data, &file, &tower);
    if (status == QN_OK && tower.size) status = qn_hub_files_add(&out->files, &tower);
    if (status == QN_OK) {
        memcpy(out->commit, file.hex, 40); /* the rest is zero */
        status = qn_hub_files_add(&out->files, &file);
    }
    qn_hub_answer_free(&answer);
    qn_buf_free(&url);
    qn_buf_free(&file_name);
    qn_buf_free(&tower_name);
    return status;
}

/* A file without a list: its server's headers say how large it is, and what changes when it does. identity gets what
 * tells it from others. */
static qn_status read_headers(const char *url, const char *path, const qn_hub_answer *a, qn_hub_listing *out,
                              char identity[QN_SUM_HEX_MAX])
{
    qn_digest d;
    char text[32], etag[QN_NET_TEXT_MAX];
    qn_hub_file file = {.path = (char *)path,
                        .size = a->reply.status == 206 ? a->reply.range_total : a->reply.length};
    if (file.size <= 0 && a->linked_size > 0) file.size = a->linked_size;
    if (file.size <= 0 || file.size > QN_HUB_FILE_BYTES_MAX)
        return qn_fail(QN_E_FORMAT, "%s: the server does not say how large the file is", url);
    qn_digest_begin(&d, QN_SUM_SHA256, 0);
    qn_digest_put(&d, url, strlen(url));
    qn_digest_put(&d, a->reply.etag, strlen(a->reply.etag));
    snprintf(text, sizeof text, " %lld", (long long)file.size);
    qn_digest_put(&d, text, strlen(text));
    qn_digest_end(&d, identity);
    memcpy(file.hex, identity, sizeof file.hex);
    if (qn_digest_is_hex(a->linked_etag, 64)) { /* the Hub's own address of a file */
        file.sum = QN_SUM_SHA256;
        memcpy(file.hex, a->linked_etag, sizeof file.hex);
    }
    memcpy(etag, a->reply.etag, sizeof etag);
    if (etag[0]) file.etag = etag;
    return qn_hub_files_add(&out->files, &file);
}

/* The URL of the file called path beside the one that name names. */
static void put_url_beside(qn_buf *b, const qn_hub_name *name, const char *path)
{
    qn_url url;
    size_t n;
    if (qn_url_parse(name->url, &url) != QN_OK) return; /* a name's URL was parsed before */
    const char *file = qn_url_file(&url, &n);
    qn_buf_append(b, name->url, (size_t)(file - name->url));
    qn_buf_puts(b, path);
    qn_buf_puts(b, file + n);
}

static qn_status list_one_url(const qn_hub_session *s, const qn_hub_name *name, const char *path,
                              qn_hub_listing *out, char identity[QN_SUM_HEX_MAX])
{
    qn_buf url = {0};
    qn_hub_answer answer = {0};
    put_url_beside(&url, name, path);
    qn_status status = url.status;
    if (status == QN_OK)
        status = qn_hub_ask(
            s, &(qn_hub_question){.what = url.data, .url = url.data, .token = out->token, .only_begin = 1},
            &answer);
    if (status == QN_OK) status = read_headers(url.data, path, &answer, out, identity);
    qn_hub_answer_free(&answer);
    qn_buf_free(&url);
    return status;
}

/* The URL of one part means all of them: they lie beside it. */
static qn_status list_parts(const qn_hub_session *s, const qn_hub_name *name, const qn_part_name *part,
                            qn_hub_listing *out, char identity[QN_SUM_HEX_MAX])
{
    qn_digest d;
    qn_status status = QN_OK;
    qn_digest_begin(&d, QN_SUM_SHA256, 0);
    for (int64_t i = 0; i < part->n_parts && status == QN_OK; i++) {
        qn_buf path = {0};
        qn_part_name_put(&path, name->pick, part, i);
        status = path.status;
        if (status == QN_OK) status = list_one_url(s, name, path.data, out, identity);
        if (status == QN_OK) qn_digest_put(&d, identity, strlen(identity));
        qn_buf_free(&path);
    }
    qn_digest_end(&d, identity);
    return status;
}

static qn_status list_url(const qn_hub_session *s, const qn_hub_name *name, qn_hub_listing *out)
{
    qn_url hub, here;
    qn_part_name part;
    char identity[QN_SUM_HEX_MAX];
    if (qn_url_parse(s->settings->endpoint.data, &hub) == QN_OK && qn_url_parse(name->url, &here) == QN_OK &&
        qn_url_same_server(&hub, &here))
        out->token = token_for(s, name->url);
    out->must_be_gguf = 1;
    if (qn_part_name_read(name->pick, &part))
        QN_TRY(list_parts(s, name, &part, out, identity));
    else
        QN_TRY(list_one_url(s, name, name->pick, out, identity));
    memcpy(out->commit, identity, 40); /* the rest is zero */
    return QN_OK;
}

qn_status qn_hub_list_source(const qn_hub_session *s, const char *what, const qn_hub_name *name,
                             qn_hub_listing *out)
{
    return name->kind == QN_HUB_HF       ? list_hf(s, what, name, out)
           : name->kind == QN_HUB_OLLAMA ? list_ollama(s, what, name, out)
                                         : list_url(s, name, out);
}

void qn_hub_listing_free(qn_hub_listing *l)
{
    qn_hub_files_free(&l->files);
}

qn_status qn_hub_file_url(const qn_hub_settings *settings, const qn_hub_name *name, const qn_hub_listing *l,
                          const qn_hub_file *file, qn_buf *out)
{
    qn_buf_reset(out);
    if (name->kind == QN_HUB_URL) {
        put_url_beside(out, name, file->path);
    } else if (name->kind == QN_HUB_OLLAMA) {
        qn_buf_printf(out, "%s/v2/%s/blobs/sha256:%s", settings->ollama.data, name->repo, file->hex);
    } else {
        qn_buf_printf(out, "%s/%s/resolve/%s/", settings->endpoint.data, name->repo, l->commit);
        qn_url_put_escaped(out, file->path);
    }
    return out->status;
}
