"""Rewards from another model, with fake ones: how a reply is read, and what is left out."""

import pytest

from grpo_lab.rewards import JUDGE_TEMPLATE, judge_reward, read_verdict, reward_model_reward

REPLIES = {
    "yes": ["yes", " YES.\n", "Yes, there is no difference.", "The answer is: yes", "是", "是的，没错", "对。",
            "正确", "**正确**", "回答是正确的。", "判断：是", "Correct.", "No doubt: yes",
            "<think>yes or no? no, no</think> yes"],
    "no": ["No", '"no"', "No: the expected answer would be yes.", "It is not the same, so no.", "否", "不是。", "错误",
           "不正确", "这个回答不正确。", "不对，应该是 4", "判断：否", "没有给出正确的答案。",
           "回答不是正确的", "Incorrect"],
    None: ["yes/no", "yes and no", "maybe", "I know yesterday's news", "", "是否", "也许"],
}  # fmt: skip


def test_a_judges_reply_is_read_or_left():
    for verdict, replies in REPLIES.items():
        assert {reply: read_verdict(reply) for reply in replies} == dict.fromkeys(replies, verdict)


def test_judge_reward_asks_once_a_completion_and_gives_nothing_for_what_it_cannot_read():
    asked, replies = [], iter(["yes", "No.", "perhaps"])

    def judge(question):
        asked.append(question)
        return next(replies)

    reward = judge_reward(judge, name="equal_by_judge")
    prompts = [[{"role": "system", "content": "hidden"}, {"role": "user", "content": f"q{i} {{x}}"}] for i in range(4)]
    with pytest.warns(RuntimeWarning, match=r"equal_by_judge: 1 of 4 .* neither yes nor no, .* a reward of 0"):
        rewards = reward(prompts=prompts, completions=list("abcd"), answer=["1", 2, None, "4"], unused=[0] * 4)
    assert rewards == [1.0, 0.0, None, 0.0]
    assert asked[1] == JUDGE_TEMPLATE.format(prompt="q1 {x}", answer="2", completion="b")
    assert len(asked) == 3 and "hidden" not in asked[0]
    assert reward.__name__ == "equal_by_judge"


def test_what_an_unclear_verdict_earns_is_a_choice():
    for unclear, words in {-1.0: "a reward of -1", 0.5: "a reward of 0.5", None: "no reward"}.items():
        replies = iter(["yes", "no", "well", "yes and no"])
        reward = judge_reward(lambda question, turn=replies: next(turn), unclear=unclear)
        with pytest.warns(RuntimeWarning, match=rf"judge_reward: 2 of 4 .* which gives {words}$"):
            assert reward(list("abcd"), prompts=["q"] * 4, answer=["1"] * 4) == [1.0, 0.0, unclear, unclear]


def test_a_judges_mistakes_are_named():
    with pytest.raises(TypeError, match=r"the judge's reply is 1.0; expected a str"):
        judge_reward(lambda question: 1.0)(["a"], prompts=["q"], answer=["1"])
    for missing, others in {"answer": {"prompts": ["q"]}, "prompts": {"answer": ["1"]}}.items():
        with pytest.raises(ValueError, match=rf"judge_reward: {missing} is NoneType None; expected one entry"):
            judge_reward(str)(["a"], **others)


def test_reward_model_reward():
    seen = []
    reward = reward_model_reward(lambda *texts: seen.append(texts) or float(len(texts[1])), name="length")
    completions = [[{"role": "assistant", "content": "four"}], "ab"]
    assert reward(completions, prompts=[[{"role": "user", "content": "q"}], "r"], answer=["", ""]) == [4.0, 2.0]
    assert seen == [("q", "four"), ("r", "ab")]
    assert reward.__name__ == "length"
