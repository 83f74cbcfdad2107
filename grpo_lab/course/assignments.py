"""The assignments: each is a notebook in which students write the functions of one lesson."""

from dataclasses import dataclass

from grpo_lab.base.checks import check_choice
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.exercises import NAMES, exercises_of_notebook


@dataclass(frozen=True)
class Assignment:
    """An assignment.

    Attributes:
        stem: The name of its file without the ending, such as "07c_what_training_buys"; that of the lesson is the same.
        title: The title of the lesson.
    """

    stem: str
    title: str

    @property
    def number(self) -> str:
        """The number of the lesson, such as "07c"."""
        return self.stem.partition("_")[0]

    @property
    def exercise_names(self) -> tuple[str, ...]:
        return NAMES[self.number]

    @property
    def exercises(self) -> dict[str, Exercise]:
        """The exercises by name, in order."""
        return exercises_of_notebook(self.number)


_ALL = (
    Assignment("01_policy_gradient", "Policy gradient"),
    Assignment("02_baselines_and_advantages", "Baselines and advantages"),
    Assignment("03_sorting_with_grpo", "Sorting with GRPO"),
    Assignment("04_kl_estimators", "KL estimators"),
    Assignment("05_grpo_objective", "The GRPO objective"),
    Assignment("06_rewards_and_verifiers", "Rewards and verifiers"),
    Assignment("07_r1_zero_on_a_laptop", "R1-Zero on a laptop"),
    Assignment("07c_what_training_buys", "What training buys"),
    Assignment("08_grpo_on_qwen2", "GRPO on Qwen2"),
    Assignment("09_find_the_bug", "Find the bug"),
    Assignment("10_beyond_one_machine", "Beyond one machine"),
    Assignment("11_tools_and_turns", "Tools and turns"),
)
ASSIGNMENTS = {assignment.number: assignment for assignment in _ALL}
ASSIGNMENTS_BY_STEM = {assignment.stem: assignment for assignment in _ALL}


def find_assignment(number: str) -> Assignment:
    """Return the assignment of this number, such as "05".

    Raises:
        InputError: If there is no such assignment.
    """
    check_choice("assignment", number, list(ASSIGNMENTS))
    return ASSIGNMENTS[number]
