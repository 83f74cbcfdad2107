"""Write tiny_arms.json: short runs of notebook 07's loop, in each of which one thing is different.

    python notebooks/runs/record_arms.py                      all arms, three seeds
    python notebooks/runs/record_arms.py --seeds 3 4          two more; what is there already is kept
The record also has "shuffled" with seeds 3 to 18.

Each arm has the samples, the steps, the optimiser and the seeds of the others. Every step measures, without sampling,
how probable it is that an answer to a held-out problem begins with <think>.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from grpo_lab.advantages import group_advantages
from grpo_lab.bench.__main__ import machine
from grpo_lab.checks import check_at_least
from grpo_lab.commands import Parser, command, writable_file
from grpo_lab.evaluate import thinking_probability
from grpo_lab.models import load_policy
from grpo_lab.objective import policy_loss
from grpo_lab.rewards import accuracy_reward
from grpo_lab.rollout import sample_completions, score_logprobs
from grpo_lab.tasks import addition_problems, has_thinking

FILE = Path(__file__).with_name("tiny_arms.json")
G, PROMPTS, STEPS, LEARNING_RATE, WARMUP = 16, 8, 30, 2e-4, 5
LIMIT = 64  # tokens


@dataclass(frozen=True)
class Arm:
    """What is different in a run."""

    says: str
    shuffled: bool = False  # rewards change places within their group
    tokens: str = "all"  # that enter the loss: "all", "first", "rest" (all but the first)


ARMS = {
    "real": Arm("1 for a right answer, else 0"),
    "shuffled": Arm("the rewards of a group change places", shuffled=True),
    "first token": Arm("the first token of an answer alone enters the loss", tokens="first"),
    "all but first": Arm("all tokens but the first enter the loss", tokens="rest"),
}


def tokens_in_loss(rollout, tokens: str) -> torch.Tensor:
    """The part of the completion mask that enters the loss, shape (B, T). It still divides by the number of all."""
    place = torch.arange(rollout.mask.shape[1])
    return rollout.mask & {"all": place >= 0, "first": place == 0, "rest": place > 0}[tokens]


def step_of(arm: Arm, model, tokenizer, optimizer, rows: list[dict], lr: float) -> dict:
    """One step, as in the notebook; groups without spread are left out of the scoring."""
    rollout = sample_completions(model, tokenizer, [row["prompt"] for row in rows], G, LIMIT)
    right = torch.tensor(accuracy_reward(rollout.texts, answer=[row["answer"] for row in rows for _ in range(G)]))
    rewards = right.view(-1, G)
    if arm.shuffled:
        rewards = torch.stack([of_group[torch.randperm(G)] for of_group in rewards])
    advantages = group_advantages(rewards).flatten()
    num_items, some = rollout.mask.sum(), advantages != 0
    optimizer.zero_grad()
    if some.any():
        part = rollout[some]
        inputs = (part.prompt_ids, part.prompt_mask, part.completion_ids, part.mask, part.prompt_of_row)
        logp, _ = score_logprobs(model, *inputs, with_entropy=False)
        kept = tokens_in_loss(part, arm.tokens)
        loss, _ = policy_loss(logp, advantages[some], kept, loss_type="dapo", num_items=num_items)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
    return {
        "accuracy": right.mean().item(),
        "length": rollout.mask.sum(-1).double().mean().item(),
        "truncated": rollout.truncated.double().mean().item(),
    }


def run(arm: Arm, seed: int, held_out: list[dict]) -> dict:
    """Train once, and count at the end which answers to held-out problems are right: those that think, and others."""
    model, tokenizer = load_policy("tiny", device="cpu")
    train_rows = addition_problems("train", 20_000, seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    torch.manual_seed(seed)
    history = []
    for step in range(STEPS):
        rows = train_rows[step * PROMPTS : (step + 1) * PROMPTS]
        lr = LEARNING_RATE * min(1, (step + 1) / WARMUP)
        made = step_of(arm, model, tokenizer, optimizer, rows, lr)
        history.append(made | {"thinking": thinking_probability(model, tokenizer, held_out[:100])})
    metrics = {name: [round(step[name], 4) for step in history] for name in history[0]}
    return {"metrics": metrics, "after": counted(model, tokenizer, held_out)}


def counted(model, tokenizer, held_out: list[dict]) -> dict:
    """Of one answer to each held-out problem: how many think, and how many are right, with and without."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        rollout = sample_completions(model, tokenizer, [row["prompt"] for row in held_out], 1, LIMIT)
    right = accuracy_reward(rollout.texts, answer=[row["answer"] for row in held_out])
    thinks = [has_thinking(text) for text in rollout.texts]
    return {
        "n": len(held_out),
        "thinking": sum(thinks),
        "right": round(sum(right)),
        "right_thinking": round(sum(r for r, t in zip(right, thinks, strict=True) if t)),
        "length": round(rollout.mask.sum(-1).double().mean().item(), 3),
        "truncated": round(rollout.truncated.double().mean().item(), 4),
        "thinking_probability": round(thinking_probability(model, tokenizer, held_out), 4),
    }


@command("notebooks/runs/record_arms.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    check_at_least("problems", args.problems, 100)
    torch.set_num_threads(1)
    held_out = addition_problems("test", args.problems, seed=1)
    model, tokenizer = load_policy("tiny", device="cpu")
    record = {
        "machine": machine("cpu") | {"threads": 1},
        "settings": {"num_generations": G, "prompts": PROMPTS, "learning_rate": LEARNING_RATE, "warmup_steps": WARMUP},
        "arms": {name: arm.says for name, arm in ARMS.items()},
        "base": counted(model, tokenizer, held_out),
        "runs": json.loads(args.json.read_text(encoding="utf-8"))["runs"] if args.json.is_file() else [],
    }
    there = {(made["arm"], made["seed"]) for made in record["runs"]}
    for seed in args.seeds:
        for name in args.arms:
            if (name, seed) not in there:
                made = run(ARMS[name], seed, held_out)
                record["runs"].append({"arm": name, "seed": seed} | made)
                args.json.write_text(json.dumps(record) + "\n", encoding="utf-8")
                print(name, seed, made["after"], file=sys.stderr, flush=True)
    order = {name: index for index, name in enumerate(ARMS)}
    record["runs"].sort(key=lambda made: (order[made["arm"]], made["seed"]))
    args.json.write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(f"{args.json.name}: {len(record['runs'])} runs")


def _parser() -> Parser:
    parser = Parser(
        prog="python notebooks/runs/record_arms.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="(default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--problems", type=int, default=500, help="held out (default 500)")
    parser.add_argument("--json", type=writable_file, default=FILE, help="default: notebooks/runs/tiny_arms.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
