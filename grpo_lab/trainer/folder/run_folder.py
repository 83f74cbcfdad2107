"""The folder of a run: who may use it, what is written into it, and where the run goes on from."""

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path

from grpo_lab.config import GRPOConfig
from grpo_lab.trainer.folder import checkpoint
from grpo_lab.trainer.folder.claims import METRICS, SETTINGS, check_free, check_new, check_resumable, needed
from grpo_lab.trainer.folder.files import UNFINISHED, explained, fault, publish, remove_all, write_whole
from grpo_lab.trainer.folder.fingerprint import of_weights
from grpo_lab.trainer.folder.journal import Journal, append_lines, as_line, cut_lines, restore_text, sync_lines
from grpo_lab.trainer.folder.lock import LOCK, Lock
from grpo_lab.trainer.folder.manifest import MANIFEST, Manifest
from grpo_lab.trainer.folder.same_run import check_length, check_same_run
from grpo_lab.trainer.stopping import how_to_go_on


def open_journal(config: GRPOConfig) -> Journal:
    """What stands in the output folder; an error if it is not for this run. Nothing is touched."""
    folder = Path(config.output_dir)
    journal = Journal(folder)
    check = check_resumable if config.resume_from_checkpoint else check_new
    check(folder, journal.manifest, config)
    return journal


class RunFolder:
    """A context that holds the output folder of a run against all others: what it writes there, and reads again.

    settings: of the run, as they are saved: with everything that its outcome depends on.
    """

    def __init__(self, config: GRPOConfig, settings: dict):
        self.config, self.settings, self.path = config, settings, Path(config.output_dir)

    def __enter__(self):
        if not (self.path / LOCK).exists():
            # Before anything is created; where a run may be at work, that is said first.
            self.journal = open_journal(self.config)
        with explained(self.path, "start again, or choose another folder"):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.path).__enter__()
        return self

    def __exit__(self, *details):
        try:
            with contextlib.suppress(OSError):  # not empty: the run tidies up when it goes on
                (self.path / UNFINISHED).rmdir()
        finally:
            self._lock.__exit__(*details)

    def open(self, model, optimizer, reference, prints: dict) -> tuple[int, list[dict]]:
        """Begin a new run, or load its newest good checkpoint; returns the steps that are done, and their metrics.

        prints: as `fingerprints` returns them.
        """
        checkpoint.check_savable(model)
        # Under the lock once more: another run may have been at work until a moment ago.
        self.journal = open_journal(self.config)
        if not self.config.resume_from_checkpoint:
            return self._begin(prints)
        check_same_run(self.path, self.journal.manifest, self.settings, prints)
        with self.journal.writing(self.path):
            self.journal.finish_renames()
        with explained(self.path, f"go on with {how_to_go_on()}", "read"):
            found, broken = self.journal.newest_good()
        if found is None:
            print(f"No checkpoint in {str(self.path)!r} yet: the run begins at the beginning")
            return self._begin(prints)
        return self._go_on(found, broken, model, optimizer, reference)

    def record(self, metrics: dict) -> None:
        """Append the metrics of a step."""
        self.append(METRICS, [metrics])

    def append(self, name: str, records: Iterable[dict]) -> None:
        """Append lines of JSON to a file of the run, such as completions.jsonl.

        Where the run goes on from a checkpoint, what was appended after it is taken away again.
        """
        with self.journal.writing(self.path / name):
            append_lines(self.path / name, records)

    def save(self, step: int, history: list[dict], model, tokenizer, optimizer, reference, best: bool = False) -> None:
        """Write the checkpoint of a step, then remove those for which `save_total_limit` has no room.

        best: mark it as the best one.
        """
        name = f"checkpoint-{step}"
        unfinished, now = self.path / UNFINISHED / name, self.journal.manifest
        check_free(self.path, [name], now.checkpoints)
        state = {"step": step, "num_steps_in_metrics": len(history), "log_history": history} | optimizer.state()
        with self.journal.writing(self.path / name):
            with self._room(unfinished):
                files = checkpoint.write(unfinished, model, tokenizer, optimizer.tensors(), state, reference)
            lines = sync_lines(self.path, now.owned)
            entry = {"step": step, "files": files, "weights": of_weights(model), "lines": lines}
            self.journal.add(name, entry, best=step if best else now.best)
            self.journal.discard(self.journal.surplus(self.config.save_total_limit))

    def saved(self) -> str:
        """What is on the disk, and how the run goes on from there, in a sentence or two."""
        return self.journal.saved()

    def has(self, step: int) -> bool:
        """Whether the step has a checkpoint."""
        return f"checkpoint-{step}" in self.journal.manifest.checkpoints

    @property
    def best(self) -> int | None:
        """The step whose checkpoint is marked as the best."""
        return self.journal.manifest.best

    def mark_best(self, step: int) -> None:
        """Mark the checkpoint of a step as the best one: it is not removed as long as it is."""
        if not self.has(step):
            names = ", ".join(self.journal.manifest.newest_first()) or "none yet"
            raise ValueError(f"step is {step}; expected one that has a checkpoint ({names})")
        with self.journal.writing(self.path / MANIFEST):
            self.journal.commit(best=step)

    def load_best(self, model) -> int | None:
        """Put the weights of the best checkpoint into the model; returns its step, or None if none is marked."""
        if self.best is None:
            return None
        path = self.path / f"checkpoint-{self.best}"
        files = self.journal.manifest.checkpoints[path.name]["files"]
        if what := fault(path, files):
            newest = self.journal.manifest.newest_first()[0]
            raise ValueError(
                f"{str(path)!r}, the best checkpoint, is broken ({what}); restore it from a copy and resume, or take "
                f"{newest}, which is the newest"
            )
        checkpoint.load_weights(path, files, model)
        return self.best

    def finish(self, model, tokenizer) -> None:
        """Put the trained model beside the metrics, as a normal transformers checkpoint; each file is whole."""
        unfinished = self.path / UNFINISHED / "model"
        with self.journal.writing(self.path / "model.safetensors"):
            with self._room(unfinished):
                files = checkpoint.write_model(unfinished, model, tokenizer)
            check_free(self.path, files, self.journal.manifest.model)
            self.journal.commit(model=files)
            for name in files:
                (self.path / name).parent.mkdir(exist_ok=True)
                publish(unfinished / name, self.path / name)
            remove_all(unfinished)

    @contextlib.contextmanager
    def _room(self, unfinished: Path):
        """Nothing is there before, and after an error nothing is left, so that the disk has its room back."""
        remove_all(unfinished)
        try:
            yield
        except Exception:
            with contextlib.suppress(OSError):
                remove_all(unfinished)
            raise

    def _begin(self, prints: dict) -> tuple[int, list[dict]]:
        before = self.journal.manifest
        owned = {*needed(self.config), *(before.owned if before else ())}
        with self.journal.writing(self.path):
            self.journal.manifest = Manifest(self.settings, prints, sorted(owned))
            self.journal.commit()
            write_whole(self.path / SETTINGS, _as_text(self.settings))
            write_whole(self.path / METRICS, "")
            self._cut_lines({})
        return 0, []

    def _go_on(self, found: str, broken: list[str], model, optimizer, reference) -> tuple[int, list[dict]]:
        """Load first, then tidy."""
        before, path = self.journal.manifest, self.path / found
        entry = before.checkpoints[found]
        check_length(self.path, entry["step"], before.settings, self.settings)
        state, tensors = checkpoint.load(path, entry["files"], model, reference)
        optimizer.load(state, tensors)
        with self.journal.writing(self.path):
            self.journal.discard(broken)
            check_resumable(self.path, self.journal.manifest, self.config)
            remove_all(self.path / UNFINISHED)
            restore_text(self.path / SETTINGS, _as_text(before.settings), MANIFEST)
            settings = before.settings | {"max_steps": self.config.max_steps}
            self.journal.commit(settings=settings, owned=sorted({*before.owned, *needed(self.config)}))
            write_whole(self.path / SETTINGS, _as_text(settings))
            self._restore_lines(state["log_history"], entry["lines"], found)
        print(f"Resumed at step {state['step']} of {self.config.max_steps} from {path.as_posix()!r}")
        return state["step"], state["log_history"]

    def _restore_lines(self, history: list[dict], sizes: dict[str, int], found: str) -> None:
        text = "".join(map(as_line, history))
        restore_text(self.path / METRICS, text, found, tail=True)
        self._cut_lines(sizes)

    def _cut_lines(self, sizes: dict[str, int]) -> None:
        """The other files of lines; one that is not among the sizes had not been begun."""
        for name in self.journal.manifest.owned:
            if name.endswith(".jsonl") and name != METRICS:
                cut_lines(self.path / name, sizes.get(name, 0))


def _as_text(settings: dict) -> str:
    return json.dumps(settings, indent=2) + "\n"
