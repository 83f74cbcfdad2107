"""What survives a crash: files and checkpoints are written elsewhere, flushed to the disk, and then moved into place.

A checkpoint is a normal one of transformers, and beside it what only this trainer reads. Tensors are safetensors and
the rest is JSON: nothing is ever unpickled. `grpo_run.json` says what a run owns in its folder, and what it began with.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from grpo_lab.commands.checks import InputError
from grpo_lab.config import MAY_CHANGE, SETTINGS
from grpo_lab.models.loading import without_bars
from grpo_lab.trainer.given import check_same

MANIFEST = "grpo_run.json"
UNFINISHED = "grpo_run.unfinished"  # the run's own folder for what is not finished
_OPTIMIZER, _STATE, _REFERENCE = "optimizer.safetensors", "trainer_state.json", "reference"
_COMPARED = SETTINGS.keys() - {*MAY_CHANGE, "max_steps"}


@dataclass(frozen=True)
class Manifest:
    """All names are relative to the folder, with slashes. Files are described by size in bytes and SHA-256.

    settings: with which the run began; `max_steps` is that of its last part.
    ingredients: model, data set, rewards, tokenizer and engine at its beginning, as `fingerprints` describes them.
    checkpoints: by name: "files", "model" (its fingerprint), and how long the file of completions was.
    model: the files of the trained model, beside the metrics.
    """

    settings: dict
    ingredients: dict
    checkpoints: dict[str, dict] = field(default_factory=dict)
    model: dict[str, list] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        content = asdict(self)
        write_whole(folder / MANIFEST, as_json({"checksum": _checksum(content)} | content, indent=1) + "\n")

    @property
    def newest_first(self) -> list[str]:
        return sorted(self.checkpoints, key=step_of, reverse=True)

    @property
    def step(self) -> int:
        """Of the newest checkpoint."""
        return max(map(step_of, self.checkpoints), default=0)

    def check_same_run(self, folder: Path, settings: dict, prints: dict) -> None:
        """Raise InputError for the first thing that would lead to other numbers; print what another length changes."""
        was, now = ({name: each.get(name) for name in _COMPARED} for each in (self.settings, settings))
        began = self.ingredients | {"config": was}
        if prints.get("model") in [entry["model"] for entry in self.checkpoints.values()]:
            prints = prints | {"model": None}  # such as after Ctrl-C in a notebook
        check_same(began, {"config": now} | prints, str(folder))
        before, length, schedule = self.settings["max_steps"], settings["max_steps"], settings["lr_scheduler_type"]
        if length < self.step:
            wanted = f"expected at least {self.step}: {str(folder)!r} has those steps already"
            raise InputError("max_steps", length, wanted)
        if length != before and not schedule.startswith("constant"):
            print(f"max_steps was {before}: from here on the {schedule} schedule is that of {length}")


def step_of(name: str) -> int:
    """The step of a checkpoint; 0 for another name."""
    found = re.fullmatch(r"checkpoint-(\d+)", name)
    return int(found[1]) if found else 0


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest in the folder; None if there is none. Raises InputError if it is damaged."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    with contextlib.suppress(ValueError, KeyError, AttributeError, TypeError):
        content = json.loads(path.read_bytes().decode("utf-8"))
        if content.pop("checksum") == _checksum(content):
            return Manifest(**content)
    raise InputError(
        f"{str(path)!r} is not what the run wrote: it was edited, cut or damaged. Restore it from a copy, or resume "
        "with the version of grpo_lab that wrote it; or start a new run in another folder, with a checkpoint as model"
    )


def check_savable(model) -> None:
    """Raise InputError if transformers would refuse to save the model, which it does for some that it has loaded."""
    try:
        if model.can_generate():
            model.generation_config.validate(strict=True)
    except ValueError as error:
        said = f"cannot be saved with a checkpoint: {' '.join(str(error).split())[:200]}..."
        raise InputError("model.generation_config", None, "set it right first", found=said) from error


def write(folder: Path, model, tokenizer, optimizer=None, state=None, reference=None) -> dict[str, list]:
    """Write a checkpoint, or the model alone, into a folder that does not exist yet; described as by `flushed`."""
    folder.mkdir(parents=True)
    with without_bars():  # they would break up the progress bar of the run
        model.save_pretrained(folder)
        if reference is not None:
            reference.save_pretrained(folder / _REFERENCE)
    tokenizer.save_pretrained(folder)
    if state is not None:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in optimizer.tensors().items()}
        save_file(tensors, folder / _OPTIMIZER)
        (folder / _STATE).write_text(as_json(state | optimizer.state()), encoding="utf-8")
    return flushed(folder)


def load(folder: Path, model, optimizer, reference=None) -> dict:
    """Put what was saved into the model, the optimizer and the reference; returns the state."""
    load_weights(folder, model)
    if reference is not None:
        load_weights(folder / _REFERENCE, reference)
    state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    optimizer.load(state, load_file(folder / _OPTIMIZER))
    return state


def load_weights(folder: Path, model) -> None:
    """Put the weights of a checkpoint into a model of the same shape and type."""
    with without_bars():
        loaded = type(model).from_pretrained(folder, local_files_only=True, use_safetensors=True, dtype="auto")
    model.load_state_dict(loaded.state_dict())


def flushed(folder: Path) -> dict[str, list]:
    """Flush a folder; returns size in bytes and SHA-256 of every file in it, by its path below it, with slashes."""
    for path in (*folder.rglob("*"), folder):
        flush(path)
    return {name: _described(folder / name) for name in sorted(names_below(folder))}


def fault(folder: Path, files: dict[str, list]) -> str | None:
    """How the files in a folder differ from their description, in words; None if they don't. Others may be there."""
    for name, written in files.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if _described(folder / name) != written:
            return f"{name} is not what was written: its size or its checksum differs"
    return None


def _described(path: Path) -> list:
    with open(path, "rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def names_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def write_whole(path: Path, text: str) -> None:
    """Write a file of the run: after a crash it has either the old text or the new one."""
    unfinished = path.parent / UNFINISHED / path.name
    unfinished.parent.mkdir(exist_ok=True)
    unfinished.write_text(text, encoding="utf-8", newline="\n")
    flush(unfinished)
    publish(unfinished, path)


def publish(unfinished: Path, final: Path) -> None:
    """Move a file or folder, itself flushed already, into its place."""
    os.replace(unfinished, final)
    flush(final.parent)


def flush(path: Path) -> None:
    """Wait until a file is on the disk, or the names in a folder, where the system can flush a folder."""
    is_folder = path.is_dir()
    with contextlib.suppress(OSError) if is_folder else contextlib.nullcontext():
        number = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def as_json(value: Any, **how) -> str:
    """JSON with the letters themselves, for people to read; NaN and infinity, which JSON does not have, are null."""
    finite = json.loads(json.dumps(value), parse_constant=lambda name: None)
    return json.dumps(finite, ensure_ascii=False, allow_nan=False, **how)


def as_lines(records: Iterable[dict]) -> str:
    return "".join(as_json(record) + "\n" for record in records)


def _checksum(content: dict) -> str:
    return hashlib.sha256(as_json(content, sort_keys=True).encode()).hexdigest()
