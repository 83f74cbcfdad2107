"""`grpo_run.json`: what a run owns in its folder, and what it began with. Nothing that it does not name is touched.

A run with other settings or ingredients would get other numbers. Model, data and tokenizer are compared by content,
wherever they lie; a reward function by the file that defines it and by what it was made with. What cannot be compared
is refused on resuming, unless it says what it is.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from grpo_lab.commands.checks import InputError
from grpo_lab.config import MAY_CHANGE, SETTINGS, SETTINGS_FILE, GRPOConfig
from grpo_lab.rewards import scoring
from grpo_lab.rewards.made_with import of_function
from grpo_lab.tasks import Rows
from grpo_lab.trainer.folder.checkpoint import as_json, write_whole
from grpo_lab.trainer.stopping import RESUME

MANIFEST = "grpo_run.json"
METRICS, COMPLETIONS = "metrics.jsonl", "completions.jsonl"
CHANGING = (METRICS, SETTINGS_FILE, COMPLETIONS, "tensorboard")  # files and folders that a run keeps changing
UNKNOWN = "what cannot be compared"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
MODEL = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")  # what any model has


@dataclass(frozen=True)
class Manifest:
    """All names are relative to the folder, with slashes. Files are described by size in bytes and SHA-256.

    settings: with which the run began; `max_steps` is that of its last part.
    ingredients: model, data set, rewards, tokenizer and engine at its beginning, as `fingerprints` describes them.
    checkpoints: by name: "step", "files", "model" (its fingerprint), and how long the files of lines were.
    model: the files of the trained model, beside the metrics.
    """

    settings: dict
    ingredients: dict
    checkpoints: dict[str, dict] = field(default_factory=dict)
    model: dict[str, list] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        content = asdict(self)
        write_whole(folder / MANIFEST, as_json({"checksum": _checksum(content)} | content, indent=1) + "\n")

    def newest_first(self) -> list[str]:
        return sorted(self.checkpoints, key=lambda name: -self.checkpoints[name]["step"])

    def surplus(self, limit: int | None) -> list[str]:
        """The oldest checkpoints, for which a limit has no room."""
        return self.newest_first()[limit or len(self.checkpoints) :]

    def check_same_run(self, folder: Path, settings: dict, prints: dict) -> None:
        """Raise InputError for the first thing that would lead to other numbers; print what another length changes."""
        was, now = self.ingredients | {"config": _compared(self.settings)}, {"config": _compared(settings)} | prints
        checkpoints = [entry["model"] for entry in self.checkpoints.values()]  # such as after Ctrl-C in a notebook
        for name, new in now.items():
            old = was[name]
            if old is None or new is None or (name == "model" and new in checkpoints):
                continue  # evaluations may begin, or stop; a loop of one's own has no rewards to compare
            if unknown := new.get(UNKNOWN):
                raise InputError(
                    f"{name} holds {unknown[0]}, which cannot be compared with what the run began with; give it, from "
                    "the start on, a text as its attribute `fingerprint`, or start a new run in another folder"
                )
            if changed := [key for key in old | new if old.get(key) != new.get(key)]:
                listed = ", ".join(f"{key}: was {old.get(key)!r}, is {new.get(key)!r}" for key in changed)
                wanted = "take what it began with, or start a new run in another folder"
                raise InputError(f"{name} differs from that of the run in {str(folder)!r} ({listed}); {wanted}")
        done = max((entry["step"] for entry in self.checkpoints.values()), default=0)
        length, schedule = settings["max_steps"], settings["lr_scheduler_type"]
        if length < done:
            raise InputError("max_steps", length, f"expected at least {done}: {str(folder)!r} has those steps already")
        if length != self.settings["max_steps"] and not schedule.startswith("constant"):
            print(
                f"max_steps was {self.settings['max_steps']}: from here on the {schedule} schedule is that of {length}"
            )


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


def check_folder(config: GRPOConfig) -> Manifest | None:
    """The manifest in the output folder, if the folder is fit for this run. Nothing is changed.

    Raises FileExistsError if the run would write over another run, a model or another file; FileNotFoundError if there
    is no run to resume.
    """
    folder, manifest = Path(config.output_dir), read_manifest(Path(config.output_dir))
    if config.resume_from_checkpoint and manifest is None:
        which = f"holds no {MANIFEST}" if folder.exists() else "does not exist"
        wanted = f"expected a run in {str(folder)!r}, which {which}; leave it out to start one, in a new folder"
        raise FileNotFoundError(f"resume_from_checkpoint is True; {wanted}")
    ours, past = set(), 0
    if manifest is not None:
        begun = (folder / METRICS).is_file() and (folder / METRICS).stat().st_size > 0  # else it is no obstacle
        if (manifest.checkpoints or begun) and not config.resume_from_checkpoint:
            raise FileExistsError(
                f"output_dir {str(folder)!r} holds a run already; choose another folder, or continue it with {RESUME}"
            )
        ours = {*CHANGING, *manifest.checkpoints, *(name.split("/")[0] for name in manifest.model)}
        # Where the run has gone past a step, it makes no checkpoint of it any more.
        past = min((entry["step"] for entry in manifest.checkpoints.values()), default=0)
    check_free(folder, [path.name for path in sorted(folder.glob("*")) if _is_needed(path.name, past)], ours)
    return manifest


def _is_needed(name: str, past: int) -> bool:
    found = CHECKPOINT.fullmatch(name)
    return name in (*CHANGING, *MODEL) or (found is not None and int(found[1]) > past)


def check_free(folder: Path, names: Iterable[str], ours: Container[str]) -> None:
    """Raise FileExistsError if files or folders with these names are there and are not the run's."""
    if found := [name for name in names if name not in ours and (folder / name).exists()]:
        wanted = "move it away, or choose another folder"
        said = f"holds {', '.join(found)}, not written by this run, which needs the name; {wanted}"
        raise FileExistsError(f"output_dir {str(folder)!r} {said}")


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


def _compared(settings: dict) -> dict:
    """As they come back from JSON; without those that change no number."""
    names = SETTINGS.keys() - {*MAY_CHANGE, "max_steps"}
    return json.loads(as_json({name: value for name, value in settings.items() if name in names}))


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


def _hash(value: Any) -> str:
    """Without addresses, which differ from one process to the next."""
    text = json.dumps(value, sort_keys=True, default=lambda other: re.sub(r" at 0x[0-9a-fA-F]+", "", repr(other)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _checksum(content: dict) -> str:
    return hashlib.sha256(as_json(content, sort_keys=True).encode()).hexdigest()
