"""Points by property; what is said of several properties; the library in place of an answer."""

import json
from dataclasses import replace

import pytest
import torch
from grpo_lab.course.grading.submissions import find_submissions

from grpo_lab.course import check
from grpo_lab.course.checking.judging import judge
from grpo_lab.course.checking.outcome import outcome_of
from grpo_lab.course.checking.properties import earned
from grpo_lab.course.checking.verdict import most_different
from grpo_lab.course.exercise import Case
from grpo_lab.course.exercises import exercise
from grpo_lab.course.exercises._inputs import f64
from grpo_lab.course.release.notebooks import assignments, notebook_text
from tests.course.toys import MEAN, WORDS, count_words, scaled_mean


def _padded(seed):
    values = torch.tensor([[1.0, float("nan"), 2.0], [3.0, 1.0, 1.0]]).double()
    return (values, torch.tensor([[True, False, False], [True, True, True]])), {}


SMALL, DRAWN = MEAN.cases
PADDED = Case(_padded, "NaN in the padding", True, "stability")
MEANS = replace(MEAN, points=10, cases=(SMALL, DRAWN, PADDED))


def by_multiplying(values, mask, scale=1.0):
    return scale * (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def without_checks(values, mask, scale=1.0):
    return scale * torch.where(mask, values, 0).sum(-1) / mask.sum(-1).clamp(min=1)


def without_gradient(values, mask, scale=1.0):
    return without_checks(values, mask, scale).detach() + 0 * torch.where(mask, values, 0).sum(-1)


def zeros(values, mask, scale=1.0):
    return 0 * torch.where(mask, values, 0).sum(-1)


def refuses(values, mask, scale=1.0):
    raise ValueError("scale")


def on_the_cpu(values, mask, scale=1.0):
    return scaled_mean(values, mask, scale) + torch.zeros(len(values), dtype=values.dtype)


# Values are worth 6 of 10; gradients, stability and device share the rest.
@pytest.mark.parametrize(
    ("answer", "missing", "points"),
    [
        (scaled_mean, set(), 10),
        (by_multiplying, {"stability"}, 8.5),
        (without_checks, set(), 10),
        (without_gradient, {"gradients"}, 8.5),
        (on_the_cpu, {"device"}, 8.5),
        (zeros, {"values", "gradients", "stability", "device"}, 0),
    ],
)
def test_each_property_has_its_share_and_values_come_first(answer, missing, points):
    outcomes = [outcome_of(answer, MEANS, index) for index in range(len(MEANS.cases))]
    if answer is on_the_cpu:
        outcomes[1] = replace(outcomes[1], device="mixed: add of a tensor on the card and one on the CPU")
    verdict = judge(MEANS, outcomes)
    assert {name for name, fine in verdict.properties.items() if not fine} == missing
    assert earned(MEANS.points, verdict.properties) == points
    assert (f"worth {points} of 10 points" in verdict.message) == (0 < points < 10)


def test_what_is_refused_is_no_case():
    refused = Case(SMALL.build, "a scale below 0", tests="contract")
    assert replace(MEAN, cases=(*MEAN.cases, refused)).cases == MEAN.cases


def test_cases_stand_in_the_order_of_what_they_test():
    with pytest.raises(ValueError, match="cases test stability, values"):
        replace(MEAN, cases=(PADDED, SMALL))
    with pytest.raises(ValueError, match="tests is 'speed'"):
        replace(SMALL, tests="speed")


def test_the_library_in_place_of_an_answer_is_found_by_the_check_with_the_word_of_a_grading():
    from grpo_lab.policy_gradient import sequence_logprob as library

    def sequence_logprob(logp, mask):
        return library(logp, mask)

    verdict = check(sequence_logprob)
    assert verdict.fault == "library" and "the library does not have it" in verdict.message
    logp, mask = torch.tensor([[-1.0, -2.0]]), torch.tensor([[True, False]])
    assert library(logp, mask).tolist() == [-1.0], "it is back afterwards"
    assert check(library).fault == check(exercise("sequence_logprob").function).fault == "library"


def test_one_number_is_never_off_by_a_factor_unless_all_are():
    loss = exercise("reinforce_loss")

    def said(change):
        """What is said of a loss that is changed in this way."""

        def reinforce_loss(seq_logp, weights):
            return change(-(seq_logp * weights.detach()).mean(), len(seq_logp))

        outcomes = [outcome_of(reinforce_loss, loss, index) for index in range(len(loss.cases))]
        return judge(loss, outcomes).message

    assert "off by a constant factor: 3 times" in said(lambda value, n: 3 * value)
    assert "factor" not in said(lambda value, n: value * (2 + n) - n)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda values, mask, scale=1.0: without_checks(values, mask, scale) * (1 + 2e-6), "off by very little"),
        (
            lambda values, mask, scale=1.0: without_checks(values, mask, scale).to(torch.float32),
            "The docstring, or the",
        ),
        (lambda *args, **kwargs: without_checks(*args, **kwargs), "other arguments than the stub"),
        (refuses, "This input is allowed."),
        (lambda values, mask, scale=1.0: -without_checks(values, mask, scale), "The sign is flipped."),
        (lambda values, mask, scale=1.0: without_checks(values, mask, scale) * (1 + 2e-6), "is expected."),
        (lambda values, mask, scale=1.0: None, "does every way through the function end in a return?"),
    ],
)
def test_what_is_said_is_true(answer, words):
    assert words in check(answer, MEANS).message


def test_none_is_no_missing_return_where_a_function_may_return_it():
    def extract_answer(text):
        return None

    message = check(extract_answer).message
    assert "is None; a text is expected." in message and "return?" not in message


def test_a_list_is_not_told_of_operations_on_tensors():
    def count_words_(texts):
        right = count_words(list(texts))
        texts.append("more")
        return right

    message = check(count_words_, WORDS).message
    assert "changes its argument texts in place" in message and "tensor" not in message


def test_a_difference_that_the_digits_shown_hide_is_told():
    one, other = f64([[1.28760012, 2.0]]), f64([[1.28760134, 2.0]])
    assert most_different(one, other) == "Most at [0, 0]: 1.28760012, where 1.28760134 is expected."
    assert most_different(one[0, 0], other[0, 0]).startswith("With more digits: 1.28760012, where")
    assert most_different(one, other + 1) == most_different(one, one) == most_different(one, None) == ""
    large = torch.zeros(30, 30).double()
    large[3, 4] = 7.0
    assert most_different(large, torch.zeros(30, 30).double()).startswith("Most at [3, 4]: 7, where 0")


def test_an_error_that_comes_after_the_return_is_the_check_s_own():
    def in_place(values, mask, scale=1.0):
        squares = values.square()
        result = squares.exp().sum(-1)
        squares.exp_()
        values.mul_(2)
        return result

    message = check(in_place, MEANS).message
    assert "It comes to an end, but the check could not use its result" in message and "changed in place" in message


def test_a_helper_that_was_written_into_the_cell_of_a_check_is_run(tmp_path):
    notebook = json.loads(notebook_text("01"))
    check_cell = next(c for c in notebook["cells"] if c["metadata"].get("grpo_lab", {}).get("role") == "check")
    check_cell["source"] = f"def helper(x):\n    return x\n\n{''.join(check_cell['source'])}"
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / "01_policy_gradient.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    (found,) = find_submissions(tmp_path, assignments())
    kept = [cell.source for cell in found.cells if "check(" in cell.source]
    assert len(kept) == 1 and kept[0].startswith("def helper")


def test_stress_in_what_is_said_is_stress_on_a_page():
    from grpo_lab.course.checking.verdict import prose

    assert prose("a step *before* it, 2 * 3 * 4, `x*y*z`") == (
        "a step <em>before</em> it, 2 * 3 * 4, <code>x*y*z</code>"
    )
