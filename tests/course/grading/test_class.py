"""The grading of a class, from a folder of submissions to tables and pages that agree with each other.

The notebooks run in this process, in a stand-in for the sandbox. The sandbox itself is tested in test_sandbox.py.
"""

import csv
import html
import inspect
import itertools
import json
import re
from dataclasses import replace
from importlib.util import find_spec

import pytest

from grpo_lab.base.checks import InputError
from grpo_lab.course.__main__ import main
from grpo_lab.course.exercises import all_exercises, find_exercise
from grpo_lab.course.grading import grade as grade_module
from grpo_lab.course.grading import similar as similar_module
from grpo_lab.course.grading.class_page import class_page
from grpo_lab.course.grading.command import page_names
from grpo_lab.course.grading.downloads import Submission
from grpo_lab.course.grading.grade import ClassGrades, GradedSubmission
from grpo_lab.course.grading.notebook import Cell
from grpo_lab.course.grading.runner import MISSING
from grpo_lab.course.grading.similar import (
    answers_as_in_key,
    answers_in,
    library_answer,
    pasted_answers,
    published_answers,
    similar_answers,
    similar_pairs,
)
from grpo_lab.course.release import of_notebook
from grpo_lab.course.stub import solution_body, stub_source
from grpo_lab.course.variant import ClassKey
from tests.course.classroom import POINTS, RIGHT, WRONG_RLOO, page, rows, run, table
from tests.course.right.nb01 import mask_by_shifting
from tests.course.right.nb07 import read_row_by_row
from tests.course.submitted import file_name, solution, submit


def test_one_sum_everywhere(folder, sandbox, capsys):
    assert run(folder) == 0
    assert {name: (row["points"], row["out of"]) for name, row in rows(folder).items()} == {
        "alice": ("23", "23"), "bob": ("3", "23"), "carol": ("0", "23"),
    }  # fmt: skip
    assert sum(POINTS.values()) == 23
    assert "<strong>23 of 23 points.</strong>" in page(folder, "students/alice.html")
    assert "8.67 of 23 points on average of 3" in capsys.readouterr().out
    assert (folder.parent / "out" / "grades.csv").read_bytes().startswith(b"\xef\xbb\xbf"), "Excel needs it"


def test_a_page_says_what_is_not_right_and_never_what_is_expected(folder, sandbox):
    run(folder)
    bob = page(folder, "students/bob.html")
    assert '<section id="reinforce_loss">' in bob and '<section id="completion_mask">' not in bob, "not begun"
    assert WRONG_RLOO.strip() in html.unescape(bob), "the code stands beside what is said of it"
    assert "Known as:" in bob
    assert "expected" not in bob.lower()


RIGHT_LOGPROB = """
def sequence_logprob(logp, mask):
    return torch.where(mask, logp, 0).sum(-1)
"""


def test_what_is_partly_right_is_not_called_wrong(tmp_path, sandbox):
    """An answer has right values but no gradient, in an exercise that compares gradients."""
    detached = RIGHT_LOGPROB.replace(".sum(-1)", ".sum(-1).detach()")
    for student, written in (("a", RIGHT_LOGPROB), ("b", detached), ("c", RIGHT_LOGPROB.replace("sum", "mean"))):
        submit(tmp_path / "class" / student / file_name("01"), "01", sequence_logprob=written)
    submit(tmp_path / "class" / "d" / file_name("01"), "01")
    run(tmp_path / "class")
    for student, state in zip("abcd", ("right", "partly", "wrong", "none"), strict=True):
        badge = f'<td><span class="{state}">'
        assert badge in page(tmp_path / "class", f"students/{student}.html").split("sequence_logprob</code>")[1]


def test_the_page_of_the_class(folder, sandbox, capsys):
    for student in ("dave", "erin"):
        submit(folder / student / file_name("01"), reinforce_loss=WRONG_RLOO)
    (folder / "zoe.ipynb").write_text("{", encoding="utf-8")
    run(folder)
    text = page(folder, "class.html")
    first = text.index("For the next lecture")
    assert "6 students" in text and "<code>reinforce_loss</code>" in text[first:]
    assert '<td class="n">3</td><td class="n">9</td>' in text[first:]
    numbers = "".join(f'<td class="n">{n}</td>' for n in (1, 0, 3, 1))
    assert numbers in text, "rloo: right, partly right, not right, not begun"
    links = [text.index(f'href="students/{name}.html"') for name in ("carol", "zoe", "bob", "alice")]
    assert links == sorted(links), "who is behind comes first, and why:"
    assert "nothing was begun" in text and '<td class="why"><code>reinforce_loss</code>: ascends</td>' in text
    output = capsys.readouterr().out
    assert "most points lost in reinforce_loss" in output and "1 could not be graded" in output
    assert "zoe: zoe.ipynb: it cannot be read as a notebook (JSONDecodeError)" in output and "JSONDecodeError" in text


def test_the_pages_are_in_the_language_that_is_asked_for(folder, sandbox, monkeypatch):
    """Headings, states and mistakes are translated, while tables stay in English."""
    monkeypatch.setenv("GRPO_LAB_LANG", "zh_CN")
    run(folder)
    in_class, bob, words = (page(folder, name) for name in ("class.html", "students/bob.html", "written.html"))
    for text in (in_class, bob, words):
        assert '<html lang="zh-CN">' in text and not re.search(r"<(?:th|h2)[^>]*>[^<]*[A-Za-z]{3,} [a-z]{3,}", text)
    assert "3 名学生" in in_class and "✓ 正确" in bob and "完整的回答包括" in words
    mistake = find_exercise("reinforce_loss").known_mistakes["ascends"]
    assert mistake.name not in in_class and mistake.says[:20] not in in_class
    assert rows(folder)["alice"]["points"] == "23" and "student" in (folder.parent / "out" / "grades.csv").read_text()


def test_a_fault_in_one_notebook_is_that_notebooks(folder, sandbox):
    def fail(cells):
        if "completion_mask" in cells and WRONG_RLOO not in cells and "raise NotImplementedError" not in cells:
            raise RecursionError("as deep as you like")

    sandbox.before_run = fail
    assert run(folder) == 0
    assert rows(folder)["bob"]["points"] == "3" and rows(folder)["alice"]["points"] == ""
    assert "could not be graded (RecursionError: as deep as you like)" in rows(folder)["alice"]["remarks"]


def test_who_is_graded_again_takes_the_own_place_and_nobody_elses(folder, sandbox, tmp_path, capsys):
    """Bob alone is graded again, into the same folder: the other students stay, and so does the earlier table."""
    run(folder)
    first, alice = (folder.parent / "out" / "grades.csv").read_bytes(), page(folder, "students/alice.html")
    (folder.parent / "out" / "students" / "my notes.html").write_text("mine", encoding="utf-8")
    (folder.parent / "out" / "grades-before-2.csv").write_text("older", encoding="utf-8")  # number 1 is free again
    submit(tmp_path / "again" / "bob" / file_name("01"), **RIGHT)
    run(tmp_path / "again", output=folder.parent / "out")
    assert {name: row["points"] for name, row in rows(folder).items()} == {"alice": "23", "bob": "23", "carol": "0"}
    assert (folder.parent / "out" / "grades-before-1.csv").read_bytes() == first
    assert page(folder, "grades-before-2.csv") == "older"
    assert page(folder, "students/alice.html") == alice and page(folder, "students/my notes.html") == "mine"
    text = page(folder, "class.html")
    assert "3 students" in text and all(f'href="students/{name}.html"' in text for name in ("alice", "bob", "carol"))
    submit(tmp_path / "other" / "bob" / file_name("02"), "02")
    with pytest.raises(InputError, match="holds the grades of 01_policy.* name another folder with --output"):
        run(tmp_path / "other", output=folder.parent / "out")
    (folder.parent / "out" / "grades.json").write_text("[", encoding="utf-8")
    with pytest.raises(InputError, match="which no grading wrote"):
        run(tmp_path / "again", output=folder.parent / "out")
    assert rows(folder)["bob"]["points"] == "23"


# A grades.json of an earlier version, which stored several fields under other names.
EARLIER_GRADES = """
{"assignment": "01_policy_gradient", "seed": 7, "wall": "docker", "of_class": "5e3a", "variants": {}, "students": [
    {"submission": {
        "student": "bob", "number": "77", "upload": 5, "written": "They help.", "as_text": ["sample_tokens"],
        "of_class": "5e3a", "cells": [{"number": 4, "source": "x", "exercise": ""}]},
     "points": {"token_entropy": 2}, "cells": {"4": "NameError"}, "seed": 7,
     "verdicts": {"token_entropy": {
        "exercise": "token_entropy", "status": "partly", "full": 4, "judged": "judged: the cell that ran as In [4]",
        "properties": {"values": 0.5}, "misconceptions": ["nats"], "fault": "", "parts": [],
        "folded": [{"kind": "say", "text": "1 of 2", "title": "", "rows": []}]}}}]}
"""


def test_a_file_of_an_earlier_version_is_read(tmp_path):
    (tmp_path / "grades.json").write_text(EARLIER_GRADES, encoding="utf-8")
    grading = ClassGrades.read(tmp_path / "grades.json")
    (bob,) = grading.students
    verdict = bob.verdicts["token_entropy"]
    assert grading.isolation == "docker"
    assert grading.class_fingerprint == bob.submission.class_fingerprint == "5e3a"
    assert bob.submission.cells == [Cell(4, "x")]
    assert (bob.submission.platform_id, bob.submission.upload_id) == ("77", 5)
    assert bob.submission.written_answer == "They help."
    assert bob.submission.exercises_as_text == ["sample_tokens"]
    assert bob.failed_cells == {"4": "NameError"}
    assert verdict.max_points == 4
    assert verdict.judged_cell == "judged: the cell that ran as In [4]"
    assert verdict.shares == {"values": 0.5}
    assert [part.text for part in verdict.folded_parts] == ["1 of 2"]


def test_a_file_has_the_names_of_the_fields_and_is_read_again(folder, sandbox):
    run(folder)
    file = folder.parent / "out" / "grades.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    names = {key for part in parts_of(content) for key in part}
    assert {"isolation", "class_fingerprint", "failed_cells", "folded_parts", "shares", "max_points"} <= names
    assert not names & {"wall", "of_class", "folded", "properties", "full", "judged", "upload", "written", "as_text"}
    assert json.loads(ClassGrades.read(file).as_json()) == content


def parts_of(content) -> list[dict]:
    """Return all dictionaries in nested JSON."""
    if isinstance(content, list):
        return [part for entry in content for part in parts_of(entry)]
    if isinstance(content, dict):
        return [content, *parts_of(list(content.values()))]
    return []


def test_a_cell_that_fails_is_told_at_its_function():
    work = Submission("x", cells=[Cell(4, "def f(:", "f"), Cell(5, "def g(): ...", "f")])
    assert grade_module._explain_missing(work, "f", MISSING, {"4": "SyntaxError"}) == "Its cell failed: SyntaxError"
    assert grade_module._explain_missing(work, "f", MISSING, {}) == "You defined `g`; expected a function named `f`."
    assert grade_module._explain_missing(work, "g", MISSING, {"4": "SyntaxError"}) == MISSING


def test_a_renamed_function_is_recognised_by_its_cell(folder, sandbox):
    submit(folder / "bob" / file_name("01"), reinforce_loss=RIGHT["reinforce_loss"].replace("def rein", "def my_rein"))
    run(folder)
    assert "You defined <code>my_reinforce_loss</code>" in page(folder, "students/bob.html")


def test_the_answers_in_words_stand_on_one_page_with_what_a_full_one_has(folder, sandbox):
    notebook = json.loads((folder / "bob" / file_name("01")).read_text(encoding="utf-8"))
    (cell,) = [cell for cell in notebook["cells"] if cell["metadata"].get("grpo_lab", {}).get("role") == "written"]
    cell["source"] = ["They bring <b>nothing</b>."]
    (folder / "bob" / file_name("01")).write_text(json.dumps(notebook), encoding="utf-8")
    run(folder)
    text = page(folder, "written.html")
    assert "They bring &lt;b&gt;nothing&lt;/b&gt;." in text and "Nothing written: alice, carol." in text
    assert "the value is no measure of quality" in text


def test_an_interrupt_ends_it_and_writes_nothing(folder, sandbox):
    def interrupt(cells):
        raise KeyboardInterrupt

    sandbox.before_run = interrupt
    with pytest.raises(KeyboardInterrupt):
        run(folder)
    assert not (folder.parent / "out").exists()


NOTHING = "\n".join(
    f"{name}: 0 of {points}. Write its body, then check again. hint('{name}') helps you to start."
    for name, points in POINTS.items()
)


@pytest.mark.parametrize(
    ("platform", "name", "row"),
    [
        ("moodle", "Ada_77_assignsubmission_file_/01.ipynb", ["Participant 77", "Ada", "", "0", "23", NOTHING]),
        ("canvas", "lovelaceada_4711_815000_01.ipynb", ["lovelaceada", "4711", "", "", "", "0"]),
    ],
)
def test_a_platform_gets_the_table_that_it_imports(platform, name, row, tmp_path, sandbox):
    """The table has the numbers that the platform put into the names of its download."""
    submit(tmp_path / "class" / name)
    run(tmp_path / "class")
    written = list(csv.reader((tmp_path / "out" / f"{platform}.csv").open(encoding="utf-8")))
    assert written[-1] == row
    if platform == "canvas":
        assert written[0][-1] == "01_policy_gradient" and written[1][0] == "    Points Possible"
    assert {path.name for path in (tmp_path / "out").glob("*.csv")} == {"grades.csv", "written.csv", f"{platform}.csv"}


def test_who_could_not_be_graded_has_a_blank_and_the_reason(tmp_path, sandbox):
    for platform, names in {"moodle": ("Ada_77_assignsubmission_file_", "Bob_78_assignsubmission_file_"),
                            "canvas": ("ada_4711_815000_01.ipynb", "bob_4712_815001_01.ipynb")}.items():  # fmt: skip
        folder = tmp_path / platform / "class"
        submit(folder / names[0] / "01.ipynb" if platform == "moodle" else folder / names[0], **RIGHT)
        broken = folder / names[1] / "01.ipynb" if platform == "moodle" else folder / names[1]
        broken.parent.mkdir(exist_ok=True)
        broken.write_text("{", encoding="utf-8")
        run(folder)
        written = list(csv.reader((tmp_path / platform / "out" / f"{platform}.csv").open(encoding="utf-8")))
        column = written[0].index("Grade") if platform == "moodle" else -1
        assert [row[column] for row in written[-2:]] == ["23", ""]
        if platform == "moodle":
            assert written[0][-1] == "Feedback comments" and "cannot be read as a notebook" in written[-1][-1]
            assert written[-2][-1].startswith("token_logprobs: 4 of 4.\n")


def test_after_a_regrade_the_page_names_each_seed(folder, sandbox, tmp_path):
    run(folder, seed=7)
    assert "Seed 7." in page(folder, "class.html")
    submit(tmp_path / "again" / "bob" / file_name("01"), **RIGHT)
    run(tmp_path / "again", output=folder.parent / "out", seed=9)
    assert "Seed 7; seed 9 for bob." in page(folder, "class.html")


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        ("URLError: <urlopen error [Errno -3] Temporary failure in name resolution> (cell 3, line 2)", "network"),
        ("OSError: [Errno 101] Network is unreachable (cell 3, line 2)", "network"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "a process of its own"),
        ("started more than 100 threads or processes", "a process of its own"),
        ("SystemExit: 0 (cell 3, line 1)", "the end of the program"),
        ("ended the whole process (exit code 0)", "the end of the program"),
        ("took longer than the time limit", "no end"),
        ("NameError: name 'x' is not defined (cell 3, line 1)", ""),
    ],
)
def test_the_table_says_what_a_cell_tried(why, kind):
    graded = GradedSubmission(Submission("x"), {}, failed_cells={"3": why})
    assert graded.remarks == [f"cell 3 failed: {kind} ({why})" if kind else f"cell 3 failed: {why}"]


def test_an_answer_turned_into_text_is_named(folder, sandbox):
    notebook = json.loads((folder / "bob" / file_name("01")).read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["metadata"].get("grpo_lab") == {"exercise": "token_entropy"}:
            cell["cell_type"] = "markdown"
    (folder / "bob" / file_name("01")).write_text(json.dumps(notebook), encoding="utf-8")
    run(folder)
    assert "The cell of <code>token_entropy</code> is text (Markdown)" in page(folder, "students/bob.html")
    assert "the cell of token_entropy is text and not code" in rows(folder)["bob"]["remarks"]


def test_the_folder_of_one_student_is_that_students(folder, sandbox, capsys):
    """Without `--output`, the grades of `class/carol` alone go into the folder of the class's grades."""
    run(folder, output=None)
    submit(folder / "carol" / file_name("01"), **RIGHT)
    submit(folder / "carol" / file_name("01").replace(".ipynb", " (1).ipynb"), **RIGHT)
    run(folder / "carol", output=None)
    written = list(csv.DictReader((folder.parent / "class-grades" / "grades.csv").open(encoding="utf-8-sig")))
    assert [(row["student"], row["points"]) for row in written] == [("alice", "23"), ("bob", "3"), ("carol", "23")]
    assert not (folder / "carol-grades").exists()


def test_each_student_is_a_line_while_it_runs(folder, sandbox, capsys):
    (folder / "zoe.ipynb").write_text("{", encoding="utf-8")
    run(folder)
    lines = [line for line in capsys.readouterr().err.splitlines() if " of 4: " in line]
    assert sorted(re.sub(r".* of 4: |, \d+ s", "", line) for line in lines) == [
        "alice, 23 points", "bob, 3 points", "carol, 0 points", "zoe, not graded",
    ]  # fmt: skip


def test_one_total_over_assignments_and_words(folder, sandbox, tmp_path, capsys):
    """Points for words survive a regrade. A missing assignment is remarked, and is not counted as 0 points."""
    second = tmp_path / "second"
    submit(second / "alice" / file_name("02"), "02")
    (second / "bob.ipynb").write_text("{", encoding="utf-8")
    run(folder, output=tmp_path / "g1")
    run(second, output=tmp_path / "g2", assignment="02")
    written = tmp_path / "g1" / "written.csv"
    assert list(csv.reader(written.open(encoding="utf-8-sig")))[1] == ["alice", "", "", "3"]
    written.write_text('student,id,points,out of\nalice,,2.5,3\nbob,,"1,0",3\n', encoding="utf-8")
    run(folder, output=tmp_path / "g1")
    assert main(["totals", str(tmp_path / "g2"), str(tmp_path / "g1"), "--output", str(tmp_path / "all.csv")]) == 0
    alice, bob, carol = csv.DictReader((tmp_path / "all.csv").open(encoding="utf-8-sig"))
    out_of = str(23 + 3 + sum(e.points for e in all_exercises().values() if e.notebook == "02"))
    assert (alice["01"], alice["01 in words"], alice["02"], alice["points"]) == ("23", "2.5", "0", "25.5")
    assert (bob["02"], bob["points"], bob["remarks"]) == ("", "4", "02 could not be graded")
    assert (carol["01 in words"], carol["remarks"]) == ("", "02 was not handed in") and carol["out of"] == out_of
    written.write_text("student,id,points,out of\nalice,,good,3\n", encoding="utf-8")
    assert main(["totals", str(tmp_path / "g1")]) == 2 and "points is 'good'" in capsys.readouterr().err


def test_a_table_gives_a_spreadsheet_nothing_to_compute(tmp_path, sandbox):
    submit(tmp_path / "class" / '=HYPERLINK("x")' / file_name("01"))
    run(tmp_path / "class")
    assert table(tmp_path / "class")[0]["student"] == '\'=HYPERLINK("x")'


def test_the_page_of_a_student_has_a_name_that_every_file_system_takes():
    names = page_names(["\U00020000" * 200, "a/../b", "A/../B", "x" * 400])
    assert len(set(map(str.lower, names))) == 4 and all(len(name.encode()) < 200 for name in names)
    assert not any("/" in name for name in names)


def test_without_a_sandbox_it_wants_to_be_trusted(folder, sandbox, monkeypatch, capsys):
    monkeypatch.setattr(grade_module, "strongest_isolation", lambda trust: "none")
    assert run(folder, trust=True) == 0
    assert "note: without a sandbox" in capsys.readouterr().out


def test_one_stray_notebook_changes_nobodys_sum(folder, sandbox):
    submit(folder / "zoe" / file_name("02"), "02")
    submit(folder / "bob" / file_name("02"), "02")
    run(folder)
    written_rows = rows(folder)
    assert {row["out of"] for row in written_rows.values()} == {"23"} and written_rows["zoe"]["points"] == ""
    assert "it is for 02_baselines_and_advantages, which is not graded here" in written_rows["zoe"]["remarks"]
    assert "02_baselines_and_advantages, which is not graded here, and was left out" in written_rows["bob"]["remarks"]
    run(folder, assignment="02", output=folder.parent / "out" / "02")
    assert "rloo_advantages" in table(folder, "02/grades.csv")[-1]
    with pytest.raises(InputError, match="assignment is '9'"):
        run(folder, assignment="9")


SHAPE = """
def token_entropy(logits, temperature=1.0):
    best = logits.argmax(-1, keepdim=True)
    kept = torch.zeros_like(logits)
    return kept.scatter(-1, best, logits.gather(-1, best))
"""


HEAD, BODY = SHAPE.strip().split("\n", 1)
# The same answer: as it is, with other names and a comment, with a docstring, and below the lines of the stub.
COPIES = (
    SHAPE,
    f"{HEAD}\n    # x\n{BODY}".replace("best =", "b =").replace(", best", ", b").replace("kept", "out"),
    f'def token_entropy(logits: "Tensor", temperature=1.0) -> "Tensor":\n    """My own words."""\n{BODY}',
    stub_source(find_exercise("token_entropy")).rpartition("    raise ")[0] + BODY,
)


def test_the_shape_of_an_answer_is_bounded():
    long = SHAPE.replace("keepdim=True", "keepdim=0x" + "f" * 4000)
    assert len(answers_in(long, {"token_entropy"})["token_entropy"].shape) < 1000 < len(long) / 4
    assert answers_in("def token_entropy(:", {"token_entropy"}) == {}


def class_of(*answers: str) -> ClassGrades:
    """Return the grades of a class in which the students a, b, ... have these answers."""
    submissions = [Submission(chr(97 + i), cells=[Cell(1, answer)]) for i, answer in enumerate(answers)]
    return ClassGrades(
        "01_policy_gradient", 7, "none", [GradedSubmission(submission, {}) for submission in submissions]
    )


MASK = """
def completion_mask(completion_ids, eos_token_id):
    seen = torch.zeros(len(completion_ids)).bool()
    columns = []
    for column in completion_ids.T:
        columns.append(~seen)
        seen = seen | torch.isin(column, torch.tensor(eos_token_id))
    return torch.stack(columns, 1)
"""
needs_copydetect = pytest.mark.skipif(find_spec("copydetect") is None, reason="the extra teach")
# Right answers to one exercise that were written independently.
APART = (
    "p = torch.softmax(logits / temperature, dim=-1)\n    return -torch.special.xlogy(p, p).sum(dim=-1)",
    "return torch.distributions.Categorical(logits=logits / temperature, validate_args=False).entropy()",
    "z = logits / temperature\n    z = z - z.max(-1, keepdim=True).values\n    e = z.exp()\n    total = e.sum(-1)\n"
    "    return total.log() - (e * z).sum(-1) / total",
    "out = []\n    for row in logits:\n        for word in row:\n            q = (word / temperature).log_softmax(0)\n"
    "            out.append(-(q.exp() * q).sum())\n    return torch.stack(out).view(logits.shape[:2])",
    "scaled = logits.double().div(temperature)\n    norm = scaled.logsumexp(dim=2)\n"
    "    mean = (scaled * (scaled - norm.unsqueeze(2)).exp()).sum(2)\n    return (norm - mean).to(logits.dtype)",
)


def own(number: int) -> str:
    """Return a right answer that is not like the others."""
    return f"def token_entropy(logits, temperature=1.0):\n    {APART[number]}\n"


@needs_copydetect
@pytest.mark.parametrize(("copies", "students"), [(2, 3), (2, 20), (4, 20), (5, 20)])
def test_every_pair_of_copies_is_found_and_nobody_else(copies, students):
    originals = (own(number % 5) if number < 5 else "" for number in range(students - copies))
    grading = class_of(*COPIES[:copies], *[COPIES[0]] * (copies - 4), *originals)
    pairs = itertools.combinations([chr(97 + i) for i in range(copies)], 2)
    assert similar_answers(grading) == [(*pair, ["token_entropy"]) for pair in pairs]


@needs_copydetect
def test_who_agrees_with_two_others_brings_them_into_no_connection():
    """Student b shares one answer with a and another one with c, while a and c have nothing in common."""
    pairs = similar_answers(class_of(SHAPE, SHAPE + MASK, MASK, *(own(number) for number in range(5))))
    assert pairs == [("a", "b", ["token_entropy"]), ("b", "c", ["completion_mask"])]


@needs_copydetect
def test_other_names_and_one_more_line_hide_nothing():
    changed = (
        MASK.replace("seen", "done").replace("column", "part").replace("    parts =", "    unused = 1\n    parts =")
    )
    assert changed != MASK and similar_answers(class_of(MASK, changed)) == [("a", "b", ["completion_mask"])]


@needs_copydetect
@pytest.mark.slow
def test_right_answers_that_were_written_apart_are_not_alike():
    """The library's answer and the published ones are compared, for every exercise."""
    for exercise in all_exercises().values():
        keys = [*published_answers(exercise), library_answer(exercise)]
        texts = {str(number): key.text for number, key in enumerate(keys)}
        assert similar_pairs(texts, [], len(texts)) == [], exercise.name


def test_without_copydetect_the_page_says_how_to_get_it(folder, sandbox, monkeypatch):
    monkeypatch.setattr(similar_module, "find_spec", lambda name: None)
    run(folder)
    assert 'were not compared with each other: <code>pip install "grpo-lab[teach]"' in page(folder, "class.html")


@needs_copydetect
@pytest.mark.parametrize("answer", ["what everybody writes", "the stub", "the library's"])
def test_what_is_no_hint(answer):
    exercise = find_exercise("token_entropy")
    library = f"def token_entropy(logits, temperature=1.0):\n{solution_body(exercise)}"
    source, copies = {"the stub": (stub_source(exercise), 4), "the library's": (library, 4)}.get(answer, (SHAPE, 9))
    assert similar_answers(class_of(*[source] * copies, *(own(number) for number in range(9 - copies)))) == []


def test_library_source_pasted_is_seen_and_a_short_or_own_answer_is_not(folder, sandbox):
    """The source is recognised whole and without comments; a long one also with a changed name."""
    library = {name: solution(find_exercise(name)) for name in POINTS}
    whole, bare = library["token_entropy"], re.sub(" *#.*", "", library["token_entropy"])
    renamed = whole.replace("logp ", "q ").replace("logp.", "q.").replace("* logp", "* q")
    for answer, names in ((whole, ["token_entropy"]), (bare, ["token_entropy"]), (renamed, []), (SHAPE, [])):
        assert pasted_answers(class_of(answer)) == ({"a": names} if names else {})
    assert pasted_answers(class_of(library["sequence_logprob"])) == {}, "one line says nothing"
    loss = find_exercise("policy_loss")
    grading = ClassGrades(
        "05_grpo_objective", 7, "none", class_of(solution(loss).replace("metrics", "numbers")).students
    )
    assert pasted_answers(grading) == {"a": ["policy_loss"]}
    run(folder)
    text = page(folder, "class.html")
    assert "Answers as they stand in the library" in text and "<li>alice: token_logprobs, token_entropy," in text


@pytest.mark.parametrize("name", ["group_advantages", "rloo_advantages"])
def test_the_key_of_a_class_is_shown_as_such_and_an_own_answer_is_not(name):
    """A copy of the key is shown, with or without comments. The lesson's function and a renamed key are not."""
    variants = ClassKey("a class").exercises("02")
    key, lesson = solution(variants[name]), solution(find_exercise(name))
    renamed = re.sub(r"\brewards\b", "r", key)
    for answer, is_shown in ((key, True), (re.sub(" *#.*", "", key), True), (lesson, False), (renamed, False)):
        points = dict.fromkeys(of_notebook("02"), 0)
        students = [replace(graded, points=points) for graded in class_of(answer).students]
        grading = ClassGrades("02_baselines_and_advantages", 7, "none", students, "mark", variants)
        assert answers_as_in_key(grading) == ({"a": [name]} if is_shown else {})
        assert pasted_answers(grading) == {}, "of a variant the library has another function"
        assert ("as they stand in the key of your class" in class_page(grading, ["a.html"])) == is_shown


def test_a_published_key_is_seen_under_the_name_of_the_exercise():
    """Right answers in the tests of this repository are recognised, unless they are short."""
    for name, number, key in (
        ("completion_mask", "01_policy_gradient", mask_by_shifting),
        ("train_on_batch", "09_find_the_bug", None),
        ("read_sequences", "07_r1_zero_on_a_laptop", read_row_by_row),
    ):
        source = inspect.getsource(key).replace(key.__name__, name) if key else f"def {name}():\n    return 0"
        grading = ClassGrades(number, 7, "none", class_of(source).students)
        assert pasted_answers(grading) == ({"a": [name]} if key else {})


def test_a_stub_with_a_line_of_ones_own_is_not_the_library_s():
    for name in ("clipped_surrogate", "aggregate", "policy_loss"):
        head = stub_source(find_exercise(name)).rpartition("    raise ")[0]
        assert (
            pasted_answers(ClassGrades("05_grpo_objective", 7, "none", class_of(f"{head}    return 0").students)) == {}
        )
