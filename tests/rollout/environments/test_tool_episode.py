"""Tests of the thread that runs the code of tools: what a call returns or raises reaches the caller."""

import asyncio
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

import pytest

from grpo_lab.rollout.environments import tool_episode
from grpo_lab.rollout.environments.tool_episode import EpisodeThread


async def times_out():
    raise TimeoutError


async def times_out_with_a_reason():
    raise TimeoutError("the server of prices")


def test_a_timeout_of_the_call_itself_without_a_limit_reaches_the_caller():
    for function, message in ((times_out, ""), (times_out_with_a_reason, "the server of prices")):
        with pytest.raises(TimeoutError) as caught:
            EpisodeThread().run(function)
        assert str(caught.value) == message


def test_a_coroutine_that_exceeds_its_limit_says_so():
    thread = EpisodeThread()
    with pytest.raises(TimeoutError, match="^no answer within 0.01 seconds$"):
        thread.result(thread.start(lambda: asyncio.sleep(60), limit=0.01))
    assert not thread.has_timed_out, "the coroutine was ended, so the thread is free again"


def test_a_call_behind_one_that_hangs_is_given_up_with_it(monkeypatch):
    monkeypatch.setattr(tool_episode, "POLL_SECONDS", 0.05)
    thread, is_released = EpisodeThread(), threading.Event()

    async def blocks():
        is_released.wait()

    futures = [thread.start(blocks, limit=0.01), thread.start(lambda: 42, limit=1e5)]
    for future in reversed(futures):
        with pytest.raises(TimeoutError, match="^no answer within 0.01 seconds$"):
            thread.result(future)
    assert thread.has_timed_out
    is_released.set()


class EndsWhileTheWaitExpires(Future):
    """A future whose call ends between the end of the first wait and the question whether it is done."""

    def result(self, timeout=None):
        if not self.done():
            self.end()
            raise FutureTimeoutError
        return super().result(timeout)


def test_a_call_that_ends_just_when_the_wait_expires_keeps_its_result():
    future = EndsWhileTheWaitExpires()
    future.end = lambda: future.set_result(42)
    thread = EpisodeThread()
    assert thread.result(future) == 42 and not thread.has_timed_out
    future = EndsWhileTheWaitExpires()
    future.end = lambda: future.set_exception(TimeoutError("of the call"))
    with pytest.raises(TimeoutError, match="^of the call$"):
        thread.result(future)
