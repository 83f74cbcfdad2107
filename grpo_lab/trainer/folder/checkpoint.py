"""What survives a crash: files and checkpoints are written elsewhere, flushed to the disk, and then moved into place.

A checkpoint is a normal one of transformers, and beside it what only this trainer reads. Tensors are safetensors and
the rest is JSON: nothing is ever unpickled.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from grpo_lab.base.checks import InputError
from grpo_lab.models.adapters import has_adapter, load_adapter_weights
from grpo_lab.models.loading import without_bars

UNFINISHED = "grpo_run.unfinished"  # the run's own folder for what is not finished
ENGINE_STATE = "grpo_state.json"  # in a checkpoint that an engine wrote, whose other files the engine itself reads
_OPTIMIZER, _STATE, _REFERENCE = "optimizer.safetensors", "trainer_state.json", "reference"


def write(folder: Path, model, tokenizer, optimizer=None, state=None, reference=None) -> dict[str, list]:
    """Write a checkpoint, or the model alone, into a folder that does not exist yet, and flush it; return its digests.

    After an error nothing of it is left, so that the disk has its room back.
    """
    folder.mkdir(parents=True)
    try:
        with without_bars():  # they would break up the progress bar of the run
            model.save_pretrained(folder)
            if reference is not None:
                reference.save_pretrained(folder / _REFERENCE)
        tokenizer.save_pretrained(folder)
        if state is not None:
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in optimizer.tensors().items()}
            save_file(tensors, folder / _OPTIMIZER)
            (folder / _STATE).write_text(as_json(state | optimizer.state()), encoding="utf-8")
        for path in (*folder.rglob("*"), folder):
            flush(path)
        return file_digests(folder)
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def adopt(written: Path, folder: Path, state: dict) -> dict[str, list]:
    """Move what an engine has written into a folder that does not exist yet, with the state of the run beside it.

    It is flushed; returns its digests.
    """
    os.replace(written, folder)
    (folder / ENGINE_STATE).write_text(as_json(state), encoding="utf-8")
    for path in (*folder.rglob("*"), folder):
        flush(path)
    return file_digests(folder)


def check_savable(model, tokenizer) -> None:
    """Save all but the weights once, for trial: what transformers refuses to write would else end a run at its end.

    Raises:
        InputError: with what transformers says.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, part, settings in (("model", model, {"state_dict": {}}), ("tokenizer", tokenizer, {})):
            try:
                with without_bars():
                    part.save_pretrained(folder, **settings)
            except Exception as error:
                if getattr(error, "errno", None) is not None:  # of the disk
                    raise
                problem = f"is one that transformers refuses to save: {error}"
                raise InputError(
                    name, part, "mend that first: no step of the run could be kept", found=problem
                ) from error


def load(folder: Path, model, optimizer, reference=None) -> dict:
    """Load a checkpoint into the model, the optimizer and the reference; returns the state, which alone is an engine's.

    optimizer: None for an engine, which reads the rest itself.
    """
    if optimizer is None:
        return json.loads((folder / ENGINE_STATE).read_text(encoding="utf-8"))
    load_weights(folder, model)
    if reference is not None:
        load_weights(folder / _REFERENCE, reference)
    state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    optimizer.load(state, load_file(folder / _OPTIMIZER))
    return state


def load_weights(folder: Path, model) -> None:
    """Put the weights of a checkpoint into a model of the same shape and type; those of an adapter into its adapter."""
    if has_adapter(model):
        load_adapter_weights(folder, model)
        return
    with without_bars():
        loaded = type(model).from_pretrained(folder, local_files_only=True, use_safetensors=True, dtype="auto")
    model.load_state_dict(loaded.state_dict())


def file_digests(folder: Path) -> dict[str, list]:
    """Size in bytes and SHA-256 of every file below a folder, by its path in it, with slashes."""
    files = {}
    for name in sorted(names_below(folder)):
        with open(folder / name, "rb") as file:
            files[name] = [os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()]
    return files


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
