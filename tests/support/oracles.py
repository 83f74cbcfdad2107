"""Every formula of the package as literal Python loops over float64 scalars.

Nothing here is vectorised and nothing is shared with the package: each sum is a loop, each mean a division, each
stopped gradient an explicit `.detach()`. The scalars are torch scalars, so autograd differentiates the loops, and the
tests hold values and gradients of the package against them. Speed does not matter here; being obviously right does.
"""

import math

import torch

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
PER_SEQUENCE = ("grpo", "sapo")
PER_TOTAL_TOKENS = ("dapo", "cispo", "vespo")


def zero() -> torch.Tensor:
    return torch.zeros((), dtype=torch.float64)


def total(terms) -> torch.Tensor:
    answer = zero()
    for term in terms:
        answer = answer + term
    return answer


def table(rows) -> torch.Tensor:
    """Nested lists of scalars to one float64 tensor that keeps their graph."""
    if isinstance(rows, list):
        return torch.stack([table(row) for row in rows])
    return rows.double() if isinstance(rows, torch.Tensor) else torch.tensor(float(rows), dtype=torch.float64)


# --- log-probabilities ----------------------------------------------------------------------------------------


def log_softmax(row) -> list:
    """The largest logit is subtracted first: with logits of 1e4, exp would overflow."""
    top = max(x.detach().item() for x in row)
    log_normaliser = top + torch.log(total(torch.exp(x - top) for x in row))
    return [x - log_normaliser for x in row]


def token_logprobs(logits, token_ids, temperature=1.0) -> torch.Tensor:
    B, T, _ = logits.shape
    return table(
        [
            [log_softmax([x / temperature for x in logits[b, t]])[int(token_ids[b, t])] for t in range(T)]
            for b in range(B)
        ]
    )


def token_entropy(logits, temperature=1.0) -> torch.Tensor:
    B, T, _ = logits.shape
    rows = [[log_softmax([x / temperature for x in logits[b, t]]) for t in range(T)] for b in range(B)]
    return table([[total(-torch.exp(x) * x for x in log_p) for log_p in row] for row in rows])


def head_logits(hidden, weight) -> torch.Tensor:
    B, T, D = hidden.shape
    V = weight.shape[0]
    return table(
        [
            [[total(hidden[b, t, d] * weight[v, d] for d in range(D)) for v in range(V)] for t in range(T)]
            for b in range(B)
        ]
    )


def completion_mask(token_ids, eos_token_id) -> torch.Tensor:
    mask = []
    for row in token_ids.tolist():
        kept, ended = [], False
        for token in row:
            kept.append(not ended)
            ended = ended or token == eos_token_id
        mask.append(kept)
    return torch.tensor(mask, dtype=torch.bool)


# --- advantages -----------------------------------------------------------------------------------------------


def mean_of(values) -> torch.Tensor:
    return total(values) / len(values)


def std_of(values, ddof) -> torch.Tensor:
    mean = mean_of(values)
    return torch.sqrt(total((x - mean) ** 2 for x in values) / (len(values) - ddof))


def all_equal(values) -> bool:
    return all(x.item() == values[0].item() for x in values)


def normalise(values, ddof, eps) -> list:
    """(x - mean) / (std + eps); equal values have no spread, whatever rounding the mean would suffer."""
    if all_equal(values):
        return [0.0 * x for x in values]
    mean, std = mean_of(values), std_of(values, ddof)
    return [(x - mean) / (std + eps) for x in values]


def group_advantages(rewards, scale="group", ddof=1, eps=1e-4) -> torch.Tensor:
    groups = [list(group) for group in rewards.double()]
    if scale == "group":
        return table([normalise(group, ddof, eps) for group in groups])
    everything = [x for group in groups for x in group]
    divisor = 1.0 if scale == "none" or all_equal(everything) else std_of(everything, ddof) + eps
    return table([[0.0 * x if all_equal(group) else (x - mean_of(group)) / divisor for x in group] for group in groups])


def rloo_advantages(rewards) -> torch.Tensor:
    answer = []
    for group in rewards.double():
        others = [[group[j] for j in range(len(group)) if j != i] for i in range(len(group))]
        answer.append(
            [0.0 * group[i] if all_equal(group) else group[i] - mean_of(others[i]) for i in range(len(group))]
        )
    return table(answer)


def best_of_group(rewards) -> torch.Tensor:
    answer = []
    for group in rewards.double():
        best = max(x.item() for x in group)
        answer.append([x if x.item() == best and not all_equal(group) else 0.0 * x for x in group])
    return table(answer)


def process_advantages(step_rewards, step_mask, eps=1e-4) -> torch.Tensor:
    P, G, T = step_rewards.shape
    answer = []
    for p in range(P):
        places = [(g, t) for g in range(G) for t in range(T) if step_mask[p, g, t]]
        scored = normalise([step_rewards[p, g, t].double() for g, t in places], 1, eps) if places else []
        normalised = dict(zip(places, scored, strict=True))
        answer.append(
            [[total(normalised[g, u] for u in range(t, T) if (g, u) in normalised) for t in range(T)] for g in range(G)]
        )
    return table(answer)


def return_to_go(rewards, gamma) -> torch.Tensor:
    P, G, T = rewards.shape
    return table(
        [
            [[total(gamma ** (u - t) * rewards[p, g, u] for u in range(t, T)) for t in range(T)] for g in range(G)]
            for p in range(P)
        ]
    )


def return_to_go_advantages(rewards, gamma, ddof=1, eps=1e-4) -> torch.Tensor:
    P, G, T = rewards.shape
    returns = return_to_go(rewards.double(), gamma)
    columns = [[normalise([returns[p, g, t] for g in range(G)], ddof, eps) for t in range(T)] for p in range(P)]
    return table([[[columns[p][t][g] for t in range(T)] for g in range(G)] for p in range(P)])


# --- Kullback-Leibler -----------------------------------------------------------------------------------------


def kl_term(l, l_ref, estimator):  # noqa: E741
    k1 = l - l_ref
    k2 = (l - l_ref) ** 2 / 2
    k3 = torch.exp(l_ref - l) - (l_ref - l) - 1
    return {"k1": k1, "k2": k2, "k3": k3, "k3+": k2 - k2.detach() + k3.detach()}[estimator]


def kl_estimate(logp, ref_logp, estimator) -> torch.Tensor:
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
    charges = [total((logp[b, t] - ref_logp[b, t]).detach() for t in range(T) if mask[b, t]) for b in range(B)]
    return table([rewards[b] - beta * charges[b] for b in range(B)])


# --- the objective --------------------------------------------------------------------------------------------


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
    """sg(s) exp(l - sg l): the sequence's ratio in value, each token's own gradient."""
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


def vespo_weight(logp, old_logp, mask, b, a) -> float:
    """phi(w) = exp(lam) w^k exp(-lam w), w the product of a sequence's ratios, kept within [1e-8, exp(20)]."""
    log_w = log_ratio_per_sequence(logp, old_logp, mask, b, clamp=20.0)[0].item()
    log_w = min(max(log_w, math.log(1e-8)), 20.0)
    k, lam = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
    return math.exp(lam + k * log_w - lam * math.exp(log_w))


def aggregate(values, mask, loss_type, max_completion_length=None, num_items=None) -> torch.Tensor:
    B, T = values.shape
    kept = [[values[b, t] for t in range(T) if mask[b, t]] for b in range(B)]
    tokens = sum(len(row) for row in kept)
    if loss_type in PER_SEQUENCE:
        return total(total(row) / max(len(row), 1) for row in kept) / B
    everything = total(total(row) for row in kept)
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
    max_completion_length=None, num_items=None,
):  # fmt: skip
    B, T = logp.shape
    old = logp.detach() if old_logp is None else old_logp
    high = epsilon if epsilon_high is None else epsilon_high
    ratio = importance_ratio(logp, old, mask, importance_sampling_level)
    one_a_row = ratio.shape[1] < T and advantages.ndim == 1
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
                tau = 1.0 if a.item() > 0 else 1.05
                term = -1 / (1 + torch.exp(-tau * (r - 1))) * 4 / tau * a
            elif loss_type == "vespo":
                term = -vespo_weight(logp, old, mask, b, a.item()) * a * l
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
    kept = [values[b, t].item() for b in range(B) for t in range(T) if mask[b, t]]
    return sum(kept) / max(len(kept), 1)


def clip_metrics(ratio, advantages, counted, epsilon, high) -> dict[str, float]:
    """The share clipped: of the tokens kept, or of the rows where a row has one ratio."""
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
