"""A few steps of real training, rollouts included, in one precision mode: the peak of memory, and what was planned.

With a cap, torch refuses every allocation beyond it, so that a large card can stand in for a small one.
"""

import math
from functools import partial

import torch

from grpo_lab.bench.gpu.shared import parity_reward
from grpo_lab.bench.gpu.train import make_config, make_run
from grpo_lab.bench.peak import peak_bytes
from grpo_lab.bench.process import worker_main
from grpo_lab.memory import planning
from grpo_lab.models.shapes import shape_config
from grpo_lab.trainer import train

SAMPLE = 1000  # weights of a parameter that are compared before and after


def measure(spec: dict) -> dict:
    """Peak bytes of tensors, planned bytes, and what the steps did to the weights."""
    device = torch.device(spec["device"])
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    if spec.get("cap"):
        torch.cuda.set_per_process_memory_fraction(min(spec["cap"] / total, 1.0), device)
    done = {}
    peak = peak_bytes(lambda: done.update(train_steps(spec, device)), device)
    plan = plan_for(spec)
    return done | {
        "peak": peak,
        "reserved": torch.cuda.max_memory_reserved(device) if total else None,
        "planned": plan.peak,
    }


def train_steps(spec: dict, device: torch.device) -> dict:
    model, tokenizer, rows, config = make_run(spec, device)
    before, reached = sample_of(model), watch_gradients(model)
    history = train(model, tokenizer, rows, parity_reward, config)
    after = sample_of(model)
    moved = [(before[name] != after[name]).float().mean().item() for name in before]
    return {
        "steps": len(history),
        "finite": all(math.isfinite(step[name]) for step in history for name in ("loss", "grad_norm")),
        "nonfinite_steps": history[-1]["nonfinite_steps"],
        "parameters": len(before),
        "parameters_with_gradient": len(reached),
        "parameters_moved": sum(share > 0 for share in moved),
        "weights_moved": sum(moved) / len(moved),
        "logp_difference_max": max(step["sampling/logp_difference_max"] for step in history),
    }


def sampled(tensor: torch.Tensor) -> torch.Tensor:
    """A few of its numbers, spread over it."""
    return tensor.detach().flatten()[:: max(1, tensor.numel() // SAMPLE)]


def sample_of(model) -> dict[str, torch.Tensor]:
    return {name: sampled(p).to("cpu", copy=True) for name, p in model.named_parameters()}


def watch_gradients(model) -> set[str]:
    """The names of the parameters that a gradient other than zero reaches, filled in as training goes on."""
    reached = set()

    def note(name, parameter):
        sample = sampled(parameter.grad)
        if sample.isfinite().all() and sample.any():
            reached.add(name)

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(partial(note, name))
    return reached


def plan_for(spec: dict) -> planning.MemoryPlan:
    machine = {"precision": spec["mode"], "device_type": spec["device"]}
    return planning.plan(shape_config(spec["shape"]), make_config(spec), prompt_length=spec["prompt"], **machine)


if __name__ == "__main__":
    worker_main(measure)
