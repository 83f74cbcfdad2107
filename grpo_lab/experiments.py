"""Several small training runs side by side: the same settings with several seeds, or with one thing changed.

A learning curve of one seed proves little. Notebook 07 trains each variant with at least three seeds, in as many
processes as the machine has cores, one thread each.
"""

import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from tqdm import tqdm


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
        workers: processes; None means one a core, and no more than there are runs.

    Returns:
        name -> one `Outcome` a seed, in the order of `seeds`.
    """
    if not variants or not seeds:
        raise ValueError(f"variants is {variants} and seeds is {seeds}; both need at least one entry")
    jobs = [(name, seed, (common or {}) | settings, problems) for name, settings in variants.items() for seed in seeds]
    workers = min(workers or os.cpu_count() or 1, len(jobs))
    done: dict[tuple[str, int], Outcome] = {}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run_once, *job) for job in jobs]
        for future in tqdm(as_completed(futures), total=len(jobs), desc="runs", unit="run"):
            outcome = future.result()
            done[outcome.variant, outcome.seed] = outcome
    return {name: [done[name, seed] for seed in seeds] for name in variants}


def run_once(variant: str, seed: int, settings: dict, problems: int) -> Outcome:
    """One run in this process, quietly."""
    import contextlib
    import io

    import torch

    from grpo_lab.evaluate import evaluate
    from grpo_lab.models import load_policy
    from grpo_lab.tasks import addition_problems
    from grpo_lab.train import REWARD_WEIGHTS, REWARDS, TRAINING_PROBLEMS
    from grpo_lab.trainer import GRPOConfig, train

    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        model, tokenizer = load_policy("tiny", device="cpu", precision=settings.get("precision"))
    held_out = addition_problems("test", problems, seed=1)
    before = evaluate(model, tokenizer, held_out, num_generations=1)
    settings = {"disable_tqdm": True} | settings | {"seed": seed}
    weights = [*REWARD_WEIGHTS, settings.pop("reward_shift", 0.0)]
    rows = addition_problems("train", TRAINING_PROBLEMS, seed)
    history = train(model, tokenizer, rows, [*REWARDS, one], GRPOConfig(reward_weights=weights, **settings))
    return Outcome(variant, seed, history, before, evaluate(model, tokenizer, held_out, num_generations=1))


def one(completions, **kwargs) -> list[float]:
    """1 for every completion: with a weight it shifts the reward, and the group comparison does not notice."""
    return [1.0] * len(completions)
