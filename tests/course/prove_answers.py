"""The right answers of tests/course/right, by exercise."""

import importlib
from collections.abc import Callable

from grpo_lab.course.exercises import EXERCISES


def right_answers(name: str) -> tuple[Callable, ...]:
    return importlib.import_module(f"tests.course.right.nb{EXERCISES[name].notebook}").RIGHT[name]
