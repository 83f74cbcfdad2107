"""Notebooks that attack the grading change no points, read and write nothing, and do not keep others from grading."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from grpo_lab.course.exercises import find_exercise
from grpo_lab.course.grading import run_notebook
from grpo_lab.course.grading.class_grades import ClassGrades
from grpo_lab.course.grading.grade import grade
from grpo_lab.course.grading.messages import Cell
from grpo_lab.course.grading.run_notebook import OVER_TIME, TOO_MANY_TASKS
from grpo_lab.sandbox import isolation
from grpo_lab.sandbox.isolation import MAX_TASKS
from tests.course.classroom import POINTS, RIGHT, file_name, submit
from tests.support.bubblewrap import needs_bubblewrap

SEED, ROOT = 20_011, Path(__file__).parents[3]
attacks = SimpleNamespace(**yaml.safe_load(Path(__file__).with_name("attacks.yaml").read_text(encoding="utf-8")))
RLOO = {"reinforce_loss": attacks.RIGHT_RLOO}


def hand_in(folder: Path) -> None:
    """Write submissions into a folder: one of an honest student, one untouched, and many that attack the grading."""
    submit(folder / "honest" / file_name("01"), cells=(attacks.USUAL,), **RIGHT)
    submit(folder / "untouched" / file_name("01"))
    known = attacks.RIGHT_RLOO.replace("reinforce_loss", "RIGHT") + attacks.HARD_CODED
    submit(folder / "cheating" / file_name("01"), reinforce_loss=known, token_entropy=attacks.IMPORTED)
    submit(
        folder / "dying" / file_name("01"), **RLOO, token_entropy=attacks.EXIT, completion_mask=attacks.STUBBORN,
        token_logprobs=attacks.ALLOCATION, score_function_objective=attacks.SEGFAULT,
    )  # fmt: skip
    cells = (attacks.ENDLESS_CELL, attacks.EXIT_CELL, attacks.FORKS, "1 / 0", "def (", "%magic\n!ls")
    submit(folder / "wild.ipynb", cells=(*cells, "x = 1" + " " * 300_000), **RLOO, token_entropy=attacks.FLOOD)
    submit(folder / "patching" / file_name("01"), cells=(attacks.PATCHES,), score_function_objective=attacks.VERDICT)
    submit(folder / "forging" / file_name("01"), cells=(attacks.FORGERY,), score_function_objective=attacks.VERDICT)
    submit(folder / "excused" / file_name("01"), cells=(attacks.EXCUSES,), score_function_objective=attacks.IN_PLACE)
    for student, cell in (("slowed", "SLOWED"), ("crowd", "CROWD"), ("noise", "ERRORS_WITHOUT_END"), ("full", "FULL")):
        submit(folder / student / file_name("01"), cells=(getattr(attacks, cell),), **RLOO)
    submit(folder / "interrupt" / file_name("01"), cells=attacks.INTERRUPTS, **RLOO, token_entropy=attacks.INTERRUPT)
    submit(folder / "surrogate" / file_name("01"), cells=(attacks.SURROGATE_CELL,), **RLOO, **attacks.SURROGATES)


@pytest.fixture
def listener():
    """An open port of this machine, which shows whether a submission has connected to it."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0)
        yield server


def hand_in_a_spy(folder: Path, listener: socket.socket) -> None:
    classroom, home = folder / "class", folder / "home"
    paths = {
        "PACKAGE": ROOT / "grpo_lab" / "policy_gradient.py",
        "TESTS": ROOT / "tests" / "course" / "right_answers",
        "GIT": ROOT / ".git",
        "OTHER": classroom / "spy" / file_name("01"),
        "CLASS": classroom,
        "HOME": home,
        "MARKS": folder / "marks" / "grades.csv",
    }
    home.mkdir()
    paths["MARKS"].parent.mkdir()
    paths["MARKS"].write_text("last week's", encoding="utf-8")
    (home / "secret").write_text("x", encoding="utf-8")
    known = [f"{name} = {str(path)!r}" for name, path in paths.items()]
    mounts = [*isolation.SYSTEM_PATHS, *(source for source, _ in isolation.python_mounts())]
    visible = {Path(mounted).parts[1] for mounted in mounts}
    known += [
        f"SHOWN = {sorted(visible | {'proc', 'dev', 'tmp', 'package'})}",
        f"PARENT = {os.getpid()}",
        f"PORT = {listener.getsockname()[1]}",
    ]
    written = attacks.REPORT | {"token_entropy": RIGHT["token_entropy"]}
    submit(classroom / "spy" / file_name("01"), cells=(attacks.USUAL, "\n".join(known), attacks.SPY), **written)
    assert not [name for name, path in paths.items() if not path.exists()], "nothing to find there"


def grade_in(folder: Path, **settings) -> ClassGrades:
    (folder / "temporary").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A_SECRET", "the teacher's password")
        patch.setenv("HOME", str(folder / "home"))
        patch.setattr(tempfile, "tempdir", str(folder / "temporary"))
        return grade(folder / "class", SEED, number="01", **settings)


@needs_bubblewrap
def test_sandboxed_submission_reads_no_secrets_and_usual_code_works(tmp_path, listener):
    """The quick part of the test below, with one submission."""
    hand_in_a_spy(tmp_path, listener)
    grades = grade_in(tmp_path, time_limit=60.0)
    (spy,) = grades.submissions
    assert spy.failed_cells == {}
    assert points(spy) == {"token_entropy": POINTS["token_entropy"]}
    assert findings(grades) == []
    with pytest.raises(BlockingIOError):
        listener.accept()
    nothing_is_left_running(tmp_path)


@needs_bubblewrap
@pytest.mark.slow
def test_hostile_submissions_change_no_mark(tmp_path):
    hand_in(tmp_path / "class")
    grades = grade_in(tmp_path, jobs=2, time_limit=60.0)
    graded = {entry.submission.student: entry for entry in grades.submissions}
    names = {path.stem if path.suffix == ".ipynb" else path.name for path in (tmp_path / "class").iterdir()}
    assert set(graded) == names, "everybody has an entry"
    assert points(graded["honest"]) == POINTS
    assert graded["honest"].failed_cells == {}
    assert {verdict.status for verdict in graded["untouched"].verdicts.values()} == {"not started"}
    assert not graded["untouched"].failed_cells

    # No mark is changed from inside, and what a cell replaces excuses no answer.
    for student in ("patching", "forging", "cheating"):
        assert points(graded[student]) == {}, student
    for student in ("patching", "cheating", "excused"):
        assert graded[student].failed_cells == {}, "the attack itself has run"
    assert "Right on the inputs that you see" in graded["cheating"].verdicts["reinforce_loss"].message
    assert graded["excused"].points["score_function_objective"] <= POINTS["score_function_objective"] / 2
    assert graded["excused"].verdicts["score_function_objective"].fault == "inplace"

    # Exits, crashes and hangs cost only their own exercise, wild cells only themselves.
    dying, wild = graded["dying"], graded["wild"]
    assert points(dying) == points(wild) == {"reinforce_loss": POINTS["reinforce_loss"]}
    for name in ("token_entropy", "score_function_objective"):
        assert "ended the whole process" in dying.verdicts[name].message
    assert dying.verdicts["completion_mask"].fault == "stopped"
    assert wild.verdicts["token_entropy"].fault == "endless"
    assert "time limit" in wild.failed_cells[3]
    assert "SystemExit" in wild.failed_cells[4]
    assert "ZeroDivisionError" in wild.failed_cells[6]
    assert "SyntaxError" in wild.failed_cells[7]
    assert 8 not in wild.failed_cells
    assert any("300,005 characters" in note for note in wild.submission.notes)

    # What is too much is stopped, and costs only its author.
    for student in ("crowd", "noise", "slowed", "interrupt", "surrogate"):
        assert points(graded[student]) == {"reinforce_loss": POINTS["reinforce_loss"]}, student
    assert graded["crowd"].failed_cells == {3: TOO_MANY_TASKS}
    assert graded["slowed"].failed_cells == {3: OVER_TIME}
    assert "File too large" in graded["noise"].failed_cells[3]
    assert "No space left" in graded["full"].failed_cells[3]
    assert set(graded["interrupt"].failed_cells) == {3}
    assert "KeyboardInterrupt" in graded["interrupt"].failed_cells[3]
    assert set(graded["surrogate"].failed_cells) == {3}
    assert graded["interrupt"].verdicts["token_entropy"].fault == "stopped"

    # Nothing was written, and nothing is left running.
    assert not list(tmp_path.glob("class/**/mark.txt"))
    assert not list((tmp_path / "temporary").iterdir())
    nothing_is_left_running(tmp_path)


def points(graded) -> dict[str, int]:
    return {name: points for name, points in graded.points.items() if points}


def findings(grades: ClassGrades) -> list[str]:
    (spy,) = grades.submissions
    message = spy.verdicts["reinforce_loss"].message
    report = f"{message}\n" + str(spy.verdicts["reinforce_loss"])
    assert "found " in report, report
    return [part for part in report.split("found ")[1].splitlines()[0].split(";") if part.strip(" .'\"")]


def nothing_is_left_running(folder: Path) -> None:
    end = time.monotonic() + 60  # a killed process is listed until the kernel has removed it
    while (processes := running(folder / "temporary")) and time.monotonic() < end:
        time.sleep(0.1)
    assert not processes


def running(folder: Path) -> list[Path]:
    """Return the processes of this grading: those whose command contains the folder."""
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if _mentions(path, os.fsencode(folder))]


def _mentions(path: Path, text: bytes) -> bool:
    try:
        return text in path.read_bytes() and os.getpid() != int(path.parent.name)
    except OSError:
        return False


def test_a_runner_whose_package_cannot_be_made_leaves_no_folder(tmp_path, monkeypatch):
    def fail(folder, exercises):
        (folder / "grpo_lab").mkdir(parents=True)
        folder.chmod(0o555)
        raise OSError("no space left")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(run_notebook, "make_copy", fail)
    with pytest.raises(OSError, match="no space left"):
        run_notebook.NotebookRunner({}, "none")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_trusted_submissions_run_without_a_sandbox(tmp_path, monkeypatch):
    """On macOS and Windows a submission still has its own process, limits, a clean environment and no answers."""
    submit(tmp_path / "honest" / file_name("01"), cells=(attacks.USUAL,), **RLOO, token_entropy=attacks.EXIT)
    monkeypatch.setattr(isolation, "reason_of_failure", lambda command, **settings: "switched off")
    monkeypatch.setattr(isolation.os, "geteuid", lambda: 1000, raising=False)  # an ordinary user; root is refused
    (graded,) = grade(tmp_path, SEED, trust=True, time_limit=60.0).submissions
    assert points(graded) == {"reinforce_loss": POINTS["reinforce_loss"]}
    assert graded.failed_cells == {}


@pytest.mark.slow
def test_threads_are_charged_to_the_cell_that_starts_them_even_if_its_announcement_is_read_late(tmp_path, monkeypatch):
    announced, is_killed = tmp_path / "announced", threading.Event()
    code = "import json, pathlib, time; [print(json.dumps({'step': n}), flush=True) for n in (0, 1)]; "
    code += f"pathlib.Path({str(announced)!r}).touch(); time.sleep(60)"
    read, kill = run_notebook.read_messages, run_notebook.kill_worker

    def count(pid):
        return MAX_TASKS + 1 if announced.exists() else 1

    def read_after_kill(*arguments):
        is_killed.wait(60)
        read(*arguments)

    def kill_then_read(*arguments):
        kill(*arguments)
        is_killed.set()

    def start(self, folder, log):
        return subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, start_new_session=True), []

    replaced = {"read_messages": read_after_kill, "kill_worker": kill_then_read, "count_tasks": count}
    for name, function in replaced.items():
        monkeypatch.setattr(run_notebook, name, function)
    monkeypatch.setattr(run_notebook.NotebookRunner, "start", start)
    cells, run = [Cell(2, "import torch"), Cell(3, attacks.CROWD), Cell(5, "1")], run_notebook.NotebookRun()
    with run_notebook.NotebookRunner({"reinforce_loss": find_exercise("reinforce_loss")}, "none") as runner:
        remaining_cells = run_notebook.WorkerRun(runner, run, cells, ["reinforce_loss"], [0]).execute(
            time.monotonic() + 60
        )
    assert remaining_cells == [cells[0], cells[2]]
    assert run.failed_cells == {3: TOO_MANY_TASKS}
    assert run.exercises == {}
