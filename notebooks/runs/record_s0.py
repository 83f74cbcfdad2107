"""Record the settings of the notebook S0 in s0.json, which notebook 08 shows: on the tiny model, and on SmolLM2.

    python notebooks/runs/record_s0.py                             all runs: about half an hour on one core
    python notebooks/runs/record_s0.py --models tiny --seeds 0     the tiny model alone: a minute
    python notebooks/runs/record_s0.py --fast                      hardly anything; into outputs/

S0 trains with beta 0.05, two updates a batch, an entropy bonus, the reference on the CPU, and shows the best sample of
every step. Here the end token is in the loss, the estimator of the KL is k3, and nothing is cut off while sampling.
Beside the runs, SmolLM2 is asked problems in GSM8K's form, with a worked example in the prompt and without one.

Each run is a file of its own in --output_dir, and none is made twice; the record is put together from all that are
there.
"""

import argparse
import contextlib
import json
import math
import sys
from pathlib import Path

import torch

from grpo_lab.bench.__main__ import machine, write_json
from grpo_lab.checks import check_at_least, check_between
from grpo_lab.commands import Parser, command, writable_file, writable_folder
from grpo_lab.config import GRPOConfig
from grpo_lab.models import load_policy
from grpo_lab.precision import autocast_as_loaded
from grpo_lab.rewards import contains_reward, final_answer_reward, format_reward
from grpo_lab.rollout import sample_completions
from grpo_lab.tasks import chat_tasks, word_problems
from grpo_lab.tasks.chats import ANSWER_ONLY
from grpo_lab.tasks.gsm8k import EXAMPLE
from grpo_lab.tasks.rows import asking, with_system
from grpo_lab.trainer import train

HERE = Path(__file__).parent
S0 = {
    "num_generations": 4,
    "generation_batch_size": 16,
    "max_completion_length": 48,
    "beta": 0.05,
    "num_iterations": 2,
    "epsilon": 0.2,
    "entropy_coef": 0.01,
    "ref_model_device": "cpu",
    "warmup_steps": 0,
}
RATES = {"tiny": (2e-6, 2e-5, 2e-4), "smollm2": (2e-6, 2e-5)}  # the first is S0's
STEPS = {"tiny": 30, "smollm2": 10}  # 30 are S0's
PRECISION = {"tiny": "fp32", "smollm2": "fp32-master"}
KEPT = ("reward", "kl", "clip_ratio/region_mean", "entropy", "completions/mean_length", "frac_reward_zero_std")
KEPT += ("grad_norm", "loss")
SAMPLES = {"tiny": 100, "smollm2": 32}  # of each question, before and after
GROUP = 8  # answers to a problem in GSM8K's form


def questions_for(model_name: str) -> list[dict]:
    """The four tasks: as the tiny model was warmed up on them, or in English with an instruction."""
    return chat_tasks() if model_name == "tiny" else with_system(chat_tasks("en"), ANSWER_ONLY["en"])


def stories(with_example: bool, count: int) -> list[dict]:
    """Word problems in GSM8K's form: the same instruction, and the same worked example or none."""
    rows = word_problems("test", count)
    return [
        row | {"prompt": asking(row["prompt"][-1]["content"], row["prompt"][0]["content"], EXAMPLE)}
        if with_example
        else row
        for row in rows
    ]


class BestOfStep:
    """The reward, which notes the best completion of every step while it passes."""

    __name__ = "contains_reward"

    def __init__(self):
        self.noted = []

    def __call__(self, completions, answer, **kwargs) -> list[float]:
        rewards = contains_reward(completions, answer=answer)
        best = max(range(len(rewards)), key=rewards.__getitem__)
        self.noted.append([round(rewards[best], 3), completions[best][-1]["content"]])
        return rewards


class Recorder:
    """A folder with a file for each run, and the record that is put together from them."""

    def __init__(self, args: argparse.Namespace):
        self.folder, self.fast, self.aliases = args.output_dir, args.fast, args.stand_in
        self.settings = S0 | ({"max_completion_length": 6} if args.fast else {})

    def load(self, name: str):
        return load_policy(self.aliases or name, device="cpu", precision=PRECISION[name])

    def measured(self, model, tokenizer, name: str) -> dict:
        """How often the wanted text is among the samples of each question, how long they are, and the greedy reply."""
        rows, count = questions_for(name), 4 if self.fast else SAMPLES[name]
        length = self.settings["max_completion_length"]
        texts = self.sampled(model, tokenizer, rows, count, length)
        right = contains_reward(texts, answer=[row["answer"] for row in rows for _ in range(count)])
        return {
            "rates": [sum(score > 0 for score in right[i : i + count]) / count for i in range(0, len(right), count)],
            "characters": sum(map(len, texts)) / len(texts),
            "greedy": self.sampled(model, tokenizer, rows, 1, length, top_k=1),
        }

    @staticmethod
    def sampled(model, tokenizer, rows: list[dict], count: int, length: int, **sampling) -> list[str]:
        texts = []
        with torch.random.fork_rng(), autocast_as_loaded(model):
            torch.manual_seed(1)
            for row in rows:
                texts += sample_completions(model, tokenizer, [row["prompt"]], count, length, **sampling).texts
        return texts

    def make(self, name: str, rate: float, seed: int) -> None:
        """One run, if it is not there yet."""
        file = self.folder / f"{name}_{rate:g}_{seed}.json"
        if file.is_file():
            return
        model, tokenizer = self.load(name)
        rows, reward = questions_for(name), BestOfStep()
        steps = 2 if self.fast else STEPS[name]
        about = {"learning_rate": rate, "seed": seed, "max_steps": steps, "disable_tqdm": True, "save_steps": 0}
        history = train(model, tokenizer, rows, reward, GRPOConfig(**self.settings, **about))
        run = {
            "model": name,
            "learning_rate": rate,
            "seed": seed,
            "after": self.measured(model, tokenizer, name),
            "best_of_step": reward.noted,
            "metrics": {key: [_short(step[key]) for step in history] for key in KEPT},
        }
        write_json(file, run)
        print(f"{name}, {rate:g}, seed {seed}: {run['after']['rates']}", file=sys.stderr, flush=True)

    def make_base(self, name: str) -> None:
        """The model before training, measured in the same way."""
        file = self.folder / f"base_{name}.json"
        if not file.is_file():
            write_json(file, self.measured(*self.load(name), name))

    def make_stories(self, with_example: bool) -> None:
        """Groups of answers to problems in GSM8K's form, by a model that nobody has trained."""
        file = self.folder / f"stories_{with_example}.json"
        if file.is_file():
            return
        model, tokenizer = self.load("smollm2")
        rows = stories(with_example, 2 if self.fast else 12)
        texts = self.sampled(model, tokenizer, rows, GROUP, 6 if self.fast else 80)
        rewards = final_answer_reward(texts, answer=[row["answer"] for row in rows for _ in range(GROUP)])
        groups = [rewards[i : i + GROUP] for i in range(0, len(rewards), GROUP)]
        run = {"example": with_example, "rewards": groups, "format": sum(format_reward(texts)) / len(texts)}
        write_json(file, run | {"problem": rows[0]["prompt"][-1]["content"], "samples": texts[:GROUP]})

    def put_together(self) -> dict:
        """All that is in the folder, in the order of models, rates and seeds."""
        files = [
            self.folder / f"{name}_{rate:g}_{seed}.json"
            for name, rates in RATES.items()
            for rate in rates
            for seed in range(100)
        ]
        bases = {name: self.folder / f"base_{name}.json" for name in RATES}
        told = [self.folder / f"stories_{with_example}.json" for with_example in (False, True)]
        return {
            "what": "the settings of S0 on the tiny model and on SmolLM2-135M-Instruct (out of 4 bits)",
            "machine": machine("cpu") | {"threads": torch.get_num_threads()},
            "settings": self.settings | {"max_steps": STEPS},
            "samples": SAMPLES,
            "questions": {name: [row["prompt"][-1]["content"] for row in questions_for(name)] for name in RATES},
            "wanted": {name: [row["answer"] for row in questions_for(name)] for name in RATES},
            "base": {name: _read(file) for name, file in bases.items() if file.is_file()},
            "runs": [_read(file) for file in files if file.is_file()],
            "stories": [_read(file) for file in told if file.is_file()],
        }


def _read(file: Path) -> dict:
    return json.loads(file.read_text(encoding="utf-8"))


def _short(value: float | None) -> float | None:
    """Four digits are enough for a plot, and for small numbers too."""
    return value if value is None or not math.isfinite(value) else float(f"{value:.4g}")


@command("notebooks/runs/record_s0.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    check_at_least("threads", args.threads, 1)
    for seed in args.seeds:
        check_between("seeds", seed, 0, 99)
    torch.set_num_threads(args.threads)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    args.json = args.json or (args.output_dir if args.fast else HERE) / "s0.json"
    recorder = Recorder(args)
    with contextlib.redirect_stdout(sys.stderr):
        if "smollm2" in args.models:
            for with_example in (False, True):
                recorder.make_stories(with_example)
        for seed in args.seeds:
            for name in args.models:
                recorder.make_base(name)
                for rate in args.rates or RATES[name]:
                    recorder.make(name, rate, seed)
    record = recorder.put_together()
    write_json(args.json, record)
    print(f"{args.json}: {len(record['runs'])} runs")


def _parser() -> Parser:
    parser = Parser(
        prog="python notebooks/runs/record_s0.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", choices=list(RATES), default=list(RATES), help="(default: both)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rates", type=float, nargs="+", help="learning rates (default: those of the record)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--stand_in", help='a model in place of each, such as "tiny"; for tests')
    parser.add_argument("--fast", action="store_true", help="hardly anything: only to see that everything works")
    parser.add_argument("--output_dir", type=writable_folder, default=Path("outputs/record_s0"))
    parser.add_argument("--json", type=writable_file, help="default: notebooks/runs/s0.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
