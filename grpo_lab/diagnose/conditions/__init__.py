"""The conditions of the faults: for each fault in faults.toml, one small function that looks for it in a log.

A condition returns the evidence as a sentence, or None if the log does not show the fault. It raises `MissingMetric` if
the log has too few numbers of a metric that it needs.
"""

from collections.abc import Callable

from grpo_lab.diagnose.conditions import policy, rewards, update
from grpo_lab.diagnose.conditions.evidence import Evidence
from grpo_lab.diagnose.logs import Log

# The condition of each fault, by the fault's name in faults.toml and in the same order.
CONDITIONS: dict[str, Callable[[Log], Evidence | None]] = {
    "nonfinite_steps": update.nonfinite_steps,
    "environment_tokens_in_loss": policy.environment_tokens_in_loss,
    "completions_reencoded": policy.completions_reencoded,
    "train_inference_mismatch": policy.train_inference_mismatch,
    "kl_not_zero_at_start": policy.kl_not_zero_at_start,
    "kl_negative": policy.kl_negative,
    "kl_flat": policy.kl_flat,
    "advantages_not_centred": rewards.advantages_not_centred,
    "learning_rate_too_high": update.learning_rate_too_high,
    "kl_explosion": policy.kl_explosion,
    "updates_rounded_away": update.updates_rounded_away,
    "learning_rate_too_low": update.learning_rate_too_low,
    "gradient_spikes": update.gradient_spikes,
    "clip_never": policy.clip_never,
    "clip_always": policy.clip_always,
    "no_spread_all_wrong": rewards.no_spread_all_wrong,
    "no_spread_all_right": rewards.no_spread_all_right,
    "no_spread_equal": rewards.no_spread_equal,
    "reward_component_flat": rewards.reward_component_flat,
    "reward_component_falls": rewards.reward_component_falls,
    "entropy_collapse": policy.entropy_collapse,
    "truncation": rewards.truncation,
    "length_without_gain": rewards.length_without_gain,
    "held_out_falls_behind": rewards.held_out_falls_behind,
}
