"""Record SmolLM2-135M-Instruct on tasks of reasoning-gym in gym.json, which docs/own-task.md shows.

    python notebooks/runs/record_gym.py                 measure the untrained model on all tasks, and make both runs
    python notebooks/runs/record_gym.py --arms sums     one run; existing runs in --output_dir are skipped

Each task is measured before training, as in notebook 07b, because groups with equal rewards give no gradient.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from grpo_lab.base import Parser, command, writable_file, writable_folder
from grpo_lab.bench.record import describe_machine, write_json
from grpo_lab.config import GRPOConfig
from grpo_lab.evaluate import evaluate
from grpo_lab.models import load_policy
from grpo_lab.task_spec import make_task_spec
from grpo_lab.trainer import train

SYSTEM = "Say the answer only."
TASKS = {  # name of the task, reward functions, most tokens of a completion
    "sums": ("gym:chain_sum:max_terms=2,max_digits=1", ["last", "gym"], 12),
    "countdown": ("gym:countdown:min_numbers=3,max_numbers=3", ["gym"], 20),
    "products": ("gym:products:max_digits=1", ["last", "gym"], 12),
    "spelling": ("gym:spell_backward:max_word_len=4", ["gym"], 12),
    "school": ("gym:gsm_symbolic", ["last", "gym"], 48),
}
ARMS = ("sums", "countdown")  # a task on which the model can learn something, and one on which it cannot
SETTINGS = {"learning_rate": 2e-5, "num_generations": 8, "generation_batch_size": 32, "save_steps": 0}
KEPT = ("reward", "completions/mean_length", "frac_reward_zero_std", "entropy", "grad_norm", "step_time")


def measure(model, tokenizer, name: str, problems: int) -> dict:
    """Evaluate the model on held-out problems, with eight samples each."""
    task, rewards, length = TASKS[name]
    choice = make_task_spec(task, rewards, SYSTEM, for_tiny_model=False)
    settings = {"num_generations": 8, "max_completion_length": length, "batch_size": 64}
    return evaluate(model, tokenizer, choice.rows("test", problems, 1), reward_funcs=choice.reward_funcs, **settings)


def run(name: str, seed: int, steps: int, problems: int, device: str) -> dict:
    """Train once; return the training metrics, and evaluations on held-out problems before and after."""
    task, rewards, length = TASKS[name]
    choice = make_task_spec(task, rewards, SYSTEM, for_tiny_model=False)
    model, tokenizer = load_policy("smollm2", device)
    start, started = measure(model, tokenizer, name, problems), time.monotonic()
    sizes = {"max_completion_length": length, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 2}
    config = GRPOConfig(**SETTINGS, **sizes, max_steps=steps, seed=seed, disable_tqdm=True)
    history = train(model, tokenizer, choice.rows("train", None, seed), choice.reward_funcs, config)
    seconds = round(time.monotonic() - started)
    metrics = {key: [step[key] and float(f"{step[key]:.4g}") for step in history] for key in KEPT}
    end = measure(model, tokenizer, name, problems)
    return {"arm": name, "seed": seed, "seconds": seconds, "metrics": metrics, "before": start, "after": end}


@command("notebooks/runs/record_gym.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    torch.set_num_threads(args.threads)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    for name in args.arms:
        for seed in args.seeds:
            file = args.output_dir / f"run-{name}-{seed}.json"
            if not file.is_file():
                write_json(file, run(name, seed, args.steps, args.problems, args.device))
    for name in args.measure:
        if not (file := args.output_dir / f"base-{name}.json").is_file():
            write_json(file, measure(*load_policy("smollm2", args.device), name, args.problems // 2))
    parts = {
        kind: {file.stem.partition("-")[2]: json.loads(file.read_text(encoding="utf-8")) for file in files}
        for kind in ("base", "run")
        if (files := sorted(args.output_dir.glob(f"{kind}-*.json")))
    }
    write_json(
        args.json,
        {
            "what": "SmolLM2-135M-Instruct, dequantised from 4 bits; reasoning-gym 0.1.25",
            "machine": describe_machine() | {"threads": torch.get_num_threads()},
            "settings": SETTINGS | {"max_steps": args.steps, "system_prompt": SYSTEM},
            "tasks": TASKS,
        }
        | parts,
    )


def _parser() -> Parser:
    parser = Parser(
        prog="python notebooks/runs/record_gym.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=ARMS)
    parser.add_argument("--measure", nargs="*", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--problems", type=int, default=24, help="held out; of a task that is only measured, half")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output_dir", type=writable_folder, default=Path("outputs/record_gym"))
    parser.add_argument("--json", type=writable_file, default=Path(__file__).with_name("gym.json"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
