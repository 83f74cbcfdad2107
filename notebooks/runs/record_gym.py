"""Record SmolLM2-135M-Instruct on tasks of reasoning-gym in gym.json, which docs/own-task.md shows.

    python notebooks/runs/record_gym.py                 measure the untrained model on all tasks, and make both runs
    python notebooks/runs/record_gym.py --arms sums     one run; existing runs in --output_dir are skipped

Each task is measured before training, as in notebook 07b, because groups with equal rewards give no gradient.
"""

import sys
import time
from functools import partial

import torch
from recording import RunFiles, metric_columns, prepare_recording, recorder_parser

from grpo_lab.base import Parser, command
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
METRICS = ("reward", "completions/mean_length", "frac_reward_zero_std", "entropy", "grad_norm", "step_time")


def measure(model, tokenizer, name: str, problems: int) -> dict:
    """Evaluate the model on held-out problems, with eight samples each."""
    task, rewards, length = TASKS[name]
    spec = make_task_spec(task, rewards, SYSTEM, for_bundled_model=False)
    settings = {"num_generations": 8, "max_completion_length": length, "batch_size": 64}
    return evaluate(model, tokenizer, spec.rows("test", problems, 1), reward_funcs=spec.reward_funcs, **settings)


def measure_untrained(name: str, problems: int, device: str) -> dict:
    return measure(*load_policy("smollm2", device), name, problems)


def run(name: str, seed: int, steps: int, problems: int, device: str) -> dict:
    """Train once; return the training metrics, and evaluations on held-out problems before and after."""
    task, rewards, length = TASKS[name]
    spec = make_task_spec(task, rewards, SYSTEM, for_bundled_model=False)
    model, tokenizer = load_policy("smollm2", device)
    start, started = measure(model, tokenizer, name, problems), time.monotonic()
    sizes = {"max_completion_length": length, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 2}
    config = GRPOConfig(**SETTINGS, **sizes, max_steps=steps, seed=seed, disable_tqdm=True)
    history = train(model, tokenizer, spec.rows("train", None, seed), spec.reward_funcs, config)
    seconds = round(time.monotonic() - started)
    end = measure(model, tokenizer, name, problems)
    labels = {"arm": name, "seed": seed, "seconds": seconds, "metrics": metric_columns(history, METRICS)}
    return labels | {"before": start, "after": end}


@command("notebooks/runs/record_gym.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    file, files = prepare_recording(args, "gym.json"), RunFiles(args.output_dir)
    for name in args.arms:
        for seed in args.seeds:
            if not files.is_complete(name, seed):
                write_json(files.path(name, seed), run(name, seed, args.steps, args.problems, args.device))
    for name in args.measure:
        files.measure_untrained_once(name, partial(measure_untrained, name, args.problems // 2, args.device))
    runs = {f"{run['arm']}-{run['seed']}": run for run in files.read_all(sorted(ARMS))}
    parts = {"base": files.read_untrained(sorted(TASKS)), "run": runs}
    write_json(
        file,
        {
            "what": "SmolLM2-135M-Instruct, dequantised from 4 bits; reasoning-gym 0.1.25",
            "machine": describe_machine() | {"threads": torch.get_num_threads()},
            "settings": SETTINGS | {"max_steps": args.steps, "system_prompt": SYSTEM},
            "tasks": TASKS,
        }
        | {name: part for name, part in parts.items() if part},
    )


def _parser() -> Parser:
    parser = recorder_parser("record_gym", __doc__, arms=ARMS, seeds=[0], threads=True, output_dir=True)
    parser.add_argument("--measure", nargs="*", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--problems", type=int, default=24, help="held out; of a task that is only measured, half")
    parser.add_argument("--device", default="cpu")
    return parser


if __name__ == "__main__":
    sys.exit(main())
