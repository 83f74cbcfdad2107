"""The condition of each fault: one small function that looks for it in a log. faults.toml says what the faults mean.

A condition returns the evidence as a sentence, or None where the log has no such fault; it raises `MissingMetric` where
the log has too few numbers of a metric that it reads. (`rules.first_step` finds the step.) Nothing is decided by one
step: "at first" and "at last" are means over the first and the last quarter of the steps, and a change counts where the
noise of the steps does not explain it.
"""

from typing import NamedTuple

import numpy as np

from grpo_lab.base.names import FRAC_LOGP_DIFFERENCE, LOGP_DIFFERENCE_MAX, TRAINED_REPLIES
from grpo_lab.diagnose.logs import Log, MissingMetric

Evidence = str | None
MIN_STEPS = 8  # steps below which no trend is read
ZERO_STD, GRADIENT, CLIPPED = "frac_reward_zero_std", "grad_norm", "clip_ratio/region_mean"
LOGP_DIFFERENCE_MEAN = "sampling/sampling_logp_difference/mean"  # TRL's
MUST_BE_FINITE = ("kl", "entropy", "ratio", LOGP_DIFFERENCE_MAX, LOGP_DIFFERENCE_MEAN, "reward")
LENGTH, TRUNCATED = "completions/mean_length", "completions/clipped_ratio"


class Trend(NamedTuple):
    """A metric at first and at last, and the standard error of their difference, from how neighbouring steps differ."""

    metric: str
    first: float
    last: float
    change: float
    error: float
    rises: bool

    def __str__(self) -> str:
        return f"{self.metric} goes from {self.first:.3g} at first to {self.last:.3g} at last"


def trend(log: Log, metric: str) -> Trend:
    """Compare the mean of the first quarter of the steps with that of the last."""
    values = log.points(metric, MIN_STEPS)[1]
    if metric == ZERO_STD:  # TRL takes what rounding leaves of equal rewards for a spread
        rounding = (log.column("reward_std") < 1e-6) | (log.column(GRADIENT) < 1e-3)
        values = np.where(rounding[np.isfinite(log.column(metric))], 1.0, values)
    quarter = len(values) // 4
    first, last = values[:quarter].mean(), values[-quarter:].mean()
    error = np.diff(values).std() / quarter**0.5  # neighbours differ by twice the variance of one, and so do two means
    return Trend(metric, first, last, last - first, error, last - first > 3 * error)


def _names(log: Log) -> list[str]:
    return list(dict.fromkeys(name for row in log.rows for name in row))


def components(log: Log) -> list[str]:
    """The means of the reward functions that count; the sum, where the log does not tell them apart."""
    names = [name for name in _names(log) if name.startswith("rewards/") and name.endswith("/mean")]
    weights = log.settings.get("reward_weights") or [1.0] * len(names)
    counted = [name for name, weight in zip(names, weights, strict=False) if weight]
    return [name for name in counted if len(log.points(name)[1]) >= MIN_STEPS] or ["reward"]


def last_rewards(log: Log) -> list[float]:
    """Return the mean of each reward function over the last quarter of the steps."""
    return [trend(log, name).last for name in components(log)]


def is_solved(log: Log) -> bool:
    """True if all reward functions, which go up to 1, are at 0.9 or more at last."""
    return min(last_rewards(log)) >= 0.9


def updates_per_rollout(log: Log) -> int | None:
    """The number of updates per rollout by the settings, ours or TRL's; None if they don't say."""
    settings = log.settings
    if "num_iterations" not in settings:
        return None
    accumulation_steps = settings.get("gradient_accumulation_steps") or 1
    update_rows = (settings.get("per_device_train_batch_size") or 0) * accumulation_steps
    rollout_rows = settings.get("generation_batch_size") or update_rows
    updates_per_pass = settings.get("steps_per_generation") or 0  # TRL's; ours follow from the sizes
    if not updates_per_pass and update_rows:
        updates_per_pass = rollout_rows // update_rows
    return settings["num_iterations"] * max(updates_per_pass, 1)


def no_spread(log: Log) -> Evidence:
    """Look for groups of which, at last, nearly all have equal rewards.

    This is no fault where the policy has learnt its way there: its reward rises, and the task is solved.
    """
    share, reward = trend(log, ZERO_STD), trend(log, "reward")
    if share.last < 0.95 or (reward.rises and is_solved(log)):
        return None
    return f"{ZERO_STD} is {share.last:.2f} at last (below 0.95 expected), at a reward of {reward.last:.3g}"


def no_spread_all_wrong(log: Log) -> Evidence:
    """Look for groups without a spread whose completions are all wrong."""
    return no_spread(log) if max(last_rewards(log)) <= 0.05 else None


def no_spread_all_right(log: Log) -> Evidence:
    """Look for groups without a spread whose completions are all right."""
    return no_spread(log) if is_solved(log) else None


def no_spread_equal(log: Log) -> Evidence:
    """Look for groups without a spread whose completions are equally good, neither all wrong nor all right."""
    return no_spread(log) if max(last_rewards(log)) > 0.05 and not is_solved(log) else None


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


def reward_component_falls(log: Log) -> Evidence:
    """Look for a reward function that falls while the whole reward rises."""
    trends = [trend(log, name) for name in components(log)]
    reward = trend(log, "reward")
    falling = [part for part in trends if part.change < -max(3 * part.error, 0.2 * abs(part.first))]
    if not falling or len(trends) < 2 or not reward.rises:
        return None
    return f"{falling[0]}, while {reward}"


def not_centred(log: Log) -> Evidence:
    """Look for advantages that do not sum to 0 in their group, by a loss far below 0.

    Where they do sum to 0, what is left of the loss comes from how the advantage varies with the length: less than 1.
    """
    _, loss = log.points("loss", MIN_STEPS)
    late = np.median(loss[len(loss) // 2 :])
    is_centred = log.settings.get("advantage", "group") == "group"
    is_scaled = log.settings.get("scale_rewards", "group") != "none"
    if not (is_centred and is_scaled) or late > -0.75:
        return None
    return f"loss is {late:.2g} in the median step of the later half (above -0.75 expected where advantages sum to 0)"


def usually_above(log: Log, metric: str, limit: float) -> Evidence:
    """Return as evidence that the metric is above the limit in the median step; None if it is not."""
    usual = np.median(log.points(metric, 3)[1])
    return f"{metric} is {usual:.2g} in the median step (at most {limit:g} expected)" if usual > limit else None


def world_trained(log: Log) -> Evidence:
    """Look for tokens in the loss that an environment wrote."""
    steps, share = log.points(TRAINED_REPLIES, 1)
    if not share.any():
        return None
    step = int(steps[share.argmax()])
    return f"{TRAINED_REPLIES} is {share.max():.2g} at step {step} (0 expected: the world's are only read)"


def ids_encoded_again(log: Log) -> Evidence:
    """Look for token ids that were made by encoding the text of a completion once more.

    Some tokens are then others than those that were sampled, by many nats, and the rest agree. Neither a temperature
    nor shifted logits look so: five nats are more than rounding or another distribution explains, and with logits of
    the wrong position 9 of 10 tokens are apart. Tokens that the environment wrote look alike, since their recorded log-
    probability is 0.
    """
    log.points(FRAC_LOGP_DIFFERENCE, 3)
    share, difference = log.column(FRAC_LOGP_DIFFERENCE), log.column(LOGP_DIFFERENCE_MAX)
    far = difference > 5
    if far.sum() < 3 or np.median(share[far]) > 0.5 or (log.has(TRAINED_REPLIES) and world_trained(log)):
        return None
    differing = f"{FRAC_LOGP_DIFFERENCE} is {np.median(share[far]):.2g} there"
    evidence = f"{LOGP_DIFFERENCE_MAX} is above 5 nats in {far.sum()} of {len(difference)} steps, while {differing}"
    return f"{evidence}: most tokens are those that were sampled, and some are not"


def sampler_trainer_apart(log: Log) -> Evidence:
    """Look for log-probabilities of sampler and trainer that differ by more than rounding explains.

    In half precision rounding explains 0.6 nats in the worst token of a step, and 0.1 in the mean.
    """
    if log.has(LOGP_DIFFERENCE_MEAN):
        return usually_above(log, LOGP_DIFFERENCE_MEAN, 0.1)
    return usually_above(log, LOGP_DIFFERENCE_MAX, 1e-3 if log.settings.get("precision") == "fp32" else 0.6)


def kl_not_zero_at_start(log: Log) -> Evidence:
    """Look for a KL before the first update, when policy and reference are the same."""
    steps, kl = log.points("kl", 1)
    rounding = 1e-6 if log.settings.get("precision") == "fp32" else 1e-4
    has_moved = log.column(CLIPPED)[0] > 0 or abs(log.column("ratio")[0] - 1) > 1e-4
    several_updates = (updates_per_rollout(log) or 1) > 1
    if steps[0] != 1 or has_moved or several_updates or abs(kl[0]) < rounding:
        return None
    return f"kl is {kl[0]:.2g} nats a token before the first update (0 expected: policy and reference are the same)"


def kl_negative(log: Log) -> Evidence:
    """Look for a negative KL of the estimators k2 and k3, which are at least 0 for each token."""
    steps, kl = log.points("kl", 1)
    rounding = 1e-6 if log.settings.get("precision") == "fp32" else 1e-3
    if log.settings.get("kl_estimator", "k3") == "k1" or (kl >= -rounding).all():
        return None
    return f"kl is {kl.min():.2g} at step {int(steps[kl.argmin()])} (at least 0 expected of k2 and k3)"


def kl_still(log: Log) -> Evidence:
    """Look for a policy whose reward rises although it does not leave its reference."""
    kl, reward = trend(log, "kl"), trend(log, "reward")
    if not log.settings.get("beta") or not reward.rises or kl.last > min(0.005, 1.5 * kl.first + 1e-9):
        return None
    return f"{kl} nats a token, while {reward}"


def kl_explosion(log: Log) -> Evidence:
    """Look for a policy that goes far from its reference and has no higher reward for it."""
    kl, reward = trend(log, "kl"), trend(log, "reward")
    if kl.last < max(0.5, 2 * log.points("kl")[1][0]) or (reward.rises and kl.last < 10):
        return None
    return f"{kl} nats a token, and buys nothing: {reward}"


def entropy_collapse(log: Log) -> Evidence:
    """Look for a policy that has nearly stopped exploring before its task is solved."""
    entropy, reward = trend(log, "entropy"), trend(log, "reward")
    quarter = 0.25 * entropy.first
    collapsed = entropy.last < min(quarter, 0.02)
    low = entropy.last < max(quarter, 0.02)
    if is_solved(log) or not (collapsed or (low and not reward.rises)):
        return None
    return f"{entropy} nats a token, and nothing new is tried: {reward}"


def clip_always(log: Log) -> Evidence:
    """Look for a ratio that leaves the clip range at many tokens of the median step."""
    return usually_above(log, CLIPPED, 0.5 if log.settings.get("importance_sampling_level") == "sequence" else 0.2)


def clip_never(log: Log) -> Evidence:
    """Look for a ratio that never leaves the clip range, although the policy moves between the updates of a rollout."""
    updates = updates_per_rollout(log) or 1
    clipped = log.points(CLIPPED, MIN_STEPS)[1]
    ratio = log.points("ratio")[1]
    largest = np.abs(ratio - 1).max(initial=0)
    moves_little = 1e-6 < largest < 0.02  # which does not reach the clip range
    if updates < 2 or clipped.any() or moves_little or (not len(ratio) and is_still(log)):
        return None
    detail = f", and ratio is off 1 by {largest:.2g} at most" if len(ratio) else ", though the policy moves"
    return f"{CLIPPED} is 0 in all steps with {updates} updates of each rollout{detail}"


def nonfinite_steps(log: Log) -> Evidence:
    """Look for a metric that is not finite; else for updates whose loss or gradient was not."""
    if evidence := _not_finite(log):
        return evidence
    if not any(log.has(metric) for metric in ("loss", GRADIENT, "nonfinite_steps")):
        raise MissingMetric("loss")
    broken = [row["step"] for row in log.rows if not np.isfinite([row.get("loss", 0), row.get(GRADIENT, 0)]).all()]
    skipped = log.points("nonfinite_steps")[1]  # our own count of updates, over all steps so far
    count = max(len(broken), int(skipped.max(initial=0)))
    scaled = log.settings.get("precision") == "fp16" or log.settings.get("fp16")
    if not count or (scaled and count <= max(3, len(log.rows) // 10)):  # a loss scale finds its size by overflows
        return None
    return f"{count} updates in {len(log.rows)} steps had a loss or gradient that was NaN or infinite"


def _not_finite(log: Log) -> Evidence:
    """Look for a metric that is NaN or infinite.

    One step is enough for a mean over tokens. A reward may apply to no completion of a step, so it has to be so in all.
    """
    rewards = [name for name in _names(log) if name.startswith("rewards/") and name.endswith("/mean")]
    for metric in (*MUST_BE_FINITE, *rewards, *(f"eval/{name}" for name in MUST_BE_FINITE)):
        values = [row[metric] for row in log.rows if metric in row]
        broken = int((~np.isfinite(values)).sum())
        least_steps = MIN_STEPS if metric in rewards else 1
        in_all_steps = broken == len(values) >= least_steps
        is_reward = metric in rewards or metric.endswith("reward")
        if broken and (in_all_steps or not is_reward):
            return f"{metric} is NaN or infinite in {'all' if broken == len(values) else broken} of {len(values)} steps"
    return None


def gradient_spikes(log: Log) -> Evidence:
    """Look for a gradient that is far larger in one step than in the median step."""
    steps, norms = log.points(GRADIENT)
    steps, norms = steps[norms > 0], norms[norms > 0]
    if len(norms) < MIN_STEPS:
        raise MissingMetric(GRADIENT)
    usual = max(np.median(norms), np.median(norms[: len(norms) // 4]))
    if norms.max() <= max(20 * usual, 1):  # below 1 it may be the first group with a spread
        return None
    return f"{GRADIENT} is {norms.max():.3g} at step {int(steps[norms.argmax()])}, {usual:.3g} in the median step"


def is_still(log: Log) -> bool:
    """True if groups have spread, and yet the policy stays as it was: by its KL, else by its entropy and length."""
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
        detectable = max(3 * metric_trend.error, 0.02 * first)  # the least change that this log can show
        if detectable > 0.05 * first or abs(metric_trend.change) >= detectable:
            return False
    return bool(trends)


def no_weight_moves(log: Log) -> Evidence:
    """Look for learning rates at which no weight can move: Adam moves one by about the rate at each update."""
    rates = log.points("learning_rate")[1]
    farthest = rates.sum() * (updates_per_rollout(log) or 1)
    in_warm_up = len(rates) < MIN_STEPS or rates[-1] > rates[:-1].max()  # the rates are yet to come
    if in_warm_up or farthest >= 1e-6 or not rates.any():
        return None
    steps = f"in {len(rates)} steps no weight has moved by more than {farthest:.1g}"
    return f"learning_rate is {np.median(rates):.2g}: {steps}"


def nothing_moves(log: Log) -> Evidence:
    """Look for weights that cannot have moved, or for a policy that stays as it was."""
    if evidence := no_weight_moves(log):
        return evidence
    log.points("reward", 3 * MIN_STEPS)  # a slow run moves late
    if not is_still(log):
        return None
    rate, reward = log.points("learning_rate")[1], trend(log, "reward")
    at_rate = f" at a learning rate of {np.median(rate):.2g}" if len(rate) else ""
    return f"the policy stays as it was{at_rate}: {reward}"


def updates_swallowed(log: Log) -> Evidence:
    """Look for a policy that stays as it was because bf16 weights are rounded back after each update."""
    naive = log.settings.get("precision") == "bf16-naive" or log.settings.get("dtype") == "bfloat16"
    return nothing_moves(log) if naive else None


def learning_rate_too_low(log: Log) -> Evidence:
    """Look for a policy that stays as it was at a low learning rate.

    Without a KL in the log only very low rates count: at others entropy and length are slow to show a change.
    """
    path = log.points("learning_rate")[1].sum() * (updates_per_rollout(log) or 1)
    unsure = path > 5e-4 and not log.points("kl")[1].any()
    return None if unsure or updates_swallowed(log) else nothing_moves(log)


def running_mean(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the means over an eighth of the steps, three at least; and how many steps that is."""
    width = max(3, len(values) // 8)
    return np.convolve(values, np.ones(width) / width, "valid"), width


def learning_rate_too_high(log: Log) -> Evidence:
    """Look for a reward that falls from its best, or is lost while the entropy halves or doubles."""
    return falls_from_its_best(log) or is_lost_from_the_start(log)


def falls_from_its_best(log: Log) -> Evidence:
    """Look for a reward that ends far below its best running mean."""
    steps, reward = log.points("reward", MIN_STEPS)
    means, width = running_mean(reward)
    earlier, last = means[:-width], means[-1]
    if earlier.max() - last <= max(4 * np.diff(reward).std() / width**0.5, 0.3 * abs(earlier.max())):
        return None
    step = int(steps[earlier.argmax() + width - 1])
    return f"reward falls from {earlier.max():.3g} around step {step} to {last:.3g} at the end"


def is_lost_from_the_start(log: Log) -> Evidence:
    """Look for a reward that falls below a quarter of the first while the entropy halves or doubles."""
    reward, entropy = log.points("reward", MIN_STEPS)[1], log.points("entropy")[1]
    if len(entropy) != len(reward) or not entropy[0]:
        return None
    means = running_mean(reward)[0]
    share = running_mean(entropy)[0] / entropy[0]
    lost = (means < reward[0] - 0.75 * abs(reward[0])) & ((share < 0.5) | (share > 2))
    if not lost.any():
        return None
    return f"reward falls from {reward[0]:.3g} in the first step to {means[lost][0]:.3g}"


def truncation(log: Log) -> Evidence:
    """Look for completions that the length limit cuts off, often and no less often than at first."""
    cut = trend(log, TRUNCATED)
    if cut.last < 0.3 or not (cut.rises or cut.last > max(0.5, 0.8 * cut.first)):
        return None
    return f"{cut} (below 0.3 expected)"


def length_without_gain(log: Log) -> Evidence:
    """Look for completions that grow longer while the first reward function gains nothing."""
    log.points(LENGTH, 3 * MIN_STEPS)  # in a short run lengths wander
    length, gain = trend(log, LENGTH), trend(log, components(log)[0])
    if gain.change > 2 * gain.error or not (length.rises and length.last > 1.3 * length.first):
        return None
    return f"{length}, {gain}"


def held_out_falls_behind(log: Log) -> Evidence:
    """Look for a reward in training that is ahead of the one on held-out problems in the later evaluations.

    It has to be further ahead than in the earlier half, or the held-out reward has to have gained nothing since.
    """
    eval_steps, held_out = log.points("eval/reward", 4)
    steps, reward = log.points("reward", MIN_STEPS)
    half = len(eval_steps) // 2
    width = 2 * max(2, len(reward) // 10)  # steps around an evaluation whose mean is compared with it
    nearest_steps = [np.abs(steps - step).argsort()[:width] for step in eval_steps]
    trained = np.array([reward[indices].mean() for indices in nearest_steps])
    gap = trained - held_out
    early = gap[:half].mean()
    late = gap[-half:].mean()
    error = np.diff(gap).std() / (2 * half) ** 0.5
    if late <= max(0.15 * abs(trained[-half:].mean()), 4 * error):
        return None
    gain = held_out[-half:].mean() - held_out[:half].mean()
    if late - early < 2 * error and gain > 2 * np.diff(held_out).std() / half**0.5:
        return None
    return f"reward is {late:.2g} above eval/reward in the last {half} evaluations, {early:.2g} in the first {half}"
