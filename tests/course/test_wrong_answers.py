"""Wrong answers written as a difference to the right one."""

import inspect

import pytest
import torch

from grpo_lab.course.exercises import EXERCISES
from grpo_lab.course.wrong_answers import changed
from grpo_lab.logprobs import token_entropy


def test_the_difference_and_nothing_else_and_it_stands_there_once():
    flipped = changed(token_entropy, ("-(logp.exp() * logp)", "(logp.exp() * logp)"))
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(flipped(logits, 0.7), -token_entropy(logits, 0.7))
    assert inspect.signature(flipped) == inspect.signature(token_entropy)
    with pytest.raises(ValueError, match="temperature"):
        flipped(logits, -1.0)
    for before, times in (("logp.exp() + logp", 0), ("logp", 3)):
        with pytest.raises(ValueError, match=f"{times} times; expected it once"):
            changed(token_entropy, (before, "0"))(logits)


def test_every_difference_still_fits_its_reference():
    for exercise in EXERCISES.values():
        args, kwargs = exercise.cases[0].build(0)
        for mistake in exercise.misconceptions:
            if mistake.wrong.__name__.startswith("changed_"):
                try:
                    mistake.wrong(*args, **kwargs)
                except Exception as error:
                    assert "expected it once" not in str(error), f"{exercise.name}, {mistake.name}: {error}"
