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
from grpo_lab.rewards.made_with import of_function
from grpo_lab.rewards.scoring import listed
from grpo_lab.tasks import Rows
from grpo_lab.trainer.folder.files import as_json
from grpo_lab.trainer.folder.manifest import Manifest

ENGINE = dict.fromkeys(("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"))  # what trains, if not said
ENGINE |= {"engine": "grpo_lab", "use_peft": False, "fsdp": False}


def fingerprints(model, tokenizer, dataset: Rows, reward_funcs, eval_dataset: Rows | None = None) -> dict:
    """What a run begins with, ready for JSON: each ingredient in words, and its checksum."""
    return {
        "model": of_model(model),
        "dataset": _of_rows(dataset),
        "eval_dataset": None if eval_dataset is None else _of_rows(eval_dataset),
        "tokenizer": _of_tokenizer(tokenizer),
        "reward_funcs": None if reward_funcs is None else [of_function(function) for function in listed(reward_funcs)],
    }


def of_model(model) -> list[str]:
    """Of all weights, bit for bit, with their names, shapes and types, and of which of them are trained."""
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    total = hashlib.sha256("\n".join(trained).encode())
    for name, tensor in model.state_dict().items():
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return [f"{len(trained)} parameters that require a gradient", total.hexdigest()]


def check_same_run(folder: Path, before: Manifest, settings: dict, prints: dict) -> None:
    """Raise InputError for the first thing that would lead to other numbers than the run would have had."""
    check_settings(folder, before.settings, settings)
    run, was = f"the run in {str(folder)!r}", before.fingerprints
    checkpoints = [entry["model"] for entry in before.checkpoints.values()]  # whose weights are about to be loaded
    for name in ("model", "dataset", "eval_dataset", "tokenizer"):
        if name == "eval_dataset" and None in (was[name], prints[name]):
            continue  # evaluations begin, or stop: `eval_steps` may change
        if prints[name] not in [was[name], *(checkpoints if name == "model" else [])]:
            then, now = was[name][0], prints[name][0]
            alike = f"its {'weights' if name == 'model' else 'contents'} are not those it began with"
            raise InputError(
                f"{name} differs from that of {run} ({alike if then == now else f'{then} then, {now} now'}); "
                "take the one it began with, or start a new run in another folder"
            )
    if was["reward_funcs"] is not None and prints["reward_funcs"] is not None:
        _check_rewards(run, was["reward_funcs"], prints["reward_funcs"])


def check_settings(folder: Path, before: dict, settings: dict) -> None:
    """Raise InputError unless every setting is what it was, but for `MAY_CHANGE` and `max_steps`."""
    before, now = ENGINE | before, ENGINE | json.loads(as_json(settings))
    compared = SETTINGS.keys() - {*MAY_CHANGE, "max_steps"} | ENGINE.keys()
    changed = {k: (before.get(k), v) for k, v in now.items() if k in compared and before.get(k) != v}
    if changed:
        listed = ", ".join(f"{name}: was {old!r}, is {new!r}" for name, (old, new) in changed.items())
        raise InputError(f"config differs from that of the run in {str(folder)!r} ({listed}); resume it unchanged")


def check_length(folder: Path, done: int, before: dict, settings: dict) -> None:
    """Raise InputError if `max_steps` is less than what is done already; print what another length changes."""
    was, now = before["max_steps"], settings["max_steps"]
    if now < done:
        made = f"the steps that the run in {str(folder)!r} has made"
        raise InputError(f"max_steps is {now}; it must be at least {done}, {made}")
    schedule = settings["lr_scheduler_type"]
    if now != was and not schedule.startswith("constant"):
        print(f"max_steps was {was}, is {now}: from here on the {schedule} schedule is that of a run of {now} steps")


def _check_rewards(run: str, was: list[dict], now: list[dict]) -> None:
    then, here = (", ".join(function["name"] for function in functions) for functions in (was, now))
    if then != here:
        raise InputError(f"reward_funcs is {here}; expected {then}, as in {run} so far")
    for old, new in zip(was, now, strict=True):
        if unknown := [*old.get("unknown", ["what an older grpo_lab did not note"]), *new["unknown"]]:
            what = f"holds {unknown[0]}, which cannot be compared with what {run} began with; give it a text as its "
            what += "attribute `fingerprint`, from the start on, which says what it is"
        elif old["bound"] != new["bound"]:
            then, here = (", ".join(one["bound"]) or "nothing" for one in (old, new))
            what = f"was made with {then}, is made with {here} since {run} began; go on with what it was made with"
        elif other := [file for file, sha256 in old["files"].items() if new["files"].get(file) != sha256]:
            what = f"depends on {other[0]}, which has changed since {run} began; go on with {other[0]} as it was"
        else:
            continue
        raise InputError(f"reward_funcs: {new['name']} {what}, or start a new run in another folder")


def _of_rows(dataset: Rows) -> list[str]:
    total = hashlib.sha256()
    for index in range(len(dataset)):
        total.update(json.dumps(dataset[index], sort_keys=True, default=_printed).encode() + b"\n")
    return [f"{len(dataset):,} rows", total.hexdigest()]


def _of_tokenizer(tokenizer) -> list[str]:
    """Of its vocabulary, merges, template and end: what decides which tokens a prompt becomes, and where one ends."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    merges = json.loads(core.to_str())["model"].get("merges") if core is not None else None
    ends = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    parts = [sorted(tokenizer.get_vocab().items()), merges, tokenizer.chat_template, ends]
    return [f"{len(tokenizer):,} tokens", _hash(parts)]


def _printed(value: Any) -> str:
    """Without addresses, which differ from one process to the next."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, default=_printed).encode()).hexdigest()
