"""Units after a number: which names mean the same unit, and which texts are no unit."""

import re
from fractions import Fraction

import pytest

from grpo_lab.rewards.quantities import (
    CHARACTER_REWRITES,
    CHINESE_NUMBER,
    NOTATION_REWRITES,
    NUMBER_REWRITES,
    parse_chinese_number,
    parse_quantity,
    parse_unit,
)
from grpo_lab.rewards.verifiers import math_reward


@pytest.mark.parametrize(
    "names", [(" cm", "cm", "厘米"), (" cm^2", "平方厘米", " square cm"), ("_5", " base 5", " (base 5)")]
)
def test_names_of_a_unit_mean_the_same(names):
    (unit,) = {parse_unit(name) for name in names}
    assert unit


@pytest.mark.parametrize(
    "names",
    [
        (" m", " metre", " Metres", "m"), (" min", " Mins", " MINUTES"), (" l", " L", " litres"), (" ml", " mL"),
        (" kg", " KG", " kgs"), (" lb", " lbs", " Pounds"), (" m^2", " Square Metres"), (" ms", " milliseconds"),
        ("°C", "°c", "摄氏度"),
    ],
)  # fmt: skip
def test_a_word_may_have_capital_letters_and_a_plural(names):
    (unit,) = {parse_unit(name) for name in names}
    assert unit


@pytest.mark.parametrize(
    ("symbol", "others"),
    [("m", ["ms", "M", "M^2"]), ("g", ["gs", "G"]), ("s", ["S"]), ("t", ["ts", "T"]), ("h", ["hs", "H"]),
     ("mm", ["MM", "mms"]), ("ml", ["ML"]), ("m^2", ["M^2", "ms^2", "square M"])],
)  # fmt: skip
def test_a_symbol_has_no_plural_and_no_capital_letters(symbol, others):
    assert parse_unit(f" {symbol}") == symbol
    for other in others:
        assert parse_unit(f" {other}") not in (symbol, f"{symbol}^2", "m"), other


@pytest.mark.parametrize(("answer", "expected"), [("5 ms", "5 m"), ("300 ms", "300 m"), ("5 M", "5 m"), ("5 G", "5 g")])
def test_another_symbol_contradicts_the_expected_unit(answer, expected):
    assert math_reward([f"<answer>{answer}</answer>"], answer=[expected]) == [0.0]


@pytest.mark.parametrize("tail", ["", " apples", "个苹果", "个"])
def test_no_unit_and_counted_things_have_the_unit_of_a_plain_number(tail):
    assert parse_unit(tail) == ""


@pytest.mark.parametrize("tail", [" hundreds", "左右", " or 5", " about", "!", "x"])
def test_other_texts_are_no_unit(tail):
    assert parse_unit(tail) is None


def test_a_currency_without_another_name_is_its_sign():
    assert parse_quantity("₺5").unit == "₺"
    assert parse_quantity("$5") == parse_quantity("5 dollars")


@pytest.mark.parametrize("rewrites", [CHARACTER_REWRITES, NOTATION_REWRITES, NUMBER_REWRITES])
def test_each_rewrite_makes_of_its_example_what_stands_beside_it(rewrites):
    rewritten = {step.example: step.pattern.sub(step.replacement, step.example) for step in rewrites}
    assert rewritten == {step.example: step.result for step in rewrites}


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("零", 0), ("两", 2), ("十七", 17), ("一十七", 17), ("三十", 30), ("一百零五", 105), ("两千", 2000),
        ("九千九百九十九", 9999), ("五万零三", 50_003), ("十二万三千", 123_000), ("三点一四", "3.14"),
        ("三分之一", "1/3"), ("二又三分之一", "7/3"), ("百分之五", "1/20"), ("四分之六", "3/2"),
    ],
)  # fmt: skip
def test_parse_chinese_number_reads_usual_words(words, value):
    assert re.fullmatch(CHINESE_NUMBER, words)
    assert parse_chinese_number(words) == Fraction(value)


@pytest.mark.parametrize("words", ["一百二", "三四", "二又三分之五", "零分之一", "五万三"])
def test_parse_chinese_number_is_none_for_unusual_words(words):
    assert re.fullmatch(CHINESE_NUMBER, words)
    assert parse_chinese_number(words) is None


def test_a_thousand_before_metre_or_gram_belongs_to_the_unit():
    assert re.match(CHINESE_NUMBER, "五千克")[0] == "五"
    assert re.match(CHINESE_NUMBER, "五千人")[0] == "五千"
