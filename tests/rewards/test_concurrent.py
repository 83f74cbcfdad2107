"""Reward functions that are coroutines run concurrently, and one that fails is named."""

import asyncio
import functools
import threading

import pytest

from grpo_lab.rewards import score_completions
from grpo_lab.rewards.scoring import RewardError, is_async
from tests.support.small_policy import letter_reward

COMPLETIONS = [[{"role": "assistant", "content": text}] for text in ("a", "bb", "ccc", "")]
PROMPTS = [[{"role": "user", "content": "q"}]] * 4


async def waits(completions, **kwargs):
    await asyncio.sleep(0)
    return [2.0] * len(completions)


class Judge:
    """An object whose `__call__` is a coroutine."""

    async def __call__(self, completions, **kwargs):
        return [1.0] * len(completions)


def score(functions):
    return score_completions(functions, PROMPTS, COMPLETIONS, [[1]] * 4, {})[1].T.tolist()


def test_reward_coroutines_wait_concurrently():
    """Each coroutine waits for the other, so they end only if they run concurrently.

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
        return score([meets(0, 1), lambda completions, **_: [5.0] * 4, meets(1, 0)])

    assert asyncio.run(in_a_notebook()) == [[0.0] * 4, [5.0] * 4, [1.0] * 4]
    assert is_async(Judge())
    assert is_async(functools.partial(waits))
    assert not is_async(letter_reward)


def test_a_coroutine_that_fails_or_returns_something_else_is_named():
    async def breaks(completions, **kwargs):
        await asyncio.sleep(0)
        raise KeyError("model")

    async def short(completions, **kwargs):
        return [1.0]

    for function, message in [
        (breaks, r"reward function 'breaks' failed in test_concurrent.py, line \d+: KeyError: 'model'"),
        (short, "reward function 'short' returned 1 rewards; expected a list of 4 rewards"),
    ]:
        with pytest.raises(RewardError, match=message):
            score([letter_reward, function])
