"""The bench for a card, on the CPU: bytes and operations, the harness with stubs, the workers at a small size."""

import json
import subprocess

import pytest
import torch

from grpo_lab.bench import __main__ as command
from grpo_lab.bench import gpu
from grpo_lab.bench.gpu import harness, shared, tables
from grpo_lab.bench.gpu import memory as memory_worker
from grpo_lab.bench.gpu import rollout as rollout_worker
from grpo_lab.bench.gpu import train as train_worker
from grpo_lab.bench.gpu import trl as trl_worker
from grpo_lab.models.shapes import random_policy, shape_config
from tests.support.refused import refused

# --- the counts -----------------------------------------------------------------------------------------------------


def test_bytes_read_token_by_token():
    """By running the loop: at each token the model's weights, and whatever the cache then holds."""
    model = random_policy("small")
    ids, read, cache = torch.zeros(3, 5, dtype=torch.long), 0, None
    for step in range(4):
        out = model(ids if step == 0 else ids[:, :1], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        read += sum(p.nbytes for p in model.parameters())
        read += sum(x.nbytes for layer in cache.layers for x in (layer.keys, layer.values))
    assert read == rollout_worker.bytes_read(model.config, 3, 5, 4, 4)
    untied = shape_config("small")
    untied.tie_word_embeddings = False
    assert rollout_worker.bytes_read(untied, 3, 5, 4, 4) == read


# --- the harness, with a stub in place of the processes --------------------------------------------------------------


class Stub:
    """A fresh process in name only; each takes so many seconds of a clock of its own."""

    def __init__(self, takes=1.0, fail=None):
        self.time, self.takes, self.fail, self.calls = 0.0, takes, fail or {}, []

    def __call__(self, worker, spec, timeout):
        self.calls.append((worker.rsplit(".")[-1], spec, timeout))
        self.time += self.takes
        for name, message in self.fail.items():
            if name in spec.values():
                raise message
        seconds = {"static": 1.0, "generate": 8.0, "ours": 1.0, "trl": 4.0}
        return {
            "seconds": seconds.get(spec.get("engine") or spec.get("trainer"), 2.0),
            "tokens": 1000, "limit_seconds": 0.5, "bandwidth": 2e12, "dtype": "bfloat16",
            "flops": 4 * 10**12, "matmul_rate": 8e12, "matmul_dtype": "bfloat16",
            "peak": 4 * 2**30, "reserved": 5 * 2**30, "planned": 4.4 * 2**30, "finite": True,
        }  # fmt: skip

    def compare(self, **arguments):
        return gpu.compare(run=self, clock=lambda: self.time, **arguments)


@pytest.fixture(autouse=True)
def everything_is_there(monkeypatch):
    monkeypatch.setattr(harness, "is_installed", lambda package: True)
    monkeypatch.setattr(shared, "modes_of", lambda device: list(shared.PRECISIONS))


def test_every_measurement_of_a_whole_run():
    stub = Stub()
    report = stub.compare()
    assert json.loads(json.dumps(report)) == report and not gpu.failures(report)
    rollouts = {(c["sequences"], c["engine"]) for c in report["rollout"]}
    assert rollouts == {(n, e) for n in (8, 16, 32, 64, 128) for e in ("static", "generate")}
    for part in ("train", "memory"):
        assert [c["mode"] for c in report[part]] == ["bf16", "bf16", "fp32", "fp32-master", "bf16-naive", "fp16"]
    assert [c["checkpointing"] for c in report["train"]] == [False, True] + [False] * 4
    assert [c.get("cap") for c in report["memory"]] == [None, 8 * 10**9] + [None] * 4
    ours, trl = ({k: v for k, v in c.items() if k not in ("trainer", "seconds")} for c in report["trl"])
    assert ours == trl, "the same work"
    assert all(spec["device"] == "cuda" and spec["shape"] == "qwen2-0.5b" for _, spec, _ in stub.calls)


def test_no_run_takes_longer_than_it_may():
    stub = Stub(takes=30.0)
    report = stub.compare()
    assert sum(gpu.PARTS.values()) <= 540 and stub.time <= 540 + 4 * 30
    assert all(timeout <= harness.ALONE for _, _, timeout in stub.calls)
    missing = [c.get("missing") for part in gpu.PARTS for c in report[part]]
    assert missing.count(None) == len(stub.calls) and set(missing) == {None, "no time left"}
    assert all(report[part][0].get("missing") is None for part in gpu.PARTS)
    # An end by force when the part's time is over, so the sum of what a worker may take is bounded too.
    alone = Stub(takes=30.0)
    alone.compare(only=["rollout"])
    assert alone.time <= harness.ALONE + 30 and [round(t) for _, _, t in alone.calls][:2] == [230, 200]


def test_what_cannot_be_measured_says_why(capsys):
    stub = Stub(fail={
        "generate": MemoryError(), "static": RuntimeError("exit code 1: no such op"),
        "fp32": subprocess.TimeoutExpired("m", 100),
    })  # fmt: skip
    report = stub.compare()
    assert {c["missing"] for c in report["rollout"] if c["engine"] == "generate"} == {"out of memory"}
    assert {c["missing"] for c in report["rollout"] if c["engine"] == "static"} == {"failed"}
    assert report["train"][2]["missing"] == "no time left" and "missing" not in report["train"][1]
    assert len(gpu.failures(report)) == 5 and gpu.failures(report)[0] == "rollout: static, 8 sequences"
    assert "no such op" in capsys.readouterr().err
    text = tables.table(report)
    assert "out of memory" in text and "failed" in text and "no time left" in text


def test_without_a_card_the_command_says_what_works(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--gpu: torch sees no NVIDIA card here; --device cpu --shape small" in refused(command.main, "--gpu")


# --- the workers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", harness.ENGINES)
def test_the_rollouts_are_of_full_length(engine, monkeypatch):
    made = []
    for name in ("_ours", "_generate"):
        function = getattr(rollout_worker, name)
        monkeypatch.setattr(rollout_worker, name, lambda *a, f=function: made.append(f(*a)) or made[-1])
    spec = harness.SIZES["cpu"]["rollout"] | {"sequences": 4, "engine": engine, "shape": "small", "device": "cpu"}
    cell = rollout_worker.measure(spec)
    assert len(made) == 2 and all(ids.shape == (4, 8) for ids in made) and cell["tokens"] == 32
    assert cell["limit_seconds"] == cell["bytes_read"] / cell["bandwidth"] > 0 and cell["seconds"] > 0
    tables.part_table("rollout", [cell | spec | {"engine": name} for name in harness.ENGINES])


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_updates_are_updates(checkpointing):
    spec = harness.SIZES["cpu"]["train"] | {"mode": "fp32-master", "checkpointing": checkpointing}
    spec |= {"shape": "small", "device": "cpu"}
    cell = train_worker.measure(spec)
    assert cell["tokens"] == 4 * (8 + 16) and cell["grad_norm"] > 0 and cell["nonfinite_steps"] == 0
    assert cell["flops"] > 6 * 4 * (16 * 4096 * 192)  # the head's alone, forward and backward
    tables.part_table("train", [cell | spec])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fp32", "bf16-naive"])
def test_training_steps_and_their_plan(mode):
    """Real steps: rollouts, gradients at every parameter, weights that move, and a peak near the planned one."""
    spec = harness.SIZES["cpu"]["memory"] | {"mode": mode, "checkpointing": True, "shape": "small", "device": "cpu"}
    cell = memory_worker.measure(spec | {"learning_rate": 1e-3})
    assert cell["steps"] == 2 and cell["finite"] and cell["nonfinite_steps"] == 0
    assert cell["parameters"] == cell["parameters_with_gradient"] == 2 + 4 * 12
    # Next to 1, where the weights of the norms are, bf16 numbers are further apart than a naive step is long.
    norms = 1 + 4 * 2
    assert cell["parameters_moved"] == cell["parameters"] - (norms if mode == "bf16-naive" else 0)
    assert memory_worker.plan_for(spec).peak == pytest.approx(cell["peak"], rel=0.1)
    tables.part_table("memory", [cell | spec])


@pytest.mark.slow
def test_both_trainers_do_the_same_work():
    pytest.importorskip("trl")
    spec = harness.SIZES["cpu"]["trl"] | {"mode": "fp32", "checkpointing": False, "shape": "small", "device": "cpu"}
    ours, trl = (trl_worker.measure(spec | {"trainer": trainer}) for trainer in ("ours", "trl"))
    assert ours["tokens_so_far"] == trl["tokens_so_far"] == [4 * 16, 2 * 4 * 16]
    tables.part_table("trl", [spec | {"trainer": "ours"} | ours, spec | {"trainer": "trl"} | trl])
    assert not spec.keys() & ours.keys(), "what was asked for is not overwritten by what was measured"
    assert len(ours["seconds_of_steps"]) == len(trl["seconds_of_steps"]) == 2
