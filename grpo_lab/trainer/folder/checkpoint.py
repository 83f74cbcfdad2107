"""One checkpoint: a normal transformers checkpoint, and beside it what only this trainer reads.

Tensors are safetensors and the rest is JSON: nothing is ever unpickled.
"""

import json
from pathlib import Path

from safetensors.torch import load_file, save_file

from grpo_lab.commands.checks import InputError
from grpo_lab.models.loading import without_bars
from grpo_lab.trainer.folder.files import as_json, flush_and_describe

ENGINE_STATE = "grpo_state.json"  # in a checkpoint that an engine wrote, whose other files the engine itself reads
_OPTIMIZER, _STATE, _REFERENCE = "optimizer.safetensors", "trainer_state.json", "reference"


def check_savable(model) -> None:
    """Raise InputError if transformers would refuse to save the model, which it does for some that it has loaded."""
    if model.can_generate():
        try:
            model.generation_config.validate(strict=True)
        except ValueError as error:
            raise InputError(
                f"model.generation_config cannot be saved with a checkpoint ({' '.join(str(error).split())[:200]}...); "
                "set it right first, here or in generation_config.json of the model's folder"
            ) from error


def write(folder: Path, model, tokenizer, optimizer_tensors=None, state=None, reference=None) -> dict[str, list]:
    """Write a checkpoint, or the model alone, into a folder that does not exist yet, and flush it to the disk.

    Returns:
        Size and checksum of each of its files.
    """
    folder.mkdir(parents=True)
    with without_bars():  # they would break up the progress bar of the run
        model.save_pretrained(folder)
        if reference is not None:
            reference.save_pretrained(folder / _REFERENCE)
    tokenizer.save_pretrained(folder)
    if state is not None:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in optimizer_tensors.items()}
        save_file(tensors, folder / _OPTIMIZER)
        (folder / _STATE).write_text(as_json(state), encoding="utf-8")
    return flush_and_describe(folder)


def load(folder: Path, files: dict[str, list], model, reference=None) -> tuple[dict, dict]:
    """Put the saved weights into the model (and into the reference, if saved); returns state and optimizer tensors.

    Args:
        files: as `write` returned them. No other file of the folder is looked at. Of an engine's checkpoint, the state
            alone is.
    """
    if ENGINE_STATE in files:
        return json.loads((folder / ENGINE_STATE).read_text(encoding="utf-8")), {}
    load_weights(folder, files, model)
    below = [name.removeprefix(f"{_REFERENCE}/") for name in files if name.startswith(f"{_REFERENCE}/")]
    if reference is not None and below:
        load_weights(folder / _REFERENCE, below, reference)
    return json.loads((folder / _STATE).read_text(encoding="utf-8")), load_file(folder / _OPTIMIZER)


def load_weights(folder: Path, files, model) -> None:
    """Put the weights in these files of a folder into a model of the same shape and type."""
    names = [name for name in files if name.endswith(".safetensors") and "/" not in name and name != _OPTIMIZER]
    saved = {name: tensor for file in names for name, tensor in load_file(folder / file).items()}
    with without_bars():
        loaded = type(model).from_pretrained(None, config=model.config, state_dict=saved, dtype="auto")
    model.load_state_dict(loaded.state_dict())
