"""The folder of a run: one run at a time, what is written into it, and where the run goes on from."""

import contextlib
import functools
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from grpo_lab.commands.checks import InputError
from grpo_lab.config import SETTINGS_FILE, GRPOConfig
from grpo_lab.trainer.folder import checkpoint
from grpo_lab.trainer.folder.checkpoint import MANIFEST, UNFINISHED, Manifest, as_json, as_lines, publish, write_whole
from grpo_lab.trainer.stopping import RESUME

LOCK, METRICS, COMPLETIONS = "grpo_run.lock", "metrics.jsonl", "completions.jsonl"
CHANGING = (METRICS, SETTINGS_FILE, COMPLETIONS, "tensorboard")  # files and folders that a run keeps changing
MODEL = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")  # what any model has


def explained(method: Callable) -> Callable:
    """Say in one sentence what is wrong with the disk, what is saved, and how to go on once that is mended."""

    @functools.wraps(method)
    def call(self, *given):
        try:
            return method(self, *given)
        except Exception as error:
            found = re.search(r"\(os error (\d+)\)", str(error))  # safetensors and tokenizers write in Rust
            number = int(found[1]) if found else getattr(error, "errno", None)
            if number is None:
                raise
            where = os.fspath(getattr(error, "filename", None) or self.path)
            again = f"go on with {RESUME}. {self.saved()}" if self.manifest else "start again, or choose another folder"
            said = f"{where!r} could not be read or written ({os.strerror(number)})"
            raise OSError(number, f"{said}: mend that, then {again}") from error

    return call


class RunFolder:
    """A context that locks the output folder of a run against all others, writes to it and reads it again."""

    def __init__(self, config: GRPOConfig, settings: dict):
        self.config, self.path = config, Path(config.output_dir)
        infinite = {name: str(value) for name, value in settings.items() if value == math.inf}
        self.settings = json.loads(as_json(settings | infinite))
        self.manifest: Manifest | None = None
        self._lock = FileLock(self.path / LOCK, blocking=False)

    @explained
    def __enter__(self):
        if not (self.path / LOCK).exists():  # else a run may be at work, which is the first thing to be said
            check_folder(self.config)
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except Timeout as error:
            said = f"output_dir is {str(self.path)!r}, where another run is at work"
            raise BlockingIOError(f"{said}; wait for its end, stop it, or choose another folder") from error
        return self

    def __exit__(self, *details):
        try:
            for left in ((self.path / UNFINISHED).rmdir, (self.path / LOCK).unlink):
                with contextlib.suppress(OSError):  # not empty: the run tidies up when it goes on
                    left()
        finally:
            self._lock.release()  # last, for after it another run may hold the folder

    @explained
    def open(self, model, optimizer, reference, prints: dict) -> tuple[int, list[dict]]:
        """Begin a new run, or load its newest good checkpoint; returns the steps that are done, and their metrics.

        optimizer: None for an engine, whose runs have no checkpoints to go on from.
        prints: as `fingerprints` returns them.
        """
        checkpoint.check_savable(model)
        self.manifest = check_folder(self.config)  # under the lock: another run may have been at work until now
        if self.manifest is not None and self.config.resume_from_checkpoint:
            self.manifest.check_same_run(self.path, self.settings, prints)
            self._finish_renames()
            if good := self._newest_good():
                state, source = checkpoint.load(good, model, optimizer, reference), good.as_posix()
                self._go_back_to(good.name, state["log_history"], prints)  # only now that all of it is loaded
                print(f"Resumed at step {state['step']} of {self.config.max_steps} from {source!r}")
                return state["step"], state["log_history"]
            print(f"No checkpoint in {str(self.path)!r} yet: the run begins at the beginning")
        self._commit(Manifest(self.settings, prints))
        self._write_files([], 0)
        return 0, []

    @explained
    def append(self, name: str, records: Iterable[dict]) -> None:
        """Append lines of JSON to a file of the run; those after a checkpoint go when the run goes on from it."""
        with open(self.path / name, "a", encoding="utf-8", newline="\n") as file:
            file.write(as_lines(records))
            file.flush()
            os.fsync(file.fileno())

    @explained
    def keep(self, step: int, print_of_model: dict, *parts) -> None:
        """Make a checkpoint of a step, then remove those for which `save_total_limit` has no room.

        print_of_model: a run may go on with the model of the checkpoint itself, too. parts: of `checkpoint.write`.
        """
        name, completions = f"checkpoint-{step}", self.path / COMPLETIONS
        check_free(self.path, [name], self.manifest.checkpoints)
        entry = {"model": print_of_model, "files": self._write_unfinished(name, *parts)}
        entry[COMPLETIONS] = completions.stat().st_size if completions.is_file() else 0
        # The checkpoint counts from here on: the rest is made up for when the run goes on.
        self._commit(checkpoints=self.manifest.checkpoints | {name: entry})
        self._finish_renames()
        self._commit(checkpoints=self._kept(name))

    @explained
    def finish(self, model, tokenizer) -> None:
        """Put the trained model beside the metrics, as a normal transformers checkpoint; each file is whole."""
        files = self._write_unfinished("model", model, tokenizer)
        check_free(self.path, files, self.manifest.model)
        self._commit(model=files)
        for name in files:
            (self.path / name).parent.mkdir(exist_ok=True)
            publish(self.path / UNFINISHED / "model" / name, self.path / name)
        shutil.rmtree(self.path / UNFINISHED / "model")

    def saved(self) -> str:
        """What is on the disk."""
        names = self.manifest.newest_first if self.manifest else []
        return f"{(self.path / names[0]).as_posix()!r} is saved." if names else "No checkpoint is saved yet."

    def _newest_good(self) -> Path | None:
        """The newest checkpoint that is as it was written; those after it, which are not, are reported."""
        for path in map(self.path.joinpath, self.manifest.newest_first):
            if (what := checkpoint.fault(path, self.manifest.checkpoints[path.name]["files"])) is None:
                return path
            print(f"{str(path)!r} is broken ({what})")
        if self.manifest.checkpoints:
            wanted = "restore one from a copy, or start a new run in another folder. Nothing has been removed"
            raise InputError(f"no checkpoint in {str(self.path)!r} is whole; {wanted}")
        return None

    def _go_back_to(self, good: str, history: list[dict], prints: dict) -> None:
        """Bring the folder back to the checkpoint from which the run goes on."""
        before, completions = self.manifest, self.manifest.checkpoints[good][COMPLETIONS]
        stays = {name: before.settings[name] for name in ("output_dir", "resume_from_checkpoint")}
        evaluated = {"eval_dataset": prints["eval_dataset"] or before.ingredients["eval_dataset"]}
        settings, ingredients = before.settings | self.settings | stays, before.ingredients | evaluated
        self._commit(settings=settings, ingredients=ingredients, checkpoints=self._kept(good))
        check_folder(self.config)  # a broken checkpoint may stay for what others put into it, and be in the way
        metrics = self.path / METRICS
        if not (metrics.is_file() and metrics.read_bytes().startswith(as_lines(history).encode())):
            print(f"{str(metrics)!r} is not as the run wrote it (lost, edited, cut or damaged): it is written anew")
        self._write_files(history, completions)

    def _write_files(self, history: list[dict], completions: int) -> None:
        """Write settings and metrics; of the completions, so many bytes stay: the other steps are made again."""
        shutil.rmtree(self.path / UNFINISHED, ignore_errors=True)
        write_whole(self.path / SETTINGS_FILE, as_json(self.manifest.settings, indent=2) + "\n")
        write_whole(self.path / METRICS, as_lines(history))
        if (path := self.path / COMPLETIONS).is_file():
            os.truncate(path, min(completions, path.stat().st_size))

    def _commit(self, manifest: Manifest | None = None, **changes) -> None:
        self.manifest = replace(manifest or self.manifest, **changes)
        self.manifest.write(self.path)

    def _finish_renames(self) -> None:
        """Move checkpoints into place: one that the manifest names was whole and flushed before that."""
        for name in self.manifest.checkpoints:
            unfinished, final = self.path / UNFINISHED / name, self.path / name
            if unfinished.is_dir() and not final.exists():
                publish(unfinished, final)

    def _kept(self, newest: str) -> dict[str, dict]:
        """This checkpoint, and as many before it as there is room for; the others are removed, but for files of others.

        They are forgotten after that: a removal that was cut short is repeated.
        """
        names, known = self.manifest.newest_first, self.manifest.checkpoints
        kept = names[names.index(newest) :][: self.config.save_total_limit]
        for path in [self.path / name for name in names if name not in kept]:
            if not checkpoint.names_below(path) <= known[path.name]["files"].keys():
                print(f"{str(path)!r} stays: it holds files that are not the run's")
            elif path.exists():
                shutil.rmtree(path)
        return {name: known[name] for name in kept}

    def _write_unfinished(self, name: str, *parts) -> dict[str, list]:
        """`checkpoint.write`; after an error nothing of it is left, so that the disk has its room back."""
        path = self.path / UNFINISHED / name
        shutil.rmtree(path, ignore_errors=True)
        try:
            return checkpoint.write(path, *parts)
        except Exception:
            shutil.rmtree(path, ignore_errors=True)
            raise


def check_folder(config: GRPOConfig) -> Manifest | None:
    """The manifest in the output folder, if the folder is fit for this run. Nothing is changed.

    Raises FileExistsError if the run would write over another run, a model or another file; FileNotFoundError if there
    is no run to resume.
    """
    folder, resume = Path(config.output_dir), config.resume_from_checkpoint
    manifest, metrics = checkpoint.read_manifest(folder), folder / METRICS
    if resume and manifest is None:
        which = f"holds no {MANIFEST}" if folder.exists() else "does not exist"
        wanted = f"expected a run in {str(folder)!r}, which {which}; leave it out to start one, in a new folder"
        raise FileNotFoundError(f"resume_from_checkpoint is True; {wanted}")
    past, ours = 0, set()
    if manifest is not None:
        begun = manifest.checkpoints or (metrics.is_file() and metrics.stat().st_size)  # else it is no obstacle
        if begun and not resume:
            wanted = f"choose another folder, or continue it with {RESUME}"
            raise FileExistsError(f"output_dir {str(folder)!r} holds a run already; {wanted}")
        past = manifest.step  # up to which the run makes no checkpoint any more
        ours = {*CHANGING, *manifest.checkpoints, *(name.split("/")[0] for name in manifest.model)}
    names = sorted(path.name for path in folder.glob("*"))
    check_free(folder, [name for name in names if name in (*CHANGING, *MODEL) or checkpoint.step_of(name) > past], ours)
    return manifest


def check_free(folder: Path, names: Iterable[str], ours: Container[str]) -> None:
    """Raise FileExistsError if files or folders with these names are there and are not the run's."""
    if found := [name for name in names if name not in ours and (folder / name).exists()]:
        wanted = "move it away, or choose another folder"
        said = f"holds {', '.join(found)}, not written by this run, which needs the name; {wanted}"
        raise FileExistsError(f"output_dir {str(folder)!r} {said}")
