"""Tests of the calculator in a chain of thought: its replies, and episodes of the tiny model with it."""

import re

import pytest
import torch

from grpo_lab.config.settings import SamplingParams
from grpo_lab.rollout.environments.text_environment import TextEnvironment
from grpo_lab.tasks import TASKS
from grpo_lab.tasks.calculator import calculate, calculator_replies


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>17+58=", "75"), ("17+58=75\n75+42=", "117"), ("3*4=", "12"), ("2+3*4-1=", "13"), ("10-20=", "-10"),
        ("17+58= ", "75"), ("a=", ""), ("5=", ""), ("=", ""), ("", ""), ("17+58", ""), ("1+=", ""),
        ("9" * 100 + "+1=", str(int("9" * 37) + 1)),  # only the last 40 characters are read
    ],
)  # fmt: skip
def test_calculate_gives_the_value_of_the_term_before_the_last_sign(text, value):
    assert calculate(text) == value


def test_calculator_replies_equal_pythons_eval():
    terms = ["1+2", "12*3+4", "7-8*9", "5*5*5", "100-1-1+2*3", "0*9"]
    assert calculator_replies([f"so {term}=" for term in terms]) == [str(eval(term)) for term in terms]


def test_tiny_model_uses_the_calculator(tiny):
    task = TASKS["sums-calculator"]
    rows = task.rows("train", 8)
    torch.manual_seed(0)
    rollout = TextEnvironment(task.respond, task.stop_strings).sample(*tiny, rows, SamplingParams(8, 64))
    texts_with_calls = [text for text in rollout.texts if "=" in text]
    assert len(texts_with_calls) > 5
    for text in texts_with_calls:
        for a, b, total in re.findall(r"(\d+)\+(\d+)=(\d+)", text):
            assert int(a) + int(b) == int(total)
    assert {episode.num_calls for episode in rollout.episodes} >= {0, 2}
    assert rows == TASKS["sums"].rows("train", 8), "the problems are those of sums"
