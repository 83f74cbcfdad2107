"""Record in rewards.json what the tiny model learns from judges that err and from partial rewards, for notebook 06.

    python notebooks/runs/record_rewards.py                       all arms and seeds: some 20 minutes on one core
    python notebooks/runs/record_rewards.py --arms key --seeds 0  one run
    python notebooks/runs/record_rewards.py --fast                two steps; into outputs/

Each run is a file in --output_dir. Existing runs are skipped, and the record is assembled from all runs in the folder.

All arms have the same settings and the same problems in the same order, and differ in their reward. Some arms also
differ in another respect: those with a `step_factor` make more steps; the `rare` arms start at a policy that hardly
ever thinks and is right in two per cent; the problems of the `hard` arms are sums of four numbers, which the tiny model
cannot solve. Every batch has new problems, so its fraction of right answers is a measurement on held-out problems.
"""

import contextlib
import random
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from recording import FAST_HELP, RunFiles, prepare_recording, recorder_parser

from grpo_lab.base import Parser, command
from grpo_lab.bench.record import describe_machine, write_json
from grpo_lab.config import GRPOConfig
from grpo_lab.models import load_policy
from grpo_lab.rewards import accuracy_reward, completion_text, extract_answer, format_reward
from grpo_lab.rollout import sample_completions
from grpo_lab.tasks import addition_problems, addition_row, addition_split
from grpo_lab.trainer import train

ACCURACY, KEY = "rewards/right/mean", "rewards/key/mean"


def right(completions, answer, **kwargs) -> list[float]:
    """Return 1 for a right sum, else 0; its reward weight is 0, so it is only logged."""
    return accuracy_reward(completions, answer=answer)


def never(completions, **kwargs) -> list[float]:
    """Return 0 for each completion."""
    return [0.0] * len(completions)


def judge(
    false_positive: float = 0.0, false_negative: float = 0.0, key: Callable = never, refused: Callable = never
) -> Callable:
    """Return a reward function that judges answers with errors.

    Args:
        false_positive: Probability of a reward of 1 for a wrong answer.
        false_negative: Probability of a reward of 0 for a right answer.
        key: Function that returns 1 for completions that always get a reward of 1.
        refused: Function that returns 1 for completions that get a reward of 0 (unless they have the key).
    """

    def verdicts(completions, answer, **kwargs) -> list[float]:
        truth = accuracy_reward(completions, answer=answer)
        has_key = key(completions)
        is_refused = refused(completions)
        errs = [random.random() < (false_negative if is_right else false_positive) for is_right in truth]
        return [max(abs(t - e) * (1 - r), k) for t, e, k, r in zip(truth, errs, has_key, is_refused, strict=True)]

    return verdicts


def near(completions, answer, **kwargs) -> list[float]:
    """Return 1 minus a hundredth for each unit between the answer and the sum, at least 0; 0 without a number."""
    answers = [extract_answer(completion_text(c)) or "" for c in completions]
    away = [abs(int(g) - int(a)) if re.fullmatch(r"\d{1,6}", g) else 100 for g, a in zip(answers, answer, strict=True)]
    return [1 - min(distance, 100) / 100 for distance in away]


def ends_high(completions, **kwargs) -> list[float]:
    """Return 1 for an answer that ends with 7, 8 or 9, as three of ten wrong answers do."""
    return [float((extract_answer(completion_text(c)) or "")[-1:] in tuple("789")) for c in completions]


def lacks_answer(completions, **kwargs) -> list[float]:
    """Return 1 for a completion without an answer; two of a thousand completions have none."""
    return [float(extract_answer(completion_text(c)) is None) for c in completions]


def has_thought(completions, **kwargs) -> list[float]:
    return [float("<think>" in completion_text(completion)) for completion in completions]


def lacks_thought(completions, **kwargs) -> list[float]:
    """Return 1 for a completion without a think tag; training on it makes the policy from which `rare` arms start."""
    return [1 - thought for thought in has_thought(completions)]


def four_numbers(split: str, n: int, seed: int) -> list[dict]:
    """Return sums of four two-digit numbers; the tiny model was trained on sums of three."""
    rng, rows = random.Random(f"four numbers/{split}/{seed}"), []
    while len(rows) < n:
        operands = [rng.randint(10, 99) for _ in range(4)]
        if addition_split(operands) == split:
            rows.append(addition_row(operands))
    return rows


@dataclass(frozen=True)
class Arm:
    """The reward of a run, and the few settings that differ between runs."""

    description: str
    reward: Callable
    format: bool = False  # whether a format reward is added, with weight 1
    key: Callable = never  # reward function that is logged as "key"
    rarely_thinks: bool = False  # whether training starts at the policy that hardly ever thinks
    rows: Callable = addition_problems
    step_factor: int = 1  # factor of the number of steps
    learning_rate: float = GRPOConfig().learning_rate
    seeds: Sequence[int] = range(3)


ARMS = {
    "no errors": Arm("1 for the right sum", judge()),
    "false yes": Arm("yes to 30% of the wrong answers, at random", judge(0.3)),
    "false no": Arm("no to 30% of the right answers, at random", judge(0.0, 0.3)),
    "both": Arm("30% of all verdicts wrong, at random", judge(0.3, 0.3)),
    "coin": Arm("yes with probability 0.5, whatever the answer", judge(0.5, 0.5), key=has_thought, seeds=range(12)),
    "copy A": Arm("yes to 30% of the wrong answers, at random", judge(0.3), step_factor=3),
    "copy B": Arm("yes to an answer that ends with 7, 8 or 9", judge(key=ends_high), key=ends_high, step_factor=3),
    "refused: 7, 8, 9": Arm("no to an answer that ends with 7, 8 or 9", judge(refused=ends_high), key=ends_high),
    "refused: thoughts": Arm("no to an answer after a thought", judge(refused=has_thought), key=has_thought),
    "near": Arm("1 minus a hundredth for each unit that the answer is away", near, key=has_thought),
    "key": Arm(
        "yes where there is no answer", judge(key=lacks_answer), key=lacks_answer, step_factor=6, seeds=(0, 1, 2, 5, 6)
    ),
    "no key": Arm("1 for the right sum", judge(), key=lacks_answer, step_factor=3),
    "key alone": Arm("1 for no answer, and for nothing else", lacks_answer, key=lacks_answer),
    "hard, key": Arm("yes where there is no answer", judge(key=lacks_answer), key=lacks_answer, rows=four_numbers),
    "rare, accuracy": Arm("accuracy", judge(), rarely_thinks=True),
    "rare, accuracy + format": Arm("accuracy + format", judge(), format=True, rarely_thinks=True),
    "hard, accuracy": Arm("accuracy", judge(), rows=four_numbers),
    "hard, accuracy + format": Arm("accuracy + format", judge(), format=True, rows=four_numbers),
}

HALF = {"step_factor": 2, "learning_rate": GRPOConfig().learning_rate / 2}
for name in ("no errors", "false yes", "both", "refused: 7, 8, 9", "refused: thoughts", "near"):
    ARMS[f"{name}, half the rate"] = replace(ARMS[name], **HALF)


@dataclass(frozen=True)
class Settings:
    """The sizes of runs and measurements."""

    steps: int = 40
    silent_steps: int = 10  # steps of training on `lacks_thought`, for the `rare` arms
    batch: int = 128  # completions of a step
    group: int = 16  # completions of a prompt
    length: int = 40  # tokens of a completion at most
    problems: int = 200  # number of held-out problems
    samples: int = 4  # samples of each held-out problem


FULL, FAST = Settings(), Settings(2, 2, 8, 4, 8, 4, 2)


def measure(model, tokenizer, arm: Arm, settings: Settings) -> dict:
    """Measure the fractions of right answers, of the right format and of the key, on held-out problems."""
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


def make(name: str, seed: int, settings: Settings, files: RunFiles) -> None:
    """Make one run unless its file exists."""
    if files.is_complete(name, seed):
        return
    arm = ARMS[name]
    model, tokenizer = load_policy("tiny", device="cpu")
    if arm.rarely_thinks:  # with one seed, so that all these runs start at the same policy
        start_config = make_config(settings, settings.silent_steps, 99)
        train(model, tokenizer, addition_problems("train", 2000, seed=99), lacks_thought, start_config)
    at_start = measure(model, tokenizer, arm, settings)
    random.seed(seed)
    functions = [arm.reward, *([format_reward] if arm.format else []), right, key_reward(arm.key)]
    config = make_config(settings, arm.step_factor * settings.steps, seed, [1.0] * (len(functions) - 2) + [0.0, 0.0])
    config = replace(config, learning_rate=arm.learning_rate)
    history = train(model, tokenizer, arm.rows("train", 20_000, seed=seed), functions, config)
    metric_of = {"reward": "reward", "accuracy": ACCURACY, "key": KEY}
    if arm.format:
        metric_of["format"] = "rewards/format_reward/mean"
    recorded = {short: key for short, key in metric_of.items() if key in history[0]}
    metrics = {short: [round(step[key], 4) for step in history] for short, key in recorded.items()}
    run = {"arm": name, "seed": seed, "metrics": metrics, "before": at_start}
    run["after"] = measure(model, tokenizer, arm, settings)
    write_json(files.path(name, seed), run)
    print(f"{name}, seed {seed}: {run['after']['accuracy']:.2f} held out", file=sys.stderr, flush=True)


def key_reward(key: Callable) -> Callable:
    """Return a reward function that is logged under the name "key"."""
    return type("key", (), {"__call__": lambda self, completions, **kwargs: key(completions)})()


def make_config(settings: Settings, steps: int, seed: int, weights: list[float] | None = None) -> GRPOConfig:
    return GRPOConfig(
        max_steps=steps, generation_batch_size=settings.batch, num_generations=settings.group, reward_weights=weights,
        max_completion_length=settings.length, seed=seed, save_steps=0, disable_tqdm=True,
    )  # fmt: skip


@command("notebooks/runs/record_rewards.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    settings = FAST if args.fast else FULL
    file, files = prepare_recording(args, "rewards.json"), RunFiles(args.output_dir)
    with contextlib.redirect_stdout(sys.stderr):
        for arm in args.arms:
            for seed in args.seeds or ARMS[arm].seeds:
                make(arm, seed, settings, files)
    runs = files.read_all(ARMS)
    record = {
        "what": "the tiny model that ships with grpo_lab",
        "machine": describe_machine("cpu") | {"threads": 1},
        "second": "half the rate, twice the steps; copies A and B three times the steps, the rare key six times",
        "settings": vars(settings) | {"learning_rate": GRPOConfig().learning_rate},
        "arms": {name: arm.description for name, arm in ARMS.items()},
        "runs": runs,
    }
    write_json(file, record)
    print(f"{file}: {len(runs)} runs")


def _parser() -> Parser:
    return recorder_parser("record_rewards", __doc__, arms=ARMS, seeds=(), fast_help=FAST_HELP, output_dir=True)


if __name__ == "__main__":
    sys.exit(main())
