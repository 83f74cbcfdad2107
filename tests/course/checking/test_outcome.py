"""Outcomes: what counts as equal, plain data within limits, and bytes that a stranger may have written."""

import json
import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from grpo_lab.course.checking import outcome
from grpo_lab.course.checking.outcome import (
    Fault,
    OtherObject,
    Outcome,
    TooLarge,
    as_plain_data,
    equal_data,
    from_bytes,
    same_gradient,
    to_bytes,
)
from tests.course.proof.trials import outcomes
from tests.course.small_exercise import MEAN, scaled_mean


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (torch.ones(2), torch.ones(2).double(), False),
        (torch.ones(2), torch.ones(1, 2), False),
        (1, 1.0, True),
        (1, True, False),
        (torch.tensor([math.nan, 1]), torch.tensor([math.nan, 1]), True),
        (math.nan, math.nan, True),
        (torch.tensor([math.inf]), torch.tensor([-math.inf]), False),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), False),
        ([1, "a"], [1, "b"], False),
        ({"a": 1}, {"b": 1}, False),
        ([1], [1, 2], False),
        (10**400, 10**400, True),
        # The tolerance is relative to the largest number.
        (numbers(1.0, 1e-8), numbers(1.0, 2e-8), True),  # a difference of 1e-8 is rounding beside a 1
        (numbers(1e-8), numbers(2e-8), False),  # the same difference is an error if there is no larger number
        (1e-8, 1e-8 * (1 + 1e-7), True),
        (numbers(1e-14), numbers(0.0), True),  # a difference of two nearly equal numbers leaves about this much
        (numbers(1.0), numbers(1.0 + 1e-5), False),
        (1e9, 1e9 + 1, True),
        (numbers(math.inf, 1e-8), numbers(math.inf, 2e-8), False),
    ],
)
def test_equal_data_compares_structure_dtypes_and_numbers(a, b, expected):
    assert equal_data(as_plain_data(a), as_plain_data(b), 1e-6) is expected


def test_a_missing_gradient_equals_a_gradient_of_zero():
    zero, ones = torch.zeros(2).double(), torch.ones(2).double()
    assert same_gradient(None, zero, 1e-6)
    assert same_gradient(zero, None, 1e-6)
    assert same_gradient(None, None, 1e-6)
    assert not same_gradient(None, ones, 1e-6)
    assert not same_gradient(ones, None, 1e-6)


@dataclass
class Pair:
    a: torch.Tensor
    b: float


def test_results_that_are_too_large_are_refused_and_long_keys_are_cut(monkeypatch):
    deep: list = []
    deep.append(deep)
    for endless in (deep, [0] * 20_000, ["x" * outcome.MAX_TEXT_LENGTH] * 100):
        with pytest.raises(TooLarge):
            as_plain_data(endless)
    assert list(as_plain_data({"K" * 100_000: 1})) == ["K" * outcome.MAX_KEY_LENGTH]
    monkeypatch.setattr(outcome, "MAX_TENSOR_BYTES", 100)
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


DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool)
LEAVES = [None, True, math.inf, OtherObject("a thing"), torch.zeros(0, 3), torch.tensor(math.nan), torch.ones(2, 3).T]


LEAVES += [torch.tensor([[1.0, 0.0, 5.0]]).to(dtype) for dtype in DTYPES]


trees = st.recursive(
    st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(LEAVES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(trees)
@settings(max_examples=20)
def test_outcomes_survive_the_round_trip_through_bytes(tree):
    content = as_plain_data(tree)
    sent = Outcome({"seen": content}, {"x": content, "y": None}, True, {"w": content}, *"Emt", Fault.EXIT, "p")
    received, empty = from_bytes(to_bytes([sent, Outcome()]))
    compared_as_plain_data = ("results", "gradients", "changed_arguments")
    for name in compared_as_plain_data:
        assert equal_data(getattr(received, name), getattr(sent, name), 0.0)
    without_them = dict.fromkeys(compared_as_plain_data)
    assert replace(received, **without_them) == replace(sent, **without_them)
    assert empty == Outcome()


GOOD = {
    "results": {"dict": {}}, "gradients": {"dict": {}}, "has_gradient": False, "changed_arguments": {"dict": {}},
    "error": "", "message": "", "trace": "", "fault": "", "printed": "",
}  # fmt: skip


FORGED_VALUES = (
    {"tensor": "elsewhere"}, {"pickle": "cos"}, [None] * 20_000, {"int": "0x1"}, {"dict": [[{"a": 1}, None]]},
    ["x" * 20_000] * 300,
)  # fmt: skip
FORGED_FIELDS = (
    *({"results": {"dict": {"the result": value}}} for value in FORGED_VALUES),
    {"results": None}, {"gradients": []}, {"error": None}, {"fault": None}, {"fault": "unknown"}, {"extra": 1},
)  # fmt: skip


FORGED_TEXTS = ("[" * 100_000, "{}", "[1]", "[{}]", json.dumps([GOOD] * 300), json.dumps([GOOD]) + " " * 2**25)


def forged(text: str) -> bytes:
    return save({"t": torch.zeros(1), "outcomes": torch.frombuffer(bytearray(text, "ascii"), dtype=torch.uint8)})


def test_forged_bytes_are_refused_unless_they_have_the_right_form():
    texts = [*FORGED_TEXTS, *(json.dumps([GOOD | fields]) for fields in FORGED_FIELDS)]
    whole = to_bytes(outcomes(MEAN, scaled_mean))
    no_text = [save({"outcomes": values}) for values in (torch.ones(2, 2), torch.ones(3).bfloat16())]
    for content in (*map(forged, texts), *no_text, whole[:-9], b"\xff" * 8 + whole[8:], save({}), b"", b"\0" * 9):
        with pytest.raises(ValueError, match="outcomes cannot be read"):
            from_bytes(content)
    assert from_bytes(forged(json.dumps([GOOD]))) == [Outcome()]
