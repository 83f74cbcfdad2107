"""The device of a model, its precision there, and what a process sets for a model on its CPU."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from grpo_lab.config import GRPOConfig
from grpo_lab.config import precision as precision_module
from grpo_lab.config.precision import PRECISIONS, pick_precision, possible_precisions
from grpo_lab.models import device as device_module
from grpo_lab.models import load_policy, loading
from grpo_lab.models.device import (
    describe_device,
    keep_freed_memory_unless_tiny,
    one_thread_if_tiny,
    pick_device,
)
from grpo_lab.models.folders import count_parameters
from grpo_lab.train import make_plan
from grpo_lab.train.checks import dry_run_lines
from grpo_lab.train.engines import OurEngine, TrlEngine
from tests.support.small_policy import make_policy

TINY, LARGE = 100_000, 100_000_000  # numbers of parameters of a model that counts as tiny, and of one that does not

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
    assert pick_precision(device, 10_000_000) == PRECISIONS["bf16" if bf16 else "fp16"]
    assert pick_precision(device, 9_999_999) == PRECISIONS["fp32"]
    assert pick_precision(device, 9_999_999, "bf16-naive") == PRECISIONS["bf16-naive"]
    assert pick_precision(torch.device("cpu"), 10_000_000) == PRECISIONS["fp32"]


def test_without_a_gpu_the_device_is_the_cpu_in_fp32():
    assert pick_device() == torch.device("cpu")
    assert pick_precision(pick_device(), LARGE) == PRECISIONS["fp32"]


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
    assert possible_precisions(device, LARGE) == modes
    assert possible_precisions(None, LARGE) == ("fp32-master", "bf16")
    assert pick_precision(device, LARGE).name == modes[-1]
    for engine in (TrlEngine(), OurEngine(lora={})):
        assert (engine.loading_precision(GRPOConfig(), device, LARGE) or pick_precision(device, LARGE).name) == modes[0]
        assert engine.loading_precision(GRPOConfig(), device, TINY) is None
    for other_device, parameters in ((device, TINY), (cpu, LARGE), (cpu, TINY), (None, TINY)):
        assert possible_precisions(other_device, parameters) == ("fp32",)
    for requested in PRECISIONS:
        assert possible_precisions(device, LARGE, requested) == (requested,)
        assert possible_precisions(None, TINY, requested) == (requested,)


@pytest.mark.parametrize("stored_as", [torch.float32, torch.bfloat16])
def test_load_policy_chooses_the_precision_by_parameters_and_not_by_bytes(stored_as, tmp_path, monkeypatch):
    """The same number of parameters has one precision, in whichever type it is stored: that of the commands."""
    policy, tokenizer = make_policy()
    policy.to(stored_as).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    count, loaded = count_parameters(tmp_path), []
    # A GPU that is only asked for: the model stays on the CPU.
    monkeypatch.setattr(precision_module, "has_native_bf16", lambda device: True)
    monkeypatch.setattr(loading, "pick_device", lambda device=None: torch.device("cuda"))
    monkeypatch.setattr(loading, "_load_model", lambda folder, dtype, device: loaded.append(dtype) or policy)
    monkeypatch.setattr(loading, "ensure_checked", lambda model: None)
    monkeypatch.setattr(loading, "describe_device", lambda device: "a GPU")
    for tiny_below, dtype in ((count, torch.bfloat16), (count + 1, torch.float32)):
        monkeypatch.setattr("grpo_lab.config.defaults.TINY_BELOW", tiny_below)
        load_policy(tmp_path)
        engine_choice = OurEngine(lora={}).loading_precision(GRPOConfig(), torch.device("cuda"), count)
        assert loaded[-1] == dtype and engine_choice == ("fp32-master" if dtype == torch.bfloat16 else None)


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
    assert "parameters, fp32;" in "\n".join(dry_run_lines(on_gpu))
