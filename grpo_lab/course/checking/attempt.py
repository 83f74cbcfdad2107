"""An attempt at an exercise: what an answer did on all cases, beside what the reference does."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from grpo_lab.course.checking.compare import equal_outcomes
from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.checking.run_cases import expected_outcomes
from grpo_lab.course.exercise import Exercise


@dataclass(frozen=True, eq=False)
class Attempt:
    """The outcomes of an answer on the cases of an exercise, with the inputs of one seed.

    Attributes:
        exercise: The exercise.
        outcomes: The outcomes of the answer in the order of the cases. Those after a case that was stopped are missing.
        seed: The seed from which the inputs were drawn.
    """

    exercise: Exercise
    outcomes: Sequence[Outcome]
    seed: int

    @property
    def expected(self) -> tuple[Outcome, ...]:
        """The outcomes of the reference on all cases."""
        return expected_outcomes(self.exercise, self.seed)

    @cached_property
    def failing(self) -> list[int]:
        """The indices of the cases on which the answer is wrong."""
        pairs = zip(self.outcomes, self.expected, strict=True)
        return [index for index, (got, right) in enumerate(pairs) if not equal_outcomes(got, right, self.exercise)]

    @property
    def ordinary(self) -> list[int]:
        """The indices of the cases for values, whose inputs are not extreme."""
        return [index for index, case in enumerate(self.exercise.cases) if case.tested_property == "values"]
