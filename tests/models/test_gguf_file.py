"""A converted GGUF file has the weights, tokenizer and ties of the file, and what cannot be read is refused by name."""

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_lab.models.gguf_file import convert, read_header, tied_tensor
from tests.support.gguf_files import assert_equals_gguf_reader, write_gguf


def test_the_tokenizer_ends_pads_and_parts_digits_as_the_model_was_trained(converted):
    tokenizer, model = (kind.from_pretrained(converted[1]) for kind in (AutoTokenizer, AutoModelForCausalLM))
    assert_equals_gguf_reader(model, converted[0])
    is_qwen = model.config.model_type == "qwen2"
    end, end_of_text = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert model.generation_config.eos_token_id == ([end, end_of_text] if is_qwen else end)
    assert not hasattr(model.config, "quantization_config")
    assert (tokenizer.eos_token, tokenizer.padding_side) == ("<|im_end|>", "left")
    assert tokenizer.pad_token_id == model.generation_config.pad_token_id == (end_of_text if is_qwen else end)
    assert tokenizer.tokenize("hi 1234") == ["hi", "Ġ", "1", "2", "3", "4"]
    assert tokenizer.tokenize("<|im_end|>") == ["<|im_end|>"]
    for text in ("hi\n\n  12½ 你好 it's", " leading", "trailing "):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert prompt == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"


def test_tags_of_a_tool_call_stay_in_a_decoded_text_and_padding_is_no_token(tmp_path):
    write_gguf(tmp_path / "small.gguf", "qwen2")
    convert(read_header(tmp_path / "small.gguf"), tmp_path / "model", "")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    ids = tokenizer("<tool_call>hi</tool_call><|im_end|>")["input_ids"]
    assert len(ids) == 4 and tokenizer.decode(ids, skip_special_tokens=True) == "<tool_call>hi</tool_call>"
    assert len(tokenizer) == 262, "the embedding's padding rows are no words"
    assert "PAD" not in tokenizer.tokenize("[PAD262]")


@pytest.mark.parametrize(
    ("head", "tensor"), [("of the embedding", "output.weight"), ("none", "token_embd.weight"), ("another", None)]
)
def test_embedding_and_head_are_tied_where_they_are_one_matrix_and_there_alone(head, tensor, tmp_path):
    write_gguf(tmp_path / "small.gguf", "qwen2", head=head)
    header = read_header(tmp_path / "small.gguf")
    assert tied_tensor(header) == tensor
    convert(header, tmp_path / "model", "")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.config.tie_word_embeddings == (tensor is not None)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == (tensor is not None)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(str(header.file)).tensors}
    expected = tensors[tensor or "output.weight"]
    assert torch.equal(model.lm_head.weight, torch.tensor(gguf.quants.dequantize(expected.data, expected.tensor_type)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"written_as": "gemma3"}, "a model of the architecture 'gemma3'; expected a GGUF file of architecture"),
        ({"without": ("token_list",)}, r"has no tokenizer \(tokenizer.ggml.tokens\)"),
        ({"without": ("token_merges",)}, r"has no tokenizer \(tokenizer.ggml.merges\)"),
        ({"without": ("chat_template",)}, "has no chat template"),
        ({"tokenizer_pre": "llama-bpe"}, "cuts text into words as 'llama-bpe'; known: 'qwen2'"),
    ],
)
def test_a_file_that_cannot_be_read_wholly_is_refused_by_name(options, message, tmp_path):
    write_gguf(tmp_path / "other.gguf", "qwen2", **options)
    with pytest.raises(ValueError, match=message):
        read_header(tmp_path / "other.gguf")


def test_gguf_reader_refuses_other_and_truncated_files(tmp_path):
    write_gguf(tmp_path / "whole.gguf", "qwen2")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:20_000])
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "empty.gguf").touch()
    for name in ("cut", "text", "empty"):
        with pytest.raises(ValueError, match=rf"{name}.gguf, which is not a GGUF file, or is damaged"):
            read_header(tmp_path / f"{name}.gguf")
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_header(tmp_path / "nowhere.gguf")
