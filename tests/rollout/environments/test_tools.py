"""Tools and environments: the calls and their arguments, the results that the policy reads, and the rewards."""

import asyncio
import random
import sqlite3
import threading

import numpy
import pytest
import torch

from grpo_lab.base.checks import InputError, RunError
from grpo_lab.config.settings import SamplingParams
from grpo_lab.rollout.environments import tool_episode
from grpo_lab.rollout.environments.tools import ToolEnvironment
from tests.support.sampling import logprobs_of
from tests.support.tool_policy import (
    END,
    ROWS,
    TEMPLATE,
    CountingEnvironment,
    add,
    call,
    make_tool_policy,
    sample_scripts,
    soon,
    writes_much,
)

T = 400


@pytest.fixture
def policy():
    return make_tool_policy()


def play(monkeypatch, policy, scripts, agent, rows=ROWS[:1], length=T, **settings):
    sample_scripts(monkeypatch, policy[1], scripts)
    return agent.sample(*policy, rows, SamplingParams(len(scripts) // len(rows), length), **settings)


def results_of(rollout, row=0):
    return [message["content"] for message in rollout.episodes[row].messages if message["role"] == "tool"]


def test_a_call_is_made_and_its_result_is_read(monkeypatch, policy):
    turns = [call("add", a=1, b=2) + END, "It is 3." + END]
    rollout = play(monkeypatch, policy, [turns, ["3" + END]], ToolEnvironment([add]))
    first, second = rollout.episodes
    assert (first.num_calls, first.num_failures, second.num_calls) == (1, 0, 0)
    calls = [{"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}]
    assert first.messages == [
        {"role": "assistant", "tool_calls": calls, "content": ""},
        {"role": "tool", "name": "add", "content": "3"},
        {"role": "assistant", "content": "It is 3."},
    ]
    assert second.messages == [{"role": "assistant", "content": "3"}]
    assert not rollout.truncated.any() and second.prompt is None
    tokenizer, ids = policy[1], rollout.completion_ids[0][rollout.mask[0]].tolist()
    reply = "\n<|im_start|>user[3]<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(ids) == turns[0] + reply + turns[1]
    theirs = (rollout.mask & ~rollout.policy_mask)[0]
    assert rollout.completion_ids[0][theirs].tolist() == tokenizer(reply, add_special_tokens=False)["input_ids"]
    assert rollout.turn_of_token[0][rollout.mask[0]].tolist() == sorted(
        rollout.turn_of_token[0][rollout.mask[0]].tolist()
    )


def test_rendered_episode_is_what_the_template_writes_of_the_conversation(monkeypatch, policy):
    """Prompt, calls and results, one after the other, equal the text of the whole conversation: the prefix is kept."""
    turns = ["Well." + "\n" + call("add", a=1, b=2) + END, call("add", a=3, b=4) + END, "7" + END]
    rollout = play(monkeypatch, policy, [turns], ToolEnvironment([add]))
    tokenizer, agent = policy[1], ToolEnvironment([add])
    messages = [*ROWS[0]["prompt"], *rollout.episodes[0].messages]
    whole = tokenizer.apply_chat_template(messages, tools=agent.schemas, tokenize=False)
    prompt = tokenizer.decode(rollout.prompt_ids[0][rollout.prompt_mask[0]])
    completion = tokenizer.decode(rollout.completion_ids[0][rollout.mask[0]])
    assert prompt + completion + "\n" == whole


def lingers(seconds: float) -> str:
    """Wait.

    Args:
        seconds: seconds to wait
    """
    threading.Event().wait(seconds)
    return "awake"


async def dozes(seconds: float) -> str:
    """Wait.

    Args:
        seconds: seconds to wait
    """
    await asyncio.sleep(seconds)
    return "awake"


def leaves() -> str:
    """Exit."""
    raise SystemExit("bye")


def gives(kind: str):
    """Give something.

    Args:
        kind: key of the result
    """
    return {"none": None, "dict": {"a": 1}, "list": [1, "b"], "number": 2.5}[kind]


async def never() -> str:
    """Never answer."""
    await asyncio.sleep(1000)
    return ""


TOOLS = [add, lingers, leaves, writes_much, gives, soon, never]


@pytest.mark.parametrize(
    ("turn", "result", "failures"),
    [
        (call("add", a=1, b=2), "3", 0),
        (call("add", a=1), "{'error': \"add() missing 1 required positional argument: 'b'\"}", 1),
        (call("add", a=1, b=2, c=3), "{'error': \"add() got an unexpected keyword argument 'c'\"}", 1),
        (call("add", a="x", b=2), 'can only concatenate str (not "int") to str', 1),
        (call("nix"), "{'error': 'Tool nix not found.'}", 1),
        ('<tool_call>\n{"name": "add", "arguments": "ab"}\n</tool_call>', "argument after ** must be a mapping", 1),
        ('<tool_call>\n{"name": "add"}\n</tool_call>', "missing 2 required positional arguments", 1),
        (call("leaves"), "{'error': 'bye'}", 1),
        (call("gives", kind="none"), "None", 0),
        (call("gives", kind="dict"), "{'a': 1}", 0),
        (call("gives", kind="list"), "[1, 'b']", 0),
        (call("gives", kind="number"), "2.5", 0),
        (call("gives", kind="other"), "{'error': \"'other'\"}", 1),
        (call("soon", text="a"), "A", 0),
        (call("never"), "{'error': 'no answer within 0.2 seconds'}", 1),
        (call("lingers", seconds=0.01), "awake", 0),
        ('<tool_call>\n{"name": "add", "arguments": {"a": 1\n</tool_call>', "The tool call could not be read: json", 1),
        ('<tool_call>\n{"name": "add", "arguments": {}}', "The tool call could not be read: json", 1),
        ("<tool_call>\n[1, 2]\n</tool_call>", 'expected {"name": ..., "arguments": {...}} in a call, not [1, 2]', 1),
        ('<tool_call>\n{"name": 3}\n</tool_call>', "in a call, not", 1),
    ],
)
def test_every_tool_call_gets_an_answer(turn, result, failures, monkeypatch, policy):
    rollout = play(monkeypatch, policy, [[turn + END, "ok" + END]], ToolEnvironment(TOOLS, tool_timeout=0.2))
    (answer,) = results_of(rollout)
    assert result in answer and (not answer.startswith("{'error'") or failures)
    episode = rollout.episodes[0]
    assert (episode.num_calls, episode.num_failures) == (1, failures)
    assert episode.messages[-1] == {"role": "assistant", "content": "ok"}
    assert f"user[{answer}]" in rollout.texts[0]


def test_several_calls_of_one_turn_are_answered_in_their_order(monkeypatch, policy):
    turn = "\n".join([call("soon", text="a"), call("add", a=1, b=2), call("nix"), call("soon", text="b")]) + END
    rollout = play(monkeypatch, policy, [[turn, "ok" + END]], ToolEnvironment(TOOLS))
    assert results_of(rollout) == ["A", "3", "{'error': 'Tool nix not found.'}", "B"]
    assert (rollout.episodes[0].num_calls, rollout.episodes[0].num_failures) == (4, 1)


def test_a_tool_that_hangs_has_a_limit_and_the_others_go_on(monkeypatch, policy):
    agent = ToolEnvironment(TOOLS, tool_timeout=0.2)
    hangs = [call("lingers", seconds=1e5) + END, call("add", a=1, b=1) + END, "so" + END]
    rollout = play(monkeypatch, policy, [hangs, [call("add", a=1, b=2) + END, "ok" + END]], agent)
    lost = "{'error': 'an earlier call has not come back'}"
    assert results_of(rollout) == ["{'error': 'no answer within 0.2 seconds'}", lost] and results_of(rollout, 1) == [
        "3"
    ]
    again = play(monkeypatch, policy, [[call("add", a=1, b=1) + END, "so" + END]] * 2, agent)
    assert results_of(again) == ["2"], "the next episode has a thread of its own"


def test_the_limit_of_a_call_counts_from_when_it_begins_to_run(monkeypatch, policy):
    """The calls before it, each far below the limit, together take longer than the limit and what is added to it."""
    monkeypatch.setattr(tool_episode, "POLL_SECONDS", 0.05)
    turn = "\n".join([call("dozes", seconds=0.1)] * 12 + [call("add", a=1, b=2)]) + END
    agent = ToolEnvironment([dozes, add], tool_timeout=1.0)
    assert results_of(play(monkeypatch, policy, [[turn, "ok" + END]], agent, length=1500))[-1] == "3"


def test_asynchronous_calls_of_several_episodes_wait_together(monkeypatch, policy):
    """All calls have started before one of them answers: each waits for the others."""
    present, everybody = [], 6
    arrived = threading.Event()

    async def meet() -> str:
        """Meet."""
        present.append(1)
        if len(present) == everybody:
            arrived.set()
        while not arrived.is_set():
            await asyncio.sleep(0.001)
        return "met"

    rollout = play(monkeypatch, policy, [[call("meet") + END, "ok" + END]] * everybody, ToolEnvironment([meet]))
    assert all(results_of(rollout, row) == ["met"] for row in range(everybody))


def test_a_long_tool_result_is_cut_with_a_note(monkeypatch, policy):
    episodes = [[call("writes_much", n=1_000_000) + END, "ok" + END]]
    monkeypatch.setattr("grpo_lab.rollout.environments.tool_episode.MAX_RESULT_CHARACTERS", 50)
    rollout = play(monkeypatch, policy, episodes, ToolEnvironment(TOOLS))
    assert results_of(rollout) == ["x" * 50 + " ... [cut: the first 50 of 1,000,000 characters]"]


def test_a_result_without_room_is_left_out_and_the_episode_is_truncated(monkeypatch, policy):
    episodes = [[call("writes_much", n=3000) + END], [call("add", a=1, b=2) + END, "ok" + END]]
    rollout = play(monkeypatch, policy, episodes, ToolEnvironment(TOOLS), length=200)
    assert rollout.truncated.tolist() == [True, False]
    assert [message["role"] for message in rollout.episodes[0].messages] == ["assistant"]
    assert rollout.episodes[0].num_calls == 1 and torch.equal(rollout.policy_mask[0], rollout.mask[0])


def test_after_the_last_turn_with_calls_nothing_is_called(monkeypatch, policy):
    episodes = [[call("add", a=1, b=n) + END for n in range(5)]]
    rollout = play(monkeypatch, policy, episodes, ToolEnvironment([add], max_tool_calling_iterations=2))
    episode = rollout.episodes[0]
    assert [message["role"] for message in episode.messages] == ["assistant", "tool"] * 2 + ["assistant"]
    assert episode.num_calls == 2 and episode.messages[-1]["tool_calls"] and not rollout.truncated.any()


def test_a_turn_that_the_limit_cuts_is_a_message_and_calls_nothing(monkeypatch, policy):
    episodes = [[call("add", a=1, b=2) + END, "abc" * 200]]
    rollout = play(monkeypatch, policy, episodes, ToolEnvironment([add]), length=120)
    assert rollout.truncated.tolist() == [True] and rollout.mask.sum() == 120
    assert rollout.episodes[0].messages[-1]["content"].startswith("abcabc")


# Environments.


def test_an_environment_is_reset_with_the_row_played_and_asked_for_its_reward(monkeypatch, policy):
    agent = ToolEnvironment(environment_factory=CountingEnvironment)
    assert [schema["function"]["name"] for schema in agent.schemas] == ["fail", "step"] and agent.has_reward
    three = [call("step", by=1) + END, call("step", by=2) + END, "done" + END]
    rollout = play(
        monkeypatch, policy, [three, ["no" + END], three, [call("fail") + END, "oh" + END]], agent, rows=ROWS
    )
    assert [episode.reward for episode in rollout.episodes] == [1.0, 0.0, 0.0, 0.0]
    assert results_of(rollout) == ["now 1", "now 3"] and results_of(rollout, 3) == ["{'error': 'the world is on fire'}"]
    prompts = [episode.prompt[-1]["content"] for episode in rollout.episodes]
    assert prompts == ["1+2 (to 3)"] * 2 + ["40+2 (to 42)"] * 2 and ROWS[0]["prompt"][-1]["content"] == "1+2"
    assert rollout.prompt_of_row.tolist() == rollout.group_of_row.tolist() == [0, 0, 1, 1]
    assert "40+2 (to 42)" in policy[1].decode(rollout.prompt_ids[1])
    assert len({id(episode.environment) for episode in rollout.episodes}) == 4


def test_episodes_of_a_group_may_begin_with_different_prompts(monkeypatch, policy):
    class Dice(CountingEnvironment):
        def reset(self, **row):
            return f" {random.randrange(10**9)} {numpy.random.randint(10**9)}"  # noqa: NPY002

        get_reward = None

    agent = ToolEnvironment(environment_factory=Dice)
    torch.manual_seed(3)
    rollout = play(monkeypatch, policy, [["no" + END]] * 4, agent, rows=ROWS)
    assert rollout.prompt_of_row.tolist() == [0, 1, 2, 3] and rollout.group_of_row.tolist() == [0, 0, 1, 1]
    prompts = [episode.prompt for episode in rollout.episodes]
    torch.manual_seed(3)
    again = play(monkeypatch, policy, [["no" + END]] * 4, agent, rows=ROWS)
    assert [episode.prompt for episode in again.episodes] == prompts, "chance follows from torch's seed"


def test_environment_methods_run_in_one_thread(monkeypatch, policy):
    """A connection to SQLite refuses any other thread."""

    class Base(CountingEnvironment):
        def __init__(self):
            self.connection = sqlite3.connect(":memory:")

        def reset(self, **row):
            self.connection.execute("create table if not exists t (x)")

        def put(self, x: int) -> str:
            """Put.

            Args:
                x: a value
            """
            self.connection.execute("insert into t values (?)", (x,))
            return "put"

        def get_reward(self) -> float:
            return float(self.connection.execute("select sum(x) from t").fetchone()[0] or 0)

    rollout = play(
        monkeypatch, policy, [[call("put", x=5) + END, call("put", x=7) + END, "ok" + END]],
        ToolEnvironment(environment_factory=Base),
    )  # fmt: skip
    assert rollout.episodes[0].reward == 12.0


def test_one_event_loop_serves_an_environment(monkeypatch, policy):
    class Later:
        def reset(self, **row):
            self.loops = []

        async def step(self) -> str:
            """Go on."""
            await asyncio.sleep(0)
            self.loops.append(asyncio.get_running_loop())
            return str(len(self.loops))

        async def get_reward(self) -> float:
            await asyncio.sleep(0)
            self.loops.append(asyncio.get_running_loop())
            return float(len(set(map(id, self.loops))))

    episodes = [[call("step") + END, call("step") + END, "ok" + END]]
    rollout = play(monkeypatch, policy, episodes, ToolEnvironment(environment_factory=Later))
    assert results_of(rollout) == ["1", "2"] and rollout.episodes[0].reward == 1.0


def test_an_environment_that_hangs_has_no_reward_and_is_replaced(monkeypatch, policy):
    class Swamp(CountingEnvironment):
        def step(self) -> str:
            """Sink."""
            threading.Event().wait(1e5)

    agent = ToolEnvironment(environment_factory=Swamp, tool_timeout=0.1)
    rollout = play(monkeypatch, policy, [[call("step") + END, "ok" + END]], agent)
    assert rollout.episodes[0].reward is None
    lost = rollout.episodes[0].environment
    again = play(monkeypatch, policy, [["ok" + END]], agent)
    assert again.episodes[0].reward == 0.0 and again.episodes[0].environment is not lost


def test_an_environment_without_tools_gives_only_a_reward(monkeypatch, policy):
    class Silent:
        def reset(self, **row):
            return " go"

        def get_reward(self) -> float:
            return 0.5

    rollout = play(monkeypatch, policy, [["ok" + END]], ToolEnvironment(environment_factory=Silent))
    assert rollout.episodes[0].messages == [{"role": "assistant", "content": "ok"}]
    assert rollout.episodes[0].reward == 0.5


# A model that draws its calls.


@pytest.mark.parametrize("way", [None, "dynamic"])
def test_tool_calls_sampled_by_a_model(way):
    model, tokenizer = make_tool_policy()
    torch.manual_seed(0)
    rollout = ToolEnvironment([add]).sample(model, tokenizer, ROWS, SamplingParams(16, 130, cache_implementation=way))
    logp, _ = logprobs_of(model, rollout, policy_mask=rollout.policy_mask)
    for turn in range(rollout.turn_of_token.max() + 1):
        tokens = rollout.policy_mask & (rollout.turn_of_token == turn)
        assert (logp - rollout.logp)[tokens].abs().max() < 1e-4
    assert rollout.turn_of_token.max() > 1 and {episode.num_failures for episode in rollout.episodes} > {0}
    for row, episode in enumerate(rollout.episodes):
        assert episode.messages[0]["role"] == "assistant"
        assert (rollout.mask[row] & ~rollout.policy_mask[row]).any() == (
            "tool" in [m["role"] for m in episode.messages]
        )


# Wrong input.


def untyped(a):
    """Do.

    Args:
        a: a number
    """


def undescribed(a: int):
    pass


def another():
    def add(a: int) -> int:
        """Add.

        Args:
            a: a number
        """

    return add


def step() -> str:
    """Go."""


class NoReset:
    def step(self) -> str:
        """Go."""


class AsyncReset:
    async def reset(self, **row):
        pass


class Broken:
    def __init__(self):
        raise OSError("no such device")


class NoDocstring(AsyncReset):
    def reset(self, **row):
        pass

    def step(self, by: int) -> str:
        return ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tools": add}, "tools is .*; expected a list of functions"),
        ({"tools": ["add"]}, "expected a list of functions"),
        (
            {"tools": [untyped]},
            "tools has 'untyped', which cannot be described to the model: Argument a is missing a type hint",
        ),
        ({"tools": [undescribed]}, "tools has 'undescribed', .* no docstring"),
        ({"tools": [add, another()]}, "tools has 'add' twice; expected one of each name"),
        (
            {"tools": [step], "environment_factory": CountingEnvironment},
            "tools has 'step' twice; expected one of each name",
        ),
        ({"tools": [CountingEnvironment]}, "expected functions"),
        (
            {"environment_factory": "CountingEnvironment"},
            "environment_factory is 'CountingEnvironment'; expected a class",
        ),
        ({"environment_factory": CountingEnvironment()}, "expected a class"),
        ({"environment_factory": NoReset}, "makes a NoReset, which has no method reset"),
        ({"environment_factory": AsyncReset}, "whose reset is asynchronous"),
        ({"environment_factory": Broken}, "environment_factory cannot be made: OSError: no such device"),
        ({"environment_factory": NoDocstring}, "has 'step', which cannot be described to the model"),
        ({"tools": [add], "max_tool_calling_iterations": 0}, "it must be at least 1"),
        ({"tools": [add], "tool_timeout": 0}, "tool_timeout is 0; it must be positive"),
    ],
)
def test_tool_environment_refuses_other_objects_by_name(arguments, words):
    with pytest.raises(InputError, match=words):
        ToolEnvironment(**arguments)


class NeedsColumn(CountingEnvironment):
    def reset(self, secret: int, prompt, answer):
        pass


FORGETS_THOUGHTS = TEMPLATE.replace(
    "~ message.content }}{% endif",
    "~ (message.content if loop.last else message.content.split('</think>')[-1]) }}{% endif",
)
NO_RESULTS = TEMPLATE.replace("~ message.content ~", "~")
OTHER_CALLS = TEMPLATE.replace("<tool_call>", "<function>")
ONE_ROLE = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "^the chat template of this model is missing"),
        (FORGETS_THOUGHTS, "the chat template of this model does not keep its prefix"),
        (NO_RESULTS, "the chat template of this model leaves out the results of tools"),
        (OTHER_CALLS, "response_template is not known for the calls of this chat template, such as '<function>"),
        (ONE_ROLE, "the chat template of this model refuses a conversation with a tool .*no tools"),
        (
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "^the chat template of this model leaves out tool calls; take a model",
        ),
    ],
)
def test_a_chat_template_that_will_not_do_is_refused_by_name(template, words):
    model, tokenizer = make_tool_policy(template=template)
    with pytest.raises(InputError, match=words):
        ToolEnvironment([add]).check(model, tokenizer, ROWS, 50)


@pytest.mark.parametrize(
    ("rows", "factory", "words"),
    [
        (ROWS, NeedsColumn, "dataset has the columns .*, which NeedsColumn.reset cannot take: missing a .* 'secret'"),
        (
            [{"prompt": "1+2", "answer": "3"}],
            CountingEnvironment,
            "dataset row 0: prompt is '1[+]2'; expected a list of messages",
        ),
        ([ROWS[0] | {"environments": 1}], CountingEnvironment, "dataset has the column 'environments'"),
    ],
)
def test_tool_environment_refuses_rows_that_do_not_fit(rows, factory, words):
    model, tokenizer = make_tool_policy()
    with pytest.raises(InputError, match=words):
        ToolEnvironment(environment_factory=factory).check(model, tokenizer, rows, 50)


class Shared(CountingEnvironment):
    history: list = []  # noqa: RUF012

    def reset(self, **row):
        super().reset(**row)
        self.history.append(row)


class BadObservation(CountingEnvironment):
    def reset(self, **row):
        return 7


class BadReset(CountingEnvironment):
    def reset(self, **row):
        raise KeyError("board")


class BadReward(CountingEnvironment):
    def get_reward(self):
        raise ZeroDivisionError("nothing was said")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Shared, "makes a Shared, which changes 'history' of its class; keep it in the instance"),
        (BadObservation, "BadObservation.reset returned 7; expected a text, or None"),
        (BadReset, "BadReset.reset failed: KeyError: 'board'"),
        (BadReward, "BadReward.get_reward failed: ZeroDivisionError: nothing was said"),
    ],
)
def test_an_environment_that_misbehaves_ends_the_run_by_name(kind, words, monkeypatch, policy):
    with pytest.raises(InputError, match=words):
        play(monkeypatch, policy, [["ok" + END]], ToolEnvironment(environment_factory=kind))


def test_waiting_for_a_tool_can_be_interrupted(monkeypatch, policy):
    """A reset has no limit, so the wait has to notice Ctrl-C: it waits in short pieces."""
    waits, is_released = [], threading.Event()

    class Blocked(CountingEnvironment):
        def reset(self, **row):
            is_released.wait()

    class Impatient(Exception):
        pass

    def result(self, timeout=None):
        waits.append(timeout)
        raise Impatient if len(waits) > 2 else TimeoutError

    agent = ToolEnvironment(environment_factory=Blocked)
    monkeypatch.setattr("concurrent.futures.Future.result", result)
    with pytest.raises(RunError, match="Impatient"):
        play(monkeypatch, policy, [["ok" + END]], agent)
    is_released.set()
    assert all(timeout is not None for timeout in waits)
