"""What the conditions of the faults share: the names of metrics, and summaries of a log.

Most conditions do not look at single steps. They compare the means over the first and over the last quarter of the
steps, and a change counts if it exceeds the noise between steps.
"""

from typing import NamedTuple

import numpy as np

from grpo_lab.diagnose.logs import Log

Evidence = str  # a sentence with the metrics that show a fault
MIN_STEPS = 8  # smallest number of steps from which a trend is computed
ZERO_STD, GRAD_NORM, CLIP_RATIO = "frac_reward_zero_std", "grad_norm", "clip_ratio/region_mean"
LOGP_DIFFERENCE_MEAN = "sampling/sampling_logp_difference/mean"  # a metric of TRL
MEAN_LENGTH, TRUNCATED = "completions/mean_length", "completions/clipped_ratio"


class Trend(NamedTuple):
    """The change of a metric from the first to the last quarter of the steps."""

    metric: str
    first: float  # mean over the first quarter
    last: float  # mean over the last quarter
    change: float  # last - first
    error: float  # standard error of the change, estimated from the differences of neighbouring steps
    rises: bool  # True if the change is more than three standard errors above 0

    def __str__(self) -> str:
        return f"{self.metric} goes from {self.first:.3g} in the first quarter to {self.last:.3g} in the last"


def trend(log: Log, metric: str) -> Trend:
    """Compare the mean of a metric over the first quarter of the steps with its mean over the last quarter."""
    values = log.finite_values(metric, MIN_STEPS)
    if metric == ZERO_STD:  # for TRL, rounding errors of equal rewards count as a spread; here they do not
        is_rounding = (log.column("reward_std") < 1e-6) | (log.column(GRAD_NORM) < 1e-3)
        values = np.where(is_rounding[np.isfinite(log.column(metric))], 1.0, values)
    quarter = len(values) // 4
    first, last = values[:quarter].mean(), values[-quarter:].mean()
    # A difference of two steps has twice the variance of a step; a difference of two means, twice that of a mean.
    error = np.diff(values).std() / quarter**0.5
    return Trend(metric, first, last, last - first, error, last - first > 3 * error)


def reward_mean_metrics(log: Log) -> list[str]:
    """Return the metrics of the reward functions with a nonzero weight, such as "rewards/format_reward/mean".

    If none of them has a number in `MIN_STEPS` steps, return ["reward"].
    """
    names = [name for name in log.metric_names() if name.startswith("rewards/") and name.endswith("/mean")]
    weights = log.settings.get("reward_weights") or []
    # The reward of an environment, which is the last one, has no weight in the settings; it counts once.
    weights = [*weights, *[1.0] * (len(names) - len(weights))]
    counted = [name for name, weight in zip(names, weights, strict=False) if weight]
    return [name for name in counted if len(log.finite_values(name)) >= MIN_STEPS] or ["reward"]


def last_rewards(log: Log) -> list[float]:
    """Return the mean of each reward function over the last quarter of the steps."""
    return [trend(log, name).last for name in reward_mean_metrics(log)]


def is_solved(log: Log) -> bool:
    """Return True if each reward function has a mean of at least 0.9 in the last quarter; 1 is taken as its maximum."""
    return min(last_rewards(log)) >= 0.9


def updates_per_rollout(log: Log) -> int | None:
    """Return the number of updates per rollout; None if the settings, ours or TRL's, lack `num_iterations`."""
    settings = log.settings
    if "num_iterations" not in settings:
        return None
    accumulation_steps = settings.get("gradient_accumulation_steps") or 1
    update_rows = (settings.get("per_device_train_batch_size") or 0) * accumulation_steps
    rollout_rows = settings.get("generation_batch_size") or update_rows
    updates_per_pass = settings.get("steps_per_generation") or 0  # a setting of TRL; for our runs computed from sizes
    if not updates_per_pass and update_rows:
        updates_per_pass = rollout_rows // update_rows
    return settings["num_iterations"] * max(updates_per_pass, 1)


def usually_above(log: Log, metric: str, limit: float) -> Evidence | None:
    """Return the evidence that a metric is above a limit in the median step; None if it is not."""
    median = np.median(log.finite_values(metric, 3))
    return f"{metric} is {median:.2g} in the median step (at most {limit:g} expected)" if median > limit else None


def is_policy_unchanged(log: Log) -> bool:
    """Return True if neither the policy nor the reward changes although groups have unequal rewards.

    A change of the policy is judged by the KL, or, if the log has no KL other than 0, by the entropy and the length.
    """
    share, reward = trend(log, ZERO_STD), trend(log, "reward")
    if share.last > 0.9 or reward.change > 2 * reward.error or reward.change < -3 * reward.error:
        return False
    if np.median(log.finite_values(CLIP_RATIO) if log.has(CLIP_RATIO) else 0) > 0.01:
        return False
    if log.finite_values("kl").any():
        kl = trend(log, "kl")
        return kl.last < 1e-4 or (kl.last < 0.01 and kl.last < 1.5 * np.median(log.finite_values("kl")[1:MIN_STEPS]))
    trends = [trend(log, name) for name in ("entropy", MEAN_LENGTH) if log.has(name)]
    for metric_trend in trends:
        first = metric_trend.first
        detectable = max(3 * metric_trend.error, 0.02 * first)  # smallest change that the noise does not hide
        if detectable > 0.05 * first or abs(metric_trend.change) >= detectable:
            return False
    return bool(trends)
