"""Fingerprints of the inputs of a run, and their comparison when a run is resumed.

A run that is resumed with other inputs would get other results. The fingerprints of model, data and tokenizer are
hashes of their contents. The fingerprint of a reward function at the top level of a module is its name and the hash of
the module's file. The fingerprint of any other reward function, such as a closure, a partial, an instance or a function
of a notebook cell, is the text in its attribute `fingerprint`; without that attribute the run cannot be resumed.
Modules that the file imports, and the weights of a judge model, are not compared. The setting `ignore_reward_changes`
leaves the reward functions out of the comparison.
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
from grpo_lab.base.user_code import qualified_name
from grpo_lab.config.user_formulas import FORMULA_TABLES, user_function
from grpo_lab.models.adapters import adapter_settings, has_adapter
from grpo_lab.rewards.functions import reward_func_list
from grpo_lab.tasks import Rows
from grpo_lab.trainer.run.inputs import RunInputs

UNCOMPARABLE = "what cannot be compared"  # key of the fingerprint, stored in the manifest
IGNORE_HINT = "resume with ignore_reward_changes=True (in a command: --ignore_reward_changes true)"


def input_fingerprints(inputs: RunInputs, engine_settings: dict | None = None) -> dict:
    """Return the fingerprint of each input of a run by its name, ready for JSON; None is not compared on resuming.

    Args:
        inputs: The inputs of the run.
        engine_settings: The name of the engine and its own settings. None: those of this package's loop.
    """
    eval_dataset = inputs.eval_dataset
    reward_funcs = inputs.reward_funcs
    environment_fingerprint: dict = {"functions": []}  # the code of tools and environments, and their settings
    if inputs.environment is not None:
        functions, settings = inputs.environment.functions_and_settings
        environment_fingerprint = code_fingerprint(functions) | settings
    user_formulas = {name: user_function(name, getattr(inputs.config, name)) for name in FORMULA_TABLES}
    return {
        "model": model_fingerprint(inputs.model),
        "dataset": rows_fingerprint(inputs.dataset),
        "eval_dataset": None if eval_dataset is None else rows_fingerprint(eval_dataset),
        "tokenizer": _tokenizer_fingerprint(inputs.tokenizer),
        "reward_funcs": None if reward_funcs is None else code_fingerprint(reward_func_list(reward_funcs)),
        "environment": environment_fingerprint,
        "engine": engine_settings or {"engine": "grpo_lab"},
        # The loss and the advantage, if they are the user's own.
        **{name: None if formula is None else code_fingerprint([formula]) for name, formula in user_formulas.items()},
    }


def check_same_fingerprints(old_fingerprints: dict, new_fingerprints: dict, folder: str) -> None:
    """Raise InputError for the first input that differs from that of the run in the folder.

    A fingerprint that is None in one of the two is not compared: a run may begin or stop evaluating, a user's own loop
    may have no reward functions, and an older version may have stored fewer fingerprints.

    Args:
        old_fingerprints: The fingerprints with which the run began, by name.
        new_fingerprints: The fingerprints of the resumed run, by name.
        folder: The output folder, for the error message.
    """
    for name, new in new_fingerprints.items():
        old = old_fingerprints.get(name)
        if new is None or old is None:
            continue
        if uncomparable := new.get(UNCOMPARABLE):
            remedies = "give it, from the start on, a text as its attribute `fingerprint`"
            new_run = "start a new run in another folder"
            remedies += f", {new_run}, or {IGNORE_HINT}" if name == "reward_funcs" else f", or {new_run}"
            problem = f"{name} holds {uncomparable[0]}, which cannot be compared with what the run began with"
            raise InputError(f"{problem}; {remedies}")
        if changed_keys := [key for key in old | new if old.get(key) != new.get(key)]:
            differences = ", ".join(f"{key}: was {old.get(key)!r}, is {new.get(key)!r}" for key in changed_keys)
            remedy = "take what it began with, or start a new run in another folder"
            if name == "reward_funcs":
                remedy = f"take what it began with, start a new run in another folder, or {IGNORE_HINT}"
            raise InputError(f"{name} differs from that of the run in {folder!r} ({differences}); {remedy}")


def model_fingerprint(model) -> dict:
    """Return a fingerprint of all weights (bits, names, shapes, types) and of the names of those that are trained."""
    trained_names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    digest = hashlib.sha256("\n".join(trained_names).encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    adapter = {"adapter": adapter_settings(model)} if has_adapter(model) else {}
    return {"trained parameters": len(trained_names), "weights": digest.hexdigest()[:16]} | adapter


def rows_fingerprint(dataset: Rows) -> dict:
    """Return a fingerprint of all rows: the hash of the JSON list of their hashes.

    The list is hashed row by row, since a data set may be larger than the memory.
    """
    digest = hashlib.sha256(b"[")
    for index in range(len(dataset)):
        separator = ", " if index else ""
        digest.update(f'{separator}"{json_hash(dataset[index])}"'.encode())
    digest.update(b"]")
    return {"rows": len(dataset), "contents": digest.hexdigest()[:16]}


def _tokenizer_fingerprint(tokenizer) -> dict:
    """Return a fingerprint of the vocabulary, merges, chat template and special tokens, which decide the token ids."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    merges = json.loads(backend.to_str())["model"].get("merges") if backend is not None else None
    special_token_ids = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    contents = [sorted(tokenizer.get_vocab().items()), merges, tokenizer.chat_template, special_token_ids]
    return {"tokens": len(tokenizer), "contents": json_hash(contents)}


def code_fingerprint(functions: list[Callable]) -> dict:
    """Return the names of the functions, a hash or text for each, and the names of those that cannot be compared."""
    named = [function if hasattr(function, "__qualname__") else type(function) for function in functions]
    names = [qualified_name(function) for function in named]
    uncomparable: list[str] = []
    hashes: dict[str, str | list[str]] = {"functions": names, UNCOMPARABLE: uncomparable}
    for number, (name, function) in enumerate(zip(names, functions, strict=True), 1):
        file = _module_file(function)
        if (fingerprint := getattr(function, "fingerprint", None)) is not None:
            hashes[f"{name}, number {number}"] = str(fingerprint)
        elif file is not None:
            file_hash = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
            # Two files of one name, such as two `rewards.py`, both count.
            is_other_file = hashes.get(file.name, file_hash) != file_hash
            hashes[f"{file.name} of {name}" if is_other_file else file.name] = file_hash
        else:
            uncomparable.append(name)
    return hashes


def _module_file(function: Callable) -> Path | None:
    """Return the file of the module that defines a function or class at its top level; None for anything else."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    is_definition = inspect.isfunction(function) or inspect.isclass(function)
    is_plain = is_definition and getattr(module, function.__qualname__, None) is function
    file = getattr(module, "__file__", None)
    return Path(file) if is_plain and file else None


def json_hash(value: Any) -> str:
    """Return a hash of the value; memory addresses are left out, since they differ between processes."""
    text = json.dumps(value, sort_keys=True, default=lambda item: re.sub(r" at 0x[0-9a-fA-F]+", "", repr(item)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
