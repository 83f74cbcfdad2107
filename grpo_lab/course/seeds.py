"""The seed of inputs that students have not seen."""

import secrets

from grpo_lab.checks import check_between
from grpo_lab.config.ranges import LARGEST_SEED


def drawn_seed() -> int:
    """A seed that no student can know; never 0, which is the seed of the inputs that they see."""
    return 1 + secrets.randbelow(2**31 - 1)


def checked_seed(seed: int) -> int:
    check_between("seed", seed, 1, LARGEST_SEED)  # students know the inputs of seed 0
    return seed
