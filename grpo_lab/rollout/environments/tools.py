"""Tools and environments with TRL's interface: an episode is a chat in which the policy may call functions.

`tools` are typed functions with docstrings. `environment_factory` makes an environment object, which serves one episode
at a time:
- `reset(**row)` begins an episode, and may return a text that is appended to the prompt.
- `get_reward()`, if there is one, returns one more reward.
- `get_state()`, if there is one, returns the state in which a turn begins.
- The other public methods are tools.

If a call fails, the policy gets the error as its result.

This differs from TRL in four ways. There `get_state` would be a tool. A call that cannot be read ends the episode
there; here its result is the error. Here a call has a limit in seconds, and a result has a limit in characters. An
episode whose result has no room left counts as truncated.
"""

import copy
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy
import torch

from grpo_lab.base.checks import InputError, InputTypeError, RunError, check_at_least, check_positive
from grpo_lab.config.settings import TOOL_TIMEOUT, SamplingParams
from grpo_lab.rollout.decoding.sampling_request import Turn
from grpo_lab.rollout.environments.environment import Environment, sample_episodes_from_ids
from grpo_lab.rollout.environments.tool_call_format import ToolCallFormat
from grpo_lab.rollout.environments.tool_episode import EpisodeThread, ToolEpisode, call_environment, tool_methods
from grpo_lab.rollout.prompts import check_prompts, encode_prompts, end_token_ids
from grpo_lab.rollout.rollout import Rollout
from grpo_lab.sandbox.python import check_sandbox
from grpo_lab.tasks import Rows


class ToolEnvironment(Environment):
    """An environment whose episodes are chats with tools, and with an environment object each if a factory is given.

    Args:
        tools: Functions whose arguments all have types and are described in the docstring; they may be `async`.
        environment_factory: A class, or a function without arguments, that returns an environment object. It is called
            once for each episode of a batch; the objects are kept, and reset before each episode.
        max_tool_calling_iterations: Maximum number of turns with calls; the turn after them is the last. None sets no
            limit.
        tool_timeout: Limit of a call in seconds from when it begins to run. A call that takes longer fails: an
            asynchronous one is ended; of a plain one, `POLL_SECONDS` after the limit, the thread goes on and the result
            is dropped.
    """

    def __init__(
        self,
        tools: list[Callable] | None = None,
        environment_factory: Callable[[], Any] | None = None,
        max_tool_calling_iterations: int | None = None,
        tool_timeout: float = TOOL_TIMEOUT,
    ):
        if max_tool_calling_iterations is not None:
            check_at_least("max_tool_calling_iterations", max_tool_calling_iterations, 1)
        check_positive("tool_timeout", tool_timeout)
        self.tools = _checked_tools(tools)
        self.environment_factory = environment_factory
        for tool in self.tools:
            check_sandbox("tools", tool)
        self.max_tool_calling_iterations, self.tool_timeout = max_tool_calling_iterations, tool_timeout
        self._threads: list[EpisodeThread] = []
        self.environment_class: type[Any] | None = None
        methods: list[Callable] = []
        if environment_factory is not None:
            if not callable(environment_factory):
                expected = "expected a class, or another function without arguments that returns an environment"
                raise InputTypeError("environment_factory", environment_factory, expected)
            first_thread = self._new_thread()
            self._threads = [first_thread]
            self.environment_class = type(first_thread.environment_object)
            self._check_environment_class()
            methods = tool_methods(first_thread.environment_object)
        self.schemas: list[dict] = _schemas([*self.tools, *methods])
        self.has_instances = self.environment_class is not None
        self.has_reward = callable(getattr(self.environment_class, "get_reward", None))
        self.has_state = callable(getattr(self.environment_class, "get_state", None))

    def with_max_tool_calling_iterations(self, limit: int) -> "ToolEnvironment":
        """Return the environment with this maximum number of turns with calls; one more turn may follow."""
        if self.max_tool_calling_iterations == limit:
            return self
        limited = copy.copy(self)
        limited.max_tool_calling_iterations = limit
        return limited

    def with_tool_timeout(self, tool_timeout: float) -> "ToolEnvironment":
        """Return the environment with this limit of a call in seconds."""
        check_positive("tool_timeout", tool_timeout)
        limited = copy.copy(self)
        limited.tool_timeout = tool_timeout
        return limited

    @property
    def functions_and_settings(self) -> tuple[list[Callable], dict]:
        """The functions and the settings of the environment, which a resumed run compares with those it began with."""
        functions = [*self.tools, *([] if self.environment_factory is None else [self.environment_factory])]
        settings = ("max_tool_calling_iterations", "tool_timeout")
        return functions, {name: getattr(self, name) for name in settings}

    def check(self, model, tokenizer, rows: Rows, max_completion_length: int, name: str = "dataset") -> None:
        """Raise InputError for a chat template without tools, and for rows of the data that cannot begin an episode."""
        ToolCallFormat(tokenizer, self.schemas)  # checks the chat template
        self._check_rows(rows, name)
        prompts = (row["prompt"] for row in rows)
        check_prompts(model.config, tokenizer, prompts, max_completion_length, name, tools=self.schemas)

    def sample(
        self, model, tokenizer, rows: list[dict], sampling_params: SamplingParams, *, record_turns: bool = False
    ) -> Rollout:
        """Sample G episodes of each row of the data: reset the environments, then let the policy write and call tools.

        The arguments are those of `Environment.sample`.
        """
        num_generations = sampling_params.num_generations
        call_format = ToolCallFormat(tokenizer, self.schemas)
        data_rows = [row for row in rows for _ in range(num_generations)]  # the data row of each episode
        class_state = _class_state(self.environment_class)
        with _randomness_from_torch():
            threads = self._threads_for_episodes(len(data_rows))
            prompts = [self._reset(thread, row) for thread, row in zip(threads, data_rows, strict=True)]
            # The episodes of a group are encoded as one prompt, unless `reset` has made their prompts differ.
            episodes_per_prompt = num_generations if _groups_share_prompts(prompts, num_generations) else 1
            encoded = encode_prompts(tokenizer, prompts[::episodes_per_prompt], tools=self.schemas)
            prompt_ids = [ids for ids in encoded.unpadded_ids() for _ in range(episodes_per_prompt)]
            tool_episodes = self._begin_episodes(threads, call_format, prompt_ids, record_turns)
            limit = self.max_tool_calling_iterations
            rollout = sample_episodes_from_ids(
                model,
                tokenizer,
                encoded,
                replace(sampling_params, num_generations=episodes_per_prompt),
                lambda turns: _reply(tool_episodes, turns),
                stop_strings=[tokenizer.decode([token]) for token in end_token_ids(model, tokenizer)],
                max_turns=None if limit is None else limit + 1,
            )
            episodes = []
            for index, (tool_episode, prompt, row) in enumerate(zip(tool_episodes, prompts, data_rows, strict=True)):
                changed_prompt = None if prompt == row["prompt"] else prompt
                episodes.append(tool_episode.finish(rollout, index, changed_prompt))
        group_of_row = torch.arange(len(data_rows), device=rollout.mask.device) // num_generations
        self._check_class_state(class_state)
        return replace(rollout, episodes=episodes, group_of_row=group_of_row)

    def _begin_episodes(
        self, threads: list[EpisodeThread], call_format: ToolCallFormat, prompt_ids: list[list[int]], record_turns: bool
    ) -> list[ToolEpisode]:
        """Return the episodes before their first turn.

        Args:
            threads: The thread of each episode, with its environment object.
            call_format: Reads the calls and writes the results.
            prompt_ids: The token ids of the prompt of each episode.
            record_turns: The argument of `sample`.
        """
        return [
            ToolEpisode(
                thread,
                call_format,
                ids,
                self.tools,
                self.tool_timeout,
                has_reward=self.has_reward,
                has_state=self.has_state,
                record_turns=record_turns,
            )
            for thread, ids in zip(threads, prompt_ids, strict=True)
        ]

    def _new_thread(self) -> EpisodeThread:
        thread = EpisodeThread()
        if self.environment_factory is not None:
            try:
                thread.environment_object = thread.run(self.environment_factory)
            except (Exception, SystemExit) as error:
                problem = f"cannot be made: {type(error).__name__}: {error}"
                raise RunError("environment_factory", self.environment_factory, problem=problem) from error
        return thread

    def _threads_for_episodes(self, num_episodes: int) -> list[EpisodeThread]:
        """Return a thread for each episode; threads that have timed out are replaced with their environment objects."""
        self._threads = [self._new_thread() if thread.has_timed_out else thread for thread in self._threads]
        self._threads += [self._new_thread() for _ in range(num_episodes - len(self._threads))]
        return self._threads[:num_episodes]

    def _reset(self, thread: EpisodeThread, row: dict) -> list[dict]:
        """Reset the environment object of an episode; return its prompt, followed by the text that `reset` returned."""
        prompt = row["prompt"]
        if thread.environment_object is None:
            return prompt
        observation = call_environment(thread, "reset", **row)
        if observation is None:
            return prompt
        if not isinstance(observation, str):
            name = f"{self._class_name}.reset"
            problem = f"returned {observation!r:.60}"
            raise InputTypeError(name, observation, "expected a text, or None", problem=problem)
        return [*prompt[:-1], {**prompt[-1], "content": prompt[-1]["content"] + observation}]

    @property
    def _class_name(self) -> str:
        return "" if self.environment_class is None else self.environment_class.__name__

    def _check_environment_class(self) -> None:
        reset = getattr(self.environment_class, "reset", None)
        if not callable(reset):
            problem = f"makes a {self._class_name}, which has no method reset"
            expected = "expected `def reset(self, **row) -> str | None`, which begins an episode"
            raise InputTypeError("environment_factory", self.environment_factory, expected, problem=problem)
        if inspect.iscoroutinefunction(reset):
            problem = f"makes a {self._class_name}, whose reset is asynchronous"
            raise InputTypeError(
                "environment_factory", self.environment_factory, "expected a plain one", problem=problem
            )

    def _check_rows(self, rows: Rows, name: str) -> None:
        """Raise InputError for a reserved column, for a prompt that is no chat, and for columns unknown to `reset`."""
        if "environments" in rows[0]:
            problem = "has the column 'environments', which is the trainer's own keyword"
            raise InputError(name, rows, "expected another name", problem=problem)
        for index, row in enumerate(rows):
            if not isinstance(row["prompt"], list):
                problem = f"is {row['prompt']!r:.60}"
                expected = "expected a list of messages, since tools are called in a chat"
                raise InputTypeError(f"{name} row {index}: prompt", row["prompt"], expected, problem=problem)
        if self.has_instances:
            self._check_reset(rows[0], name)

    def _check_reset(self, row: dict, name: str) -> None:
        try:
            inspect.signature(self._threads[0].environment_object.reset).bind(**row)
        except TypeError as error:
            problem = f"has the columns {sorted(row)}, which {self._class_name}.reset cannot take: {error}"
            raise InputError(name, row, "expected those that it names, or **kwargs in it", problem=problem) from error

    def _check_class_state(self, old_state: dict[str, str]) -> None:
        """Raise InputError if an attribute of the environment class differs from its value in `old_state`."""
        state = _class_state(self.environment_class)
        changed_attributes = [name for name, value in state.items() if old_state.get(name) != value]
        if changed_attributes:
            problem = f"makes a {self._class_name}, which changes {changed_attributes[0]!r} of its class"
            expected = "keep it in the instance and set it in reset: episodes are played at the same time"
            raise InputError("environment_factory", self.environment_factory, expected, problem=problem)


def _groups_share_prompts(prompts: list[list[dict]], num_generations: int) -> bool:
    """Return True if all episodes of each group have the same prompt; `reset` may have appended to each."""
    return all(prompt == prompts[i - i % num_generations] for i, prompt in enumerate(prompts))


def _reply(episodes: list[ToolEpisode], turns: list[Turn]) -> list[list[int] | None]:
    """Start the calls of all turns, then wait for their results, so that asynchronous calls run at the same time."""
    started_calls = [episodes[turn.row].start_calls(turn) for turn in turns]
    return [episodes[turn.row].finish_calls(calls) for turn, calls in zip(turns, started_calls, strict=True)]


def _checked_tools(tools: Any) -> list[Callable]:
    if tools is None:
        return []
    if not isinstance(tools, list | tuple) or not all(map(callable, tools)):
        raise InputTypeError("tools", tools, "expected a list of functions")
    return list(tools)


def _schemas(functions: list[Callable]) -> list[dict]:
    """Return the JSON schemas of tools; raise InputError for a tool without types or docstring, or a repeated name."""
    from transformers.utils import get_json_schema

    schemas: dict[str, dict] = {}
    for function in functions:
        name = getattr(function, "__name__", None)
        if name is None or not (inspect.isfunction(function) or inspect.ismethod(function)):
            raise InputTypeError("tools", function, "expected functions", problem=f"has {function!r:.60}")
        if name in schemas:
            raise InputError("tools", name, "expected one of each name", problem=f"has {name!r} twice")
        try:
            schemas[name] = get_json_schema(function)
        except Exception as error:  # transformers raises exceptions that it does not export
            expected = "expected a type and, in the docstring, a description of each argument"
            problem = f"has {name!r}, which cannot be described to the model: {' '.join(str(error).split()):.200}"
            argument = "environment_factory" if inspect.ismethod(function) else "tools"
            raise InputTypeError(argument, function, expected, problem=problem) from error
    return list(schemas.values())


def _class_state(environment_class: type | None) -> dict[str, str]:
    """Return the values, as text, of the attributes of a class that are neither functions nor properties."""
    bases = environment_class.__mro__ if environment_class else ()
    classes = [base_class for base_class in bases if base_class is not object]
    return {
        name: repr(value)
        for base_class in reversed(classes)
        for name, value in vars(base_class).items()
        if not (name.startswith("__") or callable(value) or hasattr(value, "__get__") or name.startswith("_abc_"))
    }


@contextmanager
def _randomness_from_torch() -> Iterator[None]:
    """Inside this context, seed Python's and NumPy's random numbers from torch's; afterwards restore their states.

    So the environments of a repeated step draw the same random numbers.
    """
    state = random.getstate()
    numpy_state = numpy.random.get_state()  # noqa: NPY002
    seed = int(torch.randint(2**31, ()))
    random.seed(seed)
    numpy.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(state)
        numpy.random.set_state(numpy_state)  # noqa: NPY002
