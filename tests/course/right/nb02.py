"""Right answers to the exercises of notebook 02, each written differently; the check has to accept them all."""

from tests.course.right import by_loops
from tests.support.oracles import advantages as oracles


def rloo_by_scaling(rewards):
    G = rewards.shape[1]
    return (rewards - rewards.mean(1, keepdim=True)) * G / (G - 1)


def returns_in_place(rewards, gamma):
    returns = rewards.clone()
    for t in range(rewards.shape[-1] - 2, -1, -1):
        returns[..., t] += gamma * returns[..., t + 1]
    return returns


RIGHT = {
    "group_advantages": (by_loops(oracles.group_advantages),),
    "rloo_advantages": (rloo_by_scaling,),
    "best_of_group": (by_loops(oracles.best_of_group),),
    "process_advantages": (by_loops(oracles.process_advantages),),
    "return_to_go": (returns_in_place,),
}
