"""What a run of one notebook in the sandbox gives."""

from dataclasses import dataclass, field

from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.grading.messages import UNDEFINED


@dataclass(frozen=True)
class ExerciseRun:
    """The run of one exercise: outcomes, or the reason why there are none.

    Attributes:
        outcomes: The outcomes of the student's function, by the seed of the inputs.
        problem: A sentence that explains why there are no outcomes; "" if there are.
    """

    outcomes: dict[int, list[Outcome]] = field(default_factory=dict)
    problem: str = ""

    @property
    def is_undefined(self) -> bool:
        """True if the notebook defines no function of the exercise's name."""
        return self.problem == UNDEFINED


@dataclass(frozen=True)
class NotebookRun:
    """The run of a notebook: all exercises, and the cells that failed.

    Attributes:
        exercises: The run of each exercise, by its name.
        failed_cells: The reason why a cell failed, by the number of the cell.
    """

    exercises: dict[str, ExerciseRun] = field(default_factory=dict)
    failed_cells: dict[int, str] = field(default_factory=dict)
