"""TRL's extra arguments of rewards: a reward written for TRL 1.16 returns and logs the same here."""

import asyncio
import functools
import json
import math
import re
import threading
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerState

from grpo_lab.base.checks import InputError
from grpo_lab.rewards import completion_text, score_completions
from grpo_lab.rewards.scoring import RewardLog
from grpo_lab.trainer import Run, train
from tests.support.resuming import metrics_in
from tests.support.small_policy import ROWS, letter_reward, make_config, make_policy

COMPLETIONS = [[{"role": "assistant", "content": text}] for text in ("a", "bb", "ccc", "")]
PROMPTS = [[{"role": "user", "content": "q"}]] * 4


def curriculum(prompts, completions, completion_ids, answer, trainer_state, log_extra=None, log_metric=None):
    """A reward as in TRL's documentation: it logs two columns and two metrics, and its weight grows during the run."""
    lengths = [len(completion[0]["content"]) for completion in completions]
    log_extra("length", lengths)
    log_extra("right", [str(text) for text in answer])
    log_metric("length/mean", sum(lengths) / len(lengths))
    log_metric("twice", 1.0)
    log_metric("twice", torch.tensor(2.0))
    return [length * trainer_state.global_step / trainer_state.max_steps for length in lengths]


async def waits(completions, log_metric, **kwargs):
    await asyncio.sleep(0)
    log_metric("coroutine", 0.25)
    return [None if len(completion[0]["content"]) == 1 else 2.0 for completion in completions]


class Judge:
    """An object whose `__call__` is a coroutine, and takes the columns and TRL's arguments as **kwargs."""

    async def __call__(self, completions, **kwargs):
        assert kwargs["answer"] == ["1"] * 4
        assert kwargs["trainer_state"].global_step == 6
        return [1.0] * len(completions)


def computed_by_trl(functions):
    """Return the rewards (B, F), the metrics and the columns that TRL's code computes with these functions."""
    module = pytest.importorskip("trl.trainer.grpo_trainer")
    pytest.importorskip("accelerate").PartialState()  # TRL's logger needs it
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stub = SimpleNamespace(
        accelerator=SimpleNamespace(device="cpu", is_main_process=True), state=TrainerState(global_step=6, max_steps=8),
        reward_funcs=functions, reward_processing_classes=[None] * len(functions), async_loop=loop, environments=None,
        reward_func_names=[str(number) for number in range(len(functions))], args=SimpleNamespace(report_to=[]),
        _pending_extra_logs=defaultdict(list), _pending_metrics=defaultdict(list),
    )  # fmt: skip
    stub._log_metric = functools.partial(module.GRPOTrainer._log_metric, stub)
    stub._log_completion_extra = functools.partial(module.GRPOTrainer._log_completion_extra, stub)
    inputs = [{"prompt": prompt, "answer": "1"} for prompt in PROMPTS]
    calculate_rewards = module.GRPOTrainer._calculate_rewards.__wrapped__
    rewards = calculate_rewards(stub, inputs, PROMPTS, COMPLETIONS, [[1]] * 4)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    # As in TRL's trainer, a metric is the mean of the logged values.
    metrics = {name: float(sum(values) / len(values)) for name, values in stub._pending_metrics.items()}
    return rewards, metrics, dict(stub._pending_extra_logs)


def test_a_reward_written_for_trl_gives_and_logs_the_same_here():
    functions = [curriculum, waits, Judge(), functools.partial(waits, another=1)]
    theirs, metrics, columns = computed_by_trl(functions)
    log = RewardLog(TrainerState(global_step=6, max_steps=8))
    keywords = {"answer": ["1"] * 4} | log.arguments()
    _, per_func, names = score_completions(functions, PROMPTS, COMPLETIONS, [[1]] * 4, keywords)
    torch.testing.assert_close(per_func, theirs, rtol=0, atol=0, equal_nan=True)
    assert log.metrics() == pytest.approx(metrics)
    assert log.columns(4).values == columns
    assert set(metrics) == {"length/mean", "twice", "coroutine"}
    assert metrics["twice"] == 1.5
    assert per_func[:, 0].tolist() == [0.75, 1.5, 2.25, 0.0]
    assert names == ["curriculum", "waits", "Judge", "waits_2"]


def logs(completions, log_metric, log_extra, trainer_state, **kwargs):
    log_metric("seen", trainer_state.global_step)
    log_extra("length", [len(completion_text(completion)) for completion in completions])
    return [1.0] * len(completions)


def test_logged_reward_metrics_are_in_the_files_of_the_run(tmp_path):
    """The run has two updates per step. As in TRL, `global_step` counts updates, and evaluations log under "eval/"."""
    config = make_config(
        output_dir=str(tmp_path), max_steps=3, num_iterations=2, log_completions=True, logging_steps=1, eval_steps=3
    )
    train(*make_policy(), ROWS, logs, config, eval_dataset=ROWS[:2])
    metrics = metrics_in(tmp_path)
    assert [line["seen"] for line in metrics] == [0, 2, 4]
    assert metrics[-1]["eval/seen"] == 6
    records = [json.loads(line) for line in (tmp_path / "completions.jsonl").read_text("utf-8").splitlines()]
    assert records
    assert all(record["extra"]["length"] == len(record["completion"]) for record in records)


def test_a_logged_nan_is_none_and_a_column_log_metric_is_refused():
    log = RewardLog()
    log.log_metric("a", math.nan)
    assert log.metrics() == {"a": None}
    assert "trainer_state" not in log.arguments()
    rows = [row | {"log_metric": 1} for row in ROWS]
    with pytest.raises(InputError, match=re.escape("dataset has the column 'log_metric'; expected another name")):
        Run(*make_policy(), rows, letter_reward, make_config())
