/* Mirostat (Basu et al. 2020, arXiv 2007.14966): keeps the surprise of the drawn tokens near a target.
 *
 * mu, the largest surprise that is allowed, begins at 2 tau. A draw:
 * 1. version 1: s is the exponent of Zipf's law that fits the 100 likeliest tokens best (least squares), and
 *    k = ((s - 1) 2^mu / (1 - N^(1 - s)))^(1/s), to the nearest integer and at least 1, N the number of
 *    candidates. The k largest stay, and all that equal the k-th.
 *    version 2: tokens with a surprise of at most mu stay; the likeliest always.
 * 2. A token is drawn from those that stay.
 * 3. mu -= eta * (its surprise - tau).
 * The surprise of a token is -log2 p, p the softmax of the candidates before step 1, as in the paper;
 * llama.cpp takes it after step 1. mu belongs to the sequence. One thread at a time. */
#ifndef QN_ENGINE_SAMPLE_MIROSTAT_H
#define QN_ENGINE_SAMPLE_MIROSTAT_H

#include "engine/sample/candidates.h"

typedef struct {
    int version; /* 0: off */
    double tau, eta, mu;
    double log2_total; /* of the weights before step 1 of the last draw */
    double surprise;   /* of the last draw */
} qn_mirostat;

void qn_mirostat_begin(qn_mirostat *m, int version, float tau, float eta);
/* Step 1. */
void qn_mirostat_filter(qn_mirostat *m, qn_candidates *c);
/* Step 2 gave id: notes its surprise. */
void qn_mirostat_look(qn_mirostat *m, const qn_candidates *c, int32_t id);
/* Step 3: the sequence goes on with the token that was looked at last. */
void qn_mirostat_accept(qn_mirostat *m);

#endif
