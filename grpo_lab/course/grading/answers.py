"""Written answers: all that a student typed from a question to the next cell of the assignment, in whichever cell.

Where nothing stands there, the text that the student put anywhere else is taken for it, and where there is none, that
is said. So nothing that was typed earns 0 before a teacher has seen it.
"""

import re

from grpo_lab.course.grading.notebook import source_of
from grpo_lab.course.release.written import WRITTEN, Question

MAX_ANSWER = 20_000  # characters
_PLACEHOLDER = re.compile(r"\*?Your answer here\.( A few sentences are enough\.)?\*?")
_HEADING = re.compile(r"^#+ In your own words.*$", re.MULTILINE)


def written_answers(assignment: str, cells: list[dict], marks: list[dict]) -> tuple[dict[str, str], list[str]]:
    """By question what was typed, and what there is to say about it.

    Args:
        assignment: its file stem, such as "02_baselines_and_advantages".
        cells, marks: each cell of the notebook, and what the assignment wrote into its metadata ({} for a new one).
    """
    asked = {question.name: question for question in WRITTEN[assignment[:2]]}
    found: dict[str, list[str]] = {name: [] for name in asked}
    elsewhere: list[tuple[int, str]] = []
    at = ""  # the question to which the cell belongs
    for number, (cell, its) in enumerate(zip(cells, marks, strict=True), 1):
        source = source_of(cell)
        at = _question_of(source, its, asked) or (at if not its else "")
        if at:
            found[at] += [text] if (text := _typed(source, asked[at])) else []
        elif not its and cell.get("cell_type") != "code" and _says(source):
            elsewhere.append((number, source.strip()))
    said = []
    for name, texts in found.items():
        if not texts and elsewhere:
            texts += [text for _, text in elsewhere]
            said.append(f"{name}: nothing was typed there; taken from {_cells(elsewhere)}")
        elif not texts:
            said.append(f"{name}: no written answer was found")
    whole = {name: "\n\n".join(texts) for name, texts in found.items() if texts}
    too_long = [name for name, text in whole.items() if len(text) > MAX_ANSWER]
    said += [f"{name}: of {len(whole[name]):,} characters the first {MAX_ANSWER:,} are shown" for name in too_long]
    return {name: text[:MAX_ANSWER] for name, text in whole.items()}, said


def _question_of(source: str, its: dict, asked: dict[str, Question]) -> str:
    """The question that a cell asks, or that it is there to answer; by its mark, or, without one, by its text."""
    if its.get("role") in ("question", "written") and str(its.get("question")) in asked:
        return str(its["question"])
    return next((name for name, question in asked.items() if not its and _text(question).search(source)), "")


def _text(question: Question) -> re.Pattern:
    return re.compile(r"\s+".join(map(re.escape, question.text.split())))


def _typed(source: str, question: Question) -> str:
    """What is left without the assignment's own words."""
    for own in (_text(question), _HEADING, _PLACEHOLDER):
        source = own.sub("", source)
    return source.strip() if _says(source) else ""


def _says(text: str) -> bool:
    return re.search(r"\w", text) is not None


def _cells(numbered: list[tuple[int, str]]) -> str:
    numbers = ", ".join(str(number) for number, _ in numbered)
    return f"cell {numbers}" if len(numbered) == 1 else f"cells {numbers}"
