"""Record for notebook 07c, in buys.json, what prompts, votes and training contribute on SmolLM2-135M-Instruct.

    python notebooks/runs/record_buys.py                       everything: some two hours on one core
    python notebooks/runs/record_buys.py --only sums-GRPO-0    one piece, such as this run with seed 0

Each piece is a file in --output_dir. Existing pieces are skipped, so the command can be stopped and restarted, and two
processes can share the work. The record is assembled from all pieces in the folder.
"""

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from recording import prepare_recording, read_json, recorder_parser
from torch.nn.utils.rnn import pad_sequence

from grpo_lab.base import Parser, command
from grpo_lab.bench.record import describe_machine
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import autocast
from grpo_lab.config.settings import scheduled_learning_rate
from grpo_lab.models import load_policy
from grpo_lab.rewards import last_number, last_number_reward
from grpo_lab.rollout import (
    Rollout,
    encode_prompts,
    end_token_ids,
    pad_token_id,
    read_sequences,
    sample_completions,
)
from grpo_lab.tasks.gym import gym_problems
from grpo_lab.tasks.rows import chat_messages
from grpo_lab.tasks.short_sums import short_sums
from grpo_lab.trainer import train
from grpo_lab.trainer.collecting import collect
from grpo_lab.trainer.experience import Experience
from grpo_lab.trainer.loop import accumulate_gradient
from grpo_lab.trainer.metrics import rollout_metrics
from grpo_lab.trainer.run import Run

PRECISION, EXAMPLES = "fp32-master", 4
SETTINGS = {"learning_rate": 1e-5, "num_generations": 8, "max_completion_length": 20, "precision": PRECISION}
UPDATE = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4}  # 64 rows per update


@dataclass(frozen=True)
class Task:
    description: str
    rows: Callable  # called with split, n and seed, returns problems


TASKS = {
    "sums": Task("sums of two numbers up to 20", short_sums),
    "products": Task(
        "products of two one-digit numbers (gym:products:max_digits=1)",
        partial(gym_problems, generator="products:max_digits=1"),
    ),
}


def expression(row: dict) -> str:
    """Return the expression that a problem asks to calculate, such as "8 + 9"."""
    return re.search(r"\d+ [+*] \d+", row["prompt"][-1]["content"])[0]


def questions(task: Task) -> dict[str, str]:
    """Return the expressions of the training problems and of the held-out problems."""
    return {split: ", ".join(expression(row) for row in task.rows(split, None, 1)) for split in ("train", "test")}


def with_examples(row: dict, examples: list[dict], write_answer: Callable) -> list[dict]:
    """Return the prompt preceded by worked examples, written as if the model had answered them."""
    dialogues = [[*e["prompt"], {"role": "assistant", "content": write_answer(e)}] for e in examples]
    return [*(message for messages in dialogues for message in messages), *row["prompt"]]


@dataclass(frozen=True)
class Form:
    """A form of the questions."""

    make_prompt: Callable[[dict, list[dict]], list[dict]]  # makes messages from a row and worked examples
    max_tokens: int = 20  # most tokens of an answer


FORMS = {
    "direct": Form(lambda row, _: row["prompt"]),
    "few-shot": Form(lambda row, examples: with_examples(row, examples, lambda e: e["answer"])),
    "step by step": Form(
        lambda row, _: chat_messages(f"What is {expression(row)}? Think step by step, then say the number."),
        max_tokens=48,
    ),
    "written out": Form(
        lambda row, examples: with_examples(row, examples, lambda e: f"{expression(e)} = {e['answer']}")
    ),
}


def formatted_problems(task: Task, split: str, form: str, n: int | None, seed: int) -> list[dict]:
    """Return problems of a split with prompts of this form; worked examples are always training problems."""
    examples = task.rows("train", EXAMPLES, 1)
    return [row | {"prompt": FORMS[form].make_prompt(row, examples)} for row in task.rows(split, n, seed)]


def measure(model, tokenizer, task: Task, form: str, problems: int | None, samples: int) -> dict:
    """Count, for each held-out problem, the last numbers of its samples, and check its samples and greedy answer."""
    rows, length = formatted_problems(task, "test", form, problems, 1), FORMS[form].max_tokens
    numbers = []
    right = []
    tokens = []
    started = time.process_time()
    with autocast(model), torch.random.fork_rng():
        torch.manual_seed(1)
        for start in range(0, len(rows), 4):
            batch = rows[start : start + 4]
            prompts = [row["prompt"] for row in batch]
            rollout = sample_completions(model, tokenizer, prompts, samples, length)
            groups = [rollout.texts[i * samples : (i + 1) * samples] for i in range(len(batch))]
            numbers += [Counter(last_number(text) for text in group).most_common() for group in groups]
            right += [
                sum(last_number_reward(group, answer=[row["answer"]] * samples))
                for group, row in zip(groups, batch, strict=True)
            ]
            tokens += rollout.mask.sum(-1).tolist()
        greedy = []
        for start in range(0, len(rows), 64):
            batch = rows[start : start + 64]
            texts = sample_completions(model, tokenizer, [row["prompt"] for row in batch], 1, length, top_k=1).texts
            greedy += last_number_reward(texts, answer=[row["answer"] for row in batch])
    return {
        "right": [int(count) for count in right],
        "greedy": [int(mark) for mark in greedy],
        "numbers": numbers,
        "tokens": round(sum(tokens) / len(tokens), 2),
        "seconds": round(time.process_time() - started),
    }


def train_by_grpo(model, tokenizer, rows, config) -> list[float]:
    """Train by GRPO; return the fraction of right samples of each step."""
    return [step["reward"] for step in train(model, tokenizer, rows, last_number_reward, config)]


def imitate(model, tokenizer, rows, config, rounds: int) -> list[float]:
    """Train by rejection-sampling fine-tuning: sample, keep the right answers, and train on them.

    All rounds together take as many samples and updates as GRPO. Returns the fraction of right samples of each round.
    """
    updates, updates_per_round = config.max_steps, config.max_steps // rounds
    config = replace(config, max_steps=rounds, generation_batch_size=config.generation_batch_size * updates_per_round)
    with Run(model, tokenizer, rows, last_number_reward, config) as run:
        for round_index in run.steps():
            experience, metrics = collect(
                model, tokenizer, run.data_rows_of_step(round_index), last_number_reward, config
            )
            steps = range(round_index * updates_per_round, (round_index + 1) * updates_per_round)
            supervise(run, experience[experience.rewards == 1], steps, updates)
            run.record(round_index, metrics)
    return [step["reward"] for step in run.history]


def train_on_answers(model, tokenizer, rows, config, write_answer: Callable) -> list[float]:
    """Train on given answers (SFT), with as many updates as GRPO, each on 64 training problems, and no samples."""
    with Run(model, tokenizer, rows, last_number_reward, config) as run:
        for step in run.steps():
            batch = [rows[index] for index in torch.randperm(len(rows))[: config.update_batch_size].tolist()]
            experience = answers_as_experience(model, tokenizer, batch, write_answer)
            supervise(run, experience, range(step, step + 1), config.max_steps)
            run.record(step, rollout_metrics(experience.rollout, 1.0) | {"reward": 1.0})
    return []


def answers_as_experience(model, tokenizer, rows: list[dict], write_answer: Callable) -> Experience:
    """Return the given answers to the problems as an experience, as if sampled and rewarded with 1."""
    prompt_ids, prompt_mask = encode_prompts(tokenizer, [row["prompt"] for row in rows])
    ends = end_token_ids(model, tokenizer)
    answers = [torch.tensor([*tokenizer.encode(write_answer(row)), ends[0]]) for row in rows]
    answers = pad_sequence(answers, batch_first=True, padding_value=pad_token_id(tokenizer))
    ids, mask, truncated, texts = read_sequences(
        torch.cat([prompt_ids, answers], 1), prompt_ids.shape[1], ends, tokenizer
    )
    ones, zeros = torch.ones(len(rows)), torch.zeros(mask.shape)
    rollout = Rollout.without_environment(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        prompt_of_row=torch.arange(len(rows)),
        completion_ids=ids,
        mask=mask,
        logp=zeros,
        entropy=zeros,
        truncated=truncated,
        texts=texts,
    )
    return Experience(rollout, ones, ones, mask)


def supervise(run: Run, right: Experience, update_numbers: range, updates: int) -> None:
    """Make updates that raise the probability of right answers.

    Args:
        run: The run whose model is trained.
        right: The right answers. Each update takes 64 of them, or all if there are fewer; without any there is none.
        update_numbers: Numbers of these updates within the run, for the learning-rate schedule.
        updates: Number of updates of the whole run.
    """
    model, config = run.inputs.model, run.inputs.config
    for number in update_numbers if len(right) else ():
        batch = right[torch.randperm(len(right))[: config.update_batch_size]]
        batch = replace(batch, advantages=torch.ones(len(batch)))  # with advantages of 1, Eq. (5.14) is the SFT loss
        loss = accumulate_gradient(model, run.optimizer, batch, config)["loss"]
        run.optimizer.step(
            scheduled_learning_rate(number, config.learning_rate, config.warmup_steps, updates, "constant_with_warmup"),
            loss,
        )


TEACHER, DISTILLATION = "teacher", "distillation"
TEACHER_SETTINGS = {"precision": "bf16", "temperature": 0}  # temperature 0: greedy answers


def teacher_answers(task: Task, name: str, problems: int | None) -> dict:
    """Return a larger model's greedy answer to each training problem, and whether the verifier accepts it."""
    teacher, tokenizer = load_policy(name, device="cpu", precision=TEACHER_SETTINGS["precision"])
    rows = task.rows("train", problems, 1)
    texts = []
    started = time.process_time()
    for start in range(0, len(rows), 16):
        prompts = [chat_messages(f"What is {expression(row)}?") for row in rows[start : start + 16]]
        texts += sample_completions(teacher, tokenizer, prompts, 1, SETTINGS["max_completion_length"], top_k=1).texts
    right = last_number_reward(texts, answer=[row["answer"] for row in rows])
    answers = {expression(row): [text, int(mark)] for row, text, mark in zip(rows, texts, right, strict=True)}
    return {"form": TEACHER, "answers": answers, "seconds": round(time.process_time() - started)}


@dataclass(frozen=True)
class Arm:
    """An arm of the comparison."""

    train: Callable[..., list[float]]  # trains a model, and returns the fraction of right samples of each step
    form: str = "direct"  # form of the questions in training and measurement


ARMS = {
    "GRPO": Arm(train_by_grpo),
    "imitation, 4 rounds": Arm(partial(imitate, rounds=4)),
    "GRPO, written out": Arm(train_by_grpo, form="written out"),
    "given numbers": Arm(partial(train_on_answers, write_answer=lambda row: row["answer"])),
    "given numbers, x 3": Arm(partial(train_on_answers, write_answer=lambda row: row["answer"])),
    "given sums": Arm(partial(train_on_answers, write_answer=lambda row: f"{expression(row)} = {row['answer']}")),
    DISTILLATION: Arm(partial(train_on_answers, write_answer=lambda row: row["written"])),
}
HALF = ", half the rate"  # shows whether the order of the arms stays; record_smollm2.py has GRPO at half the rate
ARMS |= {arm + HALF: ARMS[arm] for arm in ("imitation, 4 rounds", "given numbers", "given sums")}


def make(piece: str, sizes: argparse.Namespace) -> dict:
    """Make a piece: the untrained model's measures ("TASK-FORM"), or those of a run ("TASK-ARM-SEED")."""
    name, arm_or_form, *seed = piece.split("-") if "few-shot" not in piece else (piece.split("-")[0], "few-shot")
    task = TASKS[name]
    if arm_or_form == TEACHER:
        return teacher_answers(task, sizes.teacher, sizes.problems)
    samples = sizes.samples or (32 if piece == "sums-direct" else 16)
    model, tokenizer = load_policy(sizes.model, device="cpu", precision=PRECISION)
    if not seed:
        return {"form": arm_or_form} | measure(model, tokenizer, task, arm_or_form, sizes.problems, samples)
    arm = ARMS[arm_or_form]
    updates = sizes.updates * (3 if arm_or_form.endswith("x 3") else 1)  # shows whether the sign of the effect stays
    settings = SETTINGS | {"learning_rate": SETTINGS["learning_rate"] / (2 if arm_or_form.endswith(HALF) else 1)}
    config = GRPOConfig(
        **settings, **UPDATE, generation_batch_size=64, max_steps=updates, seed=int(seed[0]),
        save_steps=0, disable_tqdm=True,
    )  # fmt: skip
    started, rows = time.process_time(), formatted_problems(task, "train", arm.form, None, int(seed[0]))
    if arm_or_form == DISTILLATION:  # trains on the teacher's answers that the verifier accepts
        answers = read_json(piece_file(sizes, f"{name}-{TEACHER}"))["answers"]
        written = {question: text for question, (text, is_right) in answers.items() if is_right}
        rows = [row | {"written": written[expression(row)]} for row in rows if expression(row) in written]
    rewards = arm.train(model, tokenizer, rows, config)
    cost = {"training_seconds": round(time.process_time() - started), "reward": [round(r, 4) for r in rewards]}
    samples = samples if name != "sums" else samples // 2
    measures = measure(model, tokenizer, task, arm.form, sizes.problems, samples)
    return {"arm": arm_or_form, "seed": int(seed[0])} | cost | measures


def piece_names() -> list[str]:
    """Return the names of all pieces, in the order in which they are made."""
    runs = [f"{task}-{arm}-{seed}" for task in TASKS for arm in ARMS for seed in range(3)]
    return [f"{task}-{form}" for task in TASKS for form in (*FORMS, TEACHER)] + runs


def piece_file(args: argparse.Namespace, piece: str) -> Path:
    return args.output_dir / f"{piece.replace(' ', '_').replace(',', '')}.json"


@command("notebooks/runs/record_buys.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    record_file = prepare_recording(args, "buys.json")
    args.output_dir.mkdir(parents=True, exist_ok=True)
    files = {piece: piece_file(args, piece) for piece in piece_names()}
    for piece in args.only or piece_names():
        if not files[piece].is_file():
            piece_record = make(piece, args)
            files[piece].write_text(json.dumps(piece_record), encoding="utf-8")
            counts = {key: sum(piece_record[key]) for key in ("right", "greedy") if key in piece_record}
            print(piece, counts, piece_record["seconds"], file=sys.stderr, flush=True)
    records = {piece: read_json(file) for piece, file in files.items() if file.is_file()}
    lines = [f" {json.dumps(piece)}: {json.dumps(piece_record)}" for piece, piece_record in records.items()]
    head = {
        "what": "SmolLM2-135M-Instruct, dequantised from 4 bits; reasoning-gym 0.1.25",
        "second": "in this run",
        "machine": describe_machine() | {"threads": 1},
        "settings": SETTINGS | UPDATE | {"generation_batch_size": 64, "warmup_steps": 5, "updates": 16},
        "tasks": {name: task.description for name, task in TASKS.items()},
        "teacher": {"model": "Qwen2.5-Coder-0.5B-Instruct, dequantised from 4 bits"} | TEACHER_SETTINGS,
        "questions": {name: questions(task) for name, task in TASKS.items() if any(name in piece for piece in records)},
    }
    record_file.write_text(
        json.dumps(head, indent=1)[:-2] + ',\n "pieces": {\n' + ",\n".join(lines) + "\n }\n}\n", encoding="utf-8"
    )
    print(f"{record_file.name}: {len(records)} pieces")


def _parser() -> Parser:
    parser = recorder_parser("record_buys", __doc__, model="smollm2", output_dir=True)
    parser.add_argument("--only", nargs="+", choices=piece_names(), help="these pieces (default: all)")
    parser.add_argument("--teacher", default="qwen", help="as --model, for the teacher (default qwen)")
    parser.add_argument("--samples", type=int, help="to each held-out problem")
    parser.add_argument("--problems", type=int, help="held out (default: all)")
    parser.add_argument("--updates", type=int, default=16, help="of a training (default 16)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
