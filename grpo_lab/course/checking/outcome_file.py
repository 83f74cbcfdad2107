"""Outcomes in one safetensors file: the tensors as such, all else as JSON in its header. Nothing is unpickled.

The file may have been written by a student's program. What is read is held to the limits of `outcome`, and anything
that is not of the form that `save_outcomes` writes is a ValueError.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.checking.plain_data import MAX_BYTES, MAX_DEPTH, Other, plain

MAX_FILE, MAX_HEADER, MAX_OUTCOMES = 4 * MAX_BYTES, 32 * 2**20, 200
_TEXTS = ("error", "message", "trace", "fault", "printed")


def save_outcomes(path: str | Path, outcomes: Sequence[Outcome]) -> None:
    """Write the file, whole or not at all."""
    path, tensors = Path(path), {}
    rows = [{f.name: _encode(getattr(outcome, f.name), tensors) for f in fields(Outcome)} for outcome in outcomes]
    unfinished = path.with_name(path.name + ".unfinished")
    save_file(tensors, unfinished, metadata={"outcomes": json.dumps(rows)})
    os.replace(unfinished, path)


def load_outcomes(path: str | Path) -> list[Outcome]:
    """Read what `save_outcomes` wrote.

    Raises:
        ValueError: if the file is missing, too large, broken, or of another form; the message says which.
    """
    path = Path(path)
    try:
        if (size := path.stat().st_size) > MAX_FILE:
            raise ValueError(f"it has {size} bytes, and {MAX_FILE} are allowed")
        _check(path.is_file(), "a file")
        with path.open("rb") as head:  # the format begins with the length of its header
            if (size := int.from_bytes(head.read(8), "little")) > MAX_HEADER:
                raise ValueError(f"its header has {size} bytes, and {MAX_HEADER} are allowed")
        with safe_open(path, framework="pt", device="cpu") as file:
            text = (file.metadata() or {}).get("outcomes")
            if text is None:
                raise ValueError("its header holds no outcomes")
            rows = json.loads(text)
            _check(isinstance(rows, list) and len(rows) <= MAX_OUTCOMES, f"a list of at most {MAX_OUTCOMES} outcomes")
            return [_outcome(row, file) for row in rows]
    except (OSError, SafetensorError, RecursionError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"outcomes cannot be read from {path.name}: {type(error).__name__}: {error}") from None


def _encode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = tree.contiguous().clone()  # the format refuses tensors that share memory
        return {"tensor": name}
    if isinstance(tree, dict):
        return {"dict": [[key, _encode(value, tensors)] for key, value in tree.items()]}
    if isinstance(tree, list | tuple):
        return {"list": [_encode(value, tensors) for value in tree]}
    if isinstance(tree, Other):
        return {"other": tree.kind}
    return tree


def _outcome(row: Any, file) -> Outcome:
    _check(isinstance(row, dict) and row.keys() == {f.name for f in fields(Outcome)}, "the fields of an outcome")
    read = {name: plain(_decode(value, file, 0)) for name, value in row.items()}  # which holds it to the limits, too
    _check(all(type(read[name]) is str for name in _TEXTS), f"text in {', '.join(_TEXTS)}")
    _check(type(read["attached"]) is bool, "true or false in attached")
    _check(isinstance(read["gradients"], dict) and isinstance(read["changed"], dict), "dictionaries by argument")
    _check(read["observed"] is None or isinstance(read["observed"], dict), "a dictionary in observed")
    return Outcome(**read)


def _decode(node: Any, file, depth: int) -> Any:
    _check(depth <= MAX_DEPTH + 2, f"at most {MAX_DEPTH} levels")
    if node is None or isinstance(node, bool | int | float | str):
        return node
    _check(isinstance(node, dict) and len(node) == 1, "a value in the form of save_outcomes")
    ((kind, content),) = node.items()
    if kind == "list":
        return [_decode(part, file, depth + 1) for part in content]
    if kind == "dict":
        pairs = {key: _decode(part, file, depth + 1) for key, part in content}
        _check(all(type(key) is str for key in pairs), "texts as keys")
        return pairs
    _check(type(content) is str and len(content) < 2000, "a short text")
    return {"tensor": file.get_tensor, "other": Other}[kind](content)


def _check(holds: bool, needed: str) -> None:
    if not holds:
        raise ValueError(f"{needed} was expected")
