"""One episode with tools, and the thread of its calls: the calls in each turn, their results, rewards and states.

All code of an environment object, from its constructor to `get_reward`, runs in one thread and one event loop
(`EpisodeThread`). Connections to databases and sessions on a network need this. A call that hangs is given up together
with its thread.
"""

import asyncio
import inspect
import itertools
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, NamedTuple

from grpo_lab.base.checks import InputTypeError, RunError
from grpo_lab.rewards.functions import describe_value
from grpo_lab.rewards.scoring import EXPECTED_REWARD, reward_as_float
from grpo_lab.rollout.decoding.sampling_request import Turn
from grpo_lab.rollout.environments.tool_call_format import ReadTurn, ToolCallFormat
from grpo_lab.rollout.rollout import Episode, Rollout

# Public methods of an environment object that the policy cannot call.
NON_TOOL_METHODS = ("reset", "get_reward", "get_state")
MAX_RESULT_CHARACTERS = 4000  # number of characters of a result that the policy gets to read
# Longest wait before Ctrl-C is noticed. Also the time beyond its limit after which a call that cannot be ended, such as
# one of a plain function, is given up.
POLL_SECONDS = 1.0


class StartedCall(NamedTuple):
    """A call of a tool that has been started, and may have finished."""

    name: str  # name of the tool
    future_or_result: Future | str | BaseException  # pending result, result or error


class TurnMessages(NamedTuple):
    """The messages of a turn that has been read."""

    message: dict  # the policy's message, with its calls
    results: list[dict]  # the results of the calls, as messages; empty until they are finished


class ToolEpisode:
    """One episode: the messages of the policy, the results of its calls, and the rewards and states of its turns.

    Args:
        thread: The thread that runs the calls. It holds the environment object of the episode, already reset.
        call_format: Reads the calls and writes the results.
        prompt_ids: The token ids of the prompt.
        tools: Functions that the policy may call, besides the methods of the environment object.
        tool_timeout: Limit of a call in seconds from when it begins to run. A plain function is given up
            `POLL_SECONDS` later; a coroutine is ended at the limit.
        has_reward: True if the environment object has `get_reward`.
        has_state: True if the environment object has `get_state`.
        record_turns: True calls `get_reward` and `get_state` after every turn; False only `get_reward`, at the end.
    """

    def __init__(
        self,
        thread: "EpisodeThread",
        call_format: ToolCallFormat,
        prompt_ids: list[int],
        tools: list[Callable],
        tool_timeout: float,
        *,
        has_reward: bool,
        has_state: bool,
        record_turns: bool,
    ):
        self.thread = thread
        self.call_format = call_format
        self.prompt_ids = prompt_ids
        methods = [] if thread.environment_object is None else tool_methods(thread.environment_object)
        self.functions = {function.__name__: function for function in [*tools, *methods]}
        self.tool_timeout = tool_timeout
        self.has_reward = has_reward
        self.records_rewards = record_turns and has_reward
        self.records_states = record_turns and has_state
        self.turns: list[TurnMessages] = []
        self.num_calls = self.num_failures = 0
        self.cumulative_rewards = [0.0]  # per turn, the reward of the episode before it
        self.states: list[Any] = []
        self._record_state()

    def start_calls(self, turn: Turn) -> list[StartedCall]:
        """Read a turn of the policy, and start the calls in it."""
        message, error = self._read(turn.ids, turn.earlier_ids)
        self.turns.append(TurnMessages(message, results=[]))
        calls = message.get("tool_calls") or ()
        self.num_calls += len(calls) + bool(error)
        if error:
            return [StartedCall("unknown", ValueError(f"The tool call could not be read: {error}"))]
        return [self._start_call(call["function"]["name"], call["function"]["arguments"]) for call in calls]

    def finish_calls(self, started_calls: list[StartedCall]) -> list[int] | None:
        """Wait for the results of a turn's calls; return the ids to append, or None if the turn had no call."""
        results = []
        for name, future_or_result in started_calls:
            result = future_or_result
            if isinstance(result, Future):
                result = self._result_or_error(result)
            if isinstance(result, BaseException):
                self.num_failures += 1
                result = _shortened(str({"error": str(result)}))
            results.append({"role": "tool", "name": name, "content": result})
        if not results:
            return None
        self.turns[-1].results.extend(results)
        if self.records_rewards:
            self.cumulative_rewards.append(self._reward_so_far())
        self._record_state()
        return self.call_format.write_results(results)

    def finish(self, rollout: Rollout, row: int, prompt: list[dict] | None) -> Episode:
        """Read the last turn, get the reward, and return the record of the episode without results that had no room.

        Args:
            rollout: The rollout with the tokens of the episode.
            row: Index of the episode in the rollout.
            prompt: The prompt, if `reset` changed it; else None.
        """
        length = int(rollout.mask[row].sum())
        ids = rollout.completion_ids[row, :length].tolist()
        turn_of_token = rollout.turn_of_token[row, :length].tolist()
        is_policy = rollout.policy_mask[row, :length].tolist()
        turns_with_reply = {
            turn for turn, policy_wrote in zip(turn_of_token, is_policy, strict=True) if not policy_wrote
        }
        messages = []
        for index, turn in enumerate(self.turns):
            messages.append(turn.message)
            if index in turns_with_reply:
                messages += turn.results
        # The last turn has not been read yet if it was cut off, or if no further turn is allowed.
        if len(self.turns) in turn_of_token:
            start = turn_of_token.index(len(self.turns))
            message, _ = self._read(ids[start:], ids[:start])
            messages.append(message)
        reward = None
        if self.has_reward and not self.thread.has_timed_out:
            reward = call_environment(self.thread, "get_reward")
        return Episode(
            num_calls=self.num_calls,
            num_failures=self.num_failures,
            prompt=prompt,
            messages=messages,
            environment=self.thread.environment_object,
            reward=reward,
            turn_rewards=[after - before for before, after in itertools.pairwise(self.cumulative_rewards)],
            states=self.states,
            num_reply_tokens=is_policy.count(False),
        )

    def _read(self, ids: list[int], earlier_ids: list[int]) -> ReadTurn:
        return self.call_format.read_turn(ids, self.prompt_ids + earlier_ids)

    def _start_call(self, name: str, arguments: Any) -> StartedCall:
        function = self.functions.get(name)
        if function is None:
            return StartedCall(name, ValueError(f"Tool {name} not found."))
        if self.thread.has_timed_out:
            return StartedCall(name, RuntimeError("an earlier call has not come back"))
        future = self.thread.start(function, arguments, self.tool_timeout)
        # Asynchronous calls of several episodes run at the same time. Other calls run one by one, in a fixed order, so
        # that a repeated run has the same results.
        return StartedCall(name, future if inspect.iscoroutinefunction(function) else self._result_or_error(future))

    def _result_or_error(self, future: Future) -> str | BaseException:
        try:
            return _shortened(str(self.thread.result(future)))
        except (Exception, SystemExit) as error:
            return error

    def _reward_so_far(self) -> float:
        """Return the reward after a turn; the one before it if `get_reward` returns None or a call has timed out.

        Raises:
            InputTypeError: if `get_reward` returns what a reward function may not return for a completion.
        """
        reward = None if self.thread.has_timed_out else call_environment(self.thread, "get_reward")
        if reward is None:
            return self.cumulative_rewards[-1]
        number = reward_as_float(reward)
        if number is None:
            name = f"{type(self.thread.environment_object).__name__}.get_reward"
            raise InputTypeError(name, reward, EXPECTED_REWARD, problem=f"returned {describe_value(reward)}")
        return number

    def _record_state(self) -> None:
        """Record the state in which the next turn begins. After a call has timed out, the state equals no other.

        Raises:
            InputTypeError: if `get_state` returns a value that cannot be compared with others (is not hashable).
        """
        if not self.records_states:
            return
        state = object() if self.thread.has_timed_out else call_environment(self.thread, "get_state")
        try:
            hash(state)
        except TypeError as error:
            name = f"{type(self.thread.environment_object).__name__}.get_state"
            expected = "expected a text, a number or a tuple of them"
            raise InputTypeError(name, state, expected, problem=f"returned {state!r:.60}") from error
        self.states.append(state)


def call_environment(thread: "EpisodeThread", method: str, **keywords) -> Any:
    """Call a method of an environment object that only the trainer may call; raise RunError if the method raises."""
    try:
        return thread.run(getattr(thread.environment_object, method), keywords)
    except (Exception, SystemExit) as error:
        problem = f"failed: {type(error).__name__}: {error}"
        raise RunError(f"{type(thread.environment_object).__name__}.{method}", problem=problem) from error


def tool_methods(environment_object: Any) -> list[Callable]:
    """Return the public methods of an environment object, which are its tools.

    They are searched for in the class, so that no property is computed.
    """
    names = [name for name, _ in inspect.getmembers(type(environment_object), predicate=inspect.isfunction)]
    names = [name for name in names if name not in NON_TOOL_METHODS and not name.startswith("_")]
    return [getattr(environment_object, name) for name in names]


def _shortened(text: str) -> str:
    """Cut the text of a result to `MAX_RESULT_CHARACTERS`; the end of a cut text says so."""
    if len(text) <= MAX_RESULT_CHARACTERS:
        return text
    return f"{text[:MAX_RESULT_CHARACTERS]} ... [cut: the first {MAX_RESULT_CHARACTERS:,} of {len(text):,} characters]"


class RunningCall(NamedTuple):
    """The call that a thread runs at present."""

    start_time: float  # `time.monotonic()` when it began to run
    limit: float | None  # limit of the call in seconds; None sets no limit


class EpisodeThread:
    """A thread that runs the calls of one episode, one after the other, and may hold its environment object."""

    def __init__(self):
        self.environment_object: Any = None  # the environment of the episode, if a factory makes one
        # True once a call has not returned in time. A thread cannot be ended, so it is given up.
        self.has_timed_out = False
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        self._running_call: list[RunningCall] = []  # the call that runs at present, if one does
        arguments = (self._calls, self._running_call)
        threading.Thread(target=_run_calls, args=arguments, daemon=True, name="grpo_lab tool").start()
        weakref.finalize(self, self._calls.put, None)

    def start(self, function: Callable, arguments: Any = None, limit: float | None = None) -> Future:
        """Put a call at the end of the queue; return the future of its result. A coroutine is run to its end.

        Args:
            function: The function to call.
            arguments: Its keyword arguments, a dict; anything else makes the call fail with TypeError. None: no
                arguments.
            limit: Limit of the call in seconds, from when it begins to run; None sets no limit.
        """
        future: Future = Future()
        self._calls.put((future, function, {} if arguments is None else arguments, limit))
        return future

    def result(self, future: Future) -> Any:
        """Wait for a call; return its result, or raise its exception.

        Raises:
            TimeoutError: if this call, or one before it in the queue, has run for `POLL_SECONDS` longer than its limit.
                The thread is then given up.
        """
        while True:
            try:
                return future.result(timeout=min(POLL_SECONDS, max(0.0, self._seconds_left()[0])))
            except FutureTimeoutError:
                if future.done():  # the call ended just now, or raised TimeoutError itself
                    return future.result()
                seconds_left, limit = self._seconds_left()
                if seconds_left <= 0:
                    self.has_timed_out = True
                    raise TimeoutError(f"no answer within {limit:g} seconds") from None

    def _seconds_left(self) -> tuple[float, float]:
        """Return the seconds until the call that runs at present is given up, and its limit; inf if it has none."""
        for start_time, limit in tuple(self._running_call):
            if limit is not None:
                return start_time + limit + POLL_SECONDS - time.monotonic(), limit
        return math.inf, math.inf

    def run(self, function: Callable, arguments: dict | None = None) -> Any:
        """Call a function in the thread, and wait for its result without a limit."""
        return self.result(self.start(function, arguments))


def _run_calls(calls: queue.SimpleQueue, running_call: list[RunningCall]) -> None:
    """Run the calls of a queue in their order, until the queue has None.

    Args:
        calls: The future of each call, its function, its arguments and its limit.
        running_call: Holds the call that runs at present; empty between calls.
    """
    loop = None
    while (call := calls.get()) is not None:
        future, function, arguments, limit = call
        running_call.append(RunningCall(time.monotonic(), limit))
        try:
            value = function(**arguments)
            if inspect.isawaitable(value):
                loop = loop or asyncio.new_event_loop()
                value = loop.run_until_complete(_with_limit(value, limit))
            running_call.clear()
            future.set_result(value)
        except BaseException as error:  # also SystemExit: it would end the thread while the caller waits
            running_call.clear()
            future.set_exception(error)
        del call, future, function, arguments
    if loop is not None:
        loop.close()


async def _with_limit(awaitable: Any, limit: float | None) -> Any:
    try:
        return await asyncio.wait_for(awaitable, limit)
    except TimeoutError as error:
        if limit is None or str(error):  # the call raised it itself
            raise
        raise TimeoutError(f"no answer within {limit:g} seconds") from error
