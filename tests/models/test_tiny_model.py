"""The shipped model is small, is a plain Qwen2 checkpoint, encodes any text, and has still much to learn."""

import random
import re
import unicodedata
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from grpo_lab.evaluate import evaluate
from grpo_lab.tasks import addition_problems, addition_split
from tests.support.scripts import load_script

maker, corpus = (load_script(f"notebooks/runs/{name}.py") for name in ("make_tiny_qwen2", "tiny_corpus"))
FOLDER = maker.FOLDER
any_text = st.text(
    st.characters(exclude_categories=["Cs"])
)  # all characters but lone surrogates, which are invalid in a text


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(FOLDER)


def test_tiny_model_is_a_small_qwen2_in_float32(model, tokenizer):
    assert isinstance(model, Qwen2ForCausalLM) and isinstance(model.config, Qwen2Config)
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_000_000
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert model.config.vocab_size == len(tokenizer) == maker.VOCAB_SIZE


@given(text=any_text)
def test_tokenizer_round_trip_keeps_any_text(tokenizer, text):
    # Qwen2's tokenizer first converts a text to Unicode's composed form (NFC); nothing else is lost.
    assert tokenizer.decode(tokenizer(text).input_ids) == unicodedata.normalize("NFC", text)


@given(number=st.integers(0, 10**12))
def test_tiny_tokenizer_encodes_every_digit_as_one_token(tokenizer, number):
    tokens = tokenizer(f"{number}+{number}=?").input_ids
    assert [tokenizer.decode([token]) for token in tokens] == [*str(number), "+", *str(number), "=?"]


def test_tiny_tokenizer_has_the_special_tokens_and_tags(tokenizer, model):
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|endoftext|>", "<|im_end|>")
    assert (model.config.pad_token_id, model.config.eos_token_id) == (tokenizer.pad_token_id, tokenizer.eos_token_id)
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id, tokenizer.pad_token_id]
    for token in (*maker.SPECIAL_TOKENS, *maker.TAGS):
        assert len(tokenizer(token).input_ids) == 1
    text = "<|im_start|><think>1</think><answer>2</answer><|im_end|><|endoftext|>"
    decoded = tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True)
    assert decoded == "<think>1</think><answer>2</answer>"


def test_conversations_look_as_in_qwen2_instruct(tokenizer):
    user = {"role": "user", "content": " 你好\n<b>&amp;</b>"}
    messages = [user, {"role": "assistant", "content": "<answer>117</answer>"}, user]
    turn = f"<|im_start|>user\n{user['content']}<|im_end|>\n"
    answer = "<|im_start|>assistant\n<answer>117</answer><|im_end|>\n"
    for system, first in (
        ("You are a helpful assistant.", []),
        ("Be brief. ", [{"role": "system", "content": "Be brief. "}]),
    ):
        text = tokenizer.apply_chat_template([*first, *messages], add_generation_prompt=True, tokenize=False)
        assert text == f"<|im_start|>system\n{system}<|im_end|>\n{turn}{answer}{turn}<|im_start|>assistant\n"


def test_tiny_base_model_rarely_thinks_and_is_mostly_wrong(model, tokenizer):
    result = evaluate(model, tokenizer, addition_problems("test", 200, 11), num_generations=1, max_completion_length=40)
    assert 0.10 <= result["accuracy"] <= 0.35
    assert 0.10 <= result["think_rate"] <= 0.35
    assert result["mean_length"] < 20


@pytest.mark.slow
def test_the_script_makes_the_same_files_twice(tmp_path):
    phases = tuple(replace(phase, steps=2, batch_size=8) for phase in maker.PHASES)
    for name in ("one", "two"):
        maker.make(tmp_path / name, phases, seed=3)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "two").iterdir())
    assert {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json"} <= set(names)
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_the_corpus_holds_training_sums_only():
    rng = random.Random(0)
    assert {addition_split(corpus.training_operands(rng)) for _ in range(2000)} == {"train"}
    questions = [corpus.conversation(phase, rng)[0][-1]["content"] for phase in ("skill", "habit") for _ in range(1000)]
    sums = [re.findall(r"\d+", text) for text in questions if re.fullmatch(r"\d\d\+\d\d\+\d\d=\?", text)]
    assert len(sums) > 1500
    assert {addition_split([int(number) for number in numbers]) for numbers in sums} == {"train"}
