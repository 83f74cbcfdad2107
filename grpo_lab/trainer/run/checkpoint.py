"""Writing checkpoints so that a crash leaves no partial ones: write, flush to the disk, move into place.

A checkpoint is a normal transformers checkpoint with additional files that only this trainer reads. Tensors are stored
as safetensors and everything else as JSON: nothing is ever unpickled.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from grpo_lab.base.checks import InputError
from grpo_lab.base.files import flush
from grpo_lab.models.adapters import has_adapter, load_adapter_weights
from grpo_lab.models.loading import without_progress_bars

UNFINISHED_FOLDER = "grpo_run.unfinished"  # folder for files that are still being written
ENGINE_STATE_FILE = "grpo_state.json"  # file with the state of the run in a checkpoint that an engine such as TRL wrote
_OPTIMIZER_FILE, _STATE_FILE, _REFERENCE_FOLDER = "optimizer.safetensors", "trainer_state.json", "reference"


def write(folder: Path, history: list[dict], model, tokenizer, optimizer, reference) -> dict[str, list]:
    """Write a checkpoint into a new folder, and flush it; return the digests of its files.

    Args:
        folder: The folder to create.
        history: The metrics of each completed step.
        model: The policy.
        tokenizer: The tokenizer of the policy.
        optimizer: The optimizer whose state is saved.
        reference: The reference model. None: it is not saved.
    """
    with _new_folder(folder):
        _save_model(folder, model, tokenizer)
        if reference is not None:
            with without_progress_bars():
                reference.save_pretrained(folder / _REFERENCE_FOLDER)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in optimizer.tensors().items()}
        save_file(tensors, folder / _OPTIMIZER_FILE)
        (folder / _STATE_FILE).write_text(as_json(_state_of_run(history) | optimizer.state()), encoding="utf-8")
        return _flushed_digests(folder)


def write_model(folder: Path, model, tokenizer) -> dict[str, list]:
    """Write a model and its tokenizer into a new folder, and flush it; return the digests of its files."""
    with _new_folder(folder):
        _save_model(folder, model, tokenizer)
        return _flushed_digests(folder)


def adopt(engine_checkpoint: Path, folder: Path, history: list[dict]) -> dict[str, list]:
    """Move a checkpoint that an engine has written to a new folder, add the state of the run, and flush it.

    Args:
        engine_checkpoint: The folder that the engine has written.
        folder: The new place of the checkpoint; it does not exist yet.
        history: The metrics of each completed step.

    Returns:
        The digests of the files of the checkpoint.
    """
    os.replace(engine_checkpoint, folder)
    (folder / ENGINE_STATE_FILE).write_text(as_json(_state_of_run(history)), encoding="utf-8")
    return _flushed_digests(folder)


def _state_of_run(history: list[dict]) -> dict:
    """Return what a checkpoint records of the run, under the names of transformers' trainer."""
    return {"step": len(history), "log_history": history}


@contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Create a folder; remove it after an error in the `with` block, so that it does not take up disk space."""
    folder.mkdir(parents=True)
    try:
        yield
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _save_model(folder: Path, model, tokenizer) -> None:
    with without_progress_bars():  # progress bars of transformers would interrupt the bar of the run
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def check_savable(model, tokenizer) -> None:
    """Save the tokenizer, and the model without its weights, as a test that transformers can save them.

    Without this test a run would fail only after its last step.

    Raises:
        InputError: with the error message of transformers, if it refuses to save one of the two.
    """
    components: list[tuple[str, Any, dict]] = [("model", model, {"state_dict": {}}), ("tokenizer", tokenizer, {})]
    with tempfile.TemporaryDirectory() as folder:
        for name, component, settings in components:
            try:
                with without_progress_bars():
                    component.save_pretrained(folder, **settings)
            except Exception as error:
                if getattr(error, "errno", None) is not None:
                    raise  # an error of the disk and not of the model
                problem = f"is one that transformers refuses to save: {error}"
                raise InputError(
                    name, component, "fix that first: no step of the run could be saved", problem=problem
                ) from error


def load(folder: Path, model, optimizer, reference) -> list[dict]:
    """Load a checkpoint into the model, the optimizer and the reference; return the metrics of each completed step.

    Args:
        folder: The checkpoint.
        model: The model that gets the weights of the policy.
        optimizer: The optimizer that gets the saved state.
        reference: The reference model that gets the saved weights. None: the checkpoint has no reference.
    """
    load_weights(folder, model)
    if reference is not None:
        load_weights(folder / _REFERENCE_FOLDER, reference)
    state = json.loads((folder / _STATE_FILE).read_text(encoding="utf-8"))
    optimizer.load(state, load_file(folder / _OPTIMIZER_FILE))
    return state["log_history"]


def read_engine_history(folder: Path) -> list[dict]:
    """Read the metrics of each completed step from a checkpoint that an engine wrote; it loads the weights itself."""
    return json.loads((folder / ENGINE_STATE_FILE).read_text(encoding="utf-8"))["log_history"]


def load_weights(folder: Path, model) -> None:
    """Load the weights of a checkpoint into a model of the same shapes and types; with LoRA, only the adapter."""
    if has_adapter(model):
        load_adapter_weights(folder, model)
        return
    with without_progress_bars():
        loaded = type(model).from_pretrained(folder, local_files_only=True, use_safetensors=True, dtype="auto")
    model.load_state_dict(loaded.state_dict())


def _flushed_digests(folder: Path) -> dict[str, list]:
    """Flush a folder and everything in it to the disk; return the digests of its files."""
    for path in (*folder.rglob("*"), folder):
        flush(path)
    return file_digests(folder)


def file_digests(folder: Path) -> dict[str, list]:
    """Return size in bytes and SHA-256 of every file below a folder, by its path in the folder, with slashes."""
    digests = {}
    for name in sorted(names_below(folder)):
        with open(folder / name, "rb") as file:
            digests[name] = [os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()]
    return digests


def names_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def as_json(value: Any, **options) -> str:
    """Return JSON text with unescaped letters; NaN and infinity, which JSON cannot represent, become null.

    options: Further arguments of `json.dumps`.
    """
    finite = json.loads(json.dumps(value), parse_constant=lambda name: None)
    return json.dumps(finite, ensure_ascii=False, allow_nan=False, **options)
