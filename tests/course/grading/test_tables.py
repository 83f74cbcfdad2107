"""Tables for spreadsheets, learning platforms and Gradescope, and the table of a term."""

import csv

import pytest

from grpo_lab.course.__main__ import main
from grpo_lab.course.exercises import all_exercises
from tests.course.classroom import POINTS, RIGHT, file_name, run, submit, table

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
        assert written[0][-1] == "01_policy_gradient"
        assert written[1][0] == "    Points Possible"
    assert {path.name for path in (tmp_path / "out").glob("*.csv")} == {"grades.csv", "written.csv", f"{platform}.csv"}


def test_ungraded_students_have_a_blank_and_a_reason_in_platform_tables(tmp_path, sandbox):
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
            assert written[0][-1] == "Feedback comments"
            assert "cannot be read as a notebook" in written[-1][-1]
            assert written[-2][-1].startswith("token_logprobs: 4 of 4.\n")


def test_tables_contain_no_spreadsheet_formula(tmp_path, sandbox):
    submit(tmp_path / "class" / '=HYPERLINK("x")' / file_name("01"))
    run(tmp_path / "class")
    assert table(tmp_path / "class")[0]["student"] == '\'=HYPERLINK("x")'


@pytest.mark.slow
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
