"""Vague words such as "found" are no names: not in the package, its tests, the recorders and the scripts."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("grpo_lab", "tests", "notebooks", "docs", ".ci")
VAGUE = {"found", "one", "said", "place", "places", "given", "wanted", "asked", "told"}
VAGUE |= {"each", "made", "held", "kept", "taken", "of", "at", "more", "what"}
# Names that misled readers, with the name of the thing today.
MISLEADING = {
    "abilities": "capabilities",
    "axe": "file_faults",
    "by_generate": "use_generate",
    "by_turn": "record_turns",
    "evaluating": "evaluation_mode",
    "first_step_test": "first_step_movement",
    "patience": "max_nonfinite_steps",
    "rows_at_once": "microbatch_size",
    "rows_of_step": "data_rows_of_step",
    "silence_dropout": "disable_dropout",
}
# A file, a vague name that it may bind, and the reason.
EXCEPTIONS = {
    ("grpo_lab/toys/guess/world.py", "found"): "the word of the game of lesson 11 that ends an episode",
}


# Beginnings of names of tests that do not say which function or behaviour is tested.
VAGUE_TEST_NAME = re.compile(r"test_(what|whatever|who|whose|where|how_it|it|its)_")


def bindings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each variable, argument, function and class that the source binds."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name


# What a line with such a binding contains; only files with one are parsed.
WORDS = "|".join([*VAGUE, *MISLEADING])
REFUSED = re.compile(rf"(?:def|class) (?:{WORDS})\b|\b(?:{WORDS})(?: :=|[ \n]*[=,:)\]]| in )")


def vague_names(path: Path) -> dict[tuple[str, str], int]:
    """Return the first line of each vague name that a file binds, by file and name."""
    lines: dict[tuple[str, str], int] = {}
    file, source = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for line, name in bindings(source) if REFUSED.search(source) else ():
        if name in VAGUE or name in MISLEADING:
            lines.setdefault((file, name), line)
    return lines


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_vague_name_is_bound(folder):
    refused = [
        f"{file}:{line} {name}{f', call it {MISLEADING[name]}' if name in MISLEADING else ''}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for (file, name), line in vague_names(path).items()
        if (file, name) not in EXCEPTIONS
    ]
    assert refused == []


def test_names_of_tests_begin_with_their_subject():
    """A failing test is known by its name alone in the log of a CI job."""
    definitions = [
        (path.relative_to(ROOT).as_posix(), name)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in re.findall(r"^ *(?:async )?def (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert ("tests/test_names.py", "test_names_of_tests_begin_with_their_subject") in definitions
    assert [f"{file}: {name}" for file, name in definitions if VAGUE_TEST_NAME.match(name)] == []


def test_exceptions_for_vague_names_are_needed():
    assert EXCEPTIONS.keys() <= {key for file, _ in EXCEPTIONS for key in vague_names(ROOT / file)}


def test_check_of_names_sees_each_kind_of_binding():
    source = (
        "def given(at, *, found=1):\n    for one in at:\n        kept = said = [place for place in one]\nclass Made: 0"
    )
    assert {name for _, name in bindings(source)} == {"given", "at", "found", "one", "kept", "said", "place", "Made"}
