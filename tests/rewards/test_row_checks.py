"""The check before a run that its rewards can be computed from the rows: what is accepted, and what is refused."""

import sys

import pytest

from grpo_lab.rewards.named import check_reward_columns

OWN_REWARDS = """
def short(completions, **kwargs):
    return [1 / (1 + len(text)) for text in completions]
def cost(completions, price, answer=None):
    return [-1.0] * len(completions)
"""


@pytest.fixture
def own_rewards(tmp_path, monkeypatch):
    """A current folder with a module `own_rewards`, which is removed after the test."""
    (tmp_path / "own_rewards.py").write_text(OWN_REWARDS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("own_rewards", None)


ROWS = [{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "2"}]


def with_answer(value):
    return [ROWS[0], ROWS[1] | {"answer": value}]


def test_check_reward_columns_accepts_usable_rows(own_rewards):
    check_reward_columns(["accuracy", "format"], ROWS)
    # A row without an answer is rewarded for its format alone.
    check_reward_columns(["accuracy", "format"], with_answer(None))
    check_reward_columns(["number", "last"], with_answer(2))
    check_reward_columns(["math"], with_answer("x+1"))
    check_reward_columns(["own_rewards:short"], [{"prompt": "a"}])
    # An answer that is a float is allowed for your own reward.
    check_reward_columns(["own_rewards:cost"], [{"prompt": "a", "price": 3, "answer": 1.5}])


@pytest.mark.parametrize(
    ("names", "rows", "message"),
    [
        (["format", "accuracy"], [{"prompt": "a"}], "'accuracy', which needs the column 'answer'; f, line 3 lacks it"),
        (["own_rewards:cost"], ROWS, "'own_rewards:cost', which needs the column 'price'; f, line 3 lacks it"),
        (["accuracy"], [{"prompt": "a", "b": 1, "c": 2}], "line 3 lacks it, and has b, c; .* named as --answer_column"),
        (["accuracy", "math"], with_answer(None), "f, line 7: answer is None; expected a text"),
        (["contains", "format"], with_answer(" "), "f, line 7: answer is ' '; expected a text, since nothing could"),
        (["accuracy"], with_answer(1.5), "f, line 7: answer is 1.5; expected a text or a whole number for 'accuracy'"),
        (["format", "number"], with_answer("two"), "f, line 7: answer is 'two'; expected a number for 'number'"),
    ],
)
def test_check_reward_columns_names_unusable_rows(own_rewards, names, rows, message):
    with pytest.raises(ValueError, match=message):
        check_reward_columns(names, rows, ["f, line 3", "f, line 7"][: len(rows)])
    with pytest.raises(ValueError, match="row 1: answer is 'two'"):
        check_reward_columns(["last"], with_answer("two"))
