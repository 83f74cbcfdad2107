"""Tests that TRL's trainer gets the rows, rewards, tools and environments of a run, and samples neutrally."""

from dataclasses import dataclass, replace

import pytest
import torch

from grpo_lab.base.checks import RunError
from grpo_lab.config import GRPOConfig
from grpo_lab.models import load_policy
from grpo_lab.rollout import end_token_ids
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.tasks import TASKS
from grpo_lab.trainer.run.inputs import RunInputs
from tests.parity.engines import require_engine
from tests.support.small_policy import letter_reward, make_config

require_engine("trl")
trl_run = pytest.importorskip("grpo_lab.train.trl.run")
trl_trainer = pytest.importorskip("grpo_lab.train.trl.trainer")
ROWS = [{"prompt": [{"role": "user", "content": f"{n}+1=?"}], "answer": str(n + 1)} for n in range(4)]


def test_the_cpu_device_on_trl_has_no_index_with_several_processes(monkeypatch):
    set_up = trl_trainer.trl.GRPOConfig._setup_devices.func

    def with_index(arguments):
        set_up(arguments)
        return torch.device("cpu", 0)

    monkeypatch.setattr(trl_trainer.trl.GRPOConfig, "_setup_devices", property(with_index), raising=False)
    assert trl_trainer.trl_config(GRPOConfig(precision="fp32"), use_cpu=True).device == torch.device("cpu")


class Counter:
    """An environment that stores the row passed to `reset`."""

    def reset(self, prompt, answer):
        self.seen = prompt, answer

    def add(self, number: int) -> int:
        """Add a number.

        Args:
            number: The number.
        """
        return number


def multiply(number: int) -> int:
    """Multiply a number.

    Args:
        number: The number.
    """
    return number


def test_tools_and_environments_are_handed_on_and_an_environment_sees_our_row(checkpoint_name, monkeypatch):
    handed_on = {}

    class Recorder(trl_trainer.TrlTrainer):
        def __init__(self, **settings):
            handed_on.update(settings)

    monkeypatch.setattr(trl_trainer, "TrlTrainer", Recorder)
    rows = [row | {"answer": {number, number + 1}} for number, row in enumerate(ROWS)]  # Arrow has no sets
    config = replace(make_config(), precision="fp32")
    model, tokenizer = load_policy(checkpoint_name)
    environment = ToolEnvironment([multiply], Counter)
    trl_trainer.make_trainer(RunInputs(model, tokenizer, rows, None, config, environment=environment), rows)
    assert handed_on["tools"] == [multiply] and handed_on["reward_funcs"] == []
    environment = handed_on["environment_factory"]()
    environment.reset(**handed_on["train_dataset"][2])
    assert environment.seen == (ROWS[2]["prompt"], {2, 3})
    assert type(environment).__name__ == "Counter" and environment.add(3) == 3
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="eval_steps is 1; leave it out with --engine trl, tools or an environ"):
        config = make_config(eval_steps=1)
        trl_run.train(model, tokenizer, ROWS, letter_reward, config, eval_dataset=ROWS, environment_factory=Counter)


def test_an_environment_with_slots_sees_our_row():
    @dataclass(slots=True)
    class Slotted:
        """An environment that keeps the row of its reset."""

        seen: str = ""

        def reset(self, prompt, **_):
            self.seen = prompt

        def look(self) -> str:
            """Look around."""
            return self.seen

    factory = trl_trainer.environments_for_trl(ToolEnvironment(environment_factory=Slotted), ROWS)
    environment = factory()
    environment.reset(row_number=1)
    assert environment.seen == ROWS[1]["prompt"]


def test_no_environment_is_made_before_trl_asks_for_one():
    """The class of the environments is known, and making one could open a port."""
    environments = []

    class Counted(Counter):
        def __init__(self):
            environments.append(self)

    environment = ToolEnvironment([], Counted)
    environments.clear()
    make = trl_trainer.environments_for_trl(environment, ROWS)
    assert not environments
    assert isinstance(make(), Counted) and len(environments) == 1
    assert trl_trainer.environments_for_trl(ToolEnvironment([multiply]), ROWS) is None


def test_trl_engine_calls_rewards_as_our_loop_does():
    """Rewards get the values of our rows, not as Arrow converts them, and a reward of None stays None."""
    rows = [{"prompt": "a", "answer": (1, 2)}, {"prompt": "b", "answer": {3}}]
    seen = []

    def strict(prompts, completions, completion_ids, answer):
        seen.append((prompts, answer))
        return [None, 2.0]

    (function, second_function) = trl_trainer.rewards_for_trl([strict, strict], rows)
    assert (function.__name__, second_function.__name__) == ("strict", "strict_2")
    keywords = {"prompts": ["b", "a"], "completions": ["x", "y"], "completion_ids": [[1], [2]], "row_number": [1, 0]}
    assert function(**keywords, trainer_state=None, log_metric=lambda *metric: seen.append(metric)) == [None, 2.0]
    assert seen == [(["b", "a"], [{3}, (1, 2)]), ("rewards/strict/frac_none", 0.5)]


IN_PARTS = {
    "num_generations": 4, "generation_batch_size": 8, "max_completion_length": 8, "max_steps": 1, "disable_tqdm": True,
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
}  # fmt: skip


def alternating_reward(completions, **_):
    return [float(row % 2) for row in range(len(completions))]


def test_a_total_reward_beyond_the_limit_is_refused_on_trl_as_in_our_loop(tiny):
    config = GRPOConfig(**IN_PARTS, precision="fp32", reward_weights=[1e20])
    rows = TASKS["sums"].rows("train", 8)
    trainer = trl_run.make_trainer(RunInputs(*tiny, rows, alternating_reward, config), rows)
    with pytest.raises(RunError, match=r"^total reward is 1e[+]20 for row 1; expected at most 1e[+]15 in size"):
        trainer.train()


def test_trl_samples_neutrally_with_the_same_ends(tiny):
    config = GRPOConfig(**IN_PARTS, precision="fp32")
    rows = TASKS["sums"].rows("train", 8)
    trainer = trl_run.make_trainer(RunInputs(*tiny, rows, alternating_reward, config), rows)
    settings = trainer.generation_config
    assert settings.do_sample
    assert settings.max_new_tokens == config.max_completion_length
    assert (settings.temperature, settings.top_k, settings.top_p) == (1.0, 0, 1.0)
    assert settings.repetition_penalty == 1.0
    assert settings.min_p is None
    assert sorted(settings.eos_token_id) == end_token_ids(trainer.model, trainer.processing_class)
    assert not trainer.model.is_gradient_checkpointing
    assert trainer.ref_model is None
