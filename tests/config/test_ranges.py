"""The range of every setting: a value inside is accepted, a value outside is refused with an error that names it."""

import math
import re
import sys

import pytest

from grpo_lab.base.option import union_members
from grpo_lab.config import SETTINGS, GRPOConfig
from grpo_lab.objective import LOSSES

INF = math.inf
# Settings without which some other settings are refused, since nothing would read them.
ENABLING_SETTINGS = {"output_dir": "x", "eval_steps": 5, "beta": 0.1, "log_completions": True}
NUMBERS = {name: spec for name, spec in SETTINGS.items() if {int, float} & set(union_members(spec.type))}
# The declared intervals, and two that are narrower because of the default of another setting.
INTERVALS = {name: str(spec.interval) for name, spec in NUMBERS.items()}
INTERVALS |= {"delta": "(1.2, inf)", "num_generations": "[2, inf)"}
# These also have to divide each other.
SIZES = {"num_generations", "generation_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps",
         "per_device_eval_batch_size"}  # fmt: skip


def is_inside(value, interval):
    low, high = (float(bound) for bound in interval[1:-1].split(", "))
    above = value >= low if interval[0] == "[" else value > low
    below = value <= high if interval[-1] == "]" else value < high
    return above and below and (interval.endswith("inf]") or abs(value) <= sys.float_info.max)


INTEGERS = [0, 1, -1, 2, 2**32 - 1, 2**32, 2**63, 10**400]
FLOATS = [-0.0, 0.999, 1.001, 1.2, 1e-320, 1e308, math.nan, INF, -INF, *map(float, INTEGERS[:-1])]


@pytest.mark.parametrize("name", INTERVALS)
def test_setting_accepts_its_range_and_refuses_other_values_by_name(name):
    loss_type = next((loss_type for loss_type, loss in LOSSES.items() if name in loss.reads), "dapo")
    for value in INTEGERS if int in union_members(NUMBERS[name].type) else FLOATS:
        settings = ENABLING_SETTINGS | {"loss_type": loss_type, name: value}
        if is_inside(value, INTERVALS[name]):
            assert name in SIZES or getattr(GRPOConfig(**settings), name) == value
        else:
            with pytest.raises(ValueError, match=rf"{name} is {re.escape(str(value))}; (it must |.*finite)"):
                GRPOConfig(**settings)


REFUSED = [
    *[("output_dir", name) for name in ("", "  ", __file__)],
    *[(name, "other") for name, spec in SETTINGS.items() if spec.choices],
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


def test_wrong_value_of_a_setting_is_named_with_its_range():
    for name, settings in [(name, {name: value}) for name, value in REFUSED] + TOGETHER:
        with pytest.raises(ValueError) as caught:
            GRPOConfig(**settings)
        message = str(caught.value)
        assert name in message and any(words in message for words in ("; expected ", "; it must ", "; leave it out")), (
            settings
        )
