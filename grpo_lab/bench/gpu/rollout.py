"""One rollout of one size: ours with a static cache, or transformers' `generate` as it comes."""

from functools import partial

import torch

from grpo_lab.bench.gpu import counts
from grpo_lab.bench.gpu.shared import copy_bandwidth, fastest_dtype, make_rows, make_tokenizer, peak_allocated, seconds
from grpo_lab.bench.process import worker_main
from grpo_lab.models.shapes import random_policy
from grpo_lab.rollout import encode_prompts, sample_completions


def measure(spec: dict) -> dict:
    """Seconds of the first rollout (with whatever an engine prepares once) and of the fastest after it; the limit."""
    device = torch.device(spec["device"])
    model = random_policy(spec["shape"], device, fastest_dtype(device))
    tokenizer = make_tokenizer(model.config.vocab_size)
    count = spec["sequences"] // spec["num_generations"]
    prompts = [row["prompt"] for row in make_rows(count, spec["prompt"], model.config.vocab_size)]
    generate = _generate if spec["engine"] == "generate" else _ours
    go = partial(generate, model, tokenizer, prompts, spec)
    first = seconds(go, device)
    fastest = min(seconds(go, device) for _ in range(spec["repeats"]))
    peak = peak_allocated(device)  # before the copy, which may take more
    bandwidth = copy_bandwidth(device, spec["copy_bytes"])
    sizes = (spec["sequences"], spec["prompt"], spec["response"], model.dtype.itemsize)
    read = counts.bytes_read(model.config, *sizes)
    return {
        "tokens": spec["sequences"] * spec["response"],
        "first_seconds": first,
        "seconds": fastest,
        "bytes_read": read,
        "bandwidth": bandwidth,
        "limit_seconds": read / bandwidth,
        "peak_memory": peak,
        "dtype": str(model.dtype).removeprefix("torch."),
    }


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
