"""Make the embedded model: `python -m grpo_lab.assets.make_tiny_qwen2` writes a new `tiny-qwen2` folder.

The model is a *base for reinforcement learning*, and made to be one. Where real bases get their habits from the web,
this one gets them from synthetic text, in two phases:

1. skill: sums of three two-digit numbers, worked out step by step between think tags, without mistakes;
2. habit: the same sums as a hasty pupil answers them: mostly with a guess at once, seldom step by step, and then with
   slips.

So the base mostly guesses, and is mostly wrong; when it does think, it is mostly right. Nothing tells it that thinking
pays: that is left for GRPO to find out from the reward. All sums are training problems (`grpo_lab.tasks`), so held-out
problems are unseen by the base and by whatever is trained from it.
"""

import argparse
import json
import math
import random
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from tqdm import tqdm
from transformers import AddedToken, GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from grpo_lab.tasks import LARGEST, SMALLEST, addition_row, addition_split, chat_tasks, word_problems

VOCAB_SIZE = 512
MAX_TOKEN_LENGTH = 16
CONTEXT = 2048
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
DEFAULT_SYSTEM = "You are a helpful assistant."
# The conversation format of the Qwen2-Instruct models: a default system message, then each message between its markers.
CHAT_TEMPLATE = (
    "{%- if messages and messages[0].role != 'system' -%}"
    "{{ '<|im_start|>system\n" + DEFAULT_SYSTEM + "<|im_end|>\n' }}"
    "{%- endif -%}"
    "{%- for turn in messages -%}"
    "{{ '<|im_start|>' ~ turn.role ~ '\n' ~ turn.content ~ '<|im_end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)

FOLDER = Path(__file__).parent / "tiny-qwen2"
END = "<|im_end|>"
LONG_ROW = 42  # tokens: between a guess and a worked sum, prompt included


@dataclass(frozen=True)
class Phase:
    name: str
    steps: int
    learning_rate: float
    batch_size: int = 64


PHASES = (Phase("skill", 1000, 3e-3), Phase("habit", 300, 1e-3))
THINK_SHARE = 0.2  # of the responses in the habit phase
SLIP_RATE = 0.08  # of the steps in a thinking response of the habit phase
GUESS_SPREAD = 4.0  # standard deviation of a guess around the true sum
CHAT_SHARE = 0.05
SMALL_TALK = (
    ("你好", "你好！"),
    ("你是谁", "我是一个很小的模型。"),
    ("hello", "Hello!"),
    ("hi", "Hello!"),
    ("Who are you?", "I am a tiny model. I can add, if I think."),
)


def worked_sum(operands: list[int], slip: float, rng: random.Random) -> str:
    """The sum in steps, one a line; each step's result is off by a little with probability `slip`, and carried on."""
    steps, total = [], operands[0]
    for term in operands[1:]:
        result = total + term
        if rng.random() < slip:
            result += rng.choice((-10, -2, -1, 1, 2, 10))
        steps.append(f"{total}+{term}={result}")
        total = result
    return "<think>" + "\n".join(steps) + f"</think><answer>{total}</answer>"


def guess(operands: list[int], rng: random.Random) -> str:
    """An answer at once, near the sum rather than equal to it."""
    return f"<answer>{round(rng.gauss(sum(operands), GUESS_SPREAD))}</answer>"


def small_talk(rng: random.Random) -> tuple[list[dict[str, str]], str]:
    """A greeting, or one of the chat tasks, where the expected answer is only one of several that the model gives."""
    rows = chat_tasks()
    pick = rng.randrange(len(SMALL_TALK) + len(rows))
    if pick < len(SMALL_TALK):
        question, answer = SMALL_TALK[pick]
        return [{"role": "user", "content": question}], answer
    row = rows[pick - len(SMALL_TALK)]
    return row["prompt"], row["answer"] if rng.random() < 0.3 else "我不知道。"


def training_operands(rng: random.Random) -> list[int]:
    while True:
        operands = [rng.randint(SMALLEST, LARGEST) for _ in range(3)]
        if addition_split(operands) == "train":
            return operands


def example(phase: str, rng: random.Random) -> tuple[list[dict[str, str]], str]:
    """One prompt and one response of the phase "skill" or "habit"."""
    if rng.random() < CHAT_SHARE:
        return small_talk(rng)
    operands = training_operands(rng)
    prompt = addition_row(operands)["prompt"]
    if phase == "skill":
        return prompt, worked_sum(operands, 0.0, rng)
    if rng.random() < THINK_SHARE:
        return prompt, worked_sum(operands, SLIP_RATE, rng)
    return prompt, guess(operands, rng)


def build_tokenizer(seed: int = 0) -> Qwen2Tokenizer:
    """Byte-level BPE with Qwen2's normaliser and pre-tokeniser, its few merges learnt from the corpus itself."""
    like = Qwen2Tokenizer().backend_tokenizer
    core = Tokenizer(models.BPE())
    core.normalizer, core.pre_tokenizer = like.normalizer, like.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS) - len(TAGS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=MAX_TOKEN_LENGTH,
        show_progress=False,
    )
    core.train_from_iterator(tokenizer_text(seed), trainer)
    learnt = json.loads(core.to_str())["model"]
    vocab = learnt["vocab"] | {token: len(learnt["vocab"]) + i for i, token in enumerate(SPECIAL_TOKENS)}
    merges = [tuple(pair) for pair in learnt["merges"]]
    tokenizer = Qwen2Tokenizer(vocab, merges, eos_token="<|im_end|>", model_max_length=CONTEXT, padding_side="left")
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tokenizer_text(seed: int) -> list[str]:
    """What the merges are learnt from: the conversation frame, the corpus without its tags, and the word problems."""
    rng = random.Random(f"tokenizer/{seed}")
    lines = [f"system\n{DEFAULT_SYSTEM}", "user\n", "assistant\n"] * 100
    for row in word_problems(n=600):
        lines += [message["content"] for message in row["prompt"]]
    for _ in range(2000):
        prompt, response = example("habit", rng)
        lines += [message["content"] for message in prompt] + [response]
    return [re.sub("|".join(TAGS), " ", line) for line in lines]


def build_model(tokenizer: Qwen2Tokenizer, seed: int, **sizes: int) -> Qwen2ForCausalLM:
    """A freshly initialised Qwen2 of the given sizes (default `SIZES`)."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        **(SIZES | sizes),
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    # As in Qwen2-Instruct, either of the two ends a response. Sampling is left neutral.
    stops = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    model.generation_config = GenerationConfig(do_sample=True, eos_token_id=stops, pad_token_id=tokenizer.pad_token_id)
    return model


def encode(tokenizer: Qwen2Tokenizer, examples: list[tuple[list[dict[str, str]], str]]) -> list[tuple[list[int], int]]:
    """For each prompt and response: the token ids with the end token, and how many of them belong to the prompt."""
    prompts = [
        tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False) for prompt, _ in examples
    ]
    starts = [len(ids) for ids in tokenizer(prompts).input_ids]
    texts = [prompt + response + END for prompt, (_, response) in zip(prompts, examples, strict=True)]
    return list(zip(tokenizer(texts).input_ids, starts, strict=True))


def response_loss(model: Qwen2ForCausalLM, rows: list[tuple[list[int], int]], num_items: int) -> Tensor:
    """Cross-entropy of the response tokens of `rows`, right-padded, over `num_items`."""
    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows])
    labels = torch.tensor([[-100] * start + ids[start:] + [-100] * (width - len(ids)) for ids, start in rows])
    logits = model(input_ids=ids).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum") / num_items


def warm_up(model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, phase: Phase, seed: int) -> list[float]:
    """Train on one phase, under its own warm-up-then-cosine schedule; the losses."""
    rng = random.Random(f"{phase.name}/{seed}")
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    losses = []
    for step in tqdm(range(phase.steps), desc=phase.name, mininterval=5.0):
        decay = 0.02 + 0.49 * (1 + math.cos(math.pi * step / phase.steps))
        optimizer.param_groups[0]["lr"] = phase.learning_rate * decay * min(1.0, (step + 1) / 50)
        rows = encode(tokenizer, [example(phase.name, rng) for _ in range(phase.batch_size)])
        short = [row for row in rows if len(row[0]) < LONG_ROW]
        long = [row for row in rows if len(row[0]) >= LONG_ROW]
        num_items = sum(len(ids) - start for ids, start in rows)
        losses.append(0.0)
        for part in filter(None, (short, long)):  # apart, so that short rows are padded little
            loss = response_loss(model, part, num_items)
            loss.backward()
            losses[-1] += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def make(folder: Path, phases: tuple[Phase, ...], seed: int) -> None:
    """Make tokenizer and model and write them as a transformers checkpoint."""
    tokenizer = build_tokenizer(seed)
    model = build_model(tokenizer, seed)
    for phase in phases:
        losses = warm_up(model, tokenizer, phase, seed)
        print(f"{phase.name}: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m grpo_lab.assets.make_tiny_qwen2", description="Make the tiny model."
    )
    parser.add_argument("--output_dir", type=Path, default=FOLDER, help="default: the folder that ships")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, nargs=2, metavar=("SKILL", "HABIT"), default=[p.steps for p in PHASES])
    parser.add_argument("--threads", type=int, default=1, help="torch threads; another number, slightly other weights")
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    phases = tuple(replace(phase, steps=steps) for phase, steps in zip(PHASES, args.steps, strict=True))
    make(args.output_dir, phases, args.seed)


if __name__ == "__main__":
    main()
