"""Whether a resumed run is the run that began: with other settings or ingredients it would get other numbers.

Model, data and tokenizer are compared by content, wherever they lie. A reward function is compared by the file that
defines it and by what it was made with (`grpo_lab.rewards.made_with`); what cannot be compared is refused on resuming,
unless it says what it is.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import torch

from grpo_lab.commands.checks import InputError
from grpo_lab.config import MAY_CHANGE, SETTINGS
from grpo_lab.rewards import scoring
from grpo_lab.rewards.made_with import of_function
from grpo_lab.tasks import Rows
from grpo_lab.trainer.folder.files import as_json
from grpo_lab.trainer.folder.manifest import Manifest

UNKNOWN = "what cannot be compared"


def fingerprints(model, tokenizer, dataset: Rows, reward_funcs, eval_dataset: Rows | None = None) -> dict:
    """What a run begins with, ready for JSON: of each ingredient what is compared, by name. None is not compared."""
    return {
        "model": of_model(model),
        "dataset": _of_rows(dataset),
        "eval_dataset": None if eval_dataset is None else _of_rows(eval_dataset),
        "tokenizer": _of_tokenizer(tokenizer),
        "reward_funcs": None if reward_funcs is None else _of_rewards(scoring.listed(reward_funcs)),
        "engine": {"engine": "grpo_lab"},
    }


def of_model(model) -> dict:
    """Of all weights, bit for bit, with their names, shapes and types, and of which of them are trained."""
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    total = hashlib.sha256("\n".join(trained).encode())
    for name, tensor in model.state_dict().items():
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return {"trained parameters": len(trained), "weights": total.hexdigest()[:16]}


def check_same_run(folder: Path, before: Manifest, settings: dict, prints: dict) -> None:
    """Raise InputError for the first thing that would lead to other numbers than the run would have had."""
    compared = SETTINGS.keys() - {*MAY_CHANGE, "max_steps"}
    was, now = (
        {"config": {name: value for name, value in some.items() if name in compared}} | others
        for some, others in ((before.settings, before.ingredients), (json.loads(as_json(settings)), prints))
    )
    checkpoints = [entry["model"] for entry in before.checkpoints.values()]  # whose weights are about to be loaded
    for name, new in now.items():
        old = was[name]
        if old is None or new is None or (name == "model" and new in checkpoints):
            continue  # evaluations may begin, or stop; a loop of one's own has no rewards to compare
        if unknown := new.get(UNKNOWN):
            raise InputError(
                f"{name} holds {unknown[0]}, which cannot be compared with what the run in {str(folder)!r} began with; "
                "give it a text as its attribute `fingerprint`, from the start on, which says what it is, or start a "
                "new run in another folder"
            )
        if changed := [key for key in old | new if old.get(key) != new.get(key)]:
            listed = ", ".join(f"{key}: was {old.get(key)!r}, is {new.get(key)!r}" for key in changed)
            raise InputError(
                f"{name} differs from that of the run in {str(folder)!r} ({listed}); take what it began with, or start "
                "a new run in another folder"
            )


def check_length(folder: Path, done: int, before: dict, settings: dict) -> None:
    """Raise InputError if `max_steps` is less than what is done already; print what another length changes."""
    was, now, schedule = before["max_steps"], settings["max_steps"], settings["lr_scheduler_type"]
    if now < done:
        raise InputError("max_steps", now, f"expected at least {done}: {str(folder)!r} has those steps already")
    if now != was and not schedule.startswith("constant"):
        print(f"max_steps was {was}, is {now}: from here on the {schedule} schedule is that of a run of {now} steps")


def _of_rows(dataset: Rows) -> dict:
    return {"rows": len(dataset), "contents": _hash([_hash(dataset[index]) for index in range(len(dataset))])}


def _of_tokenizer(tokenizer) -> dict:
    """Of its vocabulary, merges, template and end: what decides which tokens a prompt becomes, and where one ends."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    merges = json.loads(core.to_str())["model"].get("merges") if core is not None else None
    ends = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    parts = [sorted(tokenizer.get_vocab().items()), merges, tokenizer.chat_template, ends]
    return {"tokens": len(tokenizer), "contents": _hash(parts)}


def _of_rewards(functions: list) -> dict:
    """Their names in order; what each was made with; the files that define them; what of them cannot be compared."""
    found = [of_function(function) for function in functions]
    prints = {"functions": [one["name"] for one in found], UNKNOWN: [held for one in found for held in one["unknown"]]}
    for place, one in enumerate(found):
        prints[f"{one['name']}, number {place + 1}, made with"] = one["bound"]
        prints |= {file: sha256[:16] for file, sha256 in one["files"].items()}
    return prints


def _printed(value: Any) -> str:
    """Without addresses, which differ from one process to the next."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_printed).encode()).hexdigest()[:16]
