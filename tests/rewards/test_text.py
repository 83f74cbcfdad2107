"""The text of a completion, the answer in it, and the normal form in which texts are compared."""

import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from grpo_lab.rewards import (
    accuracy_reward,
    completion_text,
    extract_answer,
    format_reward,
    loose_text,
    normalise_text,
    prompt_text,
)
from grpo_lab.rewards.text import last_code_block
from tests.support.agreement import many_examples

GOOD = "<think>17+58=75\n75+42=117</think>\n<answer>117</answer>"


def test_strings_and_messages_are_the_same_completion():
    for completion in (GOOD, [{"role": "assistant", "content": GOOD}], [{"content": GOOD}]):
        assert completion_text(completion) == GOOD
        assert format_reward([completion]) == accuracy_reward([completion], answer=["117"]) == [1.0]
    messages = [
        ("system", "s"),
        ("user", "q1"),
        ("assistant", "a1"),
        ("tool", "t"),
        ("user", "q2"),
        ("assistant", "a2"),
    ]
    turns = [{"role": role, "content": content} for role, content in messages]
    assert completion_text(turns) == "a1\na2"
    assert prompt_text(turns) == "q1\nq2"
    for wrong in (None, 7, [], ["text"], [{"role": "assistant", "content": None}], {"content": "x"}):
        with pytest.raises(TypeError, match="completion is .*; expected a string, or a non-empty list of chat mess"):
            completion_text(wrong)


def test_extract_answer_takes_the_last_closed_block():
    answers = {
        GOOD: "117", "<answer>\n 4 \n</answer>": "4", "<answer>1\n2</answer>": "1\n2",
        "<answer>1</answer> no: <answer>2</answer>": "2", "<answer>1</answer><answer> </answer>": None,
        "<answer></answer>": None, "<answer>1": None, "1</answer>": None, "</answer>1<answer>": None, "": None,
        "<answer>1<answer>2</answer>": "2", "<answer>1</answer> and <answer>2": "1",
    }  # fmt: skip
    assert {text: extract_answer(text) for text in answers} == answers


def code_block(code: str, language: str = "python") -> str:
    return f"Here it is.\n```{language}\n{code}```\nIt doubles."


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        (code_block("1\n"), "1\n"),
        (code_block("1\n", ""), "1\n"),
        (code_block("1\n", "Python"), "1\n"),
        (code_block("1\n", "py title=a"), "1\n"),
        (code_block("1\n") + code_block("2\n"), "2\n"),
        (code_block("1\n") + code_block("$ ls\n", "bash"), "1\n"),
        (code_block("1\n").replace("\n", "\r\n"), "1\n"),
        (code_block("1\n") + "\n```python\n2\n", "1\n"),
        ("```python\n```", ""),
        ("print(1)", None),
        ("```print(1)```", None),
        ([{"role": "assistant", "content": code_block("1\n")}, {"role": "tool", "content": code_block("2\n")}], "1\n"),
    ],
)
def test_last_code_block_is_the_last_closed_one_of_a_language(completion, code):
    assert last_code_block(completion_text(completion), ("python", "py")) == code


def test_normalised_and_loose_forms_of_texts():
    normal = {
        "  a\n\tb\u3000c ": "a b c", "czq是神！": "czq是神!", "１２３": "123", "1,234": "1234", "1,2": "1,2",
        "-1,234,567.5 and 12,000, too": "-1234567.5 and 12000, too", "1,2345": "1,2345", "1234,567": "1234,567",
        "1,234,5": "1,234,5", "2½": "2½", "10²": "10²", "e\u0301": "\u00e9", "X": "X",
    }  # fmt: skip
    assert {text: normalise_text(text) for text in normal} == normal
    loose = {
        "I like machine learning.": "i like machine learning", "czq是神！": "czq是神", "czq 是 神 !": "czq是神",
        "“通义千问”。": "通义千问", "1.5, 2:30; 1,234.": "1.5 2:30 1234", "-5%": "-5%", "?!": "", "don't": "don t",
        "STRASSE Straße": "strasse strasse",
    }  # fmt: skip
    assert {text: loose_text(text) for text in loose} == loose
    assert all(loose_text(text) == text for text in loose.values())


@many_examples
@given(st.text(max_size=12))
def test_normalising_ends_in_one_step_and_is_nfkc_elsewhere(text):
    normal = normalise_text(text)
    assert normalise_text(normal) == normal
    assume("," not in text and not any(unicodedata.decomposition(c).startswith("<") for c in text))
    assert normal == " ".join(unicodedata.normalize("NFKC", text).split())
