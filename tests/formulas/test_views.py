r"""The view is complete in a notebook and in a shell; a trace has the values of a plain call."""

import html
import pkgutil
import re
import sys

import pytest
import torch

from grpo_lab import objective
from grpo_lab.formulas import show, trace
from grpo_lab.formulas.source import read_equations
from grpo_lab.formulas.views import math_cell, source_view
from grpo_lab.policy_gradient import sequence_logprob
from tests.support import formula_sample as sample
from tests.support.equations import formula_map

# --- the display ----------------------------------------------------------------------------------------------


def bundle(function) -> dict[str, str]:
    return source_view(function, read_equations(function))._repr_mimebundle_()


def test_show_prints_equation_code_and_shape(capsys):
    show(sample.centre, sample.fold)
    out = capsys.readouterr().out
    assert "(9.1)  " + r"\mu_p = \frac{1}{G} \sum_i r_{p,i}" + "\n        mean = rewards.mean(-1, keepdim=True)" in out
    assert "    # P 1\n" in out and "total += value" in out and out.isascii()


def test_nbconvert_keeps_formulas_and_code_whole():
    filters = pytest.importorskip("nbconvert.filters")
    for name in {equation.function for equation in formula_map().values()}:
        function = pkgutil.resolve_name(name)
        page = html.unescape(filters.markdown2html(bundle(function)["text/markdown"])).replace("\u00a0", " ")
        text = re.sub(r"<br\s*/?>", "\n", page)
        for equation in read_equations(function):
            assert math_cell(equation.latex) in text
            for line in equation.code.splitlines():
                assert re.sub(" +", " ", line.strip()) in re.sub(" +", " ", text), equation.tag


def test_the_title_has_no_space_after_a_wide_colon(monkeypatch):
    monkeypatch.setenv("GRPO_LAB_LANG", "zh_CN")
    title = source_view(sequence_logprob, read_equations(sequence_logprob)).rich.partition("\n")[0]
    assert title == "**`sequence_logprob`**（`grpo_lab/policy_gradient.py`）：计算每个完整回答的对数概率：各词元之和。"
    monkeypatch.setenv("GRPO_LAB_LANG", "en")
    title = source_view(sequence_logprob, read_equations(sequence_logprob)).rich.partition("\n")[0]
    summary = "Compute the log-probability of each whole completion: the sum over its tokens."
    assert title == f"**`sequence_logprob`** in `grpo_lab/policy_gradient.py`: {summary}"


def test_trace_catches_assignments_tuples_and_the_return():
    rewards = torch.tensor([[1.0, 3.0], [2.0, 2.5]])
    traced = trace(sample.centre, rewards)
    assert torch.equal(traced.result, sample.centre(rewards))
    assert torch.equal(traced.values["9.1"], torch.tensor([[2.0], [2.25]]))
    assert torch.equal(traced.values["9.2"], rewards - traced.values["9.1"])
    assert [v.item() for v in traced.values["9.10"]] == [0.25, 1.0]
    assert torch.equal(traced.values["9.3"], traced.result)


def test_trace_keeps_every_pass_of_a_loop_as_it_was():
    traced = trace(sample.fold, torch.tensor([1.0, 2.0, 4.0]))
    assert [v.item() for v in traced.passes["9.4"]] == [1, 3, 7]
    assert traced.values["9.4"].item() == 7
    assert "the last of 3 passes" in traced.text and "the last of 3 passes" in traced.rich


def test_trace_of_a_recursion_and_of_a_line_that_raised():
    assert trace(sample.fails, 4.0, deep=2).passes == {"9.6": [0.25], "9.7": [1.25]}
    traced = trace(sample.fails, 2.0)
    assert (traced.result, traced.values) == (-1.0, {"9.6": 0.5})
    assert "*not reached in this call*" in traced.rich


def test_trace_lets_exceptions_pass_and_puts_the_old_tracer_back():
    def debugger(frame, event, arg):
        return None

    before = sys.gettrace()
    try:
        sys.settrace(debugger)
        with pytest.raises(ZeroDivisionError):
            trace(sample.fails, 0.0)
        assert sys.gettrace() is debugger
        trace(sample.fails, 1.0)
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(before)


def test_trace_keeps_the_gradient_of_the_result_and_detaches_the_values():
    logp = torch.full((2, 3), -1.0, requires_grad=True)
    mask = torch.ones(2, 3, dtype=torch.bool)
    traced = trace(objective.policy_loss, logp, torch.tensor([1.0, -1.0]), mask)
    loss, _ = traced.result
    loss.backward()
    assert logp.grad.abs().sum() > 0
    assert not traced.values["5.14"].requires_grad
    assert "5.13" not in traced.values  # beta = 0
