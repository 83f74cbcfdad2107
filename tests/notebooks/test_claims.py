"""A lesson's numbers come from its cells, exercises stand before solutions, and records have a second setting."""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from grpo_lab.course.exercises import NAMES
from tests.support.notebook_cells import shown_functions

ROOT = Path(__file__).parents[2] / "notebooks"
LESSONS = sorted(ROOT.glob("[0-9]*.ipynb"))

# Text that is no prose: formulas, code, links, citations, cross-references, years, the head, tables, HTML.
NO_PROSE = re.compile(
    r"\$\$.*?\$\$|\$[^$]*\$|`[^`]*`|\]\([^)]*\)|Eq\. \([^)]*\)|arXiv:[\d.]+|\[\d{4}\.\d+|\b(?:19|20)\d\d\b|"
    r"\*CPU[^*]*\*|\b(?:part|section|notebook|lesson|step|exercise) \d+\w?|^\|.*\|$|<[^>]*>",
    re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(r"(?<![\w.\-/^_{])(\d{1,3}(?:,\d{3})+(?!\d)|\d+\.\d+|\d+)(?![\d.]*\w)(%?)")
SMALL = 20  # whole numbers up to this one need no source, because a reader can count


class LessonCell(NamedTuple):
    """A cell of a lesson: "code" or "markdown", its source, and all that the file has of it."""

    kind: str
    source: str
    content: dict


@cache
def cells(lesson: Path) -> list[LessonCell]:
    """Return the cells above the exercises."""
    lesson_cells = []
    for content in json.loads(lesson.read_text(encoding="utf-8"))["cells"]:
        source = "".join(content["source"])
        if content["cell_type"] == "markdown" and re.search(r"^## Exercises", source, re.MULTILINE):
            break
        lesson_cells.append(LessonCell(content["cell_type"], source, content))
    return lesson_cells


def printed(cell: dict) -> str:
    parts = [output.get("text", "") for output in cell.get("outputs", [])]
    parts += [
        text
        for output in cell.get("outputs", [])
        for kind, text in output.get("data", {}).items()
        if kind.startswith("text/")
    ]
    return "\n".join("".join(part) for part in parts)


class Section(NamedTuple):
    """The text and the cells from one heading to the next heading of any level."""

    heading: str  # "" for the text above the first heading
    prose: str
    code: str  # code of the section's cells
    outputs: str

    def numbers(self, texts: str) -> set[float]:
        return {float(n.replace(",", "")) for n in re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", texts)}

    @property
    def printed(self) -> set[float]:
        return self.numbers(f"{self.code}\n{self.outputs}")


@cache
def sections(lesson: Path) -> list[Section]:
    parts = [["", [], [], []]]
    for kind, source, cell in cells(lesson):
        if kind == "code":
            parts[-1][2].append(source)
            parts[-1][3].append(re.sub(r"base64,[\w+/=]+", "", printed(cell)))
            continue
        without_code = re.sub(r"(?ms)^```.*?^```", "", source)
        for text in re.split(r"(?m)^(?=#{1,6} )", without_code):
            if text.startswith("#"):
                parts.append([text.partition("\n")[0].lstrip("# "), [], [], []])
            parts[-1][1].append(text)
    return [Section(heading, *map("\n".join, texts)) for heading, *texts in parts]


def records_of(lesson: Path, section: Section) -> list[dict]:
    """Return the records that a section reads, or whose variable it uses."""
    names = set(re.findall(r"runs/(\w+)\.json", section.code))
    for other_section in sections(lesson):
        for variables, name in re.findall(r"(?m)^([\w, ]+) = .*runs/(\w+)\.json", other_section.code):
            if any(re.search(rf"\b{variable.strip()}\b", section.code) for variable in variables.split(",")):
                names.add(name)
    return [json.loads((ROOT / "runs" / f"{name}.json").read_text(encoding="utf-8")) for name in sorted(names)]


def settings(record) -> Iterator[float]:
    """Yield the numbers of a record outside of its lists, which are settings and no measurements."""
    for value in record.values():
        if isinstance(value, dict):
            yield from settings(value)
        elif isinstance(value, int | float):
            yield float(value)


def lines_of(file: str) -> list[list[str]]:
    """Return the rows of a table of this folder, such as `lesson | number | source`."""
    lines = Path(__file__).with_name(file).read_text(encoding="utf-8").splitlines()
    return [[part.strip() for part in line.split("|", 2)] for line in lines if line and not line.startswith("#")]


def rounds_to(value: float, number: str) -> bool:
    digits = len(number.partition(".")[2])
    return abs(value - float(number)) <= 0.5001 * 10**-digits


def is_among(values: Iterable[float], number: str, percent: str) -> bool:
    number = number.replace(",", "")
    return any(rounds_to(value, number) or (percent and rounds_to(100 * value, number)) for value in values)


def unplaced(lesson: Path) -> list[str]:
    """Return the numbers of the prose that have no source.

    The source of a fraction or a percentage is a cell of the same section, or a setting of a record that the section
    reads. A whole number may be a setting, so it may also come from a cell of an earlier section. The text above the
    first part announces the page, so its numbers may be printed anywhere on the page. All other numbers need a row in
    outside_facts.txt or in printed_under.txt.
    """
    rows = lines_of("outside_facts.txt") + lines_of("printed_under.txt")
    listed = {number for name, number, _ in rows if name == lesson.stem}
    all_sections, missing = sections(lesson), []
    on_page = {value for section in all_sections for value in section.printed}
    for index, section in enumerate(all_sections):
        in_section = section.printed | {value for record in records_of(lesson, section) for value in settings(record)}
        up_to_here = in_section | {value for earlier in all_sections[:index] for value in earlier.printed}
        for number, percent in NUMBER.findall(NO_PROSE.sub(" ", section.prose)):
            is_whole = not percent and "." not in number
            if number in listed or (is_whole and int(number.replace(",", "")) <= SMALL):
                continue
            if index < 2:
                values = on_page
            else:
                values = up_to_here if is_whole else in_section
            if not is_among(values, number, percent):
                missing.append(f"{number}{percent} under {section.heading!r}")
    return missing


def asking_cells(lesson: Path, name: str) -> list[int]:
    """Return the indices of the cells that ask for a function."""
    request = re.compile(rf"Now write it.*`{name}`", re.DOTALL)
    texts = [cell.source if cell.kind == "markdown" else "" for cell in cells(lesson)]
    return [index for index, text in enumerate(texts) if request.search(text)]


def showing_cells(lesson: Path, name: str) -> dict[int, bool]:
    """Return the indices of the cells that show a function, each with whether it is folded."""
    is_folded = {}
    for index, cell in enumerate(cells(lesson)):
        if cell.kind == "code" and name in cell.source and name in shown_functions({"cells": [cell.content]}):
            is_folded[index] = "hide-output" in cell.content["metadata"].get("tags", [])
    return is_folded


def out_of_order(lesson: Path) -> list[str]:
    """Return a line for each function that the lesson shows unfolded, or before it asks for the function."""
    functions = [name for names in NAMES.values() for name in names]
    wrong = [f"show({name}) stands open" for name in functions if not all(showing_cells(lesson, name).values())]
    for name in NAMES.get(lesson.stem.partition("_")[0], ()):
        asks, shows = asking_cells(lesson, name), showing_cells(lesson, name)
        if shows and (not asks or asks[0] > min(shows)):
            wrong.append(f"{name} is shown before it is asked for")
        if asks and not formula_above(lesson, asks[0]):
            wrong.append(f"{name} is asked for without a formula in its section")
    return wrong


def formula_above(lesson: Path, index: int) -> bool:
    text = "\n".join(source for kind, source, _ in cells(lesson)[: index + 1] if kind == "markdown")
    return bool(re.search(r"\$", re.split(r"^## ", text, flags=re.MULTILINE)[-1]))


def records(lesson: Path) -> list[str]:
    """Return the names of the records that a lesson with assertions reads."""
    code = "\n".join(source for kind, source, _ in cells(lesson) if kind == "code")
    return re.findall(r"runs/(\w+)\.json", code) if any_assert(code) else []


def any_assert(code: str) -> bool:
    return any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(code)))


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_number_of_the_prose_is_printed_in_its_section_or_has_a_source(lesson):
    assert unplaced(lesson) == []


def test_a_number_that_another_section_prints_is_out_of_place(tmp_path):
    def code(source: str, output: str) -> dict:
        return {"cell_type": "code", "source": source, "outputs": [{"text": output}], "metadata": {}}

    def markdown(source: str) -> dict:
        return {"cell_type": "markdown", "source": source, "metadata": {}}

    lesson = [
        markdown("# 9 · A lesson\n\nIn the end 0.62 are right."),  # this text announces the page
        markdown("## Before\n\nOf 64 completions 0.31 are right, and 0.62 after training."),
        code("steps = 64", "0.3127"),
        markdown("## After\n\nOf 64 completions 62% are right, not 31%, and 45 of 97 think.\n\n```\nx = 0.77\n```"),
        code("picture", '<img src="data:image/gif;base64,45+97/33==">'),
        code("after", "right 0.6201"),
    ]
    path = tmp_path / "99_a_lesson.ipynb"
    path.write_text(json.dumps({"cells": lesson}), encoding="utf-8")
    assert unplaced(path) == ["0.62 under 'Before'", "31% under 'After'", "45 under 'After'", "97 under 'After'"]


def test_a_fact_from_outside_is_a_lesson_a_number_and_its_source():
    names = {lesson.stem for lesson in LESSONS}
    for name, number, source in lines_of("outside_facts.txt"):
        assert name in names and NUMBER.fullmatch(number) and len(source) > 10, (name, number)


def test_a_number_that_is_printed_under_another_heading_is_printed_there():
    for name, number, heading in lines_of("printed_under.txt"):
        under = [section for section in sections(ROOT / f"{name}.ipynb") if section.heading == heading]
        assert len(under) == 1, f"{name} has {len(under)} headings {heading!r}"
        assert is_among(under[0].printed, number.rstrip("%"), "%"), f"{name}: {number} is not printed there"


@pytest.mark.parametrize("lesson", [*LESSONS, ROOT / "further.ipynb"], ids=lambda path: path.stem)
def test_a_function_is_asked_for_before_it_is_shown_and_then_folded(lesson):
    assert out_of_order(lesson) == []


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_records_name_the_second_setting_in_which_a_sentence_was_tried(lesson):
    for name in records(lesson):
        record = json.loads((ROOT / "runs" / f"{name}.json").read_text(encoding="utf-8"))
        assert record.get("second"), f"{name}: 'second' is missing"
