"""Exercises of notebook 01: what the policy thought of its tokens, and the loss of the policy gradient."""

from grpo_lab.course.exercises.nb01 import (
    completion_mask,
    reinforce_loss,
    score_function_objective,
    sequence_logprob,
    token_entropy,
    token_logprobs,
)

EXERCISES = (
    token_logprobs.EXERCISE,
    token_entropy.EXERCISE,
    completion_mask.EXERCISE,
    sequence_logprob.EXERCISE,
    reinforce_loss.EXERCISE,
    score_function_objective.EXERCISE,
)
