"""Record GRPO with tool calls on a real Qwen in qwen_tools.json, for docs/agents.md.

    python -m grpo_lab.models get qwen                                       fetch the model, once
    python notebooks/runs/record_qwen_tools.py                               both runs: an hour of one core, 12 GB
    python notebooks/runs/record_qwen_tools.py --fast --model FOLDER         two problems, small batches; into outputs/

The problems are products of a three-digit and a two-digit number. Qwen2.5-Coder-0.5B-Instruct may call a calculator.
The reward is 1 if the last turn is the right number and nothing else; a call has no reward. The second run has a fifth
of the learning rate and another seed. The record is written after every step. The untrained model is measured once,
and an interrupted run resumes from its last checkpoint.
"""

import argparse
import json
import random
import sys
from pathlib import Path

import torch
from recording import FAST_HELP, metric_columns, prepare_recording, read_json, recorder_parser, rounded

from grpo_lab.base import Parser, command
from grpo_lab.base.checks import check_at_least
from grpo_lab.bench.record import describe_machine, write_json
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import PRECISIONS
from grpo_lab.evaluate import evaluation_metrics
from grpo_lab.models import load_policy
from grpo_lab.models.packaged import QWEN
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.tasks.builtin_problems import calculate
from grpo_lab.trainer import sample_and_reward, train

SYSTEM = "Answer with the number alone."
RUNS = {"first": {"learning_rate": 5e-6, "seed": 0}, "a fifth of the rate": {"learning_rate": 1e-6, "seed": 1}}
SETTINGS = {"num_generations": 8, "generation_batch_size": 32, "warmup_steps": 0}
SETTINGS |= {"max_completion_length": 96, "max_tool_calling_iterations": 1}
SETTINGS |= {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2}
SHORT = {"num_generations": 2, "generation_batch_size": 4, "per_device_train_batch_size": 4}
SHORT |= {"gradient_accumulation_steps": 1, "max_completion_length": 60}
METRICS = ("reward", "tools/call_frequency", "tools/failure_frequency", "completions/mean_length", "entropy")
METRICS += (
    "grad_norm",
    "completions/clipped_ratio",
    "frac_reward_zero_std",
    "sampling/logp_difference_max",
    "step_time",
)


def calculator(expression: str) -> str:
    """Work out a term.

    Args:
        expression: whole numbers with +, - and *, such as "12*34"
    """
    result = calculate(expression.replace(" ", "") + "=")
    if not result:
        raise ValueError('expected whole numbers with +, - and *, such as "12*34"')
    return result


def example_without_call(term: str, answer: str) -> list[dict]:
    """Return a worked example without a call of the tool."""
    return [{"role": "user", "content": f"What is {term}?"}, {"role": "assistant", "content": answer}]


def example_with_call(term: str, answer: str) -> list[dict]:
    """Return a worked example with a call in this model's format, and its result in the chat template's format."""
    call = json.dumps({"name": "calculator", "arguments": {"expression": term}})
    question, end = example_without_call(term, answer)
    result = {"role": "user", "content": f"<tool_response>\n{answer}\n</tool_response>"}
    return [question, {"role": "assistant", "content": call}, result, end]


# Easy products without the calculator, hard ones with it. The policy has to learn when to call.
EXAMPLES = [
    *example_without_call("12*3", "36"),
    *example_with_call("48*307", "14736"),
    *example_with_call("536*91", "48776"),
    *example_without_call("25*4", "100"),
]


def products(split: str, n: int, seed: int = 0) -> list[dict]:
    """Return n products; the sum of the factors, modulo 5, decides whether they are training or held-out."""
    rng, rows = random.Random(f"products/{split}/{seed}"), []
    while len(rows) < n:
        a, b = rng.randint(101, 999), rng.randint(11, 99)
        if ((a + b) % 5 == 0) == (split == "test"):
            question = {"role": "user", "content": f"What is {a}*{b}?"}
            prompt = [{"role": "system", "content": SYSTEM}, *EXAMPLES, question]
            rows.append({"prompt": prompt, "answer": str(a * b)})
    return rows


def right_at_last(completions, answer, **columns) -> list[float]:
    """Return 1 for each completion whose last turn is the right number and nothing else, and 0 for others."""
    return [
        float(messages[-1]["role"] == "assistant" and messages[-1]["content"].strip() == right)
        for messages, right in zip(completions, answer, strict=True)
    ]


def called(completions, **columns) -> list[float]:
    """Return 1 for each episode with a call and 0 for others; its reward weight is 0."""
    return [float(any(message.get("tool_calls") for message in messages)) for messages in completions]


for function in (calculator, right_at_last, called):
    function.fingerprint = "1"  # compared when a run resumes; raise it after a change of the function


class Recorder:
    """Makes the runs that the record lacks."""

    def __init__(self, args: argparse.Namespace, file: Path):
        self.args = args
        self.settings = SETTINGS | (SHORT if args.fast else {})
        self.held_out = products("test", 2 if args.fast else args.problems, seed=1)
        self.file = file
        self.record = read_json(file, {})

    def measure(self, model, tokenizer) -> dict:
        """Evaluate on held-out products; return accuracy, calls and other measures, and the turns of eight samples."""
        limit, num_generations = self.settings["max_tool_calling_iterations"], self.args.generations
        num_generations = 1 if self.args.fast else num_generations
        scored = sample_and_reward(
            model, tokenizer, self.held_out, [right_at_last, called], num_generations=num_generations,
            max_completion_length=self.settings["max_completion_length"],
            environment=ToolEnvironment([calculator], max_tool_calling_iterations=limit), batch_size=64,
        )  # fmt: skip
        metrics = evaluation_metrics(scored, num_generations)
        turns = scored.turns[:: max(1, len(scored.turns) // 8)]
        return {key: rounded(value) for key, value in metrics.items()} | {"samples": turns}

    def make(self, name: str) -> None:
        """Make one run unless it is recorded; the first call measures the untrained model."""
        args, record = self.args, self.record
        run = record.setdefault("runs", {}).setdefault(name, {})
        if "after" in run:
            return
        model, tokenizer = load_policy(args.model, "cpu", args.precision)
        if "before" not in record:
            record |= {"what": QWEN.weights_source if args.model == "qwen" else f"the model {args.model!r}"}
            record |= {
                "machine": describe_machine("cpu"),
                "precision": args.precision,
                "threads": torch.get_num_threads(),
            }
            record |= {"system": SYSTEM, "examples": EXAMPLES, "settings": self.settings}
            record["before"] = self.measure(model, tokenizer)
            self.write()
        run |= RUNS[name] | {"max_steps": args.steps}
        folder = args.output_dir / name.replace(" ", "_")
        config = GRPOConfig(
            **self.settings, **RUNS[name], max_steps=args.steps, precision=args.precision,
            reward_weights=[1.0, 0.0], save_steps=args.save_steps, save_total_limit=1, output_dir=str(folder),
            disable_tqdm=True, resume_from_checkpoint=folder.is_dir(),
        )  # fmt: skip

        def after_step(step: int, metrics: dict) -> None:
            lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            history = [json.loads(line) for line in lines]
            run["metrics"] = metric_columns(history, METRICS)
            self.write()
            numbers = ", ".join(f"{key} {metrics[key]:.3g}" for key in METRICS if key in metrics)
            print(f"{name} {step}: {numbers}", file=sys.stderr, flush=True)

        rows = products("train", 8 if args.fast else 400, run["seed"])
        train(model, tokenizer, rows, [right_at_last, called], config, tools=[calculator], callback=after_step)
        run["after"] = self.measure(model, tokenizer)
        self.write()

    def write(self) -> None:
        write_json(self.file, self.record)


@command("notebooks/runs/record_qwen_tools.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    for name in ("steps", "save_steps", "problems", "generations"):
        check_at_least(name, getattr(args, name), 1)
    recorder = Recorder(args, prepare_recording(args, "qwen_tools.json"))
    for name in args.runs:
        recorder.make(name)
        before, after = recorder.record["before"], recorder.record["runs"][name]["after"]
        for key in ("accuracy", "rewards/called/mean"):
            print(f"{name}: {key} {before[key]} before, {after[key]} after")


def _parser() -> Parser:
    parser = recorder_parser("record_qwen_tools", __doc__, fast_help=FAST_HELP, output_dir=True)
    parser.add_argument("--steps", type=int, default=10, help="of a run (default 10)")
    parser.add_argument("--save_steps", type=int, default=5, help="steps between two checkpoints (default 5)")
    parser.add_argument("--runs", nargs="+", choices=list(RUNS), default=list(RUNS), help="default: both")
    parser.add_argument("--problems", type=int, default=32, help="held-out problems (default 32)")
    parser.add_argument("--generations", type=int, default=1, help="completions of each (default 1)")
    parser.add_argument("--precision", choices=list(PRECISIONS), default="fp32", help="default: fp32")
    parser.add_argument("--model", default="qwen", help='"qwen" or a folder (default qwen)')
    return parser


if __name__ == "__main__":
    sys.exit(main())
