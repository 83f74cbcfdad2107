"""The first thing in which an outcome differs from the expected one, and what can be said about it."""

import inspect
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grpo_lab.course.checking.compare import no_gradient, same_gradient
from grpo_lab.course.checking.outcome import AFTERWARDS, Outcome, inputs
from grpo_lab.course.checking.plain_data import Other, Record, is_number, plain, same
from grpo_lab.course.checking.relations import of_one_number, relations
from grpo_lab.course.exercise import Exercise


@dataclass(frozen=True)
class Difference:
    """what: "the result", "the gradient of logp" ...; fault: "kind", "shape", "dtype", "inplace", "detached" or "".

    relations: all that connects the numbers; the finding says the first. in_common: what would be worth saying only
    if it held for several inputs.
    """

    what: str
    got: Any
    expected: Any
    finding: str
    fault: str = ""
    relations: tuple[str, ...] = ()
    in_common: tuple[str, ...] = ()


def difference(
    got: Outcome, expected: Outcome, exercise: Exercise, index: int, seed: int, changing: frozenset[str] = frozenset()
) -> Difference | None:
    """What differs, in the order in which a student should mend it; None if nothing does.

    changing: arguments that it is the function's task to change, with some inputs.
    """
    if got.error or expected.error:
        return _of_errors(got, expected)
    view = _View(_masks(exercise, index, seed), exercise.tolerance, may_be_none(exercise))
    pairs = [("the result", got.value, expected.value)] if exercise.observe is None else []
    pairs += [(name, (got.observed or {}).get(name), value) for name, value in (expected.observed or {}).items()]
    found = [_of_values(what, g, e, view) for what, g, e in pairs]
    formal = [d for d in found if d and d.fault]
    inplace = _of_changes(got, expected, view, changing)
    ordered = [*formal, *inplace, *found, *_of_gradients(got, expected, exercise, view)]
    return next((d for d in ordered if d), None)


@dataclass(frozen=True)
class _View:
    """How results are compared. none: whether the function may return None, or a list with None in it."""

    masks: dict[str, Tensor]
    tolerance: float
    none: bool


def may_be_none(exercise: Exercise) -> bool:
    return "None" in str(inspect.signature(exercise.function).return_annotation)


def _of_errors(got: Outcome, expected: Outcome) -> Difference | None:
    if got.error == expected.error:
        return None
    if not got.error:
        text = f"A {expected.error} is expected for this input; your function returned something."
        return Difference("the result", got.observed or got.value, Other(f"{expected.error}: {expected.message}"), text)
    text = f"It raises {got.error}: {got.message}" if got.message else f"It raises {got.error}."
    if got.message.startswith(AFTERWARDS):
        text = f"It comes to an end, but {got.message}"
        if "inplace operation" in got.message:
            text += "\nSomething that the gradient needs was changed in place."
    elif got.error == "ValueError" and not expected.error:
        text += "\nThis input is allowed."
    if got.error == "NotImplementedError":
        text = "For this input it is not written yet: it raises NotImplementedError."
    if got.error == "RecursionError":
        text = "It calls itself too often (RecursionError). Where work is marked, the library's function of this "
        text += "name is yours, too: whoever calls that one from here calls itself."
    fault = "device" if "CUDA" in got.message or "cuda" in got.message else "error"
    if fault == "device":
        text += "\nThe device is not yours to choose: make new tensors on the device of the arguments."
    right = Other(f"{expected.error}: {expected.message}") if expected.error else expected.value
    return Difference("the result", Other(got.error), right, text, fault)


def _of_values(what: str, got: Any, expected: Any, view: _View) -> Difference | None:
    if same(got, expected, view.tolerance):
        return None
    if isinstance(got, Tensor) and isinstance(expected, Tensor):
        return _of_tensors(what, got, expected, view)
    if is_number(got) and is_number(expected):
        numbers = (torch.tensor(float(x), dtype=torch.float64) for x in (got, expected))
        return _numbers(what, got, expected, *numbers, replace(view, masks={}))
    parts = _parts(got), _parts(expected)
    if type(got) is type(expected) and None not in parts:
        return _of_parts(what, *parts, view) or Difference(what, got, expected, "")
    if _name(got) == _name(expected):
        return Difference(what, got, expected, "")
    text = f"{_capital(what)} is {_name(got)}; {_name(expected)} is expected."
    if view.none and (got is None or (expected is None and isinstance(got, str | float))):
        return Difference(what, got, expected, text)
    if got is None:
        text += " If you did not mean to return None: does every way through the function end in a return?"
    return Difference(what, got, expected, text, "kind")


def _of_parts(what: str, got: dict, expected: dict, view: _View) -> Difference | None:
    if list(got) != list(expected) and set(got) != set(expected):
        missing, extra = [[k for k in a if k not in b] for a, b in ((expected, got), (got, expected))]
        words = [
            f"{_some(some)} {'is' if len(some) == 1 else 'are'} {word}"
            for some, word in ((missing, "missing"), (extra, "too much"))
            if some
        ]
        return Difference(what, list(got), list(expected), f"In {what}, {' and '.join(words)}.", "kind")
    inside = what.removeprefix("the ")
    found = [_of_values(f"{inside}[{key!r}]", got[key], expected[key], view) for key in expected]
    return next((d for d in found if d and d.fault), next((d for d in found if d), None))


def _of_tensors(what: str, got: Tensor, expected: Tensor, view: _View) -> Difference:
    if got.shape != expected.shape:
        text = f"{_capital(what)} has shape {tuple(got.shape)}; {tuple(expected.shape)} is expected."
        return Difference(what, got, expected, text + _about_shapes(got, expected), "shape")
    if got.dtype != expected.dtype:
        text = f"{_capital(what)} has dtype {_dtype(got)}; {_dtype(expected)} is expected."
        if got.is_floating_point() and expected.is_floating_point():
            text += " The docstring, or the dtype of the arguments, says which the result has to have."
        return Difference(what, got, expected, text, "dtype")
    return _numbers(what, got, expected, got, expected, view)


def _numbers(what: str, got: Any, expected: Any, a: Tensor, b: Tensor, view: _View) -> Difference:
    found = relations(a, b, view.masks, view.tolerance)
    return Difference(what, got, expected, found[0] if found else "", "", found, (*found, *of_one_number(a, b)))


def _about_shapes(got: Tensor, expected: Tensor) -> str:
    small, large = sorted((got.shape, expected.shape), key=len)
    if sorted(got.shape) == sorted(expected.shape) and len(got.shape) > 1:
        return " The axes stand in another order."
    if tuple(s for s in got.shape if s != 1) == tuple(s for s in expected.shape if s != 1):
        word = "too many" if got.ndim > expected.ndim else "missing"
        return f" An axis of size 1 is {word}: think of keepdim, or of unsqueeze."
    if not expected.ndim:
        return " A single number is expected: all axes have to be reduced."
    if not got.ndim:
        return " You reduced all axes to one number."
    if len(large) - len(small) == 1 and any(large[:i] + large[i + 1 :] == small for i in range(len(large))):
        axis = next(i for i in range(len(large)) if large[:i] + large[i + 1 :] == small)
        return f" Axis {axis} is {'still there' if got.ndim > expected.ndim else 'gone'}."
    return ""


def _of_changes(got: Outcome, expected: Outcome, view: _View, changing: frozenset[str]) -> list[Difference | None]:
    """Arguments changed in place that should stay as they are; then those that should be changed, and how."""
    found = []
    for name in [name for name in got.changed if name not in expected.changed]:
        if name in changing:
            text = f"With this input, the argument {name} has to stay unchanged, and your function changes it."
            found.append(Difference(f"{name} after the call", got.changed[name], Other("unchanged"), text))
            continue
        text = f"Your function changes its argument {name} in place; the caller still needs it as it was."
        if isinstance(got.changed[name], Tensor):
            text += " Operations that end in _ and += on a tensor do that: x = x + y makes a new tensor."
        found.append(Difference(f"{name} after the call", got.changed[name], Other("unchanged"), text, "inplace"))
    for name, now in expected.changed.items():
        what = f"{name} after the call"
        if name not in got.changed:
            text = f"Your function leaves its argument {name} unchanged, where it has to be changed in place."
            found.append(Difference(what, None, now, text))
        else:
            found.append(_of_values(what, got.changed[name], now, view))
    return found


def _of_gradients(got: Outcome, expected: Outcome, exercise: Exercise, view: _View) -> list[Difference]:
    if exercise.gradient_of and expected.attached and not got.attached:
        text = (
            "The value is right, but it carries no gradient. Something on the way cuts it off: detach, item, tolist, "
            "numpy, no_grad, or a new tensor made from numbers."
        )
        name = next((n for n in exercise.gradient_of if expected.gradients.get(n) is not None), exercise.gradient_of[0])
        none = Other("no gradient")
        return [Difference(f"the gradient of {name}", none, expected.gradients.get(name), text, "detached")]
    found = []
    for name in exercise.gradient_of:
        mine, right = got.gradients.get(name), expected.gradients.get(name)
        if not same_gradient(mine, right, exercise.tolerance):
            text = _about_gradient(name, mine, right, view)
            shown = (Other("no gradient") if g is None else g for g in (mine, right))
            found.append(Difference(f"the gradient of {name}", *shown, text))
    return found


def _about_gradient(name: str, got: Any, expected: Any, view: _View) -> str:
    start = "The value is right, but the gradient is not. "
    if no_gradient(expected):
        if _not_a_number(got):
            return f"{start}NaN arrives at {name}."
        if expected is None:
            return f"{start}A gradient flows into {name}, where it should be stopped."
        return f"{start}A gradient arrives at {name}, where it is zero with this input."
    if no_gradient(got):
        return f"{start}No gradient arrives at {name}: it is zero everywhere."
    if isinstance(got, Tensor) and isinstance(expected, Tensor) and got.shape == expected.shape:
        found = relations(got, expected, view.masks, view.tolerance)
        return f"{start}That of {name}: {found[0]}" if found else start.strip()
    return start.strip()


def _not_a_number(gradient: Any) -> bool:
    parts = gradient if isinstance(gradient, list) else [gradient]
    return any(isinstance(part, Tensor) and bool(part.isnan().any()) for part in parts)


def _masks(exercise: Exercise, index: int, seed: int) -> dict[str, Tensor]:
    """The arguments that are masks."""
    bound, _ = inputs(exercise, index, seed)
    return {k: plain(v) for k, v in bound.arguments.items() if isinstance(v, Tensor) and v.dtype == torch.bool}


def _some(names: list) -> str:
    return ", ".join(map(str, names[:6])) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _parts(value: Any) -> dict | None:
    if isinstance(value, Record):
        return value.fields
    if isinstance(value, list):
        return dict(enumerate(value))
    return value if isinstance(value, dict) else None


def _name(value: Any) -> str:
    if isinstance(value, Tensor):
        return "a tensor"
    if isinstance(value, Record):
        return f"a record of {', '.join(value.fields)}"
    if isinstance(value, Other):
        return value.kind
    words = {bool: "True or False", int: "a number", float: "a number", str: "a text", list: "a list or tuple"}
    return "None" if value is None else words.get(type(value), "a dictionary")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
