"""Right answers to the exercises of notebook 02, each written differently; the check has to accept them all."""

from tests.course.right import by_loops
from tests.support.oracles import advantages as oracles


def rloo_by_scaling(rewards):
    G = rewards.shape[1]
    return (rewards - rewards.mean(1, keepdim=True)) * G / (G - 1)


RIGHT = {
    "group_advantages": (by_loops(oracles.group_advantages),),
    "rloo_advantages": (rloo_by_scaling,),
}
