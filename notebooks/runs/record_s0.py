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
import math
import sys

import torch
from record_smollm2 import train_without_end
from recording import FAST_HELP, RunFiles, metric_columns, prepare_recording, recorder_parser, rounded

from grpo_lab.base import Parser, command
from grpo_lab.bench.record import describe_machine, write_json
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import autocast
from grpo_lab.logprobs import token_logprobs
from grpo_lab.models import load_policy
from grpo_lab.models.packaged import PACKAGED
from grpo_lab.rewards import contains_reward
from grpo_lab.rollout import encode_prompts, evaluation_mode
from grpo_lab.tasks import chat_tasks
from grpo_lab.tasks.builtin_problems import ANSWER_ONLY
from grpo_lab.tasks.rows import chat_messages, with_system
from grpo_lab.trainer import train

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
METRICS = ("reward", "kl", "clip_ratio/region_mean", "completions/mean_length", "frac_reward_zero_std")


class BestOfStep:
    """The reward, which records the question, the number of right answers and the best answer of each step."""

    __name__ = "contains_reward"

    def __init__(self):
        self.best_by_step = []

    def __call__(self, prompts, completions, answer, **kwargs) -> list[float]:
        rewards = contains_reward(completions, answer=answer)
        best = max(range(len(rewards)), key=rewards.__getitem__)
        question, right = prompts[0][-1]["content"], sum(reward > 0 for reward in rewards)
        self.best_by_step.append([question, right, round(rewards[best], 3), completions[best][-1]["content"]])
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
        self.files = RunFiles(args.output_dir / args.model)
        self.model_name = args.model
        self.loaded_model = args.stand_in or args.model
        language, additional_question, self.arms = MODELS[args.model]
        self.rows = with_system(chat_tasks(language), ANSWER_ONLY[language])
        self.questions = [row["prompt"] for row in self.rows] + [chat_messages(additional_question)]
        self.settings = S0 | ({"max_completion_length": 6, "max_steps": 2} if args.fast else {})

    def measure(self, model, tokenizer) -> dict:
        """Return greedy replies in both modes, and the decimal logarithms of the expected answers' probabilities."""
        length = self.settings["max_completion_length"]
        expected = [log10_probability(model, tokenizer, row["prompt"], row["answer"]) for row in self.rows]
        replies = {mode: chat(model, tokenizer, self.questions, mode == "as S0", length) for mode in ("eval", "as S0")}
        return replies | {"log10 of the expected": [rounded(value) for value in expected]}

    def make(self, arm: str, seed: int) -> None:
        """Make one run unless its file exists, and measure the untrained model in the same precision."""
        if self.files.is_complete(arm, seed):
            return
        precision, loop, change = ARMS[arm]
        model, tokenizer = load_policy(self.loaded_model, device="cpu", precision=precision)
        self.files.measure_untrained_once(arm, lambda: self.measure(model, tokenizer))
        reward = BestOfStep()
        about = {"seed": seed, "precision": precision, "disable_tqdm": True, "save_steps": 0}
        history = loop(model, tokenizer, self.rows, reward, GRPOConfig(**self.settings | change, **about))
        run = {
            "arm": arm,
            "seed": seed,
            "after": self.measure(model, tokenizer),
            "best_of_step": reward.best_by_step,
            "metrics": metric_columns(history, METRICS),
        }
        write_json(self.files.path(arm, seed), run)
        print(f"{arm}, seed {seed}: {run['after']}", file=sys.stderr, flush=True)

    def assemble(self) -> dict:
        """Return the record with all runs in the folder, in the order of arms and seeds."""
        return {
            "what": f"the settings of S0 on {PACKAGED[self.model_name].title} (dequantised from few bits)",
            "second": "in this run",
            "machine": describe_machine("cpu") | {"threads": torch.get_num_threads()},
            "settings": self.settings,
            "asked": [prompt[-1]["content"] for prompt in self.questions],
            "wanted": [row["answer"] for row in self.rows],
            "base": self.files.read_untrained(self.arms),
            "runs": self.files.read_all(self.arms),
        }


@command("notebooks/runs/record_s0.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    file = prepare_recording(args, "s0.json" if args.model == "smollm2" else f"s0_{args.model}.json")
    recorder = Recorder(args)
    with contextlib.redirect_stdout(sys.stderr):
        for seed in args.seeds:
            for arm in recorder.arms:
                recorder.make(arm, seed)
    record = recorder.assemble()
    write_json(file, record)
    print(f"{file}: {len(record['runs'])} runs")


def _parser() -> Parser:
    parser = recorder_parser(
        "record_s0", __doc__, seeds=range(3), threads=True, output_dir=True,
        fast_help=FAST_HELP,
    )  # fmt: skip
    parser.add_argument("--model", choices=list(MODELS), default="smollm2", help="(default: smollm2)")
    parser.add_argument("--stand_in", help='a model in its place, such as "tiny" or a folder')
    return parser


if __name__ == "__main__":
    sys.exit(main())
