"""Exercises of notebook 08: what a card changes: rounding, memory, drawing, and the schedule of a long run."""

from grpo_lab.course.exercises.nb08 import cache_bytes, exponential_race, learning_rate, stochastic_round

EXERCISES = (
    stochastic_round.EXERCISE,
    cache_bytes.EXERCISE,
    exponential_race.EXERCISE,
    learning_rate.EXERCISE,
)
