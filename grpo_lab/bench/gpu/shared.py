"""What the workers of `--gpu` share: a tokenizer for random weights, a clock, and what the machine can do at most."""

import time
from collections.abc import Callable

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from grpo_lab.precision import PRECISIONS, has_native_bf16


def make_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """A word a token: "t0", "t1", ... Its end token has the id `vocab_size`, which no model of that size can sample.

    So every completion runs to its full length, here and in TRL.
    """
    core = Tokenizer(models.WordLevel({f"t{i}": i for i in range(vocab_size)} | {"<end>": vocab_size}, unk_token="t0"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", pad_token="t0", padding_side="left")


def make_rows(prompts: int, length: int, vocab_size: int) -> list[dict]:
    """Prompts of exactly so many tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab_size, (prompts, length), generator=generator).tolist()
    return [{"prompt": " ".join(f"t{token}" for token in row)} for row in ids]


def parity_reward(completions, completion_ids, **columns) -> list[float]:
    """Random weights answer nothing right; rewards that differ all the same keep every row in the update."""
    return [float(sum(ids) % 7) for ids in completion_ids]


def fastest_dtype(device: torch.device) -> torch.dtype:
    """What the card multiplies fastest: bf16, or fp16 before the A100. On the CPU of a test: float32."""
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if has_native_bf16(device) else torch.float16


def modes_of(device: torch.device) -> list[str]:
    """The precision modes that a device is meant for; a card without bf16 would emulate it."""
    without_bf16 = device.type == "cuda" and not has_native_bf16(device)
    return ["fp32", "fp16"] if without_bf16 else list(PRECISIONS)


def seconds(call: Callable[[], object], device: torch.device) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else torch.cpu.synchronize
    wait()
    started = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - started


def fastest(call: Callable[[], object], device: torch.device) -> float:
    call()
    return min(seconds(call, device) for _ in range(5))


def copy_bandwidth(device: torch.device, size: int) -> float:
    """Bytes a second that a copy within the device's memory reads and writes, together."""
    source = torch.empty(size, dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source)
    return 2 * size / fastest(lambda: target.copy_(source), device)


def matmul_rate(device: torch.device, dtype: torch.dtype, width: int) -> float:
    """Operations a second of a product of two square matrices: the peak that a share is taken of."""
    left, right = (torch.randn(width, width, device=device, dtype=dtype) for _ in range(2))
    return 2 * width**3 / fastest(lambda: left @ right, device)
