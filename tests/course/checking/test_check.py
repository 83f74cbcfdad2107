"""The verdict of a check: status, name of the mistake, the smallest input that shows it, and never the answer."""

import inspect
import re
import warnings

import pytest
import torch

from grpo_lab.course import check
from grpo_lab.course.checking import judge
from grpo_lab.course.checking.outcome_bytes import from_bytes, to_bytes
from grpo_lab.course.checking.relations import relation_of_tensors
from grpo_lab.course.checking.run_case import run_student
from grpo_lab.course.checking.shown import full_text_lines
from grpo_lab.course.checking.verdict_parts import html_of
from grpo_lab.course.exercises import find_exercise
from tests.course.toys import MEAN, not_masked, scaled_mean, stub


@pytest.mark.parametrize("seed", [0, 1])
def test_a_mistake_is_recognised_by_what_it_computes(seed):
    for mistake in MEAN.known_mistakes.values():
        verdict = check(mistake.wrong, MEAN, seed=seed)
        assert verdict.status == "wrong" and verdict.misconceptions == (mistake.name,) and verdict.points <= 0.5
        assert mistake.says in verdict.message and f"Eq. ({mistake.equation or '1.92'})" in verdict.details


def test_the_smallest_failing_case_is_shown_in_short_and_the_rest_on_request():
    verdict = check(not_masked, MEAN)
    assert repr(verdict).splitlines()[1:] == [
        "The mask is not used.",
        "    input     values = [[1, 3]], mask = [[1, 0]]  (one of two tokens counts)",
        "    yours     [2]",
        "    expected  [1]",
    ]
    assert re.search(r"values, shape \(1, 2\), float64\n\s+1.0000  3.0000", verdict.details)
    assert r"y_b = \frac{s}{n_b}" in verdict.details and "0 of 2 cases right" in verdict.details
    page = verdict._repr_html_()
    assert page.index("The mask is not used.") < page.index("<details>") < page.index("1.0000  3.0000")


def test_a_stub_is_not_started_and_an_unfinished_branch_is_wrong():
    assert check(stub, MEAN).status == "not started"

    def half(values, mask, scale=1.0):
        if scale != 1:
            raise NotImplementedError
        return scaled_mean(values, mask, scale)

    verdict = check(half, MEAN)
    assert verdict.status == "wrong" and "not written yet" in verdict.message and "scale = 2" in repr(verdict)


SIGNATURES = (
    (lambda values, mask: values, "it takes (values, mask), and (values, mask, scale=1.0) is needed"),
    (lambda values, weights, scale=1.0: values, "it takes (values, weights, scale=1.0)"),
    (lambda values, mask, scale=2.0: values, "it takes (values, mask, scale=2.0)"),
    (lambda values, mask, scale=True: values, "it takes (values, mask, scale=True)"),
    (lambda values, mask, *, scale=1.0: values, "it takes (values, mask, *, scale=1.0)"),
    (torch.nn.Linear, "is not a function"),
)


def test_a_function_with_another_signature_is_refused_with_what_differs():
    for function, words in SIGNATURES:
        verdict = check(function, MEAN)
        assert (verdict.status, verdict.fault) == ("form", "signature") and not verdict.misconceptions
        assert words in verdict.message


def raising(error):
    def mine(values, mask, scale=1.0):
        raise error

    return mine


def spoilt(values, mask, scale=1.0):
    result = values.square().sum(-1)
    values.mul_(2)
    return result


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        (raising(ValueError("no\n" * 50)), "It raises ValueError: no"),
        (raising(AssertionError("Torch not compiled with CUDA enabled")), "on the device of the arguments"),
        (spoilt, "the check could not use its result"),
    ],
)
def test_an_error_is_told_with_its_line_and_nothing_is_expected_of_it(mine, words):
    verdict = check(mine, MEAN)
    assert words in verdict.message and "    expected" not in repr(verdict) and len(repr(verdict).splitlines()) <= 8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda y, x: y + 0.25, "off by a constant: +0.25"),
        (lambda y, x: y * (1 + 2e-6), "off by very little"),
        (
            lambda y, x: 2 * y - y.detach(),
            "The value is right, but the gradient is not. The gradient of values: It is off by a",
        ),
        (lambda y, x: 2 * y.detach() - y, "The sign is flipped"),
        (lambda y, x: y.detach() + 0 * x.sum(), "No gradient arrives at values"),
    ],
)
def test_without_a_known_mistake_the_numbers_tell(change, words):
    def mine(values, mask, scale=1.0):
        return change(scaled_mean(values, mask, scale), values)

    verdict = check(mine, MEAN)
    assert not verdict.right and not verdict.misconceptions and words in verdict.message


def test_one_number_is_never_off_by_a_factor_unless_all_are():
    def message_about(change):
        def reinforce_loss(seq_logp, weights):
            return change(-(seq_logp * weights.detach()).mean(), len(seq_logp))

        return check(reinforce_loss).message

    assert "off by a constant factor: 3 times" in message_about(lambda value, n: 3 * value)
    assert "factor" not in message_about(lambda value, n: value * (2 + n) - n)


A = torch.tensor([[1.0, -2.0, 3.5], [4.0, 5.5, -6.0], [7.25, 8.0, 10.0]]).double()
MASK = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])


@pytest.mark.parametrize(
    ("got", "expected", "words"),
    [
        (torch.zeros_like(A), A, "Everything is zero"),
        (A * torch.tensor([1, 1, 1.5]), A, "6 of 9 entries are right"),
        (torch.where(MASK, A, torch.nan), A, "There is NaN where a number is expected"),
        (A, torch.where(MASK, A, torch.inf), "There is a number where infinity is expected"),
        (~MASK, MASK, "exchanged everywhere"),
        (-A / 3, A, "-1/3 times"),
        (A * torch.pi, A, "3.142 times"),
        (torch.tensor([1, 2, 4]), torch.tensor([1, 2, 3]), "2 of 3 entries"),
    ],
)
def test_relations(got, expected, words):
    assert words in relation_of_tensors(got, expected, 1e-6)
    assert relation_of_tensors(A, A.square() + A.flip(0), 1e-6) == "", "none is invented"


def test_a_sum_over_all_axes_is_named_and_no_axis_of_size_one_is_asked_for():
    def token_entropy(logits, temperature=1.0):
        logp = torch.log_softmax(logits / temperature, -1)
        return -(logp.exp() * logp).sum()

    message = str(check(token_entropy))
    assert "without an axis" in message and "keepdim" not in message


def test_what_is_shown_is_bounded():
    def accuracy_reward(completions, answer, **_):
        return [0.0] * 5000

    verdict = check(accuracy_reward)
    assert verdict.fault != "signature", "nobody sees the name of what takes the rest"
    assert "5000" in verdict.message and len(repr(verdict)) < 2000
    shown = full_text_lines("result", {"x": [torch.zeros(2)] * 500})
    assert len(shown) == 101 and shown[-1] == "… and 900 more lines"


def test_outcomes_of_another_process_get_the_same_verdict():
    assert check(not_masked, MEAN) == judge(MEAN, from_bytes(to_bytes(run_student(not_masked, MEAN))))
    with pytest.raises(ValueError, match="outcomes has 1 entries; expected 2"):
        judge(MEAN, run_student(not_masked, MEAN)[:1])


def test_the_library_s_own_function_is_no_answer_whatever_the_way_to_it():
    import grpo_lab.policy_gradient as module

    ways = (
        "library(logp, mask)",
        "module.sequence_logprob(logp, mask)",
        "getattr(module, 'sequence_logprob')(logp, mask)",
    )
    notebook = {"library": module.sequence_logprob, "module": module}
    for way in ways:
        exec(f"def sequence_logprob(logp, mask):\n    return {way}", notebook)
        verdict = check(notebook["sequence_logprob"])
        assert verdict.fault == "library" and "the library does not have it" in verdict.message and not verdict.points
    assert check(module.sequence_logprob).fault == check(find_exercise("sequence_logprob").function).fault == "library"
    assert module.sequence_logprob(torch.zeros(1, 2), torch.ones(1, 2).bool()) == 0, "it is back afterwards"


def reference_lines(function) -> set[str]:
    """Return the lines of the reference that are long enough to be recognised as its own."""
    code = inspect.getsource(inspect.unwrap(function)).split('"""')[-1]
    return {line.split("  #")[0].strip() for line in code.splitlines() if len(line.split("  #")[0].strip()) > 25}


@pytest.mark.parametrize(
    "task", [MEAN, find_exercise("format_fault"), find_exercise("rloo_advantages")], ids=lambda e: e.name
)
def test_no_verdict_contains_source_of_the_reference(task):
    answers = [lambda: None, *(m.wrong for m in task.known_mistakes.values())]
    verdicts = [check(answer, task) for answer in answers]
    text = "\n".join(verdict.details + verdict._repr_html_() for verdict in verdicts)
    assert not [line for line in reference_lines(task.function) if line in text] and "secret_" not in text


def test_html_says_the_status_in_words_and_escapes_what_students_write():
    def mine(values, mask, scale=1.0):
        print("<script>alert(1)</script>")
        raise TypeError("<b>bold</b>")

    page = check(mine, MEAN)._repr_html_()
    assert "not right yet" in page and "<script>" not in page and "<b>bold" not in page and "&lt;script&gt;" in page
    assert "color:inherit" in page and "✗" in page
    assert html_of("a step *before* it, 2 * 3, `x*y*z`") == "a step <em>before</em> it, 2 * 3, <code>x*y*z</code>"
    assert html_of("它就*成了*标准差") == "它就<em>成了</em>标准差"


def test_general_mistakes_are_named_in_every_exercise(recwarn):
    """Such mistakes take one choice for another, ignore an argument, or take a mean for a sum.

    If none fits, the verdict says for which choices of an argument the answer is wrong.
    """

    def batch_forgotten(rewards, scale="group", ddof=1, eps=1e-4):
        centred = rewards - rewards[:, :1]
        centred = centred - centred.mean(-1, keepdim=True)
        std = (centred.square().sum(-1, keepdim=True) / (rewards.shape[1] - ddof)).sqrt()
        return centred if scale == "none" else centred / (std + eps)

    def scale_ignored(rewards, scale="group", ddof=1, eps=1e-4):
        warnings.warn("std(): degrees of freedom is <= 0", UserWarning, stacklevel=2)
        return (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True, correction=ddof) + eps)

    def mean_for_sum(seq_logp, rewards):
        return (seq_logp.exp().detach() * rewards * seq_logp).mean()

    def temperature_times(logits, temperature=1.0):
        logp = (logits * temperature).log_softmax(-1)
        return -(logp.exp() * logp).sum(-1)

    def k1_negated(logp, ref_logp, estimator="k3"):
        d = ref_logp.detach() - logp
        k2, k3 = d**2 / 2, d.exp() - 1 - d
        return {"k1": d, "k2": k2, "k3": k3, "k3+": k2 - k2.detach() + k3.detach()}[estimator]

    for name, function, expected in [
        ("group_advantages", batch_forgotten, "Where `scale` is 'batch', your result is that of 'group'."),
        ("group_advantages", scale_ignored, "First: `scale` makes no difference to your result"),
        ("score_function_objective", mean_for_sum, "divided by the size of axis 0 of `seq_logp`"),
        ("token_entropy", temperature_times, "as if `temperature` were 1 / temperature"),
        ("pass_at_k", lambda n, c, k: c / n, "`k` makes no difference to your result: it is as if it were always 1."),
        ("kl_estimate", k1_negated, "It is wrong where `estimator` is 'k1', and right elsewhere. The sign is flipped."),
    ]:
        verdict = check(function, name)
        assert expected in verdict.message and not verdict.right, verdict.message
    assert not recwarn.list, "what torch warns of does not show through"


def test_equal_numbers_are_off_by_some_factor_which_says_nothing():
    expected, got = torch.ones(3, dtype=torch.float64), torch.full((3,), 1.0078125, dtype=torch.float64)
    assert (
        relation_of_tensors(got, expected, 1e-6) == ""
        and relation_of_tensors(-expected, expected, 1e-6) == "The sign is flipped."
    )
    steps = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert relation_of_tensors(3 * steps, steps, 1e-6) == "It is off by a constant factor: 3 times what is expected."


def test_a_small_number_where_zero_is_expected_points_to_an_epsilon():
    def epsilon_in_the_log(logits, temperature=1.0):
        p = (logits / temperature).softmax(-1)
        return -(p * (p + 1e-9).log()).sum(-1)

    assert "exactly 0 is expected: look for an epsilon" in check(epsilon_in_the_log, "token_entropy").message


def test_a_missing_axis_may_have_been_summed_over():
    verdict = check(lambda rewards: (rewards - rewards.mean()).sum(0), "rloo_advantages")  # one group: (1, G)
    assert "a sum over one axis too many" in verdict.message


NEEDS_OTHERS = """
def ratio_and_surrogate(logp):
    return clipped_surrogate(importance_ratio(logp, logp, torch.ones_like(logp).bool()), logp, 0.2)

def aggregate(values, mask, loss_type, max_completion_length=None, num_items=None):
    return {expression}
"""


@pytest.mark.parametrize("calls", ["clipped_surrogate(values, values, 0.2)", "ratio_and_surrogate(values)"])
def test_an_earlier_function_whose_cell_did_not_run_is_lent(calls, monkeypatch):
    """The check lends the library's version, as the grading does, and removes it afterwards."""
    namespace: dict = {"torch": torch}
    exec(
        "def importance_ratio(*a):\n    raise NotImplementedError\n" + NEEDS_OTHERS.format(expression=calls), namespace
    )
    before = dict(namespace)
    verdict = check(namespace["aggregate"], "aggregate")
    assert not verdict.right and namespace == before
    assert "Not defined in your notebook: `clipped_surrogate`. The check lent" in verdict.message
    with pytest.raises(NameError, match="clipped_surrogate"):
        namespace["aggregate"](torch.ones(1, 2), None, "grpo")
    monkeypatch.setenv("GRPO_LAB_LANG", "zh_CN")
    assert "笔记本里还没有定义：`clipped_surrogate`。" in verdict.details.replace("\n", "")


def test_an_undefined_name_is_a_name_error_and_not_lent():
    namespace: dict = {}
    exec(NEEDS_OTHERS.format(expression="clipped_surogate(values, values, 0.2)"), namespace)
    verdict = check(namespace["aggregate"], "aggregate")
    assert "NameError" in verdict.message and "clipped_surogate" in verdict.message and "lent" not in verdict.message
    namespace["clipped_surrogate"] = find_exercise("clipped_surrogate").function
    exec(NEEDS_OTHERS.format(expression="clipped_surrogate(values, values, 0.2)"), namespace)
    assert "lent" not in check(namespace["aggregate"], "aggregate").message
