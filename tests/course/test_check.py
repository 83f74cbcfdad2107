"""What a check says: the status, the mistake by its name, the smallest input that shows it, and never the answer."""

import inspect
import re
from dataclasses import replace

import pytest
import torch

from grpo_lab.course import check
from grpo_lab.course.checking import expectations, judge
from grpo_lab.course.checking.outcome_file import load_outcomes, save_outcomes
from grpo_lab.course.checking.relations import relations
from grpo_lab.course.checking.run_case import run_student
from grpo_lab.course.checking.verdict import lines
from grpo_lab.course.exercises import EXERCISES
from tests.course.toys import DECAY, MEAN, WORDS, as_sum, count_words, decay_, not_masked, scaled_mean


def written_differently(values, mask, scale=1.0):
    if scale <= 0:
        raise ValueError("no")
    rows = [scale * row[keep].sum() / max(int(keep.sum()), 1) for row, keep in zip(values, mask, strict=True)]
    return torch.stack(rows)


def test_right_is_said_briefly_with_what_was_checked():
    verdict = check(written_differently, MEAN)
    assert verdict.right and verdict.status == "right" and verdict.case is None and verdict.failing == ()
    assert "values on 2 cases" in verdict.message and "gradients of `values`" in verdict.message
    assert len(verdict.message) < 200 and 0 < verdict.seconds < 600


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("mistake", MEAN.misconceptions[:3], ids=lambda m: m.name)
def test_a_mistake_is_recognised_by_what_it_computes(mistake, seed):
    verdict = check(mistake.wrong, MEAN, seed=seed)
    assert verdict.status == "wrong" and verdict.misconceptions[0] == mistake.name
    assert mistake.says in verdict.message and verdict.equation == mistake.equation


def test_two_that_cannot_be_told_apart_are_both_named():
    assert check(as_sum, MEAN).misconceptions == ("as-sum", "as-sum-too")


def test_the_smallest_failing_case_is_shown_with_its_input():
    verdict = check(not_masked, MEAN)
    assert verdict.case is MEAN.cases[0] and verdict.failing == (0, 1)
    text = repr(verdict)
    assert "one of two tokens counts" in text and re.search(r"values, shape \(1, 2\), float64\n\s+1.0000  3.0000", text)
    assert "2.0000" in verdict.got and "1.0000" in verdict.expected
    assert r"y_b = \frac{s}{n_b}" in text and "(1.92)" in text


def stub(values, mask, scale=1.0):
    raise NotImplementedError("scaled_mean is not written yet")


def test_a_stub_is_not_started_and_an_unfinished_branch_is_wrong():
    assert check(stub, MEAN).status == "not started"

    def half(values, mask, scale=1.0):
        if scale != 1:
            raise NotImplementedError
        return scaled_mean(values, mask, scale)

    verdict = check(half, MEAN)
    assert verdict.status == "wrong" and "not written yet" in verdict.message and verdict.case is MEAN.cases[1]


def inplace(values, mask, scale=1.0):
    result = scaled_mean(values, mask, scale)
    values *= 0
    return result


def inplace_without_gradient(values, mask, scale=1.0):
    result = scaled_mean(values, mask, scale)
    if not values.requires_grad:
        values.zero_()
    return result


def through_numbers(values, mask, scale=1.0):
    return torch.tensor(scaled_mean(values, mask, scale).tolist(), dtype=torch.float64)


def for_the_cpu(values, mask, scale=1.0):
    return scaled_mean(values, mask, scale) * torch.ones(len(values), dtype=torch.float64)


def on_cuda(values, mask, scale=1.0):
    raise AssertionError("Torch not compiled with CUDA enabled")


FORM = {
    "shape": lambda values, mask, scale=1.0: scaled_mean(values, mask, scale)[:, None],
    "dtype": lambda values, mask, scale=1.0: scaled_mean(values, mask, scale).float(),
    "kind": lambda values, mask, scale=1.0: None,
    "inplace": inplace,
    "detached": through_numbers,
    "device": for_the_cpu,
    "signature": lambda values, weights, scale=1.0: values,
}


@pytest.mark.parametrize("fault", FORM)
def test_a_fault_of_form_has_its_own_name_and_words(fault):
    verdict = check(FORM[fault], MEAN)
    assert (verdict.status, verdict.fault) == ("form", fault) and not verdict.misconceptions
    assert len(verdict.message) > 40


def test_a_change_in_place_is_seen_where_no_gradient_is_asked_for():
    assert check(inplace_without_gradient, MEAN).fault == "inplace"


def test_the_words_fit_the_fault():
    assert "keepdim" in check(FORM["shape"], MEAN).message
    assert check(on_cuda, MEAN).fault == "device"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda values, mask: values, "are needed"),
        (lambda values, mask, scale=2.0: values, "has the default 2.0; the exercise has the default 1.0"),
        (lambda values, mask, *, scale=1.0: values, "keyword-only"),
        (torch.nn.Linear, "is not a function"),
    ],
)
def test_a_wrong_signature_says_what_differs(function, words):
    verdict = check(function, MEAN)
    assert verdict.fault == "signature" and words in verdict.message


def changed(change):
    def mine(values, mask, scale=1.0):
        return change(scaled_mean(values, mask, scale), values)

    return mine


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda y, x: 0.5 * y, "1/2 times what is expected"),
        (lambda y, x: -y, "sign is flipped"),
        (lambda y, x: y + 0.25, "off by a constant: +0.25"),
        (lambda y, x: y / 0, "stands in"),
        (
            lambda y, x: 2 * y - y.detach(),
            "value is right, but the gradient is not. That of values: It is off by a constant factor: 2 times",
        ),
        (lambda y, x: 2 * y.detach() - y, "The sign is flipped"),
        (lambda y, x: y.detach() + 0 * x.sum(), "No gradient arrives at values"),
    ],
)
def test_without_a_known_mistake_the_numbers_tell(change, words):
    exercise = replace(MEAN, misconceptions=(*MEAN.misconceptions[:2], replace(MEAN.misconceptions[2], pair="")))
    verdict = check(changed(change), exercise)
    assert verdict.status == "wrong" and not verdict.misconceptions and words in verdict.message


A = torch.tensor([[1.0, -2.0, 3.5], [4.0, 5.5, -6.0], [7.25, 8.0, 10.0]]).double()
P = A.abs() / 20
MASK = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])


@pytest.mark.parametrize(
    ("got", "expected", "words"),
    [
        (A.T, A, "transposed"),
        (A.flip(0), A, "reversed along axis 0"),
        (torch.zeros_like(A), A, "Everything is zero"),
        (A.roll(1, 1), A, "one position too late along axis 1"),
        (A.roll(-1, 0), A, "one position too early along axis 0"),
        (torch.where(MASK, A, 7.0), A, "right except where mask is False"),
        (torch.where(MASK, A + A.roll(1, 0), A), A, "only where it is True"),
        (A * torch.tensor([[2.0], [3.0], [4.0]]), A, "factor of its own (2, 3, 4)"),
        (A + torch.tensor([[2.0], [3.0], [4.0]]), A, "constant of its own"),
        (A.flatten()[torch.tensor([3, 1, 2, 0, 5, 4, 8, 7, 6])].reshape(3, 3), A, "in other places"),
        (A.abs(), A, "absolute value"),
        (P.log(), P, "logarithm"),
        (P.exp(), P, "exponential"),
        (1 / P, P, "one divided by"),
        (1 - P, P, "one minus"),
        (P.square(), P, "square of"),
        (P.sqrt(), P, "square root"),
        (A * torch.tensor([1, 1, 1.5]), A, "differs at [0, 2], [1, 2], [2, 2]"),
        (torch.where(MASK, A, torch.nan), A, "NaN stands in 3 of 9 entries, first at [0, 2]"),
        (A, torch.where(MASK, A, torch.inf), "A number stands in 3 of 9 entries, first at [0, 2], where infinity"),
        (torch.tensor([-23.0, 1e-10]).double(), torch.tensor([-20000.0, 0.0]).double(), "differ"),
        (~MASK, MASK, "exchanged everywhere"),
        (torch.ones_like(MASK), MASK, "3 true that should be false, of 9"),
        (-A / 3, A, "-1/3 times"),
        (A * torch.pi, A, "3.142 times"),
        (torch.tensor([1, 2, 4]), torch.tensor([1, 2, 3]), "2 of 3 entries"),
    ],
)
def test_relations(got, expected, words):
    assert words in relations(got, expected, {"mask": MASK}, 1e-6)[0]


def test_a_relation_is_never_invented():
    dice = torch.Generator().manual_seed(0)
    for shape in ((5, 4), (7,), (3, 3)):
        a, b = (torch.randn(shape, generator=dice).double() for _ in range(2))
        assert relations(a, b, {}, 1e-6) == ()


def test_functions_that_work_in_place_and_on_texts():
    assert check(decay_, DECAY).right and check(count_words, WORDS).right
    for exercise in (DECAY, WORDS):
        for mistake in exercise.misconceptions:
            assert check(mistake.wrong, exercise).misconceptions == (mistake.name,)

    def nothing(weights, rate):
        return None

    others = (*DECAY.misconceptions[:2], replace(DECAY.misconceptions[0], name="again"))
    assert "leaves its argument weights unchanged" in check(nothing, replace(DECAY, misconceptions=others)).message
    assert "is missing" in check(lambda texts: {"counts": count_words(texts)["counts"]}, WORDS).message


def test_a_result_of_many_parts_is_shown_in_bounds():
    many = {f"word {n}": n for n in range(5000)}
    assert len(repr(check(lambda texts: {"counts": many, "longest": None}, WORDS))) < 2000
    shown = lines("result", {"x": [torch.zeros(2)] * 500})
    assert len(shown) == 101 and shown[-1] == "… and 900 lines more"


def test_outcomes_of_another_process_get_the_same_verdict(tmp_path):
    for function in (not_masked, FORM["device"]):
        save_outcomes(tmp_path / "o", run_student(function, MEAN))
        here, there = check(function, MEAN), judge(MEAN, load_outcomes(tmp_path / "o"))
        assert replace(here, seconds=0.0) == there
    with pytest.raises(ValueError, match="outcomes has 1 entries; expected 2"):
        judge(MEAN, run_student(not_masked, MEAN)[:1])


def test_expected_outcomes_are_computed_once(monkeypatch):
    calls = []

    def counted(values, mask, scale=1.0):
        calls.append(1)
        return scaled_mean(values, mask, scale)

    exercise = replace(MEAN, function=counted)
    counted.__name__ = "scaled_mean"
    expectations(exercise)
    before = len(calls)
    check(written_differently, exercise)
    assert len(calls) == before


def reference_lines(function) -> set[str]:
    """Lines of code that give something away: long enough not to be anybody's."""
    function = inspect.unwrap(function)
    source = inspect.getsource(function).replace(inspect.getdoc(function) or "", "")
    code = source.split('"""')[-1]
    return {line.split("  #")[0].strip() for line in code.splitlines() if len(line.split("  #")[0].strip()) > 25}


def raising(error):
    def mine(*args, **kwargs):
        raise error

    return mine


@pytest.mark.parametrize("exercise", [MEAN, DECAY, WORDS], ids=lambda e: e.name)
def test_no_verdict_contains_source_of_the_reference(exercise):
    answers = [exercise.function, *(m.wrong for m in exercise.misconceptions), lambda: None, raising(RuntimeError("x"))]
    verdicts = [check(answer, exercise) for answer in answers]
    text = "\n".join(repr(v) + v._repr_html_() + v.message + v.got + v.expected for v in verdicts)
    assert not [line for line in reference_lines(exercise.function) if line in text]
    assert "secret_" not in text


def first_argument_back(exercise):
    """A wrong answer with the right signature."""
    signature = inspect.signature(exercise.function)

    def wrong(*args, **kwargs):
        return next(iter(signature.bind(*args, **kwargs).arguments.values()))

    wrong.__signature__ = signature
    return wrong


@pytest.mark.parametrize("name", ["token_entropy", "rloo_advantages", "kl_in_reward"])
def test_no_verdict_on_the_real_exercises_contains_source_of_the_reference(name):
    exercise = EXERCISES[name]
    verdict = check(first_argument_back(exercise), exercise)
    text = repr(verdict) + verdict._repr_html_()
    assert not verdict.right
    assert not [line for line in reference_lines(exercise.function) if line in text]


def test_html_says_the_status_in_words_and_escapes_what_students_write():
    def mine(values, mask, scale=1.0):
        print("<script>alert(1)</script>")
        raise TypeError("<b>bold</b>")

    page = check(mine, MEAN)._repr_html_()
    assert "not right yet" in page and "<script>" not in page and "<b>bold" not in page and "&lt;script&gt;" in page
    assert "color:inherit" in page and "✗" in page
    assert "well done" in check(scaled_mean, MEAN)._repr_html_().lower()


def test_there_is_no_exercise_of_that_name():
    with pytest.raises(KeyError, match="exercise is 'stub'; expected one of"):
        check(stub)


def test_nobody_sees_the_name_of_what_takes_the_rest():
    def accuracy_reward(completions, answer, **_):
        return EXERCISES["accuracy_reward"].function(completions, answer)

    assert check(accuracy_reward).fault != "signature"
