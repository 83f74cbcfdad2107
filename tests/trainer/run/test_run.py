"""A run: its inputs, reference and data order, its steps and records, and the errors of its arguments."""

import json
import re
from dataclasses import FrozenInstanceError, replace
from itertools import pairwise

import numpy as np
import pandas
import pytest
import torch

from grpo_lab.base.checks import RunError
from grpo_lab.base.process_state import SEED_STRIDE
from grpo_lab.trainer import Run, collect, loop, train
from grpo_lab.trainer.metrics import Clock
from tests.support.small_policy import (
    ROWS,
    letter_reward,
    make_config,
    make_policy,
    make_tokenizer,
    ragged_experience,
    same_weights,
    train_small,
    weights,
)

CPU = torch.device("cpu")


def test_the_inputs_have_the_names_of_the_arguments_and_cannot_be_replaced():
    (model, tokenizer), config, held_out = make_policy(), make_config(eval_steps=1), ROWS[:1]
    run = Run(model, tokenizer, ROWS, letter_reward, config, held_out, None, {"model": "tiny"})
    arguments = {
        "model": model,
        "tokenizer": tokenizer,
        "dataset": ROWS,
        "reward_funcs": letter_reward,
        "config": config,
        "eval_dataset": held_out,
        "environment": None,
    }
    assert vars(run.inputs).keys() == arguments.keys()
    for name, value in arguments.items():
        assert getattr(run.inputs, name) is value, name
        with pytest.raises(FrozenInstanceError):
            setattr(run.inputs, name, None)
    assert run.saved_options == {"model": "tiny"}


@pytest.mark.parametrize("seed", [0, 3])
def test_the_rows_of_a_step_are_the_next_ones_of_the_epochs_order(seed):
    rows = [{"prompt": letter, "number": number} for number, letter in enumerate("abcdef")]
    run = Run(*make_policy(), rows, None, make_config(seed=seed))
    order = []
    for epoch in range(2):
        generator = torch.Generator().manual_seed(seed * SEED_STRIDE + epoch)
        order += torch.randperm(6, generator=generator).tolist()
    for step in range(6):
        numbers = [row["number"] for row in run.data_rows_of_step(step)]
        assert numbers == order[2 * step : 2 * step + 2], step


def test_each_step_has_the_seed_of_its_number():
    seeds = {}
    with Run(*make_policy(), ROWS, None, make_config(seed=4, max_steps=3)) as run:
        for step in run.steps():
            seeds[step] = torch.initial_seed()
            run.record(step, {})
    assert seeds == {step: 4 * SEED_STRIDE + step for step in range(3)}


def test_the_learning_rate_is_that_of_the_schedule():
    settings = {"learning_rate": 0.5, "lr_scheduler_type": "linear", "max_steps": 6, "warmup_steps": 2}
    run = Run(*make_policy(), ROWS, None, make_config(**settings))
    assert [run.learning_rate(step) for step in range(6)] == [0.25, 0.5, 0.5, 0.375, 0.25, 0.125]


def test_the_reference_takes_the_weights_of_the_policy_every_second_step():
    model, tokenizer = make_policy()
    run = Run(model, tokenizer, ROWS, None, make_config(beta=0.1, ref_model_sync_steps=2))
    start = weights(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    for step, is_start in ((0, True), (1, True), (2, False), (3, False)):
        assert same_weights(weights(run.reference_model(step)), start if is_start else weights(model)), step


@pytest.mark.parametrize(("settings", "names"), [({}, []), ({"log_kl": True}, ["kl"])], ids=str)
def test_the_kl_is_measured_if_asked_for_and_is_zero_for_an_unchanged_policy(settings, names):
    run = Run(*make_policy(), ROWS, None, make_config(**settings))
    clock = Clock(CPU)
    metrics = run.measure_kl_if_due(ragged_experience([3, 1, 2, 4, 2, 2, 1, 3]), clock)
    assert metrics == dict.fromkeys(names, 0.0)
    assert [*clock.totals] == (["time/logprobs"] if names else [])


def test_evaluations_and_checkpoints_are_made_when_they_are_due(tmp_path):
    folder = tmp_path / "out"
    config = make_config(output_dir=str(folder), max_steps=5, eval_steps=2, save_steps=3, max_completion_length=2)
    numbers = []
    with Run(*make_policy(), ROWS, letter_reward, config, ROWS[:1]) as run:
        for step in run.steps():
            run.record(step, {"loss": 1.0}, lambda number, metrics: numbers.append((number, metrics["step"])))
    assert numbers == [(number, number) for number in range(1, 6)]
    assert [metrics["step"] for metrics in run.history if "eval/reward" in metrics] == [2, 4, 5]
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-5"]
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == run.history


@pytest.mark.parametrize("name", ["step", "step_time"])
def test_a_metric_of_a_users_loop_may_not_have_the_name_of_a_run_metric(name):
    with Run(*make_policy(), ROWS, None, make_config()) as run:
        step = next(run.steps())
        with pytest.raises(RunError, match=f"^metrics have '{name}' twice; expected another name"):
            run.record(step, {name: 1.0})


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
    assert len(seen) == 5
    assert len({id(reference) for _, reference in seen}) == 1
    for step, (read_with, _) in enumerate(seen):
        taken_at = 0 if every is None else step - step % every
        assert same_weights(read_with, policy[taken_at])
        assert step == 0 or not same_weights(read_with, policy[step]) or taken_at == step
    reference = seen[0][1]
    addresses = {p.data_ptr() for p in model.parameters()}
    assert not any(p.requires_grad or p.data_ptr() in addresses for p in reference.parameters())
    assert not any(same_weights(earlier, later) for earlier, later in pairwise(policy))


def test_run_reports_and_mends_a_foreign_chat_template_before_the_first_step(capsys):
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
            experience, metrics = collect(model, tokenizer, rows, letter_reward, run.inputs.config)
            seen = [tokenizer.decode(ids[mask]) for ids, mask in zip(*prompts_of(experience.rollout), strict=True)]
            run.record(step, metrics)
    assert seen == ["abc1+1=?000000"] * 2
    train(*make_policy(), ROWS, letter_reward, make_config(max_steps=1))
    assert capsys.readouterr().out == "", "nothing is said of a template that does nothing"


def prompts_of(rollout):
    return rollout.prompt_ids, rollout.prompt_mask


def test_the_callers_random_state_and_mode_are_untouched(tmp_path):
    torch.manual_seed(11)
    model, tokenizer = make_policy()
    model.train()
    states = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    for resume in (False, True):
        config = make_config(output_dir=str(tmp_path / "run"), beta=0.1, resume_from_checkpoint=resume)
        train(model, tokenizer, ROWS, letter_reward, config)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert model.training
    assert str(np.random.get_state()) == states[1]  # noqa: NPY002


@pytest.mark.parametrize("was_checkpointing", [False, True])
def test_gradient_checkpointing_is_on_during_the_run_alone(was_checkpointing, tmp_path):
    """A run that is refused, and one that ends, leave the model's own gradient checkpointing as it was."""
    model, tokenizer = make_policy()
    if was_checkpointing:
        model.gradient_checkpointing_enable()
    config, states = make_config(output_dir=str(tmp_path / "run"), gradient_checkpointing=True), []

    def callback(step, metrics):
        states.append(model.is_gradient_checkpointing)

    train(model, tokenizer, ROWS, letter_reward, config, callback)
    assert states and all(states) and model.is_gradient_checkpointing is was_checkpointing
    with pytest.raises(FileExistsError):
        train(model, tokenizer, ROWS, letter_reward, config)
    assert model.is_gradient_checkpointing is was_checkpointing


def test_every_epoch_takes_every_row_once_in_an_order_of_its_own(monkeypatch):
    sampled_numbers = []
    rows = [{"prompt": letter, "number": i} for i, letter in enumerate("abcdef")]

    def note(completions, number, **kwargs):
        sampled_numbers.append(number[::4])
        return letter_reward(completions, **kwargs)

    train_small(rows=rows, reward=note, max_steps=9, max_completion_length=1)
    flat = [number for pair in sampled_numbers for number in pair]
    epochs = [tuple(flat[i : i + 6]) for i in range(0, 18, 6)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(6))] * 3
    assert len(set(epochs)) == 3
    sampled_numbers.clear()
    train_small(rows=rows, reward=note, max_steps=3, seed=1, max_completion_length=1)
    assert [number for pair in sampled_numbers for number in pair] != list(epochs[0])


MODEL, TOKENIZER = make_policy()
TOKENIZER_WITHOUT_TEMPLATE = make_tokenizer()
TOKENIZER_WITHOUT_TEMPLATE.chat_template = None
EXPECTED_MODEL = "expected a causal language model"
EXPECTED_ROWS = "expected a list of dicts or a datasets.Dataset .of one"
ONE_WEIGHT_FOR_TWO_REWARDS = {"reward_funcs": [letter_reward] * 2, "config": make_config(reward_weights=[1.0])}
WRONG_ARGUMENTS = [
    ({"dataset": []}, ValueError, "^dataset is empty; expected at least one row"),
    ({"dataset": [{"question": "a"}]}, ValueError, r"^dataset row 0 has the columns \['question'\]; expected 'prompt'"),
    ({"dataset": [{"prompt": "a"}, {"prompt": "b", "x": 1}]}, ValueError, "^dataset row 1 .*; expected those of row 0"),
    ({"dataset": ["a"]}, TypeError, "^dataset row 0 is 'a'; expected a dict with a 'prompt'"),
    ({"dataset": ROWS[0]}, TypeError, f"^dataset is a dict; {EXPECTED_ROWS}"),
    ({"dataset": pandas.DataFrame(ROWS)}, TypeError, f"^dataset is a DataFrame; {EXPECTED_ROWS}"),
    ({"dataset": [{"prompt": "a"}, {"prompt": ""}]}, ValueError, "^dataset row 1: prompt is '', which has no token"),
    (
        {"tokenizer": TOKENIZER_WITHOUT_TEMPLATE},
        ValueError,
        "^dataset row 0: prompt goes to the model as .* has no chat_template",
    ),
    ({"tokenizer": None}, TypeError, "^tokenizer is of type NoneType; expected the model's"),
    ({"model": MODEL.model}, TypeError, f"^model is of type Qwen2Model; {EXPECTED_MODEL}"),
    ({"model": TOKENIZER, "tokenizer": MODEL}, TypeError, f"^model is of type .*Tokenizer.*; {EXPECTED_MODEL}"),
    ({"config": {"beta": 0.1}}, TypeError, "config"),
    ({"reward_funcs": make_config(), "config": letter_reward}, TypeError, "^config is of type function; expected"),
    ({"reward_funcs": "org/model"}, ValueError, "^reward_funcs is .*org/model"),
    (
        ONE_WEIGHT_FOR_TWO_REWARDS,
        ValueError,
        r"^reward_weights is .1.0.*for each of the 2 reward functions \(letter_reward, let",
    ),
    ({"reward_funcs": lambda completions: [1.0]}, TypeError, "reward function 'lambda' does not fit .*: .*'prompts'"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG_ARGUMENTS)
def test_a_wrong_argument_is_named_before_anything_is_sampled(arguments, error, message):
    usual = {"model": MODEL, "tokenizer": TOKENIZER, "dataset": ROWS, "config": make_config()}
    with pytest.raises(error, match=message):
        Run(**({"reward_funcs": letter_reward} | usual | arguments))


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")
def test_a_reference_on_a_gpu_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="^ref_model_device is 'cuda'; expected None or one of cpu"):
        train_small(beta=0.1, ref_model_device="cuda")


@pytest.mark.parametrize("fails", ["reports.tqdm", "Run.record"])
def test_an_error_in_a_run_closes_its_trackers_and_restores_the_state_of_the_caller(fails, tmp_path, monkeypatch):
    """If the last resource cannot be opened, or if a step fails, mode and random state of the caller are restored."""
    closed = []
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.close", lambda self: closed.append(self))
    monkeypatch.setattr(f"grpo_lab.trainer.run.{fails}", lambda *arguments, **keywords: 1 / 0)
    model, tokenizer = make_policy()
    model.train()
    state = torch.get_rng_state()
    config = make_config(output_dir=str(tmp_path / "out"), report_to="tensorboard")
    with pytest.raises(ZeroDivisionError):
        train(model, tokenizer, ROWS, letter_reward, config)
    assert len(closed) == 1
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert not (tmp_path / "out" / "model.safetensors").exists()


COLLECTED_METRICS = {"reward": 0.5, "num_tokens": 5, "completions/mean_length": 1.0}
WRONG_METRICS = {
    "metrics['loss'] is tensor([1., 2.]); expected a number, or None": {"loss": torch.tensor([1.0, 2.0])},
    "metrics has the key 3; expected texts": {3: 1.0},
}


def test_a_run_makes_no_steps_after_its_end(tmp_path):
    with Run(*make_policy(), ROWS, None, make_config(output_dir=str(tmp_path), max_steps=2)) as run:
        pass
    with pytest.raises(RuntimeError, match="this Run is not open; expected"):
        next(run.steps())


def test_a_step_is_recorded_once_and_non_numbers_are_refused(tmp_path):
    run = Run(*make_policy(), ROWS, None, make_config(output_dir=str(tmp_path), save_steps=0, max_steps=2))
    with pytest.raises(RuntimeError, match="this Run is not open; expected"):
        next(run.steps())
    with pytest.raises(InterruptedError), run:
        step = next(run.steps())
        for message, wrong in WRONG_METRICS.items():
            with pytest.raises(TypeError, match=re.escape(message)):
                run.record(step, COLLECTED_METRICS | wrong)
        run.record(step, COLLECTED_METRICS | {"loss": torch.tensor(0.25, requires_grad=True), "share": np.float32(0.5)})
        for wrong_step in (0, 1):
            with pytest.raises(ValueError, match=f"step is {wrong_step}; expected each step of"):
                run.record(wrong_step, COLLECTED_METRICS)
        raise InterruptedError
    assert '"loss": 0.25, "share": 0.5' in (tmp_path / "metrics.jsonl").read_text("utf-8")


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_step_that_is_not_recorded_ends_the_run_without_a_model(has_folder, tmp_path):
    config = make_config(output_dir=str(tmp_path) if has_folder else None, max_steps=2)
    begun_steps = []
    message = "^step 0 was not recorded; expected `run.record"
    with pytest.raises(RunError, match=message), Run(*make_policy(), ROWS, None, config) as run:
        begun_steps += run.steps()
    assert begun_steps == [0] and not list(tmp_path.glob("*.safetensors"))


def test_an_own_loop_records_its_metrics_and_adds_up_tokens(tmp_path, capsys):
    config = make_config(output_dir=str(tmp_path), save_steps=0, max_steps=4, disable_tqdm=False)
    recorded = [{"loss": 1.0}, {"num_tokens": 5}, {"reward": None}, {"num_tokens": 2, "completions/mean_length": 3}]
    with Run(*make_policy(), ROWS, None, config) as run:
        for step in run.steps():
            run.record(step, recorded[step])
    assert [sorted(metrics.keys() - {"step", "step_time"}) for metrics in run.history] == [*map(sorted, recorded)]
    assert [metrics.get("num_tokens") for metrics in run.history] == [None, 5, None, 7]
    bar = capsys.readouterr().err
    assert "reward=none" in bar
    assert "length=3.0" in bar


def test_a_step_whose_tokens_are_none_is_recorded_and_left_out_of_the_sum():
    counts = [5, None, 2]
    with Run(*make_policy(), ROWS, None, make_config(max_steps=3)) as run:
        for step in run.steps():
            run.record(step, {"num_tokens": counts[step]})
    assert [metrics["num_tokens"] for metrics in run.history] == [5, None, 7]


class CountingRows(list):
    """Rows of a data set that writes down the index of each row that is read."""

    def __init__(self, rows):
        super().__init__(rows)
        self.read: list[int] = []

    def __getitem__(self, index):
        self.read.append(index)
        return super().__getitem__(index)


def test_the_rows_of_a_step_are_read_once_also_for_its_completions(tmp_path):
    """The prompts in the file are those that were sampled, even if a data set has another prompt at each access."""
    rows = CountingRows([{"prompt": letter} for letter in "abcd"])
    config = make_config(output_dir=str(tmp_path), max_steps=1, log_completions=True)
    model, tokenizer = make_policy()
    with Run(model, tokenizer, rows, letter_reward, config) as run:
        for step in run.steps():
            rows.read.clear()
            experience, metrics = collect(model, tokenizer, run.data_rows_of_step(step), letter_reward, config)
            run.write_completions_if_due(step, experience)
            assert len(rows.read) == config.prompts_per_step
            run.record(step, metrics)


@pytest.mark.parametrize("reward_funcs", [None, letter_reward])
def test_completions_are_written_without_rewards_of_each_function(reward_funcs, tmp_path):
    """A loop of the user's own may compute the rewards itself, or build its experience without `rewards_per_func`."""
    config = make_config(output_dir=str(tmp_path), max_steps=1, log_completions=True)
    model, tokenizer = make_policy()
    with Run(model, tokenizer, ROWS, reward_funcs, config) as run:
        for step in run.steps():
            experience, metrics = collect(model, tokenizer, run.data_rows_of_step(step), letter_reward, config)
            run.write_completions_if_due(step, replace(experience, rewards_per_func=None))
            run.record(step, metrics)
    records = [json.loads(line) for line in (tmp_path / "completions.jsonl").read_text("utf-8").splitlines()]
    assert len(records) == config.generation_batch_size
    assert [record["rewards"] for record in records] == [{}] * len(records)
    assert [record["reward"] for record in records] == pytest.approx(experience.rewards.tolist())


def test_the_state_of_a_run_counts_updates_and_epochs_as_in_trl():
    with Run(*make_policy(), ROWS, None, make_config(max_steps=5, num_iterations=2)) as run:
        state = run.trainer_state(4)
    assert (state.global_step, state.max_steps) == (8, 10)
    assert state.epoch == 4 * 2 / len(ROWS), "a step takes two prompts"
    assert state.log_history is run.history
