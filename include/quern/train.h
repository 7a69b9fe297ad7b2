/* Fine-tuning: LoRA and DoRA adapters beside a model's weights, which stay as they are whatever their type,
 * or the weights themselves.
 *
 * A training reads a data set (a jsonl file, or a folder with train.jsonl and, as wanted, valid.jsonl and
 * test.jsonl; docs/training.md says what a line may be), takes steps, validates, and writes into one folder:
 *
 *   last/              the adapter (or the whole model) after the last step that was saved
 *   best/              the one with the lowest validation loss; not there without validation
 *   state.safetensors  what a resumed training needs to go on with the same bits
 *   log.jsonl          a JSON object a line for each event
 *
 * Each of the first three appears whole or stays as it was. Results depend on model, data and options, not on
 * threads. One thread at a time for a training, except qn_training_stop. */
#ifndef QUERN_TRAIN_H
#define QUERN_TRAIN_H

#include <quern/adapter.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { QN_TRAIN_LORA, QN_TRAIN_DORA, QN_TRAIN_FULL } qn_train_method;

/* Initial values of A. B is zero, so nothing changes before the first step. UNIFORM: in +-1 / sqrt(n_in),
 * which is Kaiming's with a = sqrt(5), as in peft and mlx_lm. NORMAL: with deviation 1 / rank, peft's
 * "gaussian". KAIMING_NORMAL: with deviation 1 / sqrt(n_in) (He et al. 2015 with a gain of 1). */
typedef enum { QN_TRAIN_UNIFORM, QN_TRAIN_NORMAL, QN_TRAIN_KAIMING_NORMAL } qn_train_init;

/* Which tokens count in the loss. */
typedef enum {
    QN_MASK_ANSWERS, /* the assistant's turns with their ends; of a prompt's line the completion */
    QN_MASK_LAST,    /* of a chat the last of these */
    QN_MASK_ALL
} qn_mask;

typedef enum { QN_OPTIMIZER_ADAMW, QN_OPTIMIZER_SGD } qn_optimizer_kind;

/* The learning rate. It rises in equal steps during warm-up. Then it stays constant, or falls to its end
 * value, linearly or as half a cosine. A step after the last one would have the end value. */
typedef enum { QN_SCHEDULE_CONSTANT, QN_SCHEDULE_LINEAR, QN_SCHEDULE_COSINE } qn_schedule_kind;

/* Zero or NULL: the default, in brackets. Strings are read during qn_training_open only. */
typedef struct {
    const char *model_path; /* as for qn_model_open; must be there, or else: */
    /* An open model (backend native, on the CPU) whose weights are shared: it goes on answering meanwhile, and
     * stays open as long as the training is. The memory limit is then for what the training holds beside it.
     * NULL: the model at model_path. */
    qn_model *model;
    const char *data_path; /* a folder, or the file to train on; must be there */
    const char *out_path;  /* a folder, made when it is missing. NULL: nothing is written */

    /* What is trained. The fields to init belong to LORA and DORA. */
    qn_train_method method;
    /* Names or patterns of modules, separated by commas. A name matches the end of a module's path after a
     * dot ("q_proj", "self_attn.q_proj"); one with '*' or '?' matches the whole path. Matrices of experts are
     * the modules "model.layers.3.mlp.experts.gate_up_proj" and "down_proj" beside it; LORA alone trains them.
     * [all linear layers of the decoder's layers except those that choose experts and the experts' own] */
    const char *targets;
    int32_t rank; /* [8] */
    float alpha;  /* the factor is alpha / rank, with rslora alpha / sqrt(rank) [16] */
    int rslora;
    float dropout; /* of what the factors read, [0, 1) */
    qn_train_init init;
    int bf16_adapter;               /* the factors are kept and written in bf16, half the bytes [f32] */
    int64_t layer_begin, layer_end; /* layers [begin, end) [all] */
    /* An adapter to start from. Method, targets, rank and alpha are taken from it if they are not given;
     * given ones must be the same. */
    const char *start_path;
    qn_adapter_layout layout; /* of what is written into out_path */
    const char *save_type;    /* of FULL: "f32", "f16" or "bf16", of all numbers of the model that is written
                                 [each tensor keeps its type; a quantised model needs one] */

    /* Steps. */
    qn_optimizer_kind optimizer;
    double learning_rate;     /* the highest [1e-5] */
    double beta1, beta2, eps; /* AdamW [0.9, 0.999, 1e-8] */
    double weight_decay;      /* AdamW [0.01], SGD [none]; negative: none */
    double momentum;          /* SGD */
    int no_bias_correction;   /* AdamW */
    qn_schedule_kind schedule;
    double end_rate; /* where LINEAR and COSINE end, as a share of learning_rate [0] */
    int64_t warmup_steps;
    double clip_norm;       /* maximum norm of the gradient [1]; negative: none */
    int64_t accumulate;     /* batches of a step [1] */
    int64_t n_steps;        /* [those of n_epochs] */
    int64_t n_epochs;       /* [1] */
    int checkpoint_layers;  /* compute layers again for their gradients: less memory, the same bits */
    qn_precision precision; /* of products with the model's weights */
    uint64_t seed;          /* of first numbers, order of lines and dropout */

    /* Data. */
    qn_mask mask;
    int64_t max_length; /* tokens of a line, the rest is cut off [2048] */
    /* A batch has as many whole lines as fit both limits. [one line of max_length if neither is given;
     * batch_tokens: batch_sequences lines of max_length; batch_sequences: as many as fit] */
    int64_t batch_tokens, batch_sequences;
    int in_order; /* lines keep the file's order in every epoch [shuffled] */
    int strict;   /* a bad line is an error [reported and left out] */

    /* Around the steps. */
    int64_t validate_every;    /* steps [at the end of each epoch]; the last step is followed by one, too */
    int64_t validate_batches;  /* [all] */
    int64_t save_every;        /* steps [100]; the last step is saved, too */
    int resume;                /* go on from the state in out_path. QN_E_NOT_FOUND: there is none */
    int overwrite;             /* start over if out_path holds a training. Without it, that is QN_E_ARG */
    int32_t n_threads;         /* [as for qn_model_open] */
    size_t memory_limit_bytes; /* hard limit for all that the training holds [none] */
    const char *device; /* as for qn_model_open ["auto"; with resume the device that computed the state] */
    size_t device_memory_limit_bytes; /* as for qn_model_open [what is free] */
    /* As of qn_model_options [the files']. The adapter's files do not say it: give it again where the adapter is
     * used. QN_E_ARG with model, which has it already, and with FULL, which writes the files' own. */
    qn_rope_options rope;
} qn_train_options;

typedef struct qn_training qn_training;

/* Opens model and data, reads and checks all lines, builds the step. Nothing is written. The caller calls
 * qn_training_close. QN_E_ARG: options that cannot work (the message says which), or no line to train on;
 * QN_E_NOT_FOUND: no data, or no state to resume; QN_E_UNSUPPORTED: the model has a part without a gradient,
 * or the state in out_path belongs to a training with other settings (the message names the first that
 * differs); QN_E_NOMEM: the memory limit; and the statuses of qn_model_open. */
QN_API qn_status qn_training_open(const qn_train_options *options, qn_training **out);
/* Everything that was not saved is lost. NULL is accepted. */
QN_API void qn_training_close(qn_training *t);

/* What was opened. Strings live as long as the training. */
typedef struct {
    const char *architecture;
    const char *device;  /* "cpu" */
    const char *cpu_set; /* "avx512"; of other devices what they say of themselves */
    int32_t n_threads;
    int64_t vocab_size;
    double uniform_loss; /* ln(vocab_size): the loss of a uniform guess */
    int64_t n_model_parameters;
    int64_t n_arrays, n_trained;               /* arrays that are trained; numbers in them */
    int64_t n_lines, n_bad_lines, n_cut_lines; /* of the data to train on */
    int64_t n_tokens, n_counted;               /* of its good lines; those that count in the loss */
    int64_t n_valid_lines;                     /* good ones; 0: nothing to validate with */
    int64_t batch_tokens, batch_sequences;     /* the most that a batch has */
    int64_t n_steps, n_epochs;                 /* of the whole training; 0 epochs: steps say how long */
    int64_t step;                              /* steps taken, those before a resume included */
    double best_loss;                          /* of all validations; INFINITY: none yet */
    size_t memory_bytes, peak_memory_bytes;    /* held now; the most until now */
    const char *notes;       /* notes on data and options for the user, one sentence a line; "": none */
    const char *device_name; /* as in qn_model_info */
    size_t device_memory_bytes, device_peak_memory_bytes; /* of a card; 0: the device has no memory */
} qn_train_info;

QN_API qn_status qn_training_get_info(const qn_training *t, qn_train_info *out);

/* Of one step. */
typedef struct {
    int64_t step, n_steps;                    /* the first is 1 */
    int64_t epoch;                            /* the first is 0 */
    double loss;                              /* mean over the tokens that count, before the update */
    double rate;                              /* of learning */
    double grad_norm;                         /* before it was cut */
    int64_t n_tokens, n_counted, n_sequences; /* of the step */
    int64_t n_tokens_total;                   /* of all steps, those before a resume included */
    double seconds, tokens_per_s;             /* of the step */
    double eta_s; /* to the end, by the mean of this run's steps and validations */
    size_t memory_bytes, peak_memory_bytes;
    size_t device_memory_bytes, device_peak_memory_bytes; /* of a card; 0: the device has no memory */
} qn_train_step_report;

/* One step without the loop: nothing is logged, validated or saved. out may be NULL. QN_E_CLOSED: all steps
 * were taken; QN_E_DEVICE: the loss or a gradient is not finite (the message names the first place of the
 * computation that is not). After a failure the training is as before the step. */
QN_API qn_status qn_training_step(qn_training *t, qn_train_step_report *out);
/* Mean loss over the validation data, or over its first validate_batches batches. QN_E_NOT_FOUND: there is no
 * validation data. */
QN_API qn_status qn_training_validate(qn_training *t, double *loss);

typedef enum {
    QN_TRAIN_EVENT_START,   /* first of a run; step: from where */
    QN_TRAIN_EVENT_NOTE,    /* text: what a user should know */
    QN_TRAIN_EVENT_WARNING, /* text: what is likely wrong */
    QN_TRAIN_EVENT_STEP,    /* report */
    QN_TRAIN_EVENT_VALID,   /* valid_loss, and best_loss with it */
    QN_TRAIN_EVENT_SAVED,   /* path: what was written */
    QN_TRAIN_EVENT_STOPPED, /* last of a run that was asked to stop; all is saved, and can be resumed */
    QN_TRAIN_EVENT_FAILED,  /* last of a run that failed; text: why */
    QN_TRAIN_EVENT_DONE     /* last of a run that took all steps; all is saved */
} qn_train_event_kind;

/* Borrowed during the call. Fields that belong to other kinds are zero. */
typedef struct {
    qn_train_event_kind kind;
    int64_t step;                       /* taken so far */
    const qn_train_step_report *report; /* STEP */
    /* VALID; DONE and STOPPED: the last and the best, NAN where there was none. */
    double valid_loss, best_loss;
    double seconds;   /* VALID: of the validation; DONE and STOPPED: of the run */
    const char *path; /* SAVED */
    const char *text; /* NOTE, WARNING, FAILED */
} qn_train_event;

/* Nonzero: as qn_training_stop. */
typedef int qn_train_notify_fn(void *user, const qn_train_event *event);

/* "step". Static storage. */
QN_API const char *qn_train_event_name(qn_train_event_kind kind);

/* Takes all steps that are left, with validations, log and checkpoints according to the options. notify may
 * be NULL. If the training was asked to stop, the running step is discarded, the state before it is saved,
 * and QN_OK is returned. QN_E_DEVICE: as for qn_training_step; the last saved state stays. QN_E_IO: something
 * could not be written. After any other failure the state before the step is saved as far as possible. */
QN_API qn_status qn_training_run(qn_training *t, qn_train_notify_fn *notify, void *user);
/* The current run, or the next one, ends within a batch. Any thread; safe in a signal handler. */
QN_API void qn_training_stop(qn_training *t);

/* Writes what is trained into folder path: an adapter, or with FULL the model. Whole or not at all. */
QN_API qn_status qn_training_save(qn_training *t, const char *path, qn_adapter_layout layout);
/* The batches of the next step as text for a terminal: tokens, and which of them count, coloured or between
 * marks. *out: qn_buffer_free (tokenizer.h). */
QN_API qn_status qn_training_show_batch(qn_training *t, int colours, char **out);

/* One of the arrays that are trained, sorted by name. */
typedef struct {
    const char *name; /* "model.layers.3.self_attn.q_proj.lora_A.weight"; lives as long as the training */
    int32_t n_dims;
    int64_t shape[4];
    int64_t n; /* elements */
} qn_train_array;

/* QN_E_NOT_FOUND: there are fewer. */
QN_API qn_status qn_training_get_array(const qn_training *t, int64_t i, qn_train_array *out);
/* Copies its numbers, and the gradient that the last step had of its mean loss, before it was cut; n each.
 * Either may be NULL. QN_E_ARG: a gradient before the first step. */
QN_API qn_status qn_training_read_array(const qn_training *t, int64_t i, float *numbers, float *gradient);

/* ---- losses of a model ---- */

/* One line of a data set. */
typedef struct {
    int64_t line;                /* as an editor counts */
    int64_t n_tokens, n_counted; /* 0: the line is bad */
    double loss;                 /* mean over those that count; exp(loss) is the perplexity */
    const char *bad;             /* why it is; NULL: it is not. Borrowed during the call */
} qn_evaluate_line;

/* Anything but QN_OK ends the evaluation, which returns it. */
typedef qn_status qn_evaluate_line_fn(void *user, const qn_evaluate_line *line);

/* Zero or NULL: the default, in brackets. */
typedef struct {
    const char *model_path;   /* as for qn_model_open; must be there */
    const char *data_path;    /* a folder or a file; must be there */
    const char *split;        /* of a folder: "train", "valid" or "test" [the last of these that it has] */
    const char *adapter_path; /* [none] */
    float adapter_scale;      /* multiplies the adapter's own factor [1] */
    qn_mask mask;
    int64_t max_length;   /* as for training [2048] */
    int64_t batch_tokens; /* [max_length] */
    int64_t max_lines;    /* [all] */
    int strict;
    qn_precision precision;
    int32_t n_threads;
    size_t memory_limit_bytes;
    const char *device;               /* as for qn_model_open ["auto"] */
    size_t device_memory_limit_bytes; /* as for qn_model_open [what is free] */
    qn_rope_options rope;             /* as of qn_model_options [the files'] */
    qn_evaluate_line_fn *notify;      /* told of each line, in the order of the file; may be NULL */
    void *user;
} qn_evaluate_options;

typedef struct {
    int64_t n_lines, n_bad_lines, n_cut_lines;
    int64_t n_tokens, n_counted;
    double loss;       /* mean over the tokens that count, of all lines */
    double perplexity; /* exp(loss) */
    double seconds;
    size_t peak_memory_bytes;
    size_t device_peak_memory_bytes; /* of a card; 0: the device has no memory */
} qn_evaluate_result;

/* The loss of a model, with an adapter or without, over a data set. What might surprise is logged as a
 * warning. Statuses as for qn_training_open and qn_adapter_load. */
QN_API qn_status qn_evaluate_data(const qn_evaluate_options *options, qn_evaluate_result *out);

#ifdef __cplusplus
}
#endif
#endif
