"""Compute importance ratios, surrogates, averages and losses by loops."""

import math

import torch

from tests.support.oracles.kl import kl_term
from tests.support.oracles.loops import table, total, zero

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
PER_SEQUENCE = ("grpo", "sapo")


def log_ratio_per_sequence(logp, old_logp, mask, b, clamp=None):
    terms = [logp[b, t] - old_logp[b, t].detach() for t in range(logp.shape[1]) if mask[b, t]]
    return total(torch.clamp(x, -clamp, clamp) if clamp else x for x in terms), max(len(terms), 1)


def importance_ratio(logp, old_logp, mask, level="token") -> torch.Tensor:
    B, T = logp.shape
    if level == "token":
        return table([[torch.exp(logp[b, t] - old_logp[b, t].detach()) for t in range(T)] for b in range(B)])
    sums = [log_ratio_per_sequence(logp, old_logp, mask, b) for b in range(B)]
    return table([[torch.exp(log_ratio / length)] for log_ratio, length in sums])


def gspo_token_ratio(logp, old_logp, mask) -> torch.Tensor:
    """Return sg(s) exp(l - sg l), which has the value of the sequence's ratio and the gradient of each token."""
    B, T = logp.shape
    s = importance_ratio(logp, old_logp, mask, "sequence").detach()
    return table([[s[b, 0] * torch.exp(logp[b, t] - logp[b, t].detach()) for t in range(T)] for b in range(B)])


def surrogate_term(r, a, epsilon, epsilon_high, delta):
    high = epsilon if epsilon_high is None else epsilon_high
    capped = r if delta is None or r.item() <= delta else zero() + delta
    clipped = r if 1 - epsilon <= r.item() <= 1 + high else zero() + (1 - epsilon if r.item() < 1 else 1 + high)
    return capped * a if (capped * a).item() <= (clipped * a).item() else clipped * a


def clipped_surrogate(ratio, advantages, epsilon=0.2, epsilon_high=None, delta=None) -> torch.Tensor:
    B, T = max(ratio.shape[0], advantages.shape[0]), max(ratio.shape[1], advantages.shape[1])
    r, a = ratio.expand(B, T), advantages.expand(B, T)
    return table([[surrogate_term(r[b, t], a[b, t], epsilon, epsilon_high, delta) for t in range(T)] for b in range(B)])


def vespo_weight(logp, old_logp, mask, b, a, k_pos=2.0, lambda_pos=3.0, k_neg=3.0, lambda_neg=2.0) -> float:
    """Return phi(w) = exp(lam) w^k exp(-lam w), where w is the product of a sequence's ratios in [1e-8, exp(20)]."""
    log_w = log_ratio_per_sequence(logp, old_logp, mask, b, clamp=20.0)[0].item()
    log_w = min(max(log_w, math.log(1e-8)), 20.0)
    k, lam = (k_pos, lambda_pos) if a >= 0 else (k_neg, lambda_neg)
    return math.exp(lam + k * log_w - lam * math.exp(log_w))


def aggregate(values, mask, loss_type, max_completion_length=None, num_items=None) -> torch.Tensor:
    B, T = values.shape
    masked_values = [[values[b, t] for t in range(T) if mask[b, t]] for b in range(B)]
    tokens = sum(len(row) for row in masked_values)
    if loss_type in PER_SEQUENCE:
        return total(total(row) / max(len(row), 1) for row in masked_values) / B
    everything = total(total(row) for row in masked_values)
    if loss_type == "bnpo":
        return everything / max(tokens, 1)
    if loss_type == "dr_grpo":
        return everything / (B * max_completion_length)
    if loss_type == "luspo":
        return everything / B
    return everything / max(tokens if num_items is None else num_items, 1)


def policy_loss(
    logp, advantages, mask, old_logp=None, ref_logp=None, *, loss_type="grpo", importance_sampling_level="token",
    epsilon=0.2, epsilon_high=None, delta=None, beta=0.0, kl_estimator="k3", kl_bias_correction=False,
    max_completion_length=None, num_items=None, sapo_temperature_pos=1.0, sapo_temperature_neg=1.05, vespo_k_pos=2.0,
    vespo_lambda_pos=3.0, vespo_k_neg=3.0, vespo_lambda_neg=2.0,
):  # fmt: skip
    assert loss_type in LOSS_TYPES, "it has no literal loop yet"
    vespo = (vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg)
    B, T = logp.shape
    old = logp.detach() if old_logp is None else old_logp
    high = epsilon if epsilon_high is None else epsilon_high
    ratio = importance_ratio(logp, old, mask, importance_sampling_level)
    one_a_row = importance_sampling_level == "sequence" and (advantages.ndim == 1 or T == 1)
    counted = [[True]] * B if one_a_row else mask
    loss, kl = [], []
    for b in range(B):
        loss.append([])
        kl.append([])
        for t in range(T):
            l, r = logp[b, t], ratio[b, min(t, ratio.shape[1] - 1)]  # noqa: E741
            a = advantages[b] if advantages.ndim == 1 else advantages[b, t]
            if loss_type == "cispo":
                term = -min(r.item(), high) * a * l
            elif loss_type == "sapo":
                tau = sapo_temperature_pos if a.item() > 0 else sapo_temperature_neg
                term = -1 / (1 + torch.exp(-tau * (r - 1))) * 4 / tau * a
            elif loss_type == "vespo":
                term = -vespo_weight(logp, old, mask, b, a.item(), *vespo) * a * l
            else:
                term = -surrogate_term(r, a, epsilon, epsilon_high, delta)
            penalty = zero() if beta == 0 else kl_term(l, ref_logp[b, t], kl_estimator)
            penalty = penalty * r if kl_bias_correction else penalty
            loss[b].append(term + beta * penalty)
            kl[b].append(penalty)
    metrics = {
        "kl": masked_mean(table(kl), mask),
        **clip_metrics(ratio if one_a_row else ratio.expand(B, T), advantages, counted, epsilon, high),
    }
    return aggregate(table(loss), mask, loss_type, max_completion_length, num_items), metrics


def masked_mean(values, mask) -> float:
    B, T = values.shape
    masked_values = [values[b, t].item() for b in range(B) for t in range(T) if mask[b, t]]
    return sum(masked_values) / max(len(masked_values), 1)


def clip_metrics(ratio, advantages, counted, epsilon, high) -> dict[str, float]:
    """Return the clipped share of the kept tokens, or of the rows if there is one ratio per row."""
    B, T = ratio.shape
    low = up = count = 0
    for b in range(B):
        for t in range(T):
            a = (advantages[b] if advantages.ndim == 1 else advantages[b, t]).item()
            if counted[b][t]:
                low += ratio[b, t].item() < 1 - epsilon and a < 0
                up += ratio[b, t].item() > 1 + high and a > 0
                count += 1
    count = max(count, 1)
    return {
        "clip_ratio/low_mean": low / count,
        "clip_ratio/high_mean": up / count,
        "clip_ratio/region_mean": (low + up) / count,
    }
