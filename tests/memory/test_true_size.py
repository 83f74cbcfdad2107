"""The plan of an update of Qwen2-0.5B equals a count, operation by operation, of fake tensors of its true size."""

import json

import pytest

from tests.support.scripts import ROOT, load_script

pytestmark = pytest.mark.slow
recorder = load_script("notebooks/runs/record_counted.py")


@pytest.mark.parametrize(("mode", "checkpointing"), recorder.WAYS)
def test_counted_bytes_of_two_micro_batches_are_the_planned_and_the_recorded_ones(mode, checkpointing):
    planned, counted = recorder.planned_bytes(mode, checkpointing), recorder.counted_bytes(mode, checkpointing)
    assert planned == pytest.approx(counted, rel=0.01)
    record = json.loads((ROOT / "notebooks/runs/counted.json").read_text(encoding="utf-8"))["runs"]
    way = {"mode": mode, "checkpointing": checkpointing}
    assert way | {"planned": planned, "counted": pytest.approx(counted, rel=0.001)} in record


def test_counted_bytes_of_an_update_of_adapters_are_the_recorded_ones():
    record = json.loads((ROOT / "notebooks/runs/counted.json").read_text(encoding="utf-8"))["lora"]
    assert recorder.counted_bytes("bf16", True, lora=True) == pytest.approx(record["counted"], rel=0.001)
