"""Right answers to the exercises of notebook 03, each written differently; the check has to accept them all."""

from collections import Counter
from itertools import pairwise

import torch


def reward_by_counters(prompts, responses):
    scores = []
    for x, y in zip(prompts.tolist(), responses.tolist(), strict=True):
        included = sum((Counter(x) & Counter(y)).values())
        scores.append(float(included + sum(a <= b for a, b in pairwise(y))))
    return torch.tensor(scores, device=prompts.device)


def responses_by_indexing(logp, responses):
    S, P, T, _ = logp.shape
    s = torch.arange(S)[:, None, None, None]
    p = torch.arange(P)[:, None, None]
    return logp[s, p, torch.arange(T), responses]


def surrogate_by_loops(logp, old_logp, advantages, loss="clipped", epsilon=0.2):
    B, T = logp.shape
    total = 0
    for b in range(B):
        A = advantages[b].item()
        for t in range(T):
            r = (logp[b, t] - old_logp[b, t].item()).exp()
            bound = r.clamp(max=1 + epsilon) if A > 0 else r.clamp(min=1 - epsilon)
            total = total - {"naive": A * logp[b, t], "unclipped": r * A, "clipped": bound * A}[loss]
    return total / (B * T)


def penalty_by_hand(logp, ref_logp, beta):
    d = ref_logp.detach() - logp
    return beta * (torch.exp(d) - d - 1).mean()


RIGHT = {
    "repaired_reward": (reward_by_counters,),
    "response_logprobs": (responses_by_indexing,),
    "surrogate_loss": (surrogate_by_loops,),
    "kl_penalty": (penalty_by_hand,),
}
