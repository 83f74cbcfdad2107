"""The page of a student says what is not right, and never what is expected."""

import html
import json

from tests.course.classroom import RIGHT, WRONG_RLOO, page, rows, run
from tests.course.submission_notebooks import file_name, submit


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
