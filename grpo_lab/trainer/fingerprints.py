"""The fingerprints of what a run began with, and the comparison with them when it goes on.

A run with other ingredients would get other numbers. Model, data and tokenizer are compared by content, wherever they
lie; a reward function by the file that defines it and by what it was made with. What cannot be compared is refused on
resuming, unless it says what it is.
"""

import hashlib
import json
import re
from typing import Any

import torch

from grpo_lab.base.checks import InputError
from grpo_lab.rewards.made_with import of_function
from grpo_lab.rewards.scoring import listed
from grpo_lab.tasks import Rows

UNKNOWN = "what cannot be compared"


def fingerprints(model, tokenizer, dataset: Rows, reward_funcs, eval_dataset: Rows | None = None) -> dict:
    """The ingredients of a run, ready for JSON: by name, what is compared on resuming. None is not compared."""
    return {
        "model": model_fingerprint(model),
        "dataset": _rows_fingerprint(dataset),
        "eval_dataset": None if eval_dataset is None else _rows_fingerprint(eval_dataset),
        "tokenizer": _tokenizer_fingerprint(tokenizer),
        "reward_funcs": None if reward_funcs is None else _reward_fingerprint(listed(reward_funcs)),
        "engine": {"engine": "grpo_lab"},
    }


def check_same_ingredients(began: dict, prints: dict, folder: str) -> None:
    """Raise InputError for the first ingredient that would lead to other numbers than those of the run in the folder.

    Evaluations may begin, or stop, and a loop of one's own has no rewards to compare.
    """
    for name, new in prints.items():
        if new is None or (old := began[name]) is None:
            continue
        if unknown := new.get(UNKNOWN):
            raise InputError(
                f"{name} holds {unknown[0]}, which cannot be compared with what the run began with; give it, from the "
                "start on, a text as its attribute `fingerprint`, or start a new run in another folder"
            )
        if changed := [key for key in old | new if old.get(key) != new.get(key)]:
            differences = ", ".join(f"{key}: was {old.get(key)!r}, is {new.get(key)!r}" for key in changed)
            remedy = "take what it began with, or start a new run in another folder"
            raise InputError(f"{name} differs from that of the run in {folder!r} ({differences}); {remedy}")


def model_fingerprint(model) -> dict:
    """A fingerprint of all weights, bit for bit, with names, shapes and types, and of which of them are trained."""
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    total = hashlib.sha256("\n".join(trained).encode())
    for name, tensor in model.state_dict().items():
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return {"trained parameters": len(trained), "weights": total.hexdigest()[:16]}


def _rows_fingerprint(dataset: Rows) -> dict:
    return {"rows": len(dataset), "contents": _hash([_hash(dataset[index]) for index in range(len(dataset))])}


def _tokenizer_fingerprint(tokenizer) -> dict:
    """A fingerprint of vocabulary, merges, template and end tokens, which decide what a prompt and its end become."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    merges = json.loads(core.to_str())["model"].get("merges") if core is not None else None
    ends = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    parts = [sorted(tokenizer.get_vocab().items()), merges, tokenizer.chat_template, ends]
    return {"tokens": len(tokenizer), "contents": _hash(parts)}


def _reward_fingerprint(functions: list) -> dict:
    """Names of rewards in order, what each was made with, the files that define them, and what cannot be compared."""
    descriptions = [of_function(function) for function in functions]
    prints = {
        "functions": [description["name"] for description in descriptions],
        UNKNOWN: [unknown for description in descriptions for unknown in description["unknown"]],
    }
    for number, description in enumerate(descriptions, 1):
        prints[f"{description['name']}, number {number}, made with"] = description["bound"]
        prints |= {file: sha256[:16] for file, sha256 in description["files"].items()}
    return prints


def _hash(value: Any) -> str:
    """A hash of the value without addresses, which differ from one process to the next."""
    text = json.dumps(value, sort_keys=True, default=lambda item: re.sub(r" at 0x[0-9a-fA-F]+", "", repr(item)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
