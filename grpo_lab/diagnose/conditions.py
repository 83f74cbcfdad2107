"""The conditions of the faults: for each fault in faults.toml, one small function that looks for it in a log.

A condition returns the evidence as a sentence, or None if the log does not show the fault. It raises `MissingMetric` if
the log has too few numbers of a metric that it needs. First come the faults that show in the tokens of the policy, its
KL, its entropy or its clip range; then those in the gradient, in the learning rate, or as weights that do not move;
then those in the rewards, in the lengths, or in the held-out problems.
"""

from collections.abc import Callable

import numpy as np

from grpo_lab.base.files import FRAC_LOGP_DIFFERENCE, FRAC_TRAINED_REPLIES, LOGP_DIFFERENCE_MAX
from grpo_lab.diagnose.logs import (
    CLIP_RATIO,
    GRAD_NORM,
    LOGP_DIFFERENCE_MEAN,
    MEAN_LENGTH,
    MIN_STEPS,
    TRUNCATED,
    ZERO_STD,
    Evidence,
    Log,
    MissingMetric,
    is_policy_unchanged,
    is_solved,
    last_rewards,
    reward_mean_metrics,
    trend,
    updates_per_rollout,
    usually_above,
)

MUST_BE_FINITE = ("kl", "entropy", "ratio", LOGP_DIFFERENCE_MAX, LOGP_DIFFERENCE_MEAN, "reward")


def environment_tokens_in_loss(log: Log) -> Evidence | None:
    """Detect that tokens written by the environment are in the loss."""
    steps, share = log.points(FRAC_TRAINED_REPLIES, 1)
    if not share.any():
        return None
    step = int(steps[share.argmax()])
    value = f"{FRAC_TRAINED_REPLIES} is {share.max():.2g} at step {step}"
    return f"{value} (0 expected: the environment's tokens are only read)"


def completions_reencoded(log: Log) -> Evidence | None:
    """Detect that token ids were made by encoding the text of a completion again.

    Some of these ids differ from the sampled ones, and there the log-probabilities differ by many nats, while all other
    tokens agree. Other faults look different: a wrong temperature does not cause differences above five nats, and with
    shifted logits 9 of 10 tokens differ. Tokens that the environment wrote look the same, because their recorded
    log-probability is 0; such logs are left to `environment_tokens_in_loss`.
    """
    log.finite_values(FRAC_LOGP_DIFFERENCE, 3)  # raises for a log with too few values
    share, difference = log.column(FRAC_LOGP_DIFFERENCE), log.column(LOGP_DIFFERENCE_MAX)
    is_large = difference > 5
    if (
        is_large.sum() < 3
        or np.median(share[is_large]) > 0.5
        or (log.has(FRAC_TRAINED_REPLIES) and environment_tokens_in_loss(log))
    ):
        return None
    differing = f"{FRAC_LOGP_DIFFERENCE} is {np.median(share[is_large]):.2g} there"
    num_large = is_large.sum()
    evidence = f"{LOGP_DIFFERENCE_MAX} is above 5 nats in {num_large} of {len(difference)} steps, while {differing}"
    return f"{evidence}: most tokens are those that were sampled, and some are not"


def train_inference_mismatch(log: Log) -> Evidence | None:
    """Detect that the log-probabilities of sampler and trainer differ by more than rounding explains.

    Rounding explains up to 0.1 nats in the mean over tokens. In the worst token of a step it explains up to 0.6 nats in
    half precision, and up to 0.001 nats in fp32.
    """
    if log.has(LOGP_DIFFERENCE_MEAN):
        return usually_above(log, LOGP_DIFFERENCE_MEAN, 0.1)
    return usually_above(log, LOGP_DIFFERENCE_MAX, 1e-3 if log.settings.get("precision") == "fp32" else 0.6)


def kl_not_zero_at_start(log: Log) -> Evidence | None:
    """Detect a KL other than 0 before the first update, when policy and reference should be the same."""
    steps, kl = log.points("kl", 1)
    rounding = 1e-6 if log.settings.get("precision") == "fp32" else 1e-4
    has_moved = log.column(CLIP_RATIO)[0] > 0 or abs(log.column("ratio")[0] - 1) > 1e-4
    several_updates = (updates_per_rollout(log) or 1) > 1
    if steps[0] != 1 or has_moved or several_updates or abs(kl[0]) < rounding:
        return None
    return f"kl is {kl[0]:.2g} nats a token before the first update (0 expected: policy and reference are the same)"


def kl_negative(log: Log) -> Evidence | None:
    """Detect a negative KL from the estimator k2 or k3, which are at least 0 for each token."""
    steps, kl = log.points("kl", 1)
    rounding = 1e-6 if log.settings.get("precision") == "fp32" else 1e-3
    if log.settings.get("kl_estimator", "k3") == "k1" or (kl >= -rounding).all():
        return None
    return f"kl is {kl.min():.2g} at step {int(steps[kl.argmin()])} (at least 0 expected of k2 and k3)"


def kl_flat(log: Log) -> Evidence | None:
    """Detect that the reward rises although the KL to the reference stays near 0."""
    kl, reward = trend(log, "kl"), trend(log, "reward")
    if not log.settings.get("beta") or not reward.rises or kl.last > min(0.005, 1.5 * kl.first + 1e-9):
        return None
    return f"{kl} (nats a token), while {reward}"


def kl_explosion(log: Log) -> Evidence | None:
    """Detect that the policy moves far from its reference without a higher reward, or by 10 nats a token with one."""
    kl, reward = trend(log, "kl"), trend(log, "reward")
    if kl.last < max(0.5, 2 * log.finite_values("kl")[0]) or (reward.rises and kl.last < 10):
        return None
    if reward.rises:
        return f"{kl} (nats a token; below 10 expected even if the reward rises): {reward}"
    return f"{kl} (nats a token), without gain: {reward}"


def entropy_collapse(log: Log) -> Evidence | None:
    """Detect that the policy has nearly stopped exploring before its task is solved."""
    entropy, reward = trend(log, "entropy"), trend(log, "reward")
    quarter_of_first = 0.25 * entropy.first
    has_collapsed = entropy.last < min(quarter_of_first, 0.02)
    is_low = entropy.last < max(quarter_of_first, 0.02)
    if is_solved(log) or not (has_collapsed or (is_low and not reward.rises)):
        return None
    return f"{entropy} (nats a token) before the task is solved: {reward}"


def clip_always(log: Log) -> Evidence | None:
    """Detect that in the median step the ratio of many tokens, or of many sequences, is outside the clip range."""
    return usually_above(log, CLIP_RATIO, 0.5 if log.settings.get("importance_sampling_level") == "sequence" else 0.2)


def clip_never(log: Log) -> Evidence | None:
    """Detect that no ratio is clipped in any step although each rollout serves several updates.

    It is not a fault if the ratio moves by less than 0.02, or, without a logged ratio, if the policy does not change. A
    ratio that is exactly 1 in all steps is one.
    """
    updates = updates_per_rollout(log) or 1
    clipped = log.finite_values(CLIP_RATIO, MIN_STEPS)
    ratio = log.finite_values("ratio")
    largest = np.abs(ratio - 1).max(initial=0)
    moves_little = 1e-6 < largest < 0.02  # a ratio that moves so little cannot reach the clip range
    if updates < 2 or clipped.any() or moves_little or (not len(ratio) and is_policy_unchanged(log)):
        return None
    detail = f", and ratio is off 1 by {largest:.2g} at most" if len(ratio) else ", though the policy moves"
    return f"{CLIP_RATIO} is 0 in all steps with {updates} updates of each rollout{detail}"


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
    evidence = f"in {len(rates)} steps no weight has moved by more than {largest_move:.1g}"
    return f"learning_rate is {np.median(rates):.2g}: {evidence}"


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


def no_spread(log: Log) -> Evidence | None:
    """Detect that nearly all groups have equal rewards at the end.

    This is not a fault if the policy has learnt the task: the reward has risen, and the task is solved.
    """
    zero_std, reward = trend(log, ZERO_STD), trend(log, "reward")
    if zero_std.last < 0.95 or (reward.rises and is_solved(log)):
        return None
    return (
        f"{ZERO_STD} is {zero_std.last:.2f} in the last quarter (below 0.95 expected), at a reward of {reward.last:.3g}"
    )


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
    falling = [c for c in trends if c.change < -max(3 * c.standard_error, 0.2 * abs(c.first))]
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
    length, reward = trend(log, MEAN_LENGTH), trend(log, reward_mean_metrics(log)[0])
    if reward.change > 2 * reward.standard_error or not (length.rises and length.last > 1.3 * length.first):
        return None
    return f"{length}, while {reward}"


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
    standard_error = np.diff(gap).std() / (2 * half) ** 0.5
    if late_gap <= max(0.15 * abs(training_reward[-half:].mean()), 4 * standard_error):
        return None
    gain = held_out[-half:].mean() - held_out[:half].mean()
    if late_gap - early_gap < 2 * standard_error and gain > 2 * np.diff(held_out).std() / half**0.5:
        return None
    gaps = f"{late_gap:.2g} above eval/reward in the last {half} evaluations, {early_gap:.2g} in the first {half}"
    return f"reward is {gaps}"


# The condition of each fault, by the fault's name in faults.toml and in the same order.
CONDITIONS: dict[str, Callable[[Log], Evidence | None]] = {
    condition.__name__: condition
    for condition in (
        nonfinite_steps,
        environment_tokens_in_loss,
        completions_reencoded,
        train_inference_mismatch,
        kl_not_zero_at_start,
        kl_negative,
        kl_flat,
        advantages_not_centred,
        learning_rate_too_high,
        kl_explosion,
        updates_rounded_away,
        learning_rate_too_low,
        gradient_spikes,
        clip_never,
        clip_always,
        no_spread_all_wrong,
        no_spread_all_right,
        no_spread_equal,
        reward_component_flat,
        reward_component_falls,
        entropy_collapse,
        truncation,
        length_without_gain,
        held_out_falls_behind,
    )
}
