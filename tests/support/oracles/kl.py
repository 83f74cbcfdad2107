"""Compute the Kullback-Leibler divergence and its estimators by loops."""

import torch

from tests.support.oracles.logprobs import log_softmax
from tests.support.oracles.loops import table, total


def kl_term(l, l_ref, estimator):  # noqa: E741
    l_ref = l_ref.detach()
    k1 = l - l_ref
    k2 = (l - l_ref) ** 2 / 2
    k3 = torch.exp(l_ref - l) - (l_ref - l) - 1
    return {"k1": k1, "k2": k2, "k3": k3, "k3+": k2 - k2.detach() + k3.detach()}[estimator]


def kl_estimate(logp, ref_logp, estimator="k3") -> torch.Tensor:
    B, T = logp.shape
    return table([[kl_term(logp[b, t], ref_logp[b, t], estimator) for t in range(T)] for b in range(B)])


def kl_exact(logits, ref_logits) -> torch.Tensor:
    B, T, V = logits.shape
    answer = []
    for b in range(B):
        answer.append([])
        for t in range(T):
            p, q = log_softmax(list(logits[b, t])), log_softmax(list(ref_logits[b, t]))
            answer[b].append(total(torch.exp(p[v]) * (p[v] - q[v]) for v in range(V)))
    return table(answer)


def kl_in_reward(rewards, logp, ref_logp, mask, beta) -> torch.Tensor:
    B, T = logp.shape
    penalties = [total((logp[b, t] - ref_logp[b, t]).detach() for t in range(T) if mask[b, t]) for b in range(B)]
    return table([rewards[b] - beta * penalties[b] for b in range(B)])
