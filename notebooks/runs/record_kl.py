"""Write tiny_kl.json: the tiny model trained with a KL to where it began, for several weights and from two starts.

    python notebooks/runs/record_kl.py

The loop is that of notebook 04, part 8. Runs of one seed have their prompts, random numbers and optimiser in common;
they differ in what their arm says. Each step measures, without sampling, how probable it is that an answer to a
held-out problem begins with <think>. Runs that the file holds already, of arms not asked for, are kept.
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
from grpo_lab.kl import kl_in_reward
from grpo_lab.models import load_policy
from grpo_lab.objective import policy_loss
from grpo_lab.rewards import accuracy_reward
from grpo_lab.rollout import sample_completions, score_logprobs
from grpo_lab.tasks import addition_problems, has_thinking

FILE = Path(__file__).with_name("tiny_kl.json")
G, PROMPTS, MOVED_STEPS, LIMIT = 16, 8, 12, 40


@dataclass(frozen=True)
class Arm:
    """Where a run starts, its KL term, and how long and how fast it trains."""

    start: str  # "base", or "moved": 12 steps without a KL later
    beta: float
    estimator: str = "k3"
    correct: bool = True  # multiplied by the ratio
    in_reward: bool = False  # charged to the reward, and no term in the loss
    steps: int = 50
    learning_rate: float = 5e-4


ARMS = {
    "0": Arm("base", 0.0),
    "0.25": Arm("base", 0.25, steps=150),  # after 50 it is still on its way down
    "0.5": Arm("base", 0.5),
    "1": Arm("base", 1.0),
    "2": Arm("base", 2.0),
    "0.5, k1": Arm("base", 0.5, "k1", False),
    "0, moved": Arm("moved", 0.0),
    "0.5, moved": Arm("moved", 0.5),
    "2, moved": Arm("moved", 2.0),
    "0.5, in the reward": Arm("base", 0.5, in_reward=True),
    "2, small steps": Arm("base", 2.0, steps=100, learning_rate=1.25e-4),
}


def train(
    policy, reference, tokenizer, rows: list[dict], arm: Arm, steps: int, seed: int, held_out: list[dict]
) -> dict:
    """As in the notebook. The samples of a step come from a seed of their own."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=arm.learning_rate, weight_decay=0.0)
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
        kl.append(torch.where(rollout.mask, logp.detach() - ref_logp, 0).sum(-1).mean().item())
        accuracy.append(rewards.mean().item())
        if arm.in_reward:
            rewards = kl_in_reward(rewards, logp.detach(), ref_logp, rollout.mask, arm.beta)
        beta = 0.0 if arm.in_reward else arm.beta
        settings = {"beta": beta, "kl_estimator": arm.estimator, "kl_bias_correction": arm.correct}
        advantages = rloo_advantages(rewards.view(PROMPTS, G)).flatten()
        loss, _ = policy_loss(logp, advantages, rollout.mask, None, ref_logp, loss_type="dapo", **settings)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        thinking.append(thinking_probability(policy, tokenizer, held_out))
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


def starts(seed: int, held_out: list[dict], arms: list[str]) -> dict:
    base, tokenizer = load_policy("tiny", device="cpu")
    moved = copy.deepcopy(base)
    if any(ARMS[name].start == "moved" for name in arms):
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
            "max_completion_length": LIMIT,
            "moved_steps": MOVED_STEPS,
            "problems": len(held_out),
        },
        "runs": [run for run in _kept(args.json) if run["arm"] not in args.arms or run["seed"] not in args.seeds],
    }
    for seed in args.seeds:
        start = starts(seed, held_out, args.arms)
        base, tokenizer = start["base"], start["tokenizer"]
        record["base"] = counted(base, tokenizer, held_out)
        for name in args.arms:
            arm, policy = ARMS[name], copy.deepcopy(start[ARMS[name].start])
            steps = args.steps or arm.steps
            rows = addition_problems("train", steps * PROMPTS, seed=seed)
            made = train(policy, base, tokenizer, rows, arm, steps, seed, held_out)
            after = counted(policy, tokenizer, held_out)
            record["runs"].append({"arm": name, "seed": seed} | vars(arm) | made | {"after": after})
            print(name, seed, made["thinking"][::10], after, file=sys.stderr, flush=True)
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
    parser.add_argument("--steps", type=int, help="(default: those of the arm)")
    parser.add_argument("--json", type=writable_file, default=FILE, help="default: notebooks/runs/tiny_kl.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
