"""Outcomes as bytes of safetensors, with all that is no tensor as JSON in one more tensor. Nothing is unpickled.

The bytes may come from a student's program. What is read is held to the limits of `plain`, and anything that is not of
the form that `to_bytes` writes is a ValueError.
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
from grpo_lab.course.checking.plain_data import MAX_BYTES, MAX_DEPTH, Other, plain

MAX_CONTENT, MAX_TEXT, MAX_OUTCOMES = 4 * MAX_BYTES, 32 * 2**20, 200
_TEXTS = ("error", "message", "trace", "fault", "printed")


def to_bytes(outcomes: Sequence[Outcome]) -> bytes:
    tensors: dict[str, Tensor] = {}
    rows = [{f.name: _encode(getattr(outcome, f.name), tensors) for f in fields(Outcome)} for outcome in outcomes]
    text = bytearray(json.dumps(rows), "ascii")
    return save(tensors | {"outcomes": torch.frombuffer(text, dtype=torch.uint8)})


def from_bytes(content: bytes) -> list[Outcome]:
    """Read what `to_bytes` wrote.

    Raises:
        ValueError: if it is too large, broken, or of another form; the message says which.
    """
    try:
        header = int.from_bytes(content[:8], "little")  # the format begins with its length
        _check(len(content) <= MAX_CONTENT and header <= MAX_TEXT, f"at most {MAX_CONTENT} bytes")
        tensors = load(content)
        text = tensors["outcomes"].numpy().tobytes()
        _check(len(text) <= MAX_TEXT, f"at most {MAX_TEXT} characters")
        rows = json.loads(text)
        _check(isinstance(rows, list) and len(rows) <= MAX_OUTCOMES, f"a list of at most {MAX_OUTCOMES} outcomes")
        return [_outcome(row, tensors) for row in rows]
    except (SafetensorError, RuntimeError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"outcomes cannot be read: {type(error).__name__}: {error}") from None


def _encode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = tree.contiguous().clone()  # the format refuses tensors that share memory
        return {"tensor": name}
    if isinstance(tree, dict):
        return {"dict": {key: _encode(value, tensors) for key, value in tree.items()}}
    if isinstance(tree, list | tuple):
        return [_encode(value, tensors) for value in tree]
    if isinstance(tree, Other):
        return {"other": tree.kind}
    return tree


def _outcome(row: Any, tensors: dict[str, Tensor]) -> Outcome:
    _check(isinstance(row, dict) and row.keys() == {f.name for f in fields(Outcome)}, "the fields of an outcome")
    values = {
        name: plain(_decode(value, tensors, 0)) for name, value in row.items()
    }  # which holds it to the limits, too
    _check(all(type(values[name]) is str for name in _TEXTS), f"text in {', '.join(_TEXTS)}")
    _check(type(values["attached"]) is bool, "true or false in attached")
    _check(isinstance(values["gradients"], dict) and isinstance(values["changed"], dict), "dictionaries by argument")
    _check(values["observed"] is None or isinstance(values["observed"], dict), "a dictionary in observed")
    return Outcome(**values)


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
    return {"tensor": tensors.__getitem__, "other": Other}[kind](content)


def _check(holds: bool, requirement: str) -> None:
    if not holds:
        raise ValueError(f"{requirement} was expected")
