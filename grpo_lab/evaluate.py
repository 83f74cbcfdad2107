"""How good is a policy on problems it was not trained on? `python -m grpo_lab.evaluate --model DIR` prints JSON."""

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator

import torch

from grpo_lab.checks import check_at_least
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

    Raises:
        ValueError: naming the argument that is wrong.
    """
    if len(rows) == 0:
        raise ValueError("rows is empty; expected at least one problem")
    check_at_least("num_generations", num_generations, 1)
    settings = {"temperature": temperature, "cache_implementation": cache_implementation}
    right, thinks, forms, lengths = [], [], [], []
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        for part in _parts(rows, max(1, batch_size // num_generations)):
            prompts = [row["prompt"] for row in part]
            with autocast_as_loaded(model):
                rollout = sample_completions(
                    model, tokenizer, prompts, num_generations, max_completion_length, **settings
                )
            asked = [part[prompt] for prompt in rollout.prompt_of_row.tolist()]
            columns = {name: [row[name] for row in asked] for name in part[0] if name != "prompt"}
            right += [score is not None and score >= 1 for score in correct(rollout.texts, **columns)]
            forms += format_reward(rollout.texts)
            thinks += [has_thinking(text) for text in rollout.texts]
            lengths += rollout.mask.sum(-1).tolist()
    shares = {"mean_length": _mean(lengths), "format_rate": _mean(forms), "think_rate": _mean(thinks)}
    return _successes(right, num_generations) | shares | {"n": len(rows), "num_generations": num_generations}


def _parts(rows: Rows, size: int) -> Iterator[list[dict]]:
    for start in range(0, len(rows), size):
        yield [rows[index] for index in range(start, min(start + size, len(rows)))]


def _successes(right: list[bool], G: int) -> dict:
    """Accuracy, its interval and pass@k, from G completions of each problem that stand together."""
    of_problem = [sum(right[start : start + G]) for start in range(0, len(right), G)]
    ks = [2**i for i in range(G.bit_length()) if 2**i <= G]
    return {
        "accuracy": _mean(right),
        "accuracy_ci95": wilson_interval(_mean(right), len(of_problem)),
        "pass_at_k": {str(k): _mean([pass_at_k(G, c, k) for c in of_problem]) for k in ks},
    }


def _mean(values: list) -> float:
    return sum(values) / len(values)


def pass_at_k(n: int, c: int, k: int) -> float:
    r"""The chance that at least one of k completions is right, estimated without bias from c right ones among n >= k.

    \mathrm{pass@}k = 1 - \binom{n - c}{k} \Big/ \binom{n}{k} \tag{7.1}

    Source: Chen et al. (2021), "Evaluating large language models trained on code", equation 1.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"n, c, k are {n}, {c}, {k}; expected 0 <= c <= n and 1 <= k <= n")
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
        raise ValueError(f"share is {share} and n is {n}; expected 0 <= share <= 1 and n >= 1")
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)  # scalar (7.2)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))  # scalar (7.3)
    # On paper the share is never outside; at 0 and 1, rounding would put it there.
    return [min(max(centre - half, 0.0), share), max(min(centre + half, 1.0), share)]


def main(arguments: list[str] | None = None) -> None:
    from grpo_lab.models import load_policy, one_thread_if_small

    settings = vars(_parser().parse_args(arguments))
    name, problems = settings.pop("model"), settings.pop("n")
    with contextlib.redirect_stdout(sys.stderr):  # stdout carries the JSON object alone
        model, tokenizer = load_policy(name)
        one_thread_if_small(model)
    print(json.dumps(evaluate(model, tokenizer, addition_problems("test", problems, settings["seed"]), **settings)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m grpo_lab.evaluate", description="Held-out sums, sampled and counted."
    )
    parser.add_argument("--model", required=True, help='a folder, a hub id, "tiny" or "auto"')
    parser.add_argument("--n", type=int, default=1000, help="held-out problems (default 1000)")
    parser.add_argument("--seed", type=int, default=1, help="chooses the problems and the samples (default 1)")
    parser.add_argument("--num_generations", type=int, default=4, help="completions a problem (default 4)")
    parser.add_argument("--max_completion_length", type=int, default=64, help="limit in tokens (default 64)")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the sampler (default 1.0)")
    parser.add_argument("--cache_implementation", choices=("dynamic", "static"), help="(default: static on a card)")
    return parser


if __name__ == "__main__":
    main()
