"""A GGUF file as a folder that transformers opens: weights in float32, tokenizer, chat template, model card.

GGUF is the format of llama.cpp: one file with everything, the weights usually quantised to a few bits. `convert` reads
a Llama (such as SmolLM2) or a Qwen2 (which Qwen2.5 is, too). Nothing of the file is run.
"""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from numpy.linalg import norm

from grpo_lab.base.checks import InputError, InputPackageError
from grpo_lab.base.display import readable

END = "<|im_end|>"  # ends a message in ChatML, the form of both families' chats
END_OF_TEXT = "<|endoftext|>"
TIED_BELOW = 0.1  # two quantisations of one matrix differ by less than this share of its norm
QWEN_WORDS = (  # how Qwen2 cuts a text into words before BPE; each digit is a word of its own
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Header(NamedTuple):
    """The head of a GGUF file: what it says of itself before the weights."""

    file: Path
    fields: dict
    tensors: dict  # name -> tensor, not yet dequantised

    @property
    def architecture(self) -> str:
        return self.value("general.architecture")

    @property
    def name(self) -> str:
        return self.value("general.name", self.file.stem)

    def value(self, name: str, default=None):
        """A field's value, as Python's own types; the default where the file has no such field."""
        return self.fields[name].contents() if name in self.fields else default

    def setting(self, name: str) -> int:
        """A number of the architecture, such as "embedding_length"."""
        return self.value(f"{self.architecture}.{name}")

    @property
    def quantisation(self) -> str:
        """The kinds of numbers that its matrices are in, such as "Q4_K, Q5_0, Q6_K and Q8_0"."""
        kinds = sorted({tensor.tensor_type.name for tensor in self.tensors.values() if len(tensor.shape) > 1})
        return " and ".join([", ".join(kinds[:-1]), kinds[-1]]) if len(kinds) > 1 else kinds[0]


def read_header(file: Path, architecture: str | None = None) -> Header:
    """Open a GGUF file and check that `convert` can read all of it.

    architecture: the one that is expected, "llama" or "qwen2"; None for either.

    Raises:
        ValueError: if it is no GGUF file or a damaged one, of another architecture, or without tokenizer or template.
        FileNotFoundError: if there is no such file.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        needs = 'are read with the package gguf, which is not installed: pip install "grpo-lab[gguf]"'
        raise InputPackageError("GGUF files", found=needs) from error

    expected = f'expected a GGUF file of architecture "{architecture or " or ".join(PRE_TOKENIZERS)}"'
    if not file.is_file():
        raise FileNotFoundError(f"{readable(file)}: no such file; {expected}")
    try:
        reader = GGUFReader(str(file))
    except Exception as error:  # the reader raises whatever the bytes lead it to
        problem = f"is {readable(file)}, which is no GGUF file, or a damaged one ({type(error).__name__})"
        raise InputError("gguf", file, "download it again", found=problem) from error
    header = Header(file, reader.fields, {tensor.name: tensor for tensor in reader.tensors})
    if header.architecture not in ([architecture] if architecture else PRE_TOKENIZERS):
        problem = f"is {readable(file)}, a model of the architecture {header.architecture!r}"
        raise InputError("gguf", file, expected, found=problem)
    lacking = [name for name in TOKENIZER if f"tokenizer.{name}" not in header.fields]
    if lacking:
        part = "chat template" if lacking[0] == "chat_template" else "tokenizer"
        problem = f"is {readable(file)}, which has no {part} (tokenizer.{lacking[0]})"
        raise InputError("gguf", file, "expected an instruct model's file with both", found=problem)
    cut_as = header.value("tokenizer.ggml.pre")
    if cut_as not in PRE_TOKENIZERS[header.architecture]:
        known = ", ".join(map(repr, PRE_TOKENIZERS[header.architecture]))
        problem = f"is {readable(file)}, whose tokenizer cuts text into words as {cut_as!r}"
        raise InputError("gguf", file, f"known: {known}", found=problem)
    return header


def convert(header: Header, into: Path, card: str) -> None:
    """Write the model as a transformers checkpoint: float32 weights, tokenizer, chat template, and a card.

    Where the file has an embedding and a head that are one matrix, quantised twice, the published model has one matrix
    for both (they are tied). So has the folder: the one of more bits.

    into: a folder that does not exist yet. card: the text of its README.md.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    tokenizer = read_tokenizer(header)
    with contextlib.redirect_stderr(io.StringIO()):  # progress bars: in a log they are one long line
        file = header.file
        loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        weights = loaded.state_dict()
        of_the_file = ("quantization_config", "_name_or_path", "transformers_version", "dtype")
        settings = {name: value for name, value in loaded.config.to_dict().items() if name not in of_the_file}
        del loaded
        if tied := tied_tensor(header):
            settings["tie_word_embeddings"] = True
            one_matrix = weights["lm_head.weight" if tied == "output.weight" else "model.embed_tokens.weight"]
            weights["model.embed_tokens.weight"] = weights["lm_head.weight"] = one_matrix
        config = AutoConfig.for_model(**settings)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(weights, assign=True)  # as a model that has never been anything but float32
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
    """The tensor that is the embedding and the output head; None if these are two different matrices.

    A file may hold one matrix twice, in two quantisations: then it is the one of more bits.
    """
    from gguf.quants import dequantize

    if "output.weight" not in header.tensors:
        return "token_embd.weight"
    pair = [header.tensors[name] for name in ("token_embd.weight", "output.weight")]
    embedding, head = (dequantize(tensor.data, tensor.tensor_type) for tensor in pair)
    if embedding.shape != head.shape or norm(embedding - head) >= TIED_BELOW * norm(head):
        return None
    return max(pair, key=_bits).name


def is_tied(header: Header) -> bool:
    """True if embedding and output head are one matrix."""
    return tied_tensor(header) is not None


def _bits(tensor) -> float:
    """Bits for one number of a tensor, the scales of its blocks included."""
    return 8 * tensor.n_bytes / tensor.n_elements


def end_tokens(header: Header) -> list[str]:
    """The tokens that end a completion: the end of a message; for Qwen2 the end of a text as well."""
    return [END, END_OF_TEXT] if header.architecture == "qwen2" else [END]


def read_tokenizer(header: Header):
    """The file's tokenizer: byte-level BPE, digits one by one, and special tokens where the file marks them."""
    from gguf import TokenType
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    tokens, kinds, merges, template = (header.value(f"tokenizer.{name}") for name in TOKENIZER)
    vocabulary = {
        token: number
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind != TokenType.UNUSED  # padding of the embedding, which no text is written with
    }
    backend = Tokenizer(models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges]))
    if header.architecture == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = PRE_TOKENIZERS[header.architecture][header.value("tokenizer.ggml.pre")]()
    backend.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED):
            special = kind == TokenType.CONTROL  # left out of a decoded text; a tool call's tags are not
            backend.add_special_tokens([AddedToken(token, special=True, normalized=False)]) if special else (
                backend.add_tokens([AddedToken(token, special=False, normalized=False)])
            )
    names = {"bos_token": "<|im_start|>", "eos_token": END, "pad_token": END, "unk_token": END_OF_TEXT}
    if header.architecture == "qwen2":
        names = {"eos_token": END, "pad_token": END_OF_TEXT}
    length = header.setting("context_length")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, padding_side="left", model_max_length=length, **names)
    tokenizer.chat_template = template
    return tokenizer


def _smollm_words():
    from tokenizers import pre_tokenizers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])


def _qwen_words():
    from tokenizers import Regex, pre_tokenizers

    words = pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


TOKENIZER = ("ggml.tokens", "ggml.token_type", "ggml.merges", "chat_template")
PRE_TOKENIZERS: dict[str, dict[str, Callable]] = {"llama": {"smollm": _smollm_words}, "qwen2": {"qwen2": _qwen_words}}
