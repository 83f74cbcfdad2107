"""What is shown of a value is bounded."""

import torch

from grpo_lab.course import check
from grpo_lab.course.checking.value_text import full_text_lines


def test_full_text_lines_and_messages_are_bounded():
    def accuracy_reward(completions, answer, **_):
        return [0.0] * 5000

    verdict = check(accuracy_reward)
    assert verdict.fault != "signature", "nobody sees the name of what takes the rest"
    assert "5000" in verdict.message
    assert len(repr(verdict)) < 2000
    shown = full_text_lines("result", {"x": [torch.zeros(2)] * 500})
    assert len(shown) == 101
    assert shown[-1] == "… and 900 more lines"
