r"""Formulas in notebooks agree with the docstrings of the package, and are numbered in reading order.

If a docstring of the package has the tag of a formula, the formula belongs to a line of code and is equal to that in
the docstring. Any other formula is a step of a derivation; its number is used once, by a notebook of its chapter. Every
equation of the code is shown or written in some notebook.
"""

import json
import re
import runpy
from pathlib import Path

import pytest

from tests.support.equations import formula_map
from tests.support.notebook_cells import cells, shown_functions

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
ANY = r"\d+"  # further.ipynb has equations of any chapter
TAG = r"\d+\.\d+"
CITATION = re.compile(rf"Eqs?\.[\s~]*\({TAG}\)(?:(?:,|,? and|,? or|,? to| ?[-–])\s*\({TAG}\))*")


def prose(notebook: dict) -> list[str]:
    """Return the Markdown cells without code."""
    return [
        re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
        for text in cells(notebook, "markdown")
    ]


def displayed(notebook: dict) -> list[str]:
    """Return the displayed formulas, which stand between lines of $$."""
    return [
        block
        for text in prose(notebook)
        for block in re.findall(r"^\s*\$\$\s*$(.*?)^\s*\$\$\s*$", text, re.MULTILINE | re.DOTALL)
    ]


def tagged(notebook: dict) -> list[tuple[str, str]]:
    """Return (tag, LaTeX) of every displayed formula with a tag."""
    tagged_blocks = []
    for block in displayed(notebook):
        if match := re.search(r"\\tag\{([^}]*)\}", block):
            tagged_blocks.append((match[1], block.replace(match[0], "")))
    return tagged_blocks


def latex_tokens(latex: str) -> list[str]:
    r"""Return commands and characters, without white space, which only ends commands (`\log x` but `\logx`)."""
    return re.findall(r"\\[A-Za-z]+|\\.|\S", latex)


def faults(number: int | str, notebook: dict, code: dict, written: set[str]) -> list[str]:
    """Return a line for each fault in the formulas of a notebook; `written` are the tags in the whole series."""
    wrong = [
        f"$$ is not alone on its line: {line!r}"
        for text in prose(notebook)
        for line in text.splitlines()
        if "$$" in line and line.strip() != "$$"
    ]
    for block in displayed(notebook):
        if block.count(r"\tag{") != 1:
            wrong.append(f"a displayed formula has one \\tag: {block.strip()!r}")
    for tag, latex in tagged(notebook):
        if tag in code and latex_tokens(latex) != latex_tokens(code[tag].latex):
            wrong.append(f"({tag}) differs from the docstring of {code[tag].function}: {latex.strip()!r}")
        if tag not in code and not re.fullmatch(rf"{number}\.\d+", tag):
            wrong.append(f"({tag}) is no equation of the code, and none of this chapter, as ({number}.1) would be")
    for text in prose(notebook):
        for tag in [tag for citation in CITATION.findall(text) for tag in re.findall(rf"\(({TAG})\)", citation)]:
            if tag not in code and tag not in written:
                wrong.append(f"Eq. ({tag}) is cited and does not exist")
    return wrong


def chapter(name: str) -> int | str:
    """Return the chapter of a notebook: 5 for "05" and "05b", and `ANY` for a name without a number."""
    return int(name[:2]) if name[0].isdigit() else ANY


def tags_of(notebooks: dict[str, dict]) -> set[str]:
    return {tag for notebook in notebooks.values() for tag, _ in tagged(notebook)}


@pytest.fixture(scope="module")
def series() -> dict[str, dict]:
    return {path.stem.partition("_")[0]: json.loads(path.read_text(encoding="utf-8")) for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_formulas_of_the_notebook_agree_with_the_code(path, series):
    name = path.stem.partition("_")[0]
    assert faults(chapter(name), series[name], formula_map(), tags_of(series)) == []


def test_the_number_of_a_step_is_used_once_in_the_series(series):
    code = formula_map()
    steps = [tag for notebook in series.values() for tag, _ in tagged(notebook) if tag not in code]
    assert len(steps) == len(set(steps))


def test_equations_are_numbered_in_the_order_in_which_the_pages_show_them():
    script = Path(__file__).parents[2] / "notebooks" / "number_equations.py"
    names = runpy.run_path(str(script))
    assert names["new_numbers"](names["tracked_files"]()) == {}


def test_every_equation_of_the_code_is_in_a_notebook(series):
    names, written = set().union(*map(shown_functions, series.values())), tags_of(series)
    assert [
        tag
        for tag, equation in formula_map().items()
        if tag not in written and equation.function.rpartition(".")[2] not in names
    ] == []


def test_a_planted_line_replaces_the_line_that_has_its_tag():
    """`{"5.5": "surrogate = ..."}` in a lesson, its solutions too: Eq. (5.5) is a line that assigns `surrogate`."""
    texts = NOTEBOOKS[0].parent.glob("text/*.md")
    planted = [p for text in texts for p in re.findall(rf'\{{"({TAG})": "(\w+) =', text.read_text(encoding="utf-8"))]
    assert len(planted) >= 3
    assert [(tag, name) for tag, name in planted if name not in formula_map()[tag].names] == []
