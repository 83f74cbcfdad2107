"""Exercises of notebook 03: a reward that cannot be gamed, and the losses of the sorting world."""

from grpo_lab.course.exercises.nb03 import kl_penalty, repaired_reward, response_logprobs, surrogate_loss

EXERCISES = (
    repaired_reward.EXERCISE,
    response_logprobs.EXERCISE,
    surrogate_loss.EXERCISE,
    kl_penalty.EXERCISE,
)
