def make_sampler(temp=0.0, top_p=0.0, min_p=0.0, top_k=0):
    return None


def make_logits_processors(logit_bias=None, repetition_penalty=None, repetition_context_size=20):
    return []
