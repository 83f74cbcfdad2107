"""The form of a lesson: a head that is so, its length, its predictions, its place in the loop, its sources."""

import ast
import re
from pathlib import Path

import nbformat
import pytest

from tests.support.scripts import load_script

ROOT = Path(__file__).parents[2]
LONGEST, MOST_CELLS, FEWEST_PREDICTIONS = 50, 60, 5
# What a stranger reads in 45 minutes counts; these are a bound on what does not fit into them.
MOST_WORDS, MOST_LINES, MOST_FOLDS, MOST_FIGURES = 2400, 280, 8, 7
FIGURES = ("finish", "token_heat")  # beside one animation
HEAD = re.compile(r"\*CPU (\d+) s · reading (\d+) min · needs (nothing|\d\db?(, \d\db?)*)\*")
ENTRANCE, REFERENCE = "00", "05b"  # the one that says how to read, and the one to look things up in
WHOLE_LOOP = ("03", "07", "09")  # where "you are here" would say nothing

pytest.importorskip("jupytext")
build = load_script("notebooks/build.py")
TEXTS = sorted((ROOT / "notebooks" / "text").glob("[0-9]*.md"))  # without further.md, where one looks things up


@pytest.fixture(params=TEXTS, ids=lambda path: path.stem)
def lesson(request):
    notebook = build.read_text(request.param)
    notebook.number = request.param.stem.partition("_")[0]
    return notebook


def code(lesson) -> list[str]:
    return [cell.source for cell in lesson.cells if cell.cell_type == "code"]


def prose(lesson) -> str:
    return "\n\n".join(cell.source for cell in lesson.cells if cell.cell_type == "markdown")


def calls(source: str, name: str) -> list[ast.Call]:
    """Calls of a function, or of a method, of this name."""
    called = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [call for call in called if getattr(call.func, "id", getattr(call.func, "attr", None)) == name]


def test_the_head_says_what_it_takes(lesson):
    title, question, budget = prose(lesson).split("\n\n")[:3]
    assert title.startswith(f"# {lesson.number} · ")
    assert re.fullmatch(r"\*\*[^*]+\?\*\*", question)
    budget_line = HEAD.fullmatch(budget)
    assert budget_line, budget
    assert int(budget_line[2]) <= LONGEST
    assert abs(int(budget_line[2]) - build.reading_minutes(lesson)) <= 10  # said by readers


def test_it_says_one_thing_from_its_title_to_its_exercises(lesson):
    """Words of prose without code, formulas and tables; lines of code, folded ones too; folds; figures."""
    last = next(i for i, cell in enumerate(lesson.cells) if re.search(r"^## Exercises", cell.source, re.MULTILINE))
    visible = nbformat.from_dict({"cells": lesson.cells[:last]})
    text = re.sub(r"\$\$.*?\$\$|`[^`]*`|\$[^$]*\$|^\|[^\n]*$", " ", prose(visible), flags=re.DOTALL | re.MULTILINE)
    folds = [cell for cell in visible.cells if "hide-output" in cell.metadata.get("tags", [])]
    figures = [call for source in code(visible) for name in FIGURES for call in calls(source, name)]
    assert len(re.findall(r"[A-Za-z][\w'’-]+", text)) <= MOST_WORDS
    assert sum(len(source.splitlines()) for source in code(visible)) <= MOST_LINES
    assert len(lesson.cells) <= MOST_CELLS and len(folds) <= MOST_FOLDS and len(figures) <= MOST_FIGURES


def test_it_says_where_in_the_loop_you_are(lesson):
    first = code(lesson) if lesson.number == ENTRANCE else code(lesson)[:6]  # which comes to the loop by an example
    assert lesson.number in WHOLE_LOOP or any(calls(source, "loop_diagram") for source in first)


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
