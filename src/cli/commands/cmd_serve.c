/* quern serve: OpenAI's API over HTTP. */
#include <math.h>
#include <quern/quern.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes/part_name.h"
#include "base/mem.h"
#include "cli/command.h"
#include "cli/options/options.h"
#include "cli/options/prompt_cache.h"
#include "cli/term/input.h"
#include "cli/term/out.h"
#include "server/server.h"

enum {
    KEYS_MAX = 256,
    KEY_BYTES_MAX = 4096,
    READ_TIMEOUT_MS = 60000,
    PARALLEL = 32,
    QUEUE = 256,
    STORE_DAYS = 30,
    PING_S = 5, /* Node's fetch and proxies give up after 30 to 300 */
};
static const size_t body_bytes_max = (size_t)16 << 20, store_bytes_max = (size_t)1 << 30,
                    file_bytes_max = (size_t)200 << 20;
/* A smaller store would hold next to nothing beside the database's own pages. */
static const size_t store_bytes_min = (size_t)1 << 20;

typedef struct {
    qn_load_options load;
    const char *path; /* of the model */
    const char *prompt_cache;
    int keeps; /* the prompt cache may be written: qn_prompt_cache_load */
    const char *model_name, *key_file, *admin_key_file, *adapter_folder, *cache_folder, *slot_folder;
    qn_server_defaults defaults;
    int32_t port, parallel, max_queue, read_timeout_s;
    double ping_s;
    qn_arg_list listen, keys, hosts, origins;
    const char *store;
    size_t body_max_bytes, store_bytes, file_bytes;
    int32_t store_days;
    int no_template_kwargs, free_tool_calls, strict_model, lenient, pooling, speculate, no_look_ahead,
        verbose;
} serve_options;

#define AT(field) offsetof(serve_options, field)
static const qn_arg serve_args[] = {
    {"--host", 0, QN_ARG_LIST, AT(listen), 0, 0, "ADDRESS",
     "address to listen on (default 127.0.0.1), or unix:PATH for a Unix socket; may be repeated. An address "
     "that other machines can reach needs an API key"},
    {"--port", 0, QN_ARG_INT32, AT(port), 0, 65535, "N",
     "port to listen on (default 8080; 0: any free port)"},
    {"--model-name", 0, QN_ARG_TEXT, AT(model_name), 0, 0, "NAME",
     "name of the model for clients (default: the last part of its path)"},
    {"--parallel", 0, QN_ARG_INT32, AT(parallel), 1, 1024, "N",
     "maximum requests computed together (default 32)"},
    {"--max-queue", 0, QN_ARG_INT32, AT(max_queue), 1, 1000000, "N",
     "maximum waiting requests (default 256); further requests get status 429"},
    {"--api-key", 0, QN_ARG_LIST, AT(keys), 0, 0, "KEY",
     "API key that clients must send; may be repeated. Other users of the machine can see it; "
     "--api-key-file hides it"},
    {"--api-key-file", 0, QN_ARG_TEXT, AT(key_file), 0, 0, "FILE", "file with API keys, one per line"},
    {"--admin-key-file", 0, QN_ARG_TEXT, AT(admin_key_file), 0, 0, "FILE",
     "file with admin keys, one per line: keys for routes that change the server; without this flag they are "
     "refused"},
    {"--adapter-folder", 0, QN_ARG_TEXT, AT(adapter_folder), 0, 0, "DIR",
     "folder of adapters that clients with an admin key may load by POST /v1/adapters"},
    {"--cache-folder", 0, QN_ARG_TEXT, AT(cache_folder), 0, 0, "DIR",
     "folder in which clients with an admin key may save the prompt cache, and from which they may load it"},
    {"--slot-save-path", 0, QN_ARG_TEXT, AT(slot_folder), 0, 0, "DIR",
     "folder in which clients may save the sequences of slots by POST /slots/N, and from which they may "
     "restore "
     "them"},
    {"--allow-host", 0, QN_ARG_LIST, AT(hosts), 0, 0, "NAME",
     "host name that requests may use, besides localhost and IP addresses; may be repeated"},
    {"--cors-origin", 0, QN_ARG_LIST, AT(origins), 0, 0, "ORIGIN",
     "origin whose web pages may read answers (default: none); may be repeated"},
    {"--max-body", 0, QN_ARG_BYTES, AT(body_max_bytes), 0, 0, "SIZE",
     "maximum size of a request (default 16M)"},
    {"--read-timeout", 0, QN_ARG_INT32, AT(read_timeout_s), 1, 86400, "SECONDS",
     "time in which a whole request must arrive (default 60)"},
    {"--sse-ping", 0, QN_ARG_REAL, AT(ping_s), 0, 86400, "SECONDS",
     "send a comment, which clients ignore, on a stream that was silent for this long (default 5; 0: never)"},
    {"--no-template-kwargs", 0, QN_ARG_FLAG, AT(no_template_kwargs), 0, 0, NULL,
     "refuse requests that set variables of the chat template (chat_template_kwargs)"},
    {"--strict-model", 0, QN_ARG_FLAG, AT(strict_model), 0, 0, NULL,
     "refuse requests for a model of another name with status 404; without this flag the model answers, and "
     "the "
     "response reports it in `warnings`"},
    {"--lenient", 0, QN_ARG_FLAG, AT(lenient), 0, 0, NULL,
     "report unknown fields of requests in `warnings`, instead of refusing them"},
    {"--free-tool-calls", 0, QN_ARG_FLAG, AT(free_tool_calls), 0, 0, NULL,
     "do not hold calls of tools to the tools' schemas, unless a tool is strict or a call is forced"},
    {"--pooling", 0, QN_ARG_CHOICE, AT(pooling), 0, 0, "own|mean|last|cls|max|weightedmean|mean-sqrt",
     "hidden states that make an embedding (default mean)"},
    {"--speculate", 0, QN_ARG_CHOICE, AT(speculate), 0, 0, "lookup|off",
     "guess tokens ahead, from repeated text or by --draft-model, if that is faster (default lookup); the "
     "answer stays the same"},
    {"--no-look-ahead", 0, QN_ARG_FLAG, AT(no_look_ahead), 0, 0, NULL,
     "do not use idle time to compute the beginning of a chat's next turn"},
    {"--prompt-cache", 0, QN_ARG_TEXT, AT(prompt_cache), 0, 0, "FILE",
     "load the state of earlier prompts from FILE at the start, and save it there at the end; POST "
     "/prompt-cache "
     "saves it too"},
    {"--temp", 0, QN_ARG_FLOAT, AT(defaults.temperature), 0, 100, "T",
     "temperature of requests that set none (default: the model's, else 1)"},
    {"--top-p", 0, QN_ARG_FLOAT, AT(defaults.top_p), 0, 1, "P", "top_p of requests that set none"},
    {"--top-k", 0, QN_ARG_INT32, AT(defaults.top_k), 0, INT32_MAX, "K", "top_k of requests that set none"},
    {"--min-p", 0, QN_ARG_FLOAT, AT(defaults.min_p), 0, 1, "P", "min_p of requests that set none"},
    {"--repeat-penalty", 0, QN_ARG_FLOAT, AT(defaults.repeat_penalty), 0.01, 100, "R",
     "repeat_penalty of requests that set none"},
    {"--seed", 0, QN_ARG_UINT64, AT(defaults.seed), 0, 0, "N",
     "seed of requests that set none; 0 (default): a new seed for each request"},
    {"--max-tokens", 'n', QN_ARG_INT64, AT(defaults.max_tokens), 0, INT32_MAX, "N",
     "maximum new tokens of requests that set no limit (default 0: as their API says)"},
    {"--store", 0, QN_ARG_TEXT, AT(store), 0, 0, "DIR",
     "keep responses, files and batches in DIR (made if it is missing), each for the API key that made it; "
     "without this "
     "flag nothing outlives its request"},
    {"--store-limit", 0, QN_ARG_BYTES, AT(store_bytes), 0, 0, "SIZE",
     "maximum size of all that is stored (default 1G); the oldest gives way"},
    {"--store-days", 0, QN_ARG_INT32, AT(store_days), 1, 36500, "N",
     "delete what was stored for this long (default 30)"},
    {"--max-file", 0, QN_ARG_BYTES, AT(file_bytes), 0, 0, "SIZE",
     "maximum size of an uploaded file (default 200M)"},
    {"--rotate", 0, QN_ARG_FLAG, AT(load.o.rotate), 0, 0, NULL,
     "when the context of a request is full, forget its beginning and continue"},
    {"--verbose", 0, QN_ARG_FLAG, AT(verbose), 0, 0, NULL, "print a line for each request on standard error"},
    {0},
};

/* A key a line; empty lines and those that begin with '#' are none. keys->n rises. */
static qn_status read_keys(const char *path, qn_buf *text, const char **keys, size_t *n)
{
    QN_TRY(qn_input_read(path, text));
    if (!text->length) return qn_fail(QN_E_ARG, "%s: the file has no key", path);
    if (memchr(text->data, 0, text->length)) return qn_fail(QN_E_FORMAT, "%s: has a NUL character", path);
    size_t before = *n;
    for (char *line = text->data, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        size_t length = strcspn(line, "\r");
        line[length] = 0;
        if (!length || line[0] == '#') continue;
        if (*n == KEYS_MAX || length > KEY_BYTES_MAX)
            return qn_fail(QN_E_ARG, "%s: a key is too long, or there are more than %d", path, (int)KEYS_MAX);
        keys[(*n)++] = line;
    }
    return *n > before ? QN_OK : qn_fail(QN_E_ARG, "%s: the file has no key", path);
}

static int is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static qn_status open_model(void *user, qn_model **out)
{
    serve_options *o = user;
    QN_TRY(qn_load_open(o->path, &o->load, out));
    o->keeps = o->prompt_cache && qn_prompt_cache_load(*out, o->prompt_cache);
    return strcmp(o->path, QN_SEED) == 0 ? qn_note_seed("serve", *out) : QN_OK;
}

static qn_status save_prompts(void *user, qn_model *model)
{
    const serve_options *o = user;
    if (!o->keeps)
        return qn_fail(QN_E_UNSUPPORTED, "%s is no saved state: it is left unchanged", o->prompt_cache);
    return qn_model_save_state(model, o->prompt_cache);
}

static void say(void *user, const char *url)
{
    const serve_options *o = user;
    qn_buf b = {0};
    if (url)
        qn_buf_printf(&b, "listening on %s\n", url);
    else
        qn_buf_printf(&b, "ready: %s\n", o->model_name);
    if (b.status == QN_OK && qn_out_write(b.data, b.length) != QN_OK) qn_out_note("%s", qn_last_error());
    qn_buf_free(&b);
}

/* "dir/model-Q4.gguf/" -> "model-Q4.gguf", and without the ending "model-Q4". A part of several is called as
 * the whole file would be. */
static void name_model(const char *path, qn_buf *file, qn_buf *name)
{
    static const char *const endings[] = {".gguf", ".safetensors"};
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t begin = n;
    while (begin && path[begin - 1] != '/') begin--;
    qn_buf_append(file, path + begin, n - begin);
    qn_part_name part;
    if (file->status == QN_OK && qn_part_name_read(file->data, &part)) n = begin + part.n_prefix;
    for (size_t i = 0; i < 2; i++) {
        size_t length = strlen(endings[i]);
        if (n - begin > length && memcmp(path + n - length, endings[i], length) == 0) n -= length;
    }
    qn_buf_append(name, path + begin, n - begin);
}

static const qn_arg_group serve_groups[] = {{NULL, serve_args, 0, NULL},
                                            {"Loading", qn_load_args, AT(load), NULL},
                                            {"Rotary positions", qn_rope_args, AT(load.rope), qn_rope_rules},
                                            {0}};
const qn_arg_spec qn_serve_spec = {
    "quern serve [MODEL] [options]",
    "Serves OpenAI's API: /v1/chat/completions, /v1/completions, "
    "/v1/embeddings and /v1/models; also\n/health and /metrics. After "
    "SIGTERM or Ctrl-C the server finishes its requests and refuses new "
    "ones.\nA second signal ends it at once. Without MODEL, the seed answers: a toy model inside quern.",
    serve_groups,
    0,
    1,
    NULL};

int qn_cmd_serve(int argc, char **argv)
{
    static const char *const loopback[] = {"127.0.0.1"};
    qn_device_info machine = {0};
    serve_options o = {
        .port = 8080,
        .max_queue = QUEUE,
        .read_timeout_s = READ_TIMEOUT_MS / 1000,
        .ping_s = PING_S,
        .defaults = {.temperature = -1, .top_p = -1, .min_p = -1, .repeat_penalty = -1, .top_k = -1},
        .store_bytes = store_bytes_max,
        .store_days = STORE_DAYS,
        .file_bytes = file_bytes_max,
        .body_max_bytes = body_bytes_max};
    const char *keys[2 * KEYS_MAX];
    qn_buf key_text = {0}, admin_text = {0}, name = {0}, file = {0};
    size_t n_keys = 0, n_admin_keys = 0;
    int n, code;
    if (qn_args_parse(&qn_serve_spec, &o, argc, argv, &o.path, &n, &code)) return code;
    if (!n) o.path = o.load.o.backend && strcmp(o.load.o.backend, "mock") == 0 ? "mock" : QN_SEED;
    for (size_t i = 0; i < o.keys.n; i++) {
        if (!o.keys.items[i][0]) return qn_args_fail("serve", "--api-key: the key is empty");
        keys[n_keys++] = o.keys.items[i];
    }
    if (!o.body_max_bytes) return qn_args_fail("serve", "--max-body: 0 bytes are too few");
    if (o.store_bytes < store_bytes_min) return qn_args_fail("serve", "--store-limit: must be at least 1M");
    if (!o.file_bytes) return qn_args_fail("serve", "--max-file: 0 bytes are too few");
    if (o.model_name && !o.model_name[0]) return qn_args_fail("serve", "--model-name: the name is empty");
    if (o.adapter_folder && !o.admin_key_file)
        return qn_args_fail("serve",
                            "--adapter-folder: needs --admin-key-file, since only admins load adapters");
    if (o.adapter_folder && !is_folder(o.adapter_folder))
        return qn_args_fail("serve", "--adapter-folder: %s is not a folder", o.adapter_folder);
    if (o.cache_folder && !o.admin_key_file)
        return qn_args_fail("serve",
                            "--cache-folder: needs --admin-key-file, since only admins save and load");
    if (o.cache_folder && !is_folder(o.cache_folder))
        return qn_args_fail("serve", "--cache-folder: %s is not a folder", o.cache_folder);
    if (o.slot_folder && !is_folder(o.slot_folder))
        return qn_args_fail("serve", "--slot-save-path: %s is not a folder", o.slot_folder);
    if (o.verbose) qn_log_set_level(QN_LOG_INFO);
    qn_status status = o.key_file ? read_keys(o.key_file, &key_text, keys, &n_keys) : QN_OK;
    if (status == QN_OK && o.admin_key_file)
        status = read_keys(o.admin_key_file, &admin_text, keys + n_keys, &n_admin_keys);
    if (status == QN_OK) {
        name_model(strcmp(o.path, QN_SEED) ? o.path : "seed", &file, &name);
        status = name.status != QN_OK ? name.status : file.status;
        if (!o.model_name) o.model_name = name.data;
    }
    o.load.o.parallel_slots = o.parallel                ? o.parallel
                              : o.load.o.parallel_slots ? o.load.o.parallel_slots
                                                        : PARALLEL;
    o.load.o.background = 1;
    o.load.o.max_queue = o.max_queue;
    if (qn_device_get_info(0, &machine) != QN_OK) machine.memory_bytes = 0;
    qn_server_options options = {.http = {.hosts = o.listen.n ? o.listen.items : loopback,
                                          .n_hosts = o.listen.n ? o.listen.n : 1,
                                          .port = o.port,
                                          .api_keys = keys,
                                          .n_api_keys = n_keys,
                                          .n_admin_keys = n_admin_keys,
                                          .allowed_hosts = o.hosts.items,
                                          .n_allowed_hosts = o.hosts.n,
                                          .cors_origins = o.origins.items,
                                          .n_cors_origins = o.origins.n,
                                          .body_max_bytes = o.body_max_bytes,
                                          .read_timeout_ms = (int64_t)o.read_timeout_s * 1000,
                                          .ping_ms = (int64_t)ceil(o.ping_s * 1000)},
                                 .model_name = o.model_name,
                                 .adapter_folder = o.adapter_folder,
                                 .cache_folder = o.cache_folder,
                                 .slot_folder = o.slot_folder,
                                 .model_file = file.data,
                                 .defaults = &o.defaults,
                                 .allow_template_kwargs = !o.no_template_kwargs,
                                 .strict_model = o.strict_model,
                                 .lenient = o.lenient,
                                 .free_tool_calls = o.free_tool_calls,
                                 .no_look_ahead = o.no_look_ahead,
                                 .n_draft = o.speculate == 0 ? QN_DRAFT_TOKENS_MAX : 0,
                                 .pooling = (qn_pooling)o.pooling,
                                 .machine_bytes = machine.memory_bytes,
                                 .store = {.folder = o.store,
                                           .bytes_max = (int64_t)o.store_bytes,
                                           .age_max_s = (int64_t)o.store_days * 86400,
                                           .file_bytes_max = (int64_t)o.file_bytes},
                                 .open = open_model,
                                 .save = o.prompt_cache ? save_prompts : NULL,
                                 .user = &o,
                                 .say = say};
    o.load.may_fetch = 1; /* now, and not while the server runs */
    if (status == QN_OK) status = qn_load_find(&o.load, &o.path);
    o.load.may_fetch = 0;
    if (status == QN_OK) status = qn_server_run(&options);
    code = status == QN_OK ? QN_EXIT_OK : status == QN_E_CANCELLED ? QN_EXIT_INTERRUPTED : qn_out_fail();
    qn_load_end(&o.load);
    qn_buf_free(&key_text);
    qn_buf_free(&admin_text);
    qn_buf_free(&name);
    qn_buf_free(&file);
    return code;
}
