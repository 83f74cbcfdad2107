"""The fixed questions and paragraphs: each with an answer that can be found, and none that a reward sees."""

import pytest

from grpo_lab.tasks import TASKS
from grpo_lab.tasks.general import PARAGRAPHS, QUESTIONS, remembers


@pytest.mark.parametrize("index", range(len(QUESTIONS)))
def test_an_answer_is_found_in_any_case_and_in_no_other_answer(index):
    question, words = QUESTIONS[index]
    assert all(remembers(index, f"I think it is {word.upper()}.") for word in words)
    assert not any(word.casefold() in question.casefold() for word in words), "the question does not give it away"
    assert not remembers(index, "17") and not remembers(index, "")


def test_no_task_asks_or_reads_them():
    asked = {
        message["content"]
        for name in ("sums", "short-sums", "word-problems", "chat")
        for row in TASKS[name].rows("train", None if name == "chat" else 100)
        for message in row["prompt"]
    }
    assert not asked & {question for question, _ in QUESTIONS}
    assert len(set(PARAGRAPHS)) == len(PARAGRAPHS) >= 5 and all(len(text.split()) >= 50 for text in PARAGRAPHS)
