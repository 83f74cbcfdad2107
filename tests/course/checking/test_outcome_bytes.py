"""Outcomes as bytes come back exactly, and forged bytes are refused."""

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from grpo_lab.course.checking.compare import equal_data
from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.checking.outcome_bytes import from_bytes, to_bytes
from grpo_lab.course.checking.plain_data import OtherObject, as_plain_data
from grpo_lab.course.checking.status import Fault
from tests.course.proof.trials import outcomes
from tests.course.small_exercise import MEAN, scaled_mean

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool)


LEAVES = [None, True, math.inf, OtherObject("a thing"), torch.zeros(0, 3), torch.tensor(math.nan), torch.ones(2, 3).T]


LEAVES += [torch.tensor([[1.0, 0.0, 5.0]]).to(dtype) for dtype in DTYPES]


trees = st.recursive(
    st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(LEAVES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(trees)
@settings(max_examples=20)
def test_outcomes_survive_the_round_trip_through_bytes(tree):
    content = as_plain_data(tree)
    sent = Outcome(content, {"x": content, "y": None}, True, {"w": content}, {"seen": content}, *"Emt", Fault.EXIT, "p")
    received, empty = from_bytes(to_bytes([sent, Outcome()]))
    compared_as_plain_data = ("value", "gradients", "changed_arguments", "observed")
    for name in compared_as_plain_data:
        assert equal_data(getattr(received, name), getattr(sent, name), 0.0)
    without_them = dict.fromkeys(compared_as_plain_data)
    assert replace(received, **without_them) == replace(sent, **without_them)
    assert empty == Outcome()


GOOD = {
    "value": None, "gradients": {"dict": {}}, "has_gradient": False, "changed_arguments": {"dict": {}},
    "observed": None, "error": "", "message": "", "trace": "", "fault": "", "printed": "",
}  # fmt: skip


FORGED_FIELDS = (
    {"value": {"tensor": "elsewhere"}}, {"value": {"pickle": "cos"}}, {"value": [None] * 20_000},
    {"value": {"int": "0x1"}}, {"value": {"dict": [[{"a": 1}, None]]}}, {"value": ["x" * 20_000] * 300},
    {"gradients": []},
    {"error": None}, {"fault": None}, {"fault": "unknown"}, {"extra": 1}, {"attached": True},
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


def test_outcomes_of_an_earlier_version_are_read():
    earlier = GOOD | {"attached": True, "changed": {"dict": {"w": 1}}}
    del earlier["has_gradient"], earlier["changed_arguments"]
    assert from_bytes(forged(json.dumps([earlier]))) == [Outcome(has_gradient=True, changed_arguments={"w": 1})]
