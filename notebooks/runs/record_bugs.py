"""Write bugs.json: short runs of the tiny model, each with one planted mistake of `grpo_lab.teaching.bugs`.

    python notebooks/runs/record_bugs.py

All arms have the same settings, problems and seeds; "healthy" has no mistake. Two arms keep weights in bf16: one has
the mistake, the other ("healthy, bf16") is its control. The blind runs of notebook 09 have other seeds, and record a
few samples after their last step. Recorded runs are kept.
"""

import argparse
import json
import math
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from recording import is_recorded, prepare_recording, read_json, recorder_parser, rounded

from grpo_lab.base import Parser, command
from grpo_lab.bench.record import describe_machine
from grpo_lab.models import load_policy
from grpo_lab.rewards import accuracy_reward
from grpo_lab.tasks import addition_problems
from grpo_lab.teaching.bugs import BUGS
from grpo_lab.trainer import GRPOConfig, collect, train
from grpo_lab.trainer.evaluation import kl_to_reference

SETTINGS = {
    "max_steps": 12,
    "num_generations": 8,
    "generation_batch_size": 64,
    "num_iterations": 2,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 4,
    "temperature": 0.8,
    "beta": 0.05,
    "learning_rate": 2e-4,
}
HEALTHY, BF16 = ("healthy", "healthy, bf16"), ("healthy, bf16", "pure-bf16-adamw")
HUNTED = (
    *("temperature-mismatch", "retokenised", "off-by-one", "microbatch-mean", "group-mixed", "no-centre"),
    *("eos-trimmed", "k1-as-loss", "ratio-quotient", "old-not-frozen", "ref-not-frozen", "pure-bf16-adamw"),
)
PLUS_ONE = {"healthy, paid 2 and 1": "healthy", "no-centre, paid 2 and 1": "no-centre"}
BLIND = {"P": "no-centre", "Q": "old-not-frozen", "R": "healthy", "S": "answers-mixed", "T": "temperature-mismatch"}
SECONDS = ("time/", "step_time", "tokens_per_second")  # beginnings of metrics that are not recorded


def two_and_one(completions, answer, **kwargs):
    """Return `accuracy_reward` plus 1 for each completion."""
    return [1 + reward for reward in accuracy_reward(completions, answer)]


def run(name: str, seed: int, settings: dict, samples: bool = False) -> dict:
    """Train once with the mistake `name`; return the metrics of each step, and measures of the trained policy.

    The measures are the fraction of right answers to held-out sums, and the KL divergence to the model at the start,
    which is loaded anew as the reference.
    """
    model, tokenizer = load_policy("tiny", device="cpu", precision="bf16" if name in BF16 else None)
    config = GRPOConfig(**settings, seed=seed, disable_tqdm=True)
    rows, bug = addition_problems("train", 2000, seed=seed), PLUS_ONE.get(name, name)
    reward = two_and_one if name in PLUS_ONE else accuracy_reward
    recorded, history = {"arm": name, "seed": seed}, []
    with nullcontext() if bug in HEALTHY else BUGS[bug].planted():
        try:
            train(model, tokenizer, rows, reward, config, callback=lambda _, metrics: history.append(metrics))
        except RuntimeError as error:
            return recorded | {"stopped": str(error), "metrics": _columns(history)}
        if samples:  # sampled with the mistake planted
            experience, _ = collect(model, tokenizer, rows[:8], accuracy_reward, config)
            rewarded = zip(experience.rollout.texts, experience.rewards.tolist(), strict=True)
            questions = [row["prompt"][-1]["content"] for row in rows[:2]]
            recorded["samples"] = [
                [questions[i // 8], text, value] for i, (text, value) in enumerate(rewarded) if i < 16 and i % 8 < 3
            ]
    torch.manual_seed(1)
    held_out, base = addition_problems("test", 200, seed=1), load_policy("tiny", device="cpu")[0]
    check = GRPOConfig(num_generations=1, generation_batch_size=200, advantage="none", temperature=config.temperature)
    experience, metrics = collect(model, tokenizer, held_out, accuracy_reward, check)
    recorded |= {"right": round(metrics["reward"], 4), "kl": round(kl_to_reference(model, base, experience, check), 4)}
    return recorded | {"metrics": _columns(history)}


def _columns(history: list[dict]) -> dict[str, list[float | None]]:
    """Return each metric as a list with one value per step, to four digits; None stands for NaN and infinity."""
    names = [key for key in history[0] if not key.startswith(SECONDS) and key != "step"]
    columns = {key: [rounded(float(step[key])) for step in history] for key in names}
    return {key: [x if math.isfinite(x) else None for x in values] for key, values in columns.items()}


@command("notebooks/runs/record_bugs.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    file = prepare_recording(args, "bugs.json")
    settings = SETTINGS | {"max_steps": args.steps}
    record = {
        "machine": describe_machine("cpu") | {"threads": 1},
        "settings": settings,
        "second": "in this run",
    } | read_json(file, {"runs": [], "blind": {}})
    for seed in args.seeds:
        for name in args.arms:
            if not is_recorded(record["runs"], arm=name, seed=seed):
                record["runs"].append(run(name, seed, settings))
                _write(file, record)
    for letter, seed in zip(BLIND, range(20, 25), strict=True):
        if args.blind and letter not in record["blind"]:
            record["blind"][letter] = run(BLIND[letter], seed, settings, samples=True)
            _write(file, record)
    print(f"{file.name}: {len(record['runs'])} runs, {len(record['blind'])} blind ones")


def _write(file: Path, record: dict) -> None:
    file.write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")


def _parser() -> Parser:
    parser = recorder_parser("record_bugs", __doc__, arms=(*HEALTHY, *HUNTED, *PLUS_ONE), seeds=range(3))
    parser.add_argument("--steps", type=int, default=SETTINGS["max_steps"], help="(default 12)")
    parser.add_argument("--blind", action=argparse.BooleanOptionalAction, default=True, help="the five blind runs too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
