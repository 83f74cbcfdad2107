"""Rewards that compare numbers: which texts are numbers, and where the number may be in a completion."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lab.rewards import last_number, last_number_reward, math_reward, number_reward, same_number
from grpo_lab.rewards.text import MAX_ANSWER_LENGTH


def answered(text):
    return f"<think>so</think><answer>{text}</answer>"


def test_same_number_reads_usual_notations():
    numbers = {"7": "7", "-0.5": "-1/2", "−0.5": "-1/2", "+.5": "1/2", "7.": "7", " 2/4 ": "1/2", "1,000": "1000",
               "１２": "12", "5/10": "1/2", "1/007": "1/7", "10^3": "1000", "10^{-2}": "0.01", "1e3": "1000",
               "1/-2": "-1/2", r"\frac{3}{-4}": "-3/4", r"-\dfrac34": "-0.75", "2 1/2": "2.5", "2½": "5/2",
               "50%": "1/2",
               "0.(3)": "1/3", "1'000": "1000", "1_000": "1000", r"1.5\times 10^{3}": "1500", "`5`": "5", "**5**": "5",
               "五": "5", "10²": "100", "1,234/5": "246.8", "7.e3": "7000", "(-5)": "-5"}  # fmt: skip
    assert [text for text, number in numbers.items() if not same_number(text, number)] == []


def test_same_number_is_false_for_other_texts():
    texts = ["", " ", ".", "-", "1/0", "1/00", "0/0", "1/-0", "1.5/2", "1e", "1_00", "2^{10}", "1,00", "4 or 5", "x=4",
             "5 cm", "$5", "101_2", "3 +1/2", "0 -1/2", "--5", "about 5", "5 apples", "5!", "inf", "nan", "1\n2",
             "9" * (MAX_ANSWER_LENGTH + 1)]  # fmt: skip
    for text in texts:
        assert not same_number(text, text), text
        assert not same_number(text, "4"), text
        assert not same_number("4", text), text


fractions = st.fractions(max_denominator=1000)


@given(fractions, fractions, st.integers(1, 50))
def test_same_number_compares_exact_fractions(a, b, factor):
    written = f"{a.numerator * factor}/{a.denominator * factor}"
    assert same_number(written, str(a))
    assert same_number(written, str(b)) == same_number(str(b), written) == (a == b)


@settings(max_examples=40, deadline=None)
@given(st.integers(-99, 99), st.sampled_from([1, 2, 4, 5, 8, 10, 20]), st.integers(-99, 99))
def test_number_reward_agrees_with_math_reward_where_both_can_read(top, bottom, other):
    decimal, fraction = str(Decimal(top) / bottom), f"{top}/{bottom}"
    completions, answer = [answered(decimal), answered(fraction)], [fraction, f"{other}/{bottom}"]
    assert number_reward(completions, answer=answer) == math_reward(completions, answer, time_limit=60.0)


def test_number_reward_looks_at_the_last_answer_block_alone():
    texts = [answered("0.50"), "<answer>3</answer> <answer>1/2</answer>", "1/2", answered(""), answered("0.5 cm")]
    assert number_reward(texts, answer=["1/2"] * 5) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert number_reward([answered(r"so \boxed{\frac12}")], answer=["0.5"]) == [1.0]
    assert number_reward([[{"role": "assistant", "content": answered("7.0")}], "7"], answer=[7, None]) == [1.0, None]


CUT_OFF = [
    "<think>I get <answer>5</answer> but", "<think>so</think><answer>5</answer> or <answer>6",
    "[THINK]<answer>5</answer>",
    "<answer>5</answer> Hmm <ans", r"<answer>\boxed{5} or \boxed{6</answer>", "<answer>5",
]  # fmt: skip


@pytest.mark.parametrize("reward", [number_reward, math_reward, last_number_reward])
def test_number_rewards_give_0_to_texts_that_were_cut_off(reward):
    if reward is last_number_reward:  # this reward ignores a single tag that is not closed
        assert reward(CUT_OFF[:-1], answer=["5"] * 5) == [0.0] * 5
    else:
        assert reward(CUT_OFF, answer=["5"] * 6) == [0.0] * 6


def test_number_and_math_rewards_read_the_same_notations():
    """Both rewards find an answer equal to the expected number, in whichever notation each of the two is written."""
    notations = {
        "1000": ["1,000", "1e3", "10^3", r"10^{3}", "1 000", "1'000", r"1{,}000", "2000/2", r"\frac{-1000}{-1}"],
        "-3/4": ["-0.75", r"\frac{3}{-4}", r"-\frac{3}{4}", "3/-4", "-75%", "-7.5e-1", r"$-\tfrac34$", "6/-8"],
        "1/3": ["0.(3)", r"0.\overline{3}", "2/6", "⅓", "1:3", "三分之一", "0.333333"],
    }  # fmt: skip
    pairs = [
        (a, b)
        for number, equal_notations in notations.items()
        for notation in equal_notations
        for a, b in ((number, notation), (notation, number))
    ]
    pairs = [(a, b) for a, b in pairs if "三" not in b]  # expected texts in digits only
    texts, expected = [answered(a) for a, _ in pairs], [b for _, b in pairs]
    by_number, by_mathematics = number_reward(texts, expected), math_reward(texts, expected, time_limit=60.0)
    assert by_number == by_mathematics
    unequal = {pair for pair, reward in zip(pairs, by_number, strict=True) if not reward}
    assert unequal == {("0.333333", "1/3"), ("1/3", "0.333333")}


@pytest.mark.parametrize("reward", [number_reward, last_number_reward])
def test_an_expected_text_that_is_no_number_is_named(reward):
    with pytest.raises(ValueError, match=rf"{reward.__name__}: answer\[1\] is 'many'; expected a number"):
        reward(["1", "2"], answer=["1", "many"])


def test_last_number_is_returned_as_written():
    last = {"17": "17", "17 + 25 = 42.": "42", "It is 42, I think.": "42", "17+25=42!": "42", "first 42, then 7": "7",
            "1,000": "1000", "1,2": "2", "about .5": ".5", "is it -3 or x-3?": "-3", "it is -3": "-3", "−3": "-3",
            "20-3": "3", "20 - 3": "3", "(4) -3": "3", "x2": "2", "step 2) 42\n": "42", "is 042.0": "42"}  # fmt: skip
    assert last_number_reward(list(last), answer=list(last.values())) == [1.0] * len(last)
    wrong = {"none at all": "0", "": "0", "٣": "3", "20-3": "-3", " ".join(map(str, range(41))): "12"}
    assert last_number_reward([*wrong, "42"], answer=[*wrong.values(), None]) == [0.0] * len(wrong) + [None]


IN_TEXT = {
    "so <answer>5": "5", "so -½": "-1/2", "it is minus 5": "-5", "10 minus 5": "5", "零下5度": "-5",
    "is it 1'234?": "1234", "1_000_000": "1000000", "it is 1.234,50 €": "2469/2", r"it is 0.\overline{3}": "1/3",
    "it is 0.1(6).": "1/6",
    "5 g of H2O": "5", r"\boxed{{5}}": "5", r"so \boxed5": "5", r"\approx5": "5", "x=5cm": "5", "5 km": "5",
    "300 K": "300",
    "1⁄2": "1/2", "so -₹5": "-5", "it is -€1,000": "-1000", "1.5*10**3": "1500", "101₂": "101", "１／２": "1/2",
    r"\boxed{\$9{,}500}": "9500", "The answer is 1/2.": "1/2", "it is 1.5e3": "1500", "答案是１２。": "12",
    "so -$5": "-5", r"so -\$5.": "-5", "$-5": "-5", "3 1/2 cups": "7/2", "2 3/2": "3/2",
    "$1,234.50 today": "2469/2", "It is $10^{6}$.": "1000000", r"\frac{1}{-2}": "-1/2",
    r"$\dfrac{3}{4}$ of it": "3/4", "it is `5`": "5", "The answer is **42**.": "42", "1.5 × 10^3 m": "1500",
    r"so 1.5 \times 10^{3}": "1500", "9 m^2": "9", "x_1 = 5": "5", "it is 9 m²": "9", "it is 2½": "5/2",
    "三十": "30", r"\boxed{三十}": "30", "答案是负5": "-5", "the ratio 1:2": "1/2", "answer—42": "42",
    r"\boxed{5}. It has 2 parts": "5", "共有5，100以内": "100", "48/2 = 24": "24", "#### 1,072": "1072", "€5": "5",
    r"1\,000": "1000", "so 10 000": "10000", "123_5": "123", "-1/2": "-1/2", "¥９，５００": "9500",
    "-\\frac12": "-1/2", "<answer>7 apples</answer>": "7", "<think>2+3=5</think> It is 6": "6",
    "so 1 / 2": "1/2", "so 1,234/5": "1234/5", "it is .5e3": "500", "it is 7.e3": "7000", r"so 0.\dot{3}": "1/3",
    r"so -\frac{-1}{2}": "1/2", r"5+\frac{-1}{2}": "-1/2", "-(5)": "-5",
    "1.2e-3": "3/2500", "it is 25%": "25", r"it is 25\%": "1/4", "5 dollars": "5", "2^3 = 8": "8",
    r"\boxed{48 cm2}": "48", "<answer>48cm2</answer>": "48", "It is 10 m2.": "10", "so 9.8 m/s2": "9.8",
}  # fmt: skip
NOT_IN_TEXT = {
    "Step 3: 4": "3/4", "in step 3: 45/7": "7", r"so 0.\dot{3}": "3",
    r"so \sqrt{16}": "16", r"so 2\sqrt{3}": "3", r"so \pi/4": "4", r"5\pi": "5", "x/2": "2",
    "so 1e1000": "1", "-₹5": "5",
    "so -½": "1/2", "it is minus 5": "5", "is it 1'234?": "234", "9.500,00 €": "0", "5k": "5", "5K": "5", "5M": "5",
    "5 bn": "5", "0x1F": "1", "H2O": "2", "log_2 8": "8", r"0.\overline{3}.": "3", "<thinking>5 or": "5",
    "[THINK]5": "5",
    "◁think▷5": "5", "<Think>5": "5", "<seed:think>5": "5",
    "The answer is 1/2.": "2", r"\boxed{\$9{,}500}": "500", "1.5e3": "3", "-$5": "5", "it is 2^10": "10",
    "so 2^10": "2", "5 million": "5", "3万": "3", "1/0": "0", "on 1/2/2020": "2020", "10^6": "6",
    r"\frac{1}{2}": "2", "at 8:00": "8", "3.5.2": "2", "3 1/2": "2", "9 m^2": "2", "2½": "2", "<think>5": "5",
    r"\boxed{5} or \boxed{6": "6",
}  # fmt: skip


def test_the_last_number_is_read_in_the_notations_that_the_comparison_knows():
    assert [text for text, number in IN_TEXT.items() if last_number_reward([text], answer=[number]) != [1.0]] == []
    assert [text for text, number in NOT_IN_TEXT.items() if last_number_reward([text], answer=[number]) != [0.0]] == []


def test_no_number_crosses_a_line_break():
    last = {"x = 12\n345": "345", "12 \r\n 345": "345", "12\u2028345": "345", "$12$\n$345$": "345",
            "１２\n３４５": "345", r"\frac{1}{12}" "\n345": "345", "We need 2\n1/2": "1/2", "2\n½": "1/2",
            "7\n" r"\frac{1}{2}": "1/2",
            "1/\n2": "2", "Step 3:\n4": "4", "$$\n5\n$$": "5", "1 234\n567": "567", "x\n= 1 234": "1234"}  # fmt: skip
    assert {text: last_number(text) for text in last} == last
    assert last_number_reward(["Emma: 5\n100"], ["100"]) == [1.0]
    answers = [answered(text) for text in ("1\n300", "1 300", "\n1300\n")]
    assert number_reward(answers, ["1300"] * 3) == math_reward(answers, ["1300"] * 3) == [0.0, 1.0, 1.0]


def test_the_last_number_stands_alone_so_that_answers_can_be_counted():
    texts = ["5", "5 apples", "It is 5.", r"\boxed{5\text{ cm}}", "<answer>5</answer>", "５"]
    assert {last_number(text) for text in texts} == {"5"}
    assert [last_number(text) for text in ("", "none", "so 1,000", "-3", "1/2 km")] == ["", "", "1000", "-3", "1/2"]


@given(st.fractions(max_denominator=50), st.integers(0, 5))
def test_last_number_reward_reads_the_notations_of_math_reward(value, form):
    top, bottom, sign = abs(value.numerator), value.denominator, "-" * (value < 0)
    forms = [f"{sign}{top}/{bottom}", rf"{sign}\frac{{{top}}}{{{bottom}}}", rf"\frac{{{sign}{top}}}{{{bottom}}}",
             f"{sign}{top * 1000:,}", rf"{sign}\${top}", f"{sign}{top}e3"]  # fmt: skip
    text = forms[form]
    expected = str([value, value, value, value.numerator * 1000, value.numerator, value.numerator * 1000][form])
    completions = [f"So it is {text}.", rf"So it is \boxed{{{text}}}."]
    assert last_number_reward(completions, answer=[expected] * 2) == [1.0, 1.0]
    assert math_reward(completions[1:], answer=[expected], time_limit=60.0) == [1.0]


@pytest.mark.parametrize("reward", [number_reward, math_reward, last_number_reward])
def test_answer_block_within_thinking_is_no_answer(reward):
    assert reward(["<think>maybe <answer>5</answer> or", "<think>so</think><answer>5</answer>"], ["5", "5"]) == [0, 1]
    for tag in ("<thinking>", "<Think>", "<seed:think>", "[THINK]", "◁think▷"):
        closing = tag[0] + "/" + tag[1:]
        texts = [f"{tag}<answer>5</answer> or", f"{tag}<answer>4</answer>{closing}<answer>5</answer>"]
        assert reward(texts, ["5", "5"]) == [0, 1]


def test_number_rewards_of_very_long_texts():
    texts = ["1," * 50_000, "<answer>" + "a" * 50_000 + "</answer>", "-" * 50_000]
    assert last_number_reward(texts, answer=["5"] * 3) == number_reward(texts, answer=["5"] * 3) == [0.0] * 3
