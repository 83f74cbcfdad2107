"""Conditions of faults that show in the rewards, in the lengths, or in the held-out problems."""

import numpy as np

from grpo_lab.diagnose.conditions.evidence import (
    MEAN_LENGTH,
    MIN_STEPS,
    TRUNCATED,
    ZERO_STD,
    Evidence,
    is_solved,
    last_rewards,
    reward_mean_metrics,
    trend,
)
from grpo_lab.diagnose.logs import Log


def no_spread(log: Log) -> Evidence | None:
    """Detect that nearly all groups have equal rewards at the end.

    This is not a fault if the policy has learnt the task: the reward has risen, and the task is solved.
    """
    share, reward = trend(log, ZERO_STD), trend(log, "reward")
    if share.last < 0.95 or (reward.rises and is_solved(log)):
        return None
    return f"{ZERO_STD} is {share.last:.2f} in the last quarter (below 0.95 expected), at a reward of {reward.last:.3g}"


def no_spread_all_wrong(log: Log) -> Evidence | None:
    """Detect that nearly all groups have equal rewards because all completions are wrong."""
    return no_spread(log) if max(last_rewards(log)) <= 0.05 else None


def no_spread_all_right(log: Log) -> Evidence | None:
    """Detect that nearly all groups have equal rewards because all completions are right, without having improved."""
    return no_spread(log) if is_solved(log) else None


def no_spread_equal(log: Log) -> Evidence | None:
    """Detect that nearly all groups have equal rewards, with completions that are neither all wrong nor all right."""
    return no_spread(log) if max(last_rewards(log)) > 0.05 and not is_solved(log) else None


def reward_component_flat(log: Log) -> Evidence | None:
    """Detect that one reward function gives the same reward, below 0.95, in all steps while another one changes."""
    values = {name: log.finite_values(name, MIN_STEPS) for name in reward_mean_metrics(log)}
    moving = [name for name in values if np.ptp(values[name])]
    if not moving:
        return None
    for name in values:
        spread = log.finite_values(name.replace("/mean", "/std"))
        if name not in moving and values[name][0] < 0.95 and not spread.any():
            return f"{name} is {values[name][0]:.3g} in all {len(values[name])} steps, while {moving[0]} moves"
    return None


def reward_component_falls(log: Log) -> Evidence | None:
    """Detect that one reward function falls while the total reward rises."""
    trends = [trend(log, name) for name in reward_mean_metrics(log)]
    reward = trend(log, "reward")
    falling = [part for part in trends if part.change < -max(3 * part.error, 0.2 * abs(part.first))]
    if not falling or len(trends) < 2 or not reward.rises:
        return None
    return f"{falling[0]}, while {reward}"


def advantages_not_centred(log: Log) -> Evidence | None:
    """Detect by a loss far below 0 that advantages do not sum to 0 in their group.

    If they do, the loss differs from 0 only because advantages vary with length, and by less than 1.
    """
    loss = log.finite_values("loss", MIN_STEPS)
    late_loss = np.median(loss[len(loss) // 2 :])
    is_centred = log.settings.get("advantage", "group") == "group"
    is_scaled = log.settings.get("scale_rewards", "group") != "none"
    if not (is_centred and is_scaled) or late_loss > -0.75:
        return None
    return (
        f"loss is {late_loss:.2g} in the median step of the later half (above -0.75 expected where advantages sum to 0)"
    )


def truncation(log: Log) -> Evidence | None:
    """Detect that many completions are still cut off at the end, and not many fewer than at the start."""
    truncated = trend(log, TRUNCATED)
    if truncated.last < 0.3 or not (truncated.rises or truncated.last > max(0.5, 0.8 * truncated.first)):
        return None
    return f"{truncated} (below 0.3 expected)"


def length_without_gain(log: Log) -> Evidence | None:
    """Detect that completions grow longer while the first reward function does not rise."""
    log.finite_values(MEAN_LENGTH, 3 * MIN_STEPS)  # raises for a short log, in which lengths change by chance
    length, gain = trend(log, MEAN_LENGTH), trend(log, reward_mean_metrics(log)[0])
    if gain.change > 2 * gain.error or not (length.rises and length.last > 1.3 * length.first):
        return None
    return f"{length}, while {gain}"


def _mean_around(centres: np.ndarray, steps: np.ndarray, values: np.ndarray, width: int) -> np.ndarray:
    """Return for each centre the mean of the values at the `width` nearest steps; of two equally near, the earlier.

    The nearest steps follow each other. The window that begins at index i moves on while the step after its end is
    nearer than its first step: steps[i] + steps[i + width] < 2 * centre.
    """
    width = min(width, len(steps))
    first = np.searchsorted(steps[: len(steps) - width] + steps[width:], 2 * centres)
    sums = np.concatenate([[0.0], values.cumsum()])
    return (sums[first + width] - sums[first]) / width


def held_out_falls_behind(log: Log) -> Evidence | None:
    """Detect that the training reward is above the held-out reward in the later half of the evaluations.

    In addition, the gap must be larger than in the earlier half, or the held-out reward must not have risen since.
    """
    eval_steps, held_out = log.points("eval/reward", 4)
    steps, reward = log.points("reward", MIN_STEPS)
    half = len(eval_steps) // 2
    width = 2 * max(2, len(reward) // 10)  # number of steps around an evaluation that are compared with it
    training_reward = _mean_around(eval_steps, steps, reward, width)
    gap = training_reward - held_out
    early_gap = gap[:half].mean()
    late_gap = gap[-half:].mean()
    error = np.diff(gap).std() / (2 * half) ** 0.5
    if late_gap <= max(0.15 * abs(training_reward[-half:].mean()), 4 * error):
        return None
    gain = held_out[-half:].mean() - held_out[:half].mean()
    if late_gap - early_gap < 2 * error and gain > 2 * np.diff(held_out).std() / half**0.5:
        return None
    gaps = f"{late_gap:.2g} above eval/reward in the last {half} evaluations, {early_gap:.2g} in the first {half}"
    return f"reward is {gaps}"
