/* Any bytes as what a server answers: a revision, a list of files, a manifest of Ollama, a refusal, headers, a
 * redirect, a link to the next page. What is accepted is fit to become a path or a request. The first byte picks. */
#include <stdlib.h>
#include <string.h>

#include "base/bytes/part_name.h"
#include "base/mem.h"
#include "hub/names/choose.h"
#include "hub/names/listing.h"
#include "hub/names/name.h"
#include "hub/names/url.h"
#include "hub/net/way.h"

static void check_file(const qn_hub_file *f)
{
    if (!qn_hub_is_plain_path(f->path) || f->size < 0 || f->size > QN_HUB_FILE_BYTES_MAX) abort();
    if (!qn_digest_is_hex(f->hex, f->sum == QN_SUM_SHA256 ? 64 : 40)) abort();
}

/* The model comes first, and of a split one all parts in order. */
static void check_parts(const qn_hub_choice *c)
{
    qn_part_name name;
    if (!c->main[0]) return;
    if (strcmp(c->files.files[0].path, c->main) != 0) abort();
    if (!qn_part_name_read(c->main, &name)) return;
    if (name.part || (int64_t)c->files.n < name.n_parts) abort();
    for (int64_t i = 0; i < name.n_parts; i++) {
        qn_part_name part;
        const char *path = c->files.files[i].path;
        if (!qn_part_name_is_same(path, c->main) || !qn_part_name_read(path, &part) || part.part != i)
            abort();
    }
}

static void read_tree(const char *text, size_t n)
{
    qn_hub_files l = {0};
    if (qn_hub_read_tree("x", text, n, &l) == QN_OK) {
        for (int i = 0; i < 2; i++) {
            qn_hub_choice c = {0};
            if (qn_hub_choose("x", &l, i ? "Q8_0" : "", (int64_t)16 << 30, &c) == QN_OK && !c.files.n)
                abort();
            if (c.files.n) check_parts(&c);
            for (size_t k = 0; k < c.files.n; k++) check_file(&c.files.files[k]);
            qn_hub_choice_free(&c);
        }
    }
    for (size_t i = 0; i < l.n; i++) check_file(&l.files[i]);
    qn_hub_files_free(&l);
}

static void read_name(const char *text)
{
    qn_hub_name name, again;
    qn_buf shown = {0};
    if (qn_hub_name_read(text, 1, &name) != QN_OK || name.kind == QN_HUB_NONE) return;
    qn_hub_name_put(&shown, &name);
    if (name.pick[0] && !qn_hub_is_plain_path(name.pick)) abort();
    if (qn_hub_name_read(shown.data, 0, &again) != QN_OK || again.kind != name.kind ||
        strcmp(again.repo, name.repo) || strcmp(again.revision, name.revision) ||
        strcmp(again.pick, name.pick) || strcmp(again.url, name.url))
        abort();
    qn_buf_free(&shown);
}

static void follow(const char *text)
{
    qn_way w = {0};
    qn_url home, now;
    qn_status why;
    const qn_net_reply r = {.status = 302, .location = text, .link = ""};
    if (qn_way_begin(&w, "x", "https://hub.example/a/b", "token") != QN_OK) return;
    if (qn_way_judge(&w, &r, "", 0, 0, &why) == QN_WAY_AGAIN) {
        if (qn_url_parse(w.home.data, &home) != QN_OK || qn_url_parse(w.now.data, &now) != QN_OK) abort();
        if (!now.is_https || (qn_way_token(&w) != NULL) != qn_url_same_server(&home, &now)) abort();
    }
    qn_way_end(&w);
}

static void read_headers(const char *text)
{
    static char location[QN_URL_BYTES_MAX + 1], link[QN_URL_BYTES_MAX + 1];
    qn_net_reply r = {.location = location, .link = link};
    location[0] = link[0] = 0;
    while (*text) {
        const size_t n = strcspn(text, "\n") + 1;
        qn_net_read_header(&r, location, link, text, strlen(text) < n ? n - 1 : n);
        text += strlen(text) < n ? n - 1 : n;
    }
    if (r.length < -1 || r.range_begin < -1 || r.range_total < -1 || r.retry_after_s < -1) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char sha[QN_SUM_HEX_MAX], said[64];
    qn_hub_file file;
    qn_hub_file tower;
    if (!size) return 0;
    char *text = qn_strndup((const char *)data + 1, size - 1);
    const size_t n = size - 1;
    if (!text) return 0;
    switch (data[0] % 7) {
    case 0:
        if (qn_hub_read_revision("x", text, n, sha) == QN_OK && !qn_digest_is_hex(sha, 40)) abort();
        break;
    case 1:
        read_tree(text, n);
        break;
    case 2:
        if (qn_hub_read_manifest("x", text, n, "m.gguf", "mmproj.gguf", &file, &tower) == QN_OK)
            check_file(&file);
        break;
    case 3:
        qn_hub_read_refusal(text, n, said, sizeof said);
        break;
    case 4:
        read_name(text);
        break;
    case 5:
        follow(text);
        break;
    default:
        read_headers(text);
        break;
    }
    qn_free(text);
    return 0;
}
