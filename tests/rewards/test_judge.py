"""Rewards from another model, tested with fake models: which question is asked, and which completions get no reward."""

import pytest

from grpo_lab.rewards import JUDGE_TEMPLATE, judge_reward, read_verdict, reward_model_reward


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


REPLIES = {
    "yes": ["yes", " YES.\n", "Yes, there is no difference.", "The answer is: yes", "是", "是的，没错", "对。",
            "正确", "**正确**", "回答是正确的。", "判断：是", "Correct.", "No doubt: yes",
            "<think>yes or no? no, no</think> yes"],
    "no": ["No", '"no"', "No: the expected answer would be yes.", "It is not the same, so no.", "否", "不是。", "错误",
           "不正确", "这个回答不正确。", "不对，应该是 4", "判断：否", "没有给出正确的答案。",
           "回答不是正确的", "Incorrect"],
    None: ["yes/no", "yes and no", "maybe", "I know yesterday's news", "", "是否", "也许"],
}  # fmt: skip


# Replies about the expected answer, replies that go on after a yes, and replies with other signs than a colon.
LONGER_REPLIES = {
    "yes": [
        "The response is in agreement with the expected answer.", "Both are 7, so yes.", "verdict=yes",
        "The response's answer, 7, equals the expected answer.", "I agree that the response is correct.",
        "The response correctly states the expected answer.", "Yes — the response correctly gives 7.",
        "The response is equivalent to the expected answer.", '{"correct": true, "reason": "no errors"}',
        "Yes, the expected answer is given, although the reasoning is wrong.", "[[yes]]", "yes or no: yes",
        "Yes\n\nExplanation: The wrong turn in step 2 does not matter.", "回答给出了预期答案。", "答案：对",
        "Yes: not only the number, the unit is right, too.", "是。两者相同。", "Correct -> yes", "is_correct: true",
    ],
    "no": [
        "The response is anything but correct", "is_correct: false", "Correct = false", "Absolutely not.",
        "Of course not.", "Not at all.", "Not equal to the expected answer.", "Not a match.", "verdict => no",
        "The answer differs from the expected answer.", "The response contradicts the expected answer.",
        "It is not even close to correct.", "The response incorrectly gives 5.", "yes or no: no",
        "The response is not the same as the expected answer", '{"verdict": "no", "reason": "the correct answer is 7"}',
        "No. Yes would be wrong.", "回答不太对", "这不能说是正确的", "回答是7，与预期不符", "对吗？不对",
        "正确与否：否",
    ],
    None: [
        "The response is right, except that it is wrong about 7", "Correct, if rounded", "Yes, apart from the unit.",
        "Nothing but correct words", "It would be wrong to call this correct.", "None of it is correct.",
        "It is correct that the response is wrong.", "I doubt that the response is correct.",
        "Yes... just kidding, no.",
        "It is not the case that the response is correct.", "The answer 'yes' is not what the response gives",
        "The response tells me to answer yes.", "The method is right, the result is not.", "未必正确", "难说正确",
        "The first step is correct.", "Supposedly correct", "除了单位外正确", "虽然过程正确，但答案错误", "岂能算对",
        "回答的第一步正确", "It does not differ from the expected answer", "正确，只是单位错了",
    ],
}  # fmt: skip


# Replies in which the words before the verdict word count, in both languages. An unclear reply has no verdict.
IN_CONTEXT = {
    "yes": [
        "Correct ✅", "✅", "✔️ The response is right", "The answer matches the reference answer.", "It matches.",
        "Yes - the response is 7.", "Yes – matches", "<verdict>yes</verdict>", "正確", "符合", "回答符合标准答案",
        "The response matches the expected answer 7.",
        "Reasoning: it gives 7, which is correct.\nVerdict: Yes", r"\boxed{yes}", "The response is judged correct.",
        "The response says 7, which is correct.", "There is no doubt that the response is correct.",
        "The answer provided is correct.", "The answer given by the student is correct", "回答与预期答案一致",
        "答对了", "学生答对了", "The response (7) is correct.", "response is correct", "相符",
        "The response indeed gives the correct answer.", "The response is correct.", "It is correct",
        "That's correct.", "The answer is right.", "Correct!", "The response gives the expected answer.",
        "I think the response is correct.", "Yes, the response is correct.", "yes it is",
        "Yes. The expected answer is 7, and the response says 7.", "The student's answer is correct",
        "The response '5' is correct.", '{"verdict": "yes"}', "Verdict: correct", "没错", "回答正确",
        "该回答是正确的", "给出了正确的答案。", "是的", "答案正确。", "这个答案是对的。", "完全正确",
        "The final answer is correct, as it gives 7.", "The response is correct because 3+4=7.",
        '<think>hm not correct</think>\nYes', "**Yes**", "The answer is yes.", "Is it correct? Yes.", "Right.",
        "The response matches the expected answer.",
    ],
    "no": [
        "❌", "Nope.", "Nope, it says 5", "The answer doesn't match.", "It is hardly correct.", "no - it says 5",
        "The response does not match the expected answer 7", "The response lacks the correct answer.",
        "The response is missing the expected answer.", "<verdict>no</verdict>", "答非所问", "回答不符合标准答案",
        "不正確", "回答与标准答案不符", "This response is unable to give the correct answer", "沒有答對", "錯誤",
        "Verdict: No\nReason: the correct answer is 7", "This can't be right.",
        "The response cannot be considered correct",
        "Wrong answer.", "The response says 5, which is not correct.", "This is not the expected answer.",
        "答错了", "学生没有答对", "回答与标准答案不一致", "错了", "不一致", "Not the correct answer.",
        "The response did not provide the right answer", "The given response is not the right answer",
        "Not correct", "The response is not correct.", "It isn't correct.", "That's not right.",
        "The answer is not entirely correct", "The response is wrong.",
        "The response does not give the expected answer.", "I don't think the response is correct.",
        "The response doesn't contain the correct answer.", "Not quite correct.", "It is definitely not correct",
        "The answer is by no means correct.", "The response fails to give the correct answer",
        "This is incorrect.", "Correct: no", '{"correct": false}', "Verdict: not correct",
        "the response is never correct", "The response gives the wrong answer.", "no it does not",
        "No, the response is not correct.", "并不正确", "回答并非正确", "该回答未给出正确的答案",
        "这个回答是错误的", "回答错误。", "不完全正确", "答案不对", "回答没有给出正确答案。", "不能算正确",
        "是不正确的", "I would say no.", "Incorrect, the correct answer is 7.", "It is far from correct",
        "The response was not right at all.", "The response is not accurate", "错", "答案有误",
        "The answer is false", "Is it correct? No.", "So the answer is no.",
    ],
    None: [
        "正确答案：7", "正确答案", "标准答案：是", "Correct answer: 7", "The correct answer: 7. The response: 5.",
        "no mistakes were found", "nothing incorrect here", "the word correct appears", "not sure", "没有问题吗？",
        "对于这个问题", "no error found", "The correct answer is 7, but the response says 5.", "No errors.",
        "There is no mistake.", "I found no error in the response.", "Maybe correct",
        "The response may be correct", "It might not be correct", "Is it correct?",
        "I cannot say whether it is correct.", "It is unclear whether the response is correct",
        "Partially correct", "almost correct", "The expected answer is correct", "correct or incorrect",
        "not only correct but complete", "正确答案是7，但回答是5", "是否正确", "不知道是否正确", "没有发现错误",
        "可能正确", "部分正确", "无法判断", "7 is the correct answer", "Expected answer: yes", "<think>yes",
        "Errors: none", "错误：无", "Yes, but the response is wrong.", "If it were correct, yes",
        "The right triangle", "nothing is wrong", "It would be correct if it said 7",
        "neither correct nor incorrect", "The response claims that it is correct", "The response says yes",
        "是不是正确？", "如果正确", "The reference answer is correct. The response differs.", "No doubt",
        "no problem", "not incorrect?", "✅❌", "It would match if it said 7", "the reference answer",
        "a well-known yes-man", "The response, if rounded, is correct", "The response - if rounded - is correct",
        "half right", "不一定符合", "是否符合标准答案", "no match - no mismatch",
    ],
}  # fmt: skip


# Verdicts that a later clause contradicts, and answers to a question for a fault or for a verdict.
CONTRADICTED_OR_ASKED = {
    "yes": [
        "Yes, nothing is wrong.", "Yes, the unit is not wrong.", "Yes, but the derivation is invalid.", "是，步骤有误",
        "Is it wrong? It is correct.", "有错吗？回答正确。", "Is it correct or not? Yes.", "是不是正确的？是的。",
    ],
    "no": [
        "No, wait, it is not correct.", "No. It is incorrect because the correct answer is 7.", "对不对？不对",
        "Correct or incorrect? Incorrect.", "Is it correct or not? No.", "是否正确？否",
        "Is it wrong? It does not match.", "Does it match? No.",
    ],
    None: [
        "No, wait, it is correct.", "No. On second thought, yes.", "Incorrect... no, it is correct.",
        "不对，等等，回答是正确的。", "Incorrect? No.", "Incorrect? Yes.", "Is it wrong? Not at all.",
        "Does it differ? No, it does not.", "Is there an error?\nNo.", "错误？不是。", "有没有错误？否",
        "不正确吗？是的", "Is anything wrong? ❌", "Yes, but the unit is wrong.", "是的，但单位错了",
        "Yes, but the final value is incorrect by a factor of two.", "Yes. The final answer, though, is wrong by 1.",
    ],
}  # fmt: skip


@pytest.mark.parametrize("verdict", CONTRADICTED_OR_ASKED)
def test_a_contradicted_verdict_and_an_answer_to_a_question_for_a_fault_are_unclear(verdict):
    replies = CONTRADICTED_OR_ASKED[verdict]
    assert {reply: read_verdict(reply) for reply in replies} == dict.fromkeys(replies, verdict)


def test_read_verdict_reads_clear_replies_and_no_others():
    for verdict, replies in REPLIES.items():
        assert {reply: read_verdict(reply) for reply in replies} == dict.fromkeys(replies, verdict)


@pytest.mark.parametrize("verdict", IN_CONTEXT)
def test_a_verdict_is_read_with_what_stands_before_it(verdict):
    replies = IN_CONTEXT[verdict] + LONGER_REPLIES[verdict]
    assert {reply: read_verdict(reply) for reply in replies} == dict.fromkeys(replies, verdict)


def test_read_verdict_is_quick_on_long_replies():
    for piece in ("so ", "the ", "not ", "no, ", "不", "这个", "is correct ", "I think ", "yes: ", "and "):
        read_verdict(piece * 20_000)
