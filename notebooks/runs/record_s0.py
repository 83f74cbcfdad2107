"""Record runs with the settings of the notebook S0: SmolLM2 in s0.json (notebook 07b), a Qwen in s0_qwen.json (08).

    python notebooks/runs/record_s0.py                   three runs on SmolLM2, each about 8 minutes of a core
    python notebooks/runs/record_s0.py --model qwen      the model's kind that S0 was written for, in Chinese
    python notebooks/runs/record_s0.py --seeds 0         one seed
    python notebooks/runs/record_s0.py --fast            two steps; into outputs/

S0 is "GRPO 教学（手写公式 + 最小实现，无 LoRA）". It trains Qwen2-0.5B for 30 steps on four questions, one question
with four answers per step, and then chats with it in training mode with gradient checkpointing. On SmolLM2 the
questions are in English; all other choices are those of S0. The arm "repaired" has the same questions and reward. In
each step it samples eight answers to each of the four questions, with the end token in the loss, k3, no top_p, and
weights in float32.

Each run is a file in --output_dir. Existing runs are skipped, and the record is assembled from all runs in the folder.
"""

import argparse
import contextlib
import json
import math
import sys
from pathlib import Path

import torch
from record_smollm2 import _short, train_without_end

from grpo_lab.base import Parser, command, writable_file, writable_folder
from grpo_lab.base.checks import check_at_least, check_between
from grpo_lab.bench.record import describe_machine, write_json
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import autocast
from grpo_lab.logprobs import token_logprobs
from grpo_lab.models import load_policy
from grpo_lab.models.packaged import PACKAGED
from grpo_lab.rewards import contains_reward
from grpo_lab.rollout import encode_prompts, evaluation_mode
from grpo_lab.tasks import chat_tasks
from grpo_lab.tasks.chats import ANSWER_ONLY
from grpo_lab.tasks.rows import chat_messages, with_system
from grpo_lab.trainer import train

HERE = Path(__file__).parent
S0 = {
    "max_steps": 30,
    "num_generations": 4,
    "generation_batch_size": 4,  # one question per step
    "max_completion_length": 48,
    "temperature": 1.0,
    "epsilon": 0.2,
    "beta": 0.05,
    "entropy_coef": 0.0,
    "num_iterations": 2,
    "learning_rate": 2e-6,
    "warmup_steps": 0,
}
REPAIRED = {"generation_batch_size": 32, "num_generations": 8, "num_iterations": 1, "warmup_steps": 0}
ARMS = {  # precision, loop, settings
    "as in S0": ("bf16-naive", train_without_end, {"top_p": 0.9, "kl_estimator": "k1"}),
    "repaired": ("fp32-master", train, REPAIRED),
}
# Language of the questions, an additional question, and the arms.
MODELS = {
    "smollm2": ("en", "What is the capital of France?", ("as in S0",)),
    "qwen": ("zh", "中国的首都是哪里？", tuple(ARMS)),
}
KEPT = ("reward", "kl", "clip_ratio/region_mean", "completions/mean_length", "frac_reward_zero_std")


class BestOfStep:
    """The reward, which records the question, the number of right answers and the best answer of each step."""

    __name__ = "contains_reward"

    def __init__(self):
        self.noted = []

    def __call__(self, prompts, completions, answer, **kwargs) -> list[float]:
        rewards = contains_reward(completions, answer=answer)
        best = max(range(len(rewards)), key=rewards.__getitem__)
        question, right = prompts[0][-1]["content"], sum(reward > 0 for reward in rewards)
        self.noted.append([question, right, round(rewards[best], 3), completions[best][-1]["content"]])
        return rewards


@torch.no_grad()
def chat(model, tokenizer, questions: list, as_s0: bool, length: int) -> list[str]:
    """Return greedy replies in evaluation mode, or as in S0, in training mode with gradient checkpointing."""
    model.gradient_checkpointing_enable() if as_s0 else model.gradient_checkpointing_disable()
    model.train(as_s0)
    replies = []
    for prompt in questions:
        ids, mask = encode_prompts(tokenizer, [prompt])
        with autocast(model):
            out = model.generate(ids, attention_mask=mask.long(), do_sample=False, max_new_tokens=length)
        replies.append(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))
    model.gradient_checkpointing_disable()
    model.eval()
    return replies


@torch.no_grad()
def log10_probability(model, tokenizer, prompt: list, answer: str) -> float:
    """Return the decimal logarithm of the probability that the policy samples exactly this answer and ends."""
    prompt_ids, _ = encode_prompts(tokenizer, [prompt])
    answer_ids = tokenizer(answer, return_tensors="pt", add_special_tokens=False).input_ids
    answer_ids = torch.cat([answer_ids, torch.tensor([[tokenizer.eos_token_id]])], dim=1)
    with evaluation_mode(model), autocast(model):
        logits = model(torch.cat([prompt_ids, answer_ids], dim=1)).logits[:, prompt_ids.shape[1] - 1 : -1]
    return token_logprobs(logits.float(), answer_ids).sum().item() / math.log(10)


class Recorder:
    """Makes the runs, each with a file in a folder, and assembles the record from these files."""

    def __init__(self, args: argparse.Namespace):
        self.folder = args.output_dir
        self.fast = args.fast
        self.model = args.stand_in or args.model
        self.what = args.model
        language, additional_question, self.arms = MODELS[args.model]
        self.rows = with_system(chat_tasks(language), ANSWER_ONLY[language])
        self.questions = [row["prompt"] for row in self.rows] + [chat_messages(additional_question)]
        self.settings = S0 | ({"max_completion_length": 6, "max_steps": 2} if args.fast else {})

    def measure(self, model, tokenizer) -> dict:
        """Return greedy replies in both modes, and the decimal logarithms of the expected answers' probabilities."""
        length = self.settings["max_completion_length"]
        expected = [log10_probability(model, tokenizer, row["prompt"], row["answer"]) for row in self.rows]
        replies = {way: chat(model, tokenizer, self.questions, way == "as S0", length) for way in ("eval", "as S0")}
        return replies | {"log10 of the expected": [_short(value) for value in expected]}

    def make(self, arm: str, seed: int) -> None:
        """Make one run unless its file exists, and measure the untrained model in the same precision."""
        precision, loop, change = ARMS[arm]
        name = arm.replace(" ", "_")
        file, base = self.folder / f"{name}-{seed}.json", self.folder / f"base_{name}.json"
        if file.is_file():
            return
        model, tokenizer = load_policy(self.model, device="cpu", precision=precision)
        if not base.is_file():
            write_json(base, self.measure(model, tokenizer))
        reward = BestOfStep()
        about = {"seed": seed, "precision": precision, "disable_tqdm": True, "save_steps": 0}
        history = loop(model, tokenizer, self.rows, reward, GRPOConfig(**self.settings | change, **about))
        run = {
            "arm": arm,
            "seed": seed,
            "after": self.measure(model, tokenizer),
            "best_of_step": reward.noted,
            "metrics": {key: [_short(step[key]) for step in history] for key in KEPT},
        }
        write_json(file, run)
        print(f"{arm}, seed {seed}: {run['after']}", file=sys.stderr, flush=True)

    def put_together(self) -> dict:
        """Return the record with all runs in the folder, in the order of arms and seeds."""
        names = {arm: arm.replace(" ", "_") for arm in self.arms}
        files = [self.folder / f"{name}-{seed}.json" for name in names.values() for seed in range(100)]
        bases = {arm: self.folder / f"base_{name}.json" for arm, name in names.items()}
        return {
            "what": f"the settings of S0 on {PACKAGED[self.what].title} (dequantised from few bits)",
            "second": "in this run",
            "machine": describe_machine("cpu") | {"threads": torch.get_num_threads()},
            "settings": self.settings,
            "asked": [prompt[-1]["content"] for prompt in self.questions],
            "wanted": [row["answer"] for row in self.rows],
            "base": {arm: _read(file) for arm, file in bases.items() if file.is_file()},
            "runs": [_read(file) for file in files if file.is_file()],
        }


def _read(file: Path) -> dict:
    return json.loads(file.read_text(encoding="utf-8"))


@command("notebooks/runs/record_s0.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    check_at_least("threads", args.threads, 1)
    for seed in args.seeds:
        check_between("seeds", seed, 0, 99)
    torch.set_num_threads(args.threads)
    name = "s0.json" if args.model == "smollm2" else f"s0_{args.model}.json"
    args.json = args.json or (args.output_dir if args.fast else HERE) / name
    args.output_dir = args.output_dir / args.model
    args.output_dir.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(args)
    with contextlib.redirect_stdout(sys.stderr):
        for seed in args.seeds:
            for arm in recorder.arms:
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
    parser.add_argument("--model", choices=list(MODELS), default="smollm2", help="(default: smollm2)")
    parser.add_argument("--stand_in", help='a model in its place, such as "tiny" or a folder')
    parser.add_argument("--fast", action="store_true", help="hardly anything: only to see that everything works")
    parser.add_argument("--output_dir", type=writable_folder, default=Path("outputs/record_s0"))
    parser.add_argument("--json", type=writable_file, help="default: notebooks/runs/s0.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
