"""Plant every fault that `grpo_lab.diagnose` names in real short runs, and make healthy ones: faults.json.

    python notebooks/runs/record_faults.py             what the file lacks, of both parts: half an hour on one core
    python notebooks/runs/record_faults.py --table     what diagnose finds in it, misses, and calls a fault in vain
    python notebooks/runs/record_faults.py --fast      three runs of two steps; into outputs/

The model is the tiny one. A fault is planted as a user makes it: by a setting, by a reward function, or by a wrong line
in the loop, for which a patch stands here. Read it in this order: tasks, rewards, wrong lines, the runs (`PARTS` says
which part tests what), the file, and what diagnose says of it.

Of a history those metrics are kept that a rule may read, to four digits: {metric: one value per step}, or one value for
all steps, or {step: value} where only some have it.
"""

import argparse
import contextlib
import copy
import io
import json
import math
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import torch

from grpo_lab.base import Parser, command, writable_file
from grpo_lab.base.parser import write_at_once
from grpo_lab.bench.__main__ import machine
from grpo_lab.config import GRPOConfig
from grpo_lab.kl import kl_estimate
from grpo_lab.models import load_policy
from grpo_lab.models.frozen import frozen_copy
from grpo_lab.objective import microbatch_loss, token_mean
from grpo_lab.rewards import accuracy_reward, contains_reward, format_reward
from grpo_lab.rewards.text import completion_text
from grpo_lab.rollout import sample_completions
from grpo_lab.tasks import addition_problems, chat_tasks, word_problems
from grpo_lab.trainer import train

FILE = Path(__file__).with_name("faults.json")
OURS, TRL = "ours", "trl"
BOTH = (OURS, TRL)
SEEDS = {"seen": (0, 1, 2), "kept": (11, 12, 13)}
COMMON = {
    "num_generations": 8,
    "generation_batch_size": 64,
    "learning_rate": 2e-4,
    "warmup_steps": 0,
    "max_steps": 30,
    "disable_tqdm": True,
}
UNREAD = re.compile(
    "time/|step_time|num_tokens|tokens_per_second|completions/(min|max)_|clip_ratio/.*_(min|max)$|step$|warning"
)


# ---- tasks. A prompt that has begun the answer makes a completion of five tokens, and a step of a tenth of a second


def opened(rows: list[dict], begin: str) -> list[dict]:
    """Sums whose reply has begun: with "<answer>" a guess is left to be made, with "<think>" a working."""
    tokenizer = load_tiny()[1]
    texts = [tokenizer.apply_chat_template(r["prompt"], tokenize=False, add_generation_prompt=True) for r in rows]
    return [{"prompt": text + begin, "answer": row["answer"]} for text, row in zip(texts, rows, strict=True)]


@cache
def problems(task: str, split: str, seed: int) -> list[dict]:
    """The problems of a task's split.

    "few" after the task's name leaves four of them; "shifted" makes their answers 40 too large. The held-out problems
    are neither.
    """
    name, _, how = task.partition(" ")
    few, shifted = (how == word and split == "train" for word in ("few", "shifted"))
    count = 4 if few else {"train": 2000, "test": 32}[split]
    if name == "chat":
        return chat_tasks("zh")
    if name == "stories":
        return word_problems(split, count, seed)
    rows = addition_problems(split, count, seed=seed if split == "train" else 1)
    begin = {"sums": None, "guess": "<answer>", "work": "<think>"}[name]
    rows = rows if begin is None else opened(rows, begin)
    return [row | {"answer": str(int(row["answer"]) + 40)} for row in rows] if shifted else rows


# ---- rewards


def number_in(completion) -> int | None:
    match = re.search(r"\d+", completion_text(completion))
    return None if match is None else int(match[0])


def right(completions, answer, **_) -> list[float]:
    """1 for the right number in a reply that had begun."""
    return [float(number_in(c) == int(a)) for c, a in zip(completions, answer, strict=True)]


def worked(completions, answer, **_) -> list[float]:
    """1 for the right answer after a working that had begun."""
    return accuracy_reward([f"<think>{c}" for c in completions], answer)


def near(completions, answer, **_) -> list[float]:
    """From 0 to 1: how near the number is."""
    numbers = [number_in(c) for c in completions]
    return [0.0 if n is None else math.exp(-abs(n - int(a)) / 25) for n, a in zip(numbers, answer, strict=True)]


def even(completions, **_) -> list[float]:
    return [float((number_in(c) or 1) % 2 == 0) for c in completions]


def has_seven(completions, **_) -> list[float]:
    return [float("7" in completion_text(c)) for c in completions]


def has_number(completions, **_) -> list[float]:
    return [float(number_in(c) is not None) for c in completions]


def boxed(completions, answer, **_) -> list[float]:
    r"""1 for \boxed{} around the answer, a form that the tiny model never writes."""
    return [float(f"\\boxed{{{a}}}" in completion_text(c)) for c, a in zip(completions, answer, strict=True)]


def mean_near(completions, answer, **_) -> list[float]:
    """The mistake: the mean of the batch for each completion."""
    values = near(completions, answer)
    return [sum(values) / len(values)] * len(values)


def odd(completions, **_) -> list[float]:
    return [1.0 - value for value in even(completions)]


def two_digits(completions, **_) -> list[float]:
    return [float((number_in(c) or 999) < 100) for c in completions]


def wordy(completions, **_) -> list[float]:
    return [len(completion_text(c)) / 40 for c in completions]


def now_and_then_huge(completions, answer, **_) -> list[float]:
    """The mistake: one reward in 500 is not scaled."""
    return [value * (1000 if random.random() < 1 / 500 else 1) for value in near(completions, answer)]


# ---- wrong lines: what a patch does to the loop. Each takes the engine and the model


Patch = Callable[[str, object], contextlib.AbstractContextManager]


def nothing(engine: str, model) -> contextlib.AbstractContextManager:
    return contextlib.nullcontext()


def patch_loss(change: Callable) -> Patch:
    """A patch of our loss: change(loss, logp, mask, num_items, settings) -> loss."""

    def changed(logp, advantages, mask, rows, num_items, **settings):
        loss, metrics = microbatch_loss(logp, advantages, mask, rows, num_items, **settings)
        return change(loss, logp, mask, num_items, settings), metrics

    return patch("grpo_lab.trainer.loop.microbatch_loss", changed)


def patch_trl_loss(change_inputs: Callable = dict, change: Callable = lambda loss: loss):
    from grpo_lab.train.engines.trl_trainer import Trainer

    original = Trainer._compute_loss

    def changed(self, model, inputs):
        return change(original(self, model, change_inputs(inputs)))

    return patch.object(Trainer, "_compute_loss", changed)


def patch_trl_trainer(change: Callable):
    """A patch of TRL's trainer once it is made."""
    from grpo_lab.train.engines import trl

    original = trl.make_trainer

    def made(*args, **kwargs):
        trainer = original(*args, **kwargs)
        change(trainer)
        return trainer

    return patch.object(trl, "make_trainer", made)


def kl_sign(engine: str, model):
    """Divergence from the reference is rewarded: kl-sign."""
    if engine == TRL:
        return patch_trl_trainer(lambda trainer: setattr(trainer, "beta", -trainer.beta))

    def change(loss, logp, mask, num_items, settings):
        kl = kl_estimate(logp, torch.where(mask, settings["ref_logp"], 0), settings["kl_estimator"])
        return loss - 2 * settings["beta"] * token_mean(torch.where(mask, kl, 0), mask, num_items)

    return patch_loss(change)


def other_reference(engine: str, model):
    """The reference is the base, and the policy a checkpoint that was trained before."""
    base = copy.deepcopy(model)
    rows, config = problems("guess", "train", 99), GRPOConfig(**COMMON | {"max_steps": 12, "learning_rate": 5e-4})
    train(model, load_tiny()[1], rows, has_seven, config)
    return reference_is(base, engine)


def already_good(engine: str, model):
    """The policy has learnt the four questions before the run begins."""
    config = GRPOConfig(**COMMON | {"max_steps": 12, "max_completion_length": 40})
    train(model, load_tiny()[1], problems("chat", "train", 0), contains_reward, config)
    return contextlib.nullcontext()


def reference_is(reference, engine: str):
    if engine == TRL:
        return patch_trl_trainer(
            lambda trainer: trainer.ref_model.to(reference.dtype).load_state_dict(reference.state_dict())
        )
    return patch("grpo_lab.trainer.run.frozen_copy", lambda _: frozen_copy(reference))


def now_and_then(factor: float, every: int) -> Patch:
    """The loss of one update in so many is multiplied: by NaN, as where a term of it takes the logarithm of 0."""

    def planted(engine: str, model):
        count = iter(range(1, 10**6))

        def change(loss, *_):
            return loss * factor if next(count) % every == 0 else loss

        return patch_trl_loss(change=change) if engine == TRL else patch_loss(change)

    return planted


def ratio_of_now(engine: str, model):
    """Each update takes the policy of now for the one that sampled: every ratio is 1."""
    if engine == TRL:
        return patch_trl_loss(lambda inputs: inputs | {"old_per_token_logps": None})
    return patch("grpo_lab.trainer.loop.all_logprobs", lambda *_: None)


def reference_of_another_run(engine: str, model):
    stranger, tokenizer = load_tiny()
    config = GRPOConfig(**COMMON | {"max_steps": 10, "learning_rate": 5e-4})
    train(stranger, tokenizer, problems("guess", "train", 97), has_seven, config)
    return reference_is(stranger, engine)


def reference_is_policy(engine: str, model):
    """No copy is made: the reference learns with the policy."""
    if engine == TRL:
        return patch_trl_trainer(lambda trainer: setattr(trainer, "ref_model", trainer.model))
    return patch("grpo_lab.trainer.run.frozen_copy", lambda model: model)


def k1_for_k3(engine: str, model):
    return patch("grpo_lab.objective.loss.kl_estimate", lambda logp, ref_logp, _: kl_estimate(logp, ref_logp, "k1"))


def no_mean(engine: str, model):
    """Rewards are divided by the deviation of their group, and no mean is taken off."""

    def raw(rewards, scale, eps=1e-4):
        return rewards / (rewards.std(-1, keepdim=True) + eps) if scale == "group" else rewards

    return patch("grpo_lab.advantages.group_advantages", raw)


def no_reference_precision(engine: str, model):
    """The policy has bf16 weights, and the reference the float32 ones from which they were rounded."""
    return reference_is(load_tiny()[0], engine)


def stale_sampler(engine: str, model):
    """The sampler keeps the weights of the first step."""
    first = copy.deepcopy(model)

    def changed(model, *args, **kwargs):
        return sample_completions(first, *args, **kwargs)

    return patch("grpo_lab.trainer.collecting.sample_completions", changed)


def good_at_even(engine: str, model):
    """The policy has learnt to say even numbers before the run begins."""
    config = GRPOConfig(**COMMON | {"max_steps": 25, "learning_rate": 5e-4})
    train(model, load_tiny()[1], problems("guess", "train", 98), even, config)
    return contextlib.nullcontext()


def sampled_with(**settings) -> Patch:
    """The sampler alone is told so; the loss is not."""

    def changed(*args, **kwargs):
        return sample_completions(*args, **kwargs | settings)

    return lambda engine, model: patch("grpo_lab.trainer.collecting.sample_completions", changed)


# ---- the runs


@dataclass(frozen=True)
class Plant:
    """A run with a fault in it (finding None: without). `settings` stand beside `COMMON`."""

    finding: str | None
    how: str
    settings: dict = field(default_factory=dict)
    task: str = "guess"
    rewards: tuple[Callable, ...] = (near,)
    wrong: Patch = nothing
    engines: tuple[str, ...] = BOTH
    precision: str | None = None
    seeds: tuple[int, ...] | None = None  # None: those of the part


KL = {"beta": 0.02}
MEASURED = {"eval_steps": 5, "num_generations_eval": 4}
FOUR = {"num_iterations": 4, "max_steps": 16}
SHORT = {"max_steps": 16}
SEEN = {
    "no box": Plant("no_spread_all_wrong", "the reward reads a form that is never written", SHORT, rewards=(boxed,)),
    "any number": Plant("no_spread_all_right", "the reward is for any number", SHORT, rewards=(has_number,)),
    "mean reward": Plant("no_spread_equal", "the batch's mean as each reward", SHORT, rewards=(mean_near,)),
    "entropy sign": Plant("entropy_collapse", "entropy_coef is -1", {"entropy_coef": -1.0, "learning_rate": 5e-4}),
    "20 tokens": Plant("truncation", "workings of 27 tokens are cut at 20",
                       SHORT | {"max_completion_length": 20}, "work", (worked,)),
    "paid by length": Plant("length_without_gain", "each character is paid, and ten times as well as a right answer",
                            {"reward_weights": [0.1, 1.0], "max_completion_length": 40, "max_steps": 36,
                             "learning_rate": 6e-4}, "chat", (contains_reward, wordy), wrong=already_good),
    "KL sign": Plant("kl_explosion", "the KL term has the wrong sign", {"beta": 1.0, "learning_rate": 5e-4},
                     wrong=kl_sign),
    "base as reference": Plant("kl_not_zero_at_start", "the policy is a trained checkpoint, the reference the base",
                               SHORT | KL, wrong=other_reference),
    "hidden top_p": Plant("sampler_trainer_apart", "the sampler has a top_p of 0.8 that no setting shows", SHORT,
                          wrong=sampled_with(top_p=0.8), engines=(OURS,)),
    "bf16 AdamW": Plant("updates_swallowed", "AdamW on bf16 weights at 5e-5", {"learning_rate": 5e-5}, rewards=(even,),
                        precision="bf16-naive"),
    "huge reward": Plant("gradient_spikes", "one reward in 500 is a thousand times too large",
                         {"scale_rewards": "none"}, rewards=(now_and_then_huge,)),
    "log of 0": Plant("nonfinite_steps", "the loss is NaN in one update of six", {"max_nonfinite_steps": 9},
                      wrong=now_and_then(math.nan, 6)),
    "four problems": Plant("held_out_falls_behind", "four problems for 40 steps at 1e-3",
                           {"max_steps": 40, "learning_rate": 1e-3, "generation_batch_size": 32} | MEASURED,
                           "guess few"),
    "ratio of now": Plant("clip_never", "old log-probabilities are those of now, four updates", FOUR,
                          wrong=ratio_of_now),
    "epsilon 3e-4": Plant("clip_always", "GSPO's epsilon on tokens, four updates",
                          FOUR | {"epsilon": 3e-4, "epsilon_high": 4e-4}),
    "rate 1e-2": Plant("learning_rate_too_high", "learning rate 1e-2",
                       {"learning_rate": 1e-2, "max_completion_length": 24}),
    "rate 1e-7": Plant("learning_rate_too_low", "learning rate 1e-7", {"learning_rate": 1e-7}, rewards=(even,)),
    "a box, too": Plant("reward_component_still", "one of two rewards is never earned", rewards=(even, boxed)),
    "odd outvotes even": Plant("reward_component_falls", "odd numbers earn three times what even ones do",
                               {"reward_weights": [0.3, 1.0]}, rewards=(even, odd)),
    "own reference": Plant("kl_still", "the reference is the policy", KL, rewards=(even,), wrong=reference_is_policy),
    "k1": Plant("kl_negative", "k1 in place of k3", KL, rewards=(even,), wrong=k1_for_k3, engines=(OURS,)),
    "no mean": Plant("not_centred", "no mean is subtracted", {}, rewards=(even,), wrong=no_mean, engines=(OURS,)),
}  # fmt: skip


def healthy(
    how: str, settings: dict, task: str = "guess", rewards: tuple = (near,), engines: tuple = BOTH, seed: int = 3
) -> Plant:
    return Plant(None, how, settings, task, rewards, engines=engines, seeds=(seed,))


SUMS = {"max_completion_length": 32, "generation_batch_size": 32}
SEEN |= {
    "near": healthy("nearness", {}),
    "even": healthy("even numbers", {}, rewards=(even,)),
    "near, 60 steps": healthy("nearness, longer", {"max_steps": 60, "num_generations": 4}),
    "seven": healthy("a seven in the number", {"num_generations": 16}, rewards=(has_seven,)),
    "sums": healthy("sums", SUMS, "sums", (accuracy_reward,)),
    "work": healthy("right answers after a working", SUMS | SHORT, "work", (worked,)),
    "chat": healthy("four questions", {"generation_batch_size": 32, "max_completion_length": 24}, "chat",
                    (contains_reward,), (OURS,)),
    "KL term": healthy("a KL term", {"beta": 0.04}, rewards=(even,)),
    "KL term, four updates": healthy("a KL term, four updates", KL | FOUR | {"learning_rate": 1e-4}),
    "KL measured": healthy("KL measured", {"log_kl": True}, rewards=(has_seven,), engines=(OURS,)),
    "held out": healthy("held-out sums measured", MEASURED),
    "two rewards": healthy("nearness and parity", {}, rewards=(near, even)),
    "dr_grpo": healthy("loss dr_grpo", {"loss_type": "dr_grpo", "scale_rewards": "none"}, rewards=(even,)),
    "sequence": healthy("ratio of sequences, two updates",
                        {"importance_sampling_level": "sequence", "num_iterations": 2, "epsilon": 0.02}),
    "slow": healthy("a tenth of the rate", {"learning_rate": 5e-5}, rewards=(even,)),
    "10 steps": healthy("ten steps", {"max_steps": 10, "learning_rate": 4e-4}, rewards=(even,)),
    "any rate, linear": healthy("a rate that falls to 0", {"lr_scheduler_type": "linear", "warmup_steps": 4}),
    "autocast": healthy("bf16 arithmetic", {"bf16": True}, rewards=(even,)),
}  # fmt: skip
KEPT = {
    "stories": Plant("no_spread_all_wrong", "problems far too hard",
                     {"max_steps": 12, "max_completion_length": 32, "generation_batch_size": 32}, "stories",
                     (accuracy_reward,)),
    "learnt before": Plant("no_spread_all_right", "problems that the policy has learnt", SHORT, rewards=(even,),
                           wrong=good_at_even),
    "greedy": Plant("no_spread_equal", "top_k is 1", {"max_steps": 20, "top_k": 1}),
    "raw rewards": Plant("entropy_collapse", "rewards are used raw",
                         {"advantage": "none", "learning_rate": 2e-3, "max_steps": 80}, engines=(OURS,)),
    "entropy sign, sevens": Plant("entropy_collapse", "entropy_coef is -2", {"entropy_coef": -2.0,
                                  "learning_rate": 4e-4, "max_steps": 40}, rewards=(near, has_seven)),
    "8 tokens": Plant("truncation", "replies of eleven tokens are cut at eight",
                      {"max_steps": 20, "max_completion_length": 8, "generation_batch_size": 32}, "chat",
                      (contains_reward,)),
    "paid by length, measured": Plant("length_without_gain", "each character is paid, too; the policy explores more",
                                      {"temperature": 1.3, "reward_weights": [0.2, 1.0], "max_completion_length": 40,
                                       "max_steps": 36, "learning_rate": 4e-4} | MEASURED, "chat",
                                      (contains_reward, wordy), wrong=already_good),
    "rate 3e-3, KL": Plant("kl_explosion", "learning rate 3e-3 beside a KL term",
                           KL | {"learning_rate": 3e-3, "max_completion_length": 24}),
    "fp32 reference": Plant("kl_not_zero_at_start", "bf16 policy, float32 reference", SHORT | KL,
                            wrong=no_reference_precision, engines=(TRL,), precision="bf16-naive"),
    "another's reference": Plant("kl_not_zero_at_start", "the reference is a checkpoint of another run", SHORT | KL,
                                 rewards=(even,), wrong=reference_of_another_run),
    "sampler at 0.7": Plant("sampler_trainer_apart", "the sampler's temperature is 0.7, the trainer's 1",
                            {"max_steps": 20, "max_completion_length": 32, "generation_batch_size": 32}, "sums",
                            (accuracy_reward,), sampled_with(temperature=0.7), (OURS,)),
    "stale sampler": Plant("sampler_trainer_apart", "the sampler keeps the first weights", rewards=(even,),
                           wrong=stale_sampler, engines=(OURS,)),
    "bf16 AdamW, sevens": Plant("updates_swallowed", "AdamW on bf16 weights at 3e-5",
                                {"learning_rate": 3e-5, "num_generations": 16, "max_steps": 40}, rewards=(has_seven,),
                                precision="bf16-naive"),
    "undivided": Plant("gradient_spikes", "one loss in twelve is 60 times too large", {"max_steps": 40},
                       rewards=(even, near), wrong=now_and_then(60.0, 12)),
    "log of 0, rare": Plant("nonfinite_steps", "the loss is NaN in one update of 13",
                            {"max_steps": 20, "max_completion_length": 32, "generation_batch_size": 32}, "work",
                            (worked,), now_and_then(math.nan, 13)),
    "answers shifted": Plant("held_out_falls_behind", "the answers of the training problems are 40 too large",
                             {"max_steps": 50, "learning_rate": 5e-4} | MEASURED, "guess shifted"),
    "no clip range": Plant("clip_never", "epsilon 1, epsilon_high 1e9, four updates",
                           FOUR | {"epsilon": 1.0, "epsilon_high": 1e9, "learning_rate": 4e-4}),
    "epsilon 1e-3": Plant("clip_always", "epsilon 1e-3, eight updates",
                          {"num_iterations": 8, "max_steps": 12, "epsilon": 1e-3}),
    "rate 3e-3": Plant("learning_rate_too_high", "learning rate 3e-3",
                       {"learning_rate": 3e-3, "max_completion_length": 32, "generation_batch_size": 32}, "sums",
                       (accuracy_reward,)),
    "rate 1e-6": Plant("learning_rate_too_low", "learning rate 1e-6",
                       {"learning_rate": 1e-6, "num_generations": 16, "max_steps": 24}, rewards=(has_seven,)),
    "two digits outvote nearness": Plant("reward_component_falls", "two digits earn five times what nearness does",
                                         {"reward_weights": [0.2, 1.0], "max_steps": 40, "learning_rate": 4e-4},
                                         rewards=(near, two_digits)),
    "own reference, four updates": Plant("kl_still", "the reference is the policy", KL | FOUR, rewards=(has_seven,),
                                         wrong=reference_is_policy),
    "k1, four updates": Plant("kl_negative", "k1 in place of k3", {"beta": 0.1} | FOUR, wrong=k1_for_k3,
                              engines=(OURS,)),
    "no mean, sums": Plant("not_centred", "no mean is subtracted",
                           {"max_completion_length": 32, "generation_batch_size": 32}, "sums", (accuracy_reward,),
                           no_mean, (OURS,)),
    "format of a rest": Plant("reward_component_still", "the format is asked of a reply that had begun",
                              {"max_steps": 20, "max_completion_length": 32, "generation_batch_size": 32}, "work",
                              (worked, format_reward)),
    "near, fast": healthy("nearness", {"learning_rate": 5e-4}, seed=14),
    "sums, 16 a group": healthy("sums", SUMS | {"num_generations": 16}, "sums", (accuracy_reward,), seed=14),
    "sums, half the rate": healthy("sums", SUMS | {"learning_rate": 1e-4, "max_steps": 40}, "sums",
                                   (accuracy_reward,), seed=15),
    "work, KL": healthy("workings, a KL term", SUMS | {"beta": 0.01}, "work", (worked,), seed=15),
    "chat, 50 steps": healthy("four questions", {"generation_batch_size": 32, "max_completion_length": 32,
                              "max_steps": 50}, "chat", (contains_reward,), seed=16),
    "seven, slow": healthy("a seven, slowly", {"learning_rate": 3e-5, "num_generations": 16, "max_steps": 40},
                           rewards=(has_seven,), seed=11),
    "150 steps": healthy("nearness for long", {"max_steps": 150}, seed=17),
    "rloo": healthy("rloo", {"advantage": "rloo"}, rewards=(even,), engines=(OURS,), seed=17),
    "cispo": healthy("loss cispo", {"loss_type": "cispo", "epsilon_high": 5.0, "num_iterations": 2}, seed=18),
    "sapo": healthy("loss sapo", {"loss_type": "sapo", "num_iterations": 2}, rewards=(even,), seed=18),
    "grpo": healthy("loss grpo, micro-batches", {"loss_type": "grpo", "per_device_train_batch_size": 16,
                    "gradient_accumulation_steps": 4}, seed=18),
    "bnpo": healthy("loss bnpo, batch deviation", {"loss_type": "bnpo", "scale_rewards": "batch"},
                    rewards=(has_seven,), seed=18),
    "eight updates": healthy("eight updates", {"num_iterations": 8, "learning_rate": 1e-4, "max_steps": 16}, seed=19),
    "two batches": healthy("two updates of half a batch", {"per_device_train_batch_size": 32}, rewards=(even,),
                           seed=19),
    "cooler": healthy("temperature 0.8", {"temperature": 0.8}, rewards=(has_seven,), seed=20),
    "warmer": healthy("temperature 1.2", {"temperature": 1.2}, seed=20),
    "weighted": healthy("two rewards, weighted", {"reward_weights": [1.0, 0.2]}, rewards=(near, has_seven), seed=21),
    "held out, sums": healthy("held-out workings", SUMS | {"max_steps": 20} | MEASURED, "work", (worked,), seed=21),
    "entropy bonus": healthy("an entropy bonus", {"entropy_coef": 0.01}, rewards=(even,), seed=22),
    "cosine": healthy("a cosine", {"lr_scheduler_type": "cosine", "warmup_steps": 3, "learning_rate": 4e-4}, seed=22),
    "KL, strong": healthy("a strong KL term", {"beta": 0.2}, rewards=(has_seven,), seed=23),
    "12 steps": healthy("twelve steps", {"max_steps": 12, "learning_rate": 5e-4}, rewards=(has_seven,), seed=23),
    "autocast, chat": healthy("bf16 arithmetic", {"bf16": True, "generation_batch_size": 32,
                              "max_completion_length": 32}, "chat", (contains_reward,), seed=24),
}  # fmt: skip
FRESH = {  # engine -> what had been missed of kept, and healthy runs
    OURS: ("answers shifted", "no clip range", "entropy sign, sevens", "rate 3e-3, KL", "near", "even", "two rewards",
           "KL term", "held out", "held out, sums", "chat, 50 steps", "KL, strong", "eight updates",
           "sums, half the rate", "KL term, four updates", "weighted"),
    TRL: ("greedy", "entropy sign, sevens", "fp32 reference", "answers shifted", "rate 3e-3, KL", "held out", "dr_grpo",
          "seven, slow", "two rewards", "chat, 50 steps", "rate 1e-6", "no clip range"),
}  # fmt: skip
# Recorded once the rules of the fourth edition were frozen: other tasks, rates, batches and seeds than above.
WIDE, HALF, SLOW = {"generation_batch_size": 128}, {"learning_rate": 1e-4}, {"learning_rate": 5e-5, "max_steps": 16}
NEW = {
    "no mean, sevens": Plant("not_centred", "no mean is subtracted", HALF, rewards=(has_seven,), wrong=no_mean,
                             engines=(OURS,)),
    "own reference, wide": Plant("kl_still", "the reference is the policy", {"beta": 0.1} | WIDE, rewards=(odd,),
                                 wrong=reference_is_policy),
    "k1, two updates": Plant("kl_negative", "k1 in place of k3", {"beta": 0.05, "num_iterations": 2} | HALF,
                             rewards=(has_seven,), wrong=k1_for_k3, engines=(OURS,)),
    "two digits outvote, wide": Plant("reward_component_falls", "two digits earn four times what nearness does",
                                      {"reward_weights": [0.25, 1.0]} | WIDE | HALF, rewards=(near, two_digits)),
    "rate 1e-9": Plant("learning_rate_too_low", "learning rate 1e-9", {"learning_rate": 1e-9, "max_steps": 16}),
    "entropy sign, half the rate": Plant("entropy_collapse", "entropy_coef is -3",
                                         {"entropy_coef": -3.0, "max_steps": 40} | HALF, engines=(TRL,)),
    "hidden top_k": Plant("sampler_trainer_apart", "the sampler has a top_k of 5", SHORT, rewards=(odd,),
                          wrong=sampled_with(top_k=5), engines=(OURS,)),
    "ratio of now, three": Plant("clip_never", "old log-probabilities are those of now, three updates",
                                 {"num_iterations": 3, "max_steps": 20}, rewards=(even,), wrong=ratio_of_now,
                                 engines=(TRL,)),
    "16 tokens": Plant("truncation", "workings of 27 tokens are cut at 16",
                       SHORT | WIDE | {"max_completion_length": 16}, "work", (worked,), engines=(TRL,)),
}  # fmt: skip
NEW |= {
    "quarter of the rate": healthy("a quarter of the rate", SLOW),
    "quarter of the rate, sums": healthy("a quarter of the rate, sums", SUMS | SLOW, "sums", (accuracy_reward,)),
    "half the rate": healthy("half the rate", HALF),
    "half the rate, even": healthy("half the rate, even numbers", HALF | {"max_steps": 60}, rewards=(even,)),
    "wide": healthy("twice the batch", WIDE),
    "wide, sevens": healthy("twice the batch, sevens", WIDE, rewards=(has_seven,)),
    "odd": healthy("odd numbers", {}, rewards=(odd,)),
    "two digits": healthy("two digits", HALF, rewards=(two_digits,)),
    "odd, KL": healthy("odd numbers, a KL term", {"beta": 0.05}, rewards=(odd,)),
    "near, KL, two updates": healthy("a KL term, two updates", {"beta": 0.1, "num_iterations": 2} | HALF),
    "sums, 40 steps": healthy("sums, longer", SUMS | {"max_steps": 40}, "sums", (accuracy_reward,)),
    "work, half the rate": healthy("right answers after a working", SUMS | HALF, "work", (worked,)),
    "near and odd": healthy("nearness and parity", HALF, rewards=(near, odd)),
    "grpo": healthy("loss grpo", {"loss_type": "grpo"}, rewards=(odd,)),
    "odd, held out": healthy("held-out problems measured", MEASURED | HALF, rewards=(odd,)),
}  # fmt: skip
# Recorded after the last change of a rule, with settings that no run above has.
BATCH_96 = {"generation_batch_size": 96}
BATCH_32 = {"generation_batch_size": 32}
LEARNING_RATE_1_5E_4 = {"learning_rate": 1.5e-4}
LEARNING_RATE_3E_4 = {"learning_rate": 3e-4}
STEPS_20 = {"max_steps": 20}
STEPS_24 = {"max_steps": 24}
LAST = {
    "no mean, two digits": Plant(
        "not_centred",
        "no mean is subtracted",
        {"learning_rate": 2.5e-4, "max_steps": 20} | BATCH_96,
        rewards=(two_digits,),
        wrong=no_mean,
        engines=(OURS,),
    ),
    "own reference, near": Plant(
        "kl_still",
        "the reference is the policy",
        {"beta": 0.07, "learning_rate": 3e-4, "max_steps": 26},
        wrong=reference_is_policy,
    ),
    "k1, near": Plant(
        "kl_negative",
        "k1 in place of k3",
        {"beta": 0.03, "max_steps": 20} | LEARNING_RATE_1_5E_4,
        wrong=k1_for_k3,
        engines=(OURS,),
    ),
    "odd outvotes even": Plant(
        "reward_component_falls",
        "odd numbers earn twice what even ones do",
        {"reward_weights": [0.5, 1.0], "max_steps": 26, "learning_rate": 2.5e-4},
        rewards=(even, odd),
    ),
    "rate 5e-8": Plant(
        "learning_rate_too_low",
        "learning rate 5e-8",
        {"learning_rate": 5e-8, "max_steps": 26, "num_generations": 16},
        rewards=(two_digits,),
    ),
    "entropy sign, near": Plant(
        "entropy_collapse",
        "entropy_coef is -2.5",
        {"entropy_coef": -2.5, "max_steps": 28} | LEARNING_RATE_3E_4,
        rewards=(two_digits, near),
    ),
    "hidden temperature": Plant(
        "sampler_trainer_apart",
        "the sampler's temperature is 0.6",
        {"max_steps": 14},
        rewards=(odd,),
        wrong=sampled_with(temperature=0.6),
        engines=(OURS,),
    ),
    "ratio of now, five": Plant(
        "clip_never",
        "old log-probabilities are those of now, five updates",
        {"num_iterations": 5, "max_steps": 14},
        rewards=(two_digits,),
        wrong=ratio_of_now,
    ),
    "14 tokens": Plant(
        "truncation",
        "workings of 27 tokens are cut at 14",
        {"max_steps": 14, "max_completion_length": 14},
        "work",
        (worked,),
        engines=(OURS,),
    ),
    "NaN, seven": Plant(
        "nonfinite_steps",
        "the loss is NaN in one update of seven",
        {"max_nonfinite_steps": 9, "max_steps": 20},
        rewards=(two_digits,),
        wrong=now_and_then(math.nan, 7),
        engines=(OURS,),
    ),
    "bf16 AdamW, two digits": Plant(
        "updates_swallowed",
        "AdamW on bf16 weights at 1e-5",
        {"learning_rate": 1e-5, "max_steps": 28},
        rewards=(two_digits,),
        precision="bf16-naive",
    ),
    "two digits, a box, too": Plant(
        "reward_component_still",
        "one of two rewards is never earned",
        LEARNING_RATE_1_5E_4 | {"max_steps": 18},
        rewards=(two_digits, boxed),
    ),
}
LAST |= {
    "near, 2.5e-4": healthy("nearness", STEPS_20 | {"learning_rate": 2.5e-4}),
    "near, 6e-5": healthy("nearness, slowly", STEPS_24 | {"learning_rate": 6e-5}),
    "odd, 4e-5": healthy("odd numbers, slowly", {"max_steps": 26, "learning_rate": 4e-5}, rewards=(odd,)),
    "two digits, 6e-5": healthy("two digits, slowly", STEPS_20 | {"learning_rate": 6e-5}, rewards=(two_digits,)),
    "even, batch 96": healthy("even numbers", STEPS_20 | BATCH_96, rewards=(even,)),
    "seven, 4 a group": healthy("sevens", STEPS_24 | BATCH_32 | {"num_generations": 4}, rewards=(has_seven,)),
    "near, 0.9": healthy("temperature 0.9", STEPS_20 | {"temperature": 0.9}),
    "two digits, 1.15": healthy("temperature 1.15", STEPS_20 | {"temperature": 1.15}, rewards=(two_digits,)),
    "sums, 2.5e-4": healthy("sums", SUMS | {"max_steps": 18, "learning_rate": 2.5e-4}, "sums", (accuracy_reward,)),
    "sums, KL": healthy("sums, a KL term", SUMS | {"max_steps": 16, "beta": 0.03}, "sums", (accuracy_reward,)),
    "work, 1.5e-4": healthy(
        "right answers after a working", SUMS | LEARNING_RATE_1_5E_4 | {"max_steps": 16}, "work", (worked,)
    ),
    "odd, KL, two updates": healthy(
        "a KL term, two updates", STEPS_20 | {"beta": 0.06, "num_iterations": 2}, rewards=(odd,)
    ),
    "two digits and odd": healthy("two rewards", STEPS_20 | LEARNING_RATE_1_5E_4, rewards=(two_digits, odd)),
    "near, dr_grpo": healthy(
        "loss dr_grpo", STEPS_24 | {"loss_type": "dr_grpo", "scale_rewards": "none"} | LEARNING_RATE_1_5E_4
    ),
    "even, held out": healthy(
        "held-out problems measured", MEASURED | STEPS_20 | LEARNING_RATE_1_5E_4, rewards=(even,)
    ),
}


def with_seed(plants: dict[str, Plant], seed: int) -> dict[str, Plant]:
    return {name: replace(plant, seeds=(seed,)) for name, plant in plants.items()}


def missed_before(seed: int) -> dict[str, Plant]:
    """The runs of `FRESH`, each on the engines that it names."""
    runs = {name: plant for name, plant in (SEEN | KEPT).items() if name in FRESH[OURS] + FRESH[TRL]}
    return {
        name: replace(plant, engines=tuple(engine for engine in BOTH if name in FRESH[engine]), seeds=(seed,))
        for name, plant in runs.items()
    }


# A part that led to a change of a rule tests the rules no more: so the next one was recorded.
PARTS = {
    # The rules were tuned on it: three seeds.
    "seen": SEEN,
    # Three seeds of other tasks and settings. The rules of commit d68b46a, tuned on "seen" alone, found 49 of its 60
    # faults in ours and 41 of 54 on TRL, and called none of its 45 healthy runs ill. Commit 5e7d097 was tuned on both.
    "kept": KEPT,
    # Another seed of what had been missed, and of healthy runs.
    "fresh": missed_before(seed=41),
    # With seed 51 the fourth edition's rules named 10 of 10 faults and called one of 32 healthy runs ill, a slow one of
    # 16 steps. Since then that rule waits for 24 steps, and this is another seed.
    "new": with_seed(NEW, 61),
    # A try with seed 83 (ours; 10 of 12 faults) called a slow run of 24 steps ill: since then learning_rate_too_low,
    # where no KL is logged, speaks of small steps alone. With seed 97: 17 of 19 faults, none of 30 healthy runs ill.
    # Then the same rule was made to wait for the end of a warm-up, and this was recorded after that.
    "last": with_seed(LAST, 131),
}


def load_tiny(precision: str | None = None) -> tuple:
    """The tiny model and its tokenizer, without a word."""
    with contextlib.redirect_stdout(io.StringIO()):
        return load_policy("tiny", device="cpu", precision=precision)


def run(plant: Plant, engine: str, seed: int, steps: int | None = None) -> tuple[list[dict], GRPOConfig]:
    """The history of one run, up to the error that ended it, if any, and its whole settings."""
    torch.set_num_threads(1)
    random.seed(seed)
    torch.manual_seed(seed)
    model, tokenizer = load_tiny(plant.precision)
    settings = COMMON | {"seed": seed} | plant.settings | ({} if steps is None else {"max_steps": steps})
    if engine == TRL:
        settings.pop("max_nonfinite_steps", None)  # which only our own loop has
    config = GRPOConfig(precision=plant.precision, **settings)
    held_out = {"eval_dataset": problems(plant.task, "test", seed)} if config.eval_steps else {}
    history: list[dict] = []
    arguments = (model, tokenizer, problems(plant.task, "train", seed), list(plant.rewards), config)
    with plant.wrong(engine, model), contextlib.redirect_stdout(io.StringIO()):
        try:
            trainer_of(engine)(*arguments, callback=lambda _, metrics: history.append(metrics), **held_out)
        except RuntimeError as error:  # a run that NaN has ended
            print(engine, plant.how, f"ended at step {len(history)}: {error}", file=sys.stderr)
    return history, config


def trainer_of(engine: str) -> Callable:
    if engine == OURS:
        return train
    from grpo_lab.train.engines.trl import train as by_trl

    return by_trl


def record_of(part: str, name: str, engine: str, seed: int, steps: int | None = None) -> dict:
    """One entry of the file."""
    plant = PARTS[part][name]
    history, config = run(plant, engine, seed, steps)
    usual, settings = GRPOConfig().saved(), config.saved()
    changed = {key: value for key, value in settings.items() if value != usual[key] and key != "disable_tqdm"}
    return {
        "part": part, "name": name, "engine": engine, "seed": seed, "finding": plant.finding, "how": plant.how,
        "task": plant.task, "rewards": [function.__name__ for function in plant.rewards], "steps": len(history),
        "settings": changed, "history": packed(history),
    }  # fmt: skip


# ---- the file


def packed(history: list[dict]) -> dict:
    """Metrics by name, to four digits; see the top."""
    names = dict.fromkeys(name for metrics in history for name in metrics if not UNREAD.match(name))
    columns = {}
    for name in names:
        values = {m["step"]: _rounded(m[name]) for m in history if name in m}
        is_constant = len(set(map(repr, values.values()))) == 1
        whole = len(values) == len(history)
        columns[name] = values if not whole else next(iter(values.values())) if is_constant else list(values.values())
    return columns


def unpacked(entry: dict) -> list[dict]:
    """The history of an entry, as the trainer returned it: one dict of metrics per step."""
    history = [{"step": step} for step in range(1, entry["steps"] + 1)]
    for name, values in entry["history"].items():
        if isinstance(values, dict):
            values = {int(step): value for step, value in values.items()}
        for position, metrics in enumerate(history):
            if isinstance(values, dict):
                metrics |= {name: values[metrics["step"]]} if metrics["step"] in values else {}
            else:
                metrics[name] = values[position] if isinstance(values, list) else values
    return history


def settings_of(entry: dict) -> dict:
    """All settings of an entry's run, as its grpo_config.json would hold them."""
    settings = GRPOConfig(**entry["settings"]).saved()
    return settings | {"precision": settings["precision"] or ("fp32-master" if settings["bf16"] else "fp32")}


def read(path: Path = FILE) -> dict:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"machine": {}, "runs": []}


def write(path: Path, record: dict) -> None:
    """One run a line; whole or not at all."""
    order = [(part, name) for part in PARTS for name in PARTS[part]]
    runs = sorted(record["runs"], key=lambda r: (order.index((r["part"], r["name"])), r["engine"], r["seed"]))
    lines = ",\n".join(json.dumps(entry, separators=(",", ":"), ensure_ascii=False) for entry in runs)
    write_at_once(path, f'{{"machine": {json.dumps(record["machine"])}, "runs": [\n{lines}\n]}}\n')


def _rounded(value):
    return float(f"{value:.4g}") if isinstance(value, float) else value


def jobs(names: list[str] | None = None) -> list[tuple]:
    """Part, name, engine, seed: the first seed of everything before the second of anything."""
    numbered_jobs = [
        (number, part, name, engine, seed)
        for part in PARTS
        for name, plant in PARTS[part].items()
        for engine in plant.engines
        for number, seed in enumerate(plant.seeds or SEEDS[part])
        if names is None or name in names
    ]
    return [job[1:] for job in sorted(numbered_jobs, key=lambda job: (job[1] != "seen", job[0], job[3]))]


@command("notebooks/runs/record_faults.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    path = args.output or (Path("outputs/faults.json") if args.fast else FILE)
    record = read(path)
    if args.table:
        print(table(record))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    record["machine"] = machine("cpu")
    done = {(entry["part"], entry["name"], entry["engine"], entry["seed"]) for entry in record["runs"]}
    todo = [job for job in jobs(args.names) if job not in done]
    for job in todo[: 3 if args.fast else None]:
        record["runs"].append(record_of(*job, 2 if args.fast else None))
        write(path, record)
        print(*job, flush=True)


# ---- what diagnose says of it


def named(entry: dict) -> list[str]:
    """The findings in a run of the record."""
    from grpo_lab.diagnose import diagnose

    return [finding.name for finding in diagnose(unpacked(entry), settings=settings_of(entry))]


def table(record: dict) -> str:
    """For each finding, and for all, of how many planted runs it is told. Then every miss and every alarm."""
    columns = [(part, engine) for part in PARTS for engine in BOTH]
    diagnosed = [(entry, named(entry)) for entry in record["runs"]]
    findings = list(dict.fromkeys(entry["finding"] for entry, _ in diagnosed if entry["finding"]))
    rows = {finding: {finding} for finding in findings} | {
        "all of them": set(findings),
        "alarms in healthy runs": {None},
    }
    lines = ["found of planted".ljust(26) + "".join(f"{part}, {engine}".rjust(13) for part, engine in columns)]
    for row, kinds in rows.items():
        lines.append(row.ljust(26) + "".join(_share(diagnosed, column, kinds).rjust(13) for column in columns))
    wrong = [(e, names) for e, names in diagnosed if (e["finding"] not in names if e["finding"] else names)]
    lines.append("")
    for entry, names in wrong:
        plant = f"{entry['part']}, {entry['engine']}, {entry['name']!r}, seed {entry['seed']}"
        planted = f"planted {entry['finding']}" if entry["finding"] else "healthy"
        lines.append(f"{plant}: {planted}; named {', '.join(names) or 'nothing'}")
    return "\n".join(lines)


def _share(diagnosed: list[tuple[dict, list[str]]], column: tuple[str, str], planted: set[str | None]) -> str:
    in_column = [(e["finding"], names) for e, names in diagnosed if (e["part"], e["engine"]) == column]
    of_column = [(finding, names) for finding, names in in_column if finding in planted]
    named_rightly = sum(finding in names if finding else bool(names) for finding, names in of_column)
    return f"{named_rightly}/{len(of_column)}" if of_column else "-"


def _parser() -> Parser:
    parser = Parser(
        prog="python notebooks/runs/record_faults.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--table", action="store_true", help="print what diagnose says of the file, and record nothing")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="of runs, such as 'KL sign' (default: all)")
    parser.add_argument("--output", type=writable_file, help="the record (default: faults.json beside this script)")
    parser.add_argument("--fast", action="store_true", help="three runs of two steps")
    return parser


if __name__ == "__main__":
    sys.exit(main())
