"""Exercises of notebook 04: the distance from the reference, estimated, exact, and charged to the reward."""

from grpo_lab.course.exercises.nb04 import kl_estimate, kl_exact, kl_in_reward

EXERCISES = (kl_estimate.EXERCISE, kl_exact.EXERCISE, kl_in_reward.EXERCISE)
