/* A data set for training: a jsonl file, of which a line is a sequence (dataset_line.h), handed out in
 * batches.
 *
 * An epoch goes through all lines once, in an order that seed and epoch tell alone. Sequences are packed:
 * they are taken in that order as long as a batch has room, a few behind the first that does not fit may go
 * before it, and none is dropped but bad lines. Lines are read and tokenised when their turn comes; of the
 * file only the lines' offsets and lengths are kept. Invariant: batches follow from file, tokenizer, template
 * and options; a position that was told and sought again goes on with the same ones, and a failed call leaves
 * the position as it was. One thread at a time. */
#ifndef QN_TRAIN_DATA_DATASET_H
#define QN_TRAIN_DATA_DATASET_H

#include "train/data/batch.h"
#include "train/data/dataset_line.h"

/* In the folder of a data set: train.jsonl (or train.json), valid.jsonl, test.jsonl. */
typedef enum { QN_SPLIT_TRAIN, QN_SPLIT_VALID, QN_SPLIT_TEST } qn_dataset_split;

enum {
    QN_DATASET_WINDOW = 16,   /* sequences among which the next that fits is looked for */
    QN_DATASET_BAD_KEPT = 20, /* bad lines of which the reason is kept */
    QN_DATASET_KEYS_KEPT = 16
};

/* The date that templates are told, so that the same file gives the same tokens on another day. */
#define QN_DATASET_NOW "2026-01-01T00:00:00"

/* Zero means default. */
typedef struct {
    qn_mask mask;
    int64_t max_length;    /* tokens of a sequence, the rest is cut off; default 2,048 */
    int64_t batch_tokens;  /* rows of a batch; default max_length, and not less than max_length - 1 */
    int64_t max_sequences; /* of a batch; default: as many as there is room for */
    int in_order;          /* of the file, in every epoch */
    uint64_t seed;         /* of the order */
    int strict;            /* a bad line is an error */
    int64_t vocab_size;    /* see dataset_line.h */
    const char *now;       /* today's date for templates that ask for it; default QN_DATASET_NOW */
} qn_dataset_options;

/* Where a data set stands between two batches. */
typedef struct {
    int64_t epoch;                   /* the first is 0 */
    int64_t next;                    /* place of the epoch's order that was not looked at yet */
    int64_t n_held;                  /* lines before it that found no room yet */
    int64_t held[QN_DATASET_WINDOW]; /* [n_held], their indices */
} qn_dataset_position;

typedef struct {
    int64_t line;   /* as an editor counts */
    int64_t offset; /* in bytes */
    char reason[256];
} qn_dataset_bad_line;

typedef struct {
    char name[48];
    int64_t line; /* where it was first seen */
} qn_dataset_key;

/* Of the lines that were read so far, each counted once. */
typedef struct {
    int64_t n_lines; /* of the file, without those of white space */
    int64_t n_read, n_bad;
    int64_t n_cut;           /* sequences that lost tokens to max_length */
    int64_t n_lost_answers;  /* that do not count, since the template's text does not show where they are */
    int64_t n_hidden_tools;  /* lines whose tools the template's text does not name */
    int64_t n_empty_answers; /* that do not count, since the template writes nothing of them */
    int64_t n_hidden_calls;  /* answers whose tool calls the template does not write */
    int64_t n_endless;       /* answers that do not end with a token that ends a turn */
    /* Where each of these was first met. */
    int64_t line_lost_answers, line_hidden_tools, line_empty_answers, line_hidden_calls, line_endless;
    int64_t n_longest;              /* tokens of the longest sequence */
    int64_t n_tokens, n_counted;    /* of sequences that are not bad, as they are handed out */
    const qn_dataset_bad_line *bad; /* the first QN_DATASET_BAD_KEPT that were met; borrowed */
    int64_t n_bad_kept;
    const qn_dataset_key *other_keys; /* keys of lines that mean nothing; borrowed */
    int64_t n_other_keys;
} qn_dataset_summary;

typedef struct qn_dataset qn_dataset;

/* The file of a split: path is a folder, or the file of the training split itself. *out (qn_free) is NULL
 * where there is no valid or test split. QN_E_NOT_FOUND: a folder without a training split. */
qn_status qn_dataset_find(const char *path, qn_dataset_split split, char **out);

/* file: one jsonl file. text is borrowed. options NULL: defaults. QN_E_ARG: options that do not fit each
 * other; QN_E_FORMAT: no line. */
qn_status qn_dataset_open(const char *file, const qn_chat_text *text, const qn_dataset_options *options,
                          qn_dataset **out);
void qn_dataset_close(qn_dataset *d);

/* Reads all lines in the order of the file for the summary's sake; the position stays. With strict the first
 * bad line is an error that names FILE:LINE. QN_E_ARG: all lines are bad. */
qn_status qn_dataset_check(qn_dataset *d);
qn_dataset_summary qn_dataset_summarize(const qn_dataset *d);

/* Batches of an epoch, by the lengths that check found. */
int64_t qn_dataset_count_batches(const qn_dataset *d, int64_t epoch);
/* 1: the last batch was the last of its epoch. */
int qn_dataset_at_end(const qn_dataset *d);
/* A hash of all bytes of the file. */
uint64_t qn_dataset_hash(const qn_dataset *d);

/* The next batch, borrowed until the next call. After the last of an epoch comes one without sequences, then
 * the next epoch's first. Rows: all tokens of a sequence but its last, which is only a target. Errors as for
 * check. */
qn_status qn_dataset_next(qn_dataset *d, qn_train_batch *out);
/* The numbers of the lines that the sequences of the last batch come from, [n_sequences]. */
const int64_t *qn_dataset_batch_lines(const qn_dataset *d);

void qn_dataset_tell(const qn_dataset *d, qn_dataset_position *out);
/* QN_E_ARG: not a position of this data set; its own stays. */
qn_status qn_dataset_seek(qn_dataset *d, const qn_dataset_position *position);

/* A batch as text for a terminal, appended to *out: per sequence a line that says its size, then its tokens;
 * those that count are coloured, or without colours between marks. lines: as from qn_dataset_batch_lines, or
 * NULL. Control characters of the data are shown, not sent. */
qn_status qn_dataset_show(const qn_tokenizer *t, const qn_train_batch *batch, const int64_t *lines,
                          int colours, qn_buf *out);

#endif
