"""Record in rewards.json what the tiny model learns under good and bad rewards, which notebook 06 shows.

    python notebooks/runs/record_rewards.py                       all arms, three seeds: some 20 minutes on one core
    python notebooks/runs/record_rewards.py --arms "last digit" --seeds 3 4     two more, where seeds differ most
    python notebooks/runs/record_rewards.py --arms longer --seeds 0
    python notebooks/runs/record_rewards.py --fast                hardly anything; into outputs/

Each run is a file of its own in --output_dir, and none is made twice; the record is put together from all that are
there. All arms have the same settings and see the same problems in the same order; they differ by the reward, those
of `rare` also by where they start, at a policy that hardly ever thinks and is right in two per cent; and those
of `hard` by the problems, sums of four numbers, which the tiny model cannot do.
"""

import argparse
import contextlib
import json
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from grpo_lab.advantages import group_advantages
from grpo_lab.bench.__main__ import machine, write_json
from grpo_lab.commands import Parser, command, writable_file, writable_folder
from grpo_lab.config import GRPOConfig
from grpo_lab.evaluate import thinking_probability
from grpo_lab.models import load_policy
from grpo_lab.rewards import accuracy_reward, completion_text, contains_reward, format_reward
from grpo_lab.rollout import sample_completions
from grpo_lab.tasks import addition_problems, addition_row, addition_split
from grpo_lab.trainer import experience as gathering
from grpo_lab.trainer import train

HERE = Path(__file__).parent
STEP = re.compile(r"(\d+)\+(\d+)=(\d+)")


def longer(completions, **kwargs) -> list[float]:
    """A hundredth for each character."""
    return [len(completion_text(completion)) / 100 for completion in completions]


def shorter(completions, **kwargs) -> list[float]:
    """Minus a hundredth for each character."""
    return [-reward for reward in longer(completions)]


def last_digit(completions, answer, **kwargs) -> list[float]:
    """`contains_reward`, where all that is expected is the last digit of the sum."""
    return contains_reward(completions, answer=[expected[-1] for expected in answer])


def gated(completions, answer, **kwargs) -> list[float]:
    """Accuracy, paid only where the format is kept."""
    kept = format_reward(completions)
    return [a * f for a, f in zip(accuracy_reward(completions, answer=answer), kept, strict=True)]


def silent(completions, **kwargs) -> list[float]:
    """1 for no think tag: what makes the policy of which `rare` starts."""
    return [float("<think>" not in completion_text(completion)) for completion in completions]


def priced(completions, answer, price: float = 0.0, **kwargs) -> list[float]:
    """1 or -1 for the right answer between the tags, less a price for each character."""
    right = accuracy_reward(completions, answer=answer)
    return [2 * a - 1 - price * len(completion_text(c)) for a, c in zip(right, completions, strict=True)]


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
    reward: Callable | list[Callable]
    rare: bool = False  # starts at the policy that hardly ever thinks
    first: bool = False  # the first token of each answer alone enters the loss
    rows: Callable = addition_problems


LIMIT_SEEDS = range(8)
PRICES = (0.02, 0.04, 0.05, 0.06, 0.08)
ARMS = {
    "accuracy": Arm("1 for the right number between the answer tags", accuracy_reward),
    "contains": Arm("+1 or -1 for the sum anywhere in the text, 0.002 a character", contains_reward),
    "last digit": Arm("the same, where only the sum's last digit is expected", last_digit),
    "longer": Arm("0.01 a character", longer),
    "shorter": Arm("-0.01 a character", shorter),
    "rare, accuracy": Arm("accuracy", accuracy_reward, rare=True),
    "rare, accuracy + format": Arm("accuracy + format, weights 1 and 1", [accuracy_reward, format_reward], rare=True),
    "rare, gated": Arm("accuracy, only where the format is kept", gated, rare=True),
    "hard, accuracy": Arm("accuracy", accuracy_reward, rows=four_numbers),
    "hard, accuracy + format": Arm("accuracy + format", [accuracy_reward, format_reward], rows=four_numbers),
} | {f"price {price:g}": Arm(f"+1 or -1, {price:g} a character", partial(priced, price=price)) for price in PRICES}
ARMS["price 0.05, first token alone"] = replace(ARMS["price 0.05"], first=True)


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


class Watched:
    """Held-out measurements of a policy."""

    def __init__(self, settings: Settings, rows: Callable):
        self.settings = settings
        self.rows = rows("test", settings.problems, seed=1)

    def of(self, model, tokenizer) -> dict:
        s, prompts = self.settings, [row["prompt"] for row in self.rows]
        with torch.random.fork_rng():
            torch.manual_seed(1)
            rollout = sample_completions(model, tokenizer, prompts, s.samples, s.length)
        texts, answers = rollout.texts, [row["answer"] for row in self.rows for _ in range(s.samples)]
        right = accuracy_reward(texts, answer=answers)
        mean = lambda values: round(sum(values) / len(values), 4)  # noqa: E731
        return {
            "thinking": round(thinking_probability(model, tokenizer, self.rows), 4),
            "accuracy": mean(right),
            "contained": mean([reward > 0 for reward in contains_reward(texts, answer=answers)]),
            "last digit": mean([reward > 0 for reward in last_digit(texts, answer=answers)]),
            "format": mean(format_reward(texts)),
            "characters": mean([len(text) for text in texts]),
            "steps": steps_by_outcome(texts, right),
            "problems": [row["prompt"][-1]["content"] for row in self.rows[:8]],
            "answers": [row["answer"] for row in self.rows[:8]],
            "samples": texts[:: s.samples][:8],
        }


def steps_by_outcome(texts: list[str], right: list[float]) -> dict[str, list[int]]:
    """Of the answers that are right, and of those that are wrong: right equations, all equations, answers with any."""
    counts = {"right": [0, 0, 0], "wrong": [0, 0, 0]}
    for text, is_right in zip(texts, right, strict=True):
        equations = STEP.findall(text.split("</think>")[0]) if "<think>" in text else []
        of_kind = counts["right" if is_right else "wrong"]
        of_kind[0] += sum(int(a) + int(b) == int(c) for a, b, c in equations)
        of_kind[1] += len(equations)
        of_kind[2] += bool(equations)
    return counts


def make(name: str, seed: int, settings: Settings, folder: Path) -> None:
    """One run, if it is not there yet."""
    file = folder / f"{re.sub('[^a-z0-9.]+', '_', name)}-{seed}.json"
    if file.is_file():
        return
    arm, watched = ARMS[name], Watched(settings, ARMS[name].rows)
    model, tokenizer = load_policy("tiny", device="cpu")
    if arm.rare:
        silence(model, tokenizer, settings)
    start = folder / f"{'rare' if arm.rare else arm.rows.__name__}.json"  # the same policy for all seeds
    if not start.is_file():
        write_json(start, watched.of(model, tokenizer))
    before, thinking = json.loads(start.read_text(encoding="utf-8")), []

    def watch(step: int, metrics: dict) -> None:
        thinking.append(round(thinking_probability(model, tokenizer, watched.rows[:64]), 4))

    rows, config = arm.rows("train", 20_000, seed=seed), configured(settings, settings.steps, seed)
    with first_token_alone() if arm.first else contextlib.nullcontext():
        history = train(model, tokenizer, rows, arm.reward, config, callback=watch)
    kept = {key: [round(step[key], 4) for step in history] for key in ("reward", "completions/mean_length", "entropy")}
    parts = [key for key in history[0] if key.startswith("rewards/") and key.endswith("/mean")]
    kept |= {key: [round(step[key], 4) for step in history] for key in parts} | {"thinking": thinking}
    run = {"arm": name, "seed": seed, "metrics": kept, "before": before, "after": watched.of(model, tokenizer)}
    write_json(file, run)
    print(f"{name}, seed {seed}: {run['after']['accuracy']:.2f} held out", file=sys.stderr, flush=True)


def limits(settings: Settings) -> list[dict]:
    """The price of a character at which thinking stops paying, of the untrained model, from one batch for each seed.

    "mean rewards" is Eq. (6.a). "advantages" is the first price at which the answers that think have a mean advantage
    of zero or less.
    """
    model, tokenizer = load_policy("tiny", device="cpu")
    found, prices = [], [value / 10_000 for value in range(200, 800, 5)]
    for seed in LIMIT_SEEDS:
        torch.manual_seed(seed)
        rows = addition_problems("train", settings.problems, seed=seed)
        texts = sample_completions(model, tokenizer, [r["prompt"] for r in rows], settings.group, settings.length).texts
        answers = [row["answer"] for row in rows for _ in range(settings.group)]
        right, length = (
            torch.tensor(accuracy_reward(texts, answer=answers)),
            torch.tensor([len(t) * 1.0 for t in texts]),
        )
        thinks = torch.tensor(["<think>" in text for text in texts])
        if not 0 < thinks.sum() < len(thinks):  # of a handful
            continue
        more, longer_by = (x[thinks].mean() - x[~thinks].mean() for x in (right, length))
        paid = {p: torch.tensor(priced(texts, answers, price=p)).view(-1, settings.group) for p in prices}
        push = {p: group_advantages(paid[p]).flatten()[thinks].mean().item() for p in prices}
        limit = min((p for p in prices if push[p] <= 0), default=prices[-1])
        found.append({"seed": seed, "mean rewards": round((2 * more / longer_by).item(), 4), "advantages": limit})
    return found


def silence(model, tokenizer, settings: Settings) -> None:
    """Train thinking away, always with the same seed: the start of the arms called rare."""
    rows = addition_problems("train", 2000, seed=99)
    train(model, tokenizer, rows, silent, configured(settings, settings.silent_steps, 99))


@contextlib.contextmanager
def first_token_alone():
    """Within it, the trainer's loss sees the first token of each answer and no other."""
    made = gathering.make_experience

    def first(*arguments, **keywords):
        experience = made(*arguments, **keywords)
        mask = experience.mask.clone()
        mask[:, 1:] = False
        return replace(experience, mask=mask)

    gathering.make_experience = first
    try:
        yield
    finally:
        gathering.make_experience = made


def configured(settings: Settings, steps: int, seed: int) -> GRPOConfig:
    return GRPOConfig(
        max_steps=steps, generation_batch_size=settings.batch, num_generations=settings.group,
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
        for seed in args.seeds:
            for arm in args.arms:
                make(arm, seed, settings, args.output_dir)
        if not (args.output_dir / "limits.json").is_file():
            write_json(args.output_dir / "limits.json", {"limits": limits(settings)})
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(args.output_dir.glob("*-*.json"))]
    runs.sort(key=lambda run: (list(ARMS).index(run["arm"]), run["seed"]))
    record = {
        "what": "the tiny model that ships with grpo_lab",
        "machine": machine("cpu") | {"threads": 1},
        "settings": vars(settings) | {"learning_rate": GRPOConfig().learning_rate},
        "arms": {name: arm.says for name, arm in ARMS.items()},
        "limits": json.loads((args.output_dir / "limits.json").read_text(encoding="utf-8"))["limits"],
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
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--fast", action="store_true", help="hardly anything: only to see that everything works")
    parser.add_argument("--output_dir", type=writable_folder, default=Path("outputs/record_rewards"))
    parser.add_argument("--json", type=writable_file, help="default: notebooks/runs/rewards.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
