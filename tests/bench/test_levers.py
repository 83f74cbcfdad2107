"""Each lever is measured alone, on the same work; dropping rows changes the time and nothing that is drawn."""

import copy
import json

import pytest

from grpo_lab.bench import levers
from grpo_lab.rollout import static

SETUP = {"model": "smollm2", "task": "short-sums", "steps": 2}


class Stub:
    """In place of a fresh process: each is slower than the one before."""

    def __init__(self):
        self.specs = []

    def __call__(self, module, spec):
        assert module == levers.WORKER
        self.specs.append(spec)
        return {key: len(self.specs) * unit for key, _, unit, _ in levers.COLUMNS}


def test_every_lever_is_measured_and_nothing_else_differs(capsys):
    stub = Stub()
    report = levers.compare(SETUP, run=stub)
    pulled = ("cache_implementation", "drop", "precision", "threads")
    settings = [tuple(spec[name] for name in pulled) for spec in stub.specs]
    assert len(set(settings)) == len(settings) == 3 * 2 * 2
    assert settings[0] == ("dynamic", False, "fp32", 1)
    assert {(cache, drop) for cache, drop, *_ in settings} == {("dynamic", False), ("static", False), ("static", True)}
    assert all({name: value for name, value in spec.items() if name not in pulled} == SETUP for spec in stub.specs)
    assert len(levers.compare(SETUP, threads=4, run=Stub())["cells"]) == 6
    json.dumps(report)


def test_the_table_has_a_line_a_lever_and_ratios_to_the_first(capsys):
    lines = levers.table(levers.compare(SETUP, run=Stub())).splitlines()
    assert "model smollm2, task short-sums" in lines[0] and len(lines) == 2 + 12
    assert lines[2].split()[:3] == ["generate", "fp32", "1"] and "1.00 (1.00)" in lines[2]
    assert "12.00 (12.00)" in lines[-1] and lines[-1].split()[-2:] == ["12", "(12.00)"]


@pytest.fixture
def measured(tiny, monkeypatch):
    """What the worker measures with the tiny model, in one step of 4 completions of each of 2 prompts."""

    def measure(decoder: str, precision: str = "fp32") -> dict:
        policy = copy.deepcopy(tiny[0])
        policy.loaded_for = precision
        monkeypatch.setattr(levers, "load_policy", lambda *_, **__: (policy, tiny[1]))
        monkeypatch.setattr(static, "STILL_WRITING", STILL_WRITING)
        spec = {"model": "tiny", "task": "sums", "steps": 1, "precision": precision} | levers.DECODERS[decoder]
        settings = {"num_generations": 4, "generation_batch_size": 8, "max_completion_length": 24}
        return levers.measure(spec | {"settings": settings})

    return measure


STILL_WRITING = static.STILL_WRITING


def test_dropping_rows_changes_nothing_that_is_drawn(measured, monkeypatch):
    dropped = []
    drop = static.Decoder._drop_ended
    monkeypatch.setattr(static.Decoder, "_drop_ended", lambda self: dropped.append(1) or drop(self))
    generate, to_the_end = measured("generate"), measured("static, all rows to the end")
    assert not dropped
    leaving = measured("static, ended rows leave")
    assert dropped and leaving["tokens"] == to_the_end["tokens"]
    for cell in (generate, to_the_end, leaving):
        assert set(cell) == {key for key, *_ in levers.COLUMNS} and all(value > 0 for value in cell.values())
        assert cell["rollout"] + cell["score"] + cell["update"] <= cell["step"]
