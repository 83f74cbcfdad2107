"""Exercises of notebook 07: what happens between the samples and the next weights."""

from grpo_lab.course.exercises.nb07 import (
    compute_advantages,
    frozen_copy,
    part_loss,
    pass_at_k,
    read_sequences,
    silence_dropout,
    step_if_finite,
)

EXERCISES = (
    read_sequences.EXERCISE,
    compute_advantages.EXERCISE,
    silence_dropout.EXERCISE,
    frozen_copy.EXERCISE,
    part_loss.EXERCISE,
    step_if_finite.EXERCISE,
    pass_at_k.EXERCISE,
)
