"""The processes of a run, as `torchrun` or `accelerate launch` tells each of them; one without either."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

from grpo_lab.base import Stopped

GRACE = 10  # seconds in which torchrun, which looks ten times a second, has ended the processes that are left


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", 1))


def is_main() -> bool:
    """True in the process that prints, and writes the folder."""
    return int(os.environ.get("RANK", 0)) == 0


@contextlib.contextmanager
def only_main_prints() -> Iterator[None]:
    """Let the main process alone print, and each process use the GPU of its number."""
    if world_size() == 1:
        yield
        return
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if is_main():
        print(f"{world_size()} processes; what follows is said by the first")
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


@contextlib.contextmanager
def stop_if_one_is_gone(how_to_go_on: Callable[[], str]) -> Iterator[None]:
    """Raise Stopped where another process of the run is gone, or torchrun ends this one for that."""
    if world_size() == 1:
        yield
        return

    def stop(*_):
        message = f"Stopped: one of the {world_size()} processes is gone. {how_to_go_on()}"
        raise Stopped(message.strip(), 128 + signal.SIGTERM)

    handler = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except RuntimeError:  # ours, or that of a collective whose other end is gone: then torchrun ends this one, too
        time.sleep(GRACE)
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)
