"""Checks of arguments, with errors of one form: the argument, what it was, and what is expected."""

import sys
from collections.abc import Iterable
from typing import Any


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Raise ValueError unless the value is one of the choices."""
    if value not in (choices := tuple(choices)):
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(map(repr, choices))}")


def check_finite(name: str, value: Any) -> None:
    """Raise ValueError for infinity, NaN, and an integer that no float holds."""
    if not abs(value) <= sys.float_info.max:
        raise ValueError(f"{name} is {value}; expected a finite number")


def check_dtype(name: str, values: Any, kind: str) -> None:
    """Raise ValueError unless a tensor holds numbers of that kind: "float", "int" or "bool"."""
    if kind not in str(values.dtype):
        expected = {
            "float": "a floating-point dtype, such as torch.float32",
            "int": "an integer dtype, such as torch.int64",
        }
        raise ValueError(f"{name} is {values.dtype}; expected {expected.get(kind, f'torch.{kind}')}")


def check_all_finite(name: str, values: Any) -> None:
    """Raise ValueError unless all numbers of a tensor are finite."""
    if not values.isfinite().all():
        raise ValueError(f"{name} holds NaN or infinite values; all of them must be finite")


def check_positive(name: str, value: Any) -> None:
    """Raise ValueError unless the value is greater than 0; NaN is not."""
    if not value > 0:
        raise ValueError(f"{name} is {value}; it must be positive")


def check_at_least(name: str, value: Any, least: Any) -> None:
    """Raise ValueError unless the value is this or more; NaN is not."""
    if not value >= least:
        raise ValueError(f"{name} is {value}; it must be at least {least}")


def check_between(name: str, value: Any, low: Any, high: Any) -> None:
    """Raise ValueError unless the value lies in the closed interval; NaN does not."""
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; it must lie between {low} and {high}")


def check_clip_range(epsilon: float, epsilon_high: float | None, delta: float | None) -> None:
    """Raise ValueError for a clip range [1 - epsilon, 1 + epsilon_high], or a bound delta, that makes no sense."""
    high = epsilon if epsilon_high is None else epsilon_high
    check_between("epsilon", epsilon, 0, 1)
    check_at_least("epsilon_high", high, 0)
    if delta is not None and not delta > 1 + high:
        raise ValueError(f"delta is {delta}; it must be greater than 1 + epsilon_high = {1 + high}")


def check_sampling(temperature: float, top_k: int, top_p: float, repetition_penalty: float) -> None:
    """Raise ValueError for a setting of the sampler that shapes no distribution."""
    check_positive("temperature", temperature)
    check_at_least("top_k", top_k, 0)
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}; it must be positive and at most 1")
    check_positive("repetition_penalty", repetition_penalty)


def check_shapes(**arguments: tuple[Any, str]) -> None:
    """Raise TypeError for an argument that is no tensor, and ValueError for one without the axes that it should have.

    `check_shapes(logits=(logits, "B T V"), token_ids=(token_ids, "B T"))`: an axis has one size throughout, that of the
    first tensor with it. "B | B #T" is a choice; "#T" may also be 1; None stands for an argument that was not given.
    """
    sizes: dict[str, int] = {}
    for name, (tensor, forms) in arguments.items():
        if tensor is None:
            continue
        if not hasattr(tensor, "is_floating_point"):
            raise TypeError(
                f"{name} is a {type(tensor).__name__}; expected a tensor of shape {_expected(forms, sizes)}, "
                f"such as torch.tensor({name})"
            )
        axes = next((axes for form in forms.split("|") if len(axes := form.split()) == tensor.ndim), None)
        if axes is None or not all(map(_fits, axes, tensor.shape, [sizes] * tensor.ndim)):
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {_expected(forms, sizes)}")


def _fits(axis: str, size: int, sizes: dict[str, int]) -> bool:
    return (axis[0] == "#" and size == 1) or sizes.setdefault(axis.lstrip("#"), size) == size


def _expected(forms: str, sizes: dict[str, int]) -> str:
    """Such as `(B,) or (B, T), where B = 2 and T = 3`."""
    axes = [form.replace("#", "").split() for form in forms.split("|")]
    known = [f"{axis} = {sizes[axis]}" for axis in dict.fromkeys(a for form in axes for a in form) if axis in sizes]
    text = " or ".join(f"({', '.join(form)}{',' if len(form) == 1 else ''})" for form in axes)
    return text + (f", where {' and '.join(known)}" if known else "")
