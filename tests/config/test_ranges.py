"""The range of every setting, said a second time here: what lies in it is taken, what does not is refused by name."""

import math
import re
import sys

import pytest

from grpo_lab.config import SETTINGS, GRPOConfig, options
from grpo_lab.objective import LOSSES

INF = math.inf
ROOM = {"output_dir": "x", "eval_steps": 5, "beta": 0.1, "log_completions": True}  # what some others need
# name: what is allowed, as in mathematics
RANGES = {
    "seed": "[0, 4294967295]", "max_steps": "[0, inf)", "save_steps": "[0, inf)", "logging_steps": "[1, inf)",
    "eval_steps": "[1, inf)", "num_generations_eval": "[1, inf)",
    "max_completion_length": "[1, inf)",
    "temperature": "(0, inf)", "top_k": "[0, inf)", "top_p": "(0, 1]", "repetition_penalty": "(0, inf)",
    "epsilon": "[0, 1]", "epsilon_high": "[0, inf)", "delta": "(1.2, inf)", "beta": "[0, inf)",
    "entropy_coef": "(-inf, inf)", "ref_model_sync_steps": "[1, inf)", "learning_rate": "[0, inf)",
    "warmup_steps": "[0, inf)", "weight_decay": "[0, inf)", "adam_beta1": "[0, 1)", "adam_beta2": "[0, 1)",
    "save_total_limit": "[1, inf)", "max_grad_norm": "(0, inf]", "num_iterations": "[1, inf)",
    "max_nonfinite_steps": "[1, inf)",
    "sapo_temperature_pos": "(0, inf)", "sapo_temperature_neg": "(0, inf)", "vespo_k_pos": "[0, inf)",
    "vespo_k_neg": "[0, inf)", "vespo_lambda_pos": "[1e-4, inf)", "vespo_lambda_neg": "[1e-4, inf)",
}  # fmt: skip
BOUND_TO_OTHERS = {
    "num_generations": "[2, inf)", "generation_batch_size": "[1, inf)", "per_device_train_batch_size": "[1, inf)",
    "gradient_accumulation_steps": "[1, inf)", "per_device_eval_batch_size": "[1, inf)",
}  # fmt: skip


def inside(value, interval):
    low, high = (float(bound) for bound in interval[1:-1].split(", "))
    above = value >= low if interval[0] == "[" else value > low
    below = value <= high if interval[-1] == "]" else value < high
    return above and below and (interval.endswith("inf]") or abs(value) <= sys.float_info.max)


def kind(name):
    return next(kind for kind in options(SETTINGS[name].type) if kind in (int, float))


def test_every_number_has_a_range():
    numbers = {name for name, field in SETTINGS.items() if {int, float} & set(options(field.type))}
    assert numbers == RANGES.keys() | BOUND_TO_OTHERS.keys()


ALL = RANGES | BOUND_TO_OTHERS
WHOLE = [0, 1, -1, 2, 2**32 - 1, 2**32, 2**63, 10**400]
EDGES = [-0.0, 0.999, 1.001, 1.2, 1e-320, 1e308, math.nan, INF, -INF, *map(float, WHOLE[:-1])]


@pytest.mark.parametrize("name", ALL)
def test_what_is_in_the_range_is_taken_and_all_else_refused_by_name(name):
    loss_type = next((loss_type for loss_type, loss in LOSSES.items() if name in loss.reads), "dapo")
    for value in WHOLE if kind(name) is int else EDGES:
        settings = ROOM | {"loss_type": loss_type, name: value}
        if inside(value, ALL[name]):
            assert name in BOUND_TO_OTHERS or getattr(GRPOConfig(**settings), name) == value
        else:
            with pytest.raises(ValueError, match=rf"{name} is {re.escape(str(value))}; (it must |.*finite)"):
                GRPOConfig(**settings)


REFUSED = [
    *[("output_dir", name) for name in ("", "  ", __file__)],
    *[(name, "other") for name, field in SETTINGS.items() if isinstance(field.metadata["allowed"], tuple)],
    ("generation_batch_size", 250),
    ("per_device_train_batch_size", 96),
    ("per_device_eval_batch_size", 24),
    ("gradient_accumulation_steps", 512),
]
TOGETHER = [
    ("output_dir", {"resume_from_checkpoint": True}),
    ("ref_model_sync_steps", {"ref_model_sync_steps": 2, "log_kl": True}),
    ("per_device_eval_batch_size", {"per_device_eval_batch_size": 16, "num_generations_eval": 3}),
    ("delta", {"delta": 1.3, "epsilon_high": 0.3}),
    ("delta", {"delta": 1.0, "loss_type": "cispo", "epsilon_high": 5.0}),
    ("epsilon_high", {"loss_type": "cispo"}),
    ("num_generations", {"num_generations": 1}),
]


def test_a_wrong_value_is_named_with_what_is_allowed():
    for name, settings in [(name, {name: value}) for name, value in REFUSED] + TOGETHER:
        with pytest.raises(ValueError) as caught:
            GRPOConfig(**settings)
        message = str(caught.value)
        assert name in message and any(words in message for words in ("; expected ", "; it must ")), settings
