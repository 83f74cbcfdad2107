"""How good is a policy on problems it was not trained on? `python -m grpo_lab.evaluate --model DIR` prints JSON."""

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Callable

import torch

from grpo_lab.precision import autocast_as_loaded
from grpo_lab.rewards import accuracy_reward, format_reward
from grpo_lab.rollout import sample_completions
from grpo_lab.tasks import Rows, addition_problems, has_thinking


def evaluate(
    model,
    tokenizer,
    rows: Rows,
    *,
    num_generations: int = 4,
    max_completion_length: int = 64,
    temperature: float = 1.0,
    correct: Callable = accuracy_reward,
    batch_size: int = 512,
    seed: int = 1,
    cache_implementation: str | None = None,
) -> dict:
    """Sample `num_generations` completions of each problem and count.

    Args:
        rows: problems with "prompt" and whatever columns `correct` reads.
        correct: a reward function; a completion counts as right where it gives at least 1.
        batch_size: completions sampled at a time.
        cache_implementation: as in `sample_completions`.

    Returns:
        accuracy: share of right completions; accuracy_ci95: its Wilson interval with one trial a *problem* (careful,
        since completions of one problem are not independent); pass_at_k: {"1": ..., "2": ..., ...}, the unbiased
        estimate for k = 1, 2, 4, ... up to num_generations; mean_length in tokens; format_rate: share in think/answer
        form; think_rate: share with reasoning between think tags; n and num_generations.
    """
    if len(rows) == 0:
        raise ValueError("rows is empty; at least one problem is needed")
    if num_generations < 1:
        raise ValueError(f"num_generations is {num_generations}; it has to be at least 1")
    right, thinks, forms, lengths = [], [], [], []
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        per_batch = max(1, batch_size // num_generations)
        for start in range(0, len(rows), per_batch):
            part = [rows[index] for index in range(start, min(start + per_batch, len(rows)))]
            prompts = [row["prompt"] for row in part]
            with autocast_as_loaded(model):
                rollout = sample_completions(
                    model,
                    tokenizer,
                    prompts,
                    num_generations,
                    max_completion_length,
                    temperature=temperature,
                    cache_implementation=cache_implementation,
                )
            columns = {k: [row[k] for row in part for _ in range(num_generations)] for k in part[0] if k != "prompt"}
            right += [score is not None and score >= 1 for score in correct(rollout.texts, **columns)]
            forms += format_reward(rollout.texts)
            thinks += [has_thinking(text) for text in rollout.texts]
            lengths += rollout.mask.sum(-1).tolist()
    successes = [sum(right[i : i + num_generations]) for i in range(0, len(right), num_generations)]
    accuracy = sum(right) / len(right)
    ks = [2**i for i in range(num_generations.bit_length()) if 2**i <= num_generations]
    return {
        "accuracy": accuracy,
        "accuracy_ci95": wilson_interval(accuracy, len(rows)),
        "pass_at_k": {str(k): sum(pass_at_k(num_generations, c, k) for c in successes) / len(rows) for k in ks},
        "mean_length": sum(lengths) / len(lengths),
        "format_rate": sum(forms) / len(forms),
        "think_rate": sum(thinks) / len(thinks),
        "n": len(rows),
        "num_generations": num_generations,
    }


def pass_at_k(n: int, c: int, k: int) -> float:
    r"""The chance that at least one of k completions is right, estimated without bias from c right ones among n >= k.

    \mathrm{pass@}k = 1 - \binom{n - c}{k} \Big/ \binom{n}{k} \tag{7.1}

    Source: Chen et al. (2021), "Evaluating large language models trained on code", equation 1.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"n, c, k are {n}, {c}, {k}; needed are 0 <= c <= n and 1 <= k <= n")
    estimate = 1 - math.comb(n - c, k) / math.comb(n, k)  # scalar (7.1)
    return estimate


def wilson_interval(share: float, n: int, z: float = 1.959964) -> list[float]:
    r"""The 95% interval of a share seen in n independent trials; it stays within [0, 1] and does not collapse at the
    ends.

    c = \frac{p + z^2 / 2n}{1 + z^2 / n} \tag{7.2}
    h = \frac{z}{1 + z^2 / n} \sqrt{\frac{p (1 - p)}{n} + \frac{z^2}{4 n^2}} \tag{7.3}

    Returns:
        [c - h, c + h].

    Source: Wilson (1927), "Probable inference, the law of succession, and statistical inference".
    """
    if n < 1 or not 0 <= share <= 1:
        raise ValueError(f"share is {share} and n is {n}; needed are a share between 0 and 1 and at least one trial")
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)  # scalar (7.2)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))  # scalar (7.3)
    # On paper the share is never outside; at 0 and 1, rounding would put it there.
    return [min(max(centre - half, 0.0), share), max(min(centre + half, 1.0), share)]


def main(arguments: list[str] | None = None) -> None:
    from grpo_lab.models import load_policy, one_thread_if_small

    parser = argparse.ArgumentParser(
        prog="python -m grpo_lab.evaluate", description="Held-out sums, sampled and counted."
    )
    parser.add_argument("--model", required=True, help='a folder, a hub id, "tiny" or "auto"')
    parser.add_argument("--n", type=int, default=1000, help="held-out problems (default 1000)")
    parser.add_argument("--seed", type=int, default=1, help="chooses the problems and the samples (default 1)")
    parser.add_argument("--num_generations", type=int, default=4, help="completions a problem (default 4)")
    parser.add_argument("--max_completion_length", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--cache_implementation", choices=("dynamic", "static"), help="(default: static on a card)")
    args = parser.parse_args(arguments)
    with contextlib.redirect_stdout(sys.stderr):  # stdout carries the JSON object alone
        model, tokenizer = load_policy(args.model)
        one_thread_if_small(model)
    result = evaluate(
        model,
        tokenizer,
        addition_problems("test", args.n, args.seed),
        num_generations=args.num_generations,
        max_completion_length=args.max_completion_length,
        temperature=args.temperature,
        seed=args.seed,
        cache_implementation=args.cache_implementation,
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
