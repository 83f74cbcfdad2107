"""Units after a number: which names mean the same unit, and which texts are no unit."""

import pytest

from grpo_lab.rewards.quantities import currency_unit, parse_unit


@pytest.mark.parametrize(
    "names", [(" cm", "cm", "厘米"), (" cm^2", "平方厘米", " square cm"), ("_5", " base 5", " (base 5)")]
)
def test_names_of_a_unit_mean_the_same(names):
    (unit,) = {parse_unit(name) for name in names}
    assert unit


@pytest.mark.parametrize("tail", ["", " apples", "个苹果", "个"])
def test_no_unit_and_counted_things_have_the_unit_of_a_plain_number(tail):
    assert parse_unit(tail) == ""


@pytest.mark.parametrize("tail", [" hundreds", "左右", " or 5", " about", "!", "x"])
def test_other_texts_are_no_unit(tail):
    assert parse_unit(tail) is None


def test_a_currency_without_another_name_is_its_sign():
    assert currency_unit("₿") == "₿"
    assert currency_unit("$") == parse_unit(" dollars")
