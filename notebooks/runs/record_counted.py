"""Count the memory of an update of Qwen2-0.5B at its true size, in counted.json, for notebook 08.

PYTHONPATH=. python notebooks/runs/record_counted.py           two minutes on one core; no GPU, and no weights
PYTHONPATH=. python notebooks/runs/record_counted.py --long    only the answers of 8,192 to 32,000 tokens
PYTHONPATH=. python notebooks/runs/record_counted.py --card    instead two steps of training on this machine's GPU

The weights are fake tensors: shapes without values. The training code runs forward and backward on two micro-batches of
them, and the bytes of all live tensors are counted. So this counts tensors, as the memory plan does, and computes no
values. Neither the count nor the plan includes the memory that CUDA and its allocator need besides.

On a GPU the weights are random, and torch's count of all allocations in two real steps is recorded.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import patch

import torch
from record_smollm2 import with_adapters
from recording import HERE, read_json
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import Qwen2ForCausalLM
from transformers.initialization import no_init_weights

from grpo_lab.bench.process import run_in_process
from grpo_lab.bench.record import describe_machine, write_json
from grpo_lab.config import GRPOConfig
from grpo_lab.config.defaults import default_settings
from grpo_lab.config.precision import PRECISIONS
from grpo_lab.memory import GPU_PRECISIONS, plan_memory
from grpo_lab.memory.phases import resident_bytes
from grpo_lab.models.shapes import shape_config
from grpo_lab.rollout import compute_logprobs
from grpo_lab.rollout.forward import model_logprobs
from grpo_lab.tasks import TASKS
from tests.support.known_shape import LONG, measure
from tests.support.peak import LiveStorages

PROMPT = 448  # tokens
LONG_WAYS = [
    (mode, tokens, rows) for mode in GPU_PRECISIONS[True] for tokens in (8192, 16384, 32000) for rows in (1, 8)
]
COUNTED = [("bf16", 2048, 1), ("bf16", 8192, 1)]  # two sizes only, because long answers are slow to count
WAYS = [(mode, checkpointing) for mode in PRECISIONS for checkpointing in (False, True)]


def make_plan(mode: str, checkpointing: bool, **changes):
    """Return the memory plan of notebook 08's run in one precision mode; `changes` replaces other settings."""
    settings = default_settings(494_032_768, TASKS["gsm8k"], "cuda") | {"gradient_checkpointing": checkpointing}
    settings |= changes
    return plan_memory(shape_config("qwen2"), GRPOConfig(**settings), prompt_length=PROMPT, precision=mode)


def long_answers(tokens: int, rows: int) -> dict:
    """Return settings for eight answers of `tokens` tokens to one prompt, with `rows` rows per micro-batch."""
    sizes = {"num_generations": 8, "generation_batch_size": 8, "max_completion_length": tokens}
    return sizes | {"per_device_train_batch_size": rows, "gradient_accumulation_steps": 8 // rows}


def planned_bytes(mode: str, checkpointing: bool, **changes) -> int:
    """Return the planned peak of an update, in bytes beyond weights and moments."""
    memory_plan = make_plan(mode, checkpointing, **changes)
    return memory_plan.totals["update"] - sum(resident_bytes(memory_plan.sizes).values())


def counted_bytes(mode: str, checkpointing: bool, lora: bool = False, **changes) -> int:
    """Return the peak bytes of two micro-batches on fake tensors; LoRA computes its products in bf16."""
    config = make_plan(mode, checkpointing, **changes).sizes.config
    rows, T = config.microbatch_size, config.max_completion_length
    # Rows share nothing but the prompt of their group, which is the worst case that the plan assumes.
    prompts = torch.arange(max(rows // config.num_generations, 1) * PROMPT).view(-1, PROMPT)
    prompt_of_row = torch.arange(rows) // config.num_generations
    completions = torch.arange(rows * T).view(rows, T)
    batch = (prompts, prompts >= 0, completions, completions >= 0, prompt_of_row)
    with FakeTensorMode(allow_non_fake_inputs=True), no_init_weights():
        model = Qwen2ForCausalLM._from_config(shape_config("qwen2"), dtype=PRECISIONS[mode].weights)
        model.tie_weights()  # a model without initialisation has untied embeddings
        if lora:
            with patch.object(torch.nn.Module, "to", lambda module, *_, **__: module):  # a fake weight cannot be moved
                model = with_adapters(model)
    if checkpointing:
        model.gradient_checkpointing_enable()
    model.train()
    chunk, products = model_logprobs.head_chunk_tokens, PRECISIONS["fp32-master" if lora else mode].autocast
    with patch.object(model_logprobs, "head_chunk_tokens", lambda *sizes: chunk(*sizes[:-1], "cuda")):
        with LiveStorages() as live_storages:
            for _ in range(2):
                with torch.autocast(model.device.type, products, enabled=products is not None):
                    logp, _ = compute_logprobs(model, *batch, with_entropy=False)
                logp.sum().backward()
    return live_storages.peak


def count_short() -> list[dict]:
    return [
        {
            "mode": mode,
            "checkpointing": checkpointing,
            "planned": planned_bytes(mode, checkpointing),
            "counted": counted_bytes(mode, checkpointing),
        }
        for mode, checkpointing in WAYS
    ]


def count_long() -> dict:
    """Return planned peaks of steps with answers too long for a mask, and planned and counted peaks of updates."""
    peaks = [
        {"mode": mode, "tokens": tokens, "rows": rows, "peak": make_plan(mode, True, **long_answers(tokens, rows)).peak}
        for mode, tokens, rows in LONG_WAYS
    ]
    updates = [
        {"mode": mode, "tokens": tokens, "rows": rows}
        | {"planned": planned_bytes(mode, True, **long_answers(tokens, rows))}
        | {"counted": counted_bytes(mode, True, **long_answers(tokens, rows))}
        for mode, tokens, rows in COUNTED
    ]
    return {"planned": peaks, "updates": updates}


def measure_on_gpu() -> dict:
    """Measure the peak memory of two steps with 8 answers of 512 tokens, in each way of `WAYS`, and its plan."""
    specs = [
        LONG | {"mode": mode, "checkpointing": checkpointing, "shape": "qwen2", "device": "cuda"}
        for mode, checkpointing in WAYS
    ]
    with ThreadPoolExecutor(2) as pool:
        measured = list(pool.map(partial(run_in_process, measure), specs))
    names = ("peak", "reserved", "planned", "finite")
    runs = [spec | {name: numbers[name] for name in names} for spec, numbers in zip(specs, measured, strict=True)]
    return {
        "what": "bytes at the peak of a step, measured on a card",
        "machine": describe_machine("cuda"),
        "runs": runs,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    file = HERE / "counted.json"
    if "--long" in sys.argv:
        contents = read_json(file) | {"long": count_long()}
    elif "--card" in sys.argv:
        contents = read_json(file) | {"card": measure_on_gpu()}
    else:
        about = "bytes of tensors in an update of Qwen2-0.5B beyond weights and moments, "
        about += "torch's FakeTensorMode, no card"
        contents = {"what": about, "second": "exact", "torch": torch.__version__, "runs": count_short()}
        contents["lora"] = {
            "mode": "bf16",
            "checkpointing": True,
            "rank": 16,
            "counted": counted_bytes("bf16", True, lora=True),
        }
        contents["long"] = count_long()
    write_json(file, contents)
