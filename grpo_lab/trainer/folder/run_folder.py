"""The folder of a run: one run at a time, what is written into it, and where the run goes on from.

The manifest says what the run began with ("settings", of which `max_steps` is that of its last part; "ingredients", as
`fingerprints` describes them) and what it owns in the folder: "checkpoints", the newest last, and the files of the
"trained" model. A checkpoint counts as soon as the manifest describes its files; only then it is moved into its place.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Container, Iterable
from pathlib import Path

from filelock import FileLock, Timeout

from grpo_lab.base.checks import InputError
from grpo_lab.base.names import METRICS, SETTINGS_FILE
from grpo_lab.config import MAY_CHANGE, SETTINGS, GRPOConfig
from grpo_lab.models.adapters import ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE
from grpo_lab.trainer.fingerprints import check_same_ingredients, model_fingerprint
from grpo_lab.trainer.folder import checkpoint
from grpo_lab.trainer.folder.checkpoint import UNFINISHED, as_json, flush, publish, write_whole
from grpo_lab.trainer.stopping import RESUME

MANIFEST, LOCK, COMPLETIONS = "grpo_run.json", "grpo_run.lock", "completions.jsonl"
CHANGING = (METRICS, SETTINGS_FILE, COMPLETIONS, "tensorboard", "trackers.json")  # what a run keeps changing
CONTENT = {"settings", "ingredients", "checkpoints", "trained"}  # of the manifest
# What any model has, and any adapter.
MODEL = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    ADAPTER_CONFIG_FILE,
    ADAPTER_WEIGHTS_FILE,
)
_COMPARED = SETTINGS.keys() - {*MAY_CHANGE, "max_steps"}


def explain_disk_errors(method: Callable) -> Callable:
    """Say in one sentence what is wrong with the disk, what is saved, and how to go on once that is mended."""

    @functools.wraps(method)
    def explaining(self, *arguments):
        try:
            return method(self, *arguments)
        except Exception as error:
            os_error = re.search(r"\(os error (\d+)\)", str(error))  # safetensors and tokenizers write in Rust
            number = int(os_error[1]) if os_error else getattr(error, "errno", None)
            if number is None:
                raise
            path = os.fspath(getattr(error, "filename", None) or self.path)
            remedy = "start again, or choose another folder"
            if self.manifest:
                remedy = f"go on with {RESUME}. {self.saved()}"
            problem = f"{path!r} could not be read or written ({os.strerror(number)})"
            raise OSError(number, f"{problem}: mend that, then {remedy}") from error

    return explaining


class RunFolder:
    """A context that locks the output folder of a run against all others, writes to it and reads it again."""

    def __init__(self, config: GRPOConfig, settings: dict):
        self.config, self.path = config, Path(config.output_dir)
        switches = {"resume_from_checkpoint": False, "ignore_reward_changes": False}  # typed for one start alone
        self.settings = json.loads(json.dumps(settings), parse_constant=str) | switches
        self.manifest: dict = {}
        self._lock = FileLock(self.path / LOCK, blocking=False)

    @explain_disk_errors
    def __enter__(self):
        if not (self.path / LOCK).exists():  # else a run may be at work, which is the first thing to be said
            check_folder(self.config)
        try:
            self._lock.acquire()  # makes the folder, too
        except Timeout as error:
            problem = f"output_dir is {str(self.path)!r}, where another run is at work"
            raise BlockingIOError(f"{problem}; wait for its end, stop it, or choose another folder") from error
        return self

    def __exit__(self, *details):
        try:
            for remove in ((self.path / UNFINISHED).rmdir, (self.path / LOCK).unlink):
                with contextlib.suppress(OSError):  # not empty: the run tidies up when it goes on
                    remove()
        finally:
            self._lock.release()  # last, for after it another run may hold the folder

    @explain_disk_errors
    def open(self, model, optimizer, reference, fingerprints: dict) -> tuple[int, list[dict]]:
        """Begin a new run, or load its newest good checkpoint; returns the steps that are done, and their metrics.

        optimizer: None for an engine, which reads its checkpoint itself. fingerprints: those of the run's ingredients.
        """
        self.manifest = check_folder(self.config)  # under the lock: another run may have been at work until now
        state, completions = {"step": 0, "log_history": []}, 0
        changes = {"settings": self.settings, "ingredients": fingerprints, "checkpoints": {}, "trained": {}}
        if self.config.resume_from_checkpoint:
            self._check_same_run(fingerprints)
            if newest := self._newest_good():
                state = checkpoint.load(newest, model, optimizer, reference)
                completions = self.manifest["checkpoints"][newest.name][COMPLETIONS]
                settings = self.manifest["settings"] | self.settings
                changes = {"settings": settings, "checkpoints": self._remove_old_checkpoints(newest.name)}
                print(f"Resumed at step {state['step']} of {self.config.max_steps} from {newest.as_posix()!r}")
            else:
                print(f"No checkpoint in {str(self.path)!r} yet: the run begins at the beginning")
        self._write_manifest(**changes)
        check_folder(self.config)  # a broken checkpoint may stay for what others put into it, and be in the way
        shutil.rmtree(self.path / UNFINISHED, ignore_errors=True)
        write_whole(self.path / SETTINGS_FILE, as_json(self.manifest["settings"], indent=2) + "\n")
        write_whole(self.path / METRICS, "".join(as_json(metrics) + "\n" for metrics in state["log_history"]))
        if (path := self.path / COMPLETIONS).is_file():  # the other steps are made again
            os.truncate(path, min(completions, path.stat().st_size))
        return state["step"], state["log_history"]

    @explain_disk_errors
    def append(self, name: str, records: Iterable[dict]) -> None:
        """Append lines of JSON to a file of the run; those after a checkpoint go when the run goes on from it."""
        with open(self.path / name, "a", encoding="utf-8", newline="\n") as file:
            file.writelines(as_json(record) + "\n" for record in records)
        flush(self.path / name)

    @explain_disk_errors
    def save_checkpoint(self, step: int, *parts) -> None:
        """Make a checkpoint of a step, with the parts of `checkpoint.write`; remove those beyond `save_total_limit`."""
        write = functools.partial(checkpoint.write, self.path / UNFINISHED / f"checkpoint-{step}", *parts)
        self._save(step, write, model_fingerprint(parts[0]))

    @explain_disk_errors
    def adopt_checkpoint(self, step: int, written: Path, history: list[dict]) -> None:
        """Make a checkpoint of a step of what an engine has written into a folder, which it reads by itself."""
        unfinished = self.path / UNFINISHED / f"checkpoint-{step}"
        state = {"step": step, "log_history": history}
        self._save(step, functools.partial(checkpoint.adopt, written, unfinished, state))

    def _save(self, step: int, write: Callable[[], dict], fingerprint: dict | None = None) -> None:
        name, completions = f"checkpoint-{step}", self.path / COMPLETIONS
        check_free(self.path, [name], ())
        entry = {"model": fingerprint, "files": write()}
        entry[COMPLETIONS] = completions.stat().st_size if completions.is_file() else 0
        self._write_manifest(checkpoints=self.manifest["checkpoints"] | {name: entry})
        publish(self.path / UNFINISHED / name, self.path / name)
        self._write_manifest(checkpoints=self._remove_old_checkpoints(name))

    @explain_disk_errors
    def save_model(self, model, tokenizer) -> None:
        """Write the trained model beside the metrics, as a normal transformers checkpoint; each file is whole."""
        unfinished = self.path / UNFINISHED / "model"
        files = checkpoint.write(unfinished, model, tokenizer)
        check_free(self.path, files, self.manifest["trained"])
        self._write_manifest(trained=files)
        for name in files:
            (self.path / name).parent.mkdir(exist_ok=True)
            publish(unfinished / name, self.path / name)
        shutil.rmtree(unfinished)

    def saved(self) -> str:
        """Say which checkpoint is on the disk."""
        newest = [*self.manifest.get("checkpoints", [])][-1:]
        return f"{(self.path / newest[0]).as_posix()!r} is saved." if newest else "No checkpoint is saved yet."

    def _check_same_run(self, fingerprints: dict) -> None:
        """Raise InputError for the first thing that would lead to other numbers."""
        old_settings, new_settings = self.manifest["settings"], self.settings
        old_config, new_config = (
            {"config": {name: settings.get(name) for name in _COMPARED}} for settings in (old_settings, new_settings)
        )
        if fingerprints.get("model") in [entry["model"] for entry in self.manifest["checkpoints"].values()]:
            fingerprints = fingerprints | {"model": None}  # such as after Ctrl-C in a notebook
        if self.config.ignore_reward_changes:
            fingerprints = fingerprints | {"reward_funcs": None}
        check_same_ingredients(self.manifest["ingredients"] | old_config, new_config | fingerprints, str(self.path))
        old_max_steps, max_steps = old_settings["max_steps"], new_settings["max_steps"]
        schedule = new_settings["lr_scheduler_type"]
        if max_steps < (done := max((int(name.split("-")[1]) for name in self.manifest["checkpoints"]), default=0)):
            expected = f"expected at least {done}: {str(self.path)!r} has those steps already"
            raise InputError("max_steps", max_steps, expected)
        if max_steps != old_max_steps and not schedule.startswith("constant"):
            print(f"max_steps was {old_max_steps}: from here on the {schedule} schedule is that of {max_steps}")

    def _newest_good(self) -> Path | None:
        """The newest checkpoint that is as it was written; those after it, which are not, are reported."""
        for name, entry in reversed(self.manifest["checkpoints"].items()):
            path, unfinished = self.path / name, self.path / UNFINISHED / name
            if unfinished.is_dir() and not path.exists():  # the run was killed before it moved it
                publish(unfinished, path)
            digests = checkpoint.file_digests(path)
            wrong_files = [file for file, written in entry["files"].items() if digests.get(file) != written]
            if not wrong_files:
                return path
            first = wrong_files[0]
            fault = "not what was written: its size or its checksum differs" if first in digests else "missing"
            print(f"{str(path)!r} is broken ({first} is {fault})")
        if self.manifest["checkpoints"]:
            remedy = "restore one from a copy, or start a new run in another folder. Nothing has been removed"
            raise InputError(f"no checkpoint in {str(self.path)!r} is whole; {remedy}")
        return None

    def _write_manifest(self, **changes) -> None:
        self.manifest = self.manifest | changes
        signed = {"checksum": _checksum(self.manifest)} | self.manifest
        write_whole(self.path / MANIFEST, as_json(signed, indent=1) + "\n")

    def _remove_old_checkpoints(self, newest: str) -> dict[str, dict]:
        """Keep this checkpoint and the `save_total_limit` newest; remove the others, but no files of others.

        They are forgotten after that: a removal that was cut short is repeated.
        """
        known = self.manifest["checkpoints"]
        names = [*known][: [*known].index(newest) + 1]
        remaining = names[-(self.config.save_total_limit or 0) :]
        for path in [self.path / name for name in known if name not in remaining]:
            if path.exists() and checkpoint.names_below(path) <= known[path.name]["files"].keys():
                shutil.rmtree(path)
        return {name: known[name] for name in names if (self.path / name).exists()}


def check_folder(config: GRPOConfig) -> dict:
    """The manifest in the output folder, if the folder is fit for this run; empty if there is none. Nothing is changed.

    Raises FileExistsError if the run would write over another run, a model or another file; FileNotFoundError if there
    is no run to resume.
    """
    folder, resume = Path(config.output_dir), config.resume_from_checkpoint
    manifest, metrics = _read_manifest(folder / MANIFEST), folder / METRICS
    if resume and not manifest:
        state = f"holds no {MANIFEST}" if folder.exists() else "does not exist"
        remedy = f"expected a run in {str(folder)!r}, which {state}; leave it out to start one, in a new folder"
        raise FileNotFoundError(f"resume_from_checkpoint is True; {remedy}")
    owned_names = {name.split("/")[0] for part in ("checkpoints", "trained") for name in manifest.get(part, ())}
    has_run = owned_names or (manifest and metrics.is_file() and metrics.stat().st_size)  # else it is no obstacle
    if has_run and not resume:
        remedy = f"choose another folder, or continue it with {RESUME}"
        raise FileExistsError(f"output_dir {str(folder)!r} holds a run already; {remedy}")
    checkpoints = [path.name for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    check_free(folder, [*CHANGING, *MODEL, *checkpoints], {*CHANGING, *owned_names} if manifest else ())
    return manifest


def check_free(folder: Path, names: Iterable[str], owned_names: Container[str]) -> None:
    """Raise FileExistsError if files or folders with these names are there and are not the run's."""
    if taken_names := [name for name in names if name not in owned_names and (folder / name).exists()]:
        problem = f"holds {', '.join(taken_names)}, not written by this run, which needs the name"
        raise FileExistsError(f"output_dir {str(folder)!r} {problem}; move it away, or choose another folder")


def _read_manifest(path: Path) -> dict:
    """The manifest, empty if there is none. Raises InputError if it is damaged."""
    if not path.is_file():
        return {}
    with contextlib.suppress(ValueError, KeyError, AttributeError, TypeError):
        content = json.loads(path.read_bytes().decode("utf-8"))
        if content.pop("checksum") == _checksum(content) and content.keys() == CONTENT:
            return content
    raise InputError(
        f"{str(path)!r} is not what the run wrote: it was edited, cut or damaged. Restore it from a copy, or resume "
        "with the version of grpo_lab that wrote it; or start a new run in another folder, with a checkpoint as model"
    )


def _checksum(content: dict) -> str:
    return hashlib.sha256(as_json(content, sort_keys=True).encode()).hexdigest()
