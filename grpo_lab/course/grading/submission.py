"""What a student handed in: the notebook that counts, with the cells that the grading runs."""

from dataclasses import dataclass, field

from grpo_lab.base.user_code import functions_of_cell


@dataclass(frozen=True)
class Cell:
    """A code cell that the grading runs.

    Attributes:
        number: The position among all cells of the notebook, from 1.
        source: The code.
        exercise: The name of the exercise for which the cell was released; "" for any other cell.
    """

    number: int
    source: str
    exercise: str = ""

    @property
    def defines(self) -> list[str]:
        """The names of the functions at the top level of the cell."""
        return [function.name for function in functions_of_cell(self.source)]


@dataclass
class Submission:
    """The notebook that one student handed in.

    Attributes:
        student: The name of the student, from the name of the folder or file, or from a learning platform.
        file: The file name that the student chose.
        platform: The learning platform, "moodle" or "canvas"; "" if the names come from no known one.
        platform_id: The number that the platform gives the student; "" without a platform.
        upload_id: The number that Canvas gives the file; a later upload has a larger one.
        assignment_stem: The file stem of the assignment; "" if the notebook belongs to none.
        cells: The code cells that the grading runs.
        written_answer: The answer to the question in words.
        problem: The reason why the notebook cannot be graded; "" if it can be.
        notes: Remarks for the teacher.
        exercises_as_text: The names of the exercises whose cell is a text cell, and not a code cell.
        class_fingerprint: The fingerprint of the formulas in a notebook with variants; "" without variants.
    """

    student: str
    file: str = ""
    platform: str = ""
    platform_id: str = ""
    upload_id: int = 0
    assignment_stem: str = ""
    cells: list[Cell] = field(default_factory=list)
    written_answer: str = ""
    problem: str = ""
    notes: list[str] = field(default_factory=list)
    exercises_as_text: list[str] = field(default_factory=list)
    class_fingerprint: str = ""

    def code_of(self, exercise: str) -> list[Cell]:
        """Return the cells that define the function of an exercise, or were released for it."""
        return [cell for cell in self.cells if cell.exercise == exercise or exercise in cell.defines]
