"""The fingerprints of what a run began with, and the comparison with them when it goes on.

A run with other ingredients would get other numbers. Model, data and tokenizer are compared by content, wherever they
lie. A reward that is a plain function of a module is its name and the hash of that module's file. Any other, such as a
closure, a partial, an instance or a cell of a notebook, is the text that it has as its attribute `fingerprint`; without
one it is refused on resuming. What the file imports, or a judge answers, is not looked at. The setting
`ignore_reward_changes` leaves rewards out of the comparison.
"""

import hashlib
import inspect
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from grpo_lab.base.checks import InputError
from grpo_lab.config import GRPOConfig
from grpo_lab.config.own_formulas import TABLES, own_function
from grpo_lab.models.adapters import adapter_settings, has_adapter
from grpo_lab.rewards.functions import as_list
from grpo_lab.tasks import Rows
from grpo_lab.trainer.inputs import RunInputs

UNKNOWN = "what cannot be compared"
IGNORE = "resume with ignore_reward_changes=True (in a command: --ignore_reward_changes true)"


def fingerprints(inputs: RunInputs) -> dict:
    """The ingredients of a run, ready for JSON: by name, what is compared on resuming. None is not compared."""
    eval_dataset = inputs.eval_dataset
    reward_funcs = inputs.reward_funcs
    environment = inputs.environment
    return {
        "model": model_fingerprint(inputs.model),
        "dataset": _rows_fingerprint(inputs.dataset),
        "eval_dataset": None if eval_dataset is None else _rows_fingerprint(eval_dataset),
        "tokenizer": _tokenizer_fingerprint(inputs.tokenizer),
        "reward_funcs": None if reward_funcs is None else _code_fingerprint(as_list(reward_funcs)),
        "environment": {"functions": []} if environment is None else _environment_fingerprint(environment),
        "engine": {"engine": "grpo_lab"},
    }


def formula_fingerprints(config: GRPOConfig) -> dict:
    """Fingerprint the user's own loss and advantage, by setting; None for one of this package, which has a name."""
    functions = {name: own_function(name, getattr(config, name)) for name in TABLES}
    return {name: function and _code_fingerprint([function]) for name, function in functions.items()}


def check_same_ingredients(began: dict, new_fingerprints: dict, folder: str) -> None:
    """Raise InputError for the first ingredient that would lead to other numbers than those of the run in the folder.

    Evaluations may begin, or stop, and a loop of one's own has no rewards to compare.
    """
    for name, new in new_fingerprints.items():
        if new is None or (old := began.get(name)) is None:  # a run of an older version does not know them all
            continue
        if unknown := new.get(UNKNOWN):
            raise InputError(
                f"{name} holds {unknown[0]}, which cannot be compared with what the run began with; give it, from the "
                f"start on, a text as its attribute `fingerprint`, start a new run in another folder, or {IGNORE}"
            )
        if changed := [key for key in old | new if old.get(key) != new.get(key)]:
            differences = ", ".join(f"{key}: was {old.get(key)!r}, is {new.get(key)!r}" for key in changed)
            remedy = "take what it began with, or start a new run in another folder"
            if name == "reward_funcs":
                remedy = f"take what it began with, start a new run in another folder, or {IGNORE}"
            raise InputError(f"{name} differs from that of the run in {folder!r} ({differences}); {remedy}")


def model_fingerprint(model) -> dict:
    """A fingerprint of all weights, bit for bit, with names, shapes and types, and of which of them are trained."""
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    total = hashlib.sha256("\n".join(trained).encode())
    for name, tensor in model.state_dict().items():
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    adapter = {"adapter": adapter_settings(model)} if has_adapter(model) else {}
    return {"trained parameters": len(trained), "weights": total.hexdigest()[:16]} | adapter


def _rows_fingerprint(dataset: Rows) -> dict:
    """A fingerprint of all rows: the hash of the JSON list of each row's hash, which is never whole in memory."""
    contents = hashlib.sha256(b"[")
    for index in range(len(dataset)):
        contents.update(f'{", " if index else ""}"{_hash(dataset[index])}"'.encode())
    contents.update(b"]")
    return {"rows": len(dataset), "contents": contents.hexdigest()[:16]}


def _tokenizer_fingerprint(tokenizer) -> dict:
    """A fingerprint of vocabulary, merges, template and end tokens, which decide what a prompt and its end become."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    merges = json.loads(core.to_str())["model"].get("merges") if core is not None else None
    ends = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    parts = [sorted(tokenizer.get_vocab().items()), merges, tokenizer.chat_template, ends]
    return {"tokens": len(tokenizer), "contents": _hash(parts)}


def _environment_fingerprint(environment) -> dict:
    """The code of tools and environments, and their settings."""
    functions, settings = environment.ingredients
    return _code_fingerprint(functions) | settings


def _code_fingerprint(functions: list[Callable]) -> dict:
    """Names in order, what identifies each, and those that nothing identifies."""
    named = [function if hasattr(function, "__qualname__") else type(function) for function in functions]
    names = [f"{function.__module__}.{function.__qualname__}" for function in named]
    code_fingerprint = {"functions": names, UNKNOWN: []}
    for number, (name, function) in enumerate(zip(names, functions, strict=True), 1):
        file = _module_file(function)
        if (fingerprint := getattr(function, "fingerprint", None)) is not None:
            code_fingerprint[f"{name}, number {number}"] = str(fingerprint)
        elif file is not None:
            code_fingerprint[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        else:
            code_fingerprint[UNKNOWN].append(name)
    return code_fingerprint


def _module_file(function: Callable) -> Path | None:
    """The file of the module in which a plain function or a class stands under its own name; None for anything else."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    is_definition = inspect.isfunction(function) or inspect.isclass(function)
    is_plain = is_definition and getattr(module, function.__qualname__, None) is function
    return Path(file) if is_plain and (file := getattr(module, "__file__", None)) else None


def _hash(value: Any) -> str:
    """A hash of the value without addresses, which differ from one process to the next."""
    text = json.dumps(value, sort_keys=True, default=lambda item: re.sub(r" at 0x[0-9a-fA-F]+", "", repr(item)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
