"""Random small checkpoints, complete or with something missing, for the tests of loading."""

import shutil
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def make_tokenizer(
    pad_token: str | None = "<|endoftext|>", eos_token: str | None = "<|im_end|>"
) -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = Tokenizer(BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    bytes_only.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(tokenizer_object=bytes_only, pad_token=pad_token, eos_token=eos_token)


def make_model(vocab_size: int = 259) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config)


def copy(checkpoint: Path, target: Path, without: tuple[str, ...] = ()) -> Path:
    shutil.copytree(checkpoint, target, ignore=shutil.ignore_patterns(*without))
    return target
