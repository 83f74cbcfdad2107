"""Tests of the questions of general knowledge."""

from grpo_lab.teaching.general_questions import QUESTIONS, remembers


def test_an_answer_is_found_in_any_case_and_in_no_other_answer():
    for index, (question, words) in enumerate(QUESTIONS):
        assert all(remembers(index, f"I think it is {word.upper()}.") for word in words)
        assert not any(word.casefold() in question.casefold() for word in words), "the question does not give it away"
        assert not remembers(index, "17")
        assert not remembers(index, "")
