"""GPU memory for decoding: the number of parts of a rollout that fit into it, and whether a decoder may stay in it."""

import math

import torch

from grpo_lab.base.display import GIB
from grpo_lab.rollout.forward.attention import attention_dtype
from grpo_lab.rollout.model import head_dim

CAPTURED_LOGITS = 6  # float32 tensors of the size of the logits (softmax, noise, ...) that a captured step reserves
FREE_MEMORY_FACTOR = 4  # a decoder is kept if this many times its size is free in addition to the run's peak memory


def free_gpu_bytes(device: torch.device) -> float:
    """Return the bytes of a GPU that new tensors can use, less a margin of 1 GiB; infinity for another device.

    These are the bytes that no process uses, and the bytes that torch has reserved and does not use.
    """
    if device.type != "cuda":
        return math.inf
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return free_bytes + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device) - GIB


def parts_that_fit(model, num_prompts: int, num_generations: int, num_columns: int, free_bytes: float) -> int:
    """Return the smallest number of equal parts of a rollout such that a captured step of each part fits into memory.

    Args:
        model: The policy, a model of the fast paths.
        num_prompts, num_generations: P and G.
        num_columns: Number of columns of the cache.
        free_bytes: Bytes of free memory; infinity if memory sets no limit.
    """
    config = model.config
    logits_bytes = 4 * config.vocab_size
    numbers_per_column = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim(config)
    row_bytes = num_columns * numbers_per_column * attention_dtype(model).itemsize + CAPTURED_LOGITS * logits_bytes
    return fewest_parts(num_prompts, num_generations, row_bytes, logits_bytes, free_bytes)


def fewest_parts(num_prompts: int, num_generations: int, row_bytes: int, noise_bytes: int, free_bytes: float) -> int:
    """Return the smallest number of equal parts of a rollout such that each part fits into free memory; it divides P.

    Args:
        num_prompts, num_generations: P and G.
        row_bytes: Bytes that a row of a part needs.
        noise_bytes: Bytes of the random numbers of one row. If there are several parts, each part draws the random
            numbers of all rows of the rollout.
        free_bytes: Bytes of free memory; infinity if memory sets no limit.

    Returns:
        The number of parts; P if even parts of one prompt do not fit.
    """
    num_rows = num_prompts * num_generations
    for num_parts in range(1, num_prompts + 1):
        if num_prompts % num_parts == 0:
            all_noise_bytes = num_rows * noise_bytes if num_parts > 1 else 0
            if num_rows // num_parts * row_bytes + all_noise_bytes <= free_bytes:
                return num_parts
    return num_prompts


def has_room(device: torch.device, num_bytes: int) -> bool:
    """Return True if a GPU has room for so many bytes in addition to torch's peak memory so far, with a margin."""
    needed_bytes = torch.cuda.max_memory_reserved(device) + FREE_MEMORY_FACTOR * num_bytes + GIB
    _, total_bytes = torch.cuda.mem_get_info(device)
    return needed_bytes <= total_bytes
