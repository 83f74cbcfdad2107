"""Rewards from another model, tested with fake models: which question is asked, and which completions get no reward."""

import pytest

from grpo_lab.rewards import JUDGE_TEMPLATE, judge_reward, reward_model_reward


def test_judge_reward_asks_once_and_is_none_for_unreadable_replies():
    questions, replies = [], iter(["yes", "No.", "perhaps"])

    def judge(question):
        questions.append(question)
        return next(replies)

    reward = judge_reward(judge, name="equal_by_judge")
    prompts = [[{"role": "system", "content": "hidden"}, {"role": "user", "content": f"q{i} {{x}}"}] for i in range(4)]
    with pytest.warns(RuntimeWarning, match=r"equal_by_judge: 1 of 4 .* neither yes nor no, .* a reward of 0"):
        rewards = reward(prompts=prompts, completions=list("abcd"), answer=["1", 2, None, "4"], unused=[0] * 4)
    assert rewards == [1.0, 0.0, None, 0.0]
    assert questions[1] == JUDGE_TEMPLATE.format(prompt="q1 {x}", answer="2", completion="b")
    assert len(questions) == 3
    assert "hidden" not in questions[0]
    assert reward.__name__ == "equal_by_judge"


def test_judge_reward_of_an_unclear_verdict_is_its_argument():
    for unclear, words in {-1.0: "a reward of -1", 0.5: "a reward of 0.5", None: "no reward"}.items():
        replies = iter(["yes", "no", "well", "yes and no"])
        reward = judge_reward(lambda question, turn=replies: next(turn), unclear=unclear)
        with pytest.warns(RuntimeWarning, match=rf"judge_reward: 2 of 4 .* which gives {words}$"):
            assert reward(list("abcd"), prompts=["q"] * 4, answer=["1"] * 4) == [1.0, 0.0, unclear, unclear]


def test_judge_reward_refuses_wrong_replies_and_columns():
    with pytest.raises(TypeError, match=r"the judge's reply is 1.0; expected a str"):
        judge_reward(lambda question: 1.0)(["a"], prompts=["q"], answer=["1"])
    for missing, others in {"answer": {"prompts": ["q"]}, "prompts": {"answer": ["1"]}}.items():
        with pytest.raises(ValueError, match=rf"judge_reward: {missing} is NoneType None; expected one entry"):
            judge_reward(str)(["a"], **others)


def test_reward_model_can_be_called_as_a_reward():
    scored_texts = []
    reward = reward_model_reward(lambda *texts: scored_texts.append(texts) or float(len(texts[1])), name="length")
    completions = [[{"role": "assistant", "content": "four"}], "ab"]
    assert reward(completions, prompts=[[{"role": "user", "content": "q"}], "r"], answer=["", ""]) == [4.0, 2.0]
    assert scored_texts == [("q", "four"), ("r", "ab")]
    assert reward.__name__ == "length"
