"""Answers that are alike, or published source, are found; answers that were written independently are not."""

import inspect
import itertools
import re
from dataclasses import replace
from importlib.util import find_spec

import pytest

from grpo_lab.course.exercises import all_exercises, exercises_of_notebook, find_exercise
from grpo_lab.course.grading import similar_answers as similar_module
from grpo_lab.course.grading.class_grades import ClassGrades, GradedSubmission
from grpo_lab.course.grading.messages import Cell
from grpo_lab.course.grading.pages import class_page
from grpo_lab.course.grading.similar_answers import (
    answers_as_in_key,
    answers_in,
    library_answer,
    pasted_answers,
    published_answers,
    similar_answers,
    similar_pairs,
)
from grpo_lab.course.grading.submission import Submission
from grpo_lab.course.stub import solution_body, stub_source
from grpo_lab.course.variant import ClassKey
from tests.course.classroom import POINTS, page, run, solution
from tests.course.right_answers.nb01 import mask_by_shifting
from tests.course.right_answers.nb07 import read_row_by_row

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
def test_similar_answers_finds_every_pair_of_copies_and_no_other_pair(copies, students):
    originals = (own(number % 5) if number < 5 else "" for number in range(students - copies))
    grades = class_of(*COPIES[:copies], *[COPIES[0]] * (copies - 4), *originals)
    pairs = itertools.combinations([chr(97 + i) for i in range(copies)], 2)
    assert similar_answers(grades) == [(*pair, ["token_entropy"]) for pair in pairs]


@needs_copydetect
def test_similar_answers_are_pairs_and_not_transitive():
    """Student b shares one answer with a and another one with c, while a and c have nothing in common."""
    pairs = similar_answers(class_of(SHAPE, SHAPE + MASK, MASK, *(own(number) for number in range(5))))
    assert pairs == [("a", "b", ["token_entropy"]), ("b", "c", ["completion_mask"])]


@needs_copydetect
def test_similar_answers_finds_a_copy_with_other_names_and_one_more_line():
    changed = (
        MASK.replace("seen", "done").replace("column", "part").replace("    parts =", "    unused = 1\n    parts =")
    )
    assert changed != MASK
    assert similar_answers(class_of(MASK, changed)) == [("a", "b", ["completion_mask"])]


@needs_copydetect
@pytest.mark.slow
def test_right_answers_written_independently_are_not_similar():
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
def test_similar_answers_ignores_stubs_common_answers_and_the_library(answer):
    exercise = find_exercise("token_entropy")
    library = f"def token_entropy(logits, temperature=1.0):\n{solution_body(exercise)}"
    source, copies = {"the stub": (stub_source(exercise), 4), "the library's": (library, 4)}.get(answer, (SHAPE, 9))
    assert similar_answers(class_of(*[source] * copies, *(own(number) for number in range(9 - copies)))) == []


def test_similar_answers_names_pasted_library_source_and_no_short_or_independent_answer(folder, sandbox):
    """The source is recognised whole and without comments; a long one also with a changed name."""
    library = {name: solution(find_exercise(name)) for name in POINTS}
    whole, bare = library["token_entropy"], re.sub(" *#.*", "", library["token_entropy"])
    renamed = whole.replace("logp ", "q ").replace("logp.", "q.").replace("* logp", "* q")
    for answer, names in ((whole, ["token_entropy"]), (bare, ["token_entropy"]), (renamed, []), (SHAPE, [])):
        assert pasted_answers(class_of(answer)) == ({"a": names} if names else {})
    assert pasted_answers(class_of(library["sequence_logprob"])) == {}, "one line says nothing"
    loss = find_exercise("policy_loss")
    grades = ClassGrades(
        "05_grpo_objective", 7, "none", class_of(solution(loss).replace("surrogate", "objective")).submissions
    )
    assert pasted_answers(grades) == {"a": ["policy_loss"]}
    run(folder)
    text = page(folder, "class.html")
    assert "Answers as they stand in the library" in text
    assert "<li>alice: token_logprobs, token_entropy," in text


@pytest.mark.parametrize("name", ["group_advantages", "rloo_advantages"])
def test_similar_answers_names_a_copy_of_the_class_key_and_no_independent_answer(name):
    """A copy of the key is shown, with or without comments. The lesson's function and a renamed key are not."""
    variants = ClassKey("a class").exercises("02")
    key, lesson = solution(variants[name]), solution(find_exercise(name))
    renamed = re.sub(r"\brewards\b", "r", key)
    for answer, is_shown in ((key, True), (re.sub(" *#.*", "", key), True), (lesson, False), (renamed, False)):
        points = dict.fromkeys(exercises_of_notebook("02"), 0)
        submissions = [replace(graded, points=points) for graded in class_of(answer).submissions]
        grades = ClassGrades("02_baselines_and_advantages", 7, "none", submissions, "mark", variants)
        assert answers_as_in_key(grades) == ({"a": [name]} if is_shown else {})
        assert pasted_answers(grades) == {}, "of a variant the library has another function"
        assert ("as they stand in the key of your class" in class_page(grades, ["a.html"])) == is_shown


def test_similar_answers_names_a_published_key_by_its_exercise():
    """Right answers in the tests of this repository are recognised, unless they are short."""
    for name, number, key in (
        ("completion_mask", "01_policy_gradient", mask_by_shifting),
        ("train_on_batch", "09_find_the_bug", None),
        ("read_sequences", "07_r1_zero_on_a_laptop", read_row_by_row),
    ):
        source = inspect.getsource(key).replace(key.__name__, name) if key else f"def {name}():\n    return 0"
        grades = ClassGrades(number, 7, "none", class_of(source).submissions)
        assert pasted_answers(grades) == ({"a": [name]} if key else {})


def test_a_stub_with_one_added_line_does_not_count_as_library_source():
    for name in ("clipped_surrogate", "aggregate", "policy_loss"):
        head = stub_source(find_exercise(name)).rpartition("    raise ")[0]
        submissions = class_of(f"{head}    return 0").submissions
        assert pasted_answers(ClassGrades("05_grpo_objective", 7, "none", submissions)) == {}
