"""Fixtures that the tests of the course share: a stand-in for the sandbox, and a folder of submissions."""

from pathlib import Path

import pytest

from grpo_lab.course.grading import grade as grade_module
from tests.course.classroom import RIGHT, WRONG_RLOO, InProcess, file_name, submit


@pytest.fixture
def sandbox(monkeypatch) -> InProcess:
    in_process = InProcess()
    monkeypatch.setattr(grade_module, "NotebookRunner", in_process)
    monkeypatch.setattr(grade_module, "strongest_isolation", lambda trust: "bubblewrap")
    return in_process


@pytest.fixture
def folder(tmp_path) -> Path:
    """A class of three students: alice is right in everything, bob in one of two answers, carol has written nothing."""
    submit(tmp_path / "class" / "alice" / file_name("01"), **RIGHT)
    submit(
        tmp_path / "class" / "bob" / file_name("01"), token_entropy=RIGHT["token_entropy"], reinforce_loss=WRONG_RLOO
    )
    submit(tmp_path / "class" / "carol" / file_name("01"))
    return tmp_path / "class"
