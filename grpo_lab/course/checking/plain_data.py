"""Results as plain data, and when two of them are equal.

Only plain things leave a student's code: numbers, text, and tensors without history. An object of a class of its own,
which could claim to equal anything, becomes the name of its class.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MAX_DEPTH, MAX_NODES, MAX_BYTES, MAX_TEXT, MAX_KEY = 20, 10_000, 64 * 2**20, 20_000, 200
MAX_TEXTS = 2**20  # characters of all texts of one result
# Taken before any student's code runs: what it may put in their place later has no effect here.
_isclose, _detach, _clone, _cpu = torch.isclose, torch.Tensor.detach, torch.Tensor.clone, torch.Tensor.cpu


class TooLarge(ValueError):
    """A result that is too deep, has too many parts or too many bytes to be compared."""


@dataclass(frozen=True)
class Record:
    """The fields of a named tuple or a dataclass."""

    fields: dict[str, Any]


@dataclass(frozen=True)
class Other:
    """Stands for an object that is not compared: the name of its type."""

    kind: str


def tensors(tree: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples and dictionaries, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if fields := _fields(tree):
        tree = fields
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [leaf for part in parts for leaf in tensors(part)]


def plain(tree: Any) -> Any:
    """The same as plain data, apart from the original. Raises TooLarge."""
    budget = {"nodes": MAX_NODES, "bytes": MAX_BYTES, "texts": MAX_TEXTS}
    return _plain(tree, budget, 0)


def identical(a: Any, b: Any) -> bool:
    return same(a, b, 0.0)


def same(a: Any, b: Any, tolerance: float) -> bool:
    """Equal plain data: same structure, shapes and dtypes, numbers within the tolerance, NaN where NaN is."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and bool(close(a, b, tolerance).all())
    if isinstance(a, Record) and isinstance(b, Record):
        return same(a.fields, b.fields, tolerance)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key], tolerance) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if is_number(a) and is_number(b):
        return _same_numbers(a, b, tolerance)
    return type(a) is type(b) and a == b


def _same_numbers(a: int | float, b: int | float, tolerance: float) -> bool:
    """Whole numbers agree exactly, floats as in `close`."""
    if a == b or (a != a and b != b):
        return True
    if isinstance(a, int) and isinstance(b, int):
        return False
    try:
        size = abs(float(b))
        return abs(float(a) - float(b)) <= _absolute(tolerance, size) + tolerance * size < math.inf
    except OverflowError:
        return False


ROUNDING = 1e-4  # of a sum in float32
NOISE = 1e-11  # of a difference of two nearly equal numbers in float64


def close(a: Tensor, b: Tensor, tolerance: float) -> Tensor:
    """Where two tensors of one shape agree; `tolerance` is relative to each number of `b`, or to the largest of them if
    that is below 1. Integers agree exactly.

    In float32 sums in another order differ by more than in float64, so the tolerance is larger there, and absolute,
    unless it is 0.
    """
    if not a.is_floating_point():
        return a == b
    if tolerance and a.dtype == torch.float32:
        tolerance = absolute = max(tolerance, ROUNDING)
    else:
        finite = b.double().abs()[b.isfinite()]
        absolute = _absolute(tolerance, float(finite.max()) if finite.numel() else 1.0)
    return _isclose(a.double(), b.double(), rtol=tolerance, atol=absolute, equal_nan=True)


def _absolute(tolerance: float, size: float) -> float:
    """How far off a number may be that stands beside one of this size."""
    return min(tolerance, max(tolerance * size, NOISE))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(tree: Any, budget: dict[str, int], depth: int) -> Any:
    budget["nodes"] -= 1
    if depth > MAX_DEPTH or budget["nodes"] < 0:
        raise TooLarge(f"the result is nested deeper than {MAX_DEPTH} or has more than {MAX_NODES} parts")
    if isinstance(tree, Tensor):
        return _plain_tensor(tree, budget)
    if tree is None or type(tree) is bool:
        return tree
    if type(tree).__module__ == "numpy":
        return Other(f"numpy.{type(tree).__name__}")
    for kind in (int, float, str):
        if isinstance(tree, kind):
            return _counted(_plain_scalar(tree, kind), budget)
    if fields := _fields(tree):
        return Record({name: _plain(value, budget, depth + 1) for name, value in fields.items()})
    if isinstance(tree, dict):
        return {_counted(str(k)[:MAX_KEY], budget): _plain(v, budget, depth + 1) for k, v in list(tree.items())}
    if isinstance(tree, list | tuple):
        return [_plain(value, budget, depth + 1) for value in list(tree)]
    if isinstance(tree, torch.dtype | torch.device | torch.Size):
        return str(tree)
    return Other(type(tree).__name__)


def _counted(value: int | float | str, budget: dict[str, int]) -> int | float | str:
    budget["texts"] -= len(value) if isinstance(value, str) else 0
    if budget["texts"] < 0:
        raise TooLarge(f"the texts of the result have more than {MAX_TEXTS} characters")
    return value


def _plain_tensor(tensor: Tensor, budget: dict[str, int]) -> Tensor | Other:
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return Other(f"{type(tensor).__name__} ({tensor.layout})")
    if tensor.is_complex():
        return Other("a tensor of complex numbers")
    if tensor.device.type == "meta":
        return Other("tensor on the device 'meta', which holds no values")
    budget["bytes"] -= tensor.numel() * tensor.element_size()
    if budget["bytes"] < 0:
        raise TooLarge(f"the tensors of the result have more than {MAX_BYTES} bytes")
    return _clone(_cpu(_detach(tensor))).contiguous()


def _plain_scalar(value: int | float | str, kind: type) -> int | float | str:
    if kind is str:
        return str.__str__(value)[:MAX_TEXT]
    # Of a subclass only the number inside counts, and not what its methods claim.
    return kind.__add__(value, kind())


def _fields(tree: Any) -> dict[str, Any] | None:
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return dict(zip(tree._fields, tree, strict=True))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return {f.name: getattr(tree, f.name) for f in dataclasses.fields(tree)}
    return None
