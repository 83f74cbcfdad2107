"""Exercises of notebook 02: what a reward is compared with."""

NAMES = ("group_advantages", "rloo_advantages", "best_of_group", "process_advantages", "return_to_go")
