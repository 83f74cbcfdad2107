"""Record GRPO at the full size of Qwen2-0.5B in qwen2_gpu.json, for those who have no card.

    python notebooks/runs/record_qwen2.py                        everything, in at most nine minutes
    python notebooks/runs/record_qwen2.py --stage warmup         only the base that GRPO starts from
    python notebooks/runs/record_qwen2.py --stage grpo           the runs that the file lacks; again until it is whole
    python notebooks/runs/record_qwen2.py --shape small --fast   the same in little, on a CPU; into outputs/

The trained weights of Qwen2-0.5B are not needed: a model of its architecture is warmed up from random weights on sums,
until it is as hasty as the tiny model is. So these runs show what a step costs, and what a precision mode does to
training; they do not show how well Qwen2 itself learns.
"""

import argparse
import contextlib
import json
import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from make_tiny_qwen2 import build_tokenizer  # beside this file
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from warm_up import WarmUp, arithmetic, warm_up  # beside this file

from grpo_lab.bench.__main__ import machine, write_json
from grpo_lab.commands import Parser, command, writable_file, writable_folder
from grpo_lab.commands.checks import InputError, check_at_least, check_between, check_finite, check_positive
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import PRECISIONS, autocast, has_native_bf16
from grpo_lab.config.settings import LARGEST_SEED
from grpo_lab.evaluate import evaluate
from grpo_lab.models import load_policy, pick_device
from grpo_lab.models.shapes import SHAPES, shape_config
from grpo_lab.tasks import addition_problems
from grpo_lab.train import REWARD_WEIGHTS, REWARDS, TRAINING_PROBLEMS
from grpo_lab.trainer import train

WHAT = "Qwen2-0.5B's architecture, trained from random weights on synthetic problems"
HERE = Path(__file__).parent
TIMES = ("time/rollout", "time/reward", "time/logprobs", "time/update", "step_time")
KEPT = ("reward", "rewards/think_rate/mean", "completions/mean_length", "entropy", "loss", "grad_norm")
KEPT += ("frac_reward_zero_std", "sampling/logp_difference_max", "tokens_per_second", "nonfinite_steps", *TIMES)
MODES = ("bf16", "bf16-naive", "fp32-master")  # the first with every seed, the others with the first


@dataclass(frozen=True)
class Settings:
    warm_up: WarmUp
    grpo: dict  # of GRPOConfig, beside mode and seed
    problems: int  # held out, for each evaluation


FULL = Settings(
    WarmUp(batch_size=256, skill_steps=3000, habit_steps=150, rate=0.5, check_every=100),
    {
        "max_steps": 100,
        "num_generations": 8,
        "generation_batch_size": 128,
        "max_completion_length": 64,
        "learning_rate": 5e-6,
        "gradient_checkpointing": True,
    },
    problems=500,
)
FAST = Settings(
    WarmUp(batch_size=8, skill_steps=4, habit_steps=2, rate=1.0, check_every=2, problems=4),
    {
        "max_steps": 2,
        "num_generations": 4,
        "generation_batch_size": 8,
        "max_completion_length": 12,
        "learning_rate": 1e-3,
        "gradient_checkpointing": True,
    },
    problems=4,
)


class Recorder:
    """One file and one folder with the warm weights; knows what is there already, and how much time is left."""

    def __init__(self, shape: str, device: torch.device, settings: Settings, file: Path, weights: Path, minutes: float):
        self.shape, self.device, self.settings, self.file, self.weights = shape, device, settings, file, weights
        self.started, self.minutes = time.monotonic(), minutes
        self.record = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"runs": []}

    def seconds_left(self) -> float:
        return 60 * self.minutes - (time.monotonic() - self.started)

    def save(self) -> None:
        write_json(self.file, self.record)

    def make_base(self, seconds: float) -> None:
        """Warm a model up and keep it; runs from another base are struck from the record."""
        tokenizer = build_tokenizer()
        with torch.random.fork_rng(), torch.device(self.device):
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(shape_config(self.shape), dtype=torch.float32).eval()
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        record = warm_up(model, tokenizer, self.settings.warm_up, seconds)
        # In bf16, so that every mode starts from exactly the same weights.
        model.to(torch.bfloat16).save_pretrained(self.weights)
        tokenizer.save_pretrained(self.weights)
        self.record = {
            "what": WHAT if self.shape == "qwen2" else f"a model of the shape {self.shape!r}",
            "second": "in this run",
            "shape": self.shape,
            "parameters": model.num_parameters(),
            "machine": machine(self.device.type),
            "warm_up": record,
            "base": self.evaluated(*load_policy(self.weights, self.device, "fp32"), mode="fp32"),
            "grpo": self.settings.grpo,
            "runs": [],
        }
        self.save()

    def evaluated(self, model, tokenizer, mode: str) -> dict:
        rows = addition_problems("test", self.settings.problems, seed=1)
        length = self.settings.grpo["max_completion_length"]
        with autocast(self.device, PRECISIONS[mode]) if mode != "fp32" else arithmetic(self.device):
            return evaluate(model, tokenizer, rows, num_generations=4, max_completion_length=length)

    def lacking(self, seeds: list[int]) -> list[tuple[str, int]]:
        """The runs that are still to be made, the most telling first."""
        without_bf16 = self.device.type == "cuda" and not has_native_bf16(self.device)  # it would emulate it
        modes = ["fp32", "fp16"] if without_bf16 else MODES
        wanted = [(mode, seeds[0]) for mode in modes] + [(modes[0], seed) for seed in seeds[1:]]
        made = {(run["mode"], run["seed"]) for run in self.record["runs"]}
        return [run for run in wanted if run not in made]

    def make_runs(self, seeds: list[int]) -> None:
        """As many as fit: none is begun that would last longer than there is time, by the longest so far."""
        if self.record.get("grpo") != self.settings.grpo or not self.weights.is_dir():
            raise InputError("stage", "grpo", f"no base for these settings in {self.weights}: run --stage warmup first")
        longest = max((run["seconds"] for run in self.record["runs"]), default=0.0)
        for mode, seed in self.lacking(seeds):
            if self.seconds_left() < 1.2 * longest:
                break
            started = time.monotonic()
            run = self.one_run(mode, seed)
            run["seconds"] = time.monotonic() - started
            longest = max(longest, run["seconds"])
            self.record["runs"].append(run)
            self.save()
            accuracy = run["evaluation"]["accuracy"]
            print(f"{mode}, seed {seed}: accuracy {accuracy:.3f}, {run['seconds']:.0f} s", file=sys.stderr, flush=True)
        if lacking := self.lacking(seeds):
            print(f"still lacking: {lacking}; run --stage grpo again", file=sys.stderr)

    def one_run(self, mode: str, seed: int) -> dict:
        """Train from the base; metrics step by step, what the phases took, the peak of memory, and the result."""
        model, tokenizer = load_policy(self.weights, self.device, mode)
        config = GRPOConfig(
            precision=mode,
            seed=seed,
            save_steps=0,
            disable_tqdm=True,
            reward_weights=REWARD_WEIGHTS,
            **self.settings.grpo,
        )
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        history = train(model, tokenizer, addition_problems("train", TRAINING_PROBLEMS, seed), REWARDS, config)
        return {
            "mode": mode,
            "seed": seed,
            "peak_memory": torch.cuda.max_memory_allocated() if self.device.type == "cuda" else None,
            "seconds_per_phase": {name: sum(step[name] for step in history) for name in TIMES},
            "metrics": {name: [_short(step[name]) for step in history] for name in KEPT},
            "weights_moved": self.moved(model),
            "evaluation": self.evaluated(model, tokenizer, mode),
        }

    def moved(self, model) -> float:
        """Share of the weights that are no longer what they were."""
        base = load_file(self.weights / "model.safetensors", device=str(self.device))
        pairs = [(p, base[name]) for name, p in model.named_parameters()]
        return sum((p != before).sum().item() for p, before in pairs) / model.num_parameters()


def _short(value: float | None) -> float | None:
    """Four digits are enough for a plot, and for small numbers too."""
    return value if value is None or not math.isfinite(value) else float(f"{value:.4g}")


@command("notebooks/runs/record_qwen2.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    check_at_least("steps", 1 if args.steps is None else args.steps, 1)
    check_finite("minutes", args.minutes)
    check_positive("minutes", args.minutes)
    for seed in args.seeds:
        check_between("seeds", seed, 0, LARGEST_SEED)
    device = pick_device(args.device)
    settings = FAST if args.fast else FULL
    settings = replace(settings, grpo=settings.grpo | ({"max_steps": args.steps} if args.steps else {}))
    args.output_dir.mkdir(parents=True, exist_ok=True)
    real = args.shape == "qwen2" and not args.fast
    file = args.json or (HERE if real else args.output_dir) / "qwen2_gpu.json"
    recorder = Recorder(args.shape, device, settings, file, args.output_dir / args.shape, args.minutes)
    with contextlib.redirect_stdout(sys.stderr):
        if args.stage != "grpo":
            recorder.make_base(60 * args.minutes * (0.4 if args.stage == "all" else 0.9))
        if args.stage != "warmup":
            recorder.make_runs(args.seeds)
    record = recorder.record
    print(f"{file}: {len(record['runs'])} runs from a base of accuracy {record['base']['accuracy']:.3f}")


def _parser() -> Parser:
    parser = Parser(
        prog="python notebooks/runs/record_qwen2.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--stage", choices=["all", "warmup", "grpo"], default="all")
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen2")
    parser.add_argument("--device", help="default: the card, if there is one")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="GRPO steps a run")
    parser.add_argument("--minutes", type=float, default=9.0, help="no run is begun that would end later (default 9)")
    parser.add_argument("--fast", action="store_true", help="hardly any steps: only to see that everything works")
    parser.add_argument(
        "--output_dir", type=writable_folder, default=Path("outputs/record_qwen2"), help="for the warm weights"
    )
    parser.add_argument("--json", type=writable_file, help="default: notebooks/runs/qwen2_gpu.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
