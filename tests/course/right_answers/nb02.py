"""Right answers to the exercises of notebook 02."""

from tests.course.right_answers import by_loops
from tests.support.oracles import advantages as oracles

RIGHT = {
    "group_advantages": (by_loops(oracles.group_advantages),),
    "rloo_advantages": (by_loops(oracles.rloo_advantages),),
}
