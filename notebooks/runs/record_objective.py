"""Record the runs of notebooks 05 and 05b in objective.json: the tiny model, several updates per batch, other losses.

    python notebooks/runs/record_objective.py          all arms, three to five seeds: 45 minutes on one core
    python notebooks/runs/record_objective.py --fast   two points per run, four problems; into outputs/

Arms with the same seed share their problems and the random numbers of each step. `ARMS` states how the arms differ.
"one_batch" follows many updates on the same 64 answers. Recorded runs are skipped.
"""

import contextlib
import copy
import io
import sys
from dataclasses import dataclass
from functools import cache
from unittest.mock import patch

import torch
from recording import HERE, is_recorded, prepare_recording, read_json, recorder_parser

from grpo_lab.base import Parser, command
from grpo_lab.bench.record import describe_machine, write_json
from grpo_lab.config import GRPOConfig
from grpo_lab.evaluate import thinking_probability
from grpo_lab.models import load_policy
from grpo_lab.objective import policy_loss
from grpo_lab.rollout import compute_logprobs, sample_completions
from grpo_lab.tasks import addition_problems
from grpo_lab.tasks.task_table import NUM_TRAINING_SUMS
from grpo_lab.teaching.sums_run import SUMS_REWARDS, SUMS_WEIGHTS
from grpo_lab.trainer import collect, train
from grpo_lab.trainer.rewarding import reward_rollout

FAMILY = read_json(HERE / "family.json")["family"]
SEEDS = (0, 1, 2, 3, 4)
THREE_SEEDS = SEEDS[:3]  # the seeds of notebook 05b and of some controls
COMMON = {
    "num_generations": 16,
    "generation_batch_size": 64,
    "learning_rate": 2e-4,
    "warmup_steps": 0,
    "loss_type": "dapo",
}
EIGHT_UPDATES = {"num_iterations": 8}
NO_CLIP = {"epsilon": 1.0, "epsilon_high": 1e9}
SMALL_STEPS = {"learning_rate": 5e-5}
S3 = {"num_generations": 12, "generation_batch_size": 384, "per_device_train_batch_size": 16, "epsilon": 0.2}
UPDATES = 24  # number of updates in "one_batch"
BOUNDS = {"clip": {}, "upper bound": {"epsilon": 1.0, "epsilon_high": 0.2}, "lower bound": {"epsilon_high": 1e9}}
ONE_BATCH = (*BOUNDS, "no clip", "no ratio", "no way back", "ratio if bad", "ratio if good")
MEASURED_AT_END = ONE_BATCH[-2:]  # measured only after the last update
SECOND = (
    '"one_batch" again at half the rate with twice as many updates; '
    "eight updates a batch again at a quarter of the rate"
)
SLOW_ONE_BATCH = "one_batch, half the rate"  # with twice as many updates and three seeds


@dataclass(frozen=True)
class Arm:
    """A loss or a schedule of updates, and the runs that are made with it."""

    change: dict  # settings that replace those of `COMMON`
    batches: int = 16  # batches of a run
    stride: int = 1  # batches between two points of the curve
    seeds: tuple[int, ...] = SEEDS
    ratio: bool = True  # whether the loss has the importance ratio; if not, the ratio is 1


ARMS = {
    "1 update": Arm({}),
    "2 updates": Arm({"num_iterations": 2}),
    "4 updates": Arm({"num_iterations": 4}),
    "8 updates": Arm(EIGHT_UPDATES),
    "8 updates, no clip": Arm(EIGHT_UPDATES | NO_CLIP),
    "8 updates, no ratio": Arm(EIGHT_UPDATES, ratio=False),
    "8 updates, small steps": Arm(EIGHT_UPDATES | SMALL_STEPS),
    "8 updates, no clip, small steps": Arm(EIGHT_UPDATES | NO_CLIP | SMALL_STEPS),
    "8 updates, no ratio, small steps": Arm(EIGHT_UPDATES | SMALL_STEPS, ratio=False),
    "fresh": Arm({}, batches=128, stride=8),  # 128 updates like "8 updates", each with new answers
    "S3's recipe": Arm(
        S3 | {"learning_rate": 5e-6}, batches=3, seeds=(0,)
    ),  # about as many answers as 16 of our batches
    "S3's recipe, our rate": Arm(S3, batches=3, seeds=(0,)),
    "S3's recipe, our rate, KL": Arm(S3 | {"beta": 0.01}, batches=3, seeds=(0,)),
}
# The same runs after four batches.
for name in ("1 update", "2 updates", "4 updates", "8 updates", "8 updates, no clip"):
    ARMS[f"{name}, 4 batches"] = Arm(ARMS[name].change, batches=4, seeds=THREE_SEEDS)
FOUR_UPDATES = {"num_iterations": 4}
FOR_THIS_MODEL = {"max_completion_length": 64}
# All settings of each loss of the family, with four updates per batch. BNPO equals "4 updates", because a batch here is
# one micro-batch.
for name, member in FAMILY.items():
    if name != "BNPO":
        settings = FOUR_UPDATES | member["trl"] | FOR_THIS_MODEL
        ARMS |= {
            f"family: {name}": Arm(settings, seeds=THREE_SEEDS),
            f"family: {name}, small steps": Arm(settings | SMALL_STEPS, seeds=THREE_SEEDS),
        }
ARMS["4 updates, small steps"] = Arm(FOUR_UPDATES | SMALL_STEPS, seeds=THREE_SEEDS)

cached_problems = cache(addition_problems)


def load_tiny() -> tuple:
    """Load the tiny model and its tokenizer without printing."""
    with contextlib.redirect_stdout(io.StringIO()):
        return load_policy("tiny", device="cpu")


def run(arm: Arm, seed: int, batches: int, rows: list[dict]) -> dict:
    """Train once; return P(<think>) during training, and measures of the answers to held-out problems."""
    model, tokenizer = load_tiny()
    thinking = []

    def measure_thinking(step: int, metrics: dict) -> None:
        if step % arm.stride == 0:
            thinking.append(round(thinking_probability(model, tokenizer, rows), 4))

    config = GRPOConfig(
        reward_weights=SUMS_WEIGHTS, max_steps=batches, seed=seed, disable_tqdm=True, **(COMMON | arm.change)
    )
    problems = cached_problems("train", NUM_TRAINING_SUMS, seed)
    # Without old log-probabilities, the current policy counts as the old one, so each ratio is 1.
    without_ratio = patch("grpo_lab.trainer.loop.logprobs_without_gradient", lambda *_: None)
    with contextlib.nullcontext() if arm.ratio else without_ratio:
        train(model, tokenizer, problems, SUMS_REWARDS, config, callback=measure_thinking)
    return {"thinking": thinking} | measure_answers(model, tokenizer, rows)


def one_batch(name: str, seed: int, updates: int, rows: list[dict], slower: int = 1) -> dict:
    """Make many updates on one batch of 64 answers, and measure the policy on new answers between them.

    Args:
        name: Loss of the updates, one of `ONE_BATCH`. "no way back" is the clipped loss without any gradient on a first
            token whose ratio has left the range, even if the gradient would move it back. "ratio if bad" and "ratio if
            good" apply the importance ratio to the tokens of bad or good answers only.
        seed: Seed from which answers and problems are drawn.
        updates: Number of updates.
        rows: Held-out problems.
        slower: Factor of the number of updates, and divisor of the learning rate. The policy is measured every second
            update for 1, and every eighth for 2.

    Returns:
        Curves "thinking" and "accuracy".
    """
    base, tokenizer = load_tiny()
    torch.manual_seed(seed)
    problems = cached_problems("train", NUM_TRAINING_SUMS, seed)[:4]
    config = GRPOConfig(reward_weights=SUMS_WEIGHTS, **COMMON)
    batch, _ = collect(base, tokenizer, problems, SUMS_REWARDS, config)
    rollout, mask = batch.rollout, batch.loss_mask
    inputs = (rollout.prompt_ids, rollout.prompt_mask, rollout.completion_ids, mask, rollout.prompt_of_row)
    good = (batch.advantages > 0)[:, None]
    none = torch.zeros_like(mask)
    with_ratio = {"no ratio": none, "ratio if bad": mask & ~good, "ratio if good": mask & good}.get(name, mask)
    settings = {} if name == "no way back" else BOUNDS.get(name, NO_CLIP)
    first = mask.cumsum(1) == 1
    policy = copy.deepcopy(base)
    thinking = []
    accuracy = []
    sampled = None
    optimizer = torch.optim.AdamW(policy.parameters(), lr=COMMON["learning_rate"] / slower, weight_decay=0.0)
    for step in range(slower * updates + 1):
        logp = torch.where(mask, compute_logprobs(policy, *inputs, with_entropy=False)[0], 0)
        sampled = logp.detach() if sampled is None else sampled
        old_logp = torch.where(with_ratio, sampled, logp.detach())
        if name == "no way back":
            has_left = first & ((logp.detach() - sampled).exp() - 1).abs().gt(0.2)
            logp = torch.where(has_left, logp.detach(), logp)
        value, _ = policy_loss(logp, batch.advantages, mask, old_logp, loss_type="dapo", **settings)
        if step == slower * updates or (step % (2 * slower**2) == 0 and name not in MEASURED_AT_END):
            thinking.append(round(thinking_probability(policy, tokenizer, rows), 4))
            accuracy.append(measure_answers(policy, tokenizer, rows)["accuracy"])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return {"thinking": thinking, "accuracy": accuracy}


def measure_answers(model, tokenizer, rows: list[dict]) -> dict:
    """Return the fractions of right and of thinking answers, of four samples to each held-out problem."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        rollout = sample_completions(model, tokenizer, [row["prompt"] for row in rows], 4, 64)
    rewards, _, _ = reward_rollout(rollout, rows, SUMS_REWARDS[0])
    thinks = torch.tensor([text.startswith("<think>") for text in rollout.texts])
    checks = {"accuracy": rewards >= 1, "thinks": thinks}
    return {name: round(values.float().mean().item(), 4) for name, values in checks.items()}


@command("notebooks/runs/record_objective.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    file = prepare_recording(args, "objective.json")
    rows = cached_problems("test", 4 if args.fast else 200, seed=1)
    record = read_json(file, {"runs": []})
    record["machine"], record["settings"] = describe_machine("cpu"), COMMON | {"held_out": len(rows)}
    record["second"] = SECOND
    model, tokenizer = load_tiny()
    record["base"] = {"thinking": round(thinking_probability(model, tokenizer, rows), 4)}
    record["base"] |= measure_answers(model, tokenizer, rows)
    for name in args.arms:
        for seed in args.seeds or ARMS[name].seeds:
            if not is_recorded(record["runs"], arm=name, seed=seed):
                recorded = run(ARMS[name], seed, 2 * ARMS[name].stride if args.fast else ARMS[name].batches, rows)
                record["runs"].append({"arm": name, "seed": seed} | recorded)
                write_json(file, record)
                print(name, seed, f"accuracy {recorded['accuracy']:.2f}, think {recorded['thinking'][-1]:.2f}")
    for part, seeds, slower in (("one_batch", SEEDS, 1), (SLOW_ONE_BATCH, THREE_SEEDS, 2)):
        for seed in args.seeds or seeds:
            recorded = record.setdefault(part, {}).setdefault(str(seed), {})
            for name in ONE_BATCH:
                if name not in recorded:
                    recorded[name] = one_batch(name, seed, 2 if args.fast else UPDATES, rows[:100], slower)
                    write_json(file, record)
                    print(part, name, seed, recorded[name]["accuracy"][-1], recorded[name]["thinking"][-1])


def _parser() -> Parser:
    return recorder_parser(
        "record_objective", __doc__, arms=ARMS, seeds=(), fast_help="two points a run, four problems"
    )


if __name__ == "__main__":
    sys.exit(main())
