"""Record what stale completions cost the tiny model, in staleness.json, for notebook 10.

    python notebooks/runs/record_staleness.py                 ten arms, 144 updates, five seeds: 60 minutes on one core
    python notebooks/runs/record_staleness.py --part second   seven, half the rate, 96 updates, three seeds: 15 minutes
    python notebooks/runs/record_staleness.py --fast          hardly anything; into outputs/

The sampler is a copy of the policy from `staleness` updates ago; in the first updates, from the beginning.
Arms of one seed share their problems and the random numbers of each update. `correction` is what the trainer does:
"uncorrected": it takes the completions for its own. "truncated": it weights each token by Eq. (10.12), capped at 3;
"untruncated": without a cap; "sequences": each completion as a whole. "clipped": it takes the ratio to the sampler and
clips it, as in notebook 05.
"""

import argparse
import contextlib
import copy
import io
import json
import math
import sys
from collections import deque
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from grpo_lab.base import Parser, command, writable_file
from grpo_lab.bench.__main__ import machine, write_json
from grpo_lab.config import GRPOConfig
from grpo_lab.evaluate import evaluate, thinking_probability
from grpo_lab.models import load_policy
from grpo_lab.tasks import addition_problems
from grpo_lab.tasks.table import NUM_TRAINING_SUMS
from grpo_lab.teaching.sums_run import SUMS_REWARDS, SUMS_WEIGHTS
from grpo_lab.toys.scale import importance_weights, truncate_weights
from grpo_lab.trainer import collect, logprobs_without_gradient, update
from grpo_lab.trainer.run import Run

HERE = Path(__file__).parent
UPDATES, EVAL_EVERY = 48, 8
COMMON = {"num_generations": 16, "generation_batch_size": 64, "learning_rate": 2e-4, "warmup_steps": 0}
UNCORRECTED = [(staleness, "uncorrected") for staleness in (0, 1, 4, 16)]
CORRECTED = [(4, "truncated"), (16, "truncated"), (16, "clipped")]
CORRECTED_IN_RUNS = [(1, "truncated"), (16, "untruncated"), (16, "sequences")]


class Part(NamedTuple):
    """What one part of the record holds. The factors multiply the learning rate of `COMMON`, and `UPDATES`."""

    arms: list[tuple[int, str]]  # staleness and correction
    seeds: int
    rate_factor: float
    update_factor: int


PARTS = {
    "runs": Part([*UNCORRECTED, *CORRECTED, *CORRECTED_IN_RUNS], seeds=5, rate_factor=1, update_factor=3),
    "second": Part([*UNCORRECTED, *CORRECTED], seeds=3, rate_factor=0.5, update_factor=2),
}
CORRECTIONS = {"truncated": ("token", 3.0), "untruncated": ("token", math.inf), "sequences": ("sequence", 3.0)}

problems = cache(addition_problems)


def run(staleness: int, correction: str, seed: int, updates: int, held_out: list[dict], **changes) -> dict:
    """The curves of one run: every `EVAL_EVERY` updates accuracy and thinking, of each update the other two.

    difference: the mean of |log pi - log mu| over the tokens of an update. cut: the share whose ratio exceeds 3.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        model, tokenizer = load_policy("tiny", device="cpu")
    sampler = copy.deepcopy(model)
    config = GRPOConfig(
        reward_weights=SUMS_WEIGHTS, max_steps=updates, seed=seed, disable_tqdm=True, **COMMON | changes
    )
    versions = deque(maxlen=staleness + 1)
    curves = {"accuracy": [], "thinking": [], "difference": [], "cut": []}
    with Run(model, tokenizer, problems("train", NUM_TRAINING_SUMS, seed), SUMS_REWARDS, config) as training:
        for step in training.steps():
            versions.append(copy.deepcopy(model.state_dict()))
            sampler.load_state_dict(versions[0])
            experience, _ = collect(sampler, tokenizer, training.rows_of_step(step), SUMS_REWARDS, config)
            mask, sampled = experience.loss_mask, experience.rollout.logp
            logp = logprobs_without_gradient(model, experience, config)
            if correction == "clipped":
                experience = replace(experience, old_logp=sampled)
            elif correction in CORRECTIONS:
                level, cap = CORRECTIONS[correction]
                weights = truncate_weights(importance_weights(logp, sampled, mask, level), cap)
                experience = replace(experience, advantages=experience.advantages[:, None] * weights.expand_as(mask))
            difference = (logp - sampled)[mask]
            curves["difference"].append(difference.abs().mean().item())
            curves["cut"].append((difference > math.log(3.0)).float().mean().item())
            update(model, training.optimizer, experience, config, training.learning_rate(step))
            if (step + 1) % EVAL_EVERY == 0 or step + 1 == updates:
                curves["accuracy"].append(evaluate(model, tokenizer, held_out)["accuracy"])
                curves["thinking"].append(thinking_probability(model, tokenizer, held_out))
    return {name: [float(f"{value:.3g}") for value in values] for name, values in curves.items()}


@command("notebooks/runs/record_staleness.py")
def main(arguments: list[str] | None = None) -> None:
    parser = Parser(
        prog="python notebooks/runs/record_staleness.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--fast", action="store_true", help="two updates, two problems")
    parser.add_argument("--part", choices=PARTS, default="runs", help="what is recorded (default: runs)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--output", type=writable_file, help="the record (default: staleness.json beside this script)")
    args = parser.parse_args(arguments)
    path = args.output or (Path("outputs/staleness.json") if args.fast else HERE / "staleness.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    held_out = problems("test", 2 if args.fast else 100, seed=1)
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"runs": []}
    record |= {"machine": machine("cpu"), "settings": COMMON | {"held_out": len(held_out), "every": EVAL_EVERY}}
    runs = record.setdefault(args.part, [])
    part = PARTS[args.part]
    updates = 2 if args.fast else part.update_factor * UPDATES
    learning_rate = part.rate_factor * COMMON["learning_rate"]
    done = {(recorded["staleness"], recorded["correction"], recorded["seed"]) for recorded in runs}
    for seed in args.seeds[: 1 if args.fast else part.seeds]:
        for staleness, correction in part.arms:
            if (staleness, correction, seed) not in done:
                recorded = run(staleness, correction, seed, updates, held_out, learning_rate=learning_rate)
                runs.append({"staleness": staleness, "correction": correction, "seed": seed} | recorded)
                write_json(path, record)
                print(staleness, correction, seed, recorded["accuracy"], flush=True)


if __name__ == "__main__":
    sys.exit(main())
