"""Exercises of notebook 04: the distance from the reference, estimated, exact, and charged to the reward."""

NAMES = ("kl_estimate", "kl_exact", "kl_in_reward")
