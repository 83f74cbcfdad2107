"""Record in smollm2_habit.json how often SmolLM2-135M writes a sum out, and how often it is then right.

    python notebooks/runs/record_habit.py             three runs like `plain` of record_smollm2.py: 15 minutes of a core
    python notebooks/runs/record_habit.py --half      the same at half the learning rate; recorded runs are kept

Both probabilities are read from the logits, before and after training, for 24 held-out sums: no sampling noise.
"""

import sys

from recording import is_recorded, prepare_recording, read_json, recorder_parser

from grpo_lab.base import Parser, command
from grpo_lab.bench.record import describe_machine, write_json
from grpo_lab.config import GRPOConfig
from grpo_lab.models import load_policy
from grpo_lab.rewards import last_number_reward
from grpo_lab.tasks.short_sums import short_sums
from grpo_lab.teaching.prefix_probability import prefix_probability
from grpo_lab.trainer import train

SUMS, PRECISION = 24, "fp32-master"
SETTINGS = {
    "learning_rate": 1e-5,
    "num_generations": 8,
    "generation_batch_size": 64,
    "max_completion_length": 20,
    "max_steps": 16,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 4,
}


def written_out_probabilities(model, tokenizer, rows: list[dict]) -> list[list[float]]:
    """Return, for each sum, the probability of the beginning "8 + 9 = " and of the right number after it."""
    probabilities = []
    for row in rows:
        begins = row["prompt"][-1]["content"].removeprefix("What is ").partition("?")[0] + " = "
        probabilities.append([round(p, 6) for p in prefix_probability(model, tokenizer, row, begins, row["answer"])])
    return probabilities


def run(name: str, seed: int, settings: dict, rows: list[dict]) -> tuple[list, dict]:
    """Train once; return the probabilities before training, and the run: its rewards and the probabilities after."""
    model, tokenizer = load_policy(name, device="cpu", precision=PRECISION)
    start = written_out_probabilities(model, tokenizer, rows)
    config = GRPOConfig(**settings, seed=seed, precision=PRECISION, save_steps=0, disable_tqdm=True)
    history = train(model, tokenizer, short_sums("train", seed=seed), last_number_reward, config)
    reward = [round(step["reward"], 4) for step in history]
    return start, {
        "seed": seed,
        "learning_rate": config.learning_rate,
        "reward": reward,
        "after": written_out_probabilities(model, tokenizer, rows),
    }


@command("notebooks/runs/record_habit.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    file = prepare_recording(args, "smollm2_habit.json")
    rate = SETTINGS["learning_rate"] / (2 if args.half else 1)
    settings = SETTINGS | ({} if args.steps is None else {"max_steps": args.steps})
    rows = short_sums("test", seed=1)[:SUMS]
    runs = read_json(file, {"runs": []})["runs"]
    # The oldest recorded runs lack their learning rate, which was the default.
    runs = [{"learning_rate": SETTINGS["learning_rate"]} | recorded for recorded in runs]
    for seed in args.seeds:
        if is_recorded(runs, learning_rate=rate, seed=seed):
            continue
        start, recorded = run(args.model, seed, settings | {"learning_rate": rate}, rows)
        runs = sorted([*runs, recorded], key=lambda recorded: (-recorded["learning_rate"], recorded["seed"]))
        record = {"machine": describe_machine("cpu") | {"threads": 1}, "settings": settings | {"precision": PRECISION}}
        second = ["half the rate"] if runs[-1]["learning_rate"] < settings["learning_rate"] else "in this run"
        write_json(file, record | {"second": second, "before": start, "runs": runs})
    print(f"{file.name}: {len(runs)} runs")


def _parser() -> Parser:
    parser = recorder_parser("record_habit", __doc__, seeds=range(3), model="smollm2")
    parser.add_argument("--half", action="store_true", help="at half the rate: the second setting")
    parser.add_argument("--steps", type=int, help=f"of a run (default {SETTINGS['max_steps']})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
