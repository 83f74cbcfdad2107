"""Make a call of each function with equations: tensors with a different size for each axis, and the arguments below."""

import inspect
import math
import typing

import torch
from torch import Tensor

from grpo_lab.objective import LOSS_TYPES
from grpo_lab.toys.guess import GuessPolicy, GuessWorld
from tests.support.planned_steps import config_of_sizes, plan_step

POLICY = GuessPolicy(GuessWorld(3, 2))
SIZES = (3, 5, 7, 11, 13, 17)
ANSWERS, COMPLETIONS = {"answer": ["1", "1"]}, {"completions": ["<answer>1</answer>"] * 2}
# Arguments of a call beside generated tensors and defaults. A function has several calls if one misses some lines.
CALLS = {
    "aggregate": [{"loss_type": name, "max_completion_length": 9} for name in LOSS_TYPES],
    "policy_loss": [{"beta": 0.1}],
    "microbatch_loss": [{"num_rows": 20, "num_items": 40}],
    "token_weights": [{"loss_type": "grpo"}],
    **{name: [{"advantages": torch.ones(3, 5)}] for name in ("sapo_surrogate", "vespo_surrogate")},
    "importance_ratio": [{"level": "token"}, {"level": "sequence"}],
    "importance_weights": [{"level": "token"}, {"level": "sequence"}],
    "truncate_weights": [{"mode": "truncate"}, {"mode": "mask"}],
    "straggler_bubble": [{"lengths": torch.tensor([4, 1, 3])}],
    "completion_staleness": [{"lengths": torch.arange(3) + 1}],
    "decoding_seconds": [{"lengths": torch.arange(15).view(3, 5) + 3, "cache_bytes": 9.0}],
    "kl_estimate": [{"estimator": "k3+"}],
    "enumerated_moments": [{"estimator": "k2"}],
    "penalty": [{"kind": "r*k3"}, {"kind": "k1 in reward"}],
    "expected_penalty": [{"kind": "k2"}],
    "sampled_penalty": [{"kind": "k2", "num_samples": 4}],
    "completion_mask": [{"eos_token_id": 9}],
    "surrogate_loss": [{"loss": name} for name in ("naive", "unclipped", "clipped")],
    "first_step_movement": [{"policy": torch.nn.Linear(2, 1)}],
    "realised_share": [{"learning_rate": 1e-3, "steps": 2, "precision": "fp32"}],
    "pass_at_k": [{"n": 5, "c": 2, "k": 2}],
    "adam_8bit_bytes": [{"size": 2**20}],
    "optimizer_snapshots": [{"sizes": plan_step("small", mode, config_of_sizes()).sizes} for mode in ("fp32", "bf16")],
    "format_reward": [COMPLETIONS],
    **{f"{kind}_reward": [COMPLETIONS | ANSWERS] for kind in ("accuracy", "contains", "graded", "math", "number")},
    "gigpo_advantages": [{"scale": "group"}],
    "win_probability": [{"policy": POLICY}],
    "leave_one_out_variance": [{"policy": POLICY}],
    "entropy_bonus": [{"max_length": 9}],
    "score_completions": [
        {"reward_funcs": lambda completions, **_: [1.0, 2.0], "prompts": ["", ""], **COMPLETIONS}
        | {"completion_ids": [[1], [1]], "columns": {}}
    ],
}  # fmt: skip


def made_up_arguments(function, axes: dict[str, int]) -> dict:
    """Return arguments for a call: small numbers, and tensors with a different size for each annotated axis."""
    arguments = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        kind = (typing.get_args(parameter.annotation) or (parameter.annotation,))[0]
        if hasattr(kind, "dim_str"):
            arguments[name] = tensor_of(kind, axes)
        elif parameter.default is parameter.empty and kind in (int, float):
            arguments[name] = {int: 2, float: 0.5}[kind]
        elif getattr(kind, "__name__", "") == "ModelShape":
            arguments[name] = kind((2**20,), 2**20, 2, 8, 4, 2, 16, 2, 32, True)
    return arguments


def tensor_of(annotation, axes: dict[str, int]) -> Tensor:
    names = [name.lstrip("#*") for name in annotation.dim_str.split()]
    shape = [axes.setdefault(name, SIZES[len(axes)]) for name in names]
    if any("bool" in dtype for dtype in annotation.dtypes):
        return torch.ones(shape, dtype=torch.bool)
    if all("int" in dtype for dtype in annotation.dtypes):
        return torch.zeros(shape, dtype=torch.long)
    return torch.linspace(0.1, 0.9, math.prod(shape)).reshape(shape)
