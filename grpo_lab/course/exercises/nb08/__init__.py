"""Exercises of notebook 08: what a card changes: rounding, memory, drawing, and the schedule of a long run."""

NAMES = ("stochastic_round", "cache_bytes", "exponential_race", "learning_rate")
