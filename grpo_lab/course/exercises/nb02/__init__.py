"""Exercises of notebook 02: what a reward is compared with."""

from grpo_lab.course.exercises.nb02 import (
    best_of_group,
    group_advantages,
    process_advantages,
    return_to_go,
    rloo_advantages,
)

EXERCISES = (
    group_advantages.EXERCISE,
    rloo_advantages.EXERCISE,
    best_of_group.EXERCISE,
    process_advantages.EXERCISE,
    return_to_go.EXERCISE,
)
