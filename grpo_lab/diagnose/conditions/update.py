"""Conditions of faults that show in the gradient, in the learning rate, or as weights that do not move."""

import numpy as np

from grpo_lab.base.files import LOGP_DIFFERENCE_MAX
from grpo_lab.diagnose.conditions.evidence import (
    GRAD_NORM,
    LOGP_DIFFERENCE_MEAN,
    MIN_STEPS,
    Evidence,
    is_policy_unchanged,
    trend,
    updates_per_rollout,
)
from grpo_lab.diagnose.logs import Log, MissingMetric

MUST_BE_FINITE = ("kl", "entropy", "ratio", LOGP_DIFFERENCE_MAX, LOGP_DIFFERENCE_MEAN, "reward")


def nonfinite_steps(log: Log) -> Evidence | None:
    """Detect a metric that is not finite, or else updates with a loss or gradient that was not finite."""
    if evidence := _nonfinite_metric(log):
        return evidence
    if not any(log.has(metric) for metric in ("loss", GRAD_NORM, "nonfinite_steps")):
        raise MissingMetric("loss")
    num_nonfinite_rows = int((_is_nonfinite(log, "loss") | _is_nonfinite(log, GRAD_NORM)).sum())
    cumulative_count = log.finite_values("nonfinite_steps")  # our trainer counts these updates over all steps so far
    count = max(num_nonfinite_rows, int(cumulative_count.max(initial=0)))
    has_loss_scale = log.settings.get("precision") == "fp16" or log.settings.get("fp16")
    # A loss scale is adjusted by overflows, so a few of them are expected.
    is_expected = has_loss_scale and count <= max(3, len(log.rows) // 10)
    if not count or is_expected:
        return None
    return f"{count} updates in {len(log.rows)} steps had a loss or gradient that was NaN or infinite"


def _nonfinite_metric(log: Log) -> Evidence | None:
    """Detect a metric that is NaN or infinite.

    For a metric of tokens one such step is enough. A reward is NaN in a step in which it applies to no completion, so
    it is reported only if it is NaN or infinite in all steps.
    """
    rewards = [name for name in log.metric_names() if name.startswith("rewards/") and name.endswith("/mean")]
    for metric in (*MUST_BE_FINITE, *rewards, *(f"eval/{name}" for name in MUST_BE_FINITE)):
        if not log.has(metric):
            continue
        num_recorded, num_nonfinite = int(log.is_recorded(metric).sum()), int(_is_nonfinite(log, metric).sum())
        least_steps = MIN_STEPS if metric in rewards else 1
        in_all_steps = num_nonfinite == num_recorded >= least_steps
        is_reward = metric in rewards or metric.endswith("reward")
        if num_nonfinite and (in_all_steps or not is_reward):
            count = "all" if num_nonfinite == num_recorded else num_nonfinite
            return f"{metric} is NaN or infinite in {count} of {num_recorded} steps"
    return None


def _is_nonfinite(log: Log, metric: str) -> np.ndarray:
    """Return for each row whether it records the metric as NaN or infinite."""
    return log.is_recorded(metric) & ~np.isfinite(log.column(metric))


def gradient_spikes(log: Log) -> Evidence | None:
    """Detect that the gradient is far larger in one step than in the median step."""
    steps, norms = log.points(GRAD_NORM)
    steps, norms = steps[norms > 0], norms[norms > 0]
    if len(norms) < MIN_STEPS:
        raise MissingMetric(GRAD_NORM)
    early_norms = norms[: len(norms) // 4]
    is_larger_early = np.median(early_norms) > np.median(norms)
    typical_norm = np.median(early_norms if is_larger_early else norms)
    if norms.max() <= max(20 * typical_norm, 1):  # a norm below 1 may come from the first group with a spread
        return None
    median_step = "the median step" + (" of the first quarter" if is_larger_early else "")
    return f"{GRAD_NORM} is {norms.max():.3g} at step {int(steps[norms.argmax()])}, {typical_norm:.3g} in {median_step}"


def no_weight_moves(log: Log) -> Evidence | None:
    """Detect learning rates too low to change any weight: Adam moves a weight by about the rate per update."""
    rates = log.finite_values("learning_rate")
    largest_move = rates.sum() * (updates_per_rollout(log) or 1)
    is_in_warm_up = len(rates) < MIN_STEPS or rates[-1] > rates[:-1].max()  # higher rates may follow
    if is_in_warm_up or largest_move >= 1e-6 or not rates.any():
        return None
    steps = f"in {len(rates)} steps no weight has moved by more than {largest_move:.1g}"
    return f"learning_rate is {np.median(rates):.2g}: {steps}"


def no_policy_change(log: Log) -> Evidence | None:
    """Detect that the weights cannot have moved, or that the policy does not change."""
    if evidence := no_weight_moves(log):
        return evidence
    log.finite_values("reward", 3 * MIN_STEPS)  # raises for a short log, in which a slow run may not have changed yet
    if not is_policy_unchanged(log):
        return None
    rate, reward = log.finite_values("learning_rate"), trend(log, "reward")
    at_rate = f" at a learning rate of {np.median(rate):.2g}" if len(rate) else ""
    return f"the policy stays as it was{at_rate}: {reward}"


def updates_rounded_away(log: Log) -> Evidence | None:
    """Detect that a policy with bf16 weights does not change: its updates are rounded away."""
    has_bf16_weights = log.settings.get("precision") == "bf16-naive" or log.settings.get("dtype") == "bfloat16"
    return no_policy_change(log) if has_bf16_weights else None


def learning_rate_too_low(log: Log) -> Evidence | None:
    """Detect that the policy does not change, for which a low learning rate is the likeliest cause.

    If the log has no KL, this is reported only for very low rates, because entropy and length show a change late.
    """
    sum_of_rates = log.finite_values("learning_rate").sum() * (updates_per_rollout(log) or 1)
    is_uncertain = sum_of_rates > 5e-4 and not log.finite_values("kl").any()
    return None if is_uncertain or updates_rounded_away(log) else no_policy_change(log)


def running_mean(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the means over a window of an eighth of the steps, at least three, and the width of the window."""
    width = max(3, len(values) // 8)
    sums = np.concatenate([[0.0], values.cumsum()])  # `np.convolve` takes seconds for a log of 20,000 rows
    return (sums[width:] - sums[:-width]) / width, width


def learning_rate_too_high(log: Log) -> Evidence | None:
    """Detect that the reward falls far below its best, or is lost while the entropy halves or doubles."""
    return falls_from_its_best(log) or reward_lost_from_the_start(log)


def falls_from_its_best(log: Log) -> Evidence | None:
    """Detect that the reward ends far below its best running mean."""
    steps, reward = log.points("reward", MIN_STEPS)
    means, width = running_mean(reward)
    earlier_means, last_mean = means[:-width], means[-1]
    best = earlier_means.max()
    if best - last_mean <= max(4 * np.diff(reward).std() / width**0.5, 0.3 * abs(best)):
        return None
    step = int(steps[earlier_means.argmax() + width - 1])
    return f"reward falls from {best:.3g} around step {step} to {last_mean:.3g} at the end"


def reward_lost_from_the_start(log: Log) -> Evidence | None:
    """Detect that the reward loses more than three quarters of its first value while the entropy halves or doubles."""
    reward, entropy = log.finite_values("reward", MIN_STEPS), log.finite_values("entropy")
    if len(entropy) != len(reward) or not entropy[0]:
        return None
    means = running_mean(reward)[0]
    entropy_ratio = running_mean(entropy)[0] / entropy[0]
    is_lost = (means < reward[0] - 0.75 * abs(reward[0])) & ((entropy_ratio < 0.5) | (entropy_ratio > 2))
    if not is_lost.any():
        return None
    return f"reward falls from {reward[0]:.3g} in the first step to {means[is_lost][0]:.3g}"
