"""Write prompts.json: notebook 07's loop with four ways to choose prompts, at an equal number of samples.

    python notebooks/runs/record_prompts.py                   four arms, two settings, five seeds: 3 minutes on one core
    python notebooks/runs/record_prompts.py --seeds 5 6       two more seeds; recorded runs are kept

Half of the prompts are sums of three numbers, as in notebook 07. The others are sums of four numbers, of which the tiny
model solves hardly any. Their order is random. Each run samples the same number of completions, which includes groups
that are sampled again and the measurement of pass rates before training.
"""

import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from record_arms import LEARNING_RATE, PROMPTS, WARMUP, G, measure_policy, record_runs, sample_completions_with
from recording import recorder_parser

from grpo_lab.advantages import group_advantages
from grpo_lab.base import Parser, command
from grpo_lab.models import load_policy
from grpo_lab.objective import policy_loss
from grpo_lab.rollout import Rollout, compute_logprobs
from grpo_lab.tasks import addition_problems, addition_row

SAMPLES = 16 * PROMPTS * G  # number of completions of a run
POOL, TRIES = 64, 4  # prompts whose pass rate is measured before training, and completions of each


@dataclass(frozen=True)
class Arm:
    """How a run chooses its prompts."""

    description: str
    measure: str = ""  # use of the pass rate before training: "filter", "order", or "" for none
    dynamic: bool = False  # whether groups whose rewards are all equal are replaced by new ones
    prompts: int = PROMPTS  # number of groups in an update


ARMS = {
    "uniform": Arm("prompts in random order"),
    "dynamic sampling": Arm("each update has only groups whose rewards are not all equal", dynamic=True),
    "difficulty filter": Arm("only prompts solved in 1 to 3 of 4 completions before training", measure="filter"),
    "curriculum": Arm("from the prompts that were solved most often before training to the others", measure="order"),
}
for name in tuple(ARMS):
    ARMS[f"{name}, half the batch"] = replace(
        ARMS[name], description=f"{ARMS[name].description}; 4 groups", prompts=PROMPTS // 2
    )


def mixed_rows(n: int, seed: int) -> list[dict]:
    """Return n prompts: half are sums of three numbers from the training split, the others sums of four numbers."""
    rng = random.Random(f"prompts/{seed}")
    hard = [addition_row([rng.randint(10, 99) for _ in range(4)]) for _ in range(n // 2)]
    rows = addition_problems("train", n - n // 2, seed=seed) + hard
    rng.shuffle(rows)
    return rows


def prompts_by_pass_rate(arm: Arm, model, tokenizer, rows: list[dict], slots: int) -> tuple[Iterator[dict], dict]:
    """Measure the pass rate of a pool of prompts before training, and filter or order the pool by it.

    Args:
        arm: The arm, whose `measure` is "filter" or "order".
        model: The untrained policy.
        tokenizer: Its tokenizer.
        rows: Prompts, of which the first `POOL` are the pool.
        slots: Number of prompts that the run needs.

    Returns:
        `slots` prompts from the pool, and the size of the chosen pool with its number of hard prompts.
    """
    pool = rows[:POOL]
    _, _, right = sample_completions_with(model, tokenizer, pool, TRIES, "")
    solved = right.view(-1, TRIES).sum(1).tolist()
    if arm.measure == "filter":
        chosen = [row for row, times in zip(pool, solved, strict=True) if 0 < times < TRIES]
        prompts = [chosen[slot % len(chosen)] for slot in range(slots)]
    else:
        chosen = [pool[i] for i in sorted(range(POOL), key=lambda i: -solved[i])]
        prompts = [chosen[slot * POOL // slots] for slot in range(slots)]  # one pass through the pool during the run
    return iter(prompts), {"pool": len(chosen), "hard": sum(len(row["operands"]) == 4 for row in chosen)}


def batch(arm: Arm, model, tokenizer, prompts: Iterator[dict], budget: int) -> tuple[list, int]:
    """Sample the groups of one update.

    Returns:
        Parts of rollouts, each with its rewards of shape (groups, G), and the number of completions that were sampled.
        There are fewer groups than `arm.prompts` if `budget`, the number of completions left, does not allow more.
    """
    parts = []
    missing = arm.prompts
    sampled = 0
    while missing and sampled + arm.prompts * G <= budget:
        rows = [next(prompts) for _ in range(arm.prompts)]
        rollout, _, right = sample_completions_with(model, tokenizer, rows, G, "")
        sampled += arm.prompts * G
        rewards = right.view(-1, G)
        keep = rewards.std(1) > 0 if arm.dynamic else torch.ones(arm.prompts, dtype=torch.bool)
        keep &= keep.cumsum(0) <= missing
        missing -= int(keep.sum())
        if keep.any():
            parts.append((rollout[keep.repeat_interleave(G)], rewards[keep]))
    return parts, sampled


def backward(model, part: Rollout, advantages: torch.Tensor, num_items: int) -> None:
    """Accumulate the gradient of the groups whose rewards differ; other groups have no gradient."""
    has_gradient = advantages != 0
    if has_gradient.any():
        part = part[has_gradient]
        inputs = (part.prompt_ids, part.prompt_mask, part.completion_ids, part.mask, part.prompt_of_row)
        logp, _ = compute_logprobs(model, *inputs, with_entropy=False)
        policy_loss(logp, advantages[has_gradient], part.mask, loss_type="dapo", num_items=num_items)[0].backward()


def run(arm: Arm, seed: int, held_out: list[dict]) -> dict:
    """Train once; return the groups with a gradient and the samples of each update, and measures of the policy."""
    started = time.process_time()
    model, tokenizer = load_policy("tiny", device="cpu")
    rows = mixed_rows(2_000, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    torch.manual_seed(seed)
    prompts = iter(rows)
    budget = SAMPLES
    pool_counts = {}
    if arm.measure:
        budget -= POOL * TRIES
        prompts, pool_counts = prompts_by_pass_rate(arm, model, tokenizer, rows, budget // G)
    with_gradient, samples = [], []
    while budget >= arm.prompts * G:
        parts, sampled = batch(arm, model, tokenizer, prompts, budget)
        budget -= sampled
        num_items = int(sum(part.mask.sum() for part, _ in parts))
        optimizer.zero_grad()
        for part, rewards in parts:
            backward(model, part, group_advantages(rewards).flatten(), num_items)
        with_gradient.append(int(sum((rewards.std(1) > 0).sum() for _, rewards in parts)))
        samples.append(sampled)
        if with_gradient[-1]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(1, len(samples) / WARMUP)
            optimizer.step()
    end = measure_policy(model, tokenizer, held_out)
    cost = {"cpu_s": round(time.process_time() - started, 1)}
    return {"with_gradient": with_gradient, "samples": samples} | pool_counts | cost | {"after": end}


@command("notebooks/runs/record_prompts.py")
def main(arguments: list[str] | None = None) -> None:
    settings = {"num_generations": G, "prompts": PROMPTS, "learning_rate": LEARNING_RATE, "samples": SAMPLES}
    settings |= {"pool": POOL, "tries": TRIES, "warmup_steps": WARMUP}
    second = "each arm again with half as many groups in an update"
    record_runs(_parser().parse_args(arguments), "prompts.json", ARMS, run, second, settings)


def _parser() -> Parser:
    parser = recorder_parser("record_prompts", __doc__, arms=ARMS, seeds=range(5))
    parser.add_argument("--problems", type=int, default=400, help="held out (default 400)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
