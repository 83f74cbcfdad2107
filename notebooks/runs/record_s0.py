"""Record the settings of the notebook S0 on SmolLM2 in s0.json, for notebook 07b.

    python notebooks/runs/record_s0.py               three runs, each about 8 minutes of a core
    python notebooks/runs/record_s0.py --seeds 0     one seed
    python notebooks/runs/record_s0.py --fast        hardly anything; into outputs/

S0 is "GRPO 教学（手写公式 + 最小实现，无 LoRA）". It trains Qwen2-0.5B for 30 steps on four questions, one question
with four answers a step, and then chats with it in training mode, with gradient checkpointing on. Here the model is
SmolLM2, and the questions are in English; every other choice is that of S0.

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
from record_smollm2 import train_without_end

from grpo_lab.bench.__main__ import machine, write_json
from grpo_lab.commands import Parser, command, writable_file, writable_folder
from grpo_lab.commands.checks import check_at_least, check_between
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import autocast_as_loaded
from grpo_lab.models import load_policy
from grpo_lab.rewards import contains_reward
from grpo_lab.rollout import encode_prompts
from grpo_lab.tasks import chat_tasks
from grpo_lab.tasks.chats import ANSWER_ONLY
from grpo_lab.tasks.rows import chat_messages, with_system

HERE = Path(__file__).parent
S0 = {
    "max_steps": 30,
    "num_generations": 4,
    "generation_batch_size": 4,  # one question a step
    "max_completion_length": 48,
    "temperature": 1.0,
    "epsilon": 0.2,
    "beta": 0.05,
    "entropy_coef": 0.0,
    "num_iterations": 2,
    "learning_rate": 2e-6,
    "warmup_steps": 0,
}
ARMS = {  # precision, loop, settings
    "as in S0": ("bf16-naive", train_without_end, {"top_p": 0.9, "kl_estimator": "k1"}),
}
KEPT = ("reward", "kl", "clip_ratio/region_mean", "completions/mean_length", "frac_reward_zero_std")
ROWS = with_system(chat_tasks("en"), ANSWER_ONLY["en"])
ASKED = [row["prompt"] for row in ROWS] + [chat_messages("What is the capital of France?")]


class BestOfStep:
    """The reward, which notes each step's question, how many answers hold the wanted text, and the best one."""

    __name__ = "contains_reward"

    def __init__(self):
        self.noted = []

    def __call__(self, prompts, completions, answer, **kwargs) -> list[float]:
        rewards = contains_reward(completions, answer=answer)
        best = max(range(len(rewards)), key=rewards.__getitem__)
        asked, right = prompts[0][-1]["content"], sum(reward > 0 for reward in rewards)
        self.noted.append([asked, right, round(rewards[best], 3), completions[best][-1]["content"]])
        return rewards


@torch.no_grad()
def chat(model, tokenizer, as_s0: bool, length: int) -> list[str]:
    """Greedy replies: in evaluation mode, or as S0 asks for them, in training mode with gradient checkpointing on."""
    model.gradient_checkpointing_enable() if as_s0 else model.gradient_checkpointing_disable()
    model.train(as_s0)
    replies = []
    for prompt in ASKED:
        ids, mask = encode_prompts(tokenizer, [prompt])
        with autocast_as_loaded(model):
            out = model.generate(ids, attention_mask=mask.long(), do_sample=False, max_new_tokens=length)
        replies.append(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))
    model.gradient_checkpointing_disable()
    model.eval()
    return replies


class Recorder:
    """A folder with a file for each run, and the record that is put together from them."""

    def __init__(self, args: argparse.Namespace):
        self.folder, self.fast, self.model = args.output_dir, args.fast, args.stand_in or "smollm2"
        self.settings = S0 | ({"max_completion_length": 6, "max_steps": 2} if args.fast else {})

    def measured(self, model, tokenizer) -> dict:
        """Greedy replies in both ways."""
        length = self.settings["max_completion_length"]
        return {"eval": chat(model, tokenizer, False, length), "as S0": chat(model, tokenizer, True, length)}

    def make(self, arm: str, seed: int) -> None:
        """One run, if it is not there yet, and the untrained model in the same numbers."""
        precision, loop, change = ARMS[arm]
        name = arm.replace(" ", "_")
        file, base = self.folder / f"{name}-{seed}.json", self.folder / f"base_{name}.json"
        if file.is_file():
            return
        model, tokenizer = load_policy(self.model, device="cpu", precision=precision)
        if not base.is_file():
            write_json(base, self.measured(model, tokenizer))
        reward = BestOfStep()
        about = {"seed": seed, "precision": precision, "disable_tqdm": True, "save_steps": 0}
        history = loop(model, tokenizer, ROWS, reward, GRPOConfig(**self.settings | change, **about))
        run = {
            "arm": arm,
            "seed": seed,
            "after": self.measured(model, tokenizer),
            "best_of_step": reward.noted,
            "metrics": {key: [_short(step[key]) for step in history] for key in KEPT},
        }
        write_json(file, run)
        print(f"{arm}, seed {seed}: {run['after']}", file=sys.stderr, flush=True)

    def put_together(self) -> dict:
        """All that is in the folder, in the order of arms and seeds."""
        names = {arm: arm.replace(" ", "_") for arm in ARMS}
        files = [self.folder / f"{name}-{seed}.json" for name in names.values() for seed in range(100)]
        bases = {arm: self.folder / f"base_{name}.json" for arm, name in names.items()}
        return {
            "what": "the settings of S0 on SmolLM2-135M-Instruct (dequantised from 4 bits)",
            "machine": machine("cpu") | {"threads": torch.get_num_threads()},
            "settings": self.settings,
            "asked": [prompt[-1]["content"] for prompt in ASKED],
            "wanted": [row["answer"] for row in ROWS],
            "base": {arm: _read(file) for arm, file in bases.items() if file.is_file()},
            "runs": [_read(file) for file in files if file.is_file()],
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
        for seed in args.seeds:
            for arm in ARMS:
                recorder.make(arm, seed)
    record = recorder.put_together()
    write_json(args.json, record)
    print(f"{args.json}: {len(record['runs'])} runs")


def _parser() -> Parser:
    parser = Parser(
        prog="python notebooks/runs/record_s0.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--stand_in", help='a model in place of SmolLM2, such as "tiny"; for tests')
    parser.add_argument("--fast", action="store_true", help="hardly anything: only to see that everything works")
    parser.add_argument("--output_dir", type=writable_folder, default=Path("outputs/record_s0"))
    parser.add_argument("--json", type=writable_file, help="default: notebooks/runs/s0.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
