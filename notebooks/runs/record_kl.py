"""Write tiny_kl.json: the tiny model trained with a KL to where it began, for several weights and from two starts.

    python notebooks/runs/record_kl.py

The loop is that of notebook 04, part 8. Every run has the prompts, samples, optimiser and steps of the others; each
step measures, without sampling, how probable it is that an answer to a held-out problem begins with <think>.
"""

import argparse
import copy
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from grpo_lab.advantages import rloo_advantages
from grpo_lab.bench.__main__ import machine
from grpo_lab.commands import Parser, command, writable_file
from grpo_lab.evaluate import thinking_probability
from grpo_lab.models import load_policy
from grpo_lab.objective import policy_loss
from grpo_lab.rewards import accuracy_reward
from grpo_lab.rollout import sample_completions, score_logprobs
from grpo_lab.tasks import addition_problems, has_thinking

FILE = Path(__file__).with_name("tiny_kl.json")
G, PROMPTS, STEPS, MOVED_STEPS, LEARNING_RATE, LIMIT = 16, 8, 50, 12, 5e-4, 40


@dataclass(frozen=True)
class Arm:
    """Where a run starts, and the KL term of its loss."""

    start: str  # "base", or "moved": 12 steps without a KL later
    beta: float
    estimator: str = "k3"
    correct: bool = True  # multiplied by the ratio


ARMS = {
    "0": Arm("base", 0.0),
    "0.25": Arm("base", 0.25),
    "0.5": Arm("base", 0.5),
    "1": Arm("base", 1.0),
    "2": Arm("base", 2.0),
    "0.5, k1": Arm("base", 0.5, "k1", False),
    "0, moved": Arm("moved", 0.0),
    "0.5, moved": Arm("moved", 0.5),
    "2, moved": Arm("moved", 2.0),
}


def train(
    policy, reference, tokenizer, rows: list[dict], arm: Arm, steps: int, seed: int, held_out: list[dict]
) -> dict:
    """As in the notebook. The samples of a step come from a seed of their own."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    thinking, accuracy, kl = [thinking_probability(policy, tokenizer, held_out)], [], []
    for step in range(steps):
        batch = rows[step * PROMPTS : (step + 1) * PROMPTS]
        torch.manual_seed(1000 * seed + step)
        rollout = sample_completions(policy, tokenizer, [row["prompt"] for row in batch], G, LIMIT)
        rewards = torch.tensor(
            accuracy_reward(rollout.texts, answer=[row["answer"] for row in batch for _ in range(G)])
        )
        tokens = (rollout.prompt_ids, rollout.prompt_mask, rollout.completion_ids, rollout.mask, rollout.prompt_of_row)
        logp, _ = score_logprobs(policy, *tokens, with_entropy=False)
        with torch.no_grad():
            ref_logp, _ = score_logprobs(reference, *tokens, with_entropy=False)
        settings = {"beta": arm.beta, "kl_estimator": arm.estimator, "kl_bias_correction": arm.correct}
        advantages = rloo_advantages(rewards.view(PROMPTS, G)).flatten()
        loss, _ = policy_loss(logp, advantages, rollout.mask, None, ref_logp, loss_type="dapo", **settings)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        thinking.append(thinking_probability(policy, tokenizer, held_out))
        accuracy.append(rewards.mean().item())
        kl.append(torch.where(rollout.mask, logp.detach() - ref_logp, 0).sum(-1).mean().item())
    return {
        name: [round(x, 4) for x in values]
        for name, values in {"thinking": thinking, "accuracy": accuracy, "kl": kl}.items()
    }


def counted(policy, tokenizer, held_out: list[dict]) -> dict:
    """Of 16 answers to each held-out problem: how many think, and how many are right, with and without."""
    torch.manual_seed(1)
    rollout = sample_completions(policy, tokenizer, [row["prompt"] for row in held_out], 16, LIMIT)
    right = accuracy_reward(rollout.texts, answer=[row["answer"] for row in held_out for _ in range(16)])
    thinks = [has_thinking(text) for text in rollout.texts]
    of_thinking = sum(r for r, t in zip(right, thinks, strict=True) if t)
    return {"n": len(thinks), "thinking": sum(thinks), "right": int(sum(right)), "right_thinking": int(of_thinking)}


def starts(seed: int, held_out: list[dict]) -> dict:
    base, tokenizer = load_policy("tiny", device="cpu")
    moved = copy.deepcopy(base)
    rows = addition_problems("train", MOVED_STEPS * PROMPTS, seed=100 + seed)
    train(moved, base, tokenizer, rows, ARMS["0"], MOVED_STEPS, 100 + seed, held_out)
    return {"base": base, "moved": moved, "tokenizer": tokenizer}


@command("notebooks/runs/record_kl.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    held_out = addition_problems("test", 100, seed=1)
    record = {
        "machine": machine("cpu") | {"threads": 1},
        "settings": {
            "num_generations": G,
            "prompts": PROMPTS,
            "learning_rate": LEARNING_RATE,
            "max_completion_length": LIMIT,
            "moved_steps": MOVED_STEPS,
            "problems": len(held_out),
        },
        "runs": [],
    }
    for seed in args.seeds:
        start = starts(seed, held_out)
        base, tokenizer = start["base"], start["tokenizer"]
        record["base"] = counted(base, tokenizer, held_out)
        for name in args.arms:
            arm, policy = ARMS[name], copy.deepcopy(start[ARMS[name].start])
            rows = addition_problems("train", args.steps * PROMPTS, seed=seed)
            made = train(policy, base, tokenizer, rows, arm, args.steps, seed, held_out)
            after = counted(policy, tokenizer, held_out)
            record["runs"].append({"arm": name, "seed": seed} | vars(arm) | made | {"after": after})
            print(name, seed, made["thinking"][::10], after, file=sys.stderr, flush=True)
    args.json.write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(f"{args.json.name}: {len(record['runs'])} runs")


def _parser() -> Parser:
    parser = Parser(
        prog="python notebooks/runs/record_kl.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="(default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=STEPS, help=f"(default {STEPS})")
    parser.add_argument("--json", type=writable_file, default=FILE, help="default: notebooks/runs/tiny_kl.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
