"""The tables of a class, for spreadsheets and for the platforms."""

import csv

import pytest

from tests.course.classroom import POINTS, RIGHT, run, table
from tests.course.submission_notebooks import file_name, submit

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
