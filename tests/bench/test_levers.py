"""Each lever is measured alone, on the same work; dropping rows changes the time and nothing that is drawn."""

import copy

from grpo_lab.bench import levers
from grpo_lab.rollout import static

SETUP = {"model": "smollm2", "task": "short-sums", "steps": 2, "threads": 1}


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
    pulled = ("cache_implementation", "drop", "precision")
    settings = [tuple(spec[name] for name in pulled) for spec in stub.specs]
    assert len(set(settings)) == len(settings) == 3 * 2
    assert settings[0] == ("dynamic", False, "fp32")
    assert {(cache, drop) for cache, drop, *_ in settings} == {("dynamic", False), ("static", False), ("static", True)}
    assert all({name: value for name, value in spec.items() if name not in pulled} == SETUP for spec in stub.specs)
    lines = levers.table(report).splitlines()
    assert len(lines) == 2 + 6 and lines[2].split()[:2] == ["generate", "fp32"]
    assert "1.00 (1.00)" in lines[2] and lines[-1].split()[-2:] == ["6", "(6.00)"], "ratios to the first line"


def test_dropping_rows_changes_nothing_that_is_drawn(tiny, monkeypatch):
    """With the tiny model, in one step of 4 completions of each of 2 prompts."""
    dropped, drop, share = [], static.Decoder._drop_ended, static.STILL_WRITING
    monkeypatch.setattr(static.Decoder, "_drop_ended", lambda self: dropped.append(1) or drop(self))
    monkeypatch.setattr(levers, "load_policy", lambda *_, **__: copy.deepcopy(tiny))
    settings = {"num_generations": 4, "generation_batch_size": 8, "max_completion_length": 24}
    spec = {"model": "tiny", "task": "sums", "steps": 1, "precision": "fp32", "settings": settings}
    cells = {}
    for label, decoder in levers.DECODERS.items():
        monkeypatch.setattr(static, "STILL_WRITING", share)
        dropped.clear()
        cells[label] = cell = levers.measure(spec | decoder)
        assert bool(dropped) is decoder["drop"]
        assert set(cell) == {key for key, *_ in levers.COLUMNS} and all(value > 0 for value in cell.values())
        assert cell["rollout"] + cell["score"] + cell["update"] <= cell["step"]
    assert cells["static, ended rows leave"]["tokens"] == cells["static, all rows to the end"]["tokens"]
