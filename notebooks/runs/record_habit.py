"""Write smollm2_habit.json: what the plain run of record_smollm2.py does to a habit that no reward mentions.

    python notebooks/runs/record_habit.py                three seeds: a quarter of an hour to an hour on one core

SmolLM2 sometimes writes a sum out ("8 + 9 = 17") where the prompt asks for the number only. How probable that is, and
how probable the right number is after it and without it, is read from the logits, `grpo_lab.habits`, as the run goes.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

from grpo_lab.bench.__main__ import machine
from grpo_lab.commands import Parser, command, writable_file
from grpo_lab.config import GRPOConfig
from grpo_lab.habits import habit_probability
from grpo_lab.models import load_policy
from grpo_lab.rewards import last_number_reward
from grpo_lab.tasks.short import short_sums
from grpo_lab.trainer import train

FILE = Path(__file__).with_name("smollm2_habit.json")
COMMON = {"learning_rate": 1e-5, "num_generations": 8, "generation_batch_size": 64, "max_completion_length": 20}
MICRO = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4}
STEPS, PRECISION = 16, "fp32-master"


def written_out(row: dict) -> str:
    """How an answer begins that writes the sum out: "8 + 9 = "."""
    return row["prompt"][-1]["content"].removeprefix("What is ").partition("?")[0] + " = "


def measured(model, tokenizer, rows: list[dict]) -> dict:
    """By sum: the probability of the habit, and that of the right number with it and without it."""
    with_it = [habit_probability(model, tokenizer, row, written_out(row), row["answer"]) for row in rows]
    without = [habit_probability(model, tokenizer, row, "", row["answer"])[1] for row in rows]
    found = {"habit": [habit for habit, _ in with_it], "right_with": [right for _, right in with_it]}
    return {
        name: [float(f"{value:.4g}") for value in values]
        for name, values in (found | {"right_without": without}).items()
    }


def run(seed: int, held_out: list[dict], model_name: str, steps: int) -> dict:
    """One training run with the habit of 20 held-out sums after each step, and of all of them at both ends."""
    model, tokenizer = load_policy(model_name, "cpu", PRECISION)
    few, habit, reward = held_out[:20], [], []

    def watch(step: int, metrics: dict) -> None:
        found = [habit_probability(model, tokenizer, row, written_out(row), row["answer"])[0] for row in few]
        habit.append(float(f"{sum(found) / len(few):.4g}"))
        reward.append(round(metrics["reward"], 4))
        print(f"seed {seed}, step {step}: reward {reward[-1]:.2f}, habit {habit[-1]:.2f}", file=sys.stderr, flush=True)

    before = measured(model, tokenizer, held_out)
    config = GRPOConfig(**COMMON, **MICRO, max_steps=steps, seed=seed, precision=PRECISION, disable_tqdm=True)
    train(model, tokenizer, short_sums("train", seed=seed), last_number_reward, config, callback=watch)
    after = measured(model, tokenizer, held_out)
    return {"seed": seed, "habit": habit, "reward": reward, "before": before, "after": after}


@command("notebooks/runs/record_habit.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    held_out = short_sums("test", seed=1)[: args.problems]
    record = {
        "machine": machine("cpu") | {"threads": 1},
        "settings": COMMON | {"max_steps": args.steps, "precision": PRECISION},
        "runs": json.loads(args.json.read_text(encoding="utf-8"))["runs"] if args.json.is_file() else [],
    }
    for seed in args.seeds:
        if seed not in [made["seed"] for made in record["runs"]]:
            record["runs"].append(run(seed, held_out, args.model, args.steps))
            args.json.write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(f"{args.json.name}: {len(record['runs'])} runs")


def _parser() -> Parser:
    parser = Parser(
        prog="python notebooks/runs/record_habit.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of a run (default {STEPS})")
    parser.add_argument("--problems", type=int, help="held-out sums (default: all)")
    parser.add_argument("--model", default="smollm2", help='"smollm2", "tiny" or a folder (default smollm2)')
    parser.add_argument("--json", type=writable_file, default=FILE, help="default: notebooks/runs/smollm2_habit.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
