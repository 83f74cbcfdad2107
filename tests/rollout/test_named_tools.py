"""Tools and environments by name: what is imported and what is refused, and the commands with them."""

import json
import sqlite3
from contextlib import closing

import pytest

import grpo_lab.models
from grpo_lab import chat, evaluate
from grpo_lab import train as command
from grpo_lab.base.checks import InputError
from grpo_lab.rollout.tools import ToolEnvironment
from grpo_lab.rollout.tools.named import load_agent
from grpo_lab.sandbox import python, run_python
from tests.sandbox.test_python import needs_bubblewrap
from tests.support.tool_worlds import call, make_tool_world

WORLD = '''
import helper_beside

def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b + helper_beside.NOTHING

class World:
    def reset(self, **row):
        self.total = 0

    def get_reward(self):
        return 0.5

NUMBER = 7
'''


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_world.py").write_text(WORLD, encoding="utf-8")
    (tmp_path / "helper_beside.py").write_text("NOTHING = 0", encoding="utf-8")
    (tmp_path / "broken.py").write_text("1 / 0", encoding="utf-8")
    for part in make_tool_world():
        part.save_pretrained(tmp_path / "model")
    return tmp_path


def test_what_is_named_is_loaded(workdir):
    agent = load_agent(["my_world.py:add"], "my_world.py:World")
    assert agent["tools"][0](1, 2) == 3 and agent["environment_factory"].__name__ == "World"
    assert load_agent([f"{workdir}/my_world.py:add"], None)["tools"] == agent["tools"], "one file is imported once"
    assert load_agent(None, None) == {}


@pytest.mark.parametrize(
    ("tools", "environment", "words"),
    [
        (
            ["my_world:add"],
            None,
            "tools is 'my_world:add'; expected a file and what is in it, such as my_tools.py:search",
        ),
        (["my_world.py"], None, "expected a file and what is in it"),
        (["nowhere.py:add"], None, "there is no such file in"),
        (["broken.py:add"], None, "broken.py cannot be imported: ZeroDivisionError"),
        (["my_world.py:other"], None, "expected something that my_world.py defines"),
        (["my_world.py:NUMBER"], None, "expected something that my_world.py defines"),
        (None, "my_world.py:add", "expected the name of a class"),
    ],
)
def test_what_cannot_be_had_is_named(tools, environment, words, workdir):
    with pytest.raises(InputError, match=words):
        load_agent(tools, environment)


def test_a_run_of_the_command_and_what_follows_it(workdir, capsys):
    rows = "".join(json.dumps({"prompt": f"1+{n}", "answer": str(n + 1)}) + "\n" for n in range(12))
    (workdir / "mine.jsonl").write_text(rows, encoding="utf-8")
    typed = ["--tools", "my_world.py:add", "--environment", "my_world.py:World"]
    size = ["--num_generations", "2", "--max_completion_length", "60"]
    words = ["--model", "model", "--task", "mine.jsonl", "--output_dir", "out", "--disable_tqdm", "true", *size]
    assert command.main([*words, *typed, "--max_steps", "1", "--generation_batch_size", "2"]) == 0
    metrics = json.loads((workdir / "out" / "metrics.jsonl").read_text("utf-8"))
    assert metrics["rewards/World/mean"] == 0.5 and "tools/call_frequency" in metrics
    output = capsys.readouterr().out
    assert "--tools my_world.py:add --environment my_world.py:World" in output, "the command that measures it"
    again = ["--resume_from_checkpoint", "out", "--max_steps", "2"]
    assert command.main(again) == 2 and "if you trust it, type --tools my_world.py:add" in capsys.readouterr().err
    assert command.main([*again, *typed]) == 0
    measured = ["--model", "out", "--split", "train", "--n", "1", *size]
    capsys.readouterr()
    assert evaluate.main(measured) == 2 and "type --tools my_world.py:add" in capsys.readouterr().err
    assert evaluate.main([*measured, *typed]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["rewards/World/mean"] == 0.5 and "tools/failure_frequency" in result


def test_chat_shows_what_tools_say(workdir, monkeypatch, capsys):
    monkeypatch.setattr(grpo_lab.models, "load_policy", lambda name: make_tool_world())
    words = ["--model", "any", "--tools", "my_world.py:add", "--prompt", "1+2", "--max_new_tokens", "200"]
    outputs = []
    for temperature in ("0", "0", "1"):
        assert chat.main([*words, "--temperature", temperature]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] and all(outputs)


# Those of the package.

SMALL = ["--num_generations", "2", "--max_completion_length", "700", "--max_tool_calling_iterations", "1"]
SMALL += ["--generation_batch_size", "2", "--disable_tqdm", "true", "--output_dir", "out"]
PROGRAM = "\n```python\nprint(2 * int(input()))\n```\n"


def make_problems(folder, calls: tuple[str, ...], **columns) -> list[str]:
    """A model that makes these calls and says this text, and rows with these columns; the words of a command."""
    for part in make_tool_world(calls=calls):
        part.save_pretrained(folder / "agent")
    rows = "".join(json.dumps({"prompt": f"double {n}", **columns}) + "\n" for n in range(12))
    (folder / "mine.jsonl").write_text(rows, encoding="utf-8")
    return ["--model", "agent", "--task", "mine.jsonl", *SMALL]


@needs_bubblewrap
@pytest.mark.slow
def test_a_run_with_the_python_tool_and_a_reward_of_programs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    calls = (call("run_python", code="print(6 * 7)"), call("run_python", code="1 / 0"), PROGRAM)
    tests = {"inputs": ["2"], "outputs": ["4"]}
    words = make_problems(tmp_path, calls, tests=tests)
    typed = ["--tools", "python", "--reward_funcs", "code", "--max_steps", "2", "--log_completions", "true"]
    assert command.main([*words, *typed, "--logging_steps", "1"]) == 0
    lines = (tmp_path / "out" / "metrics.jsonl").read_text("utf-8").splitlines()
    metrics = [json.loads(line) for line in lines]
    assert len(metrics) == 2 and sum(line["tools/call_frequency"] for line in metrics) > 0
    assert all("rewards/code_reward/mean" in line for line in metrics)
    completions = (tmp_path / "out" / "completions.jsonl").read_text("utf-8")
    assert "42" in completions and "line 1: ZeroDivisionError: division by zero" in completions
    capsys.readouterr()
    assert command.main(["--resume_from_checkpoint", "out", "--max_steps", "3"]) == 0, "a name needs no typing again"


@pytest.mark.slow
def test_a_run_with_the_database_tool_and_a_reward_of_statements(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as connection:
        connection.execute("CREATE TABLE things (name TEXT)")
        connection.commit()
    calls = (call("query", sql="SELECT 40 + 2"), call("query", sql="DROP TABLE things"), "\n```sql\nSELECT 7\n```\n")
    words = make_problems(tmp_path, calls, sql="SELECT 7", database="shop.db")
    typed = ["--tools", "sqlite:shop.db", "--reward_funcs", "sql", "--max_steps", "1"]
    assert command.main([*words, *typed, "--log_completions", "true", "--logging_steps", "1"]) == 0
    metrics = json.loads((tmp_path / "out" / "metrics.jsonl").read_text("utf-8"))
    assert metrics["tools/call_frequency"] > 0 and "rewards/sql_reward/mean" in metrics
    completions = (tmp_path / "out" / "completions.jsonl").read_text("utf-8")
    assert "42" in completions and "only one SELECT is allowed" in completions
    again = ["--resume_from_checkpoint", "out", "--max_steps", "2"]
    capsys.readouterr()
    assert command.main(again) == 2 and "type --tools sqlite:shop.db" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "name"), [(["--tools", "python"], "run_python"), (["--reward_funcs", "code"], "code_reward")]
)
def test_without_walls_the_commands_refuse_before_a_model_is_loaded(words, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(python, "wall", lambda: ("", "bubblewrap: cannot be started (FileNotFoundError)"))
    loaded = []
    monkeypatch.setattr(grpo_lab.models, "load_policy", lambda *args, **settings: loaded.append(args))
    rows = "".join(json.dumps({"prompt": f"double {n}", "tests": "assert 1"}) + "\n" for n in range(12))
    (tmp_path / "mine.jsonl").write_text(rows, encoding="utf-8")
    task = ["--model", "tiny", "--task", "mine.jsonl"]
    assert command.main([*task, *words, "--output_dir", "out"]) == 2
    assert f"has '{name}'" in (error := capsys.readouterr().err) and "Install bubblewrap" in error
    assert evaluate.main([*task, *words]) == 2 and "Install bubblewrap" in capsys.readouterr().err
    if "--tools" in words:
        assert chat.main(["--model", "tiny", *words, "--prompt", "1"]) == 2
        assert "Install bubblewrap" in capsys.readouterr().err
        with pytest.raises(InputError, match="tools has 'run_python'; .* Install bubblewrap"):
            ToolEnvironment([run_python])
    assert not loaded


def test_what_is_no_database_is_refused(workdir):
    with pytest.raises(InputError, match="sqlite is 'none.db'; there is no such file"):
        load_agent(["sqlite:none.db"], None)
    with pytest.raises(InputError, match="expected a file and what is in it, .*; or python, or sqlite:FILE"):
        load_agent(["pythons"], None)
