"""The device of a model, its precision there, and what a process sets for a model on its CPU."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import PRECISIONS, pick_precision, possible_precisions
from grpo_lab.models import device as device_module
from grpo_lab.models import load_policy
from grpo_lab.models.device import (
    describe_device,
    keep_freed_memory_unless_tiny,
    one_thread_if_tiny,
    pick_device,
    pick_device_and_precision,
)
from grpo_lab.train import make_plan
from grpo_lab.train.checks import plan_lines
from grpo_lab.train.engines.engine import OurEngine, TrlEngine

pytestmark = pytest.mark.usefixtures("bare_machine")


@pytest.fixture
def fake_gpu(monkeypatch):
    """Pretend that there is one GPU, which supports bf16 or does not."""

    def pretend(bf16: bool) -> torch.device:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "device", nullcontext)
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda including_emulation=True: bf16 or including_emulation
        )
        return torch.device("cuda")

    return pretend


@pytest.mark.parametrize("bf16", [True, False])
def test_precision_follows_the_gpu(fake_gpu, bf16: bool):
    device = fake_gpu(bf16)
    assert pick_device() == device
    assert pick_device_and_precision() == (device, PRECISIONS["bf16" if bf16 else "fp16"])
    assert pick_device_and_precision(exact_only=True) == (device, PRECISIONS["fp32"])
    assert pick_device_and_precision("cuda", "bf16-naive") == (device, PRECISIONS["bf16-naive"])
    assert pick_device_and_precision("cpu") == (torch.device("cpu"), PRECISIONS["fp32"])


def test_without_a_gpu_the_device_is_the_cpu_in_fp32():
    assert pick_device() == torch.device("cpu")
    assert pick_device_and_precision() == (torch.device("cpu"), PRECISIONS["fp32"])


def test_a_device_is_described_in_one_line(fake_gpu, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for threads, words in ((1, "1 torch thread"), (2, "2 torch threads")):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert describe_device("cpu") == f"CPU (x86_64), {words}"
    fake_gpu(bf16=True)
    properties = SimpleNamespace(name="NVIDIA H200", total_memory=int(139.75 * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for device in (None, "cuda", "cuda:0"):
        assert describe_device(device) == "NVIDIA H200 (cuda:0), 139.8 GiB"


@pytest.mark.parametrize("bf16", [True, False])
def test_every_choice_of_a_precision_is_one_of_the_possible_ones(fake_gpu, bf16: bool):
    """One list gives the default of `load_policy`, the first choice of TRL and adapters, and a requested precision."""
    device, cpu = fake_gpu(bf16), torch.device("cpu")
    modes = ("fp32-master", "bf16") if bf16 else ("fp16",)
    assert possible_precisions(device) == modes
    assert possible_precisions(None) == ("fp32-master", "bf16")
    assert pick_precision(device).name == modes[-1]
    for engine in (TrlEngine(), OurEngine(lora={})):
        assert (engine.precision(GRPOConfig(), device, has_tiny_model=False) or pick_precision(device).name) == modes[0]
        assert engine.precision(GRPOConfig(), device, has_tiny_model=True) is None
    for other_device, exact_only in ((device, True), (cpu, False), (cpu, True), (None, True)):
        assert possible_precisions(other_device, exact_only=exact_only) == ("fp32",)
    for requested in PRECISIONS:
        assert (
            possible_precisions(device, requested)
            == possible_precisions(None, requested, exact_only=True)
            == (requested,)
        )


def test_a_wrong_device_lists_what_is_allowed(fake_gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("gpu", "tpu:0", "meta", "cuda"):
        with pytest.raises(ValueError, match=f"device is '{device}'; expected None or one of cpu"):
            pick_device(device)
    fake_gpu(bf16=True)
    with pytest.raises(ValueError, match="device is 'cuda:3'; expected None or one of cpu, cuda:0: the devices"):
        pick_device("cuda:3")


def test_small_models_get_one_thread_unless_the_user_chose(tiny, monkeypatch):
    chosen = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    one_thread_if_tiny(tiny[0])
    assert chosen == []
    monkeypatch.delenv("OMP_NUM_THREADS")
    one_thread_if_tiny(tiny[0])
    assert chosen == [1]


@pytest.mark.parametrize(("tiny_below", "calls"), [(1, 1), (10**9, 0)])
def test_a_real_model_on_a_cpu_lets_the_process_keep_freed_memory(tiny_below, calls, checkpoint, monkeypatch):
    counted = []
    monkeypatch.setattr(device_module, "keep_freed_memory", lambda: counted.append(1))
    monkeypatch.setattr("grpo_lab.config.defaults.TINY_BELOW", tiny_below)
    keep_freed_memory_unless_tiny(load_policy(checkpoint, device="cpu")[0])
    assert len(counted) == calls


def test_a_dry_run_of_a_tiny_model_on_a_gpu_plans_its_memory_in_the_precision_that_it_is_loaded_in(fake_gpu):
    plan = make_plan({"model": "tiny", "output_dir": "out", "max_steps": 1})
    on_gpu = replace(plan, device=fake_gpu(bf16=True))
    assert "parameters, fp32;" in "\n".join(plan_lines(on_gpu))
