"""The log-prob head at Qwen2-0.5B's shape: its cost in time and memory, four ways, as the number of tokens grows.

Each way computes the log-probability of given tokens, a GRPO loss on it, and its gradients with respect to the hidden
states and the output embedding. The first three compute the entropy as well, without gradient, because a trainer
reports it; Liger's loss does not offer it. As a program of its own this file measures one way at one size.
"""

import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from grpo_lab.bench.gpu.shared import seconds
from grpo_lab.bench.peak import peak_bytes
from grpo_lab.bench.process import NOT_INSTALLED, OUT_OF_MEMORY, is_installed, run_worker, worker_main
from grpo_lab.display import text_table
from grpo_lab.logprobs import chunked_logprobs_and_entropy, token_entropy, token_logprobs
from grpo_lab.objective import policy_loss
from grpo_lab.rollout import head_chunk

WORKER = "grpo_lab.bench.head"
METHODS = ("plain", "chunked", "trl", "liger")
PACKAGE = {"trl": "trl", "liger": "liger_kernel"}  # what a method needs and may not be there
ROW = 512  # tokens of a completion; fewer if there are fewer in all


def compare(
    tokens: list[int], device: str, dtype: str, repeats: int, threads: int | None, run: Callable[..., dict] = run_worker
) -> dict:
    """Measure every method at every number of tokens, each in a fresh process; what cannot run says why instead."""
    cells, setup = [], {"device": device, "dtype": dtype, "repeats": repeats, "threads": threads}
    for count in tokens:
        for method in METHODS:
            cell = {"method": method, "tokens": count}
            if method in PACKAGE and not is_installed(PACKAGE[method]):
                cell["missing"] = NOT_INSTALLED
            else:
                try:
                    cell |= run(WORKER, cell | setup)
                except MemoryError:
                    cell["missing"] = OUT_OF_MEMORY
            print(f"{count} tokens, {method}: {_show(cell)}", file=sys.stderr)
            cells.append(cell)
    return {"setup": setup, "cells": add_ratios(cells)}


def add_ratios(cells: list[dict]) -> list[dict]:
    """Each measured cell with its time and memory over those of plain at the same number of tokens, if plain ran."""
    plain = {cell["tokens"]: cell for cell in cells if cell["method"] == "plain" and "missing" not in cell}
    for cell in cells:
        if "missing" not in cell and (base := plain.get(cell["tokens"])):
            cell |= {f"{name}_ratio": cell[name] / base[name] for name in ("seconds", "memory")}
    return cells


def table(report: dict) -> str:
    """One line a number of tokens, one column a method."""
    setup, cells = report["setup"], {(cell["tokens"], cell["method"]): cell for cell in report["cells"]}
    threads = "" if setup["threads"] is None else f", {setup['threads']} thread(s)"
    unit = "seconds" if setup["device"] == "cuda" else "CPU seconds (all threads together)"
    lead = (
        f"log-prob head, forward and backward, {setup['dtype']} on {setup['device']}{threads}: {unit}, and MiB "
        "beside inputs and gradients; in brackets the ratio to plain"
    )
    rows = [[str(n), *(_show(cells[n, method]) for method in METHODS)] for n in sorted({n for n, _ in cells})]
    return f"{lead}\n{text_table(['tokens', *METHODS], rows)}"


def _show(cell: dict) -> str:
    if "missing" in cell:
        return cell["missing"]
    time, memory = (f" ({cell[key]:.2f})" if key in cell else "" for key in ("seconds_ratio", "memory_ratio"))
    return f"{cell['seconds']:.3f} s{time} {cell['memory'] / 2**20:.0f} MiB{memory}"


# --- one measurement

VOCABULARY, WIDTH = 151_936, 896  # Qwen2-0.5B
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]  # hidden (B, T, D), weight (V, D), token ids (B, T), advantages (B,)


def make_inputs(
    tokens: int, device: torch.device, dtype: torch.dtype, vocabulary: int = VOCABULARY, width: int = WIDTH
) -> Inputs:
    """The same random numbers for every method. tokens: at most a row, or whole rows."""
    generator, rows = torch.Generator(device).manual_seed(0), max(tokens // ROW, 1)
    weight = torch.randn(vocabulary, width, generator=generator, device=device, dtype=dtype).mul_(0.02)
    hidden = torch.randn(rows, tokens // rows, width, generator=generator, device=device, dtype=dtype)
    ids = torch.randint(vocabulary, hidden.shape[:2], generator=generator, device=device)
    advantages = torch.randn(rows, generator=generator, device=device)
    return hidden.requires_grad_(), weight.requires_grad_(), ids, advantages


def plain(hidden: Tensor, weight: Tensor, ids: Tensor, advantages: Tensor) -> Tensor:
    """All logits at once, as a first version does it."""
    logits = hidden @ weight.T
    token_entropy(logits.detach())
    return _loss(token_logprobs(logits, ids), advantages)


def chunked(hidden: Tensor, weight: Tensor, ids: Tensor, advantages: Tensor) -> Tensor:
    """Ours, in the trainer's chunks."""
    chunk = head_chunk(*weight.shape, weight.device.type)
    return _loss(chunked_logprobs_and_entropy(hidden, weight, ids, chunk_size=chunk)[0], advantages)


def trl(hidden: Tensor, weight: Tensor, ids: Tensor, advantages: Tensor) -> Tensor:
    """The head of TRL's GRPOTrainer, in its tiles of 4,096 tokens x 32,768 words."""
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction

    rows = hidden.reshape(-1, hidden.shape[-1])
    logp = ChunkedLogProbFunction.apply(rows, weight, None, ids.flatten(), 1.0, 32768, None, 1.0, ("entropy",))[0]
    return _loss(logp.view(ids.shape), advantages)


def liger(hidden: Tensor, weight: Tensor, ids: Tensor, advantages: Tensor) -> Tensor:
    """Liger's fused loss, a row at a time; compiled where it was made for, on a card."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    head = LigerFusedLinearGRPOLoss(beta=0.0, compiled=hidden.is_cuda, use_ref_model=False, loss_type="dapo")
    return head(hidden, weight, ids, torch.ones_like(ids), advantages)[0]


def _loss(logp: Tensor, advantages: Tensor) -> Tensor:
    return policy_loss(logp, advantages, torch.ones_like(logp, dtype=torch.bool), loss_type="dapo")[0]


def gradients(method: Callable[..., Tensor], inputs: Inputs) -> tuple[Tensor, Tensor]:
    return torch.autograd.grad(method(*inputs), inputs[:2])


def measure(spec: dict) -> dict:
    """Seconds of the fastest forward and backward pass, and the most bytes it holds beside inputs and gradients."""
    method, device = globals()[spec["method"]], torch.device(spec["device"])
    shape = {name: spec[name] for name in ("vocabulary", "width") if name in spec}
    inputs = make_inputs(spec["tokens"], device, DTYPES[spec["dtype"]], **shape)
    go = partial(gradients, method, inputs)
    peak = peak_bytes(go, device)
    # On a card the time that passes; on the CPU the time that it works on this, which other work changes little.
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    taken = [seconds(go, device, clock) for _ in range(spec["repeats"])]
    return {"seconds": min(taken), "memory": peak - sum(x.nbytes for x in inputs[:2])}


if __name__ == "__main__":
    worker_main(measure)
