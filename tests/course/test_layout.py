"""The parts of the course: each imports from those before it, and from none after it."""

import ast
from pathlib import Path

import pytest

import grpo_lab.course

COURSE = Path(grpo_lab.course.__file__).parent
PARTS = ("seeds", "wrong_answers", "exercise", "stub", "exercises", "guard", "checking", "release", "grading")


def arrows(part: str) -> set[str]:
    """The parts from which the files of this one import, within functions too."""
    files = (COURSE / part).rglob("*.py") if (COURSE / part).is_dir() else [COURSE / f"{part}.py"]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    froms = [(node.module, alias.name) for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    names = [f"{module}.{name}" for module, name in froms]
    names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return {name.split(".")[2] for name in names if name.startswith("grpo_lab.course.")} & set(PARTS)


def test_every_file_is_in_a_part():
    top = {path.stem for path in COURSE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert top - {"__init__", "__main__"} == set(PARTS)


@pytest.mark.parametrize("part", PARTS)
def test_imports_go_one_way(part):
    assert arrows(part) <= set(PARTS[: PARTS.index(part) + 1])
