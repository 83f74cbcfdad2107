"""A base for GRPO from random weights of any size: the tiny model's two phases, on whatever device there is.

The tiny model's own script runs a fixed number of steps, so that everybody gets the same weights. Here the skill phase
runs until worked sums come out right, or the time is over: how many steps a large model needs is not known beforehand.
"""

import contextlib
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from make_tiny_qwen2 import Phase, batch, build_optimizers, padded, take_step  # beside this file
from torch import Tensor

from grpo_lab.config.precision import PRECISIONS, autocast, has_native_bf16
from grpo_lab.evaluate import evaluate
from grpo_lab.logprobs import chunked_token_logprobs
from grpo_lab.tasks import addition_problems


@dataclass(frozen=True)
class WarmUp:
    """How long, and how fast. rate 1.0 is that of the tiny model: 0.02 for the matrices (Muon), 0.003 for the rest."""

    batch_size: int
    skill_steps: int  # at most
    habit_steps: int
    rate: float
    check_every: int  # steps of the skill phase between two looks at its accuracy
    enough: float = 0.9  # accuracy of worked sums that ends the skill phase
    rising: int = 50  # steps until the rate is reached
    problems: int = 128  # for each look


def warm_up(
    model, tokenizer, settings: WarmUp, seconds: float = float("inf"), seed: int = 0, clock: Callable = time.monotonic
) -> dict:
    """Train in place: the skill until it is there, then the habit, over which the rate falls to zero.

    Args:
        model: float32 weights; on a card with bf16 the arithmetic is bf16.
        seconds: the skill phase ends after two thirds of them, whatever its accuracy.

    Returns:
        settings, the losses of both phases, the looks at the accuracy as [step, accuracy], and the seconds taken.
    """
    rng, optimizers = random.Random(f"warm up/{seed}"), build_optimizers(model)
    full_speed = [(group, group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
    started, losses, looks = clock(), {"skill": [], "habit": []}, []

    def step(phase: str, rate: float) -> None:
        for group, speed in full_speed:
            group["lr"] = speed * settings.rate * rate
        documents = batch(tokenizer, Phase(phase, 1, settings.batch_size, 1.0), rng)
        losses[phase].append(_step(model, optimizers, documents))

    for number in range(settings.skill_steps):
        step("skill", min(1.0, (number + 1) / settings.rising))
        if (number + 1) % settings.check_every == 0:
            looks.append([number + 1, skill(model, tokenizer, settings.problems)])
            loss, accuracy = losses["skill"][-1], looks[-1][1]
            print(f"skill, step {number + 1}: loss {loss:.3f}, accuracy {accuracy:.2f}", file=sys.stderr, flush=True)
            if accuracy >= settings.enough or clock() - started > 2 / 3 * seconds:
                break
    for number in range(settings.habit_steps):
        step("habit", 0.3 * (1 - number / settings.habit_steps))
    return {"settings": asdict(settings), "loss": losses, "skill_accuracy": looks, "seconds": clock() - started}


def _step(model, optimizers: list, documents: list) -> float:
    model.train()
    with arithmetic(model.device):
        loss = mean_loss(model, documents)
    loss.backward()
    take_step(model, optimizers)
    model.eval()
    return loss.item()


def mean_loss(model, documents: list[tuple[list[int], list[int]]]) -> Tensor:
    """Cross-entropy, averaged over the tokens to be learnt; logits are made for those alone, and in chunks."""
    ids, labels = padded(documents, model.device)
    hidden, labels = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1], labels[:, 1:]
    learnt = labels != -100
    logp = chunked_token_logprobs(hidden[learnt][None], model.get_output_embeddings().weight, labels[learnt][None])
    return -logp.mean()


@torch.no_grad()
def skill(model, tokenizer, problems: int) -> float:
    """Share of right answers where the model is in the skill phase, in which it works every sum out."""
    with arithmetic(model.device):
        rows = addition_problems("train", problems, seed=7)
        return evaluate(model, tokenizer, rows, num_generations=1)["accuracy"]


def arithmetic(device: torch.device):
    """bf16 on float32 weights, where the hardware has it."""
    if not has_native_bf16(device):
        return contextlib.nullcontext()
    return autocast(device, PRECISIONS["fp32-master"])
