/* Steps of the sampler chain that look at the whole distribution: its spread or its entropy.
 *
 * Definitions; p is the softmax of the candidates that are left, H its entropy, -sum p ln p.
 * - top_n_sigma n (Tang et al. 2024, arXiv 2411.07641): a token stays if its logit is at least the largest
 *   less n standard deviations of the logits that are left.
 * - typical_p m (Meister et al. 2022, arXiv 2202.00666): tokens in the order of |-ln p - H|. A token stays if
 *   the mass of all that come strictly before it is less than m.
 * - xtc t (p-e-w, text-generation-webui, pull request 6335): of the tokens with p at least t all go but the
 *   last one in falling order.
 * - dynamic temperature (llama.cpp's): low + (high - low) * (H / ln n)^exponent, n the number of candidates.
 *
 * Sums are taken in order of the parts and in lanes, so they depend on the candidates alone. Nothing is
 * allocated. typical_p and xtc need a space (candidates.h). One thread at a time. */
#ifndef QN_ENGINE_SAMPLE_FILTERS_H
#define QN_ENGINE_SAMPLE_FILTERS_H

#include "engine/sample/candidates.h"

void qn_filter_top_n_sigma(qn_candidates *c, float n_sigma);
void qn_filter_typical_p(qn_candidates *c, float p);
void qn_filter_xtc(qn_candidates *c, float threshold);
/* Entropy as a share of the largest that so many candidates can have, in [0, 1]; 0 for a single one. */
double qn_filter_entropy_share(qn_candidates *c);

#endif
