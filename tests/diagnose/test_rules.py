"""Each rule finds its fault in a history just beyond its threshold, and none in a history just within."""

import pytest

from grpo_lab.diagnose import RULES, diagnose, harmless_signs, read_log
from grpo_lab.diagnose.rules import examine

STEPS = 32
RISING = {"reward": (0.2, 0.8), "frac_reward_zero_std": 0.1, "entropy": (1.0, 0.6), "completions/mean_length": 20.0}


def history(**metrics) -> list[dict]:
    """Make the rows of a log, in which a metric is constant, linear from one number to another, or given as a list."""
    columns = {}
    for name, value in (RISING | metrics).items():
        if isinstance(value, tuple):
            value = [value[0] + (value[1] - value[0]) * i / (STEPS - 1) for i in range(STEPS)]
        columns[name] = value if isinstance(value, list) else [value] * STEPS
    return [{"step": i + 1} | {name: values[i] for name, values in columns.items()} for i in range(STEPS)]


def only_at(step: int, value, usual=1.0) -> list:
    return [value if i + 1 == step else usual for i in range(STEPS)]


def waves(middle: float, size: float) -> list[float]:
    return [middle + size * (-1) ** i for i in range(STEPS)]


STILL = {"reward": waves(0.5, 0.02), "entropy": waves(1.0, 0.01), "learning_rate": 1e-7}
FLAT = {"reward": waves(0.5, 0.02)}
ITERATED = {"num_iterations": 2}
FP32 = {"precision": "fp32"}
SILENT = {"frac_reward_zero_std": 1.0}
# {fault: (metrics beyond the threshold, metrics within it)}, or with the settings of each as well.
THRESHOLD_CASES = {
    "nonfinite_steps": ({"loss": only_at(5, None)}, {"loss": only_at(5, 99.0)}),
    "environment_tokens_in_loss": ({"tools/frac_trained": only_at(9, 0.1, 0.0)}, {"tools/frac_trained": 0.0}),
    "completions_reencoded": (
        {"sampling/logp_difference_max": 6.0, "sampling/frac_logp_difference": 0.45},
        {"sampling/logp_difference_max": 6.0, "sampling/frac_logp_difference": 0.55},
    ),
    "train_inference_mismatch": (
        {"sampling/logp_difference_max": 0.7}, {"sampling/logp_difference_max": 0.5},
    ),
    "kl_not_zero_at_start": ({"kl": (0.01, 0.3)}, {"kl": (0.00005, 0.3)}),
    "kl_negative": ({"kl": only_at(9, -0.002, 0.1)}, {"kl": only_at(9, -0.0005, 0.1)}),
    "kl_flat": ({"kl": 0.001}, {"kl": (0.0, 0.05)}, {"beta": 0.05}),
    "advantages_not_centred": ({"loss": -0.9}, {"loss": [-0.9] * 16 + [-0.6] * 16}),
    "learning_rate_too_high": (
        {"reward": [0.5] * 16 + [0.3] * 16}, {"reward": [0.5] * 16 + [0.4] * 16},
    ),
    "kl_explosion": (FLAT | {"kl": (0.0, 0.7)}, FLAT | {"kl": (0.0, 0.5)}),
    "updates_rounded_away": (STILL, STILL | {"reward": (0.2, 0.8)}, {"precision": "bf16-naive"}),
    "learning_rate_too_low": (STILL, STILL | {"entropy": (1.0, 0.9)}),
    "gradient_spikes": ({"grad_norm": only_at(20, 21.0)}, {"grad_norm": only_at(20, 19.0)}),
    "clip_never": (
        {"clip_ratio/region_mean": 0.0, "ratio": 1.0},
        {"clip_ratio/region_mean": 0.0, "ratio": only_at(3, 1.001)},
        ITERATED,
    ),
    "clip_always": ({"clip_ratio/region_mean": 0.21}, {"clip_ratio/region_mean": 0.19}),
    "no_spread_all_wrong": (SILENT | {"reward": 0.0}, {"frac_reward_zero_std": 0.94, "reward": 0.0}),
    "no_spread_all_right": (SILENT | {"reward": 1.0}, SILENT | {"reward": (0.2, 1.0)}),
    "no_spread_equal": (SILENT | {"reward": 0.5}, {"frac_reward_zero_std": 0.94, "reward": 0.5}),
    "reward_component_flat": (
        {"rewards/right/mean": (0.2, 0.8), "rewards/format/mean": 0.0},
        {"rewards/right/mean": (0.2, 0.8), "rewards/format/mean": only_at(9, 0.1, 0.0)},
    ),
    "reward_component_falls": (
        {"rewards/right/mean": (0.8, 0.5), "rewards/short/mean": (0.2, 0.8)},
        {"rewards/right/mean": (0.8, 0.7), "rewards/short/mean": (0.2, 0.8)},
    ),
    "entropy_collapse": (FLAT | {"entropy": (1.0, 0.01)}, FLAT | {"entropy": (1.0, 0.2)}),
    "truncation": ({"completions/clipped_ratio": 0.6}, {"completions/clipped_ratio": 0.45}),
    "length_without_gain": (
        FLAT | {"completions/mean_length": (20.0, 40.0)}, FLAT | {"completions/mean_length": (20.0, 26.0)},
    ),
    "held_out_falls_behind": ({"eval/reward": (0.2, 0.4)}, {"eval/reward": (0.2, 0.75)}),
}  # fmt: skip


def named(*arguments) -> list[str]:
    return [finding.name for finding in diagnose(*arguments)]


@pytest.mark.parametrize("name", THRESHOLD_CASES)
def test_rule_fires_beyond_its_threshold_and_not_before(name):
    beyond, below, settings = (*THRESHOLD_CASES[name], {})[:3]
    assert name in named(history(**beyond), settings)
    assert name not in named(history(**below), settings)


def test_a_rule_that_lacks_a_metric_or_steps_of_it_says_which():
    nothing = read_log([{"step": 1, "num_tokens": 1.0}])
    findings, blind = examine(nothing)
    assert not findings and blind["kl_explosion"] == "kl"
    assert {rule.name for rule in RULES} - set(blind) == {"updates_rounded_away"}  # looks only at bf16 weights
    assert examine(read_log(history()[:7]))[1]["entropy_collapse"] == "entropy"


def test_finding_has_step_evidence_causes_and_remedies():
    assert [rule.name for rule in RULES] == list(THRESHOLD_CASES)
    (finding,) = diagnose(history(grad_norm=only_at(20, 1e3)))
    assert finding.step == 20 and "grad_norm is 1e+03 at step 20, 1 in the median step" in finding.evidence
    assert all(len(rule.causes) > 1 and len(rule.remedies) > 1 and rule.source for rule in RULES)
    falls = {"reward": [0.5] * 16 + [0.1] * 16}
    for metrics, step in [({"loss": only_at(5, None)}, 5), ({"kl": (0.01, 0.3)}, 1), (falls, 18)]:
        assert diagnose(history(**metrics))[0].step == step, "the first at which it shows"
    beginning = diagnose(history(**falls)[:18])[0], diagnose(history(**falls)[:17])
    assert beginning[0].step == 18 and not beginning[1]


def test_the_evidence_of_a_large_kl_or_low_entropy_does_not_contradict_the_reward():
    (explosion,) = diagnose(history(kl=(0.0, 20.0)))
    assert explosion.name == "kl_explosion" and "expected even if the reward rises): reward goes" in explosion.evidence
    assert "without gain: reward" in diagnose(history(**FLAT, kl=(0.0, 0.7)))[0].evidence
    (collapse,) = diagnose(history(entropy=[1.0] * 16 + [0.01] * 16))
    assert collapse.name == "entropy_collapse" and "before the task is solved: reward goes" in collapse.evidence


def test_a_gradient_is_compared_with_the_early_median_if_that_is_larger():
    norms = [5.0] * 8 + [0.1] * 23 + [500.0]
    (finding,) = diagnose(history(grad_norm=norms))
    assert finding.evidence == "grad_norm is 500 at step 32, 5 in the median step of the first quarter"


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "NaN"])
@pytest.mark.parametrize(
    "metric",
    [
        "kl",
        "entropy",
        "ratio",
        "reward",
        "sampling/logp_difference_max",
        "eval/kl",
        "eval/reward",
    ],
)
def test_a_metric_that_is_no_number_in_every_row_is_found(metric, value):
    findings = {finding.name: finding for finding in diagnose(history(**{metric: value}))}
    finding = findings["nonfinite_steps"]
    assert finding.step == 1 and finding.evidence == f"{metric} is NaN or infinite in all of {STEPS} steps"


def test_a_reward_function_that_applies_to_nothing_is_found():
    """Single steps without the reward are not a fault, since it may apply to few rows of the data."""
    (finding,) = diagnose(history(**{"rewards/mine/mean": None}))
    assert finding.name == "nonfinite_steps" and "rewards/mine/mean is NaN or infinite in all of 32" in finding.evidence
    assert not diagnose(history(**{"rewards/mine/mean": [None, None, 0.5, None] * 8}))


def test_a_metric_that_is_no_number_in_one_row_is_found_but_for_the_reward():
    (finding,) = diagnose(history(kl=only_at(9, None, 0.0)))
    assert (finding.name, finding.step) == ("nonfinite_steps", 9)
    assert "kl is NaN or infinite in 1 of 32" in finding.evidence
    assert not diagnose(history(reward=only_at(9, None, 0.5)))
    assert named(history(kl=[0.0] * 16 + [None] * 16)) == ["nonfinite_steps"]


def test_diagnose_finds_nothing_in_a_short_run():
    assert not diagnose(history(reward=(0.9, 0.0))[:7])
    wander = history(**FLAT | {"completions/mean_length": (20.0, 40.0)})
    assert not diagnose(wander[:23]) and named(wander) == ["length_without_gain"]
    assert not diagnose(history(**STILL | {"learning_rate": 5e-5})), "which entropy and length may yet show"
    warming_up, tiny = history(learning_rate=(1e-8, 1e-6))[:12], history(learning_rate=1e-9)[:12]
    assert not diagnose(warming_up) and named(tiny) == ["learning_rate_too_low"]


def test_settings_of_the_run_adjust_thresholds():
    apart = history(**{"sampling/logp_difference_max": 0.01})
    assert not diagnose(apart) and named(apart, FP32) == ["train_inference_mismatch"]
    overflows = [row | {"nonfinite_steps": min(row["step"], 3)} for row in history()]
    assert named(overflows) == ["nonfinite_steps"] and not diagnose(overflows, {"precision": "fp16"})
    one_update = history(**{"clip_ratio/region_mean": 0.0, "ratio": 1.0})
    assert not diagnose(one_update, {"num_iterations": 1}) and not diagnose(one_update)
    parts = {"num_iterations": 1, "generation_batch_size": 64, "per_device_train_batch_size": 16}
    assert named(one_update, parts) == ["clip_never"]
    measured = history(**{"rewards/right/mean": (0.2, 0.8), "rewards/thinks/mean": 0.0})
    assert named(measured) == ["reward_component_flat"] and not diagnose(measured, {"reward_weights": [1.0, 0.0]})
    assert not diagnose(history(**{"clip_ratio/region_mean": 0.3}), {"importance_sampling_level": "sequence"})
    wide = history(**{"clip_ratio/region_mean": 0.0, "ratio": waves(1.0, 0.05)})
    assert named(wide, ITERATED) == ["clip_never"] and not diagnose(wide)


def test_a_loss_of_zero_is_a_harmless_sign_and_no_finding():
    """The log of trl issue 2703 has a loss of 0 and a gradient that is not 0."""
    rows = history(loss=0.0, grad_norm=0.4)
    (note,) = harmless_signs(read_log(rows))
    assert note.startswith("loss is 0 in the median step, which is not a fault") and not diagnose(rows)
    assert not harmless_signs(read_log(history(loss=0.2, grad_norm=0.4)))
    unclipped = read_log(history(**{"clip_ratio/region_mean": 0.0}), {"num_iterations": 1})
    assert "with one update" in harmless_signs(unclipped)[0]
