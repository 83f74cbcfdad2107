"""Numbers in Chinese words: which words are numbers, and which are not usual."""

import re
from fractions import Fraction

import pytest

from grpo_lab.rewards.quantities import CHINESE_NUMBER, parse_chinese_number


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
