"""The files, commands and code of docs/agents.md work, and the policy reads the replies that the page shows."""

import importlib
import json
import re
import runpy
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from grpo_lab.__main__ import main
from grpo_lab.config.settings import SamplingParams
from grpo_lab.rollout.environments.tools import ToolEnvironment
from tests.support.bubblewrap import NO_BUBBLEWRAP
from tests.support.tool_policy import END, call, make_tool_policy, sample_scripts

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'environment_factory'")
PAGE = (Path(__file__).parents[1] / "docs" / "agents.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"`([\w.]+\.(?:jsonl|py))`[^`]*```\w+\n(.*?)```", PAGE, re.DOTALL))
FENCES = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SCRIPTS = [text for kind, text in FENCES if kind == "python" and text not in FILES.values()]
(MESSAGES,) = [text for kind, text in FENCES if kind == "json" and text not in FILES.values()]
SHELL = [text for kind, text in FENCES if not kind]
MODULES = ("my_tools", "my_rewards", "my_world", "my_textarena")
CALLS = (
    call("price", item="lamp"), call("price", item="sofa"), call("guess", number=5), call("query", sql="SELECT 1"),
    call("run_python", code="print(1)"),
)  # fmt: skip
NEEDS_WALLS = ("--tools python", "--reward_funcs code")
SMALL = ["--num_generations", "2", "--max_completion_length", "130"]
SHORT = [*SMALL, "--max_steps", "1", "--generation_batch_size", "2", "--disable_tqdm", "true"]
SHORT += ["--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "1"]
SHORTENING = {"train": SHORT, "evaluate": [*SMALL, "--n", "1"], "chat": ["--max_new_tokens", "100"]}


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """Write the files of the page into a folder, from which they can be imported, and yield the folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, content in FILES.items():
        Path(name).write_text(content, encoding="utf-8")
    importlib.invalidate_caches()
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if name.removeprefix("user_") in MODULES:
            del sys.modules[name]


@pytest.fixture
def policy():
    model, tokenizer = make_tool_policy(calls=CALLS)
    model.config.max_position_embeddings = 10_000  # room for a result of 4,000 characters
    return model, tokenizer


def play(monkeypatch, policy, turns: list[str], agent: ToolEnvironment):
    """Return the messages of an episode in which the policy writes these turns."""
    sample_scripts(monkeypatch, policy[1], [[turn + END for turn in turns]])
    rows = [{"prompt": [{"role": "user", "content": "?"}], "answer": "5"}]
    (episode,) = agent.sample(*policy, rows, SamplingParams(1, 9000)).episodes
    return episode.messages


def result(monkeypatch, policy, turn: str, agent: ToolEnvironment) -> str:
    """Return the text that the policy reads after a call."""
    (text,) = [m["content"] for m in play(monkeypatch, policy, [turn, "ok"], agent) if m["role"] == "tool"]
    return text


@pytest.mark.slow
def test_agents_page_commands_run(workdir, policy, capsys):
    tables = ("guess", "mastermind", "programs", "queries", "shop", "shop.test")
    names = ["make_shop.py", *(f"{name}.py" for name in MODULES), *(f"{name}.jsonl" for name in tables)]
    assert sorted(FILES) == sorted(names)
    for part in policy:
        part.save_pretrained(workdir / "agent")
    lines = [line for block in SHELL for line in block.splitlines() if line.startswith(("grpo-lab ", "python "))]
    assert len(lines) == 14 and len(FENCES) == len(FILES) + len(SCRIPTS) + len(SHELL) + 1
    for program, command, *options in map(shlex.split, lines):
        if program == "python":
            runpy.run_path(command)
            continue
        needs_textarena = "mastermind.jsonl" in options
        if ("trl" in options and not find_spec("trl")) or (needs_textarena and not find_spec("textarena")):
            continue
        if NO_BUBBLEWRAP and any(part in " ".join(options) for part in NEEDS_WALLS):
            continue
        options = ["agent" if option == "qwen" else option for option in options]
        logging = ["--logging_steps", "1"] if "--log_completions" in options else []
        assert main([command, *options, *SHORTENING[command], *logging]) == 0, (command, options)
    printed = capsys.readouterr().out
    assert "tools/call_frequency" in printed and "rewards/looked_up/mean" in printed
    folders = ["calculator", "database", "guess", "queries", "shop"]
    optional = {"mastermind": find_spec("textarena"), "programs": not NO_BUBBLEWRAP, "trl": find_spec("trl")}
    folders = sorted([*folders, *(name for name, is_there in optional.items() if is_there)])
    assert sorted(path.name for path in (workdir / "outputs").iterdir()) == folders
    for name in folders:
        (metrics,) = map(json.loads, (workdir / "outputs" / name / "metrics.jsonl").read_text("utf-8").splitlines())
        assert metrics["tools/call_frequency"] >= 0 and metrics["tools/failure_frequency"] <= 1
        assert ("rewards/HigherOrLower/mean" in metrics) == (name in ("guess", "trl"))
    lines = (workdir / "outputs" / "shop" / "completions.jsonl").read_text("utf-8").splitlines()
    assert all({*part} <= {"policy", "environment"} for line in lines for part in json.loads(line)["turns"])


@pytest.mark.slow
def test_agents_page_code_runs(workdir, policy, capsys):
    for part in policy:
        part.save_pretrained(workdir / "agent")
    assert len(SCRIPTS) == 5
    namespace = {}  # shared, because the last script uses names of the one before
    for script in SCRIPTS:
        exec(script.replace('"qwen"', '"agent"'), namespace)
    assert "tensor(" in capsys.readouterr().out
    assert namespace["respond"](["I say 17+58=", "17+58=75", "="]) == ["75", None, None]


def test_a_reward_function_gets_the_messages_of_the_page_and_returns_its_rewards(workdir, policy, monkeypatch):
    price, looked_up = importlib.import_module("my_tools").price, importlib.import_module("my_rewards").looked_up
    (call_text,) = [text for text in SHELL if "<tool_call>" in text]
    messages = play(monkeypatch, policy, [call_text.rstrip("\n"), "It costs 19 euros."], ToolEnvironment([price]))
    assert messages == json.loads(MESSAGES)
    wrong = [{"role": "assistant", "content": "It costs 190 euros."}]
    completions = [messages, messages[2:], wrong, messages[:2], [*messages[:2], *wrong]]
    assert looked_up(completions, ["19"] * 5) == [1.0, 0.5, 0.0, 0.0, 0.0]


def lingers() -> str:
    """Wait longer than any limit."""
    import time

    time.sleep(1e5)


def much() -> str:
    """Write."""
    return "x" * 10_000


def nothing() -> None:
    """Return no text."""


WRONG = {
    "the tool raises": call("price", item="sofa"),
    "an argument is": call("price"),
    "there is no such": call("prices", item="lamp"),
    "the call cannot": '<tool_call>\n{"name": "price"\n</tool_call>',
    "it takes longer": call("lingers"),
    "the result is longer": call("much"),
    "the result is no": call("nothing"),
}


@pytest.mark.parametrize("circumstance", WRONG)
def test_tool_errors_that_the_policy_reads_are_those_of_the_agents_page(circumstance, workdir, policy, monkeypatch):
    price = importlib.import_module("my_tools").price
    (cell,) = re.findall(rf"^\| {circumstance}[^|]*\| (.*) \|$", PAGE, re.MULTILINE)
    agent = ToolEnvironment([price, lingers, much, nothing], tool_timeout=0.2)
    text = result(monkeypatch, policy, WRONG[circumstance], agent)
    quoted = re.findall("`([^`]+)`", cell)[0]
    assert text == str(nothing()) if quoted == "str()" else quoted in text, text


def test_agents_page_environment_plays_as_described(workdir, policy, monkeypatch):
    agent = ToolEnvironment(environment_factory=importlib.import_module("my_world").HigherOrLower)
    messages = play(monkeypatch, policy, [call("guess", number=n) for n in (4, 6, 5, 1, 5)] + ["5"], agent)
    texts = [message["content"] for message in messages if message["role"] == "tool"]
    assert texts == ["higher", "lower", "right", "higher", "{'error': 'you have no guess left'}"]
    sample_scripts(monkeypatch, policy[1], [[call("guess", number=n) + END, "so" + END] for n in (5, 4)])
    rows = [{"prompt": [{"role": "user", "content": "?"}], "answer": "5"}]
    rollout = agent.sample(*policy, rows, SamplingParams(2, 3000))
    assert [episode.reward for episode in rollout.episodes] == [1.0, 0.0]
    assert rollout.episodes[0].prompt[-1]["content"] == "? You have 4 guesses."


def test_agents_page_wraps_a_game_of_another_package(workdir, policy, monkeypatch):
    pytest.importorskip("textarena", reason="an example; the package does not depend on it")
    agent = ToolEnvironment(environment_factory=importlib.import_module("my_textarena").Mastermind)
    rows = [{"prompt": [{"role": "user", "content": "Play."}], "seed": 1}]
    agent.sample(*policy, rows, SamplingParams(1, 50))
    secret = " ".join(map(str, agent._threads[0].environment_object.game.state.game_state["secret_code"]))
    wrong = " ".join(reversed(secret.split()))
    games = [[wrong, secret, secret], ["1 1 1 1"] * 2, [wrong]]
    sample_scripts(
        monkeypatch,
        policy[1],
        [[call("guess", digits=digits) + END for digits in game] + ["ok" + END] for game in games],
    )
    episodes = agent.sample(*policy, rows, SamplingParams(3, 9000)).episodes
    assert "You have 20 turns to guess the code." in episodes[0].prompt[-1]["content"]
    texts = [[message["content"] for message in e.messages if message["role"] == "tool"] for e in episodes]
    assert f"Submitted [{wrong}]. Feedback:" in texts[0][0] and "Submitted" not in texts[1][0]
    assert texts[0][2] == "{'error': 'the game is over'}"
    won, lost, unfinished = (episode.reward for episode in episodes)
    assert (won, unfinished) == (1.0, 0.0) and lost < 1
