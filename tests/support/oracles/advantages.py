"""Compute advantages by loops."""

import torch

from tests.support.oracles.loops import table, total, zero


def mean_of(values) -> torch.Tensor:
    return total(values) / len(values)


def std_of(values, ddof) -> torch.Tensor:
    mean = mean_of(values)
    return torch.sqrt(total((x - mean) ** 2 for x in values) / (len(values) - ddof))


def all_equal(values) -> bool:
    return all(x.item() == values[0].item() for x in values)


def normalise(values, ddof, eps) -> list:
    """Return (x - mean) / (std + eps), and exact zeros for equal values, whose mean may be rounded."""
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
        baseline_rewards = [[group[j] for j in range(len(group)) if j != i] for i in range(len(group))]
        answer.append(
            [0.0 * group[i] if all_equal(group) else group[i] - mean_of(baseline_rewards[i]) for i in range(len(group))]
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
        steps = [(g, t) for g in range(G) for t in range(T) if step_mask[p, g, t]]
        scored = normalise([step_rewards[p, g, t].double() for g, t in steps], 1, eps) if steps else []
        normalised = dict(zip(steps, scored, strict=True))
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


def turns_of(turn_mask, p) -> list[tuple[int, int]]:
    G, K = turn_mask.shape[1:]
    return [(i, k) for i in range(G) for k in range(K) if turn_mask[p, i, k]]


def turn_table(turn_mask, advantage) -> torch.Tensor:
    """Return `advantage(p, i, k)` of each turn, and zero for missing turns."""
    P, G, K = turn_mask.shape
    return table(
        [[[advantage(p, i, k) if turn_mask[p, i, k] else zero() for k in range(K)] for i in range(G)] for p in range(P)]
    )


def whole_reward(turn_rewards, turn_mask, p, i) -> torch.Tensor:
    return total(turn_rewards[p, j, k] for j, k in turns_of(turn_mask, p) if j == i)


def reward_to_go(turn_rewards, turn_mask, gamma, p, i, k) -> torch.Tensor:
    return total(gamma ** (m - k) * turn_rewards[p, j, m] for j, m in turns_of(turn_mask, p) if j == i and m >= k)


def trajectory_advantages(turn_rewards, turn_mask) -> torch.Tensor:
    def advantage(p, i, k):
        other_totals = [whole_reward(turn_rewards, turn_mask, p, j) for j in range(turn_mask.shape[1]) if j != i]
        return whole_reward(turn_rewards, turn_mask, p, i) - mean_of(other_totals)

    return turn_table(turn_mask, advantage)


def turn_advantages(turn_rewards, turn_mask, states=None, gamma=1.0) -> torch.Tensor:
    def state(p, i, k):
        return k if states is None else states[p, i, k].item()

    def advantage(p, i, k):
        same_state = [(j, m) for j, m in turns_of(turn_mask, p) if j != i and state(p, j, m) == state(p, i, k)]
        baseline_returns = [reward_to_go(turn_rewards, turn_mask, gamma, p, j, m) for j, m in same_state]
        baseline = mean_of(baseline_returns) if baseline_returns else 0.0
        return reward_to_go(turn_rewards, turn_mask, gamma, p, i, k) - baseline

    return turn_table(turn_mask, advantage)


def gigpo_advantages(turn_rewards, turn_mask, states, gamma, omega, scale, eps=1e-4) -> torch.Tensor:
    def compared(values, own):
        if scale == "none":
            return own - mean_of(values)
        return (own - mean_of(values)) / ((std_of(values, 1) if len(values) > 1 else 0.0) + eps)

    def advantage(p, i, k):
        episodes = [whole_reward(turn_rewards, turn_mask, p, j) for j in range(turn_mask.shape[1])]
        same_state = [(j, m) for j, m in turns_of(turn_mask, p) if states[p, j, m] == states[p, i, k]]
        returns = [reward_to_go(turn_rewards, turn_mask, gamma, p, j, m) for j, m in same_state]
        own = reward_to_go(turn_rewards, turn_mask, gamma, p, i, k)
        return compared(episodes, episodes[i]) + omega * compared(returns, own)

    return turn_table(turn_mask, advantage)
