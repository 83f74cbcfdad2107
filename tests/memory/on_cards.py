"""Run by test_cards.py under torchrun: what each process holds of a model that FSDP2 divides, and what it gathers."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from grpo_lab.models.shapes import random_policy

dist.init_process_group("gloo")
model, gathered = random_policy("small"), []
for layer in model.base_model.layers:
    fully_shard(layer)
fully_shard(model)


def gather(*_):
    gathered.append(sum(p.numel() for p in model.parameters() if not isinstance(p, DTensor)))


for layer in model.base_model.layers:
    layer.mlp.register_forward_pre_hook(gather)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.arange(12).view(2, 6)).logits.sum().backward()
optimizer.step()


def local(tensors) -> int:
    return sum(t.to_local().numel() * t.element_size() for t in tensors)


states = [state[moment] for state in optimizer.state.values() for moment in ("exp_avg", "exp_avg_sq")]
held = {
    "weights": local(model.parameters()),
    "gradients": local(p.grad for p in model.parameters()),
    "Adam's moments": local(states),
    "gathered": max(gathered),
}
torch.save(held, Path(sys.argv[1]) / f"{os.environ['RANK']}.pt")
dist.destroy_process_group()
