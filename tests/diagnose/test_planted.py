"""Faults of tokens, planted in real runs, are found by their own rules; in a sound run, no rule finds a fault."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from grpo_lab.diagnose import diagnose
from grpo_lab.models import load_policy
from grpo_lab.rewards import accuracy_reward
from grpo_lab.rollout.environments.text_environment import TextEnvironment
from grpo_lab.tasks import addition_problems
from grpo_lab.teaching.bugs import planted
from grpo_lab.trainer import collecting, train
from tests.support.small_policy import ROWS, letter_reward, make_config, make_policy
from tests.support.text_episodes import STOP_STRINGS, reply_by_length

TOKEN_FAULTS = {"environment_tokens_in_loss", "completions_reencoded"}


def named(history) -> set[str]:
    return {finding.name for finding in diagnose(history, {"precision": "fp32"})}


def mask_of_the_loss(monkeypatch):
    make_experience = collecting.make_experience

    def all_tokens(rollout, *arguments):
        return replace(make_experience(rollout, *arguments), loss_mask=rollout.mask)

    monkeypatch.setattr(collecting, "make_experience", all_tokens)


def mask_of_the_rollout(monkeypatch):
    sample_rollout = collecting.sample_rollout

    def all_tokens(*arguments, **keywords):
        rollout = sample_rollout(*arguments, **keywords)
        return replace(rollout, policy_mask=rollout.mask)

    monkeypatch.setattr(collecting, "sample_rollout", all_tokens)


@pytest.mark.parametrize("forget", [None, mask_of_the_loss, mask_of_the_rollout])
def test_environment_tokens_in_the_loss_are_diagnosed(monkeypatch, forget):
    if forget:
        forget(monkeypatch)
    model, tokenizer = make_policy()
    config = make_config(max_completion_length=16, max_steps=3)
    environment = TextEnvironment(reply_by_length, STOP_STRINGS)
    history = train(model, tokenizer, ROWS, letter_reward, config, environment=environment)
    assert max(metrics["tools/frac_trained"] for metrics in history) == float(forget is not None)
    assert named(history) & TOKEN_FAULTS == ({"environment_tokens_in_loss"} if forget else set())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (None, set()),
        ("retokenised", {"completions_reencoded", "train_inference_mismatch"}),
        ("off-by-one", {"train_inference_mismatch"}),
        ("temperature-mismatch", {"train_inference_mismatch"}),
    ],
)
def test_reencoded_completions_are_distinguished_from_other_mismatches(fault, expected):
    model, tokenizer = load_policy("tiny", device="cpu")
    config = make_config(
        num_generations=4, generation_batch_size=32, max_completion_length=64, max_steps=3, learning_rate=1e-5,
        temperature=0.8,
    )  # fmt: skip
    with planted(fault) if fault else nullcontext():
        history = train(model, tokenizer, addition_problems("train", 24), accuracy_reward, config)
    assert named(history) & (TOKEN_FAULTS | {"train_inference_mismatch"}) == expected
    assert "tools/frac_trained" not in history[0]
