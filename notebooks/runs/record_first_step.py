"""Record how far the first step of GRPO moves SmolLM2's weights in each precision, in first_step.json, for notebook 08.

python notebooks/runs/record_first_step.py      some minutes on one core
"""

import torch
from record_smollm2 import COMMON  # a script in this folder
from recording import HERE
from torch.optim.optimizer import register_optimizer_step_pre_hook

from grpo_lab.bench.record import write_json
from grpo_lab.config import GRPOConfig
from grpo_lab.models import load_policy
from grpo_lab.rewards import last_number_reward
from grpo_lab.tasks.short_sums import short_sums
from grpo_lab.trainer import train

MICRO = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4}


def first_step(mode: str, warmup_steps: int) -> dict:
    """Return the mean move of a weight in one step, in units of the step's learning rate.

    Args:
        mode: Precision mode.
        warmup_steps: Steps of linear warm-up, which set the learning rate of the first step.

    Returns:
        The mean move of all weights ("all"), of the tied embedding ("embedding") and of other weights ("rest"); for the
        embedding also the move by Adam's formula ("asked") and the share of gradients below 1e-8 ("below").
    """
    model, tokenizer = load_policy("smollm2", "cpu", mode)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    settings = COMMON | MICRO | {"max_steps": 1, "warmup_steps": warmup_steps, "precision": mode, "disable_tqdm": True}
    gradient_measures = {}

    def measure_gradient(*_):  # called after clipping, so Adam receives this gradient
        g = model.get_input_embeddings().weight.grad.double().abs()
        gradient_measures.update(asked=(g / (g + 1e-8)).mean().item(), below=(g < 1e-8).double().mean().item())

    hook = register_optimizer_step_pre_hook(measure_gradient)
    (metrics,) = train(model, tokenizer, short_sums("train"), last_number_reward, GRPOConfig(**settings))
    hook.remove()
    rate, sums = metrics["learning_rate"], {"embedding": [0.0, 0], "rest": [0.0, 0]}
    for name, p in model.named_parameters():
        total_and_count = sums["embedding" if "embed" in name else "rest"]
        total_and_count[0] += (p.detach().float() - start[name].float()).abs().double().sum().item()
        total_and_count[1] += p.numel()
    total = [sum(values) for values in zip(*sums.values(), strict=True)]
    means = {name: round(moved / count / rate, 4) for name, (moved, count) in (sums | {"all": total}).items()}
    means |= {name: round(value, 4) for name, value in gradient_measures.items()}
    return {"mode": mode, "warmup_steps": warmup_steps, "learning_rate": rate} | means


if __name__ == "__main__":
    torch.set_num_threads(1)
    arms = (("fp32-master", 5), ("fp32-master", 0), ("bf16", 0), ("bf16-naive", 0))
    about = "SmolLM2-135M-Instruct, seed 0; 2 cores, x86-64, no card"
    runs = [first_step(*arm) for arm in arms]
    write_json(HERE / "first_step.json", {"what": about, "second": "in this run", "runs": runs})
