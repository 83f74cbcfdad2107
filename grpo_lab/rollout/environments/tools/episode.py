"""One episode with tools: the calls in each turn of the policy, their results, and what the environment tells of it."""

import inspect
import itertools
import math
import numbers
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from grpo_lab.base.checks import InputTypeError, RunError
from grpo_lab.rollout.decoding.turns import Turn
from grpo_lab.rollout.environments.tools.dialogue import Dialogue
from grpo_lab.rollout.environments.tools.worker_thread import WorkerThread
from grpo_lab.rollout.rollout import Episode, Rollout

NON_TOOL_METHODS = ("reset", "get_reward", "get_state")  # public methods of an environment that the policy cannot call
MAX_RESULT_CHARACTERS = 4000  # characters of a result that the policy gets to read

StartedCall = tuple[str, Future | str | BaseException]  # the tool's name; its result to come, its result, or its error


class ToolEpisode:
    """One episode: the messages of the policy, the results of its calls, and the rewards and states of its turns.

    thread: where its calls run; the environment of the episode lives there, reset already.
    tools: functions that the policy may call, beside the methods of the environment.
    tool_timeout: seconds that a call may take.
    has_reward, has_state: whether the environment has `get_reward` and `get_state`.
    by_turn: whether it is asked for them after every turn, and not only for the reward at the end.
    """

    def __init__(
        self,
        thread: WorkerThread,
        dialogue: Dialogue,
        prompt_ids: list[int],
        tools: list[Callable],
        tool_timeout: float,
        *,
        has_reward: bool,
        has_state: bool,
        by_turn: bool,
    ):
        self.thread = thread
        self.dialogue = dialogue
        self.prompt_ids = prompt_ids
        methods = [] if thread.environment is None else tool_methods(thread.environment)
        self.functions = {function.__name__: function for function in [*tools, *methods]}
        self.tool_timeout = tool_timeout
        self.has_reward = has_reward
        self.reward_by_turn = by_turn and has_reward
        self.state_by_turn = by_turn and has_state
        self.turns: list[tuple[dict, list[dict]]] = []  # a message, and the results of the calls in it
        self.calls = self.failures = 0
        self.cumulative_rewards = [0.0]  # of the episode so far, before each turn
        self.states: list[Any] = []
        self._record_state()

    def start_calls(self, turn: Turn) -> list[StartedCall]:
        """Read a turn of the policy, and begin the calls in it."""
        message, problem = self._read(turn.ids, turn.earlier_ids)
        self.turns.append((message, []))
        calls = message.get("tool_calls") or ()
        self.calls += len(calls) + bool(problem)
        if problem:
            return [("unknown", ValueError(f"The tool call could not be read: {problem}"))]
        return [self._start_call(call["function"]["name"], call["function"]["arguments"]) for call in calls]

    def finish_calls(self, started_calls: list[StartedCall]) -> list[int] | None:
        """Wait for the results of a turn's calls, and write them; None where there was no call: the episode is over."""
        results = []
        for name, outcome in started_calls:
            result = self._result_text(outcome) if isinstance(outcome, Future) else outcome
            if isinstance(result, BaseException):
                self.failures += 1
                result = _shortened(str({"error": str(result)}))
            results.append({"role": "tool", "name": name, "content": result})
        if not results:
            return None
        self.turns[-1][1].extend(results)
        if self.reward_by_turn:
            self.cumulative_rewards.append(self._reward_so_far())
        self._record_state()
        return self.dialogue.write(results)

    def summary(self, rollout: Rollout, row: int, prompt: list[dict] | None) -> Episode:
        """Sum up a finished episode; a tool result that had no room is not among its messages."""
        length = int(rollout.mask[row].sum())
        ids = rollout.completion_ids[row, :length].tolist()
        turn = rollout.turn[row, :length].tolist()
        is_policy = rollout.policy_mask[row, :length].tolist()
        messages = []
        for number, (message, results) in enumerate(self.turns):
            messages.append(message)
            if any(t == number and not policy for t, policy in zip(turn, is_policy, strict=True)):
                messages += results
        last_turn = [index for index, number in enumerate(turn) if number == len(self.turns)]
        if last_turn:  # a turn after which nobody was asked: the last of all that were allowed, or one without an end
            message, _ = self._read(ids[last_turn[0] :], ids[: last_turn[0]])
            messages.append(message)
        reward = None
        if self.has_reward and not self.thread.is_lost:
            reward = call_environment(self.thread, "get_reward")
        return Episode(
            calls=self.calls,
            failures=self.failures,
            prompt=prompt,
            messages=messages,
            environment=self.thread.environment,
            reward=reward,
            turn_rewards=[after - before for before, after in itertools.pairwise(self.cumulative_rewards)],
            states=self.states,
            reply_tokens=is_policy.count(False),
        )

    def _read(self, ids: list[int], earlier_ids: list[int]) -> tuple[dict, str]:
        return self.dialogue.read(ids, self.prompt_ids + earlier_ids)

    def _start_call(self, name: str, arguments: Any) -> StartedCall:
        function = self.functions.get(name)
        if function is None:
            return name, ValueError(f"Tool {name} not found.")
        if self.thread.is_lost:
            return name, RuntimeError("an earlier call has not come back")
        future = self.thread.start(function, arguments, self.tool_timeout)
        # Asynchronous calls of several episodes run at the same time; others one by one, in order, so that a run that
        # is repeated has the same results.
        return name, future if inspect.iscoroutinefunction(function) else self._result_text(future)

    def _result_text(self, future: Future) -> str | BaseException:
        try:
            return _shortened(str(self.thread.result(future, self.tool_timeout)))
        except (Exception, SystemExit) as error:
            return error

    def _reward_so_far(self) -> float:
        """The reward of the episode after a turn; None adds nothing, nor does an environment whose call is lost."""
        reward = None if self.thread.is_lost else call_environment(self.thread, "get_reward")
        if reward is None:
            return self.cumulative_rewards[-1]
        if not isinstance(reward, numbers.Real) or not math.isfinite(reward):
            name = f"{type(self.thread.environment).__name__}.get_reward"
            raise InputTypeError(name, reward, "expected a finite number, or None", found=f"returned {reward!r:.60}")
        return float(reward)

    def _record_state(self) -> None:
        """Record the state in which the next turn begins, if the environment tells it; a lost one is like no other."""
        if not self.state_by_turn:
            return
        state = object() if self.thread.is_lost else call_environment(self.thread, "get_state")
        try:
            hash(state)
        except TypeError as error:
            name = f"{type(self.thread.environment).__name__}.get_state"
            expected = "expected a text, a number or a tuple of them"
            raise InputTypeError(name, state, expected, found=f"returned {state!r:.60}") from error
        self.states.append(state)


def call_environment(thread: WorkerThread, method: str, **keywords) -> Any:
    """Call a method of the environment that only the trainer calls; what it raises ends the run."""
    try:
        return thread.run(getattr(thread.environment, method), keywords)
    except (Exception, SystemExit) as error:
        problem = f"failed: {type(error).__name__}: {error}"
        raise RunError(f"{type(thread.environment).__name__}.{method}", found=problem) from error


def tool_methods(environment: Any) -> list[Callable]:
    """The public methods of an environment, which are its tools. Looked for in the class: a property is not asked."""
    names = [name for name, _ in inspect.getmembers(type(environment), predicate=inspect.isfunction)]
    return [getattr(environment, name) for name in names if name not in NON_TOOL_METHODS and not name.startswith("_")]


def _shortened(text: str) -> str:
    """A result that the policy can read, which says where it was cut."""
    if len(text) <= MAX_RESULT_CHARACTERS:
        return text
    return f"{text[:MAX_RESULT_CHARACTERS]} ... [cut: the first {MAX_RESULT_CHARACTERS:,} of {len(text):,} characters]"
