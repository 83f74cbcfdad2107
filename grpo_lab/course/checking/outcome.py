"""Outcomes: everything about the call of a function on one case that a check compares or shows.

Results and arguments are plain data, within limits: numbers, texts, detached tensors, and lists and dictionaries of
them. A dataclass becomes the dictionary of its fields. Any other object becomes the name of its class: a student's
object could define `__eq__` and claim to equal anything.

As bytes, outcomes have the format of safetensors, and nothing is unpickled. Each tensor is stored as a tensor. All
other data are JSON text, whose bytes are one more tensor, "outcomes". The bytes may come from a student's program, so
reading applies the limits of `as_plain_data`, and raises ValueError for bytes that do not have the form that `to_bytes`
writes.
"""

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from grpo_lab.course.exercise import Exercise

FLOAT32_ROUNDING = 1e-4  # rounding error of a sum in float32
FLOAT64_ROUNDING = 1e-11  # rounding error of a difference between two nearly equal numbers in float64
MAX_DEPTH = 20  # levels of nested lists and dictionaries in a result
MAX_NODES = 10_000  # parts of a result, at all levels
MAX_TENSOR_BYTES = 64 * 2**20  # limit of all tensors of a result together
MAX_TEXT_LENGTH = 20_000  # characters of one text; the rest is cut off
MAX_KEY_LENGTH = 200  # characters of a key of a dictionary; the rest is cut off
MAX_TOTAL_TEXT_LENGTH = 2**20  # characters of all texts of a result
MAX_CONTENT_BYTES = 4 * MAX_TENSOR_BYTES  # limit of all tensors and the text together
MAX_JSON_BYTES = 32 * 2**20  # limit of the JSON text
MAX_OUTCOMES = 200
RESULT = "the result"  # the name of what a function returns
_TEXT_FIELDS = ("error", "message", "trace", "fault", "printed")


class Status(StrEnum):
    """How far an answer is. The values are stored in the file of grades."""

    RIGHT = "right"
    PARTLY = "partly"  # the values are right, and something else is not
    WRONG = "wrong"
    MALFORMED = "malformed"  # not judged by its numbers, for the reason that a `Fault` names
    NOT_STARTED = "not started"


class Fault(StrEnum):
    """The reason why an answer is not judged by its numbers. The values are stored in the file of grades."""

    NONE = ""
    # The function was not run, or was stopped.
    SIGNATURE = "signature"
    ENDLESS = "endless"
    EXIT = "exit"
    UNREACHED = "unreached"  # a case after the one that was stopped
    # It ran, and what it did has the wrong form.
    ERROR = "error"  # an exception
    TYPE = "type"  # a value of another type
    SHAPE = "shape"
    DTYPE = "dtype"
    INPLACE = "inplace"  # an argument was changed in place
    DETACHED = "detached"  # the right value without a gradient
    # It is not the student's function.
    LIBRARY = "library"  # the library's own function, or a call of it
    STALE = "stale"  # the function in memory is not the one on the page
    STOPPED = "stopped"  # in a grading: there are no outcomes to judge


@dataclass(frozen=True)
class Outcome:
    """The outcome of a function on one case. Results and arguments are plain data (`as_plain_data`).

    Attributes:
        results: What is compared, by name: {`RESULT`: the result}, or what `Exercise.observations` returned.
        gradients: The gradients of the result by argument; None for an argument that no gradient reaches.
        has_gradient: Whether the result carries a gradient.
        changed_arguments: The arguments that were changed in place, with their new values.
        error: The type of the exception that was raised; "" if there was none.
        message: The text of the exception.
        trace: The lines of the student's own code on the way to the exception.
        fault: The reason why the function was not run, was stopped, or did not reach this case.
        printed: The beginning of what the function printed.
    """

    results: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, Any] = field(default_factory=dict)
    has_gradient: bool = False
    changed_arguments: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    message: str = ""
    trace: str = ""
    fault: Fault = Fault.NONE
    printed: str = ""


def equal_outcomes(got: Outcome, expected: Outcome, exercise: Exercise) -> bool:
    """Return True if results, changed arguments and gradients agree, or both raised the same error type."""
    if not equal_values(got, expected, exercise):
        return False
    return bool(expected.error) or equal_gradients(got, expected, exercise)


def equal_values(got: Outcome, expected: Outcome, exercise: Exercise) -> bool:
    """Return True if two outcomes agree as in `equal_outcomes`, whatever their gradients."""
    if got.fault or expected.fault:
        return False
    if got.error or expected.error:
        return got.error == expected.error
    pairs = (got.results, expected.results), (got.changed_arguments, expected.changed_arguments)
    return all(equal_data(a, b, exercise.tolerance) for a, b in pairs)


def equal_gradients(got: Outcome, expected: Outcome, exercise: Exercise) -> bool:
    return all(
        same_gradient(got.gradients.get(name), expected.gradients.get(name), exercise.tolerance)
        for name in exercise.gradient_of
    )


def same_gradient(got: Any, expected: Any, tolerance: float) -> bool:
    """Return True if two gradients agree. A missing gradient equals a gradient of zeros."""
    if got is None or expected is None:
        return no_gradient(got) and no_gradient(expected)
    return equal_data(got, expected, tolerance)


def no_gradient(gradient: Any) -> bool:
    """Return True for a gradient that is None or zero everywhere."""
    return gradient is None or (isinstance(gradient, Tensor) and not gradient.any())


def equal_data(a: Any, b: Any, tolerance: float) -> bool:
    """Return True if plain data agree: structure, shapes and dtypes exactly, and numbers within the tolerance.

    NaN equals NaN.
    """
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and bool(close_entries(a, b, tolerance).all())
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal_data(a[key], b[key], tolerance) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(equal_data(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if is_number(a) and is_number(b):
        return same_numbers(a, b, tolerance)
    return type(a) is type(b) and a == b


def close_entries(a: Tensor, b: Tensor, tolerance: float) -> Tensor:
    """Compare two tensors of one shape number by number, and return a tensor of booleans.

    Integers and booleans have to agree exactly. In float32 the tolerance is at least `FLOAT32_ROUNDING`, relative and
    absolute, since the order of a sum changes its result there; a tolerance of 0 stays 0.

    Args:
        a: The numbers to compare.
        b: The numbers that are right.
        tolerance: The tolerance relative to each number of `b`. It is also the absolute tolerance, multiplied by the
            largest number of `b` if that is below 1.
    """
    if not a.is_floating_point():
        return a == b
    if tolerance and a.dtype == torch.float32:
        tolerance = absolute = max(tolerance, FLOAT32_ROUNDING)
    else:
        finite = b.double().abs()[b.isfinite()]
        absolute = _absolute_tolerance(tolerance, float(finite.max()) if finite.numel() else 1.0)
    return torch.isclose(a.double(), b.double(), rtol=tolerance, atol=absolute, equal_nan=True)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def same_numbers(a: int | float, b: int | float, tolerance: float) -> bool:
    """Return True if two numbers agree: integers exactly, floats within the tolerance of `close_entries`."""
    if a == b or (a != a and b != b):
        return True
    if not tolerance or (isinstance(a, int) and isinstance(b, int)):
        return False
    try:
        size = abs(float(b))
        return abs(float(a) - float(b)) <= _absolute_tolerance(tolerance, size) + tolerance * size < math.inf
    except OverflowError:
        return False


def _absolute_tolerance(tolerance: float, size: float) -> float:
    """Return the absolute tolerance for numbers of which the largest has this size."""
    return min(tolerance, max(tolerance * size, FLOAT64_ROUNDING))


class TooLarge(ValueError):
    """A result that is too deep, has too many parts or too many bytes to be compared."""


@dataclass(frozen=True)
class OtherObject:
    """A placeholder for an object that is not plain data, with the name of its class or other words in its place."""

    description: str


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors in nested lists, tuples and dictionaries, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [tensor for part in tree.values() for tensor in tensors_in(part)]
    if isinstance(tree, list | tuple):
        return [tensor for part in tree for tensor in tensors_in(part)]
    return []


def as_plain_data(tree: Any) -> Any:
    """Return a result as plain data that shares no memory with the original.

    Raises:
        TooLarge: If the result exceeds one of the limits of this module.
    """
    return _PlainDataReader().read(tree)


class _PlainDataReader:
    """A reader of one result that counts the parts, tensors and texts it has read, and refuses what is too large."""

    def __init__(self) -> None:
        self.num_nodes = self.tensor_bytes = self.text_length = 0

    def read(self, tree: Any, depth: int = 0) -> Any:
        self.num_nodes += 1
        if depth > MAX_DEPTH or self.num_nodes > MAX_NODES:
            raise TooLarge(f"the result is nested deeper than {MAX_DEPTH} or has more than {MAX_NODES} parts")
        if isinstance(tree, Tensor):
            return self.read_tensor(tree)
        if tree is None or type(tree) is bool or isinstance(tree, OtherObject):
            return tree
        if isinstance(tree, str):
            return self.read_text(str.__str__(tree)[:MAX_TEXT_LENGTH])
        if isinstance(tree, int):  # `int.__add__` reads the number inside and skips the methods of a subclass
            return int.__add__(tree, 0)
        if isinstance(tree, float):
            return float.__add__(tree, 0.0)
        if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
            tree = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
        if isinstance(tree, dict):
            items = list(tree.items())
            return {self.read_text(str(key)[:MAX_KEY_LENGTH]): self.read(value, depth + 1) for key, value in items}
        if isinstance(tree, list | tuple):
            return [self.read(value, depth + 1) for value in list(tree)]
        if isinstance(tree, torch.dtype | torch.device | torch.Size):
            return str(tree)
        return OtherObject(type(tree).__name__)

    def read_text(self, text: str) -> str:
        self.text_length += len(text)
        if self.text_length > MAX_TOTAL_TEXT_LENGTH:
            raise TooLarge(f"the texts of the result have more than {MAX_TOTAL_TEXT_LENGTH} characters")
        return text

    def read_tensor(self, tensor: Tensor) -> Tensor | OtherObject:
        if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            return OtherObject(f"{type(tensor).__name__} ({tensor.layout})")
        if tensor.is_complex() or tensor.device.type == "meta":
            return OtherObject(f"tensor of {tensor.dtype} on the device {str(tensor.device)!r}")
        self.tensor_bytes += tensor.numel() * tensor.element_size()
        if self.tensor_bytes > MAX_TENSOR_BYTES:
            raise TooLarge(f"the tensors of the result have more than {MAX_TENSOR_BYTES} bytes")
        return tensor.detach().cpu().clone().contiguous()


_FIELDS = tuple(field.name for field in fields(Outcome))


def to_bytes(outcomes: Sequence[Outcome]) -> bytes:
    tensors: dict[str, Tensor] = {}
    rows = [{name: _encode(getattr(outcome, name), tensors) for name in _FIELDS} for outcome in outcomes]
    text = bytearray(json.dumps(rows), "ascii")
    return save(tensors | {"outcomes": torch.frombuffer(text, dtype=torch.uint8)})


def from_bytes(content: bytes) -> list[Outcome]:
    """Read the outcomes that `to_bytes` wrote.

    Raises:
        ValueError: If the bytes are too many, broken, or of another form; the message says which.
    """
    try:
        header_length = int.from_bytes(content[:8], "little")  # safetensors begins with the length of its header
        _check(
            len(content) <= MAX_CONTENT_BYTES and header_length <= MAX_JSON_BYTES, f"at most {MAX_CONTENT_BYTES} bytes"
        )
        tensors = load(content)
        text = tensors["outcomes"].numpy().tobytes()
        _check(len(text) <= MAX_JSON_BYTES, f"at most {MAX_JSON_BYTES} bytes of text")
        rows = json.loads(text)
        _check(isinstance(rows, list) and len(rows) <= MAX_OUTCOMES, f"a list of at most {MAX_OUTCOMES} outcomes")
        return [_outcome(row, tensors) for row in rows]
    except (SafetensorError, RuntimeError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"outcomes cannot be read: {type(error).__name__}: {error}") from None


def _encode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = tree.contiguous().clone()  # safetensors refuses tensors that share memory
        return {"tensor": name}
    if isinstance(tree, dict):
        return {"dict": {key: _encode(value, tensors) for key, value in tree.items()}}
    if isinstance(tree, list | tuple):
        return [_encode(value, tensors) for value in tree]
    if isinstance(tree, OtherObject):
        return {"other": tree.description}
    return tree


def _outcome(row: Any, tensors: dict[str, Tensor]) -> Outcome:
    _check(isinstance(row, dict) and row.keys() == set(_FIELDS), "the fields of an outcome")
    # `as_plain_data` applies its limits to the data that were read.
    values = {name: as_plain_data(_decode(value, tensors, 0)) for name, value in row.items()}
    _check(all(type(values[name]) is str for name in _TEXT_FIELDS), f"text in {', '.join(_TEXT_FIELDS)}")
    _check(type(values["has_gradient"]) is bool, "true or false in has_gradient")
    by_name = values["results"], values["gradients"], values["changed_arguments"]
    _check(all(isinstance(entries, dict) for entries in by_name), "dictionaries of results, gradients and arguments")
    return Outcome(**values | {"fault": Fault(values["fault"])})


def _decode(node: Any, tensors: dict[str, Tensor], depth: int) -> Any:
    _check(depth <= MAX_DEPTH + 2, f"at most {MAX_DEPTH} levels")
    if node is None or isinstance(node, bool | int | float | str):
        return node
    if isinstance(node, list):
        return [_decode(part, tensors, depth + 1) for part in node]
    _check(isinstance(node, dict) and len(node) == 1, "a value in the form of to_bytes")
    ((kind, content),) = node.items()
    if kind == "dict":
        _check(isinstance(content, dict), "a dictionary")
        return {key: _decode(part, tensors, depth + 1) for key, part in content.items()}
    _check(type(content) is str and len(content) < 2000, "a short text")
    return {"tensor": tensors.__getitem__, "other": OtherObject}[kind](content)


def _check(is_met: bool, requirement: str) -> None:
    if not is_met:
        raise ValueError(f"{requirement} was expected")
