"""Make the embedded model: `python notebooks/runs/make_tiny_qwen2.py` writes a new `tiny-qwen2` folder.

The model is a base model for reinforcement learning. Real base models get their habits from the web; this one gets them
from synthetic text (`tiny_corpus`), in two phases:

1. skill: plain lines of additions, and sums of three two-digit numbers worked out step by step between think tags;
2. habit: the same sums answered as by a hasty pupil, mostly with a guess, seldom step by step, and then with slips.

So the base model mostly guesses and is mostly wrong; when it thinks, it is mostly right. No training text shows that
thinking leads to right answers. GRPO learns this from the reward.
"""

import argparse
import json
import math
import random
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from tiny_corpus import document, tokenizer_text  # a script in this folder
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from tqdm import tqdm
from transformers import AddedToken, GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from grpo_lab.models.folders import TINY as FOLDER
from grpo_lab.tasks import word_problems

VOCAB_SIZE = 512
MAX_TOKEN_LENGTH = 16
CONTEXT = 2048
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
# The conversation format of the Qwen2-Instruct models: a default system message, then each message between its markers.
CHAT_TEMPLATE = (
    "{%- if messages and messages[0].role != 'system' -%}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}"
    "{%- endif -%}"
    "{%- for turn in messages -%}"
    "{{ '<|im_start|>' ~ turn.role ~ '\n' ~ turn.content ~ '<|im_end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.08,  # about 1 / sqrt(hidden_size); Qwen2's 0.02 is meant for widths from 896
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},  # sharp at the short range that sums need
}


@dataclass(frozen=True)
class Phase:
    name: str
    steps: int
    batch_size: int
    rate: float  # factor of the learning rates: 0.02 for matrices (Muon), 0.003 for other parameters (AdamW)


PHASES = (Phase("skill", 800, 32, 1.0), Phase("habit", 300, 64, 0.3))
LONG_ROW = 42  # tokens with the prompt; a guess is shorter, a worked sum is longer


def build_tokenizer(seed: int = 0) -> Qwen2Tokenizer:
    """Return a byte-level BPE tokenizer with Qwen2's normaliser and pre-tokeniser, and merges from the corpus."""
    like = Qwen2Tokenizer().backend_tokenizer
    core = Tokenizer(models.BPE())
    core.normalizer, core.pre_tokenizer = like.normalizer, like.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS) - len(TAGS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=MAX_TOKEN_LENGTH,
        show_progress=False,
    )
    stories = [message["content"] for row in word_problems(n=600) for message in row["prompt"]]
    lines = [re.sub("|".join(TAGS), " ", line) for line in tokenizer_text(seed) + stories]
    core.train_from_iterator(lines, trainer)
    learnt = json.loads(core.to_str())["model"]
    vocab = learnt["vocab"] | {token: len(learnt["vocab"]) + i for i, token in enumerate(SPECIAL_TOKENS)}
    merges = [tuple(pair) for pair in learnt["merges"]]
    tokenizer = Qwen2Tokenizer(vocab, merges, eos_token="<|im_end|>", model_max_length=CONTEXT, padding_side="left")
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2ForCausalLM:
    """Return a freshly initialised Qwen2 with the sizes of `SIZES`."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        **SIZES,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    # As in Qwen2-Instruct, either of these two tokens ends a response. Sampling settings are neutral.
    stops = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    model.generation_config = GenerationConfig(do_sample=True, eos_token_id=stops, pad_token_id=tokenizer.pad_token_id)
    return model


def encode(tokenizer: Qwen2Tokenizer, documents: list[list[tuple[str, bool]]]) -> list[tuple[list[int], list[int]]]:
    """Return token ids and labels of each document; a token that the loss does not count has the label -100."""
    pieces = iter(tokenizer([text for pieces in documents for text, _ in pieces]).input_ids)
    rows = []
    for document_pieces in documents:
        ids, labels = [], []
        for (_, learn), tokens in zip(document_pieces, pieces, strict=False):
            ids += tokens
            labels += tokens if learn else [-100] * len(tokens)
        rows.append((ids, labels))
    return rows


def padded(rows: list[tuple[list[int], list[int]]], device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Return token ids and labels of shape (B, T), padded on the right, to which no earlier token attends."""
    width = max(len(ids) for ids, _ in rows)
    ids = [ids + [0] * (width - len(ids)) for ids, _ in rows]
    labels = [labels + [-100] * (width - len(labels)) for _, labels in rows]
    return torch.tensor(ids, device=device), torch.tensor(labels, device=device)


def summed_loss(model: Qwen2ForCausalLM, rows: list[tuple[list[int], list[int]]]) -> Tensor:
    """Return the cross-entropy, summed over all tokens that the loss counts."""
    ids, labels = padded(rows)
    logits = model(input_ids=ids).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")


def build_optimizers(model: Qwen2ForCausalLM) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices (in trials it learnt to carry sooner), and AdamW for other parameters."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    remaining = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    muon = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.01)
    return [muon, torch.optim.AdamW(remaining, lr=0.003, betas=(0.9, 0.98), weight_decay=0.01)]


def warm_up(model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, phase: Phase, seed: int) -> list[float]:
    """Train on one phase with a schedule of warm-up and cosine decay, and return the loss of each step."""
    rng = random.Random(f"{phase.name}/{seed}")
    optimizers = build_optimizers(model)
    groups = [(group, group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
    losses = []
    for step in tqdm(range(phase.steps), desc=phase.name, mininterval=5.0):
        decay = 0.02 + 0.49 * (1 + math.cos(math.pi * step / phase.steps))
        for group, full_speed in groups:
            group["lr"] = full_speed * phase.rate * decay * min(1.0, (step + 1) / 50)
        losses.append(backward(model, batch(tokenizer, phase, rng)))
        take_step(model, optimizers)
    return losses


def take_step(model: Qwen2ForCausalLM, optimizers: list[torch.optim.Optimizer]) -> None:
    """Update the model by its gradients, clipped to a norm of 1."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def batch(tokenizer: Qwen2Tokenizer, phase: Phase, rng: random.Random) -> list[tuple[list[int], list[int]]]:
    render = partial(tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=False)
    return encode(tokenizer, [document(phase.name, render, rng) for _ in range(phase.batch_size)])


def backward(model: Qwen2ForCausalLM, rows: list[tuple[list[int], list[int]]]) -> float:
    """Accumulate the gradient of the mean loss, in separate batches of short and long rows to save padding."""
    num_items = sum(label != -100 for _, labels in rows for label in labels)
    total = 0.0
    for part in ([row for row in rows if len(row[0]) < LONG_ROW], [row for row in rows if len(row[0]) >= LONG_ROW]):
        if part:
            loss = summed_loss(model, part) / num_items
            loss.backward()
            total += loss.item()
    return total


def make(folder: Path, phases: tuple[Phase, ...] = PHASES, seed: int = 0) -> None:
    """Make tokenizer and model and write them as a transformers checkpoint."""
    tokenizer = build_tokenizer(seed)
    model = build_model(tokenizer, seed)
    for phase in phases:
        losses = warm_up(model, tokenizer, phase, seed)
        print(f"{phase.name}: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("notebooks/runs/make_tiny_qwen2.py", description="Make the tiny model.")
    parser.add_argument("--output_dir", type=Path, default=FOLDER, help="default: the folder that ships")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the weights depend slightly on the number of threads
    make(args.output_dir)


if __name__ == "__main__":
    main()
