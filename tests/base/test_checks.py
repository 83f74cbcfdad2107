"""Tests that every function of the mathematics names a tensor with wrong axes, sizes or dtype in its error."""

import pkgutil
import re

import pytest
import torch

from grpo_lab.advantages import best_of_group, group_advantages
from grpo_lab.base.checks import InputError, InputFileError, combine_errors
from grpo_lab.kl import kl_in_reward
from grpo_lab.logprobs import completion_mask, token_logprobs
from grpo_lab.objective import clipped_surrogate, policy_loss
from tests.support.equations import formula_map
from tests.support.formula_calls import CALLS, made_up_arguments
from tests.support.layout import MATHEMATICS

TOY_FUNCTIONS = ("response_logprobs", "surrogate_loss", "kl_penalty", "repaired_reward")  # these are also exercises
NAMES = sorted({e.function for e in formula_map().values()})
BY_TORCH = "^where expected condition to be a boolean|^gather.*Expected dtype int"  # errors that torch itself raises
CHECKED_FUNCTIONS = [name for name in NAMES if name.split(".")[1] in MATHEMATICS or name.endswith(TOY_FUNCTIONS)]


@pytest.mark.parametrize("name", CHECKED_FUNCTIONS)
def test_tensor_arguments_of_wrong_shape_or_type_are_named(name, no_checker):
    function = pkgutil.resolve_name(name)
    arguments = made_up_arguments(function, {}) | CALLS.get(function.__name__, [{}])[0]
    tensors = {p: value for p, value in arguments.items() if isinstance(value, torch.Tensor) and p != "num_items"}
    for index, (argument, value) in enumerate(tensors.items()):
        faults = {"has shape .*; expected ": value[None], "is a list; expected a tensor ": value.tolist()}
        if value.dtype != torch.float32:
            faults[rf"is torch.float32; expected|{BY_TORCH}"] = value.float()
        for message, wrong in faults.items():
            with pytest.raises((ValueError, RuntimeError), match=f"^{argument} {message}"):
                function(**arguments | {argument: wrong})
        if index:  # sizes are compared with those of the first tensor
            with pytest.raises(ValueError, match=f"^({'|'.join(tensors)}) has shape .*; expected .* where "):
                function(**arguments | {argument: value[..., 1:]})


f, b, n = torch.zeros, lambda *shape: torch.ones(shape) > 0, lambda *shape: torch.zeros(shape, dtype=torch.long)
CALLS_AND_MESSAGES = [
    (token_logprobs, (f(1, 2, 3), n(1, 3)), "token_ids has shape (1, 3); expected (B, T), where B = 1 and T = 2"),
    (group_advantages, (f(2, 1),), "rewards has shape (2, 1); expected (P, G), where P = 2 and G > 1"),
    (best_of_group, (f(6),), "rewards has shape (6,); expected (P, G), where G > 0"),
    (kl_in_reward, (f(3), f(2, 3), f(2, 3), b(2, 3), 0.1), "rewards has shape (3,); expected (B,), where B = 2"),
    (clipped_surrogate, (f(2, 3), f(3)), "advantages has shape (3,); expected (B,) or (B, T), where B = 2"),
    (policy_loss, (f(2, 3), f(2), f(2, 3)), "mask is torch.float32; expected torch.bool"),
    (completion_mask, (f(1, 2), 1), "completion_ids is torch.float32; expected an integer dtype, such as torch.int64"),
    (completion_mask, (n(1, 2), None), "eos_token_id is None; expected an end token, or a list of them"),
]


def test_check_functions_name_arguments_shapes_and_allowed_values(no_checker):
    for function, arguments, message in CALLS_AND_MESSAGES:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            function(*arguments)


def test_combine_errors_lists_each_error():
    first, second = InputFileError("a", 1, "expected 2"), InputError("b", problem="is gone")
    assert combine_errors([first]) is first
    combined = combine_errors([first, second])
    assert (str(combined), type(combined), combined.argument) == (
        "a is 1; expected 2. And: b is gone",
        InputFileError,
        "a",
    )
    assert str(combine_errors([second, first])) == "b is gone; and: a is 1; expected 2"
    only_a_message, with_semicolon = (
        InputError("The file is cut."),
        InputError("c", None, "expected d", problem="has 'x; y'"),
    )
    assert str(combine_errors([only_a_message, first])) == "The file is cut.; and: a is 1; expected 2"
    assert str(combine_errors([with_semicolon, first])) == "c has 'x; y'; expected d. And: a is 1; expected 2"
    many = combine_errors([InputError(f"line {n}", n, "expected more") for n in range(100)], count=1234)
    assert str(many).startswith("line 0 is 0; expected more. And: line 1 is 1; expected more; line 2")
    assert str(many).endswith("line 4 is 4; expected more; and 1,229 more") and "line 5" not in str(many)
