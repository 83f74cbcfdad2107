"""Lessons have the common form: a true head, a bounded length, predictions, a place in the loop, sources."""

import ast
import functools
import re
from pathlib import Path

import nbformat
import pytest

from tests.support.scripts import load_script

ROOT = Path(__file__).parents[2]
LONGEST, MOST_CELLS, FEWEST_PREDICTIONS = 50, 60, 5
# Bounds on the length of a lesson that a new reader can read in 45 minutes.
MOST_WORDS, MOST_LINES, MOST_FOLDS, MOST_FIGURES = 2400, 280, 8, 7
FIGURES = ("finish", "token_heat")  # beside one animation
HEAD = re.compile(r"\*CPU (\d+) s · reading (\d+) min · needs (nothing|\d\db?(, \d\db?)*)\*")
ENTRANCE, REFERENCE = "00", "05b"  # lesson 00 explains how to read lessons, 05b is a reference
WHOLE_LOOP = ("03", "07", "09")  # lessons about the whole loop, which need no "you are here"

pytest.importorskip("jupytext")
build = load_script("notebooks/build.py")
TEXTS = sorted((ROOT / "notebooks" / "text").glob("[0-9]*.md"))  # without further.md, a collection of topics


@pytest.fixture(params=TEXTS, ids=lambda path: path.stem)
def lesson(request):
    """The notebook of a text, which no test changes."""
    return read_lesson(request.param)


@functools.cache
def read_lesson(path: Path):
    notebook = build.read_text(path)
    notebook.number = path.stem.partition("_")[0]
    return notebook


def code(lesson) -> list[str]:
    return [cell.source for cell in lesson.cells if cell.cell_type == "code"]


def prose(lesson) -> str:
    return "\n\n".join(cell.source for cell in lesson.cells if cell.cell_type == "markdown")


@functools.cache
def all_calls(source: str) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]


def calls(source: str, name: str) -> list[ast.Call]:
    """Return the calls of functions and methods with this name."""
    return [call for call in all_calls(source) if getattr(call.func, "id", getattr(call.func, "attr", None)) == name]


def test_the_head_states_question_reading_time_and_needed_lessons(lesson):
    title, question, budget = prose(lesson).split("\n\n")[:3]
    assert title.startswith(f"# {lesson.number} · ")
    assert re.fullmatch(r"\*\*[^*]+\?\*\*", question)
    budget_line = HEAD.fullmatch(budget)
    assert budget_line, budget
    assert int(budget_line[2]) <= LONGEST
    assert abs(int(budget_line[2]) - build.reading_minutes(lesson)) <= 10  # the head has the minutes that readers took


def test_a_lesson_is_short_enough_above_its_exercises(lesson):
    """Bounded are words of prose (without code, formulas and tables), lines of code, cells, folds and figures."""
    last = next(i for i, cell in enumerate(lesson.cells) if re.search(r"^## Exercises", cell.source, re.MULTILINE))
    visible = nbformat.from_dict({"cells": lesson.cells[:last]})
    text = re.sub(r"\$\$.*?\$\$|`[^`]*`|\$[^$]*\$|^\|[^\n]*$", " ", prose(visible), flags=re.DOTALL | re.MULTILINE)
    folds = [cell for cell in visible.cells if "hide-output" in cell.metadata.get("tags", [])]
    figures = [call for source in code(visible) for name in FIGURES for call in calls(source, name)]
    assert len(re.findall(r"[A-Za-z][\w'’-]+", text)) <= MOST_WORDS
    assert sum(len(source.splitlines()) for source in code(visible)) <= MOST_LINES
    assert len(lesson.cells) <= MOST_CELLS and len(folds) <= MOST_FOLDS and len(figures) <= MOST_FIGURES


def test_a_lesson_shows_its_place_in_the_loop(lesson):
    # Lesson 00 begins with an example, so its diagram may come later.
    cells = code(lesson) if lesson.number == ENTRANCE else code(lesson)[:6]
    assert lesson.number in WHOLE_LOOP or any(calls(source, "loop_diagram") for source in cells)


def test_predictions_are_asked_alone_and_answered_and_counted(lesson):
    predictions = [source for source in code(lesson) if calls(source, "predict")]
    for source in predictions:
        assert len(ast.parse(source).body) == 1, f"a prediction stands alone in its cell:\n{source}"
    names = [ast.parse(source).body[0].targets[0].id for source in predictions]
    assert len(set(names)) == len(names)
    everything = "\n".join(code(lesson))
    unanswered = [name for name in names if f"{name}.truth(" not in everything]
    assert not unanswered
    assert len(names) >= {ENTRANCE: 2, REFERENCE: 0}.get(lesson.number, FEWEST_PREDICTIONS)
    if names:
        assert calls(code(lesson)[-1], "how_well_did_you_predict")


def test_a_prediction_is_in_sight_and_its_truth_is_not_above_it(lesson):
    cells = [cell for cell in lesson.cells if cell.cell_type == "code"]
    for cell in cells:
        if calls(cell.source, "predict"):
            assert not cell.metadata.get("tags"), cell.source
        if calls(cell.source, "truth"):
            assert "hide-output" in cell.metadata.get("tags", []), f"the answer stands open:\n{cell.source}"


def test_headings_are_unique_and_sources_are_named(lesson):
    headings = re.findall(r"^(#+) (.+)$", re.sub(r"```.*?```", "", prose(lesson), flags=re.DOTALL), re.MULTILINE)
    assert len({text for _, text in headings}) == len(headings) and ("##", "References") in headings
