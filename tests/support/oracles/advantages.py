"""Advantages."""

import torch

from tests.support.oracles.loops import table, total


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
