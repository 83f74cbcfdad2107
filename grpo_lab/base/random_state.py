"""torch's random state: reading, setting and restoring it, and the distance of the seeds of a run's random streams."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch  # the functions import it themselves, since the commands import base before they print their help

# The seeds of the random streams in a run are SEED_STRIDE times the run's seed, plus the step or the epoch. So a run
# repeats the streams of the run with the next seed only after this number of steps or epochs.
SEED_STRIDE = 1_000_003


@contextmanager
def restored_random_state(seed: int | None = None) -> Iterator[None]:
    """Restore torch's random state, on the CPU and on all GPUs, after the context.

    seed: Seed for torch inside the context. None: the random numbers go on from the current state.
    """
    import torch

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        if seed is not None:
            torch.manual_seed(seed)
        yield


def random_state(device: "torch.device") -> "torch.Tensor":
    """Return torch's random state of a GPU, or of the CPU for any other device."""
    import torch

    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_random_state(device: "torch.device", state: "torch.Tensor") -> None:
    """Set torch's random state of a GPU, or of the CPU for any other device."""
    import torch

    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
