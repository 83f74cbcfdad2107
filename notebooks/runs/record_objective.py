"""Record the runs of notebooks 05 and 05b in objective.json: the tiny model, several updates a batch, other losses.

    python notebooks/runs/record_objective.py          all arms, two to five seeds: 45 minutes on one core
    python notebooks/runs/record_objective.py --fast   hardly anything; into outputs/

Arms of one seed share their problems and the random numbers of each step. `ARMS` says in what an arm differs from the
one it is compared with. Runs that the file holds already are not made again.
"""

import argparse
import contextlib
import io
import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from grpo_lab.bench.__main__ import machine, write_json
from grpo_lab.commands import Parser, command, writable_file
from grpo_lab.config import GRPOConfig
from grpo_lab.evaluate import thinking_probability
from grpo_lab.models import load_policy
from grpo_lab.objective.family import FAMILY, own_settings
from grpo_lab.rollout import sample_completions
from grpo_lab.tasks import addition_problems
from grpo_lab.train import REWARD_WEIGHTS, REWARDS, TRAINING_PROBLEMS
from grpo_lab.trainer import train
from grpo_lab.trainer.rewarding import reward_rollout

HERE = Path(__file__).parent
SEEDS = (0, 1, 2, 3, 4)
FEW = SEEDS[:2]  # for the controls
THREE = SEEDS[:3]  # for notebook 05b
COMMON = {
    "num_generations": 16,
    "generation_batch_size": 64,
    "learning_rate": 2e-4,
    "warmup_steps": 0,
    "loss_type": "dapo",
}
EIGHT = {"num_iterations": 8}
PARTS = {"generation_batch_size": 512, "per_device_train_batch_size": 64}
NO_CLIP = {"epsilon": 1.0, "epsilon_high": 1e9}
SMALL = {"learning_rate": 5e-5}
LENGTH = {"scale_rewards": "none", "max_grad_norm": float("inf")}  # so that a constant factor cancels in Adam's step
KEPT = ("reward", "entropy", "clip_ratio/region_mean", "completions/mean_length", "grad_norm")


@dataclass(frozen=True)
class Arm:
    """Settings beside `COMMON`, the number of batches, how many of them make one point of the curves, and the seeds."""

    change: dict
    batches: int = 16
    stride: int = 1
    seeds: tuple[int, ...] = SEEDS


ARMS = {
    "8 updates": Arm(EIGHT),
    "8 updates, no clip": Arm(EIGHT | NO_CLIP),
    "8 updates, upper clip": Arm(EIGHT | {"epsilon": 1.0, "epsilon_high": 0.2}),
    "8 updates, lower clip": Arm(EIGHT | {"epsilon_high": 1e9}),
    "1 update": Arm({}),
    "2 updates": Arm({"num_iterations": 2}),
    "4 updates": Arm({"num_iterations": 4}),
    "bonus 0.3": Arm({"entropy_coef": 0.3}),
    "bonus 1.0": Arm({"entropy_coef": 1.0}),
    "grpo": Arm(LENGTH | {"loss_type": "grpo"}, batches=32),
    "dr_grpo": Arm(LENGTH | {"loss_type": "dr_grpo"}, batches=32),
    "fresh": Arm({}, batches=128, stride=8),  # as many updates as "8 updates", each from answers of its own
    "8 parts": Arm(PARTS),  # as "fresh", but sampled ahead
    "8 parts, 4 problems": Arm(PARTS | {"num_generations": 128}, seeds=FEW),  # no more problems than "8 updates"
    "8 updates, small steps": Arm(EIGHT | SMALL, seeds=FEW),
    "8 updates, no clip, small steps": Arm(EIGHT | NO_CLIP | SMALL, seeds=FEW),
    "8 parts, no clip": Arm(PARTS | NO_CLIP, seeds=FEW),
    "8 parts, 4 problems, no clip": Arm(PARTS | NO_CLIP | {"num_generations": 128}, seeds=FEW),
    "bonus 0.01": Arm({"entropy_coef": 0.01}, seeds=FEW),
}
FOUR = {"num_iterations": 4}
FOR_THIS_MODEL = {"max_completion_length": 64}
for name, member in FAMILY.items():  # whole settings, four updates a batch; BNPO is "4 updates" here, in one part
    if name != "BNPO":
        ARMS[f"family: {name}"] = Arm(FOUR | own_settings(member) | FOR_THIS_MODEL, seeds=THREE)
ARMS["family: CISPO alone"] = Arm(FOUR | {"loss_type": "cispo"} | FOR_THIS_MODEL, seeds=THREE)

cached_problems = cache(addition_problems)


def load_tiny() -> tuple:
    """The tiny model and its tokenizer, without a word."""
    with contextlib.redirect_stdout(io.StringIO()):
        return load_policy("tiny", device="cpu")


def run(arm: Arm, seed: int, batches: int, rows: list[dict]) -> dict:
    """Train once, and look at what the answers to held-out problems became."""
    model, tokenizer = load_tiny()
    thinking = []

    def look(step: int, metrics: dict) -> None:
        if step % arm.stride == 0:
            thinking.append(round(thinking_probability(model, tokenizer, rows), 4))

    config = GRPOConfig(
        reward_weights=REWARD_WEIGHTS, max_steps=batches, seed=seed, disable_tqdm=True, **(COMMON | arm.change)
    )
    problems = cached_problems("train", TRAINING_PROBLEMS, seed)
    history = train(model, tokenizer, problems, REWARDS, config, callback=look)
    kept = [name for name in KEPT if name in history[0]]  # losses without an edge have no clip fraction
    metrics = {name: [round(step[name], 4) for step in history][arm.stride - 1 :: arm.stride] for name in kept}
    return {"thinking": thinking, "metrics": metrics, "after": answers(model, tokenizer, rows)}


def answers(model, tokenizer, rows: list[dict]) -> dict:
    """Accuracy and lengths of four samples to each held-out problem."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        rollout = sample_completions(model, tokenizer, [row["prompt"] for row in rows], 4, 64)
    rewards, _, _ = reward_rollout(rollout, rows, REWARDS[0])
    right, lengths = rewards >= 1, rollout.mask.sum(-1).float()
    thinks = torch.tensor([text.startswith("<think>") for text in rollout.texts])
    kinds = {"right": right, "wrong": ~right, "thinks": thinks, "thinks, wrong": thinks & ~right}
    means = {f"length, {name}": round(lengths[kind].mean().item(), 2) for name, kind in kinds.items() if kind.any()}
    return {"accuracy": right.float().mean().item(), "thinks": thinks.float().mean().item()} | means


@command("notebooks/runs/record_objective.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    path = args.output or (Path("outputs/objective.json") if args.fast else HERE / "objective.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    rows = cached_problems("test", 4 if args.fast else 200, seed=1)
    record = _read(path)
    record["machine"], record["settings"] = machine("cpu"), COMMON | {"held_out": len(rows)}
    model, tokenizer = load_tiny()
    record["base"] = {"thinking": round(thinking_probability(model, tokenizer, rows), 4)}
    record["base"] |= answers(model, tokenizer, rows)
    there = {(run["arm"], run["seed"]) for run in record["runs"]}
    for name in args.arms:
        for seed in args.seeds or ARMS[name].seeds:
            if (name, seed) not in there:
                made = run(ARMS[name], seed, 2 * ARMS[name].stride if args.fast else ARMS[name].batches, rows)
                record["runs"].append({"arm": name, "seed": seed} | made)
                write_json(path, record)
                print(name, seed, f"accuracy {made['after']['accuracy']:.2f}, think {made['thinking'][-1]:.2f}")


def _read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"runs": []}


def _parser() -> Parser:
    parser = Parser(
        prog="python notebooks/runs/record_objective.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, help="default: the seeds of each arm")
    parser.add_argument("--output", type=writable_file, help="the record (default: objective.json beside this script)")
    parser.add_argument("--fast", action="store_true", help="two points a run, four problems")
    return parser


if __name__ == "__main__":
    sys.exit(main())
