"""Training in environments: loss of the policy's tokens alone, arguments of reward functions, files, resuming."""

import json
from dataclasses import replace

import pytest
import torch

from grpo_lab.base.checks import InputError
from grpo_lab.objective import policy_loss
from grpo_lab.rollout import sample_episodes
from grpo_lab.rollout.environments.text_environment import TextEnvironment
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.trainer import PolicyOptimizer, Run, accumulate_gradient, collect, train
from grpo_lab.trainer.collecting import make_experience
from grpo_lab.trainer.evaluation import accuracy_and_rewards, sample_and_reward
from tests.support.few_fast import few_fast
from tests.support.file_faults import Killed
from tests.support.resuming import assert_same_end
from tests.support.sampling import tokens_of
from tests.support.small_policy import ROWS as LETTER_ROWS
from tests.support.small_policy import letter_reward, make_config, make_exact, make_policy
from tests.support.text_episodes import STOP_STRINGS, reply_by_length
from tests.support.tool_policy import ROWS, Adder, add, length_reward, make_tool_policy, tool_config

TEXTS = TextEnvironment(reply_by_length, STOP_STRINGS)


# The loss.


def experience_of_episodes(**settings):
    model, tokenizer = make_policy()
    make_exact(model)
    torch.manual_seed(1)
    prompts = [row["prompt"] for row in LETTER_ROWS]
    rollout = sample_episodes(model, tokenizer, prompts, 4, 20, reply_by_length, stop_strings=STOP_STRINGS)
    rewards = torch.randn(16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    config = make_config(generation_batch_size=16, max_completion_length=20, **settings)
    return model, make_experience(rollout, rewards, config), config


SETTINGS_OF_UPDATES = (
    {},
    {"loss_type": "grpo"},
    {"loss_type": "dr_grpo", "mask_truncated_completions": True},
    {"importance_sampling_level": "sequence", "entropy_coef": 0.1},
)


@pytest.mark.parametrize(("settings", "rows"), few_fast([(case,) for case in SETTINGS_OF_UPDATES], (16, 3)))
def test_an_update_is_what_a_loop_over_the_policys_tokens_gives(settings, rows):
    """The oracle reads each row alone and without padding, in float64; the micro-batches have different sizes."""
    model, experience, config = experience_of_episodes(**settings)
    if rows < 16:
        object.__setattr__(config, "per_device_train_batch_size", rows)
    rollout, ratio = experience.rollout, 0.2
    assert (rollout.mask & ~rollout.policy_mask).any() and rollout.truncated.any()
    generator = torch.Generator().manual_seed(4)
    noise = ratio * torch.randn(rollout.mask.shape, generator=generator, dtype=torch.float64)
    logp, entropy = torch.zeros_like(noise), torch.zeros_like(noise)
    for row in range(len(experience)):
        prompt, completion = tokens_of(rollout, row)
        log_pi = model(torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
        for t, token in enumerate(completion):
            if experience.loss_mask[row, t]:
                logp[row, t] = log_pi[len(prompt) + t - 1, token]
                entropy[row, t] = -(log_pi[len(prompt) + t - 1].exp() * log_pi[len(prompt) + t - 1]).sum()
    old = torch.where(experience.loss_mask, logp.detach() + noise, 7.0)
    loss, _ = policy_loss(logp, experience.advantages, experience.loss_mask, old, **config.loss_arguments())
    loss = loss - config.entropy_coef * entropy.sum() / experience.loss_mask.sum()
    expected = torch.autograd.grad(loss, list(model.parameters()))

    model.zero_grad()
    metrics = accumulate_gradient(model, PolicyOptimizer(model, config), replace(experience, old_logp=old), config)
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-12)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-8, atol=1e-12)


# Rewards, metrics, files.


def test_rewards_get_the_conversation_the_environments_and_what_they_give(tmp_path):
    model, tokenizer = make_tool_policy()
    seen = []

    def record_arguments(prompts, completions, environments, answer, completion_ids, **kwargs):
        seen.extend(zip(prompts, completions, environments, answer, completion_ids, strict=True))
        return [0.0] * len(prompts)

    config = tool_config(output_dir=str(tmp_path), log_completions=True, logging_steps=1, max_steps=1, eval_steps=1)
    config = replace(config, reward_weights=[2.0, 1.0])
    functions = [length_reward, record_arguments]
    (metrics,) = train(model, tokenizer, ROWS, functions, config, eval_dataset=ROWS, environment_factory=Adder)
    records = [json.loads(line) for line in (tmp_path / "completions.jsonl").read_text("utf-8").splitlines()]
    assert len(records) == 8
    for (prompt, completion, environment, answer, ids), record in zip(seen, records, strict=False):
        assert isinstance(environment, Adder) and "from" in prompt[-1]["content"]
        assert prompt == record["prompt"] and completion[0]["role"] == "assistant" and answer in ("3", "42")
        assert record["rewards"].keys() == {"length_reward", "record_arguments", "Adder"}
        assert record["rewards"]["length_reward"] == len(completion)
        assert record["reward"] == pytest.approx(2 * len(completion) + record["rewards"]["Adder"])
        parts = [name for part in record["turns"] for name in part]
        assert parts[::2] == ["policy"] * len(parts[::2]) and set(parts[1::2]) <= {"environment"}
        environment_text = "".join(part.get("environment", "") for part in record["turns"])
        assert all(message["content"] in environment_text for message in completion if message["role"] == "tool")
        assert tokenizer.decode(ids) == "".join(text for part in record["turns"] for text in part.values())
    assert metrics["rewards/Adder/mean"] == pytest.approx(sum(r["rewards"]["Adder"] for r in records) / 8, rel=1e-5)
    assert metrics["tools/call_frequency"] > 0 and 0 < metrics["tools/failure_frequency"] < 1
    assert metrics["eval/tools/call_frequency"] > 0 and "eval/rewards/Adder/mean" in metrics
    assert metrics["sampling/logp_difference_max"] < 1e-4


def test_a_run_needs_no_reward_function_if_the_environment_gives_a_reward():
    model, tokenizer = make_tool_policy()
    history = train(model, tokenizer, ROWS, None, tool_config(max_steps=2), environment_factory=Adder)
    assert [metrics["reward"] == metrics["rewards/Adder/mean"] for metrics in history] == [True, True]


def test_accuracy_of_an_evaluation_leaves_out_the_reward_of_the_environment():
    """It is that of `without_penalty` of the first reward function; the environment's reward has a column alone."""

    def penalised(completions, **kwargs):
        return [0.5] * len(completions)

    def always_right(completions, **kwargs):
        return [1.0] * len(completions)

    class Rewarding(Adder):
        def get_reward(self) -> float:
            return 0.25

    penalised.without_penalty = always_right
    (model, tokenizer), environment = make_tool_policy(), ToolEnvironment(environment_factory=Rewarding)
    sampling = {"num_generations": 2, "max_completion_length": 100, "environment": environment}
    scored = sample_and_reward(model, tokenizer, ROWS, penalised, **sampling)
    assert scored.rewards.names == ["penalised", "Rewarding"] and scored.correctness.tolist() == [1.0] * 4
    assert accuracy_and_rewards(scored)["accuracy"] == 1
    assert scored.rewards.total.tolist() == [0.75] * 4


def test_tool_call_frequencies_are_defined_as_in_trl():
    """The metrics are the mean number of calls per episode, and the share of failed calls."""
    model, tokenizer = make_tool_policy()
    torch.manual_seed(0)
    experience, metrics = collect(
        model, tokenizer, ROWS, length_reward, tool_config(), environment=ToolEnvironment([add])
    )  # fmt: skip
    episodes = experience.rollout.episodes
    calls, failures = (sum(getattr(episode, name) for episode in episodes) for name in ("num_calls", "num_failures"))
    assert metrics["tools/call_frequency"] == calls / 8 and metrics["tools/failure_frequency"] == failures / calls
    results = [m["content"] for episode in episodes for m in episode.messages if m["role"] == "tool"]
    assert 0 < sum(result.startswith("{'error'") for result in results) <= failures


def test_a_text_environment_trains_and_is_described(tmp_path, capsys):
    model, tokenizer = make_policy()
    config = make_config(
        output_dir=str(tmp_path), max_completion_length=16, log_completions=True, logging_steps=1, max_steps=1
    )
    (metrics,) = train(model, tokenizer, LETTER_ROWS, letter_reward, config, environment=TEXTS)
    assert metrics["tools/call_frequency"] > 0 and metrics["tools/failure_frequency"] == 0
    records = [json.loads(line) for line in (tmp_path / "completions.jsonl").read_text("utf-8").splitlines()]
    assert any("environment" in part for record in records for part in record["turns"])
    assert "step 1: the best and the worst of 8 completions" in capsys.readouterr().out


# Resuming.


def run(folder, resume=False, environment_factory=Adder, **settings):
    model, tokenizer = make_tool_policy()
    config = tool_config(output_dir=str(folder), save_steps=1, resume_from_checkpoint=resume, **settings)
    return (
        folder,
        model,
        train(model, tokenizer, ROWS, length_reward, config, environment_factory=environment_factory, tools=[nothing]),
    )


def nothing(text: str) -> str:
    """Say nothing.

    Args:
        text: a text
    """
    return ""


calls_until_killed = [10**9]


class Mortal(Adder):
    """An environment that adds, and raises `Killed` in a call after a given number of calls."""

    def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: the first
            b: the second
        """
        calls_until_killed[0] -= 1
        if calls_until_killed[0] < 0:
            raise Killed
        return super().add(a, b)


@pytest.mark.slow
def test_a_run_that_is_killed_between_two_turns_resumes_bit_for_bit(tmp_path):
    calls_until_killed[0] = 10**9
    expected = run(tmp_path / "whole", environment_factory=Mortal)
    calls = 10**9 - calls_until_killed[0]
    calls_until_killed[0] = calls * 2 // 3  # the second or the third step
    with pytest.raises(Killed):
        run(tmp_path / "killed", environment_factory=Mortal)
    lines = (tmp_path / "killed" / "metrics.jsonl").read_text("utf-8").splitlines()
    assert 1 <= len(lines) < 3
    calls_until_killed[0] = 10**9
    assert_same_end(run(tmp_path / "killed", resume=True, environment_factory=Mortal), expected)


def test_resuming_a_run_in_another_environment_is_refused(tmp_path):
    run(tmp_path, max_steps=1)
    with pytest.raises(InputError, match="environment differs from that of the run in .*Adder.*Mortal"):
        run(tmp_path, resume=True, environment_factory=Mortal, max_steps=2)
    with pytest.raises(InputError, match="config differs .*max_tool_calling_iterations: was None, is 3"):
        model, tokenizer = make_tool_policy()
        config = tool_config(output_dir=str(tmp_path), resume_from_checkpoint=True, max_steps=2)
        config = replace(config, max_tool_calling_iterations=3)
        train(model, tokenizer, ROWS, length_reward, config, environment_factory=Adder, tools=[nothing])


# Wrong input.


@pytest.mark.parametrize(
    ("reward", "limit", "arguments", "words"),
    [
        (length_reward, None, {"environment": TEXTS, "tools": [add]}, "environment is given, too; expected either it"),
        (length_reward, 2, {}, "max_tool_calling_iterations is 2; leave it out: there are no tools"),
        (None, None, {"tools": [add]}, "reward_funcs is None; expected at least one"),
    ],
)
def test_train_refuses_environment_arguments_that_contradict_each_other(reward, limit, arguments, words):
    """The test does not change its parameters, since a session of mutants runs it many times with the same objects."""
    model, tokenizer = make_tool_policy()
    config = tool_config(max_tool_calling_iterations=limit)
    with pytest.raises(InputError, match=words):
        train(model, tokenizer, ROWS, reward, config, **arguments)


def test_max_tool_calling_iterations_limits_the_replies_of_a_text_environment():
    model, tokenizer = make_policy()
    config = make_config(max_completion_length=24, max_tool_calling_iterations=1, max_steps=1)
    records = []

    def record_completions(completions, completion_ids, **kwargs):
        records.extend(completions)
        return letter_reward(completions, completion_ids)

    (metrics,) = train(model, tokenizer, LETTER_ROWS, record_completions, config, environment=TEXTS)
    assert 0 < metrics["tools/call_frequency"] <= 1


def test_a_users_loop_may_collect_with_an_environment():
    model, tokenizer = make_policy()
    config = make_config(max_completion_length=16, max_steps=1)
    with Run(model, tokenizer, LETTER_ROWS, letter_reward, config, environment=TEXTS) as run:
        for step in run.steps():
            batch, metrics = collect(
                model, tokenizer, run.data_rows_of_step(step), letter_reward, config, environment=run.inputs.environment
            )  # fmt: skip
            run.record(step, metrics)
    assert (batch.rollout.mask & ~batch.loss_mask).any()
