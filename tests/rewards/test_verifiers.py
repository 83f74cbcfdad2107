"""Mathematical equality: as a good teacher marks it, and safe against any text that a policy may write."""

import functools
import re
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lab.rewards import last_number_reward
from grpo_lab.rewards import math_reward as reward_in_3_seconds
from grpo_lab.rewards.quantities import normalise_notation, parse_quantity
from grpo_lab.rewards.text import extract_boxed, extract_final_answer
from grpo_lab.rewards.verifiers import _read_answer, decide_without_library, gym_reward
from grpo_lab.tasks.gym import make_generator
from tests.support.agreement import many_examples

# A comparison takes a millisecond, but much longer on a busy machine: hence the long time limits.
math_reward = functools.partial(reward_in_3_seconds, time_limit=60.0, batch_time_limit=600.0)
LINE = re.compile(r"(?m)^(right|wrong)  (.+) == (.+)$")
EVERY, DEPARTURES = (
    [(expected, answer, mark == "right") for mark, expected, answer in LINE.findall(part)]
    for part in Path(__file__).with_name("teacher.txt").read_text(encoding="utf-8").split("# What a teacher would mark")
)
EVERY += [("4", "", False), ("4", " ", False), ("0", "", False)]
EVERY += [("9" * 900, "9" * 900, True), ("9" * 900, "9" * 899 + "8", False)]


def answered(text):
    return f"<think>so</think><answer>{text}</answer>"


def marked(pairs, form=answered):
    rewards = math_reward([form(answer) for _, answer, _ in pairs], answer=[expected for expected, _, _ in pairs])
    return [(e, g, reward == 1.0) for (e, g, _), reward in zip(pairs, rewards, strict=True)]


def test_math_reward_marks_as_a_teacher_rule_by_rule():
    assert len(EVERY) >= 185
    assert len({pair[:2] for pair in EVERY}) == len(EVERY)
    assert marked(EVERY) == EVERY


def test_math_reward_departs_from_a_teacher_in_listed_cases():
    assert [right for _, _, right in marked(DEPARTURES)] == [not right for _, _, right in DEPARTURES]


@pytest.mark.slow
def test_math_reward_marks_a_box_like_an_answer_block_and_each_answer_as_equal_to_itself():
    in_text = [pair for pair in EVERY if pair[1].strip() and "boxed" not in pair[1]]
    assert marked(in_text, lambda answer: rf"<think>so</think> So it is $\boxed{{{answer}}}$.") == in_text
    golds = list(dict.fromkeys((expected, expected, True) for expected, _, _ in EVERY))
    assert marked(golds) == golds


def test_math_reward_reads_the_last_box_or_answer_block():
    texts = [
        r"So it is \boxed{\frac{1}{2}}.",
        r"<think>\boxed{3}</think> It is \boxed{0.5}",
        r"That is <answer>$\boxed{0.5}$, or a half</answer>",
        [{"role": "assistant", "content": r"\boxed{0.5}"}],
        r"<think>\boxed{0.5}</think> It is 3",
        "It is 0.5",
        "<answer>0.5",
        r"\boxed{0.5} <answer>3</answer>",
        r"\boxed{0.5} </answer>",
        r"\boxed{0.5} or \boxed{3}",
        r"\boxed{0.5",
    ]
    assert math_reward(texts, answer=[r"1/3 + 1/6 = \boxed{\frac{1}{2}}"] * 11) == [1.0] * 4 + [0.0] * 7


CUT_OFF = [
    r"\boxed{5} no, wait: \boxed{6", r"\boxed{5} no, wait: \boxed {\frac{1}{2", r"\boxed{5} so \boxe",
    r"<think>maybe \boxed{5} or", r"<think>maybe <answer>5</answer> or", r"<think>a</think> <think>\boxed{5}",
    "<answer>5</answer> no, wait: <answer>6", "<answer>5</answer> no, wait: <answ",
    r"<think>a</think>\boxed{5} \boxed{",
]  # fmt: skip
WHOLE = [
    r"\boxed{5}", r"<think>\boxed{6</think> \boxed{5}", r"<think>\boxed{6}</think> <answer>5</answer>",
    r"\boxed{6 <answer>5</answer>", r"<answer>6 <answer>5</answer>", r"\boxed{5}, which is less than x<a",
]  # fmt: skip


def test_math_and_last_number_rewards_give_0_to_cut_off_completions():
    for reward in (math_reward, last_number_reward):
        assert reward(CUT_OFF, answer=["5"] * len(CUT_OFF)) == [0.0] * len(CUT_OFF)
        assert reward(WHOLE, answer=["5"] * len(WHOLE)) == [1.0] * len(WHOLE)


@pytest.mark.slow
def test_math_reward_agrees_with_trl_on_boxes():
    accuracy_reward = pytest.importorskip("trl.rewards").accuracy_reward
    boxes = [r"\frac{1}{3}", r"\frac{1}{2}", "0.5", "x+1", "12", r"\sqrt{2}", r"\{1,2\}", "1,000", "3 = x"]
    golds = ["1/3", "$0.5$", r"\frac{2}{4}", "$1+x$", "13", r"$\sqrt{2}$", r"$\{2,1\}$", "1000", "$x=3$"]
    completions = [[{"role": "assistant", "content": rf"It is $\boxed{{{box}}}$"}] for box in boxes]
    assert math_reward(completions, answer=golds) == accuracy_reward(completions, golds)


def test_math_reward_is_none_with_a_warning_for_expected_answers_that_it_cannot_read():
    unreadable = ["", "¿", r"\frac{1}{", "?"]
    with pytest.warns(RuntimeWarning, match=r"math_reward: 4 of 6 expected answers cannot be read .* row 2"):
        assert math_reward([answered("4")] * 6, answer=[4, None, *unreadable]) == [1.0] + [None] * 5


# Numbers


@many_examples
@given(st.fractions(max_denominator=400), st.sampled_from(["", " cm", "个", "%"]))
def test_every_way_to_write_a_fraction_is_read(value, tail):
    sign, top, bottom = "-" * (value < 0), abs(value.numerator), value.denominator
    whole, rest = divmod(top, bottom)
    forms = [f"{sign}{top}/{bottom}", rf"{sign}\frac{{{top}}}{{{bottom}}}", rf"\dfrac{{{sign}{top}}}{{{bottom}}}"]
    if whole and rest:
        forms += [f"{sign}{whole} {rest}/{bottom}", rf"{sign}{whole}\tfrac{{{rest}}}{{{bottom}}}"]
    for form in (f"{form}{tail}" for form in [*forms, f"${forms[-1]}$"]):
        assert parse_quantity(normalise_notation(form)).value == (value / 100 if tail == "%" else value), form


@many_examples
@given(st.decimals(-(10**6), 10**6, places=4), st.integers(-9, 9))
def test_powers_of_ten_are_exact(mantissa, power):
    value = Fraction(mantissa) * Fraction(10) ** power
    for form in (f"{mantissa:f}e{power}", rf"{mantissa:f} \times 10^{{{power}}}", f"{mantissa:f}×10^{power}"):
        assert parse_quantity(normalise_notation(form)).value == value


# Texts that a policy may write


pieces = st.sampled_from(
    [*"0123456789+-*/^!=.,;:()[]{}$%°√½²π∞±≈一二十百千万点分之又半负个元 xye\\<>|\n", r"\frac", r"\sqrt", r"\text{",
     "10^", r"\boxed{", r"\times", r"\left(", r"\overline{", "e99", "or", "million", "{,}", "\ud800", "**", "cm"]
)  # fmt: skip


@settings(max_examples=3 * settings.default.max_examples)
@given(st.lists(pieces, max_size=25).map("".join), st.lists(pieces, max_size=8).map("".join))
def test_comparing_any_text_raises_nothing_and_equates_a_number_only_with_itself(submitted, expected):
    decide_without_library(expected, extract_final_answer(f"<answer>{submitted}</answer>"))
    decide_without_library("4", extract_final_answer(submitted))
    if decide_without_library("12345678901", submitted) == "equal":
        value_text = normalise_notation(submitted).split("=")[-1].strip()
        assert parse_quantity(value_text).value == 12345678901


def test_math_reward_refuses_towers_and_huge_answers_at_once():
    towers = ["9^{9^{9^{9}}}", "-9^9^9", "(9^9)!", "((3!)!)!", "2^{9!}", "9" * 1001]
    huge = [piece * 10**5 for piece in ("9", "{", r"\boxed{", "半", "-", "1,", "x=", "$", "**")]
    for text in [*towers, *huge]:
        assert decide_without_library("4", text) == decide_without_library("x=4", text) == "different"
    assert all(decide_without_library("x+1", text).submitted == extract_boxed(text) == "" for text in huge)


if find_spec("reasoning_gym") is None:  # not imported here, since each process that collects tests would take 2 s
    pytest.skip("reasoning-gym is not installed", allow_module_level=True)


def test_gym_verifier_scores_the_answer_block_or_text_after_thinking():
    name, options, problems = make_generator("countdown:min_numbers=2,max_numbers=2")
    texts = ["1 + 1", "", "no", problems[0]["answer"], "7 * (", "x" * 500]
    expected = [problems.score_answer(text, problems[0]) for text in texts]
    assert set(expected) == {0.01, 0.05, 1.0}
    origins = [{"index": 0, "options": options, "generator": name}] * len(texts)
    forms = "<think>1 + 1</think><answer>{}</answer>", "{}", "<think>hm</think>\n{}\n", "So:\nthe **answer** is: {}"
    for form in forms:
        assert gym_reward([form.format(text) for text in texts], origins) == expected
    assert gym_reward([[{"role": "assistant", "content": f"<answer>{texts[3]}</answer>, then"}]], origins[:1]) == [1.0]
    assert gym_reward([texts[3], texts[3]], [None, origins[0]]) == [None, 1.0]
    assert gym_reward([texts[3]], [None]) == [None]


def test_gym_verifier_gives_0_to_a_harmful_answer(tmp_path):
    name, options, problems = make_generator("countdown:min_numbers=2,max_numbers=2")
    file = tmp_path / "made"
    answers = [f"open({str(file)!r}, 'w')", f"__import__('os').mkdir({str(file)!r})", problems[0]["answer"]]
    scores = gym_reward(answers, [{"generator": name, "options": options, "index": 0}] * 3)
    assert max(scores[:2]) < 0.05
    assert scores[2] == 1.0
    assert not file.exists()


@pytest.mark.slow
def test_gym_verifier_gives_0_to_an_endless_answer():
    name, options, problems = make_generator("countdown:min_numbers=2,max_numbers=2")
    origin = {"generator": name, "options": options, "index": 0}
    with pytest.warns(RuntimeWarning, match=r"gym_reward: 2 of 3 answers were not scored within 1 s .*'9\*\*9"):
        scores = gym_reward(["9**9**9**9", "9**9**9**9", problems[0]["answer"]], [origin] * 3, time_limit=1.0)
    assert max(scores[:2]) < 0.05
    assert scores[2] == 1.0


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("First I thought the answer is 7, but the answer is 5.", "5"),
        ("The answer is 7.\nSo: **Answer:** 5", "5"),
        ("no statement", "no statement"),
    ],
)
def test_gym_answer_without_a_block_is_what_the_last_statement_says(text, answer):
    assert _read_answer(text) == answer
