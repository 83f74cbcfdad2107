"""The conditions of the faults: one small function for each fault of faults.toml, which looks for it in a log.

A condition returns the evidence as a sentence, or None if the log does not show the fault. It raises `MissingMetric` if
the log has too few numbers of a metric that it needs. Most conditions compare means instead of single steps: "at first"
and "at last" are the means over the first and the last quarter of the steps, and a change counts if it exceeds the
noise of the steps.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from grpo_lab.base.names import FRAC_LOGP_DIFFERENCE, LOGP_DIFFERENCE_MAX, TRAINED_REPLIES
from grpo_lab.diagnose.logs import Log, MissingMetric

Evidence = str | None
MIN_STEPS = 8  # smallest number of steps from which a trend is computed
ZERO_STD, GRADIENT, CLIPPED = "frac_reward_zero_std", "grad_norm", "clip_ratio/region_mean"
LOGP_DIFFERENCE_MEAN = "sampling/sampling_logp_difference/mean"  # a metric of TRL
MUST_BE_FINITE = ("kl", "entropy", "ratio", LOGP_DIFFERENCE_MAX, LOGP_DIFFERENCE_MEAN, "reward")
LENGTH, TRUNCATED = "completions/mean_length", "completions/clipped_ratio"


CONDITIONS: dict[str, Callable[[Log], Evidence]] = {}  # the functions that `condition` has registered, by name


def condition(function: Callable[[Log], Evidence]) -> Callable[[Log], Evidence]:
    """Register a function in `CONDITIONS`, as the condition of the fault of its name in faults.toml."""
    CONDITIONS[function.__name__] = function
    return function


class Trend(NamedTuple):
    """The change of a metric from the first to the last quarter of the steps."""

    metric: str
    first: float  # mean over the first quarter
    last: float  # mean over the last quarter
    change: float  # last - first
    error: float  # standard error of the change, estimated from the differences of neighbouring steps
    rises: bool  # True if the change is more than three standard errors above 0

    def __str__(self) -> str:
        return f"{self.metric} goes from {self.first:.3g} at first to {self.last:.3g} at last"


def trend(log: Log, metric: str) -> Trend:
    """Compare the mean of a metric over the first quarter of the steps with its mean over the last quarter."""
    values = log.points(metric, MIN_STEPS)[1]
    if metric == ZERO_STD:  # for TRL, rounding errors of equal rewards count as a spread; here they do not
        is_rounding = (log.column("reward_std") < 1e-6) | (log.column(GRADIENT) < 1e-3)
        values = np.where(is_rounding[np.isfinite(log.column(metric))], 1.0, values)
    quarter = len(values) // 4
    first, last = values[:quarter].mean(), values[-quarter:].mean()
    # A difference of two steps has twice the variance of a step; a difference of two means, twice that of a mean.
    error = np.diff(values).std() / quarter**0.5
    return Trend(metric, first, last, last - first, error, last - first > 3 * error)


def _metric_names(log: Log) -> list[str]:
    return list(dict.fromkeys(name for row in log.rows for name in row))


def components(log: Log) -> list[str]:
    """The metrics of the reward functions with a weight, such as "rewards/format_reward/mean".

    If the log has no such metrics, the list is ["reward"].
    """
    names = [name for name in _metric_names(log) if name.startswith("rewards/") and name.endswith("/mean")]
    weights = log.settings.get("reward_weights") or [1.0] * len(names)
    counted = [name for name, weight in zip(names, weights, strict=False) if weight]
    return [name for name in counted if len(log.points(name)[1]) >= MIN_STEPS] or ["reward"]


def last_rewards(log: Log) -> list[float]:
    """Return the mean of each reward function over the last quarter of the steps."""
    return [trend(log, name).last for name in components(log)]


def is_solved(log: Log) -> bool:
    """True if the mean of each reward function, whose maximum is taken to be 1, is at least 0.9 at last."""
    return min(last_rewards(log)) >= 0.9


def updates_per_rollout(log: Log) -> int | None:
    """The number of updates per rollout by the settings, ours or TRL's; None if the log has no settings."""
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


def no_spread(log: Log) -> Evidence:
    """Look for a share of groups with equal rewards that is nearly 1 at last.

    This is not a fault if the policy has learnt the task, so that its reward has risen and the task is solved.
    """
    share, reward = trend(log, ZERO_STD), trend(log, "reward")
    if share.last < 0.95 or (reward.rises and is_solved(log)):
        return None
    return f"{ZERO_STD} is {share.last:.2f} at last (below 0.95 expected), at a reward of {reward.last:.3g}"


@condition
def no_spread_all_wrong(log: Log) -> Evidence:
    """Look for groups without a spread whose completions are all wrong."""
    return no_spread(log) if max(last_rewards(log)) <= 0.05 else None


@condition
def no_spread_all_right(log: Log) -> Evidence:
    """Look for groups without a spread whose completions are all right."""
    return no_spread(log) if is_solved(log) else None


@condition
def no_spread_equal(log: Log) -> Evidence:
    """Look for groups without a spread whose completions are equally good, neither all wrong nor all right."""
    return no_spread(log) if max(last_rewards(log)) > 0.05 and not is_solved(log) else None


@condition
def reward_component_still(log: Log) -> Evidence:
    """Look for a reward function that gives the same reward in all steps while another one moves."""
    values = {name: log.points(name, MIN_STEPS)[1] for name in components(log)}
    moving = [name for name in values if np.ptp(values[name])]
    if not moving:
        return None
    for name in values:
        spread = log.points(name.replace("/mean", "/std"))[1]
        if name not in moving and values[name][0] < 0.95 and not spread.any():
            return f"{name} is {values[name][0]:.3g} in all {len(values[name])} steps, while {moving[0]} moves"
    return None


@condition
def reward_component_falls(log: Log) -> Evidence:
    """Look for a reward function that falls while the whole reward rises."""
    trends = [trend(log, name) for name in components(log)]
    reward = trend(log, "reward")
    falling = [part for part in trends if part.change < -max(3 * part.error, 0.2 * abs(part.first))]
    if not falling or len(trends) < 2 or not reward.rises:
        return None
    return f"{falling[0]}, while {reward}"


@condition
def not_centred(log: Log) -> Evidence:
    """Look for advantages that do not sum to 0 in their group, which show as a loss far below 0.

    If the advantages sum to 0, the loss differs from 0 only as far as advantages vary with length, by less than 1.
    """
    _, loss = log.points("loss", MIN_STEPS)
    late_loss = np.median(loss[len(loss) // 2 :])
    is_centred = log.settings.get("advantage", "group") == "group"
    is_scaled = log.settings.get("scale_rewards", "group") != "none"
    if not (is_centred and is_scaled) or late_loss > -0.75:
        return None
    return (
        f"loss is {late_loss:.2g} in the median step of the later half (above -0.75 expected where advantages sum to 0)"
    )


def usually_above(log: Log, metric: str, limit: float) -> Evidence:
    """Return the evidence that a metric is above a limit in the median step; None if it is not."""
    median = np.median(log.points(metric, 3)[1])
    return f"{metric} is {median:.2g} in the median step (at most {limit:g} expected)" if median > limit else None


@condition
def world_trained(log: Log) -> Evidence:
    """Look for tokens in the loss that the environment wrote instead of the policy."""
    steps, share = log.points(TRAINED_REPLIES, 1)
    if not share.any():
        return None
    step = int(steps[share.argmax()])
    return f"{TRAINED_REPLIES} is {share.max():.2g} at step {step} (0 expected: the world's are only read)"


@condition
def ids_encoded_again(log: Log) -> Evidence:
    """Look for token ids that were made by encoding the text of a completion again.

    Some ids then differ from the sampled ids, and their log-probabilities differ by many nats, while all other tokens
    agree. Other faults look different: a wrong temperature does not cause differences above five nats, and with shifted
    logits 9 of 10 tokens differ. Tokens that the environment wrote look the same, because their recorded
    log-probability is 0; such logs are left to `world_trained`.
    """
    log.points(FRAC_LOGP_DIFFERENCE, 3)
    share, difference = log.column(FRAC_LOGP_DIFFERENCE), log.column(LOGP_DIFFERENCE_MAX)
    is_large = difference > 5
    if is_large.sum() < 3 or np.median(share[is_large]) > 0.5 or (log.has(TRAINED_REPLIES) and world_trained(log)):
        return None
    differing = f"{FRAC_LOGP_DIFFERENCE} is {np.median(share[is_large]):.2g} there"
    num_large = is_large.sum()
    evidence = f"{LOGP_DIFFERENCE_MAX} is above 5 nats in {num_large} of {len(difference)} steps, while {differing}"
    return f"{evidence}: most tokens are those that were sampled, and some are not"


@condition
def sampler_trainer_apart(log: Log) -> Evidence:
    """Look for log-probabilities of sampler and trainer that differ by more than rounding explains.

    In half precision rounding explains 0.6 nats in the worst token of a step, and 0.1 in the mean.
    """
    if log.has(LOGP_DIFFERENCE_MEAN):
        return usually_above(log, LOGP_DIFFERENCE_MEAN, 0.1)
    return usually_above(log, LOGP_DIFFERENCE_MAX, 1e-3 if log.settings.get("precision") == "fp32" else 0.6)


@condition
def kl_not_zero_at_start(log: Log) -> Evidence:
    """Look for a KL above 0 before the first update, when policy and reference are the same."""
    steps, kl = log.points("kl", 1)
    rounding = 1e-6 if log.settings.get("precision") == "fp32" else 1e-4
    has_moved = log.column(CLIPPED)[0] > 0 or abs(log.column("ratio")[0] - 1) > 1e-4
    several_updates = (updates_per_rollout(log) or 1) > 1
    if steps[0] != 1 or has_moved or several_updates or abs(kl[0]) < rounding:
        return None
    return f"kl is {kl[0]:.2g} nats a token before the first update (0 expected: policy and reference are the same)"


@condition
def kl_negative(log: Log) -> Evidence:
    """Look for a negative KL from the estimators k2 and k3, which are at least 0 for each token."""
    steps, kl = log.points("kl", 1)
    rounding = 1e-6 if log.settings.get("precision") == "fp32" else 1e-3
    if log.settings.get("kl_estimator", "k3") == "k1" or (kl >= -rounding).all():
        return None
    return f"kl is {kl.min():.2g} at step {int(steps[kl.argmin()])} (at least 0 expected of k2 and k3)"


@condition
def kl_still(log: Log) -> Evidence:
    """Look for a policy whose reward rises although it does not leave its reference."""
    kl, reward = trend(log, "kl"), trend(log, "reward")
    if not log.settings.get("beta") or not reward.rises or kl.last > min(0.005, 1.5 * kl.first + 1e-9):
        return None
    return f"{kl} nats a token, while {reward}"


@condition
def kl_explosion(log: Log) -> Evidence:
    """Look for a policy that moves far from its reference without a higher reward."""
    kl, reward = trend(log, "kl"), trend(log, "reward")
    if kl.last < max(0.5, 2 * log.points("kl")[1][0]) or (reward.rises and kl.last < 10):
        return None
    return f"{kl} nats a token, and buys nothing: {reward}"


@condition
def entropy_collapse(log: Log) -> Evidence:
    """Look for a policy that has nearly stopped exploring before its task is solved."""
    entropy, reward = trend(log, "entropy"), trend(log, "reward")
    quarter_of_first = 0.25 * entropy.first
    has_collapsed = entropy.last < min(quarter_of_first, 0.02)
    is_low = entropy.last < max(quarter_of_first, 0.02)
    if is_solved(log) or not (has_collapsed or (is_low and not reward.rises)):
        return None
    return f"{entropy} nats a token, and nothing new is tried: {reward}"


@condition
def clip_always(log: Log) -> Evidence:
    """Look for a ratio that leaves the clip range at many tokens in the median step."""
    return usually_above(log, CLIPPED, 0.5 if log.settings.get("importance_sampling_level") == "sequence" else 0.2)


@condition
def clip_never(log: Log) -> Evidence:
    """Look for a ratio that never leaves the clip range, although the policy moves between the updates of a rollout."""
    updates = updates_per_rollout(log) or 1
    clipped = log.points(CLIPPED, MIN_STEPS)[1]
    ratio = log.points("ratio")[1]
    largest = np.abs(ratio - 1).max(initial=0)
    moves_little = 1e-6 < largest < 0.02  # a ratio that moves so little cannot reach the clip range
    if updates < 2 or clipped.any() or moves_little or (not len(ratio) and is_still(log)):
        return None
    detail = f", and ratio is off 1 by {largest:.2g} at most" if len(ratio) else ", though the policy moves"
    return f"{CLIPPED} is 0 in all steps with {updates} updates of each rollout{detail}"


@condition
def nonfinite_steps(log: Log) -> Evidence:
    """Look for a metric that is not finite, or else for updates with a loss or gradient that was not finite."""
    if evidence := _nonfinite_metric(log):
        return evidence
    if not any(log.has(metric) for metric in ("loss", GRADIENT, "nonfinite_steps")):
        raise MissingMetric("loss")
    nonfinite_rows = [row for row in log.rows if not np.isfinite([row.get("loss", 0), row.get(GRADIENT, 0)]).all()]
    cumulative_count = log.points("nonfinite_steps")[1]  # our trainer counts these updates over all steps so far
    count = max(len(nonfinite_rows), int(cumulative_count.max(initial=0)))
    has_loss_scale = log.settings.get("precision") == "fp16" or log.settings.get("fp16")
    # A loss scale is adjusted by overflows, so a few of them are expected.
    is_expected = has_loss_scale and count <= max(3, len(log.rows) // 10)
    if not count or is_expected:
        return None
    return f"{count} updates in {len(log.rows)} steps had a loss or gradient that was NaN or infinite"


def _nonfinite_metric(log: Log) -> Evidence:
    """Look for a metric that is NaN or infinite.

    For a mean over tokens one such step is enough. A reward is NaN in a step in which it applies to no completion, so
    it has to be NaN or infinite in all steps.
    """
    rewards = [name for name in _metric_names(log) if name.startswith("rewards/") and name.endswith("/mean")]
    for metric in (*MUST_BE_FINITE, *rewards, *(f"eval/{name}" for name in MUST_BE_FINITE)):
        values = [row[metric] for row in log.rows if metric in row]
        num_nonfinite = int((~np.isfinite(values)).sum())
        least_steps = MIN_STEPS if metric in rewards else 1
        in_all_steps = num_nonfinite == len(values) >= least_steps
        is_reward = metric in rewards or metric.endswith("reward")
        if num_nonfinite and (in_all_steps or not is_reward):
            count = "all" if num_nonfinite == len(values) else num_nonfinite
            return f"{metric} is NaN or infinite in {count} of {len(values)} steps"
    return None


@condition
def gradient_spikes(log: Log) -> Evidence:
    """Look for a gradient that is far larger in one step than in the median step."""
    steps, norms = log.points(GRADIENT)
    steps, norms = steps[norms > 0], norms[norms > 0]
    if len(norms) < MIN_STEPS:
        raise MissingMetric(GRADIENT)
    typical_norm = max(np.median(norms), np.median(norms[: len(norms) // 4]))
    if norms.max() <= max(20 * typical_norm, 1):  # a norm below 1 may come from the first group with a spread
        return None
    return (
        f"{GRADIENT} is {norms.max():.3g} at step {int(steps[norms.argmax()])}, {typical_norm:.3g} in the median step"
    )


def is_still(log: Log) -> bool:
    """True if groups have unequal rewards but the policy does not change, by its KL, or else by entropy and length."""
    share, reward = trend(log, ZERO_STD), trend(log, "reward")
    if share.last > 0.9 or reward.change > 2 * reward.error or reward.change < -3 * reward.error:
        return False
    if np.median(log.points(CLIPPED)[1] if log.has(CLIPPED) else 0) > 0.01:
        return False
    if log.points("kl")[1].any():
        kl = trend(log, "kl")
        return kl.last < 1e-4 or (kl.last < 0.01 and kl.last < 1.5 * np.median(log.points("kl")[1][1:MIN_STEPS]))
    trends = [trend(log, name) for name in ("entropy", LENGTH) if log.has(name)]
    for metric_trend in trends:
        first = metric_trend.first
        detectable = max(3 * metric_trend.error, 0.02 * first)  # smallest change that the noise does not hide
        if detectable > 0.05 * first or abs(metric_trend.change) >= detectable:
            return False
    return bool(trends)


def no_weight_moves(log: Log) -> Evidence:
    """Look for learning rates that are too low to change a weight: Adam moves a weight by about the rate per update."""
    rates = log.points("learning_rate")[1]
    largest_move = rates.sum() * (updates_per_rollout(log) or 1)
    is_in_warm_up = len(rates) < MIN_STEPS or rates[-1] > rates[:-1].max()  # higher rates may follow
    if is_in_warm_up or largest_move >= 1e-6 or not rates.any():
        return None
    steps = f"in {len(rates)} steps no weight has moved by more than {largest_move:.1g}"
    return f"learning_rate is {np.median(rates):.2g}: {steps}"


def nothing_moves(log: Log) -> Evidence:
    """Look for weights that cannot have moved, or for a policy that does not change."""
    if evidence := no_weight_moves(log):
        return evidence
    log.points("reward", 3 * MIN_STEPS)  # raises for a short log, in which a slow run has not changed yet
    if not is_still(log):
        return None
    rate, reward = log.points("learning_rate")[1], trend(log, "reward")
    at_rate = f" at a learning rate of {np.median(rate):.2g}" if len(rate) else ""
    return f"the policy stays as it was{at_rate}: {reward}"


@condition
def updates_swallowed(log: Log) -> Evidence:
    """Look for a policy that does not change because bf16 weights are rounded back after each update."""
    has_bf16_weights = log.settings.get("precision") == "bf16-naive" or log.settings.get("dtype") == "bfloat16"
    return nothing_moves(log) if has_bf16_weights else None


@condition
def learning_rate_too_low(log: Log) -> Evidence:
    """Look for a policy that does not change at a low learning rate.

    If the log has no KL, only very low rates count, because entropy and length show a change late.
    """
    sum_of_rates = log.points("learning_rate")[1].sum() * (updates_per_rollout(log) or 1)
    is_uncertain = sum_of_rates > 5e-4 and not log.points("kl")[1].any()
    return None if is_uncertain or updates_swallowed(log) else nothing_moves(log)


def running_mean(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the means over a window of an eighth of the steps, at least three, and the width of the window."""
    width = max(3, len(values) // 8)
    return np.convolve(values, np.ones(width) / width, "valid"), width


@condition
def learning_rate_too_high(log: Log) -> Evidence:
    """Look for a reward that falls far below its best, or that is lost while the entropy halves or doubles."""
    return falls_from_its_best(log) or is_lost_from_the_start(log)


def falls_from_its_best(log: Log) -> Evidence:
    """Look for a reward that ends far below its best running mean."""
    steps, reward = log.points("reward", MIN_STEPS)
    means, width = running_mean(reward)
    earlier_means, last_mean = means[:-width], means[-1]
    best = earlier_means.max()
    if best - last_mean <= max(4 * np.diff(reward).std() / width**0.5, 0.3 * abs(best)):
        return None
    step = int(steps[earlier_means.argmax() + width - 1])
    return f"reward falls from {best:.3g} around step {step} to {last_mean:.3g} at the end"


def is_lost_from_the_start(log: Log) -> Evidence:
    """Look for a reward that falls below a quarter of its first value while the entropy halves or doubles."""
    reward, entropy = log.points("reward", MIN_STEPS)[1], log.points("entropy")[1]
    if len(entropy) != len(reward) or not entropy[0]:
        return None
    means = running_mean(reward)[0]
    entropy_ratio = running_mean(entropy)[0] / entropy[0]
    is_lost = (means < reward[0] - 0.75 * abs(reward[0])) & ((entropy_ratio < 0.5) | (entropy_ratio > 2))
    if not is_lost.any():
        return None
    return f"reward falls from {reward[0]:.3g} in the first step to {means[is_lost][0]:.3g}"


@condition
def truncation(log: Log) -> Evidence:
    """Look for a share of truncated completions that is large at last and has not become much smaller."""
    truncated = trend(log, TRUNCATED)
    if truncated.last < 0.3 or not (truncated.rises or truncated.last > max(0.5, 0.8 * truncated.first)):
        return None
    return f"{truncated} (below 0.3 expected)"


@condition
def length_without_gain(log: Log) -> Evidence:
    """Look for completions that grow longer while the first reward function gains nothing."""
    log.points(LENGTH, 3 * MIN_STEPS)  # raises for a short log, in which lengths change by chance
    length, gain = trend(log, LENGTH), trend(log, components(log)[0])
    if gain.change > 2 * gain.error or not (length.rises and length.last > 1.3 * length.first):
        return None
    return f"{length}, {gain}"


@condition
def held_out_falls_behind(log: Log) -> Evidence:
    """Look for a training reward that is above the held-out reward in the later half of the evaluations.

    Either the gap must be larger than in the earlier half, or the held-out reward must not have risen since.
    """
    eval_steps, held_out = log.points("eval/reward", 4)
    steps, reward = log.points("reward", MIN_STEPS)
    half = len(eval_steps) // 2
    width = 2 * max(2, len(reward) // 10)  # number of steps around an evaluation that are compared with it
    nearest_steps = [np.abs(steps - step).argsort()[:width] for step in eval_steps]
    training_reward = np.array([reward[indices].mean() for indices in nearest_steps])
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
