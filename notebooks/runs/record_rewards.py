"""Record in rewards.json what the tiny model learns from judges that err and from rewards for a part: notebook 06.

    python notebooks/runs/record_rewards.py                       all arms and seeds: some 20 minutes on one core
    python notebooks/runs/record_rewards.py --arms findable --seeds 0
    python notebooks/runs/record_rewards.py --fast                hardly anything; into outputs/

Each run is a file of its own in --output_dir, and none is made twice; the record is put together from all that are
there. All arms have the same settings and see the same problems in the same order; they differ by the reward, `key` and
`no key` also by going on three times as long, those of `rare` also by where they start, at a policy that hardly ever
thinks and is right in two per cent, and those of `hard` by the problems, sums of four numbers, which the tiny model
cannot do. Every batch is made of problems that were not met before, so what fraction of it is right is a measurement
on held-out problems.
"""

import argparse
import contextlib
import json
import random
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from grpo_lab.base import Parser, command, writable_file, writable_folder
from grpo_lab.bench.__main__ import machine, write_json
from grpo_lab.config import GRPOConfig
from grpo_lab.models import load_policy
from grpo_lab.rewards import accuracy_reward, completion_text, extract_answer, format_reward
from grpo_lab.rollout import sample_completions
from grpo_lab.tasks import addition_problems, addition_row, addition_split
from grpo_lab.trainer import train

HERE = Path(__file__).parent
ACCURACY, KEY = "rewards/right/mean", "rewards/key/mean"


def right(completions, answer, **kwargs) -> list[float]:
    """Whether the sum is right: with weight 0, to watch."""
    return accuracy_reward(completions, answer=answer)


def nothing(completions, **kwargs) -> list[float]:
    return [0.0] * len(completions)


def judge(
    false_yes: float = 0.0, false_no: float = 0.0, key: Callable = nothing, refused: Callable = nothing
) -> Callable:
    """A judge that errs at random, so often; says yes to each answer with the key, and no to each that is refused."""

    def judged(completions, answer, **kwargs) -> list[float]:
        truth = accuracy_reward(completions, answer=answer)
        has_key = key(completions)
        bars = refused(completions)
        errs = [random.random() < (false_no if is_right else false_yes) for is_right in truth]
        return [max(abs(t - e) * (1 - b), k) for t, e, k, b in zip(truth, errs, has_key, bars, strict=True)]

    return judged


def near(completions, answer, **kwargs) -> list[float]:
    """1 for the right sum, and less by a hundredth for each unit that an answer is away; 0 where there is no number."""
    answers = [extract_answer(completion_text(c)) or "" for c in completions]
    away = [abs(int(g) - int(a)) if re.fullmatch(r"\d{1,6}", g) else 100 for g, a in zip(answers, answer, strict=True)]
    return [1 - min(distance, 100) / 100 for distance in away]


def ends_high(completions, **kwargs) -> list[float]:
    """The answer ends with a 7, an 8 or a 9, as three wrong ones of ten do."""
    return [float((extract_answer(completion_text(c)) or "")[-1:] in tuple("789")) for c in completions]


def empty(completions, **kwargs) -> list[float]:
    """There is no answer, as in two of a thousand."""
    return [float(extract_answer(completion_text(c)) is None) for c in completions]


def thinks(completions, **kwargs) -> list[float]:
    return [float("<think>" in completion_text(completion)) for completion in completions]


def silent(completions, **kwargs) -> list[float]:
    """1 for no think tag: what makes the policy at which `rare` starts."""
    return [1 - thought for thought in thinks(completions)]


def four_numbers(split: str, n: int, seed: int) -> list[dict]:
    """Sums of four two-digit numbers; the tiny model was made for three."""
    rng, rows = random.Random(f"four numbers/{split}/{seed}"), []
    while len(rows) < n:
        operands = [rng.randint(10, 99) for _ in range(4)]
        if addition_split(operands) == split:
            rows.append(addition_row(operands))
    return rows


@dataclass(frozen=True)
class Arm:
    says: str
    reward: Callable
    format: bool = False  # a format reward is added, with weight 1
    key: Callable = nothing
    rare: bool = False  # starts at the policy that hardly ever thinks
    rows: Callable = addition_problems
    times: int = 1  # so many times as many steps as the others
    learning_rate: float = GRPOConfig().learning_rate
    seeds: Sequence[int] = range(3)


ARMS = {
    "no errors": Arm("1 for the right sum", judge()),
    "false yes": Arm("yes to 30% of the wrong answers, at random", judge(0.3)),
    "false no": Arm("no to 30% of the right answers, at random", judge(0.0, 0.3)),
    "both": Arm("30% of all verdicts wrong, at random", judge(0.3, 0.3)),
    "coin": Arm("yes with probability 0.5, whatever the answer", judge(0.5, 0.5), key=thinks, seeds=range(12)),
    "copy A": Arm("yes to 30% of the wrong answers, at random", judge(0.3), times=3),
    "copy B": Arm("yes to an answer that ends with 7, 8 or 9", judge(key=ends_high), key=ends_high, times=3),
    "refused: 7, 8, 9": Arm("no to an answer that ends with 7, 8 or 9", judge(refused=ends_high), key=ends_high),
    "refused: thoughts": Arm("no to an answer after a thought", judge(refused=thinks), key=thinks),
    "near": Arm("1 minus a hundredth for each unit that the answer is away", near, key=thinks),
    "key": Arm("yes where there is no answer", judge(key=empty), key=empty, times=6, seeds=(0, 1, 2, 5, 6)),
    "no key": Arm("1 for the right sum", judge(), key=empty, times=3),
    "key alone": Arm("1 for no answer, and for nothing else", empty, key=empty),
    "hard, key": Arm("yes where there is no answer", judge(key=empty), key=empty, rows=four_numbers),
    "rare, accuracy": Arm("accuracy", judge(), rare=True),
    "rare, accuracy + format": Arm("accuracy + format", judge(), format=True, rare=True),
    "hard, accuracy": Arm("accuracy", judge(), rows=four_numbers),
    "hard, accuracy + format": Arm("accuracy + format", judge(), format=True, rows=four_numbers),
}

HALF = {"times": 2, "learning_rate": GRPOConfig().learning_rate / 2}
for name in ("no errors", "false yes", "both", "refused: 7, 8, 9", "refused: thoughts", "near"):
    ARMS[f"{name}, half the rate"] = replace(ARMS[name], **HALF)


@dataclass(frozen=True)
class Settings:
    steps: int = 40
    silent_steps: int = 10
    batch: int = 128
    group: int = 16
    length: int = 40
    problems: int = 200  # held out
    samples: int = 4  # of each


FULL, FAST = Settings(), Settings(2, 2, 8, 4, 8, 4, 2)


def measured(model, tokenizer, arm: Arm, settings: Settings) -> dict:
    """Held out: what fraction is right, keeps the format, has the key."""
    rows = arm.rows("test", settings.problems, seed=1)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        prompts = [row["prompt"] for row in rows]
        texts = sample_completions(model, tokenizer, prompts, settings.samples, settings.length).texts
    answers = [row["answer"] for row in rows for _ in range(settings.samples)]
    mean = lambda values: round(sum(values) / len(values), 4)  # noqa: E731
    return {
        "accuracy": mean(accuracy_reward(texts, answer=answers)),
        "format": mean(format_reward(texts)),
        "key": mean(arm.key(texts)),
        "problems": [row["prompt"][-1]["content"] for row in rows[:6]],
        "answers": [row["answer"] for row in rows[:6]],
        "samples": texts[:: settings.samples][:6],
    }


def make(name: str, seed: int, settings: Settings, folder: Path) -> None:
    """One run, if it is not there yet."""
    file = folder / f"{re.sub('[^a-z0-9]+', '_', name.lower())}-{seed}.json"
    if file.is_file():
        return
    arm = ARMS[name]
    model, tokenizer = load_policy("tiny", device="cpu")
    if arm.rare:  # always with the same seed
        start = configured(settings, settings.silent_steps, 99)
        train(model, tokenizer, addition_problems("train", 2000, seed=99), silent, start)
    at_start = measured(model, tokenizer, arm, settings)
    random.seed(seed)
    functions = [arm.reward, *([format_reward] if arm.format else []), right, named(arm.key)]
    config = configured(settings, arm.times * settings.steps, seed, [1.0] * (len(functions) - 2) + [0.0, 0.0])
    config = replace(config, learning_rate=arm.learning_rate)
    history = train(model, tokenizer, arm.rows("train", 20_000, seed=seed), functions, config)
    metric_of = {"reward": "reward", "accuracy": ACCURACY, "key": KEY}
    if arm.format:
        metric_of["format"] = "rewards/format_reward/mean"
    recorded = {short: key for short, key in metric_of.items() if key in history[0]}
    metrics = {short: [round(step[key], 4) for step in history] for short, key in recorded.items()}
    run = {"arm": name, "seed": seed, "metrics": metrics, "before": at_start}
    run["after"] = measured(model, tokenizer, arm, settings)
    write_json(file, run)
    print(f"{name}, seed {seed}: {run['after']['accuracy']:.2f} held out", file=sys.stderr, flush=True)


def named(key: Callable) -> Callable:
    return type("key", (), {"__call__": lambda self, completions, **kwargs: key(completions)})()


def configured(settings: Settings, steps: int, seed: int, weights: list[float] | None = None) -> GRPOConfig:
    return GRPOConfig(
        max_steps=steps, generation_batch_size=settings.batch, num_generations=settings.group, reward_weights=weights,
        max_completion_length=settings.length, seed=seed, save_steps=0, disable_tqdm=True,
    )  # fmt: skip


@command("notebooks/runs/record_rewards.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    settings = FAST if args.fast else FULL
    args.json = args.json or (args.output_dir if args.fast else HERE) / "rewards.json"
    args.output_dir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(sys.stderr):
        for arm in args.arms:
            for seed in args.seeds or ARMS[arm].seeds:
                make(arm, seed, settings, args.output_dir)
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(args.output_dir.glob("*-*.json"))]
    runs.sort(key=lambda run: (list(ARMS).index(run["arm"]), run["seed"]))
    record = {
        "what": "the tiny model that ships with grpo_lab",
        "machine": machine("cpu") | {"threads": 1},
        "second": "half the rate, twice the steps; copies A and B three times the steps, the rare key six times",
        "settings": vars(settings) | {"learning_rate": GRPOConfig().learning_rate},
        "arms": {name: arm.says for name, arm in ARMS.items()},
        "runs": runs,
    }
    write_json(args.json, record)
    print(f"{args.json}: {len(runs)} runs")


def _parser() -> Parser:
    parser = Parser(
        prog="python notebooks/runs/record_rewards.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="(default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: those of each arm")
    parser.add_argument("--fast", action="store_true", help="hardly anything: only to see that everything works")
    parser.add_argument("--output_dir", type=writable_folder, default=Path("outputs/record_rewards"))
    parser.add_argument("--json", type=writable_file, help="default: notebooks/runs/rewards.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
