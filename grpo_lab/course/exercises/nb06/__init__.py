"""Exercises of notebook 06: what a response earns, and how it is read."""

NAMES = ("format_fault", "extract_answer", "accuracy_reward", "graded_reward", "same_number")
