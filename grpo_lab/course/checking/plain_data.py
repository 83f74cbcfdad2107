"""Results of a student's function as plain data, within limits.

Plain data are numbers, texts, detached tensors, and lists and dictionaries of them. A dataclass becomes the dictionary
of its fields. Any other object becomes the name of its class: a student's object could define `__eq__` and claim to
equal anything.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MAX_DEPTH = 20  # levels of nested lists and dictionaries in a result
MAX_NODES = 10_000  # parts of a result, at all levels
MAX_TENSOR_BYTES = 64 * 2**20  # limit of all tensors of a result together
MAX_TEXT_LENGTH = 20_000  # characters of one text; the rest is cut off
MAX_KEY_LENGTH = 200  # characters of a key of a dictionary; the rest is cut off
MAX_TOTAL_TEXT_LENGTH = 2**20  # characters of all texts of a result


class TooLarge(ValueError):
    """A result that is too deep, has too many parts or too many bytes to be compared."""


@dataclass(frozen=True)
class OtherObject:
    """A stand-in for an object that is not plain data; `kind` is the name of its class."""

    kind: str


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors in nested lists, tuples and dictionaries, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [tensor for part in tree.values() for tensor in tensors_in(part)]
    if isinstance(tree, list | tuple):
        return [tensor for part in tree for tensor in tensors_in(part)]
    return []


@dataclass
class _Budget:
    """The size that the parts of a result that are still to be read may have together.

    Attributes:
        nodes: Number of parts.
        tensor_bytes: Bytes of all tensors.
        text_length: Characters of all texts.
    """

    nodes: int
    tensor_bytes: int
    text_length: int


def as_plain_data(tree: Any) -> Any:
    """Return a result as plain data that shares no memory with the original.

    Raises:
        TooLarge: If the result exceeds one of the limits of this module.
    """
    return _plain(tree, _Budget(MAX_NODES, MAX_TENSOR_BYTES, MAX_TOTAL_TEXT_LENGTH), 0)


def _plain(tree: Any, budget: _Budget, depth: int) -> Any:
    budget.nodes -= 1
    if depth > MAX_DEPTH or budget.nodes < 0:
        raise TooLarge(f"the result is nested deeper than {MAX_DEPTH} or has more than {MAX_NODES} parts")
    if isinstance(tree, Tensor):
        return _plain_tensor(tree, budget)
    if tree is None or type(tree) is bool or isinstance(tree, OtherObject):
        return tree
    if isinstance(tree, str):
        return _charge_text(str.__str__(tree)[:MAX_TEXT_LENGTH], budget)
    if isinstance(tree, int):  # `int.__add__` reads the number inside and skips the methods of a subclass
        return int.__add__(tree, 0)
    if isinstance(tree, float):
        return float.__add__(tree, 0.0)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        tree = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    if isinstance(tree, dict):
        return {
            _charge_text(str(key)[:MAX_KEY_LENGTH], budget): _plain(value, budget, depth + 1)
            for key, value in list(tree.items())
        }
    if isinstance(tree, list | tuple):
        return [_plain(value, budget, depth + 1) for value in list(tree)]
    if isinstance(tree, torch.dtype | torch.device | torch.Size):
        return str(tree)
    return OtherObject(type(tree).__name__)


def _charge_text(text: str, budget: _Budget) -> str:
    """Return the text, and subtract its length from the budget."""
    budget.text_length -= len(text)
    if budget.text_length < 0:
        raise TooLarge(f"the texts of the result have more than {MAX_TOTAL_TEXT_LENGTH} characters")
    return text


def _plain_tensor(tensor: Tensor, budget: _Budget) -> Tensor | OtherObject:
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return OtherObject(f"{type(tensor).__name__} ({tensor.layout})")
    if tensor.is_complex() or tensor.device.type == "meta":
        return OtherObject(f"tensor of {tensor.dtype} on the device {str(tensor.device)!r}")
    budget.tensor_bytes -= tensor.numel() * tensor.element_size()
    if budget.tensor_bytes < 0:
        raise TooLarge(f"the tensors of the result have more than {MAX_TENSOR_BYTES} bytes")
    return tensor.detach().cpu().clone().contiguous()
