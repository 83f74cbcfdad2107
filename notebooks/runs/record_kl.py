"""Write tiny_kl.json: the tiny model trained with a KL to where it began, for several weights and advantages.

    python notebooks/runs/record_kl.py

Runs of one seed have their prompts, random numbers and optimiser in common; they differ in what their arm says. Each
step measures, without sampling, how probable it is that an answer to a held-out problem begins with <think>. Runs that
the file holds already, of arms not asked for, are kept.
"""

import argparse
import copy
import itertools
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from grpo_lab.advantages import group_advantages, rloo_advantages
from grpo_lab.base import Parser, command, writable_file
from grpo_lab.bench.__main__ import machine
from grpo_lab.evaluate import thinking_probability
from grpo_lab.models import load_policy
from grpo_lab.objective import policy_loss
from grpo_lab.rewards import accuracy_reward
from grpo_lab.rollout import compute_logprobs, sample_completions
from grpo_lab.tasks import addition_problems, has_thinking

FILE = Path(__file__).with_name("tiny_kl.json")
G, PROMPTS, LIMIT, STEPS = 16, 8, 40, 60


@dataclass(frozen=True)
class Arm:
    """What the loss of a run is; the KL term is k3 times the ratio, unless the arm says k1."""

    beta: float
    estimator: str = "k3"
    divided: bool = False  # group_advantages, TRL's default, in place of leave one out
    max_norm: float | None = None  # to which the gradient is clipped
    slower: int = 1  # times as many steps at the rate divided by it


ARMS = {
    "0": Arm(0.0),
    "0, clipped": Arm(0.0, max_norm=0.05),
    "0.5, k1": Arm(0.5, "k1"),
    "0.5": Arm(0.5),
    "1": Arm(1.0),
    "2": Arm(2.0),
    "2, divided": Arm(2.0, divided=True),
    "2, half the rate": Arm(2.0, slower=2),
}


def train(policy, reference, tokenizer, arm: Arm, steps: int, seed: int, held_out: list[dict]) -> dict:
    """The samples of a step come from a seed of their own."""
    rows = addition_problems("train", steps * PROMPTS, seed=seed)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-4 / arm.slower, weight_decay=0.0)
    curves = {"thinking": [thinking_probability(policy, tokenizer, held_out)], "kl": [], "spread": [], "norm": []}
    for step in range(steps):
        batch = rows[step * PROMPTS : (step + 1) * PROMPTS]
        torch.manual_seed(1000 * seed + step)
        rollout = sample_completions(policy, tokenizer, [row["prompt"] for row in batch], G, LIMIT)
        right = accuracy_reward(rollout.texts, answer=[row["answer"] for row in batch for _ in range(G)])
        rewards = torch.tensor(right).view(PROMPTS, G)
        tokens = (rollout.prompt_ids, rollout.prompt_mask, rollout.completion_ids, rollout.mask, rollout.prompt_of_row)
        logp, _ = compute_logprobs(policy, *tokens, with_entropy=False)
        with torch.no_grad():
            ref_logp, _ = compute_logprobs(reference, *tokens, with_entropy=False)
        advantages = group_advantages(rewards) if arm.divided else rloo_advantages(rewards)
        settings = {"beta": arm.beta, "kl_estimator": arm.estimator, "kl_bias_correction": arm.estimator != "k1"}
        loss, _ = policy_loss(logp, advantages.flatten(), rollout.mask, None, ref_logp, loss_type="dapo", **settings)
        optimizer.zero_grad()
        loss.backward()
        curves["norm"].append(torch.nn.utils.clip_grad_norm_(policy.parameters(), arm.max_norm or math.inf).item())
        optimizer.step()
        curves["thinking"].append(thinking_probability(policy, tokenizer, held_out))
        curves["kl"].append(torch.where(rollout.mask, logp.detach() - ref_logp, 0).sum(-1).mean().item())
        curves["spread"].append(rewards.std(-1).mean().item())  # within a group, on average
    return {name: [round(x, 4) for x in values] for name, values in curves.items()}


def counted(policy, tokenizer, held_out: list[dict]) -> dict:
    """Count, of 16 answers to each held-out problem, those that think, and those that are right with and without."""
    torch.manual_seed(1)
    rollout = sample_completions(policy, tokenizer, [row["prompt"] for row in held_out], 16, LIMIT)
    right = accuracy_reward(rollout.texts, answer=[row["answer"] for row in held_out for _ in range(16)])
    thinks = [has_thinking(text) for text in rollout.texts]
    of_thinking = sum(r for r, t in zip(right, thinks, strict=True) if t)
    return {"n": len(thinks), "thinking": sum(thinks), "right": int(sum(right)), "right_thinking": int(of_thinking)}


@command("notebooks/runs/record_kl.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    held_out = addition_problems("test", 100, seed=1)
    base, tokenizer = load_policy("tiny", device="cpu")
    record = {
        "machine": machine("cpu") | {"threads": 1},
        "settings": {
            "num_generations": G,
            "prompts": PROMPTS,
            "max_completion_length": LIMIT,
            "problems": len(held_out),
        },
        "second": [name for name in ARMS if "half the rate" in name],
        "base": counted(base, tokenizer, held_out),
        "runs": [run for run in _kept(args.json) if run["arm"] not in args.arms or run["seed"] not in args.seeds],
    }
    for seed, name in itertools.product(args.seeds, args.arms):
        policy = copy.deepcopy(base)
        curves = train(policy, base, tokenizer, ARMS[name], args.steps * ARMS[name].slower, seed, held_out)
        end = counted(policy, tokenizer, held_out)
        record["runs"].append({"arm": name, "seed": seed} | vars(ARMS[name]) | curves | {"after": end})
        print(name, seed, curves["thinking"][::10], end, file=sys.stderr, flush=True)
        record["runs"].sort(key=lambda run: (run["seed"], list(ARMS).index(run["arm"])))
        args.json.write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(f"{args.json.name}: {len(record['runs'])} runs")


def _kept(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []


def _parser() -> Parser:
    parser = Parser(
        prog="python notebooks/runs/record_kl.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="(default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", type=writable_file, default=FILE, help="default: notebooks/runs/tiny_kl.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
