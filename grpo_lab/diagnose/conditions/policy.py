"""Conditions of faults that show in the tokens of the policy, its KL, its entropy or its clip range."""

import numpy as np

from grpo_lab.base.files import FRAC_LOGP_DIFFERENCE, FRAC_TRAINED_REPLIES, LOGP_DIFFERENCE_MAX
from grpo_lab.diagnose.conditions.evidence import (
    CLIP_RATIO,
    LOGP_DIFFERENCE_MEAN,
    MIN_STEPS,
    Evidence,
    is_policy_unchanged,
    is_solved,
    trend,
    updates_per_rollout,
    usually_above,
)
from grpo_lab.diagnose.logs import Log


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
