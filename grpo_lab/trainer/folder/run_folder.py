"""The folder of a run: one run at a time, what is written into it, and where the run goes on from."""

import contextlib
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from grpo_lab.commands.checks import InputError
from grpo_lab.config import MAY_CHANGE, SETTINGS_FILE, GRPOConfig
from grpo_lab.trainer.folder import checkpoint
from grpo_lab.trainer.folder.checkpoint import UNFINISHED, as_json, as_lines, fault, flush, names_below, publish
from grpo_lab.trainer.folder.manifest import COMPLETIONS, METRICS, Manifest, check_folder, check_free, of_model
from grpo_lab.trainer.stopping import RESUME

LOCK = "grpo_run.lock"


class RunFolder:
    """A context that locks the output folder of a run against all others, writes to it and reads it again."""

    def __init__(self, config: GRPOConfig, settings: dict):
        self.config, self.path = config, Path(config.output_dir)
        self.settings = settings | {name: str(value) for name, value in settings.items() if value == math.inf}
        self.manifest: Manifest | None = None
        self._lock = FileLock(self.path / LOCK, blocking=False)

    def __enter__(self):
        if not (self.path / LOCK).exists():  # else a run may be at work, which is the first thing to be said
            check_folder(self.config)
        with self._explained():
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

    def open(self, model, optimizer, reference, prints: dict) -> tuple[int, list[dict]]:
        """Begin a new run, or load its newest good checkpoint; returns the steps that are done, and their metrics.

        optimizer: None for an engine, which reads its checkpoint itself.
        prints: as `fingerprints` returns them.
        """
        checkpoint.check_savable(model)
        self.manifest = check_folder(self.config)  # under the lock: another run may have been at work until now
        with self._explained():
            if self.manifest is None or not self.config.resume_from_checkpoint:
                return self._begin(prints)
            self.manifest.check_same_run(self.path, self.settings, prints)
            self._finish_renames()
            good, broken = self._newest_good()
            if good is None:
                print(f"No checkpoint in {str(self.path)!r} yet: the run begins at the beginning")
                return self._begin(prints)
            state = checkpoint.load(self.path / good, model, optimizer, reference)
            self._tidy(good, broken, state["log_history"], prints)  # only now that all of it is loaded
        print(f"Resumed at step {state['step']} of {self.config.max_steps} from {(self.path / good).as_posix()!r}")
        return state["step"], state["log_history"]

    def append(self, name: str, records: Iterable[dict]) -> None:
        """Append lines of JSON to a file of the run; those after a checkpoint go when the run goes on from it."""
        with self._explained(), open(self.path / name, "a", encoding="utf-8", newline="\n") as file:
            file.write(as_lines(records))

    def save(self, step: int, history: list[dict], model, tokenizer, optimizer, reference) -> None:
        """Write the checkpoint of a step, unless it has one, and keep it."""
        if f"checkpoint-{step}" not in self.manifest.checkpoints:
            state = {"step": step, "log_history": history}
            parts = model, tokenizer, optimizer, state, reference
            self.keep(step, lambda unfinished: checkpoint.write(unfinished, *parts), of_model(model))

    def keep(self, step: int, write: Callable, model: dict | None = None) -> None:
        """Make a checkpoint of a step, then remove those for which `save_total_limit` has no room.

        write: makes the folder of this name, and describes its files as `checkpoint.write` does.
        model: its fingerprint, where a run may go on with the model of the checkpoint itself.
        """
        name = f"checkpoint-{step}"
        check_free(self.path, [name], self.manifest.checkpoints)
        with self._explained():
            entry = {"step": step, "model": model, "files": self._write_unfinished(name, write)}
            for path in (self.path / METRICS, self.path / COMPLETIONS):
                entry[path.name] = path.stat().st_size if path.is_file() else 0
                if path.is_file():
                    flush(path)
            # The checkpoint counts from here on: the rest is made up for when the run goes on.
            self._commit(checkpoints=self.manifest.checkpoints | {name: entry})
            self._finish_renames()
            self._discard(self.manifest.surplus(self.config.save_total_limit))

    def finish(self, model, tokenizer) -> None:
        """Put the trained model beside the metrics, as a normal transformers checkpoint; each file is whole."""
        with self._explained():
            files = self._write_unfinished("model", lambda unfinished: checkpoint.write(unfinished, model, tokenizer))
            check_free(self.path, files, self.manifest.model)
            self._commit(model=files)
            for name in files:
                (self.path / name).parent.mkdir(exist_ok=True)
                publish(self.path / UNFINISHED / "model" / name, self.path / name)
            shutil.rmtree(self.path / UNFINISHED / "model")

    def saved(self) -> str:
        """What is on the disk."""
        names = self.manifest.newest_first() if self.manifest else []
        return f"{(self.path / names[0]).as_posix()!r} is saved." if names else "No checkpoint is saved yet."

    def _begin(self, prints: dict) -> tuple[int, list[dict]]:
        self._commit(Manifest(self.settings, prints))
        self._write_lines([], 0)
        return 0, []

    def _newest_good(self) -> tuple[str | None, list[str]]:
        """The newest checkpoint that is as it was written, and those after it, which are not: each is reported."""
        broken = []
        for name in self.manifest.newest_first():
            what = fault(self.path / name, self.manifest.checkpoints[name]["files"])
            if what is None:
                return name, broken
            print(f"{str(self.path / name)!r} is broken ({what})")
            broken.append(name)
        if broken:
            wanted = "restore one from a copy, or start a new run in another folder. Nothing has been removed"
            raise InputError(f"no checkpoint in {str(self.path)!r} is whole; {wanted}")
        return None, []

    def _tidy(self, good: str, broken: list[str], history: list[dict], prints: dict) -> None:
        """Bring the folder back to the checkpoint from which the run goes on."""
        self._discard(broken)
        self._discard(self.manifest.surplus(self.config.save_total_limit))
        check_folder(self.config)  # a broken checkpoint may stay for what others put into it, and be in the way
        shutil.rmtree(self.path / UNFINISHED, ignore_errors=True)
        before, anew = self.manifest, {"max_steps", *MAY_CHANGE} - {"output_dir", "resume_from_checkpoint"}
        settings = before.settings | {name: self.settings[name] for name in anew}
        evaluated = {"eval_dataset": prints["eval_dataset"] or before.ingredients["eval_dataset"]}
        self._commit(settings=settings, ingredients=before.ingredients | evaluated)
        metrics = self.path / METRICS
        if not (metrics.is_file() and metrics.read_bytes().startswith(as_lines(history).encode())):
            print(f"{str(metrics)!r} is not as the run wrote it (lost, edited, cut or damaged): it is written anew")
        self._write_lines(history, before.checkpoints[good].get(COMPLETIONS, math.inf))

    def _write_lines(self, history: list[dict], completions: float) -> None:
        """Write settings and metrics; of the completions, so many bytes stay: the other steps are made again."""
        checkpoint.write_whole(self.path / SETTINGS_FILE, as_json(self.manifest.settings, indent=2) + "\n")
        checkpoint.write_whole(self.path / METRICS, as_lines(history))
        if (path := self.path / COMPLETIONS).is_file():
            os.truncate(path, int(min(completions, path.stat().st_size)))

    def _commit(self, manifest: Manifest | None = None, **changes) -> None:
        self.manifest = replace(manifest or self.manifest, **changes)
        self.manifest.write(self.path)

    def _finish_renames(self) -> None:
        """Move checkpoints into place: one that the manifest names was whole and flushed before that."""
        for name in self.manifest.checkpoints:
            unfinished, final = self.path / UNFINISHED / name, self.path / name
            if unfinished.is_dir() and not final.exists():
                publish(unfinished, final)

    def _discard(self, names: list[str]) -> None:
        """Remove checkpoints, then forget them: a removal that was cut short is repeated. Files of others stay."""
        kept = dict(self.manifest.checkpoints)
        for path in map(self.path.joinpath, names):
            if not names_below(path) <= kept.pop(path.name)["files"].keys():
                print(f"{str(path)!r} stays: it holds files that are not the run's")
            elif path.exists():
                shutil.rmtree(path)
        if names:
            self._commit(checkpoints=kept)

    def _write_unfinished(self, name: str, write: Callable) -> dict[str, list]:
        """Write something new. After an error nothing of it is left, so that the disk has its room back."""
        path = self.path / UNFINISHED / name
        shutil.rmtree(path, ignore_errors=True)
        try:
            return write(path)
        except Exception:
            shutil.rmtree(path, ignore_errors=True)
            raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Say in one sentence what is wrong with the disk, what is saved, and how to go on once that is mended."""
        try:
            yield
        except Exception as error:
            found = re.search(r"\(os error (\d+)\)", str(error))  # safetensors and tokenizers write in Rust
            number = int(found[1]) if found else getattr(error, "errno", None)
            if number is None:
                raise
            where, remedy = getattr(error, "filename", None) or self.path, "start again, or choose another folder"
            if self.manifest is not None:
                remedy = f"go on with {RESUME}. {self.saved()}"
            said = (
                f"{os.fspath(where)!r} could not be read or written ({os.strerror(number)}): mend that, then {remedy}"
            )
            raise OSError(number, said) from error
