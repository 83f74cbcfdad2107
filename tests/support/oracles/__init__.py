"""Compute every formula of the package by Python loops over float64 scalars.

Nothing is vectorised, and no code is shared with the package: each sum is a loop, each mean a division, each stopped
gradient an explicit `.detach()`. The scalars are torch scalars, so autograd differentiates the loops, and tests compare
values and gradients of the package with them. The loops are slow, and written so that a reader sees that they are
right.
"""

from tests.support.oracles.advantages import *  # noqa: F403
from tests.support.oracles.kl import *  # noqa: F403
from tests.support.oracles.logprobs import *  # noqa: F403
from tests.support.oracles.loops import *  # noqa: F403
from tests.support.oracles.objective import *  # noqa: F403
