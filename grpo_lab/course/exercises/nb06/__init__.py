"""Exercises of notebook 06: what a response earns, and how it is read."""

from grpo_lab.course.exercises.nb06 import accuracy_reward, extract_answer, format_fault, graded_reward, same_number

EXERCISES = (
    format_fault.EXERCISE,
    extract_answer.EXERCISE,
    accuracy_reward.EXERCISE,
    graded_reward.EXERCISE,
    same_number.EXERCISE,
)
