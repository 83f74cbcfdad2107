"""Outcomes as bytes in the format of safetensors. Nothing is unpickled.

Each tensor is stored as a tensor. All other data are JSON text, whose bytes are one more tensor, "outcomes".
The bytes may come from a student's program, so reading applies the limits of `as_plain_data`, and raises ValueError for
bytes that do not have the form that `to_bytes` writes.
"""

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.checking.plain_data import MAX_DEPTH, MAX_TENSOR_BYTES, OtherObject, as_plain_data
from grpo_lab.course.checking.status import Fault
from grpo_lab.course.earlier_files import field_values

MAX_CONTENT_BYTES = 4 * MAX_TENSOR_BYTES  # limit of all tensors and the text together
MAX_JSON_BYTES = 32 * 2**20  # limit of the JSON text
MAX_OUTCOMES = 200
_FIELDS = tuple(field.name for field in fields(Outcome))
_TEXT_FIELDS = ("error", "message", "trace", "fault", "printed")


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
        return {"other": tree.kind}
    return tree


def _outcome(row: Any, tensors: dict[str, Tensor]) -> Outcome:
    _check(isinstance(row, dict) and len(row) == len(_FIELDS), "the fields of an outcome")
    stored = field_values(Outcome, row)
    _check(stored.keys() == set(_FIELDS), "the fields of an outcome")
    # `as_plain_data` applies its limits to the data that were read.
    values = {name: as_plain_data(_decode(value, tensors, 0)) for name, value in stored.items()}
    _check(all(type(values[name]) is str for name in _TEXT_FIELDS), f"text in {', '.join(_TEXT_FIELDS)}")
    _check(type(values["has_gradient"]) is bool, "true or false in has_gradient")
    by_argument = values["gradients"], values["changed_arguments"]
    _check(all(isinstance(entries, dict) for entries in by_argument), "dictionaries by argument")
    _check(values["observed"] is None or isinstance(values["observed"], dict), "a dictionary in observed")
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
