"""The outcome of a function on an input, as plain data.

Only plain things leave a student's code: numbers, text, and tensors without history; a dataclass is its fields. An
object of another class, which could claim to equal anything, becomes the name of its class.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

MAX_DEPTH, MAX_NODES, MAX_BYTES, MAX_TEXT, MAX_KEY = 20, 10_000, 64 * 2**20, 20_000, 200
MAX_TEXTS = 2**20  # characters of all texts of one result


class TooLarge(ValueError):
    """A result that is too deep, has too many parts or too many bytes to be compared."""


@dataclass(frozen=True)
class Other:
    """A stand-in for an object that is not compared: the name of its type."""

    kind: str


@dataclass(frozen=True)
class Outcome:
    """One run on one case.

    value: the result; gradients: by argument; attached: whether the result carries a gradient; changed: the arguments
    that were changed in place, with what they are now; observed: what `Exercise.observe` returned.
    error, message, trace: the exception's type, its text, and the student's own frames; all "" without one.
    fault: what the guard had to stop: "endless", "exit", "signature", or "".
    printed: what it printed, in bounds.
    """

    value: Any = None
    gradients: dict[str, Any] = field(default_factory=dict)
    attached: bool = False
    changed: dict[str, Any] = field(default_factory=dict)
    observed: dict[str, Any] | None = None
    error: str = ""
    message: str = ""
    trace: str = ""
    fault: str = ""
    printed: str = ""


def tensors(tree: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples and dictionaries, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [leaf for part in parts for leaf in tensors(part)]


def plain(tree: Any) -> Any:
    """Copy a result as plain data, apart from the original. Raises TooLarge."""
    budget = {"nodes": MAX_NODES, "bytes": MAX_BYTES, "texts": MAX_TEXTS}
    return _plain(tree, budget, 0)


def _plain(tree: Any, budget: dict[str, int], depth: int) -> Any:
    budget["nodes"] -= 1
    if depth > MAX_DEPTH or budget["nodes"] < 0:
        raise TooLarge(f"the result is nested deeper than {MAX_DEPTH} or has more than {MAX_NODES} parts")
    if isinstance(tree, Tensor):
        return _plain_tensor(tree, budget)
    if tree is None or type(tree) is bool or isinstance(tree, Other):
        return tree
    if isinstance(tree, str):
        return _counted(str.__str__(tree)[:MAX_TEXT], budget)
    for kind in (int, float):
        if isinstance(tree, kind):  # of a subclass only the number inside counts, and not what its methods claim
            return kind.__add__(tree, kind())
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        tree = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    if isinstance(tree, dict):
        return {_counted(str(k)[:MAX_KEY], budget): _plain(v, budget, depth + 1) for k, v in list(tree.items())}
    if isinstance(tree, list | tuple):
        return [_plain(value, budget, depth + 1) for value in list(tree)]
    if isinstance(tree, torch.dtype | torch.device | torch.Size):
        return str(tree)
    return Other(type(tree).__name__)


def _counted(text: str, budget: dict[str, int]) -> str:
    budget["texts"] -= len(text)
    if budget["texts"] < 0:
        raise TooLarge(f"the texts of the result have more than {MAX_TEXTS} characters")
    return text


def _plain_tensor(tensor: Tensor, budget: dict[str, int]) -> Tensor | Other:
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return Other(f"{type(tensor).__name__} ({tensor.layout})")
    if tensor.is_complex() or tensor.device.type == "meta":
        return Other(f"tensor of {tensor.dtype} on the device {str(tensor.device)!r}")
    budget["bytes"] -= tensor.numel() * tensor.element_size()
    if budget["bytes"] < 0:
        raise TooLarge(f"the tensors of the result have more than {MAX_BYTES} bytes")
    return tensor.detach().cpu().clone().contiguous()
