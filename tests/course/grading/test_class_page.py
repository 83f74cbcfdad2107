"""The pages of a class: who has few points and why, the seeds, the answers in words, in the reader's language."""

import json
import re

from grpo_lab.course.exercises import find_exercise
from tests.course.classroom import RIGHT, WRONG_RLOO, page, rows, run
from tests.course.submission_notebooks import file_name, submit


def test_class_page_summarises_the_class(folder, sandbox, capsys):
    for student in ("dave", "erin"):
        submit(folder / student / file_name("01"), reinforce_loss=WRONG_RLOO)
    (folder / "zoe.ipynb").write_text("{", encoding="utf-8")
    run(folder)
    text = page(folder, "class.html")
    first = text.index("For the next lecture")
    assert "6 students" in text
    assert "<code>reinforce_loss</code>" in text[first:]
    assert '<td class="n">3</td><td class="n">9</td>' in text[first:]
    numbers = "".join(f'<td class="n">{n}</td>' for n in (1, 0, 3, 1))
    assert numbers in text, "rloo: right, partly right, not right, not begun"
    links = [text.index(f'href="students/{name}.html"') for name in ("carol", "zoe", "bob", "alice")]
    assert links == sorted(links), "who is behind comes first, and why:"
    assert "nothing was begun" in text
    assert '<td class="why"><code>reinforce_loss</code>: ascends</td>' in text
    output = capsys.readouterr().out
    assert "most points lost in reinforce_loss" in output
    assert "1 could not be graded" in output
    assert "zoe: zoe.ipynb: it cannot be read as a notebook (JSONDecodeError)" in output
    assert "JSONDecodeError" in text


def test_class_and_student_pages_are_in_the_chosen_language(folder, sandbox, monkeypatch):
    """Headings, states and mistakes are translated, while tables stay in English."""
    monkeypatch.setenv("GRPO_LAB_LANG", "zh_CN")
    run(folder)
    in_class, bob, words = (page(folder, name) for name in ("class.html", "students/bob.html", "written.html"))
    for text in (in_class, bob, words):
        assert '<html lang="zh-CN">' in text
        assert not re.search(r"<(?:th|h2)[^>]*>[^<]*[A-Za-z]{3,} [a-z]{3,}", text)
    assert "3 名学生" in in_class
    assert "✓ 正确" in bob
    assert "完整的回答包括" in words
    mistake = find_exercise("reinforce_loss").mistake("ascends")
    assert mistake.name not in in_class
    assert mistake.explanation[:20] not in in_class
    assert rows(folder)["alice"]["points"] == "23"
    assert "student" in (folder.parent / "out" / "grades.csv").read_text()


def test_written_answers_stand_on_one_page_with_the_parts_of_a_full_answer(folder, sandbox):
    notebook = json.loads((folder / "bob" / file_name("01")).read_text(encoding="utf-8"))
    (cell,) = [cell for cell in notebook["cells"] if cell["metadata"].get("grpo_lab", {}).get("role") == "written"]
    cell["source"] = ["They bring <b>nothing</b>."]
    (folder / "bob" / file_name("01")).write_text(json.dumps(notebook), encoding="utf-8")
    run(folder)
    text = page(folder, "written.html")
    assert "They bring &lt;b&gt;nothing&lt;/b&gt;." in text
    assert "Nothing written: alice, carol." in text
    assert "the value is no measure of quality" in text


def test_class_page_names_each_seed_after_a_regrade(folder, sandbox, tmp_path):
    run(folder, seed=7)
    assert "Seed 7." in page(folder, "class.html")
    submit(tmp_path / "again" / "bob" / file_name("01"), **RIGHT)
    run(tmp_path / "again", output=folder.parent / "out", seed=9)
    assert "Seed 7; seed 9 for bob." in page(folder, "class.html")
