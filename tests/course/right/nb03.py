"""Right answers to the exercises of notebook 03, each written differently; the check has to accept them all."""

from collections import Counter
from itertools import pairwise

import torch
from einops import repeat

from grpo_lab.kl import kl_estimate
from grpo_lab.objective import clipped_surrogate
from grpo_lab.sorting import ascending_pairs


def reward_by_counters(prompts, responses):
    scores = []
    for x, y in zip(prompts.tolist(), responses.tolist(), strict=True):
        included = sum((Counter(x) & Counter(y)).values())
        scores.append(float(included + sum(a <= b for a, b in pairwise(y))))
    return torch.tensor(scores, device=prompts.device)


def reward_by_removing(prompts, responses):
    ordered = (responses.diff(dim=1) >= 0).sum(1)
    found = torch.zeros(len(prompts), device=prompts.device)
    for b in range(len(prompts)):
        left = responses[b].tolist()
        for number in prompts[b].tolist():
            if number in left:
                left.remove(number)
                found[b] += 1
    return found + ordered


def reward_by_comparing(prompts, responses):
    numbers = torch.cat([prompts, responses]).unique()
    in_prompt = (prompts[..., None] == numbers).sum(1)
    in_response = (responses[..., None] == numbers).sum(1)
    included = torch.minimum(in_prompt, in_response).sum(1)
    pairs = (responses[:, 1:] >= responses[:, :-1]).sum(1)
    return (included + pairs).to(torch.float32)


def responses_by_repeating(logp, responses):
    table = repeat(logp, "S P T V -> S P G T V", G=responses.shape[2])
    return table.gather(-1, responses[..., None])[..., 0]


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


def surrogate_by_library(logp, old_logp, advantages, loss="clipped", epsilon=0.2):
    with torch.no_grad():
        old = old_logp.clone()
    ratio = (logp - old).exp()
    per_token = {
        "naive": lambda: advantages.unsqueeze(1) * logp,
        "unclipped": lambda: torch.einsum("b,bt->bt", advantages, ratio),
        "clipped": lambda: clipped_surrogate(ratio, advantages, epsilon),
    }
    return per_token[loss]().flatten().mean().neg()


def penalty_by_hand(logp, ref_logp, beta):
    d = ref_logp.detach() - logp
    return beta * (torch.exp(d) - d - 1).mean()


def penalty_by_loops(logp, ref_logp, beta):
    terms = []
    for row, ref_row in zip(logp, ref_logp.tolist(), strict=True):
        for one, ref in zip(row, ref_row, strict=True):
            terms.append((ref - one).expm1() + (one - ref))
    return beta * torch.stack(terms).mean()


# --- as a newcomer writes it from the docstring, equation by equation -------------------------------------------


def reward_from_equations(prompts, responses):
    numbers = torch.arange(1 + max(prompts.max(), responses.max()), device=prompts.device)
    n_prompt = (prompts[:, :, None] == numbers).sum(1)
    n_response = (responses[:, :, None] == numbers).sum(1)
    return (torch.min(n_prompt, n_response).sum(1) + ascending_pairs(responses)).float()


def responses_from_equation(logp, responses):
    return logp.gather(-1, responses.transpose(2, 3)).transpose(2, 3)


def surrogate_from_equations(logp, old_logp, advantages, loss="clipped", epsilon=0.2):
    A = advantages.unsqueeze(1)
    if loss == "naive":
        return -(A * logp).mean()
    r = (logp - old_logp.detach()).exp()
    if loss == "unclipped":
        return -(r * A).mean()
    return -torch.minimum(r * A, r.clamp(1 - epsilon, 1 + epsilon) * A).mean()


def penalty_from_equation(logp, ref_logp, beta):
    return beta * kl_estimate(logp, ref_logp, "k3").mean()


RIGHT = {
    "repaired_reward": (reward_by_counters, reward_by_removing, reward_by_comparing, reward_from_equations),
    "response_logprobs": (
        responses_by_repeating,
        responses_by_indexing,
        responses_from_equation,
    ),
    "surrogate_loss": (surrogate_by_loops, surrogate_by_library, surrogate_from_equations),
    "kl_penalty": (penalty_by_hand, penalty_by_loops, penalty_from_equation),
}
