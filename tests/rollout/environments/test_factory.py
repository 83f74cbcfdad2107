"""Tests of the environment of a run: what it is made of, what excludes what, and tools and environments by name."""

import json
import re
import sqlite3
import sys
from contextlib import closing

import pytest

import grpo_lab.models
from grpo_lab import chat, evaluate
from grpo_lab import train as train_command
from grpo_lab.base.checks import InputError
from grpo_lab.config import GRPOConfig
from grpo_lab.config.settings import SamplingParams
from grpo_lab.rewards import accuracy_reward
from grpo_lab.rollout.environments.factory import load_environment_class, load_tools, make_environment
from grpo_lab.rollout.environments.text_environment import TextEnvironment
from grpo_lab.rollout.environments.tools import TOOL_TIMEOUT, ToolEnvironment
from grpo_lab.rollout.rollout import turns_as_text
from grpo_lab.sandbox import python, run_python
from grpo_lab.tasks import find_task
from grpo_lab.trainer.rewarding import reward_rollout
from tests.support.bubblewrap import needs_bubblewrap
from tests.support.text_episodes import STOP_STRINGS, reply_by_length
from tests.support.tool_policy import END, add, call, make_tool_policy, sample_scripts

CALCULATOR = find_task("sums-calculator")
TEXTS = TextEnvironment(reply_by_length, STOP_STRINGS)
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


class World:
    """An environment class that counts its instances."""

    instances = 0

    def __init__(self):
        World.instances += 1

    def reset(self, **row) -> None:
        """Begin an episode."""


def test_without_tools_and_without_a_task_that_replies_there_is_no_environment():
    assert make_environment() is None
    assert make_environment(find_task("sums"), tools=[]) is None


def test_the_environment_of_a_task_is_its_function_that_replies():
    expected = TextEnvironment(CALCULATOR.respond, CALCULATOR.stop_strings)
    assert make_environment(CALCULATOR) == expected
    assert make_environment(CALCULATOR, max_tool_calling_iterations=2).max_turns == 3


def test_tools_and_a_factory_make_a_tool_environment_with_the_limits():
    environment = make_environment(find_task("sums"), tools=[add], max_tool_calling_iterations=2, tool_timeout=0.5)
    assert isinstance(environment, ToolEnvironment) and environment.tools == [add]
    assert (environment.max_tool_calling_iterations, environment.tool_timeout) == (2, 0.5)
    unlimited = make_environment(tools=[add])
    assert (unlimited.max_tool_calling_iterations, unlimited.tool_timeout) == (None, TOOL_TIMEOUT)
    World.instances = 0
    assert make_environment(environment_factory=World).environment_class is World and World.instances == 1


def test_an_environment_object_is_taken_as_it_is_but_for_its_limits():
    environment = ToolEnvironment([add])
    assert make_environment(environment=environment) is environment
    assert make_environment(environment=environment, tool_timeout=0.5).tool_timeout == 0.5
    patient = ToolEnvironment([add], tool_timeout=60.0)
    assert make_environment(environment=patient, tool_timeout=TOOL_TIMEOUT).tool_timeout == TOOL_TIMEOUT
    assert make_environment(environment=patient, tool_timeout=GRPOConfig().tool_timeout) is patient
    explicit = GRPOConfig(tool_timeout=TOOL_TIMEOUT)
    assert make_environment(environment=patient, tool_timeout=explicit.tool_timeout).tool_timeout == TOOL_TIMEOUT
    assert make_environment(environment=environment, max_tool_calling_iterations=4).max_tool_calling_iterations == 4
    assert make_environment(environment=TEXTS) is TEXTS
    limited = make_environment(environment=TEXTS, max_tool_calling_iterations=4)
    assert limited == make_environment(environment=limited, max_tool_calling_iterations=4)
    assert limited == TextEnvironment(reply_by_length, STOP_STRINGS, max_turns=5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"task": CALCULATOR, "tools": [add]},
            "tools is given for a task that has an environment of its own",
        ),
        (
            {"task": CALCULATOR, "environment_factory": World},
            "environment is given for a task that has an environment of its own; leave it out, or take another task",
        ),
        (
            {"task": CALCULATOR, "environment": TEXTS},
            "environment is given for a task that has an environment of its own; leave it out, or take another task",
        ),
        ({"environment": TEXTS, "tools": [add]}, "environment is given, too; expected either it or tools"),
        (
            {"environment": TEXTS, "environment_factory": World},
            "environment is given, too; expected either it or environment_factory",
        ),
        ({"tool_timeout": 0.5}, "tool_timeout is 0.5; leave it out: there are no tools"),
        ({"task": find_task("sums"), "tool_timeout": 0.5}, "tool_timeout is 0.5; leave it out: there are no tools"),
        ({"task": CALCULATOR, "tool_timeout": 0.5}, "tool_timeout is 0.5; leave it out: this environment has no time"),
        ({"max_tool_calling_iterations": 2}, "max_tool_calling_iterations is 2; leave it out: there are no tools"),
        (
            {"task": find_task("sums"), "max_tool_calling_iterations": 2},
            "max_tool_calling_iterations is 2; leave it out: there are no tools",
        ),
    ],
)
def test_a_second_environment_and_a_limit_without_one_are_refused(arguments, message):
    World.instances = 0
    with pytest.raises(InputError, match=message):
        make_environment(**arguments)
    assert World.instances == 0


def test_the_schemas_of_an_environment_are_those_of_its_tools():
    assert [schema["function"]["name"] for schema in make_environment(tools=[add]).schemas] == ["add"]
    assert make_environment(CALCULATOR).schemas is None


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_world.py").write_text(WORLD, encoding="utf-8")
    (tmp_path / "helper_beside.py").write_text("NOTHING = 0", encoding="utf-8")
    (tmp_path / "broken.py").write_text("1 / 0", encoding="utf-8")
    for part in make_tool_policy():
        part.save_pretrained(tmp_path / "model")
    yield tmp_path
    for name in ("my_world", "my_game", "helper_beside", "rewards_with_environments"):
        sys.modules.pop(name, None)


def test_load_tools_and_load_environment_class_import_named_objects(workdir):
    tools, world = load_tools(["my_world.py:add"]), load_environment_class("my_world.py:World")
    assert tools[0](1, 2) == 3 and world.__name__ == "World"
    assert load_tools([f"{workdir}/my_world.py:add"]) == tools, "one file is imported once"
    assert load_tools(None) == [] and load_environment_class(None) is None


@pytest.mark.parametrize(
    ("tools", "environment", "words"),
    [
        (
            ["my_world:add"],
            None,
            "tools has 'my_world:add'; expected FILE:name, such as my_tools.py:search; or python, or sqlite:FILE",
        ),
        (["my_world.py"], None, "expected FILE:name"),
        (None, "my_world:World", "environment has 'my_world:World'; expected FILE:name, such as my_world.py:World$"),
        (["nowhere.py:add"], None, "there is no such file in"),
        (["broken.py:add"], None, "'broken.py:add', but it cannot be imported from .*: ZeroDivisionError"),
        (["my_world.py:other"], None, "module 'my_world' has no attribute 'other'"),
        (["my_world.py:NUMBER"], None, "'my_world.py:NUMBER', which is int 7; expected a function"),
        (None, "my_world.py:add", "expected the name of a class"),
    ],
)
def test_load_tools_and_load_environment_class_name_missing_objects(tools, environment, words, workdir):
    with pytest.raises(InputError, match=words):
        load_tools(tools)
        load_environment_class(environment)


def test_train_evaluate_and_chat_commands_take_tools(workdir, capsys):
    rows = "".join(json.dumps({"prompt": f"1+{n}", "answer": str(n + 1)}) + "\n" for n in range(12))
    (workdir / "mine.jsonl").write_text(rows, encoding="utf-8")
    typed = ["--tools", "my_world.py:add", "--environment", "my_world.py:World"]
    rewards = ["--reward_funcs", "last", "--reward_weights", "0"]  # the environment's reward has weight 1
    size = ["--num_generations", "2", "--max_completion_length", "60"]
    words = ["--model", "model", "--task", "mine.jsonl", "--output_dir", "out", "--disable_tqdm", "true", *size]
    assert train_command.main([*words, *typed, *rewards, "--max_steps", "1", "--generation_batch_size", "2"]) == 0
    metrics = json.loads((workdir / "out" / "metrics.jsonl").read_text("utf-8"))
    assert metrics["rewards/World/mean"] == 0.5 and "tools/call_frequency" in metrics
    output = capsys.readouterr().out
    assert "--tools my_world.py:add --environment my_world.py:World" in output, "the command that measures it"
    again = ["--resume_from_checkpoint", "out", "--max_steps", "2"]
    assert train_command.main(again) == 2 and "if you trust it, type --tools my_world.py:add" in capsys.readouterr().err
    assert train_command.main([*again, *typed]) == 0
    measured = ["--model", "out", "--split", "train", "--n", "1", *size]
    capsys.readouterr()
    assert evaluate.main(measured) == 2 and "type --tools my_world.py:add" in capsys.readouterr().err
    assert evaluate.main([*measured, *typed, "--output", "samples.jsonl"]) == 0
    result = json.loads(capsys.readouterr().out)
    samples = [json.loads(line) for line in (workdir / "samples.jsonl").read_text("utf-8").splitlines()]
    assert len(samples) == 2 and all([*sample["turns"][0]] == ["policy"] for sample in samples)
    for sample in samples:
        written = "".join(text for turn in sample["turns"] for text in turn.values())
        assert written.replace(END, "").replace("<|im_start|>", "") == sample["completion"].replace(END, "")
    assert result["rewards/World/mean"] == result["reward"] == 0.5 and "tools/failure_frequency" in result


def test_chat_command_shows_the_results_of_tools(workdir, monkeypatch, capsys):
    monkeypatch.setattr(grpo_lab.models, "load_policy", lambda name: make_tool_policy())
    words = ["--model", "model", "--tools", "my_world.py:add", "--prompt", "1+2", "--max_new_tokens", "200"]
    outputs = []
    for temperature in ("0", "0", "1"):
        assert chat.main([*words, "--temperature", temperature]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] and all(outputs)


GAME = '''
class Game:
    def reset(self, answer: str, **row):
        self.answer = answer
        return f" (of {answer})"

    def add(self, a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: the first
            b: the second
        """
        return f"{a}+{b} of {self.answer}"

    def get_reward(self):
        return float(self.answer)
'''


@pytest.fixture
def game(workdir, monkeypatch):
    """An environment whose `reset` needs a column, rows with this column, and a policy with scripted turns."""
    (workdir / "my_game.py").write_text(GAME, encoding="utf-8")
    rows = "".join(json.dumps({"prompt": f"add {n}", "answer": str(n)}) + "\n" for n in range(12))
    (workdir / "mine.jsonl").write_text(rows, encoding="utf-8")
    model, tokenizer = make_tool_policy()
    monkeypatch.setattr(grpo_lab.models, "load_policy", lambda name: (model, tokenizer))
    sample_scripts(monkeypatch, tokenizer, [[call("add", a=1, b=2) + END, "\x1b3" + END]])
    return ["--model", "model", "--environment", "my_game.py:Game", "--max_new_tokens", "200"]


def test_chat_plays_a_problem_of_a_task_and_says_its_reward(game, capsys):
    assert chat.main([*game, "--task", "mine.jsonl", "--problem", "3"]) == 0
    question, observation, *turns, calls, reward = capsys.readouterr().out.splitlines()
    number = question.removeprefix("you: add ")
    assert observation == f"\u00ab (of {number})\u00bb" and reward == f"reward: {float(number):g}"
    assert calls == "calls: 1"
    reply = f"\n<|im_start|>user[1+2 of {number}]<|im_end|>\n<|im_start|>assistant\n"
    assert "\n".join(turns) == f"{call('add', a=1, b=2)}\u00ab{reply}\u00bb\N{REPLACEMENT CHARACTER}3"


def test_chat_command_plays_a_typed_question_with_the_columns_of_a_problem(game, capsys):
    assert chat.main([*game, "--task", "mine.jsonl", "--prompt", "what?"]) == 0
    assert "you:" not in (output := capsys.readouterr().out) and "reward: " in output
    assert chat.main([*game, "--prompt", "what?"]) == 2
    error = capsys.readouterr().err
    assert "row without --task has the columns ['prompt'], which Game.reset cannot take: missing" in error


def test_each_question_is_an_episode_of_its_own(game, monkeypatch, capsys):
    """An environment starts again for each question, without the earlier ones; with tools alone, they are kept."""
    lines, played, sample = [], [], ToolEnvironment.sample
    monkeypatch.setattr("builtins.input", lambda prompt: lines.pop(0))
    monkeypatch.setattr(
        ToolEnvironment,
        "sample",
        lambda self, *args, **k: played.append(args[2][0]["prompt"]) or sample(self, *args, **k),
    )
    for agent in (["--environment", "my_world.py:World"], ["--tools", "my_world.py:add"]):
        lines += ["one", "two", "/quit"]
        assert chat.main(["--model", "model", "--system", "Play.", "--max_new_tokens", "200", *agent]) == 0
    begin = [{"role": "system", "content": "Play."}, {"role": "user", "content": "one"}]
    second = {"role": "user", "content": "two"}
    assert played[:3] == [begin, [begin[0], second], begin] and len(played) == 4
    assert played[3][:2] == begin and played[3][-1] == second and len(played[3]) > 4
    assert capsys.readouterr().out.count("reward: 0.5") == 2


def test_chat_refuses_a_missing_problem_or_too_little_room(game, capsys):
    assert chat.main([*game, "--task", "mine.jsonl", "--problem", "99"]) == 2
    assert "problem is 99; it must be at most" in capsys.readouterr().err
    assert chat.main([*game, "--task", "mine.jsonl", "--problem", "0"]) == 2
    assert chat.main([*game, "--problem", "2"]) == 2
    assert "problem is 2; name the task that it is one of" in capsys.readouterr().err
    assert chat.main([*game[:-1], "5", "--task", "mine.jsonl"]) == 0
    assert "(cut: no room left in 5 tokens" in capsys.readouterr().out


@pytest.mark.slow
def test_a_task_with_an_environment_of_its_own_is_played_in_it(capsys):
    words = ["--model", "tiny", "--task", "sums-calculator", "--problem", "2", "--max_new_tokens", "40"]
    assert chat.main(words) == 0
    row = find_task("sums-calculator").rows("train", 2)[1]
    assert (printed := capsys.readouterr().out).startswith(f"you: {row['prompt'][-1]['content']}\n")
    model, tokenizer = grpo_lab.models.load_policy("tiny")
    environment = make_environment(find_task("sums-calculator"))
    rollout = environment.sample(model, tokenizer, [row], SamplingParams(1, 40, top_k=1))
    turns = chat.printable(turns_as_text(rollout.turn_texts(tokenizer)[0])).removesuffix(END)
    assert END not in printed and printed.splitlines()[1] == turns
    assert printed.splitlines()[2] == f"calls: {rollout.episodes[0].num_calls}"
    (_, right, _) = reward_rollout(rollout, [row], accuracy_reward)
    assert re.fullmatch(rf"reward: [0-9.]+ \(accuracy {right.item():g}, think [0-9.]+\)", printed.splitlines()[3])
    capsys.readouterr()
    assert chat.main([*words, "--prompt", "1+2=?"]) == 0
    assert "calls: " in (printed := capsys.readouterr().out) and "reward" not in printed, "it is not the problem's"


@pytest.mark.parametrize("command_line", [["chat", "--prompt", "1+2"], ["evaluate"], ["train", "--output_dir", "out"]])
def test_a_model_without_tools_is_refused_before_it_is_loaded(command_line, workdir, monkeypatch, capsys):
    monkeypatch.setattr(grpo_lab.models, "load_policy", lambda *args, **keywords: pytest.fail("it was loaded"))
    words = ["--model", "tiny", "--tools", "my_world.py:add", *command_line[1:]]
    words += ["--task", "sums"] * (command_line[0] != "chat")
    assert {"chat": chat, "evaluate": evaluate, "train": train_command}[command_line[0]].main(words) == 2
    error = capsys.readouterr().err
    assert "the chat template of this model leaves out tool calls" in error and "--task sums-calculator" in error


def test_credit_that_the_class_cannot_give_is_refused_before_a_model_is_loaded(workdir, monkeypatch, capsys):
    monkeypatch.setattr(grpo_lab.models, "load_policy", lambda *args, **keywords: pytest.fail("it was loaded"))
    words = ["--model", "model", "--task", "sums", "--environment", "my_world.py:World", "--output_dir", "out"]
    assert train_command.main([*words, "--advantage", "state"]) == 2
    assert "advantage is 'state'; expected an environment_factory whose class has" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--tools", "my_world.py:add"], ["--environment", "my_world.py:World"]])
@pytest.mark.parametrize(
    ("command", "words"),
    [(train_command, ["--output_dir", "out"]), (train_command, ["--dry_run"]), (evaluate, []), (chat, [])],
    ids=["train", "dry run", "evaluate", "chat"],
)
def test_a_task_with_an_environment_takes_no_other(command, words, option, workdir, capsys):
    assert command.main(["--model", "tiny", "--task", "sums-calculator", *option, *words]) == 2
    assert f"{option[0]} is given for a task that has an environment of its own" in capsys.readouterr().err


def test_a_reward_that_needs_environments_is_refused_without_any(workdir, capsys):
    content = "def total(environments, **kwargs):\n    return [float(each.total) for each in environments]\n"
    (workdir / "rewards_with_environments.py").write_text(content, encoding="utf-8")
    rows = "".join(json.dumps({"prompt": f"1+{n}"}) + "\n" for n in range(4))
    (workdir / "mine.jsonl").write_text(rows, encoding="utf-8")
    words = ["--model", "model", "--task", "mine.jsonl", "--reward_funcs", "rewards_with_environments.py:total"]
    environment_options = ["--environment", "my_world.py:World"]
    size = ["--num_generations", "2", "--max_completion_length", "60"]
    small = [*size, "--generation_batch_size", "2", "--max_steps", "1", "--disable_tqdm", "true"]
    assert train_command.main([*words, *small, "--output_dir", "out"]) == 2
    assert evaluate.main([*words, *size, "--split", "train"]) == 2
    assert capsys.readouterr().err.count("missing a required argument: 'environments'") == 2
    assert train_command.main([*words, *environment_options, *small, "--output_dir", "out"]) == 0
    capsys.readouterr()
    assert evaluate.main([*words, *environment_options, *size, "--n", "1", "--split", "train"]) == 0
    assert json.loads(capsys.readouterr().out)["rewards/total/mean"] == 0


def test_rows_that_reset_cannot_take_are_refused_before_a_model_is_loaded(game, monkeypatch, capsys):
    monkeypatch.setattr(grpo_lab.models, "load_policy", lambda *args, **keywords: pytest.fail("it was loaded"))
    assert chat.main([*game, "--prompt", "what?"]) == 2
    assert "row without --task has the columns ['prompt'], which Game.reset cannot take" in capsys.readouterr().err


# The tools of the package.

SMALL = ["--num_generations", "2", "--max_completion_length", "700", "--max_tool_calling_iterations", "1"]
SMALL += ["--generation_batch_size", "2", "--disable_tqdm", "true", "--output_dir", "out"]
PROGRAM = "\n```python\nprint(2 * int(input()))\n```\n"


def make_problems(folder, calls: tuple[str, ...], **columns) -> list[str]:
    """Write rows with these columns, let the model make these calls, and return the words of a command."""
    for part in make_tool_policy(calls=calls):
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
    assert train_command.main([*words, *typed, "--logging_steps", "1"]) == 0
    lines = (tmp_path / "out" / "metrics.jsonl").read_text("utf-8").splitlines()
    metrics = [json.loads(line) for line in lines]
    assert len(metrics) == 2 and sum(line["tools/call_frequency"] for line in metrics) > 0
    assert all("rewards/code_reward/mean" in line for line in metrics)
    completions = (tmp_path / "out" / "completions.jsonl").read_text("utf-8")
    assert "42" in completions and "line 1: ZeroDivisionError: division by zero" in completions
    capsys.readouterr()
    assert train_command.main(["--resume_from_checkpoint", "out", "--max_steps", "3"]) == 0, (
        "a name needs no typing again"
    )


@pytest.mark.slow
def test_a_run_with_the_database_tool_and_a_reward_of_statements(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as connection:
        connection.execute("CREATE TABLE things (name TEXT)")
        connection.commit()
    calls = (call("query", sql="SELECT 40 + 2"), call("query", sql="DROP TABLE things"), "\n```sql\nSELECT 7\n```\n")
    words = make_problems(tmp_path, calls, sql="SELECT 7", database="shop.db")
    typed = ["--tools", "sqlite:shop.db", "--reward_funcs", "sql", "--max_steps", "1"]
    assert train_command.main([*words, *typed, "--log_completions", "true", "--logging_steps", "1"]) == 0
    metrics = json.loads((tmp_path / "out" / "metrics.jsonl").read_text("utf-8"))
    assert metrics["tools/call_frequency"] > 0 and "rewards/sql_reward/mean" in metrics
    completions = (tmp_path / "out" / "completions.jsonl").read_text("utf-8")
    assert "42" in completions and "only one SELECT is allowed" in completions
    again = ["--resume_from_checkpoint", "out", "--max_steps", "2"]
    capsys.readouterr()
    assert train_command.main(again) == 2 and "type --tools sqlite:shop.db" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "name"), [(["--tools", "python"], "run_python"), (["--reward_funcs", "code"], "code_reward")]
)
def test_without_sandbox_the_commands_refuse_before_a_model_is_loaded(words, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(python, "machine_sandbox", lambda: ("", "bubblewrap: cannot be started (FileNotFoundError)"))
    loaded = []
    monkeypatch.setattr(grpo_lab.models, "load_policy", lambda *args, **settings: loaded.append(args))
    rows = "".join(json.dumps({"prompt": f"double {n}", "tests": "assert 1"}) + "\n" for n in range(12))
    (tmp_path / "mine.jsonl").write_text(rows, encoding="utf-8")
    task = ["--model", "tiny", "--task", "mine.jsonl"]
    assert train_command.main([*task, *words, "--output_dir", "out"]) == 2
    assert f"has '{name}'" in (error := capsys.readouterr().err) and "Install bubblewrap" in error
    assert evaluate.main([*task, *words]) == 2 and "Install bubblewrap" in capsys.readouterr().err
    if "--tools" in words:
        assert chat.main(["--model", "tiny", *words, "--prompt", "1"]) == 2
        assert "Install bubblewrap" in capsys.readouterr().err
        with pytest.raises(InputError, match="tools has 'run_python'; .* Install bubblewrap"):
            ToolEnvironment([run_python])
    assert not loaded


def test_load_tools_refuses_missing_databases(workdir):
    with pytest.raises(InputError, match="sqlite is 'none.db'; there is no such file"):
        load_tools(["sqlite:none.db"])
    with pytest.raises(InputError, match="expected FILE:name, .*; or python, or sqlite:FILE"):
        load_tools(["pythons"])
