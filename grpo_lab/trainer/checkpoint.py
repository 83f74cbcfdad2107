"""Files of a run. Each is written whole or not at all; tensors are safetensors, nothing is ever unpickled."""

import json
import os
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from grpo_lab.models.loading import without_bars

METRICS, CONFIG = "metrics.jsonl", "grpo_config.json"
_OPTIMIZER, _STATE, _REFERENCE = "optimizer.safetensors", "trainer_state.json", "reference"


def start(folder: Path, config: dict) -> None:
    """Open the folder of a new run: its settings, and empty metrics."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    _write(folder / METRICS, "")


def append_metrics(folder: Path, metrics: dict) -> None:
    with open(folder / METRICS, "a", encoding="utf-8") as file:
        file.write(json.dumps(metrics) + "\n")


def read_metrics(folder: Path, keep: int) -> list[dict]:
    """The first `keep` lines; what a killed run wrote after its last checkpoint is dropped from the file too."""
    lines = (folder / METRICS).read_text(encoding="utf-8").splitlines()[:keep]
    _write(folder / METRICS, "".join(line + "\n" for line in lines))
    return [json.loads(line) for line in lines]


def read_config(folder: Path) -> dict | None:
    """The settings of the run in the folder; None if there is none."""
    path = folder / CONFIG
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def contents(folder: Path) -> str | None:
    """What a new run would destroy in the folder; None if there is nothing. A run without a single step is nothing."""
    metrics = folder / METRICS
    if latest(folder) or (metrics.is_file() and metrics.stat().st_size):
        return "a run"
    return "a model" if (folder / "config.json").is_file() else None


def save(folder: Path, step: int, model, tokenizer, optimizer_tensors: dict, state: dict, reference=None) -> None:
    """Write checkpoint-<step> under another name, then rename it: a reader never sees half of it."""
    final, unfinished = folder / f"checkpoint-{step}", folder / f"unfinished-checkpoint-{step}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    _save_pretrained(unfinished, model, tokenizer)
    save_file({name: t.detach().cpu().contiguous() for name, t in optimizer_tensors.items()}, unfinished / _OPTIMIZER)
    if reference is not None:
        with without_bars():
            reference.save_pretrained(unfinished / _REFERENCE)
    _write(unfinished / _STATE, json.dumps(state))
    os.replace(unfinished, final)
    tidy(folder, keep=final)


def tidy(folder: Path, keep: Path | None) -> None:
    """Remove the checkpoints but one, and whatever a killed run left unfinished."""
    for path in (*folder.glob("checkpoint-*"), *folder.glob("unfinished-*")):
        if path != keep:
            shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob("*.unfinished"):
        path.unlink()


def latest(folder: Path) -> Path | None:
    """The checkpoint with the highest step, or None."""
    found = [p for p in folder.glob("checkpoint-*") if (p / _STATE).is_file()]
    return max(found, key=lambda p: int(p.name.rsplit("-", 1)[1]), default=None)


def load(found: Path, model, reference=None) -> tuple[dict, dict]:
    """Put the saved weights into the model (and into the reference, if saved); returns state and optimizer tensors."""
    _load_weights(found, model)
    if reference is not None and (found / _REFERENCE).is_dir():
        _load_weights(found / _REFERENCE, reference)
    state = json.loads((found / _STATE).read_text(encoding="utf-8"))
    return state, load_file(found / _OPTIMIZER)


def save_model(folder: Path, model, tokenizer) -> None:
    """Put the trained model beside the metrics as a normal transformers checkpoint, file by file, each one whole."""
    unfinished = folder / "unfinished-model"
    shutil.rmtree(unfinished, ignore_errors=True)
    _save_pretrained(unfinished, model, tokenizer)
    for file in unfinished.iterdir():
        os.replace(file, folder / file.name)
    unfinished.rmdir()


def _save_pretrained(folder: Path, model, tokenizer) -> None:
    with without_bars():  # they would break up the bar of the run
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _load_weights(folder: Path, model) -> None:
    with without_bars():
        loaded = type(model).from_pretrained(folder, dtype="auto", use_safetensors=True, local_files_only=True)
    if loaded.dtype != model.dtype:
        raise ValueError(
            f"model has {model.dtype} weights; expected {loaded.dtype}, as in the checkpoint and when the run began"
        )
    model.load_state_dict(loaded.state_dict())


def _write(path: Path, text: str) -> None:
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)
