"""torch's random state: restoring it, and the distance of the seeds of a run's random streams."""

from collections.abc import Iterator
from contextlib import contextmanager

# The seeds of the random streams in a run are SEED_STRIDE times the run's seed, plus the step or the epoch. So a run
# repeats the streams of the run with the next seed only after this number of steps or epochs.
SEED_STRIDE = 1_000_003


@contextmanager
def restored_random_state(seed: int | None = None) -> Iterator[None]:
    """Restore torch's random state, on the CPU and on all GPUs, after the context.

    seed: Seed for torch inside the context. None: the random numbers go on from the current state.
    """
    import torch  # imported here, since the commands import base before they print their help

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        if seed is not None:
            torch.manual_seed(seed)
        yield
