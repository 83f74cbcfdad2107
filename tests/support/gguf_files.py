"""Write small GGUF files with the tokenizers of SmolLM2 and Qwen, and read their weights by the GGUF package."""

import gguf
import numpy as np
import torch
from tokenizers.pre_tokenizers import ByteLevel

WIDTH, HEADS, KEYS, LAYERS, INNER = 64, 4, 2, 2, 96
TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"  # noqa: E501
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ARCHITECTURES = ("llama", "qwen2")


def vocabulary(architecture: str) -> tuple[list[str], list[int]]:
    """Return tokens and their types: the 256 bytes as byte-level BPE writes them, one merge, three special tokens.

    The order is that of the architecture's models: SmolLM2's special tokens come first, and Qwen's last. Qwen's are
    followed by the tags of a tool call, which are not special tokens, and by unused tokens.
    """
    words, kinds = [*sorted(ByteLevel.alphabet()), "hi"], gguf.TokenType
    if architecture == "llama":
        return SPECIAL + words, [kinds.CONTROL] * 3 + [kinds.NORMAL] * 257
    tools, padding = ["<tool_call>", "</tool_call>"], [f"[PAD{number}]" for number in range(262, 288)]
    marks = [kinds.NORMAL] * 257 + [kinds.CONTROL] * 3 + [kinds.USER_DEFINED] * 2 + [kinds.UNUSED] * len(padding)
    return words + SPECIAL + tools + padding, marks


def write_gguf(
    path, architecture: str, without: tuple[str, ...] = (), head: str = "of the embedding", **fields
) -> None:
    """Write a small model with random weights, quantised like the real file, with F32 norms and biases.

    without: Names of fields that are left out.
    head: The output head of a Qwen2: "of the embedding" (the same matrix in another quantisation), "another", "none".
    fields: Fields that differ from the default values.
    """
    (words, types), rng = vocabulary(architecture), np.random.default_rng(0)
    writer = gguf.GGUFWriter(str(path), fields.pop("written_as", architecture))
    for name, value in {
        "name": "small", "context_length": 128, "embedding_length": WIDTH, "block_count": LAYERS, "head_count": HEADS,
        "feed_forward_length": INNER, "head_count_kv": KEYS, "rope_dimension_count": WIDTH // HEADS,
        "rope_freq_base": 10_000.0, "layer_norm_rms_eps": 1e-5, "vocab_size": len(words), "tokenizer_model": "gpt2",
        "tokenizer_pre": "smollm" if architecture == "llama" else "qwen2", "token_list": words, "token_types": types,
        "token_merges": ["h i"], "eos_token_id": words.index("<|im_end|>"),
        "pad_token_id": words.index("<|im_end|>" if architecture == "llama" else "<|endoftext|>"),
        "chat_template": TEMPLATE,
    }.items():  # fmt: skip
        if name not in without:
            getattr(writer, f"add_{name}")(fields.get(name, value))
    keys = KEYS * WIDTH // HEADS
    shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (keys, WIDTH), "attn_v": (keys, WIDTH), "attn_output": (WIDTH, WIDTH),
              "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}  # fmt: skip
    kinds = gguf.GGMLQuantizationType

    def add(name, values, kind):
        data = values if kind is kinds.F32 else gguf.quants.quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=kind)

    def drawn(*shape):
        return rng.normal(size=shape).astype(np.float32)

    embedding = drawn(len(words), WIDTH)
    add("token_embd.weight", embedding, kinds.Q8_0 if architecture == "llama" else kinds.Q5_0)
    if architecture == "qwen2" and head != "none":
        add("output.weight", embedding if head == "of the embedding" else drawn(len(words), WIDTH), kinds.Q8_0)
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            add(f"blk.{layer}.{name}.weight", drawn(*shape), kinds.Q4_1)
            if architecture == "qwen2" and name in ("attn_q", "attn_k", "attn_v"):
                add(f"blk.{layer}.{name}.bias", drawn(shape[0]), kinds.F32)
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}.weight", drawn(WIDTH), kinds.F32)
    add("output_norm.weight", drawn(WIDTH), kinds.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
         "ffn_norm": "post_attention_layernorm"}  # fmt: skip


def dequantised_tensors(file, heads: int, keys: int, embedding: str = "token_embd") -> dict[str, torch.Tensor]:
    """Return every tensor as the GGUF reader dequantises it, under transformers' name.

    In a Llama, llama.cpp rotates pairs of neighbouring numbers, and transformers rotates the two halves of a head. So
    the rows of queries and keys are put into transformers' order, in which the even rows of each head come first.

    embedding: The tensor that serves as embedding and output head; if there are two, the other one is left out.
    """
    tensors, reader = {}, gguf.GGUFReader(str(file))
    rotates_neighbours = reader.fields["general.architecture"].contents() == "llama"
    for tensor in reader.tensors:
        values = torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if rotates_neighbours and parts[2] in ("attn_q", "attn_k"):
                by_head = values.unflatten(0, (heads if parts[2] == "attn_q" else keys, -1))
                values = torch.cat([by_head[:, 0::2], by_head[:, 1::2]], dim=1).flatten(0, 1)
            tensors[f"model.layers.{parts[1]}.{NAMES[parts[2]]}.{parts[3]}"] = values
        elif parts[0] == "output_norm":
            tensors["model.norm.weight"] = values
        elif parts[0] == embedding:
            tensors["model.embed_tokens.weight"] = values
    return tensors


def assert_equals_gguf_reader(model, file) -> None:
    """Assert that every weight equals the GGUF reader's to the bit, and that embedding and head are one tensor."""
    tensor_name = "output" if model.config.model_type == "qwen2" else "token_embd"
    expected = dequantised_tensors(
        file, model.config.num_attention_heads, model.config.num_key_value_heads, tensor_name
    )
    weights = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    assert weights.keys() == expected.keys()
    for name, value in weights.items():
        assert value.dtype == torch.float32 and torch.equal(value, expected[name]), name
    assert model.lm_head.weight is model.model.embed_tokens.weight
