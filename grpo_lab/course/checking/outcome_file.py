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
from grpo_lab.course.checking.plain_data import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_KEY,
    MAX_NODES,
    MAX_TEXT,
    MAX_TEXTS,
    Other,
    Record,
)

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
    if isinstance(tree, Record):
        return {"record": [[key, _encode(value, tensors)] for key, value in tree.fields.items()]}
    if isinstance(tree, dict):
        return {"dict": [[key, _encode(value, tensors)] for key, value in tree.items()]}
    if isinstance(tree, list | tuple):
        return {"list": [_encode(value, tensors) for value in tree]}
    if isinstance(tree, Other):
        return {"other": tree.kind}
    if isinstance(tree, float):
        return {"float": tree.hex()}
    if isinstance(tree, int) and not isinstance(tree, bool):
        return {"int": hex(tree)}
    return tree


def _outcome(row: Any, file) -> Outcome:
    _check(isinstance(row, dict) and row.keys() == {f.name for f in fields(Outcome)}, "the fields of an outcome")
    budget = {"nodes": MAX_NODES, "bytes": 4 * MAX_BYTES, "texts": 4 * MAX_TEXTS}
    read = {name: _decode(value, file, budget, 0) for name, value in row.items()}
    for name in _TEXTS:
        _check(type(read[name]) is str, f"text in {name}")
    _check(type(read["attached"]) is bool, "true or false in attached")
    for name in ("gradients", "changed"):
        _check(isinstance(read[name], dict), f"a dictionary in {name}")
    _check(read["observed"] is None or isinstance(read["observed"], dict), "a dictionary in observed")
    return Outcome(**read)


def _decode(node: Any, file, budget: dict[str, int], depth: int) -> Any:
    budget["nodes"] -= 1
    _check(depth <= MAX_DEPTH + 2 and budget["nodes"] >= 0, f"at most {MAX_NODES} parts, {MAX_DEPTH} deep")
    if node is None or isinstance(node, bool):
        return node
    if isinstance(node, str):
        _check(len(node) <= MAX_TEXT, f"texts of at most {MAX_TEXT} characters")
        budget["texts"] -= len(node)
        _check(budget["texts"] >= 0, f"texts of at most {4 * MAX_TEXTS} characters in all")
        return node
    _check(isinstance(node, dict) and len(node) == 1, "a value in the form of save_outcomes")
    ((kind, content),) = node.items()
    if kind == "tensor":
        return _tensor(content, file, budget)
    if kind == "list":
        return [_decode(part, file, budget, depth + 1) for part in content]
    if kind in ("dict", "record"):
        pairs = {key: _decode(part, file, budget, depth + 1) for key, part in content}
        _check(all(type(key) is str and len(key) <= MAX_KEY for key in pairs), "short texts as keys")
        return pairs if kind == "dict" else Record(pairs)
    _check(kind in ("int", "float", "other") and type(content) is str and len(content) < 2000, "a known kind of value")
    return {"int": lambda text: int(text, 16), "float": float.fromhex, "other": Other}[kind](content)


def _tensor(name: Any, file, budget: dict[str, int]) -> Tensor:
    _check(type(name) is str, "the name of a tensor")
    tensor = file.get_tensor(name)
    budget["bytes"] -= tensor.numel() * tensor.element_size()
    _check(budget["bytes"] >= 0, f"tensors of at most {4 * MAX_BYTES} bytes an outcome")
    return tensor


def _check(holds: bool, needed: str) -> None:
    if not holds:
        raise ValueError(f"{needed} was expected")
