"""The user's own loss or advantage: a function that is loaded by name and becomes an entry of `LOSSES` or `ADVANTAGES`.

The names of the function's arguments are the tensors and settings that it reads. The name under which it was loaded,
such as "my_loss.py:clip", is the value of the setting `loss_type` or `advantage`. So settings, checks and resuming
treat it like an entry of the package.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grpo_lab.advantages import ADVANTAGES, AdvantageEstimator, AdvantageSettings, RewardBatch
from grpo_lab.base.checks import InputTypeError, RunError
from grpo_lab.base.user_code import check_function, import_user_object, location_in_user_code
from grpo_lab.config.settings import SETTINGS
from grpo_lab.objective import LOSSES, Loss, LossSettings
from grpo_lab.objective.losses import LossBatch
from grpo_lab.objective.surrogates import per_token

# For each setting that can name a function of the user, the table to which the function is added.
FORMULA_TABLES: dict[str, dict[str, Any]] = {"loss_type": LOSSES, "advantage": ADVANTAGES}
LOSS_INPUTS = ("logp", "old_logp", "ratio", "advantages", "mask")  # tensors that a user's loss may read


def is_user_formula(name: Any) -> bool:
    """Return True for a name such as "my_loss.py:clip", which refers to a function of the user."""
    return isinstance(name, str) and ":" in name


def register_user_formula(setting: str, name: str) -> None:
    """Load the user's own loss or advantage and add it to its table under this name.

    A loss is a function of some of `LOSS_INPUTS` and of settings of the losses, such as epsilon. Each input has the
    shape (B, T), except that the ratio is (B, 1) at sequence level and the advantages are (B, 1) unless each turn has
    its own. The function returns the contribution of each token to the loss, (B, T) or (B, 1), which is minimised. The
    loss is the mean over all tokens of an update, as for "dapo". To choose another mean, the
    user writes a `Loss`, an entry of the table itself.

    An advantage is a function of `rewards` (P, G), which are finite, and of settings of the run. It returns advantages
    (P, G). If no reward applies to some completions, the function is called for each group alone, with the rewards that
    apply, and not for a group of several completions with fewer than two rewards (`AdvantageEstimator.compute`).

    Args:
        setting: "loss_type" or "advantage".
        name: FILE:function or module:function, such as "my_loss.py:clip".

    Raises:
        InputError: if the file, the function or its arguments are invalid.
    """
    if setting == "loss_type":
        LOSSES[name] = _loss_entry(name, import_user_object(setting, name, "my_loss:mine"))
    else:
        ADVANTAGES[name] = _advantage_entry(name, import_user_object(setting, name, "my_advantage:mine"))


def _loss_entry(name: str, value: Any) -> Loss:
    """Return the entry of `LOSSES` for the user's function, or for an entry that the user wrote."""
    if isinstance(value, Loss):
        surrogate = _with_user_function(partial(_surrogate_of_entry, name, value.surrogate), value.surrogate)
        return replace(value, surrogate=surrogate)
    check_function("loss_type", name, value)
    readable = (*LOSS_INPUTS, *LossSettings.__dataclass_fields__)
    argument_names = _argument_names("loss_type", name, value, readable, ("logp", "ratio"))
    settings_read = tuple(argument for argument in argument_names if argument not in LOSS_INPUTS)
    reads = (*settings_read, *(["importance_sampling_level"] if "ratio" in argument_names else []))
    surrogate = _with_user_function(partial(_surrogate_of_function, name, value, argument_names), value)
    return Loss(surrogate, "update_tokens", reads)


def _advantage_entry(name: str, value: Any) -> AdvantageEstimator:
    """Return the entry of `ADVANTAGES` for the user's function."""
    check_function("advantage", name, value)
    argument_names = _argument_names("advantage", name, value, ("rewards", *SETTINGS), ("rewards",))
    settings_read = tuple(argument for argument in argument_names if argument != "rewards")
    formula = _with_user_function(partial(_advantages_of_function, name, value, settings_read), value)
    return AdvantageEstimator(formula, settings_read, min_group_size=1)


def user_function(setting: str, name: str) -> Callable | None:
    """Return the user's function that was registered under this name; None for an entry of the package."""
    entry = FORMULA_TABLES[setting][name]
    function = entry.surrogate if setting == "loss_type" else entry.formula
    function = getattr(function, "user_function", function)
    module = getattr(function, "__module__", None) or ""
    return None if module.startswith("grpo_lab.") else function


def _argument_names(
    setting: str, name: str, function: Callable, readable: Iterable[str], needed: tuple[str, ...]
) -> list[str]:
    """Return the names of the function's arguments that are among `readable`.

    An argument with another name keeps its default.

    Args:
        setting: "loss_type" or "advantage", for the error message.
        name: Name of the function, for the error message.
        function: The user's function.
        readable: Names of the tensors and settings that the function may read.
        needed: Names of which the function has to read at least one.

    Raises:
        InputTypeError: if an argument with another name has no default, or if the function takes none of `needed`.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise InputTypeError(
            setting, name, "expected a function of Python", problem=f"has {name!r}: {error}"
        ) from error
    expected = f"expected some of {', '.join(readable)}"
    keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if unsupported := [
        str(p) for p in parameters if p.kind not in keyword or (p.default is p.empty and p.name not in readable)
    ]:
        problem = f"has {name!r}, which takes {', '.join(unsupported)}"
        raise InputTypeError(setting, name, expected, problem=problem)
    names = [p.name for p in parameters if p.name in readable]
    if not {*needed} & {*names}:
        problem = f"has {name!r}, which takes {', '.join(names) or 'nothing'}"
        raise InputTypeError(setting, name, f"{expected}, and {' or '.join(needed)} among them", problem=problem)
    return names


def _with_user_function(checked: partial, function: Callable) -> partial:
    """Store the user's function as an attribute of the function that calls and checks it, for `user_function`."""
    checked.user_function = function  # type: ignore[attr-defined]
    return checked


def _surrogate_of_function(
    name: str, function: Callable, argument_names: list[str], batch: LossBatch, settings: LossSettings
) -> Tensor:
    """Return the contribution of each token to the objective: minus the loss that the user's function returns."""
    inputs = batch._asdict() | asdict(settings)
    inputs["advantages"] = per_token(batch.advantages)  # (B, 1), so that products with (B, T) are right
    arguments = {argument: inputs[argument] for argument in argument_names}
    return -_checked_loss(name, _call("loss", name, function, **arguments), batch)


def _surrogate_of_entry(name: str, function: Callable, batch: LossBatch, settings: LossSettings) -> Tensor:
    return _checked_loss(name, _call("loss", name, function, batch, settings), batch)


def _checked_loss(name: str, values: Any, batch: LossBatch) -> Tensor:
    rows, tokens = batch.mask.shape
    if getattr(values, "shape", None) not in ((rows, tokens), (rows, 1)):
        _raise_wrong_shape("loss", name, values, f"expected a tensor of shape ({rows}, {tokens}), one number per token")
    if batch.logp.requires_grad and torch.is_grad_enabled() and not values.requires_grad:
        problem = "returned a tensor without gradient; it must not detach logp or ratio"
        raise RunError(f"loss {name!r}", problem=problem)
    return values


def _advantages_of_function(
    name: str, function: Callable, settings_read: tuple[str, ...], batch: RewardBatch, settings: AdvantageSettings
) -> Tensor:
    values_read = {setting_name: getattr(settings, setting_name) for setting_name in settings_read}
    values = _call("advantage", name, function, rewards=batch.rewards, **values_read)
    if getattr(values, "shape", None) != batch.rewards.shape:
        expected = f"expected a tensor of shape {tuple(batch.rewards.shape)}, that of the rewards"
        _raise_wrong_shape("advantage", name, values, expected)
    if not values.isfinite().all():
        raise RunError(f"advantage {name!r}", problem="returned NaN or infinite values; expected finite ones")
    return values.detach().to(batch.rewards.dtype)


def _call(kind: str, formula: str, function: Callable, /, *arguments: Any, **named_arguments: Any) -> Any:
    """Call the user's function, and raise RunError with the place in the user's file if it fails.

    kind: "loss" or "advantage", for the error message.
    formula: The name under which the function was loaded, for the error message.
    """
    try:
        return function(*arguments, **named_arguments)
    except Exception as error:
        problem = f"failed{location_in_user_code(error)}: {type(error).__name__}: {error}"
        raise RunError(f"{kind} {formula!r}", problem=problem) from error


def _raise_wrong_shape(kind: str, name: str, values: Any, expected: str) -> None:
    shape = getattr(values, "shape", None)
    problem = f"returned {type(values).__name__}" if shape is None else f"returned shape {tuple(shape)}"
    raise RunError(f"{kind} {name!r}", values, expected, problem=problem)
