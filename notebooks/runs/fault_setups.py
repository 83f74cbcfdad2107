"""Define the tasks, the rewards and the patches of the runs in `faults_planted.py`: short runs of the tiny model.

A patch plants a fault as a wrong line in the loop. Each of its functions takes the engine and the model, and returns a
patch that is in force within a `with` statement, or makes such a function.
"""

import contextlib
import copy
import io
import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from unittest.mock import patch

import torch

from grpo_lab.config import GRPOConfig
from grpo_lab.kl import kl_estimate
from grpo_lab.models import load_policy
from grpo_lab.models.adapters import frozen_copy
from grpo_lab.objective import microbatch_loss, token_mean
from grpo_lab.rewards import accuracy_reward, contains_reward
from grpo_lab.rewards.text import completion_text
from grpo_lab.rollout.sample import sample_prompts
from grpo_lab.tasks import addition_problems, chat_tasks, word_problems
from grpo_lab.trainer import train

OURS, TRL = "ours", "trl"  # the engines
BOTH = (OURS, TRL)
# Settings that all runs share, unless a run replaces them.
COMMON = {
    "num_generations": 8,
    "generation_batch_size": 64,
    "learning_rate": 2e-4,
    "warmup_steps": 0,
    "max_steps": 30,
    "disable_tqdm": True,
}


def load_tiny(precision: str | None = None) -> tuple:
    """Load the tiny model and its tokenizer without printing."""
    with contextlib.redirect_stdout(io.StringIO()):
        return load_policy("tiny", device="cpu", precision=precision)


# ---- tasks


def with_answer_start(rows: list[dict], begin: str) -> list[dict]:
    """Return sums whose prompt contains the beginning of the reply: "<answer>" for a guess, "<think>" for a thought.

    A guess then has five tokens, and a step takes 0.1 s.
    """
    tokenizer = load_tiny()[1]
    texts = [tokenizer.apply_chat_template(r["prompt"], tokenize=False, add_generation_prompt=True) for r in rows]
    return [{"prompt": text + begin, "answer": row["answer"]} for text, row in zip(texts, rows, strict=True)]


@cache
def problems(task: str, split: str, seed: int) -> list[dict]:
    """Return the problems of a task's split.

    "few" after the task's name keeps four training problems; "shifted" makes their answers 40 too large. Neither
    changes the held-out problems.
    """
    name, _, variation = task.partition(" ")
    few, shifted = (variation == word and split == "train" for word in ("few", "shifted"))
    count = 4 if few else {"train": 2000, "test": 32}[split]
    if name == "chat":
        return chat_tasks("zh")
    if name == "stories":
        return word_problems(split, count, seed)
    rows = addition_problems(split, count, seed=seed if split == "train" else 1)
    begin = {"sums": None, "guess": "<answer>", "work": "<think>"}[name]
    rows = rows if begin is None else with_answer_start(rows, begin)
    return [row | {"answer": str(int(row["answer"]) + 40)} for row in rows] if shifted else rows


# ---- rewards


def number_in(completion) -> int | None:
    match = re.search(r"\d+", completion_text(completion))
    return None if match is None else int(match[0])


def right(completions, answer, **_) -> list[float]:
    """Return 1 for the right number in a reply that the prompt has begun with "<answer>"."""
    return [float(number_in(c) == int(a)) for c, a in zip(completions, answer, strict=True)]


def worked(completions, answer, **_) -> list[float]:
    """Return 1 for the right answer after a chain of thought that the prompt has begun."""
    return accuracy_reward([f"<think>{c}" for c in completions], answer)


def near(completions, answer, **_) -> list[float]:
    """Return a reward from 0 to 1 that rises as the number comes near the right one."""
    numbers = [number_in(c) for c in completions]
    return [0.0 if n is None else math.exp(-abs(n - int(a)) / 25) for n, a in zip(numbers, answer, strict=True)]


def even(completions, **_) -> list[float]:
    return [float((number_in(c) or 1) % 2 == 0) for c in completions]


def has_seven(completions, **_) -> list[float]:
    return [float("7" in completion_text(c)) for c in completions]


def has_number(completions, **_) -> list[float]:
    return [float(number_in(c) is not None) for c in completions]


def boxed(completions, answer, **_) -> list[float]:
    r"""Return 1 for \boxed{} around the answer, a form that the tiny model never writes."""
    return [float(f"\\boxed{{{a}}}" in completion_text(c)) for c, a in zip(completions, answer, strict=True)]


def mean_near(completions, answer, **_) -> list[float]:
    """Return the mean reward of the batch for each completion, which is the planted mistake."""
    values = near(completions, answer)
    return [sum(values) / len(values)] * len(values)


def odd(completions, **_) -> list[float]:
    return [1.0 - value for value in even(completions)]


def two_digits(completions, **_) -> list[float]:
    return [float((number_in(c) or 999) < 100) for c in completions]


def wordy(completions, **_) -> list[float]:
    return [len(completion_text(c)) / 40 for c in completions]


def now_and_then_huge(completions, answer, **_) -> list[float]:
    """Return rewards of which one in 500 is a thousand times too large, which is the planted mistake."""
    return [value * (1000 if random.random() < 1 / 500 else 1) for value in near(completions, answer)]


# ---- patches

Patch = Callable[[str, object], contextlib.AbstractContextManager]


def no_patch(engine: str, model) -> contextlib.AbstractContextManager:
    """Change nothing."""
    return contextlib.nullcontext()


def patch_loss(change: Callable) -> Patch:
    """Return a patch of our loss that calls change(loss, logp, mask, num_items, settings) for the new loss."""

    def changed(logp, advantages, mask, rows, num_items, **settings):
        loss, metrics = microbatch_loss(logp, advantages, mask, rows, num_items, **settings)
        return change(loss, logp, mask, num_items, settings), metrics

    return patch("grpo_lab.trainer.loop.microbatch_loss", changed)


def patch_trl_loss(change_inputs: Callable = dict, change: Callable = lambda loss: loss):
    """Return a patch of TRL's loss that changes the inputs with `change_inputs`, and the loss with `change`."""
    from grpo_lab.train.trl.trainer import TrlTrainer

    original = TrlTrainer._compute_loss

    def changed(self, model, inputs):
        return change(original(self, model, change_inputs(inputs)))

    return patch.object(TrlTrainer, "_compute_loss", changed)


def patch_trl_trainer(change: Callable):
    """Return a patch that calls `change` with each new trainer of TRL."""
    from grpo_lab.train.trl import run

    original = run.make_trainer

    def make_changed_trainer(*args, **kwargs):
        trainer = original(*args, **kwargs)
        change(trainer)
        return trainer

    return patch.object(run, "make_trainer", make_changed_trainer)


def kl_sign(engine: str, model):
    """Reward divergence from the reference, the mistake `kl-sign`."""
    if engine == TRL:
        return patch_trl_trainer(lambda trainer: setattr(trainer, "beta", -trainer.beta))

    def change(loss, logp, mask, num_items, settings):
        kl = kl_estimate(logp, torch.where(mask, settings["ref_logp"], 0), settings["kl_estimator"])
        return loss - 2 * settings["beta"] * token_mean(torch.where(mask, kl, 0), mask, num_items)

    return patch_loss(change)


def untrained_reference(engine: str, model):
    """Make the base model the reference of a policy that was trained before."""
    base = copy.deepcopy(model)
    rows, config = problems("guess", "train", 99), GRPOConfig(**COMMON | {"max_steps": 12, "learning_rate": 5e-4})
    train(model, load_tiny()[1], rows, has_seven, config)
    return patch_reference(base, engine)


def trained_on_chat(engine: str, model):
    """Train the policy on the four questions before the run begins."""
    config = GRPOConfig(**COMMON | {"max_steps": 12, "max_completion_length": 40})
    train(model, load_tiny()[1], problems("chat", "train", 0), contains_reward, config)
    return contextlib.nullcontext()


def patch_reference(reference, engine: str):
    """Return a patch that makes another model the reference."""
    if engine == TRL:
        return patch_trl_trainer(
            lambda trainer: trainer.ref_model.to(reference.dtype).load_state_dict(reference.state_dict())
        )
    return patch("grpo_lab.trainer.run.run.frozen_copy", lambda _: frozen_copy(reference))


def scale_some_losses(factor: float, every: int) -> Patch:
    """Multiply the loss of every `every`-th update by a factor, such as NaN for the logarithm of 0 in a term."""

    def planted(engine: str, model):
        count = iter(range(1, 10**6))

        def change(loss, *_):
            return loss * factor if next(count) % every == 0 else loss

        return patch_trl_loss(change=change) if engine == TRL else patch_loss(change)

    return planted


def unfreeze_old_logp(engine: str, model):
    """Take the current policy for the old one in each update, so that every ratio is 1."""
    if engine == TRL:
        return patch_trl_loss(lambda inputs: inputs | {"old_per_token_logps": None})
    return patch("grpo_lab.trainer.loop.logprobs_without_gradient", lambda *_: None)


def reference_of_another_run(engine: str, model):
    """Make a policy of another run the reference."""
    stranger, tokenizer = load_tiny()
    config = GRPOConfig(**COMMON | {"max_steps": 10, "learning_rate": 5e-4})
    train(stranger, tokenizer, problems("guess", "train", 97), has_seven, config)
    return patch_reference(stranger, engine)


def policy_as_reference(engine: str, model):
    """Use the policy itself as the reference, without a copy."""
    if engine == TRL:
        return patch_trl_trainer(lambda trainer: setattr(trainer, "ref_model", trainer.model))
    return patch("grpo_lab.trainer.run.run.frozen_copy", lambda model: model)


def k1_for_k3(engine: str, model):
    """Compute the KL of the loss with k1, whatever the setting is."""
    return patch("grpo_lab.objective.loss.kl_estimate", lambda logp, ref_logp, _: kl_estimate(logp, ref_logp, "k1"))


def no_mean(engine: str, model):
    """Divide rewards by the standard deviation of their group, without subtracting the mean."""

    def raw(rewards, scale, eps=1e-4):
        return rewards / (rewards.std(-1, keepdim=True) + eps) if scale == "group" else rewards

    return patch("grpo_lab.advantages.estimators.group_advantages", raw)


def no_reference_precision(engine: str, model):
    """Make the float32 model the reference of a policy with the same weights rounded to bf16."""
    return patch_reference(load_tiny()[0], engine)


def patch_sampler(change: Callable):
    """Return a patch of our sampler that calls change(model, sampling) for the model and settings to sample with."""

    def changed(model, tokenizer, prompts, sampling):
        model, sampling = change(model, sampling)
        return sample_prompts(model, tokenizer, prompts, sampling)

    return patch("grpo_lab.rollout.environments.environment.sample_prompts", changed)


def stale_sampler(engine: str, model):
    """Let the sampler keep the weights of the first step."""
    first = copy.deepcopy(model)

    return patch_sampler(lambda model, sampling: (first, sampling))


def trained_on_even(engine: str, model):
    """Train the policy to answer with even numbers before the run begins."""
    config = GRPOConfig(**COMMON | {"max_steps": 25, "learning_rate": 5e-4})
    train(model, load_tiny()[1], problems("guess", "train", 98), even, config)
    return contextlib.nullcontext()


def sample_with(**settings) -> Patch:
    """Return a patch that passes settings to the sampler which the loss does not know."""

    return lambda engine, model: patch_sampler(lambda model, sampling: (model, replace(sampling, **settings)))
