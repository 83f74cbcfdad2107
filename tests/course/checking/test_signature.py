"""A function with another signature is refused with what differs."""

import torch

from grpo_lab.base.language import _
from grpo_lab.course import check
from grpo_lab.course.checking import judge
from grpo_lab.course.checking.outcome import from_bytes, to_bytes
from grpo_lab.course.checking.run_cases import run_student
from tests.course.small_exercise import MEAN

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
        assert (verdict.status, verdict.fault) == ("malformed", "signature")
        assert not verdict.misconceptions
        assert words in verdict.message


def test_the_sentence_on_a_signature_is_translated_when_it_comes_from_another_process(monkeypatch):
    outcomes = from_bytes(to_bytes(run_student(lambda values, mask: values, MEAN)))
    verdict = judge(MEAN, outcomes)
    monkeypatch.setenv("GRPO_LAB_LANG", "zh_CN")
    assert "is needed" in verdict.message
    assert "is needed" not in _(verdict.parts[0].text)
