"""The pages of the class and of its students: what they say, in which language, and that they quote safely."""

import html
import json
import re

import pytest

from grpo_lab.course.exercises import find_exercise
from tests.course.classroom import RIGHT, WRONG_RLOO, file_name, page, rows, run, submit


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


@pytest.mark.slow
def test_class_page_names_each_seed_after_a_regrade(folder, sandbox, tmp_path):
    run(folder, seed=7)
    assert "Seed 7." in page(folder, "class.html")
    submit(tmp_path / "again" / "bob" / file_name("01"), **RIGHT)
    run(tmp_path / "again", output=folder.parent / "out", seed=9)
    assert "Seed 7; seed 9 for bob." in page(folder, "class.html")


def test_student_page_hides_expected_values(folder, sandbox):
    run(folder)
    bob = page(folder, "students/bob.html")
    assert '<section id="reinforce_loss">' in bob
    assert '<section id="completion_mask">' not in bob, "not begun"
    assert WRONG_RLOO.strip() in html.unescape(bob), "the code stands beside what is said of it"
    assert "Known as:" in bob
    assert "expected" not in bob.lower()


RIGHT_LOGPROB = """
def sequence_logprob(logp, mask):
    return torch.where(mask, logp, 0).sum(-1)
"""


def test_partly_right_answer_is_not_called_wrong(tmp_path, sandbox):
    """An answer has right values but no gradient, in an exercise that compares gradients."""
    detached = RIGHT_LOGPROB.replace(".sum(-1)", ".sum(-1).detach()")
    for student, written in (("a", RIGHT_LOGPROB), ("b", detached), ("c", RIGHT_LOGPROB.replace("sum", "mean"))):
        submit(tmp_path / "class" / student / file_name("01"), "01", sequence_logprob=written)
    submit(tmp_path / "class" / "d" / file_name("01"), "01")
    run(tmp_path / "class")
    for student, state in zip("abcd", ("right", "partly", "wrong", "none"), strict=True):
        badge = f'<td><span class="{state}">'
        assert badge in page(tmp_path / "class", f"students/{student}.html").split("sequence_logprob</code>")[1]


def test_a_renamed_function_is_recognised_by_its_cell(folder, sandbox):
    submit(folder / "bob" / file_name("01"), reinforce_loss=RIGHT["reinforce_loss"].replace("def rein", "def my_rein"))
    run(folder)
    assert "You defined <code>my_reinforce_loss</code>" in page(folder, "students/bob.html")


def test_student_page_names_an_answer_whose_cell_became_text(folder, sandbox):
    notebook = json.loads((folder / "bob" / file_name("01")).read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["metadata"].get("grpo_lab") == {"exercise": "token_entropy"}:
            cell["cell_type"] = "markdown"
    (folder / "bob" / file_name("01")).write_text(json.dumps(notebook), encoding="utf-8")
    run(folder)
    assert "The cell of <code>token_entropy</code> is text (Markdown)" in page(folder, "students/bob.html")
    assert "the cell of token_entropy is text and not code" in rows(folder)["bob"]["remarks"]
