"""Right answers to the exercises of notebook 04."""

from tests.course.right_answers import by_loops
from tests.support.oracles import kl as oracles

RIGHT = {
    "kl_estimate": (by_loops(oracles.kl_estimate),),
    "kl_exact": (by_loops(oracles.kl_exact),),
    "kl_in_reward": (by_loops(oracles.kl_in_reward),),
}
