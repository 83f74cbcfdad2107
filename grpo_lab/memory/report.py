"""What a plan comes to in a few lines: whether it fits, what to change if not; and what a run says before it begins."""

import torch

from grpo_lab.config import GRPOConfig
from grpo_lab.display import GIB
from grpo_lab.memory.planning import RESERVE, MemoryPlan, plan
from grpo_lab.precision import precision_of
from grpo_lab.rollout import encode_prompts

PROMPTS = 200  # whose length is looked at before a run


def advice_lines(planned: MemoryPlan, budget: int) -> list[str]:
    """Whether it fits, and if not, what to change."""
    sizes = f"{planned.peak / GIB:.2f} GiB of tensors and {RESERVE / GIB:.2f} GiB for CUDA itself"
    if planned.fits(budget):
        return [f"It fits into {budget / GIB:.2f} GiB: {sizes}."]
    changes = planned.advice(budget)
    numbered = [f"  {number}. {change}" for number, change in enumerate(changes, 1)]
    enough = bool(changes) and changes[-1].peak + RESERVE <= budget
    end = "Then it fits." if enough else "Even then it does not fit: a smaller model, or a larger card."
    return [f"It does not fit into {budget / GIB:.2f} GiB: {sizes}.", *numbered, end]


def announce(model, tokenizer, rows, config: GRPOConfig) -> None:
    """Before a run on a card: the plan in one line, and a warning with advice where the free memory is less."""
    if model.device.type != "cuda":
        return
    some = [rows[index]["prompt"] for index in range(min(len(rows), PROMPTS))]
    free, total = torch.cuda.mem_get_info(model.device)
    planned = plan(
        model.config,
        config,
        prompt_length=encode_prompts(tokenizer, some)[0].shape[1],
        precision=precision_of(model, config).name,
        card_memory=total,
    )
    print(planned.short())
    budget = free + torch.cuda.memory_allocated(model.device)  # the model, which the plan counts too, is there already
    if not planned.fits(budget):
        print("warning:", *advice_lines(planned, budget), sep="\n")
