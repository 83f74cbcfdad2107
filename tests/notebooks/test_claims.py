"""What a lesson claims: numbers from cells, exercises before solutions, runs from two settings or "in this run"."""

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

from grpo_lab.course.exercises import NAMES
from tests.notebooks.test_notebook_formulas import shown

ROOT = Path(__file__).parents[2] / "notebooks"
LESSONS = sorted(ROOT.glob("[0-9]*.ipynb"))

# Not prose: formulas, code, links, citations, cross-references, years, the head, rows of tables, HTML.
NO_PROSE = re.compile(
    r"\$\$.*?\$\$|\$[^$]*\$|`[^`]*`|\]\([^)]*\)|Eq\. \([^)]*\)|arXiv:[\d.]+|\[\d{4}\.\d+|\b(?:19|20)\d\d\b|"
    r"\*CPU[^*]*\*|\b(?:part|section|notebook|lesson|step|exercise) \d+\w?|^\|.*\|$|<[^>]*>",
    re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(r"(?<![\w.\-/^_{])(\d{1,3}(?:,\d{3})+(?!\d)|\d+\.\d+|\d+)(?![\d.]*\w)(%?)")
SMALL = 20  # whole numbers up to here are counted by the reader


@cache
def cells(lesson: Path) -> list[tuple[str, str, dict]]:
    """(kind, source, cell), up to the exercises."""
    kept = []
    for cell in json.loads(lesson.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown" and re.search(r"^## Exercises", source, re.MULTILINE):
            break
        kept.append((cell["cell_type"], source, cell))
    return kept


def printed(cell: dict) -> str:
    parts = [output.get("text", "") for output in cell.get("outputs", [])]
    parts += [
        text
        for output in cell.get("outputs", [])
        for kind, text in output.get("data", {}).items()
        if kind.startswith("text/")
    ]
    return "\n".join("".join(part) for part in parts)


def outside_facts(lesson: Path) -> set[str]:
    rows = [line.split("|", 2) for line in read_facts()]
    return {number.strip().replace(",", "") for name, number, _ in rows if name.strip() == lesson.stem}


def read_facts() -> list[str]:
    lines = (Path(__file__).with_name("outside_facts.txt")).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def unprinted(lesson: Path) -> list[str]:
    """Numbers of the prose that no line of code, no output and no fact from outside rounds to."""
    code = [source + "\n" + printed(cell) for kind, source, cell in cells(lesson) if kind == "code"]
    known = {float(n.replace(",", "")) for n in re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", "\n".join(code))}
    facts, found = outside_facts(lesson), []
    for kind, source, _ in cells(lesson):
        for number, percent in NUMBER.findall(NO_PROSE.sub(" ", source)) if kind == "markdown" else ():
            said = number.replace(",", "")
            digits = len(said.partition(".")[2])
            values = known | {100 * value for value in known} if percent else known
            near = any(abs(value - float(said)) <= 0.5001 * 10**-digits for value in values)
            if not near and said not in facts and (digits or float(said) > SMALL):
                found.append(number + percent)
    return found


def asked_and_shown(lesson: Path, name: str) -> tuple[list[int], list[int], list[bool]]:
    """The cells that ask to write a function, those that show it, and which of these are folded."""
    asks, shows, folded = [], [], []
    for place, (kind, source, cell) in enumerate(cells(lesson)):
        if kind == "markdown" and re.search(rf"Now write it.*`{name}`", source, re.DOTALL):
            asks.append(place)
        if kind == "code" and name in source and name in shown({"cells": [cell]}):
            shows.append(place)
            folded.append("hide-output" in cell["metadata"].get("tags", []))
    return asks, shows, folded


def out_of_order(lesson: Path) -> list[str]:
    """What is wrong with where the functions of the lesson's assignment are asked for and shown."""
    every = [name for names in NAMES.values() for name in names]
    wrong = [f"show({name}) stands open" for name in every if not all(asked_and_shown(lesson, name)[2])]
    for name in NAMES.get(lesson.stem.partition("_")[0], ()):
        asks, shows, _ = asked_and_shown(lesson, name)
        if shows and (not asks or asks[0] > shows[0]):
            wrong.append(f"{name} is shown before it is asked for")
        if asks and not formula_above(lesson, asks[0]):
            wrong.append(f"{name} is asked for without a formula in its section")
    return wrong


def formula_above(lesson: Path, place: int) -> bool:
    text = "\n".join(source for kind, source, _ in cells(lesson)[: place + 1] if kind == "markdown")
    return bool(re.search(r"\$", re.split(r"^## ", text, flags=re.MULTILINE)[-1]))


def records(lesson: Path) -> list[str]:
    """The records that a lesson reads."""
    code = "\n".join(source for kind, source, _ in cells(lesson) if kind == "code")
    return re.findall(r"runs/(\w+)\.json", code) if any_assert(code) else []


def any_assert(code: str) -> bool:
    return any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(code)))


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_numbers_of_the_prose_come_from_a_cell_or_have_a_source(lesson):
    assert unprinted(lesson) == []


def test_a_fact_from_outside_is_a_lesson_a_number_and_its_source():
    names = {lesson.stem for lesson in LESSONS}
    for line in read_facts():
        name, number, source = (part.strip() for part in line.split("|", 2))
        assert name in names and NUMBER.fullmatch(number) and len(source) > 10, line


@pytest.mark.parametrize("lesson", [*LESSONS, ROOT / "further.ipynb"], ids=lambda path: path.stem)
def test_a_function_is_asked_for_before_it_is_shown_and_then_folded(lesson):
    assert out_of_order(lesson) == []


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_records_name_the_second_setting_in_which_a_sentence_was_tried(lesson):
    for name in records(lesson):
        record = json.loads((ROOT / "runs" / f"{name}.json").read_text(encoding="utf-8"))
        assert record.get("second"), f"{name}: 'second' is missing"
