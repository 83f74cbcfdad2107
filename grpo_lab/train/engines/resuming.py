"""Checkpoints of an engine in the folder of a run: written by the engine, kept, checked and found again as our own are.

What is read when a run goes on: safetensors, JSON, and the engine's files of tensors, by torch's `weights_only`.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from grpo_lab.commands import Stopped
from grpo_lab.commands.checks import InputError
from grpo_lab.config import GRPOConfig
from grpo_lab.train.engines.processes import world_size
from grpo_lab.trainer.folder import RunFolder
from grpo_lab.trainer.folder.checkpoint import ENGINE_STATE, UNFINISHED, as_json, flushed
from grpo_lab.trainer.stopping import RESUME

GRACE = 10  # seconds in which torchrun, which looks ten times a second, has ended the processes that are left


def writes_into(config: GRPOConfig) -> Path:
    """Where the processes put a checkpoint that is not whole yet."""
    return Path(config.output_dir) / UNFINISHED / "engine"


def keep(folder: RunFolder, written: Path, step: int, lines: list[dict]) -> None:
    """Make what all processes have written the checkpoint of a step."""

    def write(unfinished: Path) -> dict[str, list]:
        written.rename(unfinished)
        written.parent.rmdir()
        (unfinished / ENGINE_STATE).write_text(as_json({"step": step, "log_history": lines}), encoding="utf-8")
        return flushed(unfinished)

    folder.keep(step, lines, write)


def check_processes(folder: RunFolder, step: int) -> None:
    """Raise InputError if a checkpoint is of another number of processes: each has its own random numbers."""
    files = folder.manifest.checkpoints[f"checkpoint-{step}"]["files"]
    before, now = sum(name.startswith("rng_state") for name in files), world_size()
    if before != now:
        wanted = f"expected {before}, the number of processes of the run in {str(folder.path)!r}"
        raise InputError("WORLD_SIZE", now, wanted)


@contextlib.contextmanager
def together(saved: Callable[[], str] | None) -> Iterator[None]:
    """Raise Stopped, with what is saved, where another process of the run is gone, or torchrun ends this one for that.

    saved: says what is on the disk; None in a process that does not write it.
    """
    if world_size() == 1:
        yield
        return

    def stop(*_):
        after = f" {saved()} Go on with {RESUME} and everything else as it was." if saved else ""
        raise Stopped(f"Stopped: one of the {world_size()} processes is gone.{after}", 128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except RuntimeError:  # ours, or that of a collective whose other end is gone: then torchrun ends this one, too
        time.sleep(GRACE)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
