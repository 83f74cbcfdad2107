"""Properties of a run: its reference, its seeds, the order of its data, and the errors of its arguments."""

from itertools import pairwise

import numpy as np
import pandas
import pytest
import torch

from grpo_lab.trainer import Run, loop, train
from tests.support.small_policy import (
    ROWS,
    letter_reward,
    make_config,
    make_policy,
    make_tokenizer,
    same_weights,
    train_small,
    weights,
    without_times,
)


def watch_reference(monkeypatch, policy):
    """Record weights and model in each computation of log-probabilities by a model other than the policy."""
    seen, computed = [], loop.logprobs_without_gradient

    def spy(model, *arguments):
        if model is not policy:
            seen.append((weights(model), model))
        return computed(model, *arguments)

    monkeypatch.setattr(loop, "logprobs_without_gradient", spy)
    return seen


@pytest.mark.parametrize(("every", "device"), [(None, None), (1, "cpu"), (2, None)])
def test_the_reference_is_frozen_or_refreshed_at_the_right_steps(every, device, monkeypatch):
    model, tokenizer = make_policy()
    seen, policy = watch_reference(monkeypatch, model), [weights(model)]
    config = make_config(beta=0.1, max_steps=5, ref_model_sync_steps=every, ref_model_device=device)
    train(model, tokenizer, ROWS, letter_reward, config, lambda *_: policy.append(weights(model)))
    assert len(seen) == 5 and len({id(reference) for _, reference in seen}) == 1
    for step, (read_with, _) in enumerate(seen):
        taken_at = 0 if every is None else step - step % every
        assert same_weights(read_with, policy[taken_at])
        assert step == 0 or not same_weights(read_with, policy[step]) or taken_at == step
    reference = seen[0][1]
    addresses = {p.data_ptr() for p in model.parameters()}
    assert not any(p.requires_grad or p.data_ptr() in addresses for p in reference.parameters())
    assert not any(same_weights(earlier, later) for earlier, later in pairwise(policy))


def test_what_a_foreign_template_does_is_said_before_the_first_step_and_mended(capsys):
    model, tokenizer = make_policy()
    tokenizer.chat_template = (
        "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}{{ strftime_now('%H%M%S') }}"
    )
    messages, seen = [{"role": "system", "content": "abc"}, {"role": "user", "content": "1+1=?"}], []
    rows = [{"prompt": messages, "answer": "2"}] * 2
    with Run(model, tokenizer, rows, None, make_config(max_steps=1)) as run:
        lines = capsys.readouterr().out.splitlines()
        assert lines == [
            "prompts: the chat template drops the system message: it stands before the first question",
            "prompts: the chat template writes the date: it is 26 Jul 2024 in every prompt, so that a resumed run has "
            "the same",
        ]
        for step in run.steps():
            experience, metrics = loop.collect(model, tokenizer, rows, letter_reward, run.config)
            seen = [tokenizer.decode(ids[mask]) for ids, mask in zip(*prompts_of(experience.rollout), strict=True)]
            run.record(step, metrics)
    assert seen == ["abc1+1=?000000"] * 2
    train(*make_policy(), ROWS, letter_reward, make_config(max_steps=1))
    assert capsys.readouterr().out == "", "nothing is said of a template that does nothing"


def prompts_of(rollout):
    return rollout.prompt_ids, rollout.prompt_mask


def test_the_same_seed_gives_the_same_numbers_and_another_one_others():
    torch.manual_seed(1)
    weights_a, history_a = train_small(seed=5)
    torch.manual_seed(2)
    weights_b, history_b = train_small(seed=5)
    weights_c, history_c = train_small(seed=6)
    assert same_weights(weights_a, weights_b) and without_times(history_a) == without_times(history_b)
    assert not same_weights(weights_a, weights_c) and without_times(history_a) != without_times(history_c)


def test_the_callers_random_state_and_mode_are_untouched(tmp_path):
    torch.manual_seed(11)
    model, tokenizer = make_policy()
    model.train()
    states = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    for resume in (False, True):
        config = make_config(output_dir=str(tmp_path / "run"), beta=0.1, resume_from_checkpoint=resume)
        train(model, tokenizer, ROWS, letter_reward, config)
    assert torch.equal(torch.get_rng_state(), states[0]) and model.training
    assert str(np.random.get_state()) == states[1]  # noqa: NPY002


def test_every_epoch_takes_every_row_once_in_an_order_of_its_own(monkeypatch):
    sampled_numbers = []
    rows = [{"prompt": letter, "number": i} for i, letter in enumerate("abcdef")]

    def note(completions, number, **kwargs):
        sampled_numbers.append(number[::4])
        return letter_reward(completions, **kwargs)

    train_small(rows=rows, reward=note, max_steps=9, max_completion_length=1)
    flat = [number for pair in sampled_numbers for number in pair]
    epochs = [tuple(flat[i : i + 6]) for i in range(0, 18, 6)]
    assert all(sorted(epoch) == list(range(6)) for epoch in epochs) and len(set(epochs)) == 3
    sampled_numbers.clear()
    train_small(rows=rows, reward=note, max_steps=3, seed=1, max_completion_length=1)
    assert [number for pair in sampled_numbers for number in pair] != list(epochs[0])


def test_reward_functions_get_everything_in_the_form_of_the_prompt():
    calls = []

    def note(prompts, completions, completion_ids, answer, **kwargs):
        calls.append((prompts, completions, completion_ids, answer, kwargs))
        return [0.0] * len(completions)

    train_small(reward=note, max_steps=2)
    answers = {str(row["prompt"]): row["answer"] for row in ROWS}
    tokenizer = make_policy()[1]
    for prompts, completions, completion_ids, answer, keywords in calls:
        assert {len(x) for x in (prompts, completions, completion_ids, answer)} == {8}
        assert keywords.keys() == {"trainer_state", "log_metric", "log_extra"}, "as TRL's trainer calls them"
        for prompt, completion, ids, expected in zip(prompts, completions, completion_ids, answer, strict=True):
            text = completion if isinstance(prompt, str) else completion[0]["content"]
            assert isinstance(prompt, str) or (len(completion) == 1 and completion[0]["role"] == "assistant")
            assert text == tokenizer.decode(ids, skip_special_tokens=True) and 1 <= len(ids) <= 5
            assert expected == answers[str(prompt)]
        assert prompts[:4] == [prompts[0]] * 4 and prompts[4:] == [prompts[4]] * 4
    assert {type(prompt) for prompts, *_ in calls for prompt in prompts} == {str, list}


@pytest.mark.parametrize("prompts", ["strings", "messages"])
def test_a_datasets_dataset_gives_the_same_run_as_a_list(prompts):
    datasets = pytest.importorskip("datasets")
    rows = [row for row in ROWS if isinstance(row["prompt"], str) == (prompts == "strings")]
    from_list, history = train_small(rows=rows)
    from_dataset, history_dataset = train_small(rows=datasets.Dataset.from_list(rows))
    assert same_weights(from_list, from_dataset) and without_times(history) == without_times(history_dataset)


MODEL, TOKENIZER = make_policy()
NO_TEMPLATE = make_tokenizer()
NO_TEMPLATE.chat_template = None
A_MODEL, ROWS_OF = "expected a causal language model", "expected a list of dicts or a datasets.Dataset .of one"
TWO = {"reward_funcs": [letter_reward] * 2, "config": make_config(reward_weights=[1.0])}
WRONG = [
    ({"dataset": []}, ValueError, "^dataset is empty; expected at least one row"),
    ({"dataset": [{"question": "a"}]}, ValueError, r"^dataset row 0 has the columns \['question'\]; expected 'prompt'"),
    ({"dataset": [{"prompt": "a"}, {"prompt": "b", "x": 1}]}, ValueError, "^dataset row 1 .*; expected those of row 0"),
    ({"dataset": ["a"]}, TypeError, "^dataset row 0 is 'a'; expected a dict with a 'prompt'"),
    ({"dataset": ROWS[0]}, TypeError, f"^dataset is a dict; {ROWS_OF}"),
    ({"dataset": pandas.DataFrame(ROWS)}, TypeError, f"^dataset is a DataFrame; {ROWS_OF}"),
    ({"dataset": [{"prompt": "a"}, {"prompt": ""}]}, ValueError, "^dataset row 1: prompt is '', which has no token"),
    (
        {"tokenizer": NO_TEMPLATE},
        ValueError,
        "^dataset row 0: prompt goes to the model as .* has no chat_template",
    ),
    ({"tokenizer": None}, TypeError, "^tokenizer is of type NoneType; expected the model's"),
    ({"model": MODEL.model}, TypeError, f"^model is of type Qwen2Model; {A_MODEL}"),
    ({"model": TOKENIZER, "tokenizer": MODEL}, TypeError, f"^model is of type .*Tokenizer.*; {A_MODEL}"),
    ({"config": {"beta": 0.1}}, TypeError, "config"),
    ({"reward_funcs": "org/model"}, ValueError, "^reward_funcs is .*org/model"),
    (TWO, ValueError, r"^reward_weights is .1.0.*for each of the 2 reward functions \(letter_reward, let"),
    ({"reward_funcs": lambda completions: [1.0]}, TypeError, "reward function 'lambda' does not fit .*: .*'prompts'"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG)
def test_a_wrong_argument_is_named_before_anything_is_sampled(arguments, error, message):
    usual = {"model": MODEL, "tokenizer": TOKENIZER, "dataset": ROWS, "config": make_config()}
    with pytest.raises(error, match=message):
        Run(**({"reward_funcs": letter_reward} | usual | arguments))


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")
def test_a_reference_on_a_gpu_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="^ref_model_device is 'cuda'; expected None or one of cpu"):
        train_small(beta=0.1, ref_model_device="cuda")


@pytest.mark.parametrize("fails", ["reports.tqdm", "run.Run.record"])
def test_an_error_leaves_nothing_open(fails, tmp_path, monkeypatch):
    """If the last resource cannot be opened, or if a step fails, mode and random state of the caller are restored."""
    closed = []
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.close", lambda self: closed.append(self))
    monkeypatch.setattr(f"grpo_lab.trainer.{fails}", lambda *arguments, **keywords: 1 / 0)
    model, tokenizer = make_policy()
    model.train()
    state = torch.get_rng_state()
    config = make_config(output_dir=str(tmp_path / "out"), report_to="tensorboard")
    with pytest.raises(ZeroDivisionError):
        train(model, tokenizer, ROWS, letter_reward, config)
    assert len(closed) == 1 and model.training and torch.equal(torch.get_rng_state(), state)
    assert not (tmp_path / "out" / "model.safetensors").exists()
