"""Record what stale completions cost the tiny model, in staleness.json, for notebook 10.

    python notebooks/runs/record_staleness.py                 ten arms, 144 updates, five seeds: 60 minutes on one core
    python notebooks/runs/record_staleness.py --part second   seven, half the rate, 96 updates, three seeds: 15 minutes
    python notebooks/runs/record_staleness.py --fast          two updates, two problems; into outputs/

The sampler is a copy of the policy as it was `staleness` updates ago, or at the start in the first updates. Arms with
the same seed share their problems and the random numbers of each update. The `correction` of an arm is one of these:

uncorrected: the trainer treats the completions as on-policy
truncated: each token is weighted by the ratio of Eq. (10.12), capped at 3
untruncated: each token is weighted by this ratio without a cap
sequences: each completion is weighted by the ratio of the whole sequence, capped at 3
clipped: the loss takes the ratio to the sampler and clips it, as in notebook 05
"""

import contextlib
import copy
import io
import math
import sys
from collections import deque
from dataclasses import dataclass, replace
from functools import cache

from recording import is_recorded, prepare_recording, read_json, recorder_parser, rounded

from grpo_lab.base import Parser, command
from grpo_lab.bench.record import describe_machine, write_json
from grpo_lab.config import GRPOConfig
from grpo_lab.evaluate import evaluate, thinking_probability
from grpo_lab.models import load_policy
from grpo_lab.tasks import addition_problems
from grpo_lab.tasks.task_table import NUM_TRAINING_SUMS
from grpo_lab.teaching.sums_run import SUMS_REWARDS, SUMS_WEIGHTS
from grpo_lab.toys.asynchronous import importance_weights, truncate_weights
from grpo_lab.trainer import collect, logprobs_without_gradient, update
from grpo_lab.trainer.run import Run

UPDATES, EVAL_EVERY = 48, 8
COMMON = {"num_generations": 16, "generation_batch_size": 64, "learning_rate": 2e-4, "warmup_steps": 0}


@dataclass(frozen=True)
class Arm:
    """How old the sampler is, in updates, and how the trainer corrects for its age (see the top of this file)."""

    staleness: int
    correction: str


UNCORRECTED = [Arm(staleness, "uncorrected") for staleness in (0, 1, 4, 16)]
CORRECTED = [Arm(4, "truncated"), Arm(16, "truncated"), Arm(16, "clipped")]
CORRECTED_IN_RUNS = [Arm(1, "truncated"), Arm(16, "untruncated"), Arm(16, "sequences")]


@dataclass(frozen=True)
class Part:
    """One part of the record. The factors multiply the learning rate of `COMMON`, and `UPDATES`."""

    arms: list[Arm]
    seeds: int
    rate_factor: float
    update_factor: int


@dataclass(frozen=True)
class Weighting:
    """How the advantages are weighted by the importance ratio: one ratio per "token" or per "sequence", and its cap."""

    level: str
    cap: float


PARTS = {
    "runs": Part([*UNCORRECTED, *CORRECTED, *CORRECTED_IN_RUNS], seeds=5, rate_factor=1, update_factor=3),
    "second": Part([*UNCORRECTED, *CORRECTED], seeds=3, rate_factor=0.5, update_factor=2),
}
WEIGHTINGS = {
    "truncated": Weighting("token", 3.0),
    "untruncated": Weighting("token", math.inf),
    "sequences": Weighting("sequence", 3.0),
}

problems = cache(addition_problems)


def run(arm: Arm, seed: int, updates: int, held_out: list[dict], **changes) -> dict[str, list[float]]:
    """Train once, and return the curves of the run.

    Args:
        arm: Staleness and correction of the run.
        seed: Seed of problems and samples.
        updates: Number of updates.
        held_out: Held-out problems on which accuracy and thinking are measured.
        **changes: Settings that replace those of `COMMON`.

    Returns:
        "accuracy" and "thinking", measured every `EVAL_EVERY` updates and after the last one; "difference", the mean of
        |log pi - log mu| over the tokens of each update; "cut", the share of tokens whose ratio exceeds 3, per update.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        model, tokenizer = load_policy("tiny", device="cpu")
    sampler = copy.deepcopy(model)
    config = GRPOConfig(
        reward_weights=SUMS_WEIGHTS, max_steps=updates, seed=seed, disable_tqdm=True, **COMMON | changes
    )
    versions = deque(maxlen=arm.staleness + 1)
    curves = {"accuracy": [], "thinking": [], "difference": [], "cut": []}
    with Run(model, tokenizer, problems("train", NUM_TRAINING_SUMS, seed), SUMS_REWARDS, config) as training:
        for step in training.steps():
            versions.append(copy.deepcopy(model.state_dict()))
            sampler.load_state_dict(versions[0])
            experience, metrics = collect(sampler, tokenizer, training.data_rows_of_step(step), SUMS_REWARDS, config)
            mask, sampled = experience.loss_mask, experience.rollout.logp
            logp = logprobs_without_gradient(model, experience, config)
            if arm.correction == "clipped":
                experience = replace(experience, old_logp=sampled)
            elif arm.correction in WEIGHTINGS:
                weighting = WEIGHTINGS[arm.correction]
                ratios = importance_weights(logp, sampled, mask, weighting.level)
                weights = truncate_weights(ratios, weighting.cap)
                experience = replace(experience, advantages=experience.advantages[:, None] * weights.expand_as(mask))
            difference = (logp - sampled)[mask]
            curves["difference"].append(difference.abs().mean().item())
            curves["cut"].append((difference > math.log(3.0)).float().mean().item())
            update(model, training.optimizer, experience, config, training.learning_rate(step))
            if (step + 1) % EVAL_EVERY == 0 or step + 1 == updates:
                curves["accuracy"].append(evaluate(model, tokenizer, held_out)["accuracy"])
                curves["thinking"].append(thinking_probability(model, tokenizer, held_out))
            training.record(step, metrics)
    return {name: [rounded(value, 3) for value in values] for name, values in curves.items()}


@command("notebooks/runs/record_staleness.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    file = prepare_recording(args, "staleness.json")
    held_out = problems("test", 2 if args.fast else 100, seed=1)
    record = read_json(file, {"runs": []})
    record |= {
        "machine": describe_machine("cpu"),
        "settings": COMMON | {"held_out": len(held_out), "every": EVAL_EVERY},
    }
    runs = record.setdefault(args.part, [])
    part = PARTS[args.part]
    updates = 2 if args.fast else part.update_factor * UPDATES
    learning_rate = part.rate_factor * COMMON["learning_rate"]
    for seed in args.seeds[: 1 if args.fast else part.seeds]:
        for arm in part.arms:
            labels = {"staleness": arm.staleness, "correction": arm.correction, "seed": seed}
            if not is_recorded(runs, **labels):
                curves = run(arm, seed, updates, held_out, learning_rate=learning_rate)
                runs.append(labels | curves)
                write_json(file, record)
                print(arm.staleness, arm.correction, seed, curves["accuracy"], flush=True)


def _parser() -> Parser:
    parser = recorder_parser("record_staleness", __doc__, seeds=range(5), fast_help="two updates, two problems")
    parser.add_argument("--part", choices=PARTS, default="runs", help="what is recorded (default: runs)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
