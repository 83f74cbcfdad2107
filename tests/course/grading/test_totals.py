"""One table of all assignments, with the points for the answers in words."""

import csv

from grpo_lab.course.__main__ import main
from grpo_lab.course.exercises import all_exercises
from tests.course.classroom import run
from tests.course.submission_notebooks import file_name, submit


def test_totals_add_assignments_and_written_answers(folder, sandbox, tmp_path, capsys):
    """Points for words survive a regrade. A missing assignment is remarked, and is not counted as 0 points."""
    second = tmp_path / "second"
    submit(second / "alice" / file_name("02"), "02")
    (second / "bob.ipynb").write_text("{", encoding="utf-8")
    run(folder, output=tmp_path / "g1")
    run(second, output=tmp_path / "g2", number="02")
    written = tmp_path / "g1" / "written.csv"
    assert list(csv.reader(written.open(encoding="utf-8-sig")))[1] == ["alice", "", "", "3"]
    written.write_text('student,id,points,out of\nalice,,2.5,3\nbob,,"1,0",3\n', encoding="utf-8")
    run(folder, output=tmp_path / "g1")
    assert main(["totals", str(tmp_path / "g2"), str(tmp_path / "g1"), "--output", str(tmp_path / "all.csv")]) == 0
    alice, bob, carol = csv.DictReader((tmp_path / "all.csv").open(encoding="utf-8-sig"))
    out_of = str(23 + 3 + sum(e.points for e in all_exercises().values() if e.notebook == "02"))
    assert (alice["01"], alice["01 in words"], alice["02"], alice["points"]) == ("23", "2.5", "0", "25.5")
    assert (bob["02"], bob["points"], bob["remarks"]) == ("", "4", "02 could not be graded")
    assert (carol["01 in words"], carol["remarks"]) == ("", "02 was not handed in")
    assert carol["out of"] == out_of
    written.write_text("student,id,points,out of\nalice,,good,3\n", encoding="utf-8")
    assert main(["totals", str(tmp_path / "g1")]) == 2
    assert "points is 'good'" in capsys.readouterr().err
