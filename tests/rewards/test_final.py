"""A final number between tags earns everything, in another clear form half, and a guess nothing."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.rewards import final_answer_reward, number_reward
from grpo_lab.rewards.final import OTHERWISE
from grpo_lab.tasks.gsm8k import EXAMPLE


def earned(text: str, expected: str = "5") -> float:
    (reward,) = final_answer_reward([text], answer=[expected])
    return reward


BETWEEN_TAGS = ["<answer>5</answer>", "<think>2 + 3</think>\n<answer> 5 </answer>", "<answer>5.0</answer> #### 6"]
CLEAR = [
    "#### 5",
    "2 + 3 = 5\n#### 5\n",
    "The answer is 5.",
    "the answer is: $5.",
    "Answer: **5**",
    "**Answer:** 5",
    "The final answer is 5 apples.",
    "So the answer is 5. He has 3 left.",
    "The answer = 10/2",
    "答案是5。",
    "答案：５",
    "答案等于 5",
    r"so we get \boxed{5}",
    "<answer>5 apples</answer>",
    "<answer>The answer is 5.</answer>",
    "<think>The answer is 6.</think> The answer is 5.",
    "The answer is 5.\n#### 5",
]
UNCLEAR = [
    "5",
    "I think it is 5",
    "answer 5",
    "The answer is 5 or 6",
    "The answer is 4 + 1 = 5",
    "#### 5\n#### 6",
    "The answer is 6. The answer is 5.",
    "<answer>6</answer> #### 5",
    "<answer>5 6</answer>",
    "<answer>3 = 5</answer>",
    "<answer>not 5</answer>",
    "<answer>it isn't 5</answer>",
    "答案不是5",
    "The answer is not 5",
    "The answer is 5%",
    "The answer is 5 percent",
    "<answer>5%</answer>",
    "The answer is 15",
    "The answer is 5.5",
    "The answer is 5,000",
    "The answer is -5",
    "<answer>about -5 degrees</answer>",
    "<think>The answer is 5.",
    "<answer>five</answer>",
    "",
]


@pytest.mark.parametrize(
    ("text", "reward"),
    [(t, 1.0) for t in BETWEEN_TAGS] + [(t, OTHERWISE) for t in CLEAR] + [(t, 0.0) for t in UNCLEAR],
)
def test_what_each_form_earns(text, reward):
    assert earned(text) == reward


def test_numbers_are_compared_as_numbers():
    said = ["#### 1,234", "The answer is 0.5.", "The answer is 1/2", "#### -3", "#### 7"]
    assert final_answer_reward(said, answer=["1234", "1/2", "0.5", "-3", None]) == [0.5, 0.5, 0.5, 0.5, None]


def test_messages_are_read_as_texts_are():
    assert final_answer_reward([[{"role": "assistant", "content": "#### 5"}]], answer=["5"]) == [0.5]


@pytest.mark.parametrize("texts", [BETWEEN_TAGS, CLEAR, UNCLEAR])
def test_it_never_says_less_than_the_number_alone_does(texts):
    strict, lenient = number_reward(texts, answer=["5"] * len(texts)), [earned(text) for text in texts]
    assert all(a <= b for a, b in zip(strict, lenient, strict=True))


@given(st.lists(st.integers(0, 9), min_size=2, max_size=5, unique=True), st.integers(0, 3), st.randoms())
def test_a_list_of_guesses_earns_nothing(guesses, form, rng: random.Random):
    """Whatever form the guesses have, and wherever the right one stands."""
    forms = ("#### {}", "The answer is {}.", "\\boxed{{{}}}", "答案是{}。")
    text = "\n".join(forms[(form + rng.randrange(4)) % 4].format(guess) for guess in guesses)
    assert earned(text, str(guesses[0])) == 0.0


def test_the_example_of_gsm8k_shows_the_form_that_earns_everything():
    assert earned(EXAMPLE[1], "15") == 1.0


def test_an_expected_text_that_is_no_number_is_named():
    with pytest.raises(ValueError, match=r"answer\[1\] is 'five'; expected a number"):
        final_answer_reward(["a", "b"], answer=["5", "five"])


def test_long_texts_take_no_time():
    for text in ("answer is " * 5000, "<answer>" + "a" * 50_000 + "</answer>", "#### " * 10_000, "\\boxed{" * 10_000):
        assert earned(text) == 0.0
