"""A run says when sampler and scorer no longer agree; and what it cannot sample, before its first step."""

import warnings
from dataclasses import replace

import pytest
import torch

from grpo_lab.precision import PRECISIONS
from grpo_lab.rollout import score as scoring
from grpo_lab.trainer import train
from grpo_lab.trainer.metrics import WORST, MismatchMonitor
from tests.support.worlds import ROWS, letter_reward, make_config, make_world


def warned(agreement, differences):
    """The steps at which there was a warning."""
    steps = []
    for step, worst in enumerate(differences, 1):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            agreement.watch(step, {WORST: worst})
        steps += [step] * len(seen)
    return steps


@pytest.mark.parametrize(
    ("mode", "limit"), [("fp32", 1e-3), ("fp32-master", 0.5), ("bf16", 0.5), ("bf16-naive", 0.5), ("fp16", 0.1)]
)
def test_a_warning_stands_once_and_again_when_it_has_grown_tenfold(mode, limit):
    agreement = MismatchMonitor(PRECISIONS[mode], make_config())
    course = [0.0, limit, 1.1 * limit, 5 * limit, 10.9 * limit, 12 * limit, limit / 2, 100 * limit, 130 * limit]
    assert warned(agreement, course) == [3, 6, 9]


@pytest.mark.parametrize("asked", [{"top_k": 5}, {"top_p": 0.9}, {"repetition_penalty": 1.1}], ids=str)
def test_a_difference_that_was_asked_for_is_none(asked):
    assert warned(MismatchMonitor(PRECISIONS["fp32"], make_config(**asked)), [3.0]) == []


def test_float64_weights_are_held_to_float32():
    agreement = MismatchMonitor(replace(PRECISIONS["fp32"], weights=torch.float64), make_config())
    with pytest.warns(RuntimeWarning, match="in fp64 explains 0.001"):
        agreement.watch(1, {WORST: 0.01})


def test_a_run_warns_of_a_scorer_that_goes_astray_after_its_check(monkeypatch):
    hidden, calls = scoring._hidden_shared, []

    def astray(*arguments):
        calls.append(1)
        return hidden(*arguments) * (0.9 if len(calls) > 2 else 1)

    model, tokenizer = make_world()
    train(model, tokenizer, ROWS, letter_reward, make_config(max_steps=1))
    monkeypatch.setattr(scoring, "_hidden_shared", astray)
    with pytest.warns(RuntimeWarning) as seen:
        train(model, tokenizer, ROWS, letter_reward, make_config(max_steps=4, learning_rate=0.0))
    (message,) = [str(warning.message) for warning in seen]
    assert message.startswith("step 3: log-probabilities while sampling and while training differ by 0.")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*ROWS, {"prompt": [{"role": "user"}], "answer": ""}], r"dataset row 4: prompt\[0\]\['content'\] is missing"),
        (
            [{"prompt": [{"role": "user", "content": 7}]}],
            r"dataset row 0: prompt\[0\]\['content'\] is 7; expected a te",
        ),
        ([{"prompt": "a"}, {"prompt": ""}], "dataset row 1: prompt is '', which has no token"),
        (
            [{"prompt": "a" * 124}],
            "row 0: prompt has 124 tokens and max_completion_length is 5; .* at most 128, the mo",
        ),
    ],
)
def test_prompts_that_cannot_be_sampled_are_found_before_the_first_step(rows, message, monkeypatch):
    model, tokenizer = make_world()
    monkeypatch.setattr("grpo_lab.trainer.experience.sample_completions", None)
    with pytest.raises(ValueError, match=message):
        train(model, tokenizer, rows, letter_reward, make_config())


def test_messages_without_a_chat_template_are_found_before_the_first_step():
    model, tokenizer = make_world()
    tokenizer.chat_template = None
    with pytest.raises(
        ValueError, match="dataset row 0: prompt is a list of messages, and the tokenizer has no chat_tem"
    ):
        train(model, tokenizer, ROWS, letter_reward, make_config())
