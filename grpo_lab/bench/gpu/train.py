"""Updates in one precision mode from completions of full length: tokens a second, and the share of the card's peak."""

from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_lab.bench.gpu.shared import fastest_dtype, make_rows, make_tokenizer, matmul_rate, seconds
from grpo_lab.bench.process import worker_main
from grpo_lab.config import GRPOConfig
from grpo_lab.models.shapes import random_policy
from grpo_lab.precision import PRECISIONS
from grpo_lab.rollout import Rollout
from grpo_lab.trainer import accumulate_gradient, update
from grpo_lab.trainer.experience import Experience
from grpo_lab.trainer.optim import PolicyOptimizer

LEARNING_RATE = 1e-5


def measure(spec: dict) -> dict:
    """Seconds of the fastest update (scoring, backward, step), and the operations of its matrix products."""
    device = torch.device(spec["device"])
    rate = matmul_rate(device, fastest_dtype(device), spec["matmul_width"])
    model = random_policy(spec["shape"], device, PRECISIONS[spec["mode"]].weights)
    config = make_config(spec)
    optimizer = PolicyOptimizer(model, config)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable()
        model.train()
    experience = make_experience(spec, model.config.vocab_size, device)
    flops = count_flops(lambda: accumulate_gradient(model, optimizer, experience, config))
    metrics = {}

    def go():
        metrics.update(update(model, optimizer, experience, config, LEARNING_RATE))

    go()  # allocates the optimizer's state
    fastest = min(seconds(go, device) for _ in range(spec["repeats"]))
    return {
        "seconds": fastest,
        "flops": flops,
        "tokens": len(experience) * (spec["prompt"] + spec["completion"]),
        "matmul_rate": rate,
        "matmul_dtype": str(fastest_dtype(device)).removeprefix("torch."),
        "grad_norm": metrics["grad_norm"],
        "nonfinite_steps": metrics["nonfinite_steps"],
    }


def count_flops(call: Callable[[], object]) -> int:
    """Multiplications and additions in matrix products, as torch counts them; what runs twice counts twice."""

    def added_product(total, a, b, **rest):  # which torch's list of products lacks
        return 2 * a[0] * a[1] * b[1]

    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: added_product}) as counter:
        call()
    return counter.get_total_flops()


def make_run(spec: dict, device: torch.device) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, list, GRPOConfig]:
    """Random weights in the mode of the spec, a tokenizer for them, and prompts for all of its steps."""
    model = random_policy(spec["shape"], device, PRECISIONS[spec["mode"]].weights)
    vocabulary, config = model.config.vocab_size, make_config(spec, max_steps=spec["steps"])
    rows = make_rows(config.prompts_per_step * spec["steps"], spec["prompt"], vocabulary)
    return model, make_tokenizer(vocabulary), rows, config


def make_config(spec: dict, **settings) -> GRPOConfig:
    rows = spec["rows"]
    per_device = spec.get("per_device", rows)
    return GRPOConfig(
        precision=spec["mode"],
        num_generations=spec["num_generations"],
        generation_batch_size=rows,
        per_device_train_batch_size=per_device,
        gradient_accumulation_steps=rows // per_device,
        max_completion_length=spec["completion"],
        gradient_checkpointing=spec["checkpointing"],
        learning_rate=spec.get("learning_rate", LEARNING_RATE),
        warmup_steps=0,
        save_steps=0,
        disable_tqdm=True,
        **settings,
    )


def make_experience(spec: dict, vocab_size: int, device: torch.device) -> Experience:
    """Random prompts and completions, every token in the loss, no advantage zero."""
    generator = torch.Generator().manual_seed(0)
    row = torch.arange(spec["rows"], device=device)
    prompt_of_row = row // spec["num_generations"]
    prompt_shape = (spec["rows"] // spec["num_generations"], spec["prompt"])
    prompt_ids = torch.randint(vocab_size, prompt_shape, generator=generator).to(device)
    completion_ids = torch.randint(vocab_size, (len(row), spec["completion"]), generator=generator).to(device)
    prompt_mask, mask, truncated = (torch.ones_like(x, dtype=torch.bool) for x in (prompt_ids, completion_ids, row))
    nothing = torch.zeros(mask.shape, device=device)
    prompts = (prompt_ids, prompt_mask, prompt_of_row)
    rollout = Rollout(*prompts, completion_ids, mask, nothing, nothing, truncated, [""] * len(row))
    advantages = torch.where(row % 2 == 0, 1.0, -1.0)
    return Experience(rollout, advantages, advantages, mask)


if __name__ == "__main__":
    worker_main(measure)
