"""Folders and archives from strangers, of any depth and number, are read within limits."""

import io
import zipfile

from grpo_lab.course.grading import untrusted_files
from grpo_lab.course.grading.untrusted_files import MAX_DEPTH
from tests.course.classroom import file_name, has_answer, notebook, submissions_in, write_files, zipped


def test_archives_are_read_like_folders(tmp_path):
    archives = {
        "grace.zip": {"hw/deep/My Notebook.ipynb": notebook(), "__MACOSX/._x": b"x"},
        "in-folder/hand-in.zip": {file_name("01"): notebook()},
        "nested.zip": {"inner.zip": zipped({"01.ipynb": notebook()})},
        "climbing.zip": {"../../escaped.ipynb": notebook()},
        "nameless.zip": {"01.ipynb": notebook(), "QQQQQQQQ": b""},
    }
    files = {name: zipped(members) for name, members in archives.items()}
    files["nameless.zip"] = files["nameless.zip"].replace(b"QQQQQQQQ", bytes(8))
    assert zipfile.ZipFile(io.BytesIO(files["nameless.zip"])).infolist()[-1].filename == ""
    people = submissions_in(write_files(tmp_path, files))
    assert set(people) == {"grace", "in-folder", "nested", "climbing", "nameless"}
    assert all(has_answer(work) for work in people.values())
    assert not list(tmp_path.parent.glob("*escaped*")), "nothing is unpacked"


def test_submissions_with_too_deep_or_too_many_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(untrusted_files, "MAX_FILES", 50)
    write_files(tmp_path, {f"deep/{'d/' * MAX_DEPTH}01.ipynb": notebook(), "many/01.ipynb": notebook()})
    write_files(tmp_path, {f"many/{index:02d}.txt": b"" for index in range(60)})
    people = submissions_in(tmp_path)
    assert f"more than {MAX_DEPTH} deep" in people["deep"].problem
    assert has_answer(people["many"])
    assert any("more than 50 files" in note for note in people["many"].notes)
