"""Record the tiny model with a calculator inside its thoughts, in calculator.json, for notebook 11.

    python notebooks/runs/record_calculator.py                    all arms, about 60 minutes on one core
    python notebooks/runs/record_calculator.py --part second      half the rate, twice as long
    python notebooks/runs/record_calculator.py --fast             one step, one seed; into outputs/

When the model writes "17+58=", the environment continues with "75". No reward asks the model to do so. Each arm changes
one thing: the calculator is wrong in 30% of its replies, or always; a call has a penalty of 0.1; or the environment's
tokens are trained as well. Arms with the same seed share their problems.
"""

import contextlib
import io
import random
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from recording import is_recorded, prepare_recording, read_json, recorder_parser, rounded

from grpo_lab.base import Parser, command
from grpo_lab.bench.record import describe_machine, write_json
from grpo_lab.config import GRPOConfig
from grpo_lab.config.settings import SamplingParams
from grpo_lab.models import load_policy
from grpo_lab.rewards import accuracy_reward
from grpo_lab.rollout.environments.environment import sample_rollout
from grpo_lab.rollout.environments.text_environment import TextEnvironment
from grpo_lab.tasks import addition_problems
from grpo_lab.tasks.builtin_problems import STOP_STRINGS, calculate
from grpo_lab.tasks.task_table import NUM_TRAINING_SUMS
from grpo_lab.trainer import collect, update
from grpo_lab.trainer.rewarding import reward_rollout
from grpo_lab.trainer.run import Run

STEPS, EVERY, HELD_OUT = 16, 4, 64
COMMON = {"num_generations": 16, "generation_batch_size": 64, "learning_rate": 2e-4, "warmup_steps": 0}
COMMON |= {"max_completion_length": 128}
ARMS = {
    "calculator": {},
    "alone": {"share_wrong": None},
    "wrong in 30%": {"share_wrong": 0.3},
    "always wrong": {"share_wrong": 1.0},
    "a call costs 0.1": {"cost": 0.1},
    "its tokens trained": {"train_replies": True},
}
PARTS = {"runs": (1, 1), "second": (0.5, 2)}  # factors of the learning rate and of the number of steps

problems = cache(addition_problems)


def calculator(share_wrong: float | None, seed: int) -> TextEnvironment | None:
    """Return a calculator whose result is 1 to 9 too high in a share of its replies; None if that share is None."""
    if share_wrong is None:
        return None
    rng = random.Random(seed)

    def respond(texts: list[str]) -> list[str]:
        results = [calculate(text) for text in texts]
        errors = [rng.random() < share_wrong and rng.randint(1, 9) for _ in results]
        return [str(int(result) + error) if result else "" for result, error in zip(results, errors, strict=True)]

    return TextEnvironment(respond, STOP_STRINGS)


def make_call_cost(cost: float) -> Callable:
    """Return a reward function that subtracts `cost` for each call of the calculator."""

    def call_cost(completions, **columns) -> list[float]:
        return [-cost * len(re.findall("[0-9]=", text)) for text in map(_last_text, completions)]

    return call_cost


def _last_text(completion) -> str:
    return completion if isinstance(completion, str) else completion[-1]["content"]


@torch.no_grad()
def measure(model, tokenizer, config: GRPOConfig, share_wrong: float | None) -> dict:
    """Measure accuracy, calls, and how often the last reply is the answer, on one completion per held-out problem."""
    rows, environment = problems("test", HELD_OUT, seed=1), calculator(share_wrong, seed=1)
    with torch.random.fork_rng(devices=[]):  # training continues with its own random numbers
        torch.manual_seed(1)
        rollout = sample_rollout(model, tokenizer, rows, SamplingParams(1, config.max_completion_length), environment)
    _, right, _ = reward_rollout(rollout, rows, accuracy_reward)
    calls = [re.findall(r"([0-9]+)=([0-9]+)", text) for text in rollout.texts]
    answers = [re.findall("<answer>([0-9]+)", text) for text in rollout.texts]
    repeated = [
        bool(call and answer and call[-1][1] == answer[-1]) for call, answer in zip(calls, answers, strict=True)
    ]
    return {
        "right": right.mean().item(),
        "calls": sum(map(len, calls)) / len(rows),
        "repeated": sum(repeated) / max(1, sum(map(bool, calls))),
        "thinking": sum("<think>" in text for text in rollout.texts) / len(rows),
    }


def run(arm: str, seed: int, steps: int, rate: float) -> dict:
    change = {"share_wrong": 0.0, "cost": 0.0, "train_replies": False} | ARMS[arm]
    with contextlib.redirect_stdout(io.StringIO()):
        model, tokenizer = load_policy("tiny", device="cpu")
    settings = COMMON | {"learning_rate": rate * COMMON["learning_rate"]}
    config = GRPOConfig(max_steps=steps, seed=seed, disable_tqdm=True, **settings)
    rewards = [accuracy_reward] + [make_call_cost(change["cost"])] * bool(change["cost"])
    environment = calculator(change["share_wrong"], seed)
    updates = []
    measures = []
    with Run(model, tokenizer, problems("train", NUM_TRAINING_SUMS, seed), rewards, config) as training:
        for step in training.steps():
            if step % EVERY == 0:
                measures.append(measure(model, tokenizer, config, change["share_wrong"]))
            experience, metrics = collect(
                model, tokenizer, training.data_rows_of_step(step), rewards, config, environment=environment
            )
            if change["train_replies"]:
                experience = replace(experience, loss_mask=experience.rollout.mask)
            metrics |= update(model, training.optimizer, experience, config, training.learning_rate(step))
            updates.append({name: metrics[name] for name in ("rewards/accuracy_reward/mean", "entropy", "grad_norm")})
            training.record(step, metrics)
    measures.append(measure(model, tokenizer, config, change["share_wrong"]))
    texts = sample_rollout(model, tokenizer, problems("test", 3, seed=1), SamplingParams(1, 128), environment).texts
    end = {"with a right calculator": 0.0, "with a wrong calculator": 1.0, "without one": None}
    end = {name: measure(model, tokenizer, config, share) for name, share in end.items()}
    columns = {name: [rounded(point[name], 3) for point in measures] for name in measures[0]}
    columns |= {name: [rounded(step[name], 3) for step in updates] for name in updates[0]}
    end = {name: {key: rounded(value, 3) for key, value in point.items()} for name, point in end.items()}
    return {"arm": arm, "seed": seed, "rate": settings["learning_rate"]} | columns | {"end": end, "texts": texts}


@command("notebooks/runs/record_calculator.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    file = prepare_recording(args, "calculator.json")
    record = read_json(file, {})
    runs, (rate, times) = record.get(args.part, []), PARTS[args.part]
    for seed in args.seeds[:1] if args.fast else args.seeds:
        for arm in args.arms:
            if not is_recorded(runs, arm=arm, seed=seed):
                runs.append(run(arm, seed, 1 if args.fast else times * STEPS, rate))
                head = {"machine": describe_machine("cpu"), "settings": COMMON | {"held_out": HELD_OUT, "every": EVERY}}
                record |= head | {args.part: runs}
                write_json(file, record)
                print(arm, seed, runs[-1]["right"], runs[-1]["calls"], runs[-1]["end"], flush=True)


def _parser() -> Parser:
    parser = recorder_parser("record_calculator", __doc__, arms=ARMS, seeds=range(3), fast_help="one step, one seed")
    parser.add_argument("--part", choices=PARTS, default="runs", help="what is recorded (default: runs)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
