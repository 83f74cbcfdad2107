"""The processes of a run, from the environment variables that `torchrun` or `accelerate launch` sets in each process.

A run that neither of them started has one process.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

import torch

from grpo_lab.base import Stopped
from grpo_lab.base.checks import InputError

# Time to wait for torchrun to end the remaining processes of a run. It looks for failed processes ten times a second.
GRACE_SECONDS = 10


def world_size() -> int:
    """Return the number of processes of the run."""
    return _number_in_environment("WORLD_SIZE", 1)


def is_main_process() -> bool:
    """Return True in the process that prints and writes the folder of the run."""
    return _number_in_environment("RANK", 0) == 0


def _number_in_environment(name: str, default: int) -> int:
    """Return the number in an environment variable, or the default if it is unset or empty."""
    text = os.environ.get(name, "").strip()
    if text and not text.isdecimal():
        raise InputError(name, text, "expected a number, as torchrun and accelerate launch set it")
    return int(text) if text else default


@contextlib.contextmanager
def set_up_process() -> Iterator[None]:
    """Let each process use the GPU of its rank, and discard what processes other than the main one print.

    Raises:
        InputError: if there are several processes and one of them does not know its rank, since a cluster has set
            WORLD_SIZE, and neither torchrun nor accelerate launch has started the processes.
    """
    if world_size() == 1:
        yield
        return
    for name in ("RANK", "LOCAL_RANK"):
        if not os.environ.get(name):
            expected = "start the run with torchrun or accelerate launch; or unset WORLD_SIZE, for one process"
            problem = f"is {world_size()}, but {name} is not set"
            raise InputError("WORLD_SIZE", world_size(), expected, problem=problem)
    if torch.cuda.is_available():
        torch.cuda.set_device(_number_in_environment("LOCAL_RANK", 0))
    if is_main_process():
        print(f"{world_size()} processes; what follows is printed by the first")
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as null_file, contextlib.redirect_stdout(null_file):
        yield


@contextlib.contextmanager
def stop_if_a_process_is_gone(describe_saved: Callable[[], str] | None, resume_hint: str) -> Iterator[None]:
    """Raise Stopped if torchrun ends this process because another process of the run has ended.

    describe_saved: A function that returns a sentence about the newest checkpoint. None: this process saves nothing.
    resume_hint: How to resume the run, for the end of the message of a process that saves.
    """
    if world_size() == 1:
        yield
        return

    def stop(*_):
        message = f"Stopped: one of the {world_size()} processes is gone."
        if describe_saved is None:
            raise Stopped(message, 128 + signal.SIGTERM)
        raise Stopped(f"{message} {describe_saved()}", 128 + signal.SIGTERM, resume_hint)

    handler = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except InputError:
        # Such as a RunError for a wrong reward: this process has failed, and not another one.
        raise
    except RuntimeError:
        # A collective operation fails if another process has ended. Then torchrun also ends this process, within the
        # time waited here, which raises Stopped. Any other error is raised after it.
        time.sleep(GRACE_SECONDS)
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)
