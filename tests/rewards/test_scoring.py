"""The sum of several reward functions, its errors, and its agreement with TRL."""

import asyncio
import functools
import json
import math
import re
import threading
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainerState

import grpo_lab
from grpo_lab.base.checks import InputError, RunError
from grpo_lab.rewards import (
    accuracy_reward,
    completion_text,
    contains_reward,
    format_reward,
    judge_reward,
    math_reward,
    score_completions,
)
from grpo_lab.rewards.scoring import RewardError, RewardLog, is_async
from grpo_lab.trainer import Run, train
from tests.support.agreement import many_examples
from tests.support.constant_rewards import GOOD, constant_reward, score
from tests.support.resuming import metrics_in
from tests.support.small_policy import ROWS, letter_reward, make_config, make_policy

values = st.one_of(st.none(), st.floats(-10, 10, width=32), st.integers(-3, 3), st.booleans())


@many_examples
@given(st.data(), st.integers(1, 4), st.integers(0, 5))
def test_total_reward_is_the_weighted_sum_of_the_rewards_that_apply(data, F, B):
    table = data.draw(st.lists(st.lists(values, min_size=B, max_size=B), min_size=F, max_size=F))
    weights = data.draw(st.lists(st.floats(-2, 2, width=32), min_size=F, max_size=F))
    # The last function always applies; another test has rows to which no function applies.
    functions = [*map(constant_reward, table), constant_reward([0.25] * B)]
    rewards, per_func, names = score(functions, ["y"] * B, {}, [*weights, 2.0])
    assert rewards.shape == (B,)
    assert per_func.shape == (B, F + 1)
    assert len(set(names)) == F + 1
    for i in range(B):
        total = 0.5
        for f in range(F):
            value = table[f][i]
            assert math.isnan(per_func[i, f]) if value is None else per_func[i, f] == float(value)
            total += 0.0 if value is None else weights[f] * float(value)
        assert rewards[i].item() == pytest.approx(total, abs=1e-4)


def test_each_function_gets_the_batch_by_keyword_as_lists():
    received = {}

    def witness(prompts, completions, completion_ids, answer, level, **kwargs):
        received.update(locals())
        return [1.0, 2.0]

    columns = {"prompt": ["dropped"] * 2, "answer": ("a", "b"), "level": torch.tensor([1, 2])}
    rewards, per_func, names = score_completions(witness, ["p", "q"], ["x", "y"], [[1], [2, 3]], columns)
    assert rewards.tolist() == [1.0, 2.0]
    assert per_func.dtype == torch.float32
    assert names == ["witness"]
    assert received["prompts"] == ["p", "q"]
    assert received["completions"] == ["x", "y"]
    assert received["answer"] == ["a", "b"]
    assert received["level"] == [1, 2]
    assert received["completion_ids"] == [[1], [2, 3]]
    assert received["kwargs"] == {}


def test_score_completions_accepts_numbers_in_any_container_and_a_single_function():
    thirds = [1.0, 0.0, 0.5]
    mixed = [np.float32(1), np.bool_(False), torch.tensor(0.5)], [True, 0, Fraction(1, 2)]
    for returned in (thirds, tuple(thirds), torch.tensor(thirds, requires_grad=True), np.array(thirds), *mixed):
        assert score([constant_reward(returned)])[0].tolist() == thirds
    rewards, per_func, names = score(format_reward)
    assert rewards.tolist() == [1.0, 0.0, 1.0]
    assert per_func.shape == (3, 1)
    assert names == ["format_reward"]
    free = functools.partial(contains_reward, penalty_per_character=0.0)
    assert score(free)[0].tolist() == [1.0, 1.0, 1.0], "a partial is called with its setting"


WRONG = [
    ([1.0, 2.0], "returned 2 rewards; expected a list of 3"),
    ([0.0, math.nan, math.nan], "returned float nan for row 1; .*None where the reward does not apply"),
    ([0.0, 10**400, 0.0], "returned int 1000.* for row 1"),
    ([0.0, 1e20, 0.0], "returned float 1e.20 for row 1; expected a number of at most 1e.15 in size"),
    ([0.0, "1", 0.0], "returned str '1' for row 1"),
    (torch.tensor(1.0), "returned Tensor; expected a list of 3 rewards"),
    (None, "returned NoneType"),
]


def test_score_completions_names_the_function_with_a_wrong_return_value():
    for returned, words in WRONG:
        with pytest.raises(RewardError, match=f"reward function 'culprit' {words}") as caught:
            score([format_reward, constant_reward(returned, "culprit")])
        assert caught.value.name == "culprit"


def test_an_exception_inside_a_function_or_its_exit_carries_its_name():
    def culprit(completions, **kwargs):
        return [kwargs["nothing"] for _ in completions]

    def leaves(completions, **kwargs):
        raise SystemExit(3)

    where = r"failed in test_scoring.py, line \d+"
    with pytest.raises(RuntimeError, match=f"reward function 'culprit' {where}: KeyError: 'nothing'") as caught:
        score(culprit)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(RewardError, match=f"reward function 'leaves' {where}: SystemExit: 3"):
        score(leaves)


def test_a_reward_that_treats_messages_as_text_gets_an_error_that_names_the_text():
    def strips(completions, **kwargs):
        return [float(completion.strip() == "4") for completion in completions]

    def searches(completions, **kwargs):
        return [float(bool(re.search("4", completion))) for completion in completions]

    def has_own_bug(completions, **kwargs):
        return [1 + "4"]

    messages, hint = [[{"role": "assistant", "content": "4"}]], r'; .*completion\[0\]\["content"\] is the text'
    for function in (strips, searches):
        with pytest.raises(RewardError, match=hint):
            score(function, messages)
        with pytest.raises(RewardError) as caught:
            score(function, [None])
        assert "messages" not in str(caught.value)
    with pytest.raises(RewardError) as caught:
        score(has_own_bug, messages)
    assert "messages" not in str(caught.value)


def test_reward_error_names_a_line_of_a_file_whose_path_begins_like_the_package_s():
    beside = Path(grpo_lab.__file__).parent.with_name("grpo_lab_rewards.py")
    for file in (beside, "/home/me/python3.11-rewards/mine.py"):
        names = {}
        exec(compile("def culprit(completions, **kwargs):\n    return 1 / 0", file, "exec"), names)
        with pytest.raises(RewardError, match=f"failed in {Path(file).name}, line 2: ZeroDivisionError"):
            score(names["culprit"])


def test_a_bug_of_a_reward_of_the_package_is_no_error_of_its_user(monkeypatch):
    def judge(question):
        return 1 / 0

    monkeypatch.setattr("grpo_lab.rewards.rules.normalise_text", None)
    for function in (accuracy_reward, functools.partial(accuracy_reward)):
        with pytest.raises(TypeError, match="'NoneType' object is not callable") as caught:
            score(function)
        assert not isinstance(caught.value, InputError)
    wrong = functools.partial(contains_reward, penalty_per_character=-1.0)
    for function, message in ((judge_reward(judge), "in test_scoring.py"), (wrong, "contains_reward' failed: Input")):
        with pytest.raises(RewardError, match=message):
            score(function)


def test_reward_functions_get_copies_of_the_batch():
    prompts, completions = [[{"role": "user", "content": "q"}]], [[{"role": "assistant", "content": GOOD}]]
    columns, received = {"answer": ["4"], "level": [torch.ones(2)], "size": [np.ones(2)]}, {}

    def spoiler(prompts, completions, answer, level, size, **kwargs):
        prompts[0][0]["content"] = completions[0][0]["content"] = "spoilt"
        answer.clear(), level[0].zero_(), size[0].fill(0)
        return [0.0]

    def witness(**kwargs):
        received.update(kwargs)
        return [1.0]

    score_completions([spoiler, witness], prompts, completions, [[1]], columns, None)
    for arguments in (received, columns | {"prompts": prompts, "completions": completions}):
        assert arguments["prompts"][0][0]["content"] == "q"
        assert arguments["completions"][0][0]["content"] == GOOD
        assert arguments["answer"] == ["4"]
        assert arguments["level"][0].sum() == arguments["size"][0].sum() == 2


def test_gradients_are_enabled_again_after_a_reward_that_disabled_them():
    def switches(completions, **kwargs):
        torch.set_grad_enabled(False)
        return [1.0] * len(completions)

    score(switches)
    assert torch.is_grad_enabled()


def test_the_largest_rewards_still_have_a_finite_spread():
    large = score(constant_reward([1e15, -1e15, 0.0]))[0]
    assert large.repeat(10**5).std().isfinite()


@pytest.mark.parametrize(
    ("rewards", "weights", "total"),
    [
        ([[0.0, 1e15, 0.0]], [1e6], "1e[+]21"),  # its square overflows in a standard deviation
        ([[0.0, -1e15, 0.0]], [1e30], "-inf"),
        ([[0.0, 1e15, 0.0], [0.0, 1e15, 0.0]], [1e30, -1e30], "nan"),
        ([[0.0, 1e15, 0.0], [0.0, 1e15, 0.0]], None, "2e[+]15"),
    ],
)
def test_a_total_beyond_the_limit_is_refused(rewards, weights, total):
    message = rf"^total reward is {total} for row 1; expected at most 1e[+]15 in size: .* smaller reward_weights"
    with pytest.raises(RunError, match=message):
        score([*map(constant_reward, rewards)], reward_weights=weights)


def test_score_completions_names_columns_of_wrong_length():
    with pytest.raises(ValueError, match=r"answer has 2 entries; expected one entry for each of 3 completions"):
        score(format_reward, columns={"answer": ["4"] * 2})
    with pytest.raises(ValueError, match=r"columns has 'prompts', which is the trainer's own keyword"):
        score(format_reward, columns={"prompts": ["4"] * 3})
    with pytest.raises(ValueError, match=r"prompts has 1 entries; expected one entry for each of 2 completions"):
        score_completions(format_reward, ["q"], ["a", "b"], [[1], [2]], {})


def test_a_completion_to_which_nothing_applies_has_no_reward():
    functions = [constant_reward([None, None, 1.0], "f"), constant_reward([2.0, None, None], "g")]
    with pytest.warns(RuntimeWarning, match=r"every reward function \(f, g\) returned None for 1 of 3 .*row 1"):
        rewards, per_func, _ = score(functions)
    assert rewards[0] == 2.0
    assert rewards[1].isnan()
    assert rewards[2] == 1.0
    assert per_func[1].isnan().all()


def test_score_completions_equals_trls_rewards():
    trainer = pytest.importorskip("trl.trainer.grpo_trainer").GRPOTrainer
    pytest.importorskip("accelerate").PartialState()  # TRL's logger needs it
    table = [[1.0, None, 0.5, True], [None, None, 2, -1.5]]
    functions = [constant_reward(column, name) for column, name in zip(table, "fg", strict=True)]
    weights, completions = torch.tensor([0.3, 2.0]), ["y"] * 4
    stub = SimpleNamespace(
        accelerator=SimpleNamespace(device="cpu", is_main_process=True), state=SimpleNamespace(global_step=0),
        reward_funcs=functions, reward_processing_classes=[None, None], reward_func_names=["f", "g"],
        args=SimpleNamespace(report_to=[]), environments=None, _log_completion_extra=None, _log_metric=None,
    )  # fmt: skip
    inputs = [{"prompt": "q", "answer": "4"}] * 4
    theirs = trainer._calculate_rewards.__wrapped__(stub, inputs, ["q"] * 4, completions, [[1]] * 4)
    with pytest.warns(RuntimeWarning, match=r"returned None for 1 of 4"):
        rewards, per_func, _ = score(functions, completions, {}, weights)
    torch.testing.assert_close(per_func, theirs, rtol=0, atol=0, equal_nan=True)
    # The next two lines of TRL's trainer.
    total = (theirs * weights.unsqueeze(0)).nansum(dim=1)
    total[theirs.isnan().all(dim=1)] = torch.nan
    torch.testing.assert_close(rewards, total, rtol=0, atol=0, equal_nan=True)


def test_rewards_of_trl_and_of_this_package_are_scored_together():
    trl_rewards = pytest.importorskip("trl.rewards")
    texts = [r"<think>half</think>\boxed{0.5}", r"<think>none</think>\boxed{0}", r"\boxed{\frac{1}{2}}"]
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    columns = {"solution": [r"\frac{1}{2}"] * 3, "answer": ["1/2"] * 3}
    patient = functools.partial(math_reward, time_limit=60.0)  # the machine may be busy
    functions = [trl_rewards.accuracy_reward, trl_rewards.think_format_reward, patient, format_reward]
    functions.append(trl_rewards.get_soft_overlong_punishment(max_completion_len=4, soft_punish_cache=2))
    _, per_func, names = score_completions(functions, ["q"] * 3, completions, [[0], [0], [0] * 5], columns, None)
    assert per_func.T.tolist() == [[1, 0, 1], [1, 1, 0], [1, 0, 1], [0, 0, 0], [0, 0, -1]]
    assert names[:4] == ["accuracy_reward", "think_format_reward", "math_reward", "format_reward"]


COMPLETIONS = [[{"role": "assistant", "content": text}] for text in ("a", "bb", "ccc", "")]
PROMPTS = [[{"role": "user", "content": "q"}]] * 4


async def wait_for_twos(completions, **kwargs):
    await asyncio.sleep(0)
    return [2.0] * len(completions)


class CoroutineJudge:
    """An object whose `__call__` is a coroutine."""

    async def __call__(self, completions, **kwargs):
        return [1.0] * len(completions)


def rewards_by_function(functions):
    return score_completions(functions, PROMPTS, COMPLETIONS, [[1]] * 4, {})[1].T.tolist()


def test_reward_coroutines_wait_concurrently():
    """Each coroutine wait_for_twos for the other, so they end only if they run concurrently.

    They are called inside a running event loop, as in a notebook.
    """
    events = [threading.Event(), threading.Event()]

    def meets(mine, other):
        async def reward(completions, **kwargs):
            events[mine].set()
            for _ in range(3000):
                if events[other].is_set():
                    return [float(mine)] * len(completions)
                await asyncio.sleep(0.01)
            raise TimeoutError

        return reward

    async def in_a_notebook():
        return rewards_by_function([meets(0, 1), lambda completions, **_: [5.0] * 4, meets(1, 0)])

    assert asyncio.run(in_a_notebook()) == [[0.0] * 4, [5.0] * 4, [1.0] * 4]
    assert is_async(CoroutineJudge())
    assert is_async(functools.partial(wait_for_twos))
    assert not is_async(letter_reward)


def test_a_coroutine_that_fails_or_returns_something_else_is_named():
    async def breaks(completions, **kwargs):
        await asyncio.sleep(0)
        raise KeyError("model")

    async def short(completions, **kwargs):
        return [1.0]

    for function, message in [
        (breaks, r"reward function 'breaks' failed in test_scoring.py, line \d+: KeyError: 'model'"),
        (short, "reward function 'short' returned 1 rewards; expected a list of 4 rewards"),
    ]:
        with pytest.raises(RewardError, match=message):
            rewards_by_function([letter_reward, function])


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
