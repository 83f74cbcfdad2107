"""Downloads as they come: archives and folders around a class, who it is, which version counts."""

import pytest

from tests.course.submitted import file_name
from tests.course.test_collecting import found, notebook, written, zipped

ONE = """\
submission_{key}:
  :submitters:
  - :name: {name}
    :sid: '{sid}'
    :email: {email}
  :created_at: 2026-11-10 20:00:00.000000000 Z
"""
SMITHS = [(301, "Anna Schmidt", "1001"), (305, "Noah Smith", "1011"), (306, "Noah Smith", "1012")]
EXPORT = {f"assignment_7_export/submission_{key}/{file_name('01')}": notebook() for key, *_ in SMITHS} | {
    "assignment_7_export/submission_metadata.yml": "".join(
        ["---\n", *(ONE.format(key=k, name=n, sid=s, email=f"s{s}@x.org") for k, n, s in SMITHS)]
    ).encode()
}
MOODLE = {f"Assignment 2/{name}_assignsubmission_file_/01.ipynb": notebook() for name in ("Ada_1", "Bob_2")}


@pytest.mark.parametrize("how", ["the archive", "in a folder", "unpacked", "inner folder"])
def test_gradescopes_export(how, tmp_path):
    folder = tmp_path / "in"
    if how in ("the archive", "in a folder"):
        written(folder, {"export.zip": zipped(EXPORT)})
    else:
        written(folder, EXPORT)
    place = {"the archive": folder / "export.zip", "inner folder": folder / "assignment_7_export"}.get(how, folder)
    people = found(place)
    assert {name: one.number for name, one in people.items()} == {
        "Anna Schmidt": "1001", "Noah Smith (1011)": "1011", "Noah Smith (1012)": "1012",
    }  # fmt: skip
    assert people["Anna Schmidt"].email == "s1001@x.org"


@pytest.mark.parametrize("listed", [b"submission_5: !ruby/object x", b"submission_5: 3", b"[", b"\xff\xfe\xfa", b"- 1"])
def test_a_list_that_cannot_be_read_is_said_and_costs_nobody(listed, tmp_path, capsys):
    written(tmp_path, {"submission_5/01.ipynb": notebook(), "submission_metadata.yml": listed})
    assert set(found(tmp_path)) == {"submission_5"}
    assert "submission_metadata.yml cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize("around", ["", "term/week 2/"])
def test_moodles_download_below(around, tmp_path):
    unpacked = {f"{around}{name}": content for name, content in MOODLE.items()}
    assert set(found(written(tmp_path / "a", unpacked))) == {"Ada", "Bob"}
    assert set(found(written(tmp_path / "b", {f"{around}download.zip": zipped(MOODLE)}))) == {"Ada", "Bob"}


def test_nobody_packs_a_class_into_a_submission(tmp_path):
    """Else one student could hand in for another."""
    written(tmp_path / "a", {"Ada_1_assignsubmission_file_/x.zip": zipped(MOODLE)})
    assert set(found(tmp_path / "a")) == {"Ada"}
    written(tmp_path / "b", {"eve.zip": zipped(MOODLE), "Bob.ipynb": notebook()})
    assert set(found(tmp_path / "b")) == {"eve", "Bob"}


@pytest.mark.parametrize(
    ("names", "counts"),
    [
        (["ada_1_9001_05_grpo_objective.ipynb", "ada_1_9002_05_grpo_objective-1.ipynb"], "05_grpo_objective-1.ipynb"),
        (["ada_1_9002_05_grpo_objective-2.ipynb", "ada_1_9001_05_grpo_objective-9.ipynb"], "05_grpo_objective-9.ipynb"),
        (["ada/05_grpo_objective.ipynb", "ada/05_grpo_objective (1).ipynb"], "05_grpo_objective (1).ipynb"),
        (["ada/05_grpo_objective(2).ipynb", "ada/05_grpo_objective (1).ipynb"], "05_grpo_objective(2).ipynb"),
    ],
)  # fmt: skip
def test_the_last_version_counts(names, counts, tmp_path):
    written(tmp_path, {name: notebook("05") for name in names})
    (one,) = found(tmp_path, None).values()
    assert one.file == counts and "is for the same assignment, and was left out" in one.notes[0]
