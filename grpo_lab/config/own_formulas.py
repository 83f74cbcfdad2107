"""A loss or an advantage of one's own, by name: it becomes an entry of its table, beside those of the package.

The function says by the names of its arguments what it reads, as those of the entries do. Its name is the value of the
setting (`loss_type`, `advantage`), so that settings, checks and resuming know it.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grpo_lab.advantages import ADVANTAGES, Advantage
from grpo_lab.base.checks import InputTypeError, RunError
from grpo_lab.base.own_code import check_function, load, location_in_own_code
from grpo_lab.config.settings import OUR_LOOP_ALONE, SETTINGS
from grpo_lab.objective import LOSSES, Loss, LossSettings
from grpo_lab.objective.surrogates import per_token
from grpo_lab.objective.table import RATIO_LEVEL, LossBatch

TABLES: dict[str, dict[str, Any]] = {"loss_type": LOSSES, "advantage": ADVANTAGES}
LOSS_INPUTS = ("logp", "old_logp", "ratio", "advantages", "mask")
NAMES = {"loss_type": "loss", "advantage": "advantage"}  # what it is, in words


def is_own(name: Any) -> bool:
    """True for a name such as "my_loss.py:clip", which stands for code."""
    return isinstance(name, str) and ":" in name


def register(setting: str, name: str) -> None:
    """Load FILE:function for "loss_type" or "advantage", and put it into the table under this name.

    A loss is a function of some of `LOSS_INPUTS`, each (B, T) but for the advantages (B, 1), and of the settings of the
    losses, such as epsilon. It returns what each token adds to the loss, (B, T) or (B, 1), which is to be minimised;
    their mean over all tokens of an update is the loss, as for "dapo". A `Loss`, an entry of the table itself, chooses
    another mean.

    An advantage is a function of `rewards` (P, G), finite, and of other settings; it returns advantages (P, G). It gets
    the groups with a reward that does not apply one by one, without that reward.

    Raises InputError for a file, a function or arguments that are not right.
    """
    value = load(setting, name, f"my_{NAMES[setting]}:mine")
    if setting == "loss_type" and isinstance(value, Loss):
        surrogate = _marked(partial(_surrogate_of_entry, name, value.surrogate), value.surrogate)
        LOSSES[name] = replace(value, surrogate=surrogate, trl=OUR_LOOP_ALONE)
        return
    check_function(setting, name, value)
    if setting == "loss_type":
        argument_names = _argument_names(
            setting, name, value, (*LOSS_INPUTS, *LossSettings.__dataclass_fields__), ("logp", "ratio")
        )
        settings_read = tuple(argument for argument in argument_names if argument not in LOSS_INPUTS)
        reads = (*settings_read, *([RATIO_LEVEL] if "ratio" in argument_names else []))
        surrogate = _marked(partial(_surrogate, name, value, argument_names), value)
        LOSSES[name] = Loss(surrogate, "update_tokens", reads, trl=OUR_LOOP_ALONE)
    else:
        argument_names = _argument_names(setting, name, value, ("rewards", *SETTINGS), ("rewards",))
        settings_read = tuple(argument for argument in argument_names if argument != "rewards")
        compute = _marked(partial(_advantages, name, value, settings_read), value)
        ADVANTAGES[name] = Advantage(compute, settings_read, smallest_group=1)


def own_function(setting: str, name: str) -> Callable | None:
    """The function of one's own that stands under this name in the table; None for an entry of this package."""
    entry = TABLES[setting][name]
    function = entry.surrogate if setting == "loss_type" else entry.compute
    function = getattr(function, "own_function", function)
    module = getattr(function, "__module__", None) or ""
    return None if module.startswith("grpo_lab.") else function


def _argument_names(
    setting: str, name: str, function: Callable, readable: Iterable[str], needed: tuple[str, ...]
) -> list[str]:
    """The arguments that the function reads; InputTypeError for others without a default, and for none that is needed.

    Those with a default and another name keep their default.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise InputTypeError(setting, name, "expected a function of Python", found=f"has {name!r}: {error}") from error
    expected = f"expected some of {', '.join(readable)}"
    keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if unsupported := [
        str(p) for p in parameters if p.kind not in keyword or (p.default is p.empty and p.name not in readable)
    ]:
        problem = f"has {name!r}, which takes {', '.join(unsupported)}"
        raise InputTypeError(setting, name, expected, found=problem)
    names = [p.name for p in parameters if p.name in readable]
    if not {*needed} & {*names}:
        problem = f"has {name!r}, which takes {', '.join(names) or 'nothing'}"
        raise InputTypeError(setting, name, f"{expected}, and {' or '.join(needed)} among them", found=problem)
    return names


def _marked(checked: partial, function: Callable) -> partial:
    """The checked function, which tells whose it is."""
    checked.own_function = function  # type: ignore[attr-defined]
    return checked


def _surrogate(
    name: str, function: Callable, argument_names: list[str], batch: LossBatch, settings: LossSettings
) -> Tensor:
    """Return the contribution of each token, to be maximised: the function's loss with the other sign."""
    inputs = batch._asdict() | asdict(settings)
    inputs["advantages"] = per_token(batch.advantages)  # (B, 1), which no product with (B, T) mistakes
    arguments = {argument: inputs[argument] for argument in argument_names}
    return -_checked_loss(name, _call("loss", name, function, arguments), batch)


def _surrogate_of_entry(name: str, function: Callable, batch: LossBatch, settings: LossSettings) -> Tensor:
    return _checked_loss(name, _call("loss", name, function, {"batch": batch, "settings": settings}), batch)


def _checked_loss(name: str, values: Any, batch: LossBatch) -> Tensor:
    rows, tokens = batch.mask.shape
    if getattr(values, "shape", None) not in ((rows, tokens), (rows, 1)):
        _refuse("loss", name, values, f"expected a tensor of shape ({rows}, {tokens}), one number per token")
    if batch.logp.requires_grad and torch.is_grad_enabled() and not values.requires_grad:
        problem = "returned a tensor without gradient; it must not detach logp or ratio"
        raise RunError(f"loss {name!r}", found=problem)
    return values


def _advantages(name: str, function: Callable, settings_read: tuple[str, ...], rewards: Tensor, config: Any) -> Tensor:
    settings = {setting_name: getattr(config, setting_name) for setting_name in settings_read}
    values = _call("advantage", name, function, {"rewards": rewards} | settings)
    if getattr(values, "shape", None) != rewards.shape:
        _refuse("advantage", name, values, f"expected a tensor of shape {tuple(rewards.shape)}, that of the rewards")
    if not values.isfinite().all():
        raise RunError(f"advantage {name!r}", found="returned NaN or infinite values; expected finite ones")
    return values.detach().to(rewards.dtype)


def _call(kind: str, name: str, function: Callable, inputs: dict[str, Any]) -> Any:
    try:
        return function(**inputs)
    except Exception as error:
        problem = f"failed{location_in_own_code(error)}: {type(error).__name__}: {error}"
        raise RunError(f"{kind} {name!r}", found=problem) from error


def _refuse(kind: str, name: str, values: Any, expected: str) -> None:
    shape = getattr(values, "shape", None)
    problem = f"returned {type(values).__name__}" if shape is None else f"returned shape {tuple(shape)}"
    raise RunError(f"{kind} {name!r}", values, expected, found=problem)
