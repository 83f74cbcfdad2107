"""Rows get a system message, and a completion is known to think."""

from grpo_lab import tasks
from grpo_lab.tasks.rows import chat_messages


def test_a_system_message_is_put_in_front_or_in_place_and_rows_are_not_touched():
    bare, led = {"prompt": chat_messages("q"), "answer": "1"}, {"prompt": chat_messages("q", "own"), "answer": "1"}
    new = {"prompt": chat_messages("q", "new"), "answer": "1"}
    assert tasks.with_system([bare, led], "new") == [new, led]
    assert tasks.with_system([bare, led], "new", replace=True) == [new, new]
    assert tasks.with_system([bare, led], None) == [bare, led]
    assert tasks.with_system([bare, led], None, replace=True) == [bare, bare]
    assert len(bare["prompt"]) == 1
    assert led["prompt"][0]["content"] == "own"


def test_has_thinking_is_true_for_text_between_think_tags():
    thinks = ["<think>1+1=2</think><answer>2</answer>", "<think>1+1=2\n2+3=5</think>"]
    does_not = ["<answer>2</answer>", "<think> \n</think><answer>2</answer>", "<think>1+1=2", "1+1=2</think>", ""]
    assert all(map(tasks.has_thinking, thinks))
    assert not any(map(tasks.has_thinking, does_not))
