"""The folder of a run: one run at a time, what is written into it, and where the run goes on from."""

import contextlib
import math
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from grpo_lab.commands.checks import InputError
from grpo_lab.config import MAY_CHANGE, SETTINGS_FILE, GRPOConfig
from grpo_lab.trainer.evaluation import best_step
from grpo_lab.trainer.folder import checkpoint
from grpo_lab.trainer.folder.files import (
    UNFINISHED,
    as_json,
    explained,
    fault,
    flush,
    names_below,
    publish,
    write_whole,
)
from grpo_lab.trainer.folder.manifest import COMPLETIONS, METRICS, Manifest, check_folder, check_free
from grpo_lab.trainer.folder.same_run import check_length, check_same_run, of_model
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
            self.manifest = check_folder(self.config)
        with explained(self.path, "start again, or choose another folder"):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire()
            except Timeout as error:
                raise BlockingIOError(
                    f"output_dir is {str(self.path)!r}, where another run is at work; wait for its end, stop it, or "
                    "choose another folder"
                ) from error
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

        Args:
            optimizer: None for an engine, which reads its checkpoint itself.
            prints: as `fingerprints` returns them.
        """
        checkpoint.check_savable(model)
        self.manifest = check_folder(self.config)  # under the lock: another run may have been at work until now
        if not self.config.resume_from_checkpoint:
            return self._begin(prints)
        check_same_run(self.path, self.manifest, self.settings, prints)
        with self._writing(self.path):
            self._finish_renames()
        with explained(self.path, f"go on with {RESUME}", "read"):
            found, broken = self._newest_good()
        if found is None:
            print(f"No checkpoint in {str(self.path)!r} yet: the run begins at the beginning")
            return self._begin(prints)
        return self._go_on(found, broken, prints, model, optimizer, reference)

    def append(self, name: str, records: Iterable[dict]) -> None:
        """Append lines of JSON to a file of the run, such as metrics.jsonl.

        Where the run goes on from a checkpoint, what was appended after it is taken away again.
        """
        with self._writing(self.path / name), open(self.path / name, "a", encoding="utf-8", newline="\n") as file:
            file.write(_as_lines(records))

    def save(self, step: int, history: list[dict], model, tokenizer, optimizer, reference) -> None:
        """Write the checkpoint of a step, unless it has one, and keep it."""
        if f"checkpoint-{step}" in self.manifest.checkpoints:
            return
        state = {"step": step, "log_history": history} | optimizer.state()
        parts = model, tokenizer, optimizer.tensors(), state, reference
        self.keep(step, history, lambda unfinished: checkpoint.write(unfinished, *parts), of_model(model))

    def keep(self, step: int, history: list[dict], write: Callable, model: list | None = None) -> None:
        """Make a checkpoint of a step, then remove those for which `save_total_limit` has no room.

        write: makes the folder of this name, and describes its files as `checkpoint.write` does.
        model: its fingerprint, where a run may go on with the model of the checkpoint itself.
        """
        name = f"checkpoint-{step}"
        check_free(self.path, [name], self.manifest.checkpoints)
        with self._writing(self.path / name):
            with self._unfinished(name) as unfinished:
                files = write(unfinished)
            for path in (self.path / name for name in (METRICS, COMPLETIONS)):
                if path.is_file():
                    flush(path)
            entry = {"step": step, "files": files, "model": model}
            # The checkpoint counts from here on: the rest is made up for when the run goes on.
            self._commit(checkpoints=self.manifest.checkpoints | {name: entry})
            self._finish_renames()
            self._discard_surplus(history)

    def finish(self, model, tokenizer) -> None:
        """Put the trained model beside the metrics, as a normal transformers checkpoint; each file is whole."""
        with self._writing(self.path / "model.safetensors"):
            with self._unfinished("model") as unfinished:
                files = checkpoint.write(unfinished, model, tokenizer)
            check_free(self.path, files, self.manifest.model)
            self._commit(model=files)
            for name in files:
                (self.path / name).parent.mkdir(exist_ok=True)
                publish(unfinished / name, self.path / name)
            shutil.rmtree(unfinished)

    def saved(self) -> str:
        """What is on the disk."""
        names = self.manifest.newest_first() if self.manifest else []
        return f"{(self.path / names[0]).as_posix()!r} is saved." if names else "No checkpoint is saved yet."

    def load_best(self, model, step: int) -> None:
        """Put the weights of the best checkpoint, that of this step, into the model."""
        path = self.path / f"checkpoint-{step}"
        files = self.manifest.checkpoints[path.name]["files"]
        if what := fault(path, files):
            raise InputError(f"{str(path)!r}, the best checkpoint, is broken ({what}); restore it and resume")
        checkpoint.load_weights(path, files, model)

    def _begin(self, prints: dict) -> tuple[int, list[dict]]:
        with self._writing(self.path):
            self.manifest = Manifest(self.settings, prints).written(self.path)
            self._write_lines([])
        return 0, []

    def _go_on(
        self, found: str, broken: list[str], prints: dict, model, optimizer, reference
    ) -> tuple[int, list[dict]]:
        """Load first, then tidy."""
        before, entry = self.manifest, self.manifest.checkpoints[found]
        check_length(self.path, entry["step"], before.settings, self.settings)
        state, tensors = checkpoint.load(self.path / found, entry["files"], model, reference)
        if optimizer is not None:
            optimizer.load(state, tensors)
        with self._writing(self.path):
            self._discard(broken)
            self._discard_surplus(state["log_history"])
            check_folder(self.config)  # a broken checkpoint may stay for what others put into it, and be in the way
            shutil.rmtree(self.path / UNFINISHED, ignore_errors=True)
            names = {"max_steps", *MAY_CHANGE} - {"output_dir", "resume_from_checkpoint"}
            settings = before.settings | {name: self.settings[name] for name in names}
            evaluated = {"eval_dataset": prints["eval_dataset"] or before.ingredients["eval_dataset"]}
            self._commit(settings=settings, ingredients=before.ingredients | evaluated)
            text, metrics = _as_lines(state["log_history"]), self.path / METRICS
            if not (metrics.is_file() and metrics.read_bytes().startswith(text.encode())):
                print(f"{str(metrics)!r} is not as the run wrote it (lost, edited, cut or damaged): it is written anew")
            self._write_lines(state["log_history"])
        print(f"Resumed at step {state['step']} of {self.config.max_steps} from {(self.path / found).as_posix()!r}")
        return state["step"], state["log_history"]

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
            raise InputError(
                f"no checkpoint in {str(self.path)!r} is whole; restore one from a copy, or start a new run in another "
                "folder. Nothing has been removed"
            )
        return None, []

    def _commit(self, **changes) -> None:
        self.manifest = self.manifest.written(self.path, **changes)

    def _finish_renames(self) -> None:
        """Move checkpoints into place: one that the manifest names was whole and flushed before that."""
        for name in self.manifest.checkpoints:
            unfinished, final = self.path / UNFINISHED / name, self.path / name
            if unfinished.is_dir() and not final.exists():
                publish(unfinished, final)

    def _discard(self, names: list[str]) -> None:
        """Remove checkpoints, then forget them: a removal that was cut short is repeated. Files of others stay."""
        for path in map(self.path.joinpath, names):
            if not names_below(path) <= self.manifest.checkpoints[path.name]["files"].keys():
                print(f"{str(path)!r} stays: it holds files that are not the run's")
            elif path.exists():
                shutil.rmtree(path)
        if names:
            kept = {name: entry for name, entry in self.manifest.checkpoints.items() if name not in names}
            self._commit(checkpoints=kept)

    def _discard_surplus(self, history: list[dict]) -> None:
        self._discard(self.manifest.surplus(self.config.save_total_limit, best_step(history, self.config)))

    def _write_lines(self, history: list[dict]) -> None:
        """Write settings and metrics, and take from the completions those of steps that are now made again."""
        write_whole(self.path / SETTINGS_FILE, as_json(self.manifest.settings, indent=2) + "\n")
        write_whole(self.path / METRICS, _as_lines(history))
        if (path := self.path / COMPLETIONS).is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
            steps = [re.match(r'{"step": (\d+)', line) for line in lines]
            kept = [line for line, step in zip(lines, steps, strict=True) if step and int(step[1]) <= len(history)]
            write_whole(path, "".join(f"{line}\n" for line in kept))

    @contextlib.contextmanager
    def _unfinished(self, name: str) -> Iterator[Path]:
        """Where to write something new. After an error nothing of it is left, so that the disk has its room back."""
        path = self.path / UNFINISHED / name
        shutil.rmtree(path, ignore_errors=True)
        try:
            yield path
        except Exception:
            shutil.rmtree(path, ignore_errors=True)
            raise

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Explain what goes wrong below in one sentence, with what is saved and how to go on."""
        with explained(path, f"go on with {RESUME}. {self.saved()}"):
            yield


def _as_lines(records: Iterable[dict]) -> str:
    return "".join(as_json(record) + "\n" for record in records)
