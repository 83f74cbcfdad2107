"""Several small training runs side by side: the same settings with several seeds, or with one thing changed.

A learning curve of one seed proves little. Give each variant at least three seeds; they run in as many processes as the
machine has cores, one thread each. (The recorded arms of notebook 07 are made by notebooks/runs/record_arms.py.)
"""

import contextlib
import io
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from itertools import starmap
from multiprocessing import get_context

import torch
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_lab.evaluate import evaluate
from grpo_lab.models import load_policy
from grpo_lab.tasks import addition_problems
from grpo_lab.train import REWARD_WEIGHTS, REWARDS, TRAINING_PROBLEMS
from grpo_lab.trainer import GRPOConfig, train

cached_problems = cache(addition_problems)  # the same for all variants of a seed


@dataclass
class Outcome:
    """What one run left: its metrics, step by step, and its evaluation on held-out problems before and after."""

    variant: str
    seed: int
    history: list[dict]
    before: dict
    after: dict


def sweep(
    variants: dict[str, dict],
    seeds: list[int],
    *,
    common: dict | None = None,
    problems: int = 200,
    workers: int | None = None,
) -> dict[str, list[Outcome]]:
    """Train the tiny model once for each variant and seed, and evaluate each result on held-out problems.

    Args:
        variants: name -> the settings (of `GRPOConfig`) in which it differs from the defaults; and `reward_shift`, a
            number that every completion earns beside its reward.
        seeds: one run a seed.
        common: settings for all variants.
        problems: held-out problems in each evaluation; the same for all.
        workers: processes, at most one a run; 1 means this process, which is quicker for short runs: each process of
            its own imports torch anew. None means one a core.

    Returns:
        name -> one `Outcome` a seed, in the order of `seeds`.
    """
    if not variants or not seeds:
        raise ValueError(f"variants is {variants} and seeds is {seeds}; expected at least one entry in both")
    jobs = [(name, seed, (common or {}) | settings, problems) for name, settings in variants.items() for seed in seeds]
    workers = min(workers or os.cpu_count() or 1, len(jobs))
    outcomes = in_processes(jobs, workers) if workers > 1 else starmap(run_once, jobs)
    progress = tqdm(outcomes, total=len(jobs), desc="runs", unit="run")
    done = {(outcome.variant, outcome.seed): outcome for outcome in progress}
    return {name: [done[name, seed] for seed in seeds] for name in variants}


def in_processes(jobs: list[tuple], workers: int) -> Iterator[Outcome]:
    """The outcomes of all jobs, each as soon as it is there."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run_once, *job) for job in jobs]):
            yield future.result()


def run_once(variant: str, seed: int, settings: dict, problems: int) -> Outcome:
    """One run in this process, quietly."""
    torch.set_num_threads(1)
    precision = settings.get("precision")
    model, tokenizer = load_quietly(precision)
    settings = {"disable_tqdm": True} | settings | {"seed": seed}
    weights = [*REWARD_WEIGHTS, settings.pop("reward_shift", 0.0)]
    config = GRPOConfig(reward_weights=weights, **settings)
    rows = cached_problems("train", TRAINING_PROBLEMS, seed)
    history = train(model, tokenizer, rows, [*REWARDS, one], config)
    before, after = evaluation_before(precision, problems), evaluation(model, tokenizer, problems)
    return Outcome(variant, seed, history, before, after)


def load_quietly(precision: str | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The tiny model and its tokenizer."""
    with contextlib.redirect_stdout(io.StringIO()):
        return load_policy("tiny", device="cpu", precision=precision)


def evaluation(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, problems: int) -> dict:
    """How well a model solves the held-out problems."""
    return evaluate(model, tokenizer, cached_problems("test", problems, seed=1), num_generations=1)


@cache
def evaluation_before(precision: str | None, problems: int) -> dict:
    """The same before training: all runs of a process begin alike."""
    return evaluation(*load_quietly(precision), problems)


def one(completions, **kwargs) -> list[float]:
    """1 for every completion: with a weight it shifts the reward, and the group comparison does not notice."""
    return [1.0] * len(completions)
