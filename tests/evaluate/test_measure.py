"""Sampling and rewarding problems, records of completions, and the probability that a completion begins to think."""

import json

import pytest
import torch

from grpo_lab.evaluate import evaluate, evaluation_metrics, sample_records, thinking_probability
from grpo_lab.models import load_policy
from grpo_lab.rewards import accuracy_reward
from grpo_lab.rollout import sample_completions
from grpo_lab.tasks import addition_problems
from grpo_lab.trainer import sample_and_reward
from tests.support.planted_texts import PLANTED_ROWS, TEXTS, plant_texts
from tests.support.small_policy import ROWS, make_policy


def test_reward_weights_give_the_weighted_reward_and_all_samples(monkeypatch):
    plant_texts(monkeypatch)

    def length(completions, **columns):
        return [None if not text else float(len(text)) for text in completions]

    measure = {"num_generations": 4, "max_completion_length": 3, "reward_funcs": [accuracy_reward, length]}
    scored = sample_and_reward(*make_policy(), PLANTED_ROWS, **measure, reward_weights=[1.0, 0.5])
    result, samples = evaluation_metrics(scored, 4, has_reward_weights=True), sample_records(PLANTED_ROWS, scored)
    assert result == evaluate(*make_policy(), PLANTED_ROWS, **measure, reward_weights=[1.0, 0.5])
    planted_texts = [text for texts in TEXTS.values() for text in texts]
    assert [sample["completion"] for sample in samples] == planted_texts
    assert [sample["problem"] for sample in samples] == [0] * 4 + [1] * 4
    assert [sample["prompt"] for sample in samples] == ["a"] * 4 + ["f"] * 4
    for sample, right in zip(samples, [1, 1, 0, 0, 0, 0, 1, 0], strict=True):
        text = sample["completion"]
        assert sample["rewards"] == {"accuracy_reward": right, "length": float(len(text)) if text else None}
        assert sample["reward"] == right + 0.5 * len(text)
        assert 1 <= sample["length"] <= 3
    assert result["reward"] == pytest.approx(sum(sample["reward"] for sample in samples) / 8)
    assert "reward" not in evaluate(*make_policy(), PLANTED_ROWS, **measure)
    assert json.loads(json.dumps(samples)) == samples


def test_evaluate_counts_the_end_token_and_restores_the_random_state():
    model, tokenizer = make_policy()
    model.train()
    torch.manual_seed(7)
    prompts = [row["prompt"] for row in ROWS]
    lengths = sample_completions(model, tokenizer, prompts, 4, 6).mask.sum(-1).float().mean().item()
    state = torch.get_rng_state()

    def mean_length(seed):
        measure = {"num_generations": 4, "max_completion_length": 6, "seed": seed}
        return evaluate(model, tokenizer, ROWS, **measure)["mean_length"]

    assert mean_length(7) == pytest.approx(lengths)
    assert len({mean_length(seed) for seed in range(4)}) > 1
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    with pytest.raises(ValueError, match="rows is empty"):
        evaluate(*make_policy(), [])
    with pytest.raises(ValueError, match="num_generations is 0"):
        evaluate(*make_policy(), ROWS, num_generations=0)


def test_the_thinking_probability_is_the_share_of_drawn_answers_that_begin_so():
    """For the tiny model and prompts of different lengths, it is the mean of the softmax over prompts."""
    model, tokenizer = load_policy("tiny")
    rows = [*addition_problems("test", 3, seed=1), {"prompt": [{"role": "user", "content": "你好"}]}]
    (think,) = tokenizer("<think>", add_special_tokens=False).input_ids
    expected = []
    for row in rows:
        ids = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            expected.append(model(ids).logits[0, -1].double().softmax(-1)[think].item())
    assert max(expected) > 3 * min(expected), "the prompts differ in it"
    for batch_size in (1, 2, 512):
        measured = thinking_probability(model, tokenizer, rows, batch_size=batch_size)
        assert measured == pytest.approx(sum(expected) / 4, rel=1e-5)
    with pytest.raises(ValueError, match="tokenizer writes '<think>' as 0 tokens; expected one"):
        thinking_probability(*make_policy(), rows)
    with pytest.raises(ValueError, match="rows is empty"):
        thinking_probability(model, tokenizer, [])
