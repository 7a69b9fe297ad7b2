/* A model: weights, tokenizer and chat template opened from one path, ready to answer.
 *
 * A qn_model is opened once and closed once. Everything made from it (generations) ends with it. All
 * functions may be called from any thread at any time, except that nothing may use the handle after
 * qn_model_close has returned. Calls that compute wait for one of the model's slots, in order of arrival.
 * Structures of options: a field that is zero or NULL takes its default, so `qn_model_options o = {0};` is
 * complete. */
#ifndef QUERN_MODEL_H
#define QUERN_MODEL_H

#include <quern/dtype.h>
#include <quern/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qn_model qn_model;

/* The scaling of rotary positions (RoPE). OWN: the one that the model's files name. */
typedef enum {
    QN_ROPE_SCALING_OWN,
    QN_ROPE_SCALING_NONE,
    QN_ROPE_SCALING_LINEAR,
    QN_ROPE_SCALING_YARN
} qn_rope_scaling;

/* For yarn_ext_factor of qn_rope_options: 0, which is not the default there. */
#define QN_ROPE_NO_EXTRAPOLATION (-1.0)

/* Changes to the rotary positions of a model. A field of 0 keeps what the model's files say. The model is then, to the
 * last bit, the one whose config.json (or GGUF metadata) says so: model_context_size follows too. States that were saved
 * with other rotary positions are refused. Of a model that has other positions in full and in sliding layers the fields
 * change those of full layers alone; a note says so. QN_E_ARG: a field is negative, not finite or out of range, two
 * fields contradict each other, or a field of YaRN is given and the scaling is not YaRN. QN_E_UNSUPPORTED: the model
 * has no rotary positions, or its own scaling has no factor that could be replaced. */
typedef struct {
    double theta; /* base of the frequencies: rope_theta */
    /* A scaling that differs from the files' replaces it with all that belongs to it alone. The factor and the context
     * before stretching stay, unless they are given too. OWN, with a factor, of a model without scaling: LINEAR. */
    qn_rope_scaling scaling;
    double factor;                 /* by how much the context is stretched: 4 reaches 4 times as far */
    int64_t yarn_original_context; /* tokens of the context before stretching */
    /* Share of the unstretched frequency in what YaRN blends, above 0 to 1; 0 is YaRN's own 1.
     * QN_ROPE_NO_EXTRAPOLATION: all frequencies are stretched, and attention stays as it is. */
    double yarn_ext_factor;
    /* Multiplies the factor of sines and cosines that YaRN makes of the stretch, 0.1 ln(factor) + 1. The key
     * attention_factor of config.json is their product. */
    double yarn_attention_factor;
    /* Frequencies that turn at least beta_fast times in the original context stay, and those that turn at most
     * beta_slow times are stretched. 0: the files', else 1 and 32. */
    double yarn_beta_slow, yarn_beta_fast;
} qn_rope_options;

/* Strings are read during qn_model_open only. */
typedef struct {
    const char *backend; /* name of a backend, as for qn_backend_get. NULL: the default backend */
    /* "cpu", "cuda", "mlx" or "auto". NULL: "auto", which is the device that QUERN_DEVICE in the environment names,
     * if it is set; else a card, if the device's library is installed, a card opens and the model fits into its
     * memory; else the CPU (a note says why a card could not be used). */
    const char *device;
    const char *file;       /* name of one weights file in the directory, if it holds several models */
    qn_precision precision; /* QN_PRECISION_HIGH by default */
    int32_t n_threads;      /* 0: the physical cores that this process may use */
    int64_t context_size; /* most tokens of one sequence. 0: the smallest of the model's own, 131,072 and what
                         memory allows. Above the model's own: honoured, with a note. Above memory: refused */
    int32_t parallel_slots; /* sequences computed together; further ones wait in order. 0: 1 */
    int32_t prefill_chunk;  /* most prompt tokens computed in one step. 0: the engine's choice. Never changes
                               results */
    size_t memory_limit_bytes; /* hard limit for everything the model holds in the host's memory. 0: none */
    /* The same for the memory of a card. 0: what is free there. Other devices ignore it */
    size_t device_memory_limit_bytes;
    /* The other limits of memory.h, from the start on. cache: 0: the default of qn_model_set_cache_limit;
     * QN_KEEP_NOTHING. wired: 0: no weight is locked; QN_E_NOMEM: the system refused */
    size_t cache_limit_bytes, wired_limit_bytes;
    const char *adapter_path; /* a LoRA adapter (adapter.h) for requests that name none. QN_E_UNSUPPORTED
                                  where the backend has none */
    /* Layers that a card computes (the device cuda), from the first on; the CPU computes the others and the head. 0: all
     * that fit into the card's free memory. QN_ALL_LAYERS, or no fewer than there are: all layers and the head.
     * Negative: none. If so many do not fit, QN_E_NOMEM says what would; the device "auto" then takes the CPU. Other
     * devices compute all layers. Notes in the info say what was chosen, and where a wish was not met. */
    int32_t gpu_layers;
    const char *pre_tokenizer_regex; /* for a GGUF file, instead of the pre-tokenizer that it names */
    const char *chat_template;       /* text of a Jinja template that replaces the model's own */
    /* A file of packed weights (qn_model_pack). NULL: the one beside the model or in the cache, if it exists;
     * "none": no file. A file that does not match is ignored, with a note. */
    const char *packed;
    qn_kv_type kv_type;       /* of keys and values; QN_KV_AUTO by default */
    const char *adapter_name; /* of adapter_path. NULL: "default" */
    float adapter_scale;      /* multiplies the adapter's own factor. 0: 1 */
    /* The model has a thread that computes whenever a generation is open, so no caller needs to wait for
     * events (qn_generation_poll). Without it, waiting callers compute for all. */
    int background;
    int64_t max_queue; /* most generations that wait for a slot; more are refused (QN_E_FULL). 0: no bound */
    int no_prefix_cache; /* no generation uses or leaves prefixes */
    int rotate;          /* all generations rotate when their context is full (qn_generate_options) */
    /* A smaller model with the same vocabulary. It guesses tokens for generations that ask for it (n_draft)
     * if their text repeats nothing. It belongs to this model and counts as its memory. NULL: none. */
    const char *draft_model;
    /* For the backend mlx_lm: the Python that runs it. NULL: $QUERN_PYTHON, else python3. */
    const char *python;
    /* QN_E_UNSUPPORTED if the backend has none. A draft model keeps its own. */
    qn_rope_options rope;
    /* For a GGUF file: the path of its vision tower, an mmproj*.gguf of llama.cpp's converter. NULL: the one that lies beside the
     * model, if it fits; of several, the one that is named after the model, and of files that differ in their type alone F16,
     * then BF16, F32, Q8_0. If there is no single one, or it does not fit, a note says so. "none": no tower. QN_E_ARG: the
     * model is no GGUF, or the tower is made for another model; QN_E_UNSUPPORTED: a tower of a kind that is not known. */
    const char *mmproj;
} qn_model_options;

/* One row of token ids, borrowed. */
typedef struct {
    const int32_t *ids;
    int64_t n_ids;
} qn_ids;

/* What was opened. Strings live as long as the model. */
typedef struct {
    const char *path;         /* as given to qn_model_open */
    const char *architecture; /* "llama" */
    const char *backend;      /* "native" */
    const char *device;       /* "cpu" */
    /* instruction set of the kernels, "avx512"; of other devices what they say of themselves: "sm_90", "metal" */
    const char *cpu_set;
    qn_precision precision;
    qn_dtype kv_dtype;
    int32_t quant_bits; /* bits of the type that holds most weights: 4 for q4_k, 16 for bf16 */
    int64_t num_layers, vocab_size, hidden_size;
    int64_t gpu_layers;         /* of them on a card; 0: none, or the device computes in the host's memory */
    int64_t num_parameters;     /* elements of all weights, a tied one once */
    int64_t context_size;       /* in force */
    int64_t model_context_size; /* the model's own; 0: it names none */
    int32_t n_threads, parallel_slots, prefill_chunk;
    int has_chat_template; /* the model ships one, or its family has a built-in one */
    const char *notes;     /* what a user should know about this load, one sentence a line; "" when nothing */
    /* Values of the model's generation_config; a field is negative if the config does not set it. */
    float default_temperature, default_top_p;
    int32_t default_top_k;
    const char *packed; /* path of the file of packed weights in use; "": none, they were packed now */
    /* From its template: the format of tool calls ("hermes"), and the text that begins its reasoning
     * ("<think>"). "": no known format; then both are part of the text. */
    const char *call_format, *reasoning_mark;
    const char
        *device_name; /* of a card: "NVIDIA H100 80GB HBM3". "": the device has no name that users know */
    /* More of its generation_config; 0: not set. The rows of ids are borrowed, like the strings. */
    float default_min_p, default_typical_p, default_repeat_penalty;
    const qn_ids *default_bad_ids; /* bad_words_ids and suppress_tokens */
    size_t n_default_bad_ids;
    /* What it asks for in one line: "temperature 0.7, top_p 0.8; not applied: num_beams". "": nothing. Only chat
     * and serve follow it: qn_generate_options never change by themselves. */
    const char *generation_config;
    int takes_images;        /* prompts may have pictures (qn_prompt) */
    int is_encoder;          /* it gives vectors, and no next tokens */
    int64_t encoded_size;    /* numbers of each hidden state that qn_model_logits gives */
    int64_t num_labels;      /* scores that its head gives a sequence; 0: it has no such head */
    int64_t num_token_types; /* types of tokens that it tells apart; 0: none */
    /* Path of the vision tower of a GGUF; "": none is open, or the model's files have it. */
    const char *mmproj;
} qn_model_info;

/* Speeds of the last generation that ended; 0 before the first one ended. Times are wall-clock milliseconds.
 */
typedef struct {
    double prefill_tokens_per_sec, decode_tokens_per_sec;
    size_t peak_memory_bytes, active_memory_bytes;
    double load_total_ms;     /* qn_model_open as a whole; the phases follow in order */
    double load_files_ms;     /* open, map and check the files */
    double load_tokenizer_ms; /* tokenizer and chat template */
    double load_weights_ms;   /* pack or place the weights */
    double load_programs_ms;  /* build and plan the programs */
    size_t device_peak_memory_bytes, device_active_memory_bytes; /* of a card; 0: the device has no memory */
} qn_metrics;

/* The path of the seed: a toy model that is part of the library and needs no file. It answers, but is often
 * wrong (docs/training-the-seed.md). "seed" also means it if nothing has that name. */
#define QN_SEED "seed:"

/* Opens the model at path: a Hugging Face directory, a directory with one GGUF file, a file, or QN_SEED.
 * options may be NULL. *out is owned by the caller: qn_model_close. The notes of the info are logged as
 * warnings too. QN_E_IO, QN_E_FORMAT, QN_E_UNSUPPORTED, QN_E_NOMEM (the memory limit included). */
QN_API qn_status qn_model_open(const char *path, const qn_model_options *options, qn_model **out);
/* Ends what still runs on the model, frees it and sets *model to NULL. No other call on the handle may be
 * under way: generations are ended, but a thread inside qn_model_logits or qn_generation_open is not waited
 * for. NULL and a pointer to NULL are accepted, so that a second call does nothing. Generations must still be
 * closed: one that was read to its end keeps that end, others report QN_E_CLOSED from then on.
 *
 * The result may be ignored. QN_E_CANCELLED: the model is closed, and generations were cut off by it (message:
 * how many); those that the caller had cancelled do not count. QN_E_ARG: the model stays open, *model stays as
 * it is, and a line is logged: the call came from within a call on one of its generations (notify), or a
 * training shares its weights. */
QN_API qn_status qn_model_close(qn_model **model);

QN_API qn_status qn_model_get_info(const qn_model *model, qn_model_info *out);
QN_API qn_status qn_model_get_metrics(const qn_model *model, qn_metrics *out);

/* Called with the progress of packing before each weight. Anything but QN_OK ends it. */
typedef qn_status qn_pack_progress_fn(void *user, size_t done_bytes, size_t total_bytes);

typedef struct {
    const char *file;     /* as in qn_model_options */
    const char *out_path; /* NULL: beside the model, or in the cache if that folder is not writable */
    int force;            /* pack again even if a valid file exists, and replace any other file */
    int32_t n_threads;    /* 0: the physical cores that this process may use */
    qn_pack_progress_fn *progress; /* may be NULL */
    void *user;
} qn_pack_options;

typedef struct {
    char path[4096];
    size_t size_bytes; /* of the weights in it */
    int was_there;     /* the same file existed, byte for byte: nothing was written */
} qn_pack_result;

/* Packs the weights of the model at path into a file, as qn_model_open does at every start. Later starts map
 * the file: nothing is packed and copied then, and processes share its pages. The model's own files are still
 * needed. If they change in the samples that a start compares, or if another version of quern has another
 * layout, the file is ignored until it is packed again. The file appears only when it is complete. Only its
 * owner can read it unless everybody may read the model. options may be NULL. QN_E_ARG: out_path is a file
 * that holds no packed weights (see force), or one of the model's own, or "none"; QN_E_IO: no room, or not
 * writable; and the statuses of qn_model_open. */
QN_API qn_status qn_model_pack(const char *path, const qn_pack_options *options, qn_pack_result *out);

/* A request to end a call. One thread or signal handler sets it; running calls check it. */
typedef struct qn_cancel qn_cancel;
/* *out is owned by the caller: qn_cancel_free, when no call uses it any more. */
QN_API qn_status qn_cancel_new(qn_cancel **out);
/* Any thread; safe in a signal handler. It stays set. NULL is accepted. */
QN_API void qn_cancel_set(qn_cancel *cancel);
QN_API void qn_cancel_free(qn_cancel *cancel);

/* A picture, borrowed: rows of RGB bytes from the top. Any size does; the model resizes it as its own image
 * processor would. */
typedef struct {
    const uint8_t *rgb;    /* height rows, stride_bytes apart, of width times red, green, blue */
    int64_t width, height; /* 1 to 65,535 each, one at most 200 times the other */
    size_t stride_bytes;   /* 0: 3 * width */
} qn_image;

typedef struct {
    int last_only; /* only the logits of each row's last position */
    int hidden; /* hidden states [n_positions, encoded_size] after the final norm in place of logits; an encoder
                      has nothing else */
    const int64_t *row_first; /* one for each row: its logits from this position on. NULL: from 0 */
    /* As in qn_generate_options. */
    const char *adapter;
    const char *const *row_adapters;
    int no_prefix_cache;
    const char *cache_salt, *tenant;
    int32_t priority;
    const qn_cancel *cancel; /* ends the call within a step, with QN_E_CANCELLED. NULL: none */
    /* Pictures of the only row, in the order of their places. The row has the model's image token for each
     * vector of each of them (qn_chat_render gives such ids); QN_E_ARG with both numbers if it does not. */
    const qn_image *images;
    size_t n_images;
} qn_logits_options;

/* Receives logits [n_positions, vocab_size] (or hidden states, if the options say so), float32, of the
 * positions [position, position + n_positions) of one row; valid during the call. Blocks of one row come in
 * rising order; blocks of several rows may alternate. Anything but QN_OK stops the run. The function must not
 * compute on the same model (QN_E_ARG) or close it. */
typedef qn_status qn_logits_fn(void *user, int64_t row, int64_t position, int64_t n_positions,
                               const float *logits);

/* Computes all rows as one batch (as far as parallel_slots allows; that changes no bit) and delivers the
 * logits in blocks, so they are never held as a whole. options may be NULL. If fn returned anything but
 * QN_OK, the call returns that. */
QN_API qn_status qn_model_logits(qn_model *model, const qn_ids *rows, int64_t n_rows,
                                 const qn_logits_options *options, qn_logits_fn *fn, void *user);

/* "high", "fast", "exact". Static storage. */
QN_API const char *qn_precision_name(qn_precision precision);

#ifdef __cplusplus
}
#endif
#endif
