"""The processes of a run, as `torchrun` or `accelerate launch` tells each of them; one without either."""

import contextlib
import os
from collections.abc import Iterator


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", 1))


def is_main() -> bool:
    """Whether this is the process that prints, and writes the folder."""
    return int(os.environ.get("RANK", 0)) == 0


@contextlib.contextmanager
def one_prints() -> Iterator[None]:
    """Let the main process alone print, and each process use the card of its number."""
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
