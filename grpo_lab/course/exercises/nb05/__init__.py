"""Exercises of notebook 05: from importance ratio to loss."""

from grpo_lab.course.exercises.nb05 import (
    aggregate,
    cispo_surrogate,
    clipped_surrogate,
    gspo_token_ratio,
    importance_ratio,
    policy_loss,
    sapo_surrogate,
)

EXERCISES = (
    importance_ratio.EXERCISE,
    gspo_token_ratio.EXERCISE,
    clipped_surrogate.EXERCISE,
    cispo_surrogate.EXERCISE,
    sapo_surrogate.EXERCISE,
    aggregate.EXERCISE,
    policy_loss.EXERCISE,
)
