"""Record GRPO on SmolLM2-135M-Instruct in smollm2.json, for notebook 07b.

    python notebooks/runs/record_smollm2.py                          all arms with three seeds: some hours on one core
    python notebooks/runs/record_smollm2.py --arms plain --seeds 0   the main run alone: a quarter of an hour at most
    python notebooks/runs/record_smollm2.py --fast                   two steps, two problems; into outputs/

Each run is a file in --output_dir. Existing runs are skipped, so the command can be stopped and restarted, and several
processes can share the work. The record is assembled from all runs in the folder. On a GPU the same command makes more
steps, trains in bf16 with 8-bit AdamW and in float32, and writes smollm2_gpu.json. The record that notebook 08 shows
was made on a GPU with `--precision fp32-master --steps 32 --arms plain bf16 "bf16 weights"`.
"""

import argparse
import contextlib
import platform
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from recording import FAST_HELP, RunFiles, metric_columns, prepare_recording, recorder_parser, rounded

from grpo_lab.base import Parser, command
from grpo_lab.base.checks import check_at_least
from grpo_lab.bench.record import describe_machine, write_json
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import PRECISIONS, autocast
from grpo_lab.evaluate import evaluate, wilson_interval
from grpo_lab.logprobs import token_logprobs
from grpo_lab.models import load_policy, pick_device
from grpo_lab.rewards import contains_reward, last_number_reward
from grpo_lab.rollout import evaluation_mode, sample_completions
from grpo_lab.tasks.rows import chat_messages
from grpo_lab.tasks.short_sums import short_sum_row, short_sums
from grpo_lab.teaching.general_questions import QUESTIONS
from grpo_lab.trainer import train
from grpo_lab.trainer.collecting import collect
from grpo_lab.trainer.experience import Experience, logprobs_without_gradient
from grpo_lab.trainer.loop import update
from grpo_lab.trainer.metrics import Clock
from grpo_lab.trainer.run import Run

# A request and texts that no reward uses. They show whether the model still writes and reads as before training.
WRITING = "Write one sentence about the sea."
PARAGRAPHS = (
    "The ferry left the harbour before sunrise. On deck a few passengers drank coffee from paper cups and watched the "
    "lights of the town grow small. Somebody said that the weather would turn in the afternoon, but nobody seemed to "
    "mind. The sea was flat and grey, and gulls followed the ship for a mile or two before they went back.",
    "To bake a simple loaf you need flour, water, salt and yeast. Mix them, knead the dough until it is smooth, and "
    "leave it in a warm place until it has doubled in size. Then shape it, let it rest for another half hour, and bake "
    "it in a hot oven until the crust is brown and the loaf sounds hollow when you tap it.",
    "A hash table stores each value under a key. To find a value again, the program computes a number from the key and "
    "looks in the place that this number names. When two keys lead to the same place, both are kept there in a short "
    "list. As long as the table is not too full, finding a value takes about the same time however many there are.",
    "Glaciers move, though too slowly for the eye. Snow that falls on the upper part is pressed into ice by the snow "
    "that follows, and the ice flows downhill under its own weight. On the way it picks up stones and grinds the rock "
    "beneath. Where the ice melts as fast as it arrives, the glacier ends, and leaves the stones in a ridge.",
    "My grandmother kept her letters in a tin box under the stairs. Most of them came from her sister, who had moved "
    "to another country when they were both young. They wrote to each other every month for fifty years, about "
    "children, gardens and the price of butter. She said that she had never felt far away.",
    "A jury listens to both sides before it decides. The prosecutor has to show that the accused did what is claimed, "
    "and the defence may question every witness. What the jury may not do is read about the case in the newspapers, "
    "because what is written there was never tested. If reasonable doubt remains, the verdict must be not guilty.",
)
METRICS = ("reward", "completions/mean_length", "completions/clipped_ratio", "entropy", "kl", "grad_norm", "loss")
METRICS += ("frac_reward_zero_std", "sampling/logp_difference_max", "step_time", "learning_rate")
COMMON = {
    "learning_rate": 1e-5,
    "num_generations": 8,
    "generation_batch_size": 64,
    "max_completion_length": 20,
    "log_kl": True,
}


@torch.no_grad()
def nats_per_token(model, tokenizer, texts: list[str]) -> list[float]:
    """Return how surprising each text is to the model: minus the mean log-probability of its tokens after the first.

    The surprise of texts that no reward uses rises first when a policy forgets something during training.
    """
    surprises = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids.to(model.device)
        with evaluation_mode(model), autocast(model):
            logits = model(ids).logits[:, :-1]
        surprises.append(-token_logprobs(logits.float(), ids[:, 1:]).mean().item())
    return surprises


def long_sums(split: str, seed: int = 0) -> list[dict]:
    """Return sums of two four-digit numbers, in the same words as the short sums."""
    rng = random.Random(f"long sums/{split}/{seed}")
    return [short_sum_row(rng.randint(1000, 9999), rng.randint(1000, 9999)) for _ in range(300)]


def products(split: str, seed: int = 0) -> list[dict]:
    """Return products of two three-digit numbers, in nearly the same words as the short sums."""
    rng = random.Random(f"products/{split}/{seed}")
    pairs = [(rng.randint(100, 999), rng.randint(100, 999)) for _ in range(300)]
    return [
        {"prompt": chat_messages(f"What is {a} times {b}? Answer with the number only."), "answer": str(a * b)}
        for a, b in pairs
    ]


def train_without_end(model, tokenizer, rows, reward, config) -> list[dict]:
    """Train with one addition to the trainer's loop: the end token of every completion is excluded from the loss."""
    with Run(model, tokenizer, rows, reward, config) as run:
        for step in run.steps():
            clock = Clock(model.device)
            experience, metrics = collect(model, tokenizer, run.data_rows_of_step(step), reward, config, clock)
            if config.beta > 0:
                ref_logp = logprobs_without_gradient(run.reference_model(step), experience, config)
                experience = replace(experience, ref_logp=ref_logp)
            experience = without_end(experience)
            metrics |= run.measure_kl_if_due(experience, clock)
            run.write_completions_if_due(step, experience)
            metrics |= update(model, run.optimizer, experience, config, run.learning_rate(step), clock)
            run.record(step, metrics | clock.totals, None)
    return run.history


def without_end(experience: Experience) -> Experience:
    """Return the experience with a loss mask that ends before the end token."""
    loss_mask = experience.loss_mask.clone()
    ended = ~experience.rollout.truncated
    last = loss_mask.sum(-1) - 1
    loss_mask[ended, last[ended]] = False
    return replace(experience, loss_mask=loss_mask)


def with_adapters(model):
    """Freeze the model, and add LoRA adapters of rank 16 to each linear map of its layers."""
    from peft import LoraConfig, inject_adapter_in_model

    linear = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = inject_adapter_in_model(LoraConfig(r=16, lora_alpha=32, target_modules=linear), model)
    for module in model.modules():
        if hasattr(module, "base_layer"):
            module.base_layer.forward = partial(_frozen_linear, module.base_layer.weight.bfloat16(), module.base_layer)
    return model


def _frozen_linear(half, layer, x):
    """Apply a linear map with a stored bf16 copy of its frozen weight, which autocast would copy at every call."""
    return torch.nn.functional.linear(x, half if torch.is_autocast_enabled(x.device.type) else layer.weight)


@dataclass(frozen=True)
class Arm:
    """A run that differs from `plain` by one thing."""

    description: str
    change: dict = field(default_factory=dict)
    rows: Callable = short_sums
    reward: Callable = last_number_reward
    precision: str | None = None  # None: the precision of the other arms
    train: Callable = train
    prepare: Callable = lambda model: model  # called with the model before training, returns the model to train


ARMS = {
    "plain": Arm("short sums, a right last number earns 1"),
    "rate x 10": Arm("learning rate 1e-4", {"learning_rate": 1e-4}),
    "products": Arm("products of two three-digit numbers", rows=products),
    "four digits": Arm("sums of two four-digit numbers", rows=long_sums),
    "length price": Arm("the same; 1 or -1, and each character costs 0.002", rows=long_sums, reward=contains_reward),
    "no end token": Arm("the end token is cut off before the loss", train=train_without_end),
    "top_p 0.9": Arm("top_p 0.9 while sampling, not while scoring", {"top_p": 0.9}),
    "bf16 weights": Arm("AdamW on bf16 weights, rounded to the nearest", precision="bf16-naive"),
    "bf16": Arm("bf16 weights, rounded by chance, 8-bit AdamW", precision="bf16"),
    "half the rate": Arm("learning rate 5e-6", {"learning_rate": 5e-6}),
    "length price, half the rate": Arm(
        "learning rate 5e-6", {"learning_rate": 5e-6}, rows=long_sums, reward=contains_reward
    ),
    "bf16 weights, half the rate": Arm("learning rate 5e-6", {"learning_rate": 5e-6}, precision="bf16-naive"),
    "bf16, half the rate": Arm("learning rate 5e-6", {"learning_rate": 5e-6}, precision="bf16"),
    "LoRA 1e-5": Arm("adapters of rank 16, alpha 32", prepare=with_adapters),
    "LoRA 1e-4": Arm("the same, learning rate 1e-4", {"learning_rate": 1e-4}, prepare=with_adapters),
}


@dataclass(frozen=True)
class Settings:
    """The sizes of runs and measurements."""

    common: dict  # settings of all arms
    steps: int
    problems: int | None  # number of held-out problems; None: all
    generations: int  # samples of each held-out problem
    greedy_length: int = 40  # tokens of a reply to a general question


FULL = Settings(COMMON, steps=16, problems=None, generations=8)
FAST = Settings(
    COMMON | {"num_generations": 2, "generation_batch_size": 4, "max_completion_length": 6},
    steps=2,
    problems=2,
    generations=2,
    greedy_length=4,
)


class PolicyMeasures:
    """Measures a policy on held-out problems, and on texts and questions that the training does not use."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.held_out = short_sums("test", settings.problems, seed=1)

    def measure(self, model, tokenizer, rows: Callable) -> dict:
        """Measure the policy, and sample answers to ten problems of `rows`, which returns the arm's problems."""
        s, length = self.settings, self.settings.common["max_completion_length"]
        sampled = evaluate(
            model,
            tokenizer,
            self.held_out,
            num_generations=s.generations,
            max_completion_length=length,
            reward_funcs=last_number_reward,
            batch_size=64,
        )
        best = self._replies(model, tokenizer, [row["prompt"] for row in self.held_out], length, top_k=1)
        right = last_number_reward(best, answer=[row["answer"] for row in self.held_out])
        accuracy = sum(right) / len(right)
        sampled_rows = rows("test", seed=1)[:10]
        questions = [chat_messages(question) for question, _ in QUESTIONS] + [chat_messages(WRITING)]
        *replies, sea = self._replies(model, tokenizer, questions, s.greedy_length, top_k=1)
        return {
            "sampled": sampled,
            "greedy": {"accuracy": accuracy, "accuracy_ci95": wilson_interval(accuracy, len(right)), "n": len(right)},
            "problems": [row["prompt"][-1]["content"] for row in sampled_rows],
            "samples": self._replies(model, tokenizer, [row["prompt"] for row in sampled_rows], length),
            "nats_per_token": [rounded(value) for value in nats_per_token(model, tokenizer, list(PARAGRAPHS))],
            "replies": replies,
            "sea": sea,
        }

    @staticmethod
    def _replies(model, tokenizer, prompts: list, length: int, **sampling) -> list[str]:
        with torch.random.fork_rng(), autocast(model):
            torch.manual_seed(1)
            return sample_completions(model, tokenizer, prompts, 1, length, **sampling).texts


class Recorder:
    """Makes the runs, each with a file in a folder, and assembles the record from these files."""

    def __init__(self, args: argparse.Namespace, device: torch.device):
        self.device = device
        self.files = RunFiles(args.output_dir)
        self.settings = FAST if args.fast else FULL
        if args.steps:
            self.settings = replace(self.settings, steps=args.steps)
        self.precision, self.model = args.precision, args.model
        self.measures = PolicyMeasures(self.settings)

    def make(self, arm_name: str, seed: int) -> None:
        """Make one run unless its file exists."""
        if self.files.is_complete(arm_name, seed):
            return
        arm = ARMS[arm_name]
        precision = arm.precision or self.precision
        self.files.measure_untrained_once(precision, lambda: self.measure_untrained(precision))
        model, tokenizer = load_policy(self.model, self.device, precision)
        torch.manual_seed(seed)  # seeds the initialisation of adapters, if the arm has some
        model = arm.prepare(model)
        config = GRPOConfig(
            **self.settings.common | self.micro_batches() | arm.change,
            max_steps=self.settings.steps,
            seed=seed,
            precision=precision,
            save_steps=0,
            disable_tqdm=True,
        )
        started = time.monotonic()
        history = arm.train(model, tokenizer, arm.rows("train", seed=seed), arm.reward, config)
        seconds = time.monotonic() - started
        run = {
            "arm": arm_name,
            "seed": seed,
            "precision": precision,
            "seconds": round(seconds),
            "metrics": metric_columns(history, METRICS),
            "after": self.measures.measure(model, tokenizer, arm.rows),
        }
        write_json(self.files.path(arm_name, seed), run)
        accuracy = run["after"]["sampled"]["accuracy"]
        print(f"{arm_name}, seed {seed}: {accuracy:.2f} held out, {seconds:.0f} s", file=sys.stderr, flush=True)

    def micro_batches(self) -> dict:
        batch = self.settings.common["generation_batch_size"]
        rows = min(batch, 16)
        return {"per_device_train_batch_size": rows, "gradient_accumulation_steps": batch // rows}

    def measure_untrained(self, precision: str) -> dict:
        model, tokenizer = load_policy(self.model, self.device, precision)
        tasks = {"short": short_sums, "long": long_sums}
        return {name: self.measures.measure(model, tokenizer, rows) for name, rows in tasks.items()}

    def assemble(self) -> dict:
        """Return the record with all runs in the folder, in the order of the arms."""
        return {
            "what": "SmolLM2-135M-Instruct, dequantised from 4 bits",
            "second": "in this run",
            "machine": describe_machine(self.device.type) | {"threads": torch.get_num_threads(), "cpu": _cpu()},
            "settings": self.settings.common | {"max_steps": self.settings.steps},
            "arms": {name: arm.description for name, arm in ARMS.items()},
            "base": self.files.read_untrained(PRECISIONS),
            "runs": self.files.read_all(ARMS),
        }


def _cpu() -> str:
    """Return the processor's name and its vector extensions, which show whether it multiplies bf16 in hardware."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    model_names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "")
    has = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f" {name}" in flags]
    name = model_names[0] if model_names else platform.processor() or platform.machine()
    return f"{name} ({', '.join(has) or 'features unknown'})"


@command("notebooks/runs/record_smollm2.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    check_at_least("steps", 1 if args.steps is None else args.steps, 1)
    device = pick_device(args.device)
    on_gpu = device.type == "cuda"
    args.steps = args.steps or (60 if on_gpu and not args.fast else None)
    record_file = prepare_recording(args, "smollm2_gpu.json" if on_gpu else "smollm2.json")
    parent = args.output_dir
    with contextlib.redirect_stdout(sys.stderr):
        for precision in [args.precision] if args.precision else ["bf16", "fp32"] if on_gpu else ["fp32"]:
            args.precision, args.output_dir = precision, parent / precision if on_gpu else parent
            recorder = Recorder(args, device)
            for seed in args.seeds:
                for arm in args.arms:
                    recorder.make(arm, seed)
    record = recorder.assemble()
    write_json(record_file, record)
    print(f"{record_file}: {len(record['runs'])} runs")


def _parser() -> Parser:
    parser = recorder_parser(
        "record_smollm2", __doc__, arms=ARMS, seeds=range(3), model="smollm2", device=True, threads=True,
        fast_help=FAST_HELP, output_dir=True,
    )  # fmt: skip
    parser.add_argument("--steps", type=int, help=f"steps of a run (default {FULL.steps}, on a GPU 60)")
    parser.add_argument("--precision", choices=list(PRECISIONS), help="default: fp32; on a GPU bf16, then fp32")
    return parser


if __name__ == "__main__":
    sys.exit(main())
