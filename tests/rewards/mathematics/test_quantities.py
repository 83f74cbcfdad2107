"""Numbers in texts: in Chinese words, with units, and whatever a policy may write in their place."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lab.rewards.mathematics.forms import judge_form
from grpo_lab.rewards.mathematics.numerals import chinese_number
from grpo_lab.rewards.mathematics.quantities import Quantity, quantity_in, same_quantity
from grpo_lab.rewards.mathematics.sizes import is_too_large
from grpo_lab.rewards.mathematics.tidy import boxed, given_answer, tidy
from grpo_lab.rewards.mathematics.units import unit_of
from tests.support.agreement import many

DIGITS = "零一二三四五六七八九"


def in_words(n: int) -> str:
    """As a textbook writes a whole number, below 10^12."""
    for size, word in ((10**8, "亿"), (10**4, "万")):
        if n >= size:
            rest = n % size
            gap = "零" if 0 < rest < size // 10 else ""
            return in_words(n // size) + word + (gap + in_words(rest) if rest else "")
    text = ""
    for size, word in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit, n = divmod(n, size)
        text += DIGITS[digit] + word if digit else "零" if text and n and not text.endswith("零") else ""
    return text or "零"


@many
@given(st.one_of(st.integers(0, 10**12 - 1), st.integers(0, 20_000)))
def test_a_number_in_words_is_that_number(n):
    words = in_words(n)
    assert chinese_number(words) == n
    assert quantity_in(words + "个") == Quantity(Fraction(n))
    assert chinese_number("负" + words) == -n
    assert n == 0 or chinese_number(words + "分之一") == Fraction(1, n) or n in (100, 1000)


@pytest.mark.parametrize(
    ("words", "number"),
    [("十七", 17), ("两", 2), ("二〇二六", 2026), ("一百十七", 117), ("三点一四", Fraction(157, 50)),
     ("半", Fraction(1, 2)),
     ("百分之二十五", Fraction(1, 4)), ("百分之0.5", Fraction(1, 200)), ("千分之三", Fraction(3, 1000)),
     ("一又二分之一", Fraction(3, 2)), ("3.5万", 35000), ("3万5千", 35000), ("壹佰贰拾叁", 123),
     ("一千二百亿", 12 * 10**10)],
)  # fmt: skip
def test_other_ways_to_say_a_number(words, number):
    assert chinese_number(words) == number


@pytest.mark.parametrize(
    "words", ["", "三个", "一百二", "三四", "十百", "百", "万", "负负三", "三分之", "分之三", "零分之一", "一又二",
              "一又三分之四",
              "点五", "五点", "五点十", "一万点", "三" * 41],
)  # fmt: skip
def test_what_says_no_number(words):
    assert chinese_number(words) is None


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("", ""), ("cm", "cm"), ("厘米", "cm"), ("centimetres", "cm"), ("Centimeter", "cm"), ("cm^2", "cm^2"),
        ("cm^{2}", "cm^2"), ("平方厘米", "cm^2"), ("square centimeters", "cm^2"), ("sq cm", "cm^2"), ("立方米", "m^3"),
        ("km/h", "km/h"), ("千米/时", "km/h"), ("kilometres per hour", "km/h"), ("米/秒", "m/s"), ("m", "m"),
        ("L", "L"),
        ("小时", "h"), ("个小时", "h"), ("岁", "岁"), ("years old", "岁"), ("元", "¥"), ("度", "°"), ("°C", "°C"),
        ("apples", ""), ("red apples", ""), ("个", ""), ("个三角形", ""), ("本书", ""),
        ("x", None), ("xy", None), ("or five", None), ("左右", None), ("或五个", None), ("三个", None), ("M", None),
        ("cm^4", None), ("a/b/c", None), ("apples, pears", None), ("words " * 5, None), ("apples" * 20, None),
    ],
)  # fmt: skip
def test_units_and_things(text, unit):
    assert unit_of(text) == unit


@many
@given(st.fractions(max_denominator=400), st.sampled_from(["", " cm", "个", "%"]))
def test_every_way_to_write_a_fraction_is_read(value, tail):
    sign, top, bottom = "-" * (value < 0), abs(value.numerator), value.denominator
    whole, rest = divmod(top, bottom)
    forms = [f"{sign}{top}/{bottom}", rf"{sign}\frac{{{top}}}{{{bottom}}}", rf"$\dfrac{{{sign}{top}}}{{{bottom}}}$"]
    if whole and rest:
        forms += [f"{sign}{whole} {rest}/{bottom}", rf"{sign}{whole}\tfrac{{{rest}}}{{{bottom}}}"]
    for form in forms:
        written = form[:-1] + tail + "$" if form.endswith("$") and tail != "个" else form + tail
        found = quantity_in(tidy(written)) if tail != "个" or not form.endswith("$") else quantity_in(tidy(form))
        assert found is not None and found.value == (value / 100 if tail == "%" else value), written
    again = quantity_in(tidy(Quantity(value).latex()))
    assert again is not None and same_quantity(again, Quantity(value))


@many
@given(st.decimals(-(10**6), 10**6, places=4), st.integers(-9, 9))
def test_powers_of_ten_are_exact(mantissa, power):
    value = Fraction(mantissa) * Fraction(10) ** power
    for form in (f"{mantissa:f}e{power}", rf"{mantissa:f} \times 10^{{{power}}}", f"{mantissa:f}×10^{power}"):
        assert quantity_in(tidy(form)).value == value
    assert quantity_in(f"{Quantity(value, rounded=True).latex()}").value == value


pieces = st.sampled_from(
    [*"0123456789+-*/^!=.,;:()[]{}$%°√½²₂π∞±≈一二十百千万点分之又半负个元 xye\\<>|\n", r"\frac", r"\sqrt",
     r"\text{", "10^",
     r"\boxed{", r"\times", r"\left(", r"\overline{", r"\log_2", "e99", "or", "million", "每小时",
     "{,}", "\ud800", "**", "cm"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces, max_size=25).map("".join), st.lists(pieces, max_size=8).map("".join))
def test_no_text_raises_and_a_number_is_equal_to_itself_alone(given_text, expected):
    judge_form(expected, given_answer(f"<answer>{given_text}</answer>"))
    judge_form("4", given_answer(given_text))
    verdict = judge_form("12345678901", given_text).verdict
    assert verdict != "equal" or quantity_in(tidy(given_text).split("=")[-1].strip()).value == 12345678901


@pytest.mark.parametrize(
    ("text", "large"),
    [("9^{9^{9^{9}}}", True), ("-9^9^9", True), ("(9^9)!", True), ("((3!)!)!", True), ("450!", True),
     ("10^{1000}", True), ("9" * 1001, True), ("2^{10}", False), ("2^{2^{2^2}}", False),
     ("1^{9^{9^9}}", False), ("0^{9^9}", False),
     ("449!", False), ("5!!", False), ("10^{999}", False), ("2^{3321}", False), ("9^{0!}", False), ("9^{9^9}+x", False),
     ("9^{-9^9}", False), ("9^{9^9", False), ("^9", False), ("{}", False), ("", False), (r"\sqrt{9^{9^9}}", False)],
)  # fmt: skip
def test_towers_and_factorials_are_measured_without_computing_them(text, large):
    assert is_too_large(text) == large
    assert not large or judge_form("4", text) == judge_form(r"4", "17") == judge_form("x=4", text)


@pytest.mark.parametrize("piece", ["9", "{", r"\boxed{", "半", "-", "1,"])
def test_a_huge_answer_is_refused_at_once(piece):
    text = piece * 10**5
    assert judge_form("4", text).verdict == "different"
    assert judge_form("x+1", text).pairs == (("x+1", ""),)
    assert boxed(text) in ("", text)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{4}", "4"),
        (r"\boxed{3} no, \boxed{4}", "4"),
        (r"$\boxed{1}$ and $\boxed{2}$", "1, 2"),
        (r"\boxed{1}, \boxed{1}", "1"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\fbox {x}", "x"),
        (r"\boxed{\{1\}}", r"\{1\}"),
        (r"\boxed{4", ""),
        (r"\boxed 4", ""),
        ("4", ""),
    ],
)
def test_the_last_box_counts(text, content):
    assert boxed(text) == content
