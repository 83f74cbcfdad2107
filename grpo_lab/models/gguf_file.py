"""Convert a GGUF file into a folder that transformers opens: weights in float32, tokenizer, chat template, model card.

GGUF is the format of llama.cpp: one file that holds the whole model, with weights that are usually quantised to a few
bits. `convert` reads models of the architectures Llama (such as SmolLM2) and Qwen2 (such as Qwen2.5). No code from the
file is run.
"""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from numpy.linalg import norm
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from grpo_lab.base.checks import InputError, InputPackageError
from grpo_lab.base.display import short_path

END_OF_MESSAGE = "<|im_end|>"  # ends a message in ChatML, the chat format of SmolLM2 and Qwen2
END_OF_TEXT = "<|endoftext|>"
TIED_BELOW = 0.1  # two quantisations of one matrix differ by less than this share of its norm
# Fields of the header that describe the tokenizer, without their prefix "tokenizer.".
TOKENIZER_FIELDS = ("ggml.tokens", "ggml.token_type", "ggml.merges", "chat_template")
# The pattern by which Qwen2 splits a text into words before BPE; each digit is a word.
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _smollm_pre_tokenizer():
    """Return the pre-tokenizer of SmolLM2, which splits a text into words before BPE."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])


def _qwen_pre_tokenizer():
    """Return the pre-tokenizer of Qwen2, which splits a text into words before BPE."""
    words = pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# By architecture, the pre-tokenizers that can be built, by their names in GGUF.
PRE_TOKENIZERS: dict[str, dict[str, Callable]] = {
    "llama": {"smollm": _smollm_pre_tokenizer},
    "qwen2": {"qwen2": _qwen_pre_tokenizer},
}


class Header(NamedTuple):
    """The header of a GGUF file: its metadata fields, and its tensors, still quantised."""

    file: Path
    fields: dict
    tensors: dict  # {name: tensor}

    @property
    def architecture(self) -> str:
        return self.value("general.architecture")

    @property
    def name(self) -> str:
        return self.value("general.name", self.file.stem)

    def value(self, name: str, default=None):
        """Return the value of a field in Python's own types; the default if the file has no such field."""
        return self.fields[name].contents() if name in self.fields else default

    def setting(self, name: str) -> int:
        """Return a size of the model by its name, such as "embedding_length"."""
        return self.value(f"{self.architecture}.{name}")

    @property
    def quantisation(self) -> str:
        """The quantisation formats of the matrices, such as "Q4_K, Q5_0, Q6_K and Q8_0"."""
        formats = sorted({tensor.tensor_type.name for tensor in self.tensors.values() if len(tensor.shape) > 1})
        return f"{', '.join(formats[:-1])} and {formats[-1]}" if len(formats) > 1 else formats[0]


def read_header(file: Path, architecture: str | None = None) -> Header:
    """Open a GGUF file and check that `convert` can read all of it.

    Args:
        file: The GGUF file.
        architecture: The expected architecture, "llama" or "qwen2"; None accepts both.

    Raises:
        ValueError: if the file is not a GGUF file or is damaged, has another architecture, lacks a tokenizer or a
            chat template, or has an unknown pre-tokenizer.
        FileNotFoundError: if there is no such file.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        needs = 'are read with the package gguf, which is not installed: pip install "grpo-lab[gguf]"'
        raise InputPackageError("GGUF files", problem=needs) from error

    expected = f'expected a GGUF file of architecture "{architecture or " or ".join(PRE_TOKENIZERS)}"'
    if not file.is_file():
        raise FileNotFoundError(f"{short_path(file)}: no such file; {expected}")
    try:
        reader = GGUFReader(str(file))
    except Exception as error:  # for a damaged file the reader may raise an error of any type
        problem = f"is {short_path(file)}, which is not a GGUF file, or is damaged ({type(error).__name__})"
        raise InputError("gguf", file, "download it again", problem=problem) from error
    header = Header(file, reader.fields, {tensor.name: tensor for tensor in reader.tensors})
    if header.architecture not in ([architecture] if architecture else PRE_TOKENIZERS):
        problem = f"is {short_path(file)}, a model of the architecture {header.architecture!r}"
        raise InputError("gguf", file, expected, problem=problem)
    missing_fields = [name for name in TOKENIZER_FIELDS if f"tokenizer.{name}" not in header.fields]
    if missing_fields:
        part = "chat template" if missing_fields[0] == "chat_template" else "tokenizer"
        problem = f"is {short_path(file)}, which has no {part} (tokenizer.{missing_fields[0]})"
        raise InputError("gguf", file, "expected an instruct model's file with both", problem=problem)
    pre_tokenizer = header.value("tokenizer.ggml.pre")
    if pre_tokenizer not in PRE_TOKENIZERS[header.architecture]:
        readable_names = ", ".join(map(repr, PRE_TOKENIZERS[header.architecture]))
        problem = f"is {short_path(file)}, whose tokenizer cuts text into words as {pre_tokenizer!r}"
        raise InputError("gguf", file, f"known: {readable_names}", problem=problem)
    return header


def convert(header: Header, into: Path, card: str) -> None:
    """Write the model as a transformers checkpoint: float32 weights, tokenizer, chat template, and a model card.

    If embedding and head of the published model are tied, the file may hold their one matrix twice, in two
    quantisations. They are then tied in the checkpoint as well, and the one with more bits is taken.

    Args:
        header: The header of the GGUF file.
        into: The folder to write, which must not exist yet.
        card: The text of the model card, README.md.
    """
    tokenizer = read_tokenizer(header)
    with contextlib.redirect_stderr(io.StringIO()):  # hides progress bars, which are one long line in a log
        file = header.file
        loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        weights = loaded.state_dict()
        excluded_settings = ("quantization_config", "_name_or_path", "transformers_version", "dtype")
        settings = {name: value for name, value in loaded.config.to_dict().items() if name not in excluded_settings}
        del loaded
        if tied := tied_tensor(header):
            settings["tie_word_embeddings"] = True
            tied_matrix = weights["lm_head.weight" if tied == "output.weight" else "model.embed_tokens.weight"]
            weights["model.embed_tokens.weight"] = weights["lm_head.weight"] = tied_matrix
        config = AutoConfig.for_model(**settings)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        # A new model, so that nothing about the quantisation is saved with the weights.
        model.load_state_dict(weights, assign=True)
        model.tie_weights()
        ends = [tokenizer.convert_tokens_to_ids(token) for token in end_tokens(header)]
        pad = tokenizer.pad_token_id
        eos = ends[0] if len(ends) == 1 else ends
        model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=pad)
        into.mkdir(parents=True)
        model.save_pretrained(into)
        tokenizer.save_pretrained(into)
    (into / "README.md").write_text(card, encoding="utf-8")


def tied_tensor(header: Header) -> str | None:
    """Return the name of the tensor that serves as embedding and output head; None if these are two different matrices.

    If the file holds one matrix twice, in two quantisations, the name is that of the one with more bits.
    """
    from gguf.quants import dequantize

    if "output.weight" not in header.tensors:
        return "token_embd.weight"
    pair = [header.tensors[name] for name in ("token_embd.weight", "output.weight")]
    embedding, head = (dequantize(tensor.data, tensor.tensor_type) for tensor in pair)
    if embedding.shape != head.shape or norm(embedding - head) >= TIED_BELOW * norm(head):
        return None
    return max(pair, key=lambda tensor: tensor.n_bytes / tensor.n_elements).name


def end_tokens(header: Header) -> list[str]:
    """Return the tokens that end a completion: the end of a message; for Qwen2 the end of a text as well."""
    return [END_OF_MESSAGE, END_OF_TEXT] if header.architecture == "qwen2" else [END_OF_MESSAGE]


def read_tokenizer(header: Header):
    """Build the file's tokenizer: byte-level BPE, digits one by one, and the special tokens that the file marks."""
    from gguf import TokenType

    tokens, token_types, merges, template = (header.value(f"tokenizer.{name}") for name in TOKENIZER_FIELDS)
    vocabulary = {
        token: token_id
        for token_id, (token, token_type) in enumerate(zip(tokens, token_types, strict=True))
        if token_type != TokenType.UNUSED  # an unused token only pads the embedding; it occurs in no text
    }
    backend = Tokenizer(models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges]))
    if header.architecture == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = PRE_TOKENIZERS[header.architecture][header.value("tokenizer.ggml.pre")]()
    backend.decoder = decoders.ByteLevel()
    for token, token_type in zip(tokens, token_types, strict=True):
        # Decoding can leave out control tokens, but must keep user-defined ones, such as the tags of a tool call.
        if token_type == TokenType.CONTROL:
            backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif token_type == TokenType.USER_DEFINED:
            backend.add_tokens([AddedToken(token, special=False, normalized=False)])
    special_tokens = {
        "bos_token": "<|im_start|>",
        "eos_token": END_OF_MESSAGE,
        "pad_token": END_OF_MESSAGE,
        "unk_token": END_OF_TEXT,
    }
    if header.architecture == "qwen2":
        special_tokens = {"eos_token": END_OF_MESSAGE, "pad_token": END_OF_TEXT}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        padding_side="left",
        model_max_length=header.setting("context_length"),
        **special_tokens,
    )
    tokenizer.chat_template = template
    return tokenizer
