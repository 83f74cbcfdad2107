"""What each fault looks like in a log: one small function a fault. `rules.RULES` says what the faults mean.

A condition answers with the first step of the fault and the evidence, or with None; None, too, where the log lacks what
it reads. Nothing is decided by one step: "at first" and "at last" are means over the first and the last quarter of the
steps, and a change counts where the noise of the steps does not explain it.
"""

from typing import NamedTuple

import numpy as np

from grpo_lab.diagnose.logs import Log

Evidence = tuple[int, str] | None
FEWEST = 8  # steps below which no trend is read
SPREAD, GRADIENT, CLIPPED = "frac_reward_zero_std", "grad_norm", "clip_ratio/region_mean"
LENGTH, CUT = "completions/mean_length", "completions/clipped_ratio"
MISMATCH = {  # metric -> nats in the median step that rounding does not explain, in half precision
    "sampling/logp_difference_max": 0.6,
    "sampling/sampling_logp_difference/mean": 0.1,
}


class Change(NamedTuple):
    """A metric at first and at last, and the standard error of their difference, from how neighbouring steps differ."""

    first: float
    last: float
    error: float
    step: int  # with which the last quarter begins

    @property
    def by(self) -> float:
        return self.last - self.first

    @property
    def rises(self) -> bool:
        return self.by > 3 * self.error

    def __str__(self) -> str:
        return f"from {self.first:.3g} at first to {self.last:.3g} at last"


def change(log: Log, metric: str) -> Change | None:
    """None where the metric stands in fewer than `FEWEST` steps."""
    steps, values = log.points(metric)
    if metric == SPREAD and log.has("reward_std") and len(values) == len(log.points("reward_std")[1]):
        values = np.where(log.points("reward_std")[1] < 1e-6, 1.0, values)  # what rounding leaves is no spread
    if len(values) < FEWEST:
        return None
    quarter = len(values) // 4
    error = np.diff(values).std() / quarter**0.5  # neighbours differ by twice the variance of one, and so do two means
    return Change(float(values[:quarter].mean()), float(values[-quarter:].mean()), float(error), int(steps[-quarter]))


def components(log: Log) -> list[str]:
    """The means of the reward functions that count; of the sum, where the log does not tell them apart."""
    names = [name for name in log.metrics if name.startswith("rewards/") and name.endswith("/mean")]
    weights = log.settings.get("reward_weights") or [1.0] * len(names)
    return [name for name, weight in zip(names, weights, strict=False) if weight] or ["reward"]


def at_last(log: Log) -> list[float]:
    """Each reward function at last."""
    return [one.last for name in components(log) if (one := change(log, name))]


def solved(log: Log) -> bool:
    """Whether rewards that go up to 1 are nearly there."""
    return bool(at_last(log)) and min(at_last(log)) >= 0.9


def updates_of_a_rollout(log: Log) -> int | None:
    """As the settings say it, ours or TRL's; None if they don't."""
    s = log.settings
    if "num_iterations" not in s:
        return None
    of_ours = s.get("generation_batch_size") or 0
    of_update = (s.get("per_device_train_batch_size") or 0) * (s.get("gradient_accumulation_steps") or 1)
    parts = s.get("steps_per_generation") or (of_ours // of_update if of_ours and of_update else 1)
    return s["num_iterations"] * max(1, parts)


# ---- groups without spread


def silent(log: Log) -> Change | None:
    """The share of groups without spread, if it is nearly all at last, and the policy did not learn its way there."""
    share, reward = change(log, SPREAD), change(log, "reward")
    if share is None or reward is None or share.last < 0.95 or (reward.rises and solved(log)):
        return None
    return share


def no_spread(log: Log, lowest: float, highest: float) -> Evidence:
    share = silent(log)
    if share is None or not all(lowest <= level <= highest for level in at_last(log)):
        return None
    reward = change(log, "reward")
    return share.step, f"{SPREAD} is {share.last:.2f} at last (below 0.95 expected), at a reward of {reward.last:.3g}"


def no_spread_all_wrong(log: Log) -> Evidence:
    return no_spread(log, -np.inf, 0.05)


def no_spread_all_right(log: Log) -> Evidence:
    return no_spread(log, 0.9, np.inf)


def no_spread_equal(log: Log) -> Evidence:
    return None if no_spread_all_wrong(log) or no_spread_all_right(log) else no_spread(log, -np.inf, np.inf)


def reward_component_still(log: Log) -> Evidence:
    names = components(log)
    moving = [name for name in names if len(set(log.points(name)[1].tolist())) > 1]
    for name in set(names) - set(moving) if moving and len(log.rows) >= FEWEST else ():
        steps, values = log.points(name)
        spread = log.points(name.replace("/mean", "/std"))[1]
        if len(values) and values[0] < 0.95 and not spread.any():
            return int(steps[0]), f"{name} is {values[0]:.3g} in all {len(steps)} steps, while {moving[0]} moves"
    return None


# ---- probabilities


def sampler_scorer_apart(log: Log) -> Evidence:
    for metric, most in MISMATCH.items():
        limit = 1e-3 if metric.endswith("_max") and log.settings.get("precision") == "fp32" else most
        steps, values = log.points(metric)
        if len(values) and np.median(values) > limit:
            said = f"{metric} is {np.median(values):.2g} nats in the median step (at most {limit:g} expected)"
            return int(steps[values > limit][0]), said
    return None


def kl_not_zero_at_start(log: Log) -> Evidence:
    steps, kl = log.points("kl")
    moved = log.column(CLIPPED)[0] > 0 or abs(log.column("ratio")[0] - 1) > 1e-4 or (updates_of_a_rollout(log) or 1) > 1
    if not len(kl) or steps[0] != 1 or moved or abs(kl[0]) < 1e-3:
        return None
    return 1, f"kl is {kl[0]:.2g} nats a token before the first update (0 expected: policy and reference are the same)"


def kl_explosion(log: Log) -> Evidence:
    kl, reward = change(log, "kl"), change(log, "reward")
    if kl is None or reward is None or kl.last < max(0.5, 2 * kl.first) or (reward.by > reward.error and kl.last < 10):
        return None
    return kl.step, f"kl goes {kl} nats a token, and buys nothing: reward {reward}"


def entropy_collapse(log: Log) -> Evidence:
    entropy, reward = change(log, "entropy"), change(log, "reward")
    if entropy is None or reward is None or solved(log) or reward.rises:
        return None
    if entropy.last >= max(0.25 * entropy.first, 0.02):
        return None
    return entropy.step, f"entropy goes {entropy} nats a token, and buys nothing: reward {reward}"


def clip_always(log: Log) -> Evidence:
    steps, values = log.points(CLIPPED)
    most = 0.5 if log.settings.get("importance_sampling_level") == "sequence" else 0.2
    if len(values) < 3 or np.median(values) < most:
        return None
    said = f"{CLIPPED} is {np.median(values):.2f} in the median step (below {most} expected)"
    return int(steps[values >= most][0]), said


def clip_never(log: Log) -> Evidence:
    updates, clipped = updates_of_a_rollout(log), log.points(CLIPPED)[1]
    ratio = log.points("ratio")[1]
    if (updates or 1) < 2 or len(clipped) < FEWEST or clipped.any() or np.abs(ratio - 1).max(initial=0) > 1e-6:
        return None
    if not len(ratio) and still(log):
        return None  # small steps do not reach the clip range
    said = ", and ratio is 1 in each" if len(ratio) else ", though the policy moves"
    return int(log.rows[0]["step"]), f"{CLIPPED} is 0 in all steps with {updates} updates of each rollout{said}"


# ---- updates


def nonfinite_steps(log: Log) -> Evidence:
    broken = np.zeros(len(log.rows), dtype=bool)
    for metric in ("loss", GRADIENT):
        broken |= np.array([metric in row for row in log.rows]) & ~np.isfinite(log.column(metric))
    skipped = np.nan_to_num(log.column("nonfinite_steps"))  # our own count of updates, over all steps so far
    count, broken = max(int(broken.sum()), int(skipped.max())), broken | (skipped > 0)
    scaled = log.settings.get("precision") == "fp16" or log.settings.get("fp16")
    if not count or (scaled and count <= max(3, len(log.rows) // 10)):  # a loss scale finds its size by overflows
        return None
    step = int(log.column("step")[broken][0])
    return step, f"{count} of {len(log.rows)} steps had a loss or gradient that was NaN or infinite"


def gradient_spikes(log: Log) -> Evidence:
    steps, norms = log.points(GRADIENT)
    steps, norms = steps[norms > 0], norms[norms > 0]
    if len(norms) < FEWEST:
        return None
    usual = max(np.median(norms), np.median(norms[: len(norms) // 4]))
    spikes = norms > 20 * usual
    if not spikes.any():
        return None
    said = f"{GRADIENT} is {norms.max():.3g} at step {int(steps[norms.argmax()])}, {usual:.3g} in the median step"
    return int(steps[spikes][0]), said


def still(log: Log) -> bool:
    """Whether groups have spread, and yet the policy stays as it was: by its KL, else by all that the log says."""
    share, kl, reward = change(log, SPREAD), change(log, "kl"), change(log, "reward")
    if share is None or reward is None or share.last > 0.9 or abs(reward.by) > 3 * reward.error:
        return False
    if np.median(log.points(CLIPPED)[1] if log.has(CLIPPED) else 0) > 0.01:
        return False
    if kl is not None and log.column("kl").any():
        return kl.last < 1e-4 or (kl.last < 0.01 and kl.last < 1.5 * np.median(log.points("kl")[1][1:FEWEST]))
    others = [change(log, name) for name in ("entropy", LENGTH) if log.has(name)]
    return bool(others) and all(abs(one.by) < max(3 * one.error, 0.02 * one.first) for one in others)


def updates_swallowed(log: Log) -> Evidence:
    naive = log.settings.get("precision") == "bf16-naive" or log.settings.get("dtype") == "bfloat16"
    return _nothing_moves(log) if naive else None


def learning_rate_too_low(log: Log) -> Evidence:
    return None if updates_swallowed(log) else _nothing_moves(log)


def _nothing_moves(log: Log) -> Evidence:
    if len(log.rows) < 2 * FEWEST or not still(log):
        return None
    rate, reward = log.points("learning_rate")[1], change(log, "reward")
    at = f" at a learning rate of {np.median(rate):.2g}" if len(rate) else ""
    return int(log.rows[0]["step"]), f"reward, entropy and length stay as they were{at} (reward {reward})"


def learning_rate_too_high(log: Log) -> Evidence:
    (steps, reward), entropy = log.points("reward"), log.points("entropy")[1]
    if len(reward) < FEWEST:
        return None
    width = max(3, len(reward) // 8)
    means = np.convolve(reward, np.ones(width) / width, "valid")
    end, error = means[-1], np.diff(reward).std() / width**0.5
    peak = means[:-width].max()
    if peak - end > max(4 * error, 0.3 * abs(peak)):
        step = int(steps[means[:-width].argmax() + width - 1])
        return step, f"reward falls from {peak:.3g} around step {step} to {end:.3g} at the end"
    if len(entropy) != len(reward) or not entropy[0]:
        return None
    change_of_entropy = np.convolve(entropy, np.ones(width) / width, "valid") / entropy[0]
    lost = (means < 0.25 * reward[0]) & ((change_of_entropy < 0.5) | (change_of_entropy > 2))
    if not lost.any():
        return None
    return int(steps[lost.argmax()]), f"reward falls from {reward[0]:.3g} in the first step to {means[lost][0]:.3g}"


# ---- what is learnt


def truncation(log: Log) -> Evidence:
    cut = change(log, CUT)
    if cut is None or cut.last < 0.3 or not (cut.rises or cut.last > max(0.5, 0.8 * cut.first)):
        return None
    return cut.step, f"{CUT} goes {cut} (below 0.3 expected)"


def length_without_gain(log: Log) -> Evidence:
    metric = "eval/accuracy" if len(log.points("eval/accuracy")[0]) >= FEWEST else components(log)[0]
    length, gain = change(log, LENGTH), change(log, metric)
    if length is None or gain is None or gain.rises or not (length.rises and length.last > 1.3 * length.first):
        return None
    return length.step, f"{LENGTH} goes {length}, {metric} {gain}"


def held_out_falls_behind(log: Log) -> Evidence:
    at, held_out = log.points("eval/reward")
    steps, reward = log.points("reward")
    if len(at) < 3 or len(reward) < FEWEST:
        return None
    width = max(2, len(reward) // 10)
    trained = np.array([reward[np.abs(steps - one).argsort()[: 2 * width]].mean() for one in at])
    error = np.diff(reward).std() / (2 * width) ** 0.5
    gap = trained - held_out
    if gap[-1] < max(0.15 * abs(trained[-1]), 4 * error) or gap[-1] - gap[0] < 2 * error:
        return None
    return int(at[gap > gap[-1] / 2][0]), (
        f"reward is {trained[-1]:.3g} and eval/reward {held_out[-1]:.3g} at the end; {trained[0]:.3g} and "
        f"{held_out[0]:.3g} at step {int(at[0])}"
    )
