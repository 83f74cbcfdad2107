"""Notebooks that attack the grading: no mark changes, nothing is read or written, and the others are graded.

They are graded once, together, and looked at in one test: two processes that shared its parts would grade them twice.
"""

import copy
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from grpo_lab.course.grading.grade import Grading, grade
from grpo_lab.course.grading.report import write_report
from grpo_lab.course.grading.sandbox import run
from grpo_lab.course.grading.sandbox.returned import ENDLESS
from grpo_lab.course.grading.sandbox.run import CROWD, TOO_MUCH, Limits, Sandbox
from grpo_lab.course.grading.sandbox.starting import Template
from grpo_lab.course.release.notebooks import assignments, of_notebook
from tests.course import attacks
from tests.course.submitted import LINUX, assert_each_is_named, file_name, hand_in_what_is_no_notebook, submit

SEED, ROOT = 20_011, Path(__file__).parents[2]
POINTS = {name: exercise.points for name, exercise in of_notebook("02").items()}
pytestmark = pytest.mark.slow


def hand_in(folder: Path) -> None:
    """A folder of submissions: one honest student among many who are not."""
    right = {name: exercise.function for name, exercise in of_notebook("02").items()}
    rloo = {"rloo_advantages": attacks.RIGHT_RLOO}
    submit(folder / "honest" / file_name("02"), cells=(attacks.USUAL,), **right)
    submit(folder / "untouched" / file_name("02"))
    known = attacks.RIGHT_RLOO.replace("rloo_advantages", "RIGHT") + attacks.HARD_CODED
    submit(folder / "cheating" / file_name("02"), rloo_advantages=known, best_of_group=attacks.IMPORTED)
    submit(
        folder / "dying" / file_name("02"), **rloo, best_of_group=attacks.EXIT, return_to_go=attacks.SEGFAULT,
        group_advantages=attacks.ALLOCATION, process_advantages=attacks.STUBBORN,
    )  # fmt: skip
    cells = (attacks.ENDLESS_CELL, attacks.EXIT_CELL, attacks.THREADS, attacks.FORKS, "1 / 0", "def (", "%magic\n!ls")
    submit(folder / "wild.ipynb", cells=(*cells, "x = 1" + " " * 300_000), **rloo, best_of_group=attacks.FLOOD)
    submit(folder / "patching" / file_name("02"), cells=(attacks.PATCHES,), return_to_go=attacks.VERDICT)
    submit(folder / "forging" / file_name("02"), cells=(attacks.FORGERY,), return_to_go=attacks.VERDICT)
    submit(
        folder / "excused" / file_name("02"), cells=(attacks.EXCUSES,), rloo_advantages=attacks.ON_THE_CPU,
        return_to_go=attacks.IN_PLACE,
    )  # fmt: skip
    submit(folder / "slowed" / file_name("02"), cells=(attacks.SLOWED,), **rloo)
    submit(folder / "crowd" / file_name("02"), cells=(attacks.CROWD,), **rloo)
    submit(folder / "noise" / file_name("02"), cells=(attacks.ERRORS_WITHOUT_END,), **rloo)
    submit(
        folder / "interrupt" / file_name("02"), cells=attacks.INTERRUPTS, **rloo, best_of_group=attacks.INTERRUPT
    )  # fmt: skip
    submit(folder / "nested" / file_name("02"), cells=(attacks.NESTED,), **rloo)
    submit(folder / "surrogate" / file_name("02"), cells=(attacks.SURROGATE_CELL,), **rloo, **attacks.SURROGATES)
    hand_in_what_is_no_notebook(folder, folder / "honest" / file_name("02"))


@pytest.fixture
def listener():
    """A port of this machine at which a visitor would be noticed."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0)
        yield server


def test_nothing_that_a_submission_does_changes_a_mark(tmp_path, listener, subtests):
    hand_in(tmp_path / "class")
    hand_in_a_spy(tmp_path, listener)
    grading = grade_in(tmp_path, jobs=2, limits=Limits(seconds=15.0, memory=2 * 2**30))
    for part in PARTS:
        with subtests.test(part.__name__):
            part(grading, tmp_path)
    with pytest.raises(BlockingIOError):
        listener.accept()


def hand_in_a_spy(folder: Path, listener: socket.socket) -> None:
    classroom, home = folder / "class", folder / "home"
    places = {
        "PACKAGE": ROOT / "grpo_lab" / "advantages.py",
        "TESTS": ROOT / "tests" / "course" / "right",
        "GIT": ROOT / ".git",
        "OTHER": classroom / "honest" / file_name("02"),
        "CLASS": classroom,
        "HOME": home,
        "MARKS": folder / "marks" / "grades.csv",
    }
    home.mkdir()
    places["MARKS"].parent.mkdir()
    places["MARKS"].write_text("last week's", encoding="utf-8")
    (home / "secret").write_text("x", encoding="utf-8")
    known = [f"{name} = {str(path)!r}" for name, path in places.items()]
    known += [f"PARENT = {os.getpid()}", f"PORT = {listener.getsockname()[1]}"]
    submit(classroom / "spy" / file_name("02"), cells=("\n".join(known), attacks.SPY), **attacks.REPORT)


def grade_in(folder: Path, **settings) -> Grading:
    (folder / "temporary").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A_SECRET", "the teacher's password")
        patch.setenv("HOME", str(folder / "home"))
        patch.setattr(tempfile, "tempdir", str(folder / "temporary"))
        return grade(folder / "class", SEED, **settings)


def marks(grading: Grading, student: str) -> dict:
    return {mark.exercise.name: mark for one in grading.students[student] for mark in one.marks}


def points(grading: Grading, student: str) -> dict[str, int]:
    return {name: mark.points for name, mark in marks(grading, student).items() if mark.points}


def everybody_has_an_entry(grading, folder):
    names = {path.stem if path.suffix == ".ipynb" else path.name for path in (folder / "class").iterdir()}
    assert set(grading.students) == names


def the_honest_student_gets_all_points(grading, folder):
    assert points(grading, "honest") == POINTS and grading.students["honest"][0].cells == {}


def an_untouched_notebook_is_not_started_and_nothing_worse(grading, folder):
    assert {mark.status for mark in marks(grading, "untouched").values()} == {"not started"}
    assert not grading.students["untouched"][0].cells


def answers_written_down_for_the_visible_inputs_do_not_pass(grading, folder):
    mark = marks(grading, "cheating")["rloo_advantages"]
    assert mark.points == 0 and mark.hidden and "Right on the inputs that you see" in mark.message


def exits_crashes_and_hangs_cost_only_their_own_exercise(grading, folder):
    found = marks(grading, "dying")
    assert points(grading, "dying") == {"rloo_advantages": POINTS["rloo_advantages"]}
    assert found["best_of_group"].status == found["return_to_go"].status == "exit"
    assert found["group_advantages"].points == 0
    assert found["process_advantages"].verdict is None or found["process_advantages"].verdict.fault == "hang"


def wild_cells_cost_only_themselves(grading, folder):
    (wild,) = grading.students["wild"]
    assert points(grading, "wild") == {"rloo_advantages": POINTS["rloo_advantages"]}
    assert marks(grading, "wild")["best_of_group"].verdict.fault == "flood"
    assert "time limit" in wild.cells["3"] and "SystemExit" in wild.cells["4"]
    assert "ZeroDivisionError" in wild.cells["7"] and "SyntaxError" in wild.cells["8"] and "9" not in wild.cells
    assert any("300,005 characters" in note for note in wild.submission.notes)


def what_is_too_much_is_stopped_and_costs_only_its_author(grading, folder):
    for student in ("crowd", "noise", "slowed", "interrupt", "nested", "surrogate"):
        assert points(grading, student) == {"rloo_advantages": POINTS["rloo_advantages"]}, student
    cells = {student: graded[0].cells for student, graded in grading.students.items()}
    if LINUX:
        assert cells["crowd"] == {"3": CROWD}
    assert cells["noise"] == {"3": TOO_MUCH} and cells["slowed"] == {"3": ENDLESS}
    assert set(cells["interrupt"]) == {"3"} and "KeyboardInterrupt" in cells["interrupt"]["3"]
    assert cells["nested"] == {"3": TOO_MUCH} and set(cells["surrogate"]) == {"3"}
    assert marks(grading, "interrupt")["best_of_group"].verdict.fault == "exit"


def no_mark_is_changed_from_inside(grading, folder):
    for student in ("patching", "forging", "cheating"):
        assert points(grading, student) == {}
        assert all(mark.exercise.points == POINTS[name] for name, mark in marks(grading, student).items())


def what_a_cell_replaces_excuses_no_answer(grading, folder):
    found = marks(grading, "excused")
    assert 0 < found["rloo_advantages"].points < POINTS["rloo_advantages"]
    assert found["return_to_go"].points == 0 and found["return_to_go"].verdict.fault == "inplace"


def findings(grading: Grading) -> list[str]:
    message = marks(grading, "spy")["rloo_advantages"].message
    assert "found " in message, message
    return [part for part in message.split("found ")[1].splitlines()[0].split(";") if part]


def a_spy_finds_nothing(grading, folder):
    if not LINUX:
        pytest.skip("walls of the kernel are Linux's")
    assert findings(grading) == []


@pytest.mark.parametrize("missing", ["namespaces", "namespaces landlock", "fork"])
def test_where_a_wall_is_missing_the_others_stand(missing, tmp_path, listener, monkeypatch):
    """As in most containers, on old kernels, on macOS and on Windows. What gets through is what the guide says."""
    probe = Sandbox._probe
    off = {wall: "switched off by the test" for wall in missing.split() if wall != "fork"}
    monkeypatch.setattr(Sandbox, "_probe", lambda self: probe(self) | off)
    if missing == "fork":
        monkeypatch.setattr(Template, "wait", lambda self, stopped: False)
    honest = tmp_path / "class" / "honest" / file_name("02")
    submit(honest, cells=(attacks.USUAL,), rloo_advantages=attacks.RIGHT_RLOO)
    hand_in_a_spy(tmp_path, listener)
    grading = grade_in(tmp_path, limits=Limits(seconds=30.0))
    assert grading.students["honest"][0].cells == {}
    assert points(grading, "honest") == {"rloo_advantages": POINTS["rloo_advantages"]}
    through = {"torch reads", "torch reads users", "torch writes marks"} if grading.walls["landlock"] else set()
    assert {part.split("=")[0] for part in findings(grading)} <= through


def test_a_package_is_made_once_and_anew_when_it_has_changed(tmp_path, monkeypatch):
    exercises = of_notebook("02")
    with Sandbox(tmp_path, Limits()) as sandbox:
        first, template = sandbox._prepared(exercises, [])
        assert sandbox._prepared(exercises, []) == (first, template) and (template is not None) == LINUX
        path = first / "grpo_lab" / "kl.py"
        path.chmod(0o600)
        path.write_text("print('mine')", encoding="utf-8")
        second, _ = sandbox._prepared(exercises, [])
        assert second != first and "mine" not in (second / "grpo_lab" / "kl.py").read_text(encoding="utf-8")
        digest = run.digest
        monkeypatch.setattr(run, "digest", lambda folder: _refuse() if folder == second else digest(folder))
        assert sandbox._prepared(exercises, [])[0] not in (first, second)


def _refuse():
    raise PermissionError("kl.py")


LOOK = """
import os, sys

def seen(path):
    try:
        return open(path).read() if os.path.isfile(path) else sorted(os.listdir(path))
    except OSError:
        return "nothing"

def look(own, lib):
    print(seen(f"{lib}/torch/x"), seen(f"{lib}/grpo_lab/x"), seen("/etc/passwd"), seen(f"{own}/x"), flush=True)
    os._exit(0)

own, lib, view = sys.argv[1:]
"""
BY_NAME_SPACES = """
from grpo_lab.course.grading.sandbox import jail
spec = {"namespaces": True, "view": view, "folder": "/own", "hidden": [f"{lib}/grpo_lab"]}
code = jail.launch(spec | {"shown": {lib: lib, "/own": own}}, lambda: look("/own", lib))
sys.exit(code)
"""
BY_LANDLOCK = """
from grpo_lab.course.grading.sandbox import walls
walls.lock_files(own, [lib], [f"{lib}/grpo_lab"])
look(own, lib)
"""


@pytest.mark.parametrize(("wall", "code"), [("namespaces", BY_NAME_SPACES), ("landlock", BY_LANDLOCK)])
def test_only_what_is_listed_can_be_read_and_nothing_hidden_in_it(wall, code, tmp_path):
    """As where the package is installed beside the libraries."""
    for place in ("own/x", "lib/torch/x", "lib/grpo_lab/x", "view/x"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text(place, encoding="utf-8")
    with Sandbox(tmp_path, Limits()) as sandbox:
        if sandbox.walls[wall]:
            pytest.skip(sandbox.walls[wall])
    arguments = [str(tmp_path / name) for name in ("own", "lib", "view")]
    done = subprocess.run([sys.executable, "-c", LOOK + code, *arguments], capture_output=True, encoding="utf-8")
    assert done.stdout == "lib/torch/x nothing nothing own/x\n", done.stderr


def what_is_no_notebook_gets_a_clear_entry(grading, folder):
    assert_each_is_named({student: graded[0].submission.problem for student, graded in grading.students.items()})


def nothing_is_left_running_and_nothing_was_written(grading, folder):
    assert not list(folder.glob("class/**/mark.txt")) and not list((folder / "temporary").iterdir())
    if not LINUX:
        pytest.skip("without /proc nobody knows what runs")
    end = time.monotonic() + 60  # a process that was killed is there until the kernel has buried it
    while (left := running(folder / "temporary")) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left


def running(folder: Path) -> list[Path]:
    """The processes whose command names the folder: other gradings of this machine do not."""
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if _mentions(path, os.fsencode(folder))]


def _mentions(path: Path, text: bytes) -> bool:
    try:
        return text in path.read_bytes() and os.getpid() != int(path.parent.name)
    except OSError:
        return False


def report_is_complete_and_escaped(grading, folder):
    grading = copy.deepcopy(grading)
    grading.graded[0].submission.student = '=HYPERLINK("x")<script>../..'
    folder = write_report(grading, folder / "results" / "grades")
    rows = (folder / "grades.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 1 + len(grading.students) and not any(row.startswith(("=", '"=')) for row in rows)
    pages = {path.name: path.read_text(encoding="utf-8") for path in (folder / "students").iterdir()}
    assert len(pages) == len(grading.students) and not any("<script" in page for page in pages.values())
    assert not [path for path in folder.parent.rglob("*.html") if path.parent.name != "students"]
    saved = json.loads((folder / "grades.json").read_text(encoding="utf-8"))
    assert saved["seed"] == SEED and saved["students"]["honest"]["points"] == sum(POINTS.values())
    assert set(assignments()) >= {one["assignment"] for one in saved["students"]["honest"]["notebooks"]}


PARTS = (
    everybody_has_an_entry,
    the_honest_student_gets_all_points,
    an_untouched_notebook_is_not_started_and_nothing_worse,
    answers_written_down_for_the_visible_inputs_do_not_pass,
    exits_crashes_and_hangs_cost_only_their_own_exercise,
    wild_cells_cost_only_themselves,
    what_is_too_much_is_stopped_and_costs_only_its_author,
    no_mark_is_changed_from_inside,
    what_a_cell_replaces_excuses_no_answer,
    a_spy_finds_nothing,
    what_is_no_notebook_gets_a_clear_entry,
    nothing_is_left_running_and_nothing_was_written,
    report_is_complete_and_escaped,
)
