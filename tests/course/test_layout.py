"""The parts of the course: each imports from those before it, and from none after it."""

import pytest

from tests.test_layout import PACKAGE, imported, modules

PARTS = ("wrong_answers", "exercise", "stub", "exercises", "guard", "checking", "release", "grading")


def test_every_file_is_in_a_part():
    course = PACKAGE / "course"
    top = {path.stem for path in course.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert top - {"__init__", "__main__"} == set(PARTS)


@pytest.mark.parametrize("part", PARTS)
def test_imports_go_one_way(part):
    names = {name for path in modules(f"course/{part}") for name in imported(path)}
    found = {name.split(".")[2] for name in names if name.startswith("grpo_lab.course.")} & set(PARTS)
    assert found <= set(PARTS[: PARTS.index(part) + 1])
