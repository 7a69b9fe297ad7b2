/* Attention inspection: values that a model computes for one prompt, as plain arrays.
 *
 * A snapshot has the keys of every attention layer at all positions, after their norms and RoPE, as attention
 * uses them. This includes positions outside a sliding window. On request it also has queries, attention
 * probabilities and hidden states. Values are float32 as they were computed, whatever type the model stores
 * keys in. The prompt runs as a separate sequence in chunks, between the steps of others, and does not change
 * their results. A snapshot belongs to the caller and lives on when its model is closed. It is counted in the
 * model's memory (other_bytes) until it is freed. Any thread may take a snapshot; a snapshot itself is
 * constant. */
#ifndef QUERN_ATTENTION_H
#define QUERN_ATTENTION_H

#include <quern/generate.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Values besides keys, for qn_snapshot_options.wanted. */
enum {
    QN_SNAPSHOT_QUERIES = 1,
    QN_SNAPSHOT_ATTENTION = 2, /* seq_len^2 numbers for each head of each layer */
    QN_SNAPSHOT_HIDDEN = 4,
    QN_SNAPSHOT_ALL = 7
};

typedef struct {
    unsigned wanted; /* a sum of QN_SNAPSHOT_*; 0: keys alone */
    /* Layers whose keys, queries and attention are wanted, counted from 0. NULL: all. Hidden states are
     * always those of all layers. */
    const int64_t *layers;
    size_t n_layers;
    const char *adapter; /* as in qn_generate_options */
} qn_snapshot_options;

/* One layer. A layer without attention has no heads. The arrays of a layer that was not requested are NULL.
 */
typedef struct {
    int64_t kv_layer; /* whose keys it reads: its own number, or that of a layer before; -1: no attention */
    int64_t window;   /* position p sees (p - window, p]; 0: all of [0, p] */
    int64_t chunk;    /* > 0: of these the positions in p's own chunk of so many */
    int64_t num_attention_heads, num_key_value_heads;
    int64_t head_dim;     /* of keys */
    int64_t query_dim;    /* of queries: head_dim, but in layers of latent attention */
    const float *keys;    /* [num_key_value_heads, seq_len, head_dim]. Of a layer that reads another's the
                             same array; of latent attention the normed latent, [1, seq_len, kv_lora_rank],
                             without the rotated part */
    const float *queries; /* [num_attention_heads, seq_len, query_dim]; NULL: not wanted. Of latent attention
                             in the space of the latent, with the rotated part behind */
    const float *attention; /* [num_attention_heads, seq_len, seq_len], a row for each query; NULL: not
                               wanted. 0 where a row sees nothing; rows sum to 1, with sinks to less */
} qn_attention_layer;

typedef struct qn_attention_snapshot {
    int64_t n_layers, seq_len, hidden_size;
    const int32_t *ids;               /* [seq_len]: the prompt, images in it expanded */
    const qn_attention_layer *layers; /* [n_layers] */
    /* [n_layers + 1], each [seq_len, hidden_size]: 0 after the (scaled) embedding, n after n layers; the last
     * is after the final norm. Of models with hyper-connections the mean of the streams. NULL: not wanted */
    const float *const *hidden;
    size_t size_bytes;                                       /* of all of it, as it is counted */
    void (*release)(struct qn_attention_snapshot *snapshot); /* of the backend; qn_attention_snapshot_free */
} qn_attention_snapshot;

/* Computes the prompt (one text, row or chat, with its images). It waits for a slot as a generation does.
 * options may be NULL. *out is owned by the caller: qn_attention_snapshot_free. QN_E_ARG: an empty prompt,
 * one that is longer than the context, several rows, an unknown layer or bit; QN_E_NOMEM: the snapshot does
 * not fit the memory limit or the machine; nothing was computed, and others are not affected; QN_E_FULL: this
 * thread itself holds the model's slots; QN_E_UNSUPPORTED: the backend has no snapshots. */
QN_API qn_status qn_attention_snapshot_new(qn_model *model, const qn_prompt *prompt,
                                           const qn_snapshot_options *options, qn_attention_snapshot **out);
/* NULL is accepted. */
QN_API void qn_attention_snapshot_free(qn_attention_snapshot *snapshot);

#ifdef __cplusplus
}
#endif
#endif
