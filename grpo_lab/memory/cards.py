"""What each of N cards holds where FSDP2 divides the model among them (`--engine trl --fsdp`): a plan, by part.

It is not the plan of our own loop on one card (`planning`): the engine shares no prompt among the answers, and makes
all logits of a micro-batch at once. What vLLM and NCCL take beside it is not counted.
"""

from dataclasses import replace

import torch

from grpo_lab.commands.checks import check_at_least, check_choice
from grpo_lab.commands.display import GIB, text_table
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import PRECISIONS
from grpo_lab.memory import parts, phases
from grpo_lab.memory.phases import Setting
from grpo_lab.models.shapes import shape_of, without_weights

DIVIDED = ("fp32-master", "fp32")  # modes of the engine that keep what this counts


def share(parameter: torch.Tensor, cards: int) -> int:
    """Numbers of a parameter on the card that has the most: FSDP2 deals out its rows, ceil(rows / cards) to each."""
    return -(-parameter.shape[0] // cards) * parameter[0].numel()


def plan_cards(
    model_config, config: GRPOConfig, *, cards: int, prompt_length: int, precision: str = "fp32-master"
) -> dict[str, int]:
    """Part -> bytes on each of so many cards, at the start of the backward pass, where most of it is alive.

    Args:
        model_config: a transformers configuration of Qwen2's kind.
        config: the run; its `per_device_train_batch_size` is shared among the cards, and one row is the least.
        cards: how many hold the model together.
        prompt_length: tokens of the longest prompt.
        precision: "fp32-master" (float32 weights, bfloat16 products) or "fp32".

    Raises:
        ValueError: for arguments out of range.
    """
    check_at_least("cards", cards, 1)
    check_at_least("prompt_length", prompt_length, 1)
    check_choice("precision", precision, DIVIDED)
    model = without_weights(model_config)
    held = sum(share(parameter, cards) for parameter in model.parameters())
    layer = sum(parameter.numel() for parameter in model.base_model.layers[0].parameters())
    rest = sum(p.numel() for p in model.parameters()) - layer * len(model.base_model.layers)
    rows = max(1, config.rows_at_once // cards)
    sizes = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": 1}
    each = replace(config, generation_batch_size=rows * config.num_generations, **sizes)
    setting = Setting(shape_of(model_config), each, PRECISIONS[precision], prompt_length, "cuda", chunked=False)
    setting.tokens = rows * setting.length
    whole = {} if cards == 1 else {
        "gathered: two layers, embedding, head": parts.weight_bytes(2 * layer + rest, setting.product),
        "their gradients, not yet divided": parts.weight_bytes(layer + rest, setting.product),
    }  # fmt: skip
    return {
        "weights": parts.weight_bytes(held, setting.weight),
        "gradients": parts.weight_bytes(held, setting.weight),
        "Adam's moments": parts.adam_bytes(held, setting.weight),
        **whole,
        "activations": phases.activations(setting),
        "logits": parts.head_update_bytes(setting.shape, setting.completion_tokens, setting.chunk, setting.weight),
    }


def cards_table(model_config, config: GRPOConfig, *, cards: int, **about) -> str:
    """The plans for 1, 2, 4, ... and `cards` cards beside each other, in GiB of each card."""
    check_at_least("cards", cards, 1)
    counts = sorted({2**k for k in range(cards.bit_length())} | {cards})
    plans = [plan_cards(model_config, config, cards=count, **about) for count in counts]
    rows = [[part, *(f"{plan.get(part, 0) / GIB:.2f}" for plan in plans)] for part in plans[-1]]
    rows.append(["together", *(f"{sum(plan.values()) / GIB:.2f}" for plan in plans)])
    return text_table(["GiB on each card", *map(str, counts)], rows)
