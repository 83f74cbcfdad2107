"""Results become plain data within limits, and objects become the names of their classes."""

from dataclasses import dataclass

import pytest
import torch

from grpo_lab.course.checking import plain_data
from grpo_lab.course.checking.compare import equal_data
from grpo_lab.course.checking.plain_data import OtherObject, TooLarge, as_plain_data


@dataclass
class Pair:
    a: torch.Tensor
    b: float


def test_results_that_are_too_large_are_refused_and_long_keys_are_cut(monkeypatch):
    deep: list = []
    deep.append(deep)
    for endless in (deep, [0] * 20_000, ["x" * plain_data.MAX_TEXT_LENGTH] * 100):
        with pytest.raises(TooLarge):
            as_plain_data(endless)
    assert list(as_plain_data({"K" * 100_000: 1})) == ["K" * plain_data.MAX_KEY_LENGTH]
    monkeypatch.setattr(plain_data, "MAX_TENSOR_BYTES", 100)
    with pytest.raises(TooLarge):
        as_plain_data(torch.zeros(100))


def test_an_object_that_claims_to_equal_everything_becomes_the_name_of_its_class():
    class Liar:
        def __eq__(self, other):
            return True

        __hash__ = None

    class Number(float):
        def __eq__(self, other):
            return True

        __hash__ = None

        def __add__(self, other):
            return 42.0

    class Sly(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return torch.tensor(True)

    assert as_plain_data(Liar()) == OtherObject("Liar")
    assert not equal_data(as_plain_data(Liar()), 1.0, 1.0)
    assert as_plain_data(Number(3.0)) == 3.0
    assert type(as_plain_data(Number(3.0))) is float
    assert isinstance(as_plain_data(torch.ones(2).as_subclass(Sly)), OtherObject)
    assert as_plain_data(Pair(torch.ones(1), 2.0)) == {"a": torch.ones(1), "b": 2.0}
