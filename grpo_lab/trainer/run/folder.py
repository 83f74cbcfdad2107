"""The output folder of a run: its lock, the files that the run writes, and resuming from a checkpoint.

The manifest records the inputs of the run and the files that it owns in the folder:

- "settings": the settings; `max_steps` is that of the last start.
- "fingerprints": the fingerprints of the inputs, as `input_fingerprints` returns them.
- "checkpoints": the digests of the files of each checkpoint, the newest last.
- "trained": the digests of the files of the trained model.

A checkpoint is valid as soon as the manifest lists its files. After that it is moved into its place.
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
from typing import Any

from filelock import FileLock, Timeout

from grpo_lab.base.checks import InputError
from grpo_lab.base.files import COMPLETIONS_FILE, METRICS_FILE, SETTINGS_FILE, flush, publish, write_atomically
from grpo_lab.config import MAY_CHANGE_ON_RESUME, SETTINGS, GRPOConfig
from grpo_lab.config.settings import without_default_tool_timeout
from grpo_lab.models.adapters import ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE
from grpo_lab.trainer.run import checkpoint
from grpo_lab.trainer.run.checkpoint import UNFINISHED_FOLDER, as_json
from grpo_lab.trainer.run.fingerprints import check_same_fingerprints, model_fingerprint

RESUME_INSTRUCTION = "resume_from_checkpoint=True (in a command: --resume_from_checkpoint and the name of this folder)"
MANIFEST_FILE = "grpo_run.json"
LOCK_FILE = "grpo_run.lock"
# Files that change during the run.
CHANGING_FILES = (METRICS_FILE, SETTINGS_FILE, COMPLETIONS_FILE, "tensorboard", "trackers.json")
MANIFEST_KEYS = {"settings", "fingerprints", "checkpoints", "trained"}
# Files of a saved model or adapter; a run is refused if its folder holds such a file already.
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    ADAPTER_CONFIG_FILE,
    ADAPTER_WEIGHTS_FILE,
)


def explain_disk_errors(method: Callable) -> Callable:
    """Decorate a method of `RunFolder` so that an error of the disk names the problem, the state and the remedy."""

    @functools.wraps(method)
    def wrapper(self, *arguments):
        try:
            return method(self, *arguments)
        except Exception as error:
            os_error = re.search(r"\(os error (\d+)\)", str(error))  # message of safetensors and tokenizers
            number = int(os_error[1]) if os_error else getattr(error, "errno", None)
            if number is None:
                raise
            path = os.fspath(getattr(error, "filename", None) or self.path)
            remedy = "start again, or choose another folder"
            if self.manifest:
                remedy = f"go on with {RESUME_INSTRUCTION}. {self.describe_saved()}"
            problem = f"{path!r} could not be read or written ({os.strerror(number)})"
            raise OSError(number, f"{problem}: fix that, then {remedy}") from error

    return wrapper


class RunFolder:
    """Context manager that locks the output folder for one run, writes the files of the run and loads checkpoints.

    Args:
        config: The settings of the run, with an `output_dir`.
        settings: The settings to store, by name, ready for JSON.
    """

    def __init__(self, config: GRPOConfig, settings: dict):
        self.config, self.path = config, output_path(config)
        # These two settings hold for one start of the run and are not stored.
        one_time_settings = {"resume_from_checkpoint": False, "ignore_reward_changes": False}
        self.settings = json.loads(json.dumps(settings), parse_constant=str) | one_time_settings
        self.manifest: dict = {}
        self._lock = FileLock(self.path / LOCK_FILE, blocking=False)

    @explain_disk_errors
    def __enter__(self):
        if not (self.path / LOCK_FILE).exists():
            # Skipped if there is a lock: another run may be using the folder, and then that is the error to report.
            check_folder(self.config)
        try:
            self._lock.acquire()  # creates the folder if it does not exist
        except Timeout as error:
            problem = f"output_dir is {str(self.path)!r}, where another run is at work"
            raise BlockingIOError(f"{problem}; wait for its end, stop it, or choose another folder") from error
        return self

    def __exit__(self, *details):
        try:
            for remove in ((self.path / UNFINISHED_FOLDER).rmdir, (self.path / LOCK_FILE).unlink):
                with contextlib.suppress(OSError):  # raised if the folder is not empty; a resumed run removes it
                    remove()
        finally:
            self._lock.release()  # last, since another run may use the folder from now on

    @explain_disk_errors
    def open(self, model, optimizer, reference, fingerprints: dict) -> list[dict]:
        """Begin a new run, or load the newest valid checkpoint of the run in the folder.

        Args:
            model: The policy, which gets the weights of the checkpoint.
            optimizer: The optimizer, which gets the saved state. None: an engine such as TRL loads its checkpoint
                itself.
            reference: The reference model, which gets the saved weights. None: checkpoints have no reference.
            fingerprints: The fingerprints of the inputs of the run, by name.

        Returns:
            The history of the run: the metrics of each completed step. It is empty for a new run.
        """
        self.manifest = check_folder(self.config)  # again, under the lock: another run may have changed the folder
        history: list[dict] = []
        completions_size = 0
        changes = {"settings": self.settings, "fingerprints": fingerprints, "checkpoints": {}, "trained": {}}
        if self.config.resume_from_checkpoint:
            self._check_same_run(fingerprints)
            self._check_max_steps()
            if newest := self._newest_valid():
                if optimizer is None:
                    history = checkpoint.read_engine_history(newest)
                else:
                    history = checkpoint.load(newest, model, optimizer, reference)
                completions_size = self.manifest["checkpoints"][newest.name][COMPLETIONS_FILE]
                settings = self._settings_of_resumed_run(fingerprints)
                changes = {"settings": settings, "checkpoints": self._remove_old_checkpoints(newest.name)}
                print(f"Resumed at step {len(history)} of {self.config.max_steps} from {newest.as_posix()!r}")
            else:
                print(f"No checkpoint in {str(self.path)!r} yet: the run starts from the beginning")
        self._write_manifest(**changes)
        # A broken checkpoint with files that the run did not write was not removed; it would block one of that name.
        check_folder(self.config)
        shutil.rmtree(self.path / UNFINISHED_FOLDER, ignore_errors=True)
        self._write(SETTINGS_FILE, as_json(self.manifest["settings"], indent=2) + "\n")
        self._write(METRICS_FILE, "".join(as_json(metrics) + "\n" for metrics in history))
        if (path := self.path / COMPLETIONS_FILE).is_file():
            # Remove the completions of steps after the checkpoint, since these steps are computed again.
            os.truncate(path, min(completions_size, path.stat().st_size))
        return history

    @explain_disk_errors
    def append(self, name: str, records: Iterable[dict]) -> None:
        """Append records as lines of JSON to a file of the run, and flush it.

        Resuming from a checkpoint removes the lines that were written after it.
        """
        with open(self.path / name, "a", encoding="utf-8", newline="\n") as file:
            file.writelines(as_json(record) + "\n" for record in records)
        flush(self.path / name)

    @explain_disk_errors
    def save_checkpoint(self, history: list[dict], model, tokenizer, optimizer, reference) -> None:
        """Write the checkpoint of the newest step, unless it exists, and remove those beyond `save_total_limit`.

        Args:
            history: The metrics of each completed step.
            model, tokenizer, optimizer, reference: The parts of the checkpoint, as `checkpoint.write` takes them.
        """
        name = checkpoint_name(len(history))
        if name in self.manifest["checkpoints"]:
            return
        check_free(self.path, [name], ())
        digests = checkpoint.write(
            self.path / UNFINISHED_FOLDER / name, history, model, tokenizer, optimizer, reference
        )
        self._publish_checkpoint(name, digests, model_fingerprint(model))

    @explain_disk_errors
    def adopt_checkpoint(self, history: list[dict], engine_checkpoint: Path) -> None:
        """Take over a checkpoint that an engine such as TRL has written as the checkpoint of the newest step.

        Args:
            history: The metrics of each completed step.
            engine_checkpoint: The folder that the engine has written.
        """
        name = checkpoint_name(len(history))
        check_free(self.path, [name], ())
        digests = checkpoint.adopt(engine_checkpoint, self.path / UNFINISHED_FOLDER / name, history)
        self._publish_checkpoint(name, digests, fingerprint=None)

    def _publish_checkpoint(self, name: str, digests: dict[str, list], fingerprint: dict | None) -> None:
        """List a written checkpoint in the manifest, move it into its place, and remove old checkpoints.

        Args:
            name: The name of the checkpoint.
            digests: The digests of its files.
            fingerprint: The fingerprint of its model. None: a run that resumes with this model does not recognise it.
        """
        completions_file = self.path / COMPLETIONS_FILE
        entry: dict[str, Any] = {"model": fingerprint, "files": digests}
        entry[COMPLETIONS_FILE] = completions_file.stat().st_size if completions_file.is_file() else 0
        self._write_manifest(checkpoints=self.manifest["checkpoints"] | {name: entry})
        publish(self.path / UNFINISHED_FOLDER / name, self.path / name)
        self._write_manifest(checkpoints=self._remove_old_checkpoints(name))

    @explain_disk_errors
    def save_model(self, model, tokenizer) -> None:
        """Write the trained model into the folder as a normal transformers checkpoint; no file is ever partial."""
        unfinished = self.path / UNFINISHED_FOLDER / "model"
        digests = checkpoint.write_model(unfinished, model, tokenizer)
        check_free(self.path, digests, self.manifest["trained"])
        self._write_manifest(trained=digests)
        for name in digests:
            (self.path / name).parent.mkdir(exist_ok=True)
            publish(unfinished / name, self.path / name)
        shutil.rmtree(unfinished)

    def describe_saved(self) -> str:
        """Return a sentence that names the newest checkpoint on the disk."""
        newest = [*self.manifest.get("checkpoints", [])][-1:]
        return f"{(self.path / newest[0]).as_posix()!r} is saved." if newest else "No checkpoint is saved yet."

    def _check_same_run(self, fingerprints: dict) -> None:
        """Raise InputError for the first setting or fingerprint that would lead to other results than in this run."""
        # The settings are compared like one more fingerprint, which comes first.
        old_fingerprints = {"config": _compared_settings(self.manifest["settings"])} | self.manifest["fingerprints"]
        new_fingerprints = {"config": _compared_settings(self.settings)} | fingerprints
        if self._is_model_of_checkpoint(fingerprints):
            new_fingerprints["model"] = None
        if self.config.ignore_reward_changes:
            new_fingerprints["reward_funcs"] = None
        check_same_fingerprints(old_fingerprints, new_fingerprints, str(self.path))

    def _check_max_steps(self) -> None:
        """Raise InputError for fewer steps than are saved; say what other numbers of steps mean for the schedule."""
        max_steps, schedule = self.settings["max_steps"], self.settings["lr_scheduler_type"]
        old_max_steps = self.manifest["settings"]["max_steps"]
        saved_steps = [int(name.split("-")[1]) for name in self.manifest["checkpoints"]]
        completed_steps = max(saved_steps, default=0)
        if max_steps < completed_steps:
            expected = f"expected at least {completed_steps}: {str(self.path)!r} has those steps already"
            raise InputError("max_steps", max_steps, expected)
        if max_steps != old_max_steps and not schedule.startswith("constant"):
            print(f"max_steps was {old_max_steps}: from here on the {schedule} schedule is that of {max_steps}")

    def _settings_of_resumed_run(self, fingerprints: dict) -> dict:
        """Return the stored settings with those of this start in place of the old ones.

        The option "model" of a command stays if the run is resumed with one of its own checkpoints: the run may remove
        that checkpoint, and a later start would look for it.
        """
        old_settings = self.manifest["settings"]
        settings = old_settings | self.settings
        if "model" in old_settings and self._is_model_of_checkpoint(fingerprints):
            settings["model"] = old_settings["model"]
        return settings

    def _is_model_of_checkpoint(self, fingerprints: dict) -> bool:
        """Return True for a model with the weights of a checkpoint of this run, as after Ctrl-C in a notebook."""
        return fingerprints.get("model") in [entry["model"] for entry in self.manifest["checkpoints"].values()]

    def _newest_valid(self) -> Path | None:
        """Return the newest checkpoint whose files match their digests; newer ones are reported as broken."""
        for name, entry in reversed(self.manifest["checkpoints"].items()):
            path, unfinished = self.path / name, self.path / UNFINISHED_FOLDER / name
            if unfinished.is_dir() and not path.exists():  # the run was killed before it could move the checkpoint
                publish(unfinished, path)
            digests = checkpoint.file_digests(path)
            wrong_files = [file for file, digest in entry["files"].items() if digests.get(file) != digest]
            if not wrong_files:
                return path
            file = wrong_files[0]
            fault = "not what was written: its size or its checksum differs" if file in digests else "missing"
            print(f"{str(path)!r} is broken ({file} is {fault})")
        if self.manifest["checkpoints"]:
            remedy = "restore one from a copy, or start a new run in another folder. Nothing has been removed"
            raise InputError(f"no checkpoint in {str(self.path)!r} is whole; {remedy}")
        return None

    def _write(self, name: str, text: str) -> None:
        """Write a text file of the run, which after a crash holds either the old text or the new one."""
        write_atomically(self.path / name, text, self.path / UNFINISHED_FOLDER)

    def _write_manifest(self, **changes) -> None:
        self.manifest = self.manifest | changes
        signed = {"checksum": manifest_checksum(self.manifest)} | self.manifest
        self._write(MANIFEST_FILE, as_json(signed, indent=1) + "\n")

    def _remove_old_checkpoints(self, newest: str) -> dict[str, dict]:
        """Remove checkpoints until `save_total_limit` are left; return the entries of the manifest that are left.

        A checkpoint with files that the run did not write stays on the disk. The caller writes the manifest after the
        removal, so an interrupted removal is repeated on resuming.

        newest: Name of the newest checkpoint; later ones are broken and are removed.
        """
        entries = self.manifest["checkpoints"]
        names = [*entries][: [*entries].index(newest) + 1]
        remaining = names[-(self.config.save_total_limit or 0) :]
        for path in [self.path / name for name in entries if name not in remaining]:
            if path.exists() and checkpoint.names_below(path) <= entries[path.name]["files"].keys():
                shutil.rmtree(path)
        return {name: entries[name] for name in names if (self.path / name).exists()}


def checkpoint_name(completed_steps: int) -> str:
    return f"checkpoint-{completed_steps}"


def _compared_settings(settings: dict) -> dict:
    """Return the settings that a resumed run may not change."""
    settings = without_default_tool_timeout(settings)
    return {name: settings.get(name) for name in SETTINGS.keys() - {*MAY_CHANGE_ON_RESUME}}


def output_path(config: GRPOConfig) -> Path:
    """Return the output folder of a run that has one."""
    assert config.output_dir is not None  # the caller knows that the run has a folder
    return Path(config.output_dir)


def check_folder(config: GRPOConfig) -> dict:
    """Check that a run may use its output folder, without changing it; return the manifest in it, or an empty dict.

    Raises:
        FileExistsError: if the run would overwrite another run, a model or another file.
        FileNotFoundError: if there is no run to resume.
    """
    folder, resume = output_path(config), config.resume_from_checkpoint
    manifest, metrics_file = _read_manifest(folder / MANIFEST_FILE), folder / METRICS_FILE
    if resume and not manifest:
        state = f"holds no {MANIFEST_FILE}" if folder.exists() else "does not exist"
        remedy = f"expected a run in {str(folder)!r}, which {state}; leave it out to start one, in a new folder"
        raise FileNotFoundError(f"resume_from_checkpoint is True; {remedy}")
    owned_names = {name.split("/")[0] for key in ("checkpoints", "trained") for name in manifest.get(key, ())}
    # A run that failed before its first step has a manifest, but neither checkpoints nor metrics: it may be replaced.
    has_run = owned_names or (manifest and metrics_file.is_file() and metrics_file.stat().st_size)
    if has_run and not resume:
        remedy = f"choose another folder, or continue it with {RESUME_INSTRUCTION}"
        raise FileExistsError(f"output_dir {str(folder)!r} holds a run already; {remedy}")
    checkpoints = [path.name for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    needed_names = [*CHANGING_FILES, *MODEL_FILES, *checkpoints]
    check_free(folder, needed_names, {*CHANGING_FILES, *owned_names} if manifest else ())
    return manifest


def check_free(folder: Path, names: Iterable[str], owned_names: Container[str]) -> None:
    """Raise FileExistsError if the folder holds one of these names and the run does not own it."""
    if taken_names := [name for name in names if name not in owned_names and (folder / name).exists()]:
        problem = f"holds {', '.join(taken_names)}, not written by this run, which needs the name"
        raise FileExistsError(f"output_dir {str(folder)!r} {problem}; move it away, or choose another folder")


def _read_manifest(path: Path) -> dict:
    """Return the manifest, or an empty dict if there is none; raise InputError if it is damaged."""
    if not path.is_file():
        return {}
    with contextlib.suppress(ValueError, KeyError, AttributeError, TypeError):
        content = json.loads(path.read_bytes().decode("utf-8"))
        is_undamaged = content.pop("checksum") == manifest_checksum(content)
        if "ingredients" in content:  # the name of the fingerprints up to version 1.0.0
            content["fingerprints"] = content.pop("ingredients")
        if is_undamaged and content.keys() == MANIFEST_KEYS:
            return content
    raise InputError(
        f"{str(path)!r} is not what the run wrote: it was edited, cut or damaged. Restore it from a copy, or resume "
        "with the version of grpo_lab that wrote it; or start a new run in another folder, with a checkpoint as model"
    )


def manifest_checksum(content: dict) -> str:
    """Return the hash of a manifest without its own checksum; a file of which it is not the hash was damaged."""
    return hashlib.sha256(as_json(content, sort_keys=True).encode()).hexdigest()
