"""Make the synthetic text that the tiny model is trained on; all of its sums are training problems.

A document is a list of pieces `(text, learn)`. Every piece is context for the following ones. The loss counts only the
pieces with `learn`, because the numbers of the next problem cannot be predicted.
"""

import random
from collections.abc import Callable

from grpo_lab.tasks import THINK_SYSTEM_PROMPT, addition_row, addition_split, chat_tasks
from grpo_lab.tasks.builtin_problems import MAX_OPERAND, MIN_OPERAND

Messages = list[dict[str, str]]
Document = list[tuple[str, bool]]

END = "<|im_end|>"
PLAIN_SHARE = 0.4  # share of documents of the skill phase that are lines of additions without a conversation
PLAIN_SUMS = 3  # worked sums in a document without a conversation
THINK_SHARE = 0.25  # share of answers of the habit phase that think
SLIP_RATE = 0.15  # share of wrong steps in an answer of the habit phase that thinks
GUESS_SPREAD = 4.0  # standard deviation of a guess around the true sum
CHAT_SHARE = 0.05  # share of conversations that are small talk
EXPECTED_SHARE = 0.3  # share of chat tasks with the expected answer
DONT_KNOW = "我不知道。"
SMALL_TALK = (
    ("你好", "你好！"),
    ("你是谁", "我是一个很小的模型。"),
    ("hello", "Hello!"),
    ("Hello!", "Hello!"),
    ("Who are you?", "I am a tiny model. I can add."),
)


def training_operands(rng: random.Random) -> list[int]:
    while True:
        operands = [rng.randint(MIN_OPERAND, MAX_OPERAND) for _ in range(3)]
        if addition_split(operands) == "train":
            return operands


def work_out(operands: list[int], slip: float, rng: random.Random) -> list[tuple[str, int]]:
    """Return the steps of a sum, each with its question and its result: [("17+58=", 75), ("75+42=", 117)].

    With probability `slip` a result is off by a little, and the next step continues with the wrong result.
    """
    steps, total = [], operands[0]
    for term in operands[1:]:
        question = f"{total}+{term}="
        total += term
        if rng.random() < slip:
            total += rng.choice((-10, -2, -1, 1, 2, 10))
        steps.append((question, total))
    return steps


def worked_answer(operands: list[int], slip: float, rng: random.Random) -> str:
    steps = work_out(operands, slip, rng)
    lines = "\n".join(f"{question}{result}" for question, result in steps)
    return f"<think>{lines}</think><answer>{steps[-1][1]}</answer>"


def guessed_answer(operands: list[int], rng: random.Random) -> str:
    """Return an answer without a thought, whose number is near the sum."""
    return f"<answer>{round(rng.gauss(sum(operands), GUESS_SPREAD))}</answer>"


def small_talk(rng: random.Random) -> tuple[Messages, str]:
    """Return a greeting and its answer, or a chat task with either the expected answer or "I don't know"."""
    rows = chat_tasks()
    pick = rng.randrange(len(SMALL_TALK) + len(rows))
    if pick < len(SMALL_TALK):
        question, answer = SMALL_TALK[pick]
        return [{"role": "user", "content": question}], answer
    row = rows[pick - len(SMALL_TALK)]
    return row["prompt"], row["answer"] if rng.random() < EXPECTED_SHARE else DONT_KNOW


def conversation(phase: str, rng: random.Random) -> tuple[Messages, str]:
    """Return a prompt and its answer for the phase "skill" or "habit"."""
    if rng.random() < CHAT_SHARE:
        return small_talk(rng)
    operands = training_operands(rng)
    prompt = addition_row(operands)["prompt"]
    if phase == "skill":
        return prompt, worked_answer(operands, 0.0, rng)
    if rng.random() < THINK_SHARE:
        return prompt, worked_answer(operands, SLIP_RATE, rng)
    return prompt, guessed_answer(operands, rng)


def document(phase: str, render: Callable[[Messages], str], rng: random.Random) -> Document:
    """Return a document of the phase "skill" or "habit"; `render` applies the chat template."""
    if phase == "skill" and rng.random() < PLAIN_SHARE:
        sums = (work_out(training_operands(rng), 0.0, rng) for _ in range(PLAIN_SUMS))
        return [piece for steps in sums for q, r in steps for piece in ((q, False), (f"{r}\n", True))]
    prompt, answer = conversation(phase, rng)
    return [(render(prompt), False), (answer + END, True)]


def tokenizer_text(seed: int) -> list[str]:
    """Return the lines from which the merges are learnt: the frame of a conversation, prompts and answers."""
    rng = random.Random(f"tokenizer/{seed}")
    lines = ["system\nYou are a helpful assistant.", "user\n", "assistant\n", THINK_SYSTEM_PROMPT] * 100
    for _ in range(2000):
        prompt, answer = conversation("habit", rng)
        lines += [message["content"] for message in prompt] + [answer]
    return lines
