"""One rollout of one size: ours with a static cache, or transformers' `generate` as it comes."""

from functools import partial

import torch

from grpo_lab.bench.gpu.shared import copy_bandwidth, fastest_dtype, make_rows, make_tokenizer, seconds
from grpo_lab.bench.process import worker_main
from grpo_lab.memory.parts import cache_bytes, weight_bytes
from grpo_lab.models.shapes import random_policy, shape_of
from grpo_lab.rollout import encode_prompts, sample_completions


def measure(spec: dict) -> dict:
    """Seconds of the fastest rollout after the first, and the limit."""
    device = torch.device(spec["device"])
    model = random_policy(spec["shape"], device, fastest_dtype(device))
    tokenizer = make_tokenizer(model.config.vocab_size)
    count = spec["sequences"] // spec["num_generations"]
    prompts = [row["prompt"] for row in make_rows(count, spec["prompt"], model.config.vocab_size)]
    generate = _generate if spec["engine"] == "generate" else _ours
    go = partial(generate, model, tokenizer, prompts, spec)
    go()  # with whatever an engine prepares once
    fastest = min(seconds(go, device) for _ in range(spec["repeats"]))
    bandwidth = copy_bandwidth(device, spec["copy_bytes"])
    sizes = (spec["sequences"], spec["prompt"], spec["response"], model.dtype.itemsize)
    read = bytes_read(model.config, *sizes)
    return {
        "tokens": spec["sequences"] * spec["response"],
        "seconds": fastest,
        "bytes_read": read,
        "bandwidth": bandwidth,
        "limit_seconds": read / bandwidth,
        "dtype": str(model.dtype).removeprefix("torch."),
    }


def bytes_read(config, rows: int, prompt: int, response: int, bytes_per_number: int) -> int:
    """The least that sampling `rows` responses has to read: at each token all weights, and every key and value so far.

    Reading the prompts themselves is left out, and of an input embedding that is not tied only a row is read.
    """
    shape = shape_of(config)
    numbers = shape.parameters - (0 if shape.tied else shape.vocabulary * shape.width)
    tokens_before = rows * sum(prompt + step for step in range(response))
    return response * weight_bytes(numbers, bytes_per_number) + cache_bytes(shape, tokens_before, bytes_per_number)


def _ours(model, tokenizer, prompts: list[str], spec: dict) -> torch.Tensor:
    sizes = (spec["num_generations"], spec["response"])
    return sample_completions(model, tokenizer, prompts, *sizes, cache_implementation=spec["engine"]).completion_ids


@torch.no_grad()
def _generate(model, tokenizer, prompts: list[str], spec: dict) -> torch.Tensor:
    """As a first version does it: the prompts repeated, nothing shared, nothing recorded."""
    group = spec["num_generations"]
    ids, mask = (x.to(model.device).repeat_interleave(group, 0) for x in encode_prompts(tokenizer, prompts))
    sequences = model.generate(
        ids,
        attention_mask=mask.long(),
        do_sample=True,
        top_k=0,
        max_new_tokens=spec["response"],
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return sequences[:, ids.shape[1] :]


if __name__ == "__main__":
    worker_main(measure)
