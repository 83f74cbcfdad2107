"""Every formula of the package as literal Python loops over float64 scalars.

Nothing here is vectorised and nothing is shared with the package: each sum is a loop, each mean a division, each
stopped gradient an explicit `.detach()`. The scalars are torch scalars, so autograd differentiates the loops, and the
tests hold values and gradients of the package against them. Speed does not matter here; being obviously right does.
"""

from tests.support.oracles.advantages import *  # noqa: F403
from tests.support.oracles.kl import *  # noqa: F403
from tests.support.oracles.logprobs import *  # noqa: F403
from tests.support.oracles.loops import *  # noqa: F403
from tests.support.oracles.objective import *  # noqa: F403
