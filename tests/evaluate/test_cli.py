"""The command prints a single JSON object to stdout, and takes over the options of the run that made the model."""

import json
import shutil
import socket
import sys
from pathlib import Path

import pytest

from grpo_lab.evaluate import main, measure
from grpo_lab.rewards import accuracy_reward, reward_names
from grpo_lab.rewards.rules import think_rate
from grpo_lab.rollout.prompts import longest_prompt
from grpo_lab.tasks import addition_problems, addition_split, find_task, task_table
from grpo_lab.train import main as train_main
from tests.support.refusals import refusal_of
from tests.support.tool_policy import make_tool_policy


def test_evaluate_command_weights_rewards_writes_samples_and_warns(checkpoint_name, tmp_path, capsys):
    out = Path(shutil.copytree(checkpoint_name, tmp_path / "out"))
    run = {"task": "sums", "reward_funcs": ["number", "format"], "reward_weights": [1.0, 0.25]}
    (out / "grpo_config.json").write_text(json.dumps(run), encoding="utf-8")
    quick = ["--model", str(out), "--n", "3", "--num_generations", "2", "--max_completion_length", "3"]
    assert main([*quick, "--output", str(tmp_path / "samples.jsonl")]) == 0
    captured = capsys.readouterr()
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(samples) == 6
    assert f"6 completions written to {(tmp_path / 'samples.jsonl').as_posix()}" in captured.err
    assert "reward = 1 number + 0.25 format" in captured.err
    mean = sum(sample["reward"] for sample in samples) / 6
    assert json.loads(captured.out)["reward"] == pytest.approx(mean, abs=1e-4)
    assert main([*quick, "--reward_funcs", "accuracy"]) == 0, "the weights belong to the rewards of the run"
    captured = capsys.readouterr()
    assert "reward" not in json.loads(captured.out)
    assert "all rewards were equal within each problem, so training on them would have no gradient" in captured.err


@pytest.fixture
def evaluated_with(monkeypatch):
    """Replace `sample_and_reward`, so that nothing is sampled; return the rows and keywords that the command passes."""
    calls = []

    def record(model, tokenizer, rows, **keywords):
        calls.append((rows, keywords))

    monkeypatch.setattr(measure, "sample_and_reward", record)
    monkeypatch.setattr(
        measure, "evaluation_metrics", lambda *_, **__: {"accuracy": None, "frac_reward_zero_std": None}
    )
    monkeypatch.setattr(measure, "sample_records", lambda *_: [])
    return calls


def test_evaluate_command_prints_one_json_object_to_stdout(checkpoint_name, capsys):
    few = ["--num_generations", "2", "--max_completion_length", "4"]
    assert main(["--model", checkpoint_name, "--n", "12", "--seed", "3", *few]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert captured.out.count("\n") == 1 and "policy:" in captured.err
    assert (result["task"], result["split"], result["n"], result["num_generations"]) == ("sums", "test", 12, 2)
    assert "evaluate: 100%" in captured.err and "12/12" in captured.err
    assert all(number == round(number, 4) for number in result["accuracy_ci95"]), "at most four decimals"


def test_evaluate_command_defaults_to_held_out_sums(checkpoint_name, evaluated_with, monkeypatch):
    monkeypatch.setitem(task_table.TASKS["sums"].default_counts, "test", 7)
    for words, n, seed in ([], 7, 1), (["--n", "12", "--seed", "3"], 12, 3):
        assert main(["--model", checkpoint_name, "--system_prompt", "none", *words]) == 0
        rows, keywords = evaluated_with.pop()
        assert rows == addition_problems("test", n, seed)
        assert all(addition_split(row["operands"]) == "test" for row in rows), "held out"
        sampling = {"num_generations": 4, "max_completion_length": 64, "temperature": 1.0, "batch_size": 512}
        sampling |= {"reward_weights": None, "environment": None}
        assert keywords == sampling | {
            "disable_tqdm": False,
            "reward_funcs": [accuracy_reward, think_rate],
            "seed": seed,
        }


def test_evaluate_command_takes_rewards_and_length_from_the_task(checkpoint_name, evaluated_with, capsys):
    for arguments, right, length in [
        (["--task", "word-problems"], ["math_reward", "format_reward"], 256),
        (["--task", "word-problems-zh", "--reward_funcs", "number"], ["number_reward"], 256),
        (["--task", "chat-zh"], ["contains_reward"], 48),
        (["--task", "sums", "--reward_funcs", "format", "accuracy"], ["format_reward", "accuracy_reward"], 64),
    ]:
        assert main(["--model", checkpoint_name, *arguments]) == 0
        rows, keywords = evaluated_with.pop()
        assert reward_names(keywords["reward_funcs"]) == right and keywords["max_completion_length"] == length
        task = find_task(arguments[1])
        assert [row["answer"] for row in rows] == [row["answer"] for row in task.rows("test", None, 1)]
        captured = capsys.readouterr()
        assert ("no problem is held out" in captured.err) == (task.name == "chat-zh")
        assert '"accuracy": null' in captured.out
        assert f"there is no accuracy: {right[0]} gives no rewards, or values other than 0 to 1" in captured.err


def test_evaluate_command_takes_untyped_options_from_the_run(checkpoint_name, evaluated_with, capsys, tmp_path):
    run = {"task": "word-problems", "reward_funcs": ["number"], "system_prompt": "Be brief.", "chat_template": "none"}
    for folder in (out := Path(shutil.copytree(checkpoint_name, tmp_path / "out")), out / "checkpoint-2"):
        shutil.copytree(checkpoint_name, folder, dirs_exist_ok=True)
        (out / "grpo_config.json").write_text(json.dumps(run | {"seed": 3}), encoding="utf-8")
        for typed, names, plain in [
            ([], ["number_reward"], True),
            (["--task", "word-problems", "--reward_funcs", "math"], ["math_reward"], True),
            (["--task", "sums"], ["accuracy_reward", "think_rate"], False),
        ]:
            assert main(["--model", str(folder), "--n", "2", *typed]) == 0
            rows, keywords = evaluated_with.pop()
            assert reward_names(keywords["reward_funcs"]) == names and isinstance(rows[0]["prompt"], str) == plain
            assert not plain or rows[0]["prompt"].startswith("Be brief.")
            sources = [line for line in capsys.readouterr().err.splitlines() if line.startswith("as in the run of")]
            assert ["--chat_template none" in line and "'Be brief.'" in line for line in sources] == [True] * plain


def test_evaluate_command_reads_user_data_as_the_run_did(checkpoint_name, evaluated_with, capsys, tmp_path):
    out, school = Path(shutil.copytree(checkpoint_name, tmp_path / "out")), tmp_path / "school.csv"
    lines = "".join(f"{n} + 1 = ?,{n + 1},{n % 3}\n" for n in range(60))
    school.write_text("question,solution,grade\n" + lines, encoding="utf-8")
    run = {"task": str(school), "prompt_column": "question", "answer_column": "solution"}
    (out / "grpo_config.json").write_text(json.dumps(run), encoding="utf-8")
    for typed, start in [([], ""), (["--prompt_template", "Grade {grade}: {question}"], "Grade ")]:
        assert main(["--model", str(out), "--n", "2", *typed]) == 0
        rows, _ = evaluated_with.pop()
        assert [row["answer"] for row in rows] == [row["solution"] for row in rows]
        for row in rows:
            grade = f"Grade {row['grade']}: " if start else ""
            assert row["prompt"][-1]["content"] == f"{grade}{row['question']}"
    assert "--answer_column solution" in capsys.readouterr().err


EVIL = "open('ran', 'w').close()\ndef reward(completions, **_):\n    return [1.0] * len(completions)\n"
CALLS = [
    *((main, ["--model", model]) for model in (".", "checkpoint-1")),
    *((train_main, words) for words in (["--config", ".", "--output_dir", "out"], ["--resume_from_checkpoint", "."])),
]


def test_evaluate_command_runs_no_code_of_a_downloaded_folder_and_sends_nothing(
    checkpoint_name, evaluated_with, tmp_path, monkeypatch
):
    """In `cd downloaded; evaluate --model .`, grpo_config.json could name code that somebody else wrote."""
    folder = Path(shutil.copytree(checkpoint_name, tmp_path / "downloaded"))
    (folder / "evil.py").write_text(EVIL, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("something was sent"))
    shutil.copytree(checkpoint_name, "checkpoint-1")
    for reward in ("evil.py:reward", "evil:reward"):
        (folder / "grpo_config.json").write_text(json.dumps({"model": "tiny", "reward_funcs": [reward]}), "utf-8")
        for command, words in CALLS:
            assert f"if you trust it, type --reward_funcs {reward}" in refusal_of(command, *words)
        assert not (folder / "ran").exists() and not (folder / "out").exists() and "evil" not in sys.modules
    for option, value, calls in (("task", "them/sums", CALLS), ("loss_type", "evil.py:reward", CALLS[2:])):
        (folder / "grpo_config.json").write_text(json.dumps({"model": "tiny", option: value}), "utf-8")
        for command, words in calls:
            assert f"if you trust it, type --{option} {value}" in refusal_of(command, *words)
        assert not (folder / "ran").exists() and "evil" not in sys.modules
    (folder / "grpo_config.json").write_text(json.dumps({"model": "tiny", "reward_funcs": ["evil:reward"]}), "utf-8")
    assert main(["--model", ".", "--reward_funcs", "evil:reward"]) == 0 and (folder / "ran").exists()
    sys.modules.pop("evil")


TOOLS = '''
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b
'''


@pytest.fixture
def tool_run(tmp_path, monkeypatch) -> Path:
    """Return the folder of a run whose chat template has tools, and change to the folder of its tools and problems."""
    for part in make_tool_policy():
        part.save_pretrained(tmp_path / "out")
    (tmp_path / "tools_to_evaluate.py").write_text(TOOLS, encoding="utf-8")
    rows = "".join(json.dumps({"prompt": f"1+{n}", "answer": str(n + 1)}) + "\n" for n in range(12))
    (tmp_path / "mine.jsonl").write_text(rows, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "out"


def save_run(folder: Path, **settings) -> None:
    (folder / "grpo_config.json").write_text(json.dumps(settings), encoding="utf-8")


def test_evaluate_command_takes_the_limits_of_calls_from_the_run_unless_typed(tool_run, evaluated_with, capsys):
    tools = ["tools_to_evaluate.py:add"]
    limits = {"max_tool_calling_iterations": 2, "tool_timeout": 0.5}
    save_run(tool_run, task="mine.jsonl", tools=tools, **limits)
    words = ["--model", "out", "--n", "2", "--max_completion_length", "60", "--tools", *tools]
    for typed, expected in [
        ([], (2, 0.5)),
        (["--task", "mine.jsonl"], (2, 0.5)),
        (["--max_tool_calling_iterations", "3"], (3, 0.5)),
        (["--tool_timeout", "7"], (2, 7.0)),
        (["--task", "sums"], (None, 30.0)),
    ]:
        assert main([*words, *typed]) == 0
        environment = evaluated_with.pop()[1]["environment"]
        assert (environment.max_tool_calling_iterations, environment.tool_timeout) == expected
        reported = "--max_tool_calling_iterations 2" in capsys.readouterr().err
        assert reported == (expected[0] == 2)


def test_the_limit_of_turns_holds_in_the_environment_of_a_task(checkpoint_name, evaluated_with, tmp_path):
    out = Path(shutil.copytree(checkpoint_name, tmp_path / "out"))
    save_run(out, task="sums-calculator", max_tool_calling_iterations=2)
    assert main(["--model", str(out), "--n", "2", "--max_completion_length", "9"]) == 0
    assert evaluated_with.pop()[1]["environment"].max_turns == 3
    save_run(out, task="sums-calculator", tool_timeout=30.0)  # the default of an earlier version
    assert main(["--model", str(out), "--n", "2", "--max_completion_length", "9"]) == 0


def test_a_run_of_a_script_with_tools_is_evaluated_without_them_and_their_limits(
    checkpoint_name, evaluated_with, tmp_path
):
    out = Path(shutil.copytree(checkpoint_name, tmp_path / "out"))
    save_run(out, max_tool_calling_iterations=2)
    assert main(["--model", str(out), "--n", "2"]) == 0
    assert evaluated_with.pop()[1]["environment"] is None
    words = ["--model", str(out), "--n", "2", "--max_tool_calling_iterations", "2"]
    assert "max_tool_calling_iterations is 2; leave it out: there are no tools" in refusal_of(main, *words)
    assert "--tool_timeout is 0.0; it must lie in (0, inf)" in refusal_of(
        main, "--model", str(out), "--tool_timeout", "0"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "sums-calculator", "max_tool_calling_iterations": "two"}, "is 'two'; expected int or None"),
        ({"task": "sums-calculator", "max_tool_calling_iterations": 0}, "max_tool_calling_iterations is 0; it must"),
        ({"task": ["sums-calculator"], "max_tool_calling_iterations": 2}, "if you trust it, type --task"),
    ],
)
def test_evaluate_command_refuses_impossible_settings_in_the_file_of_a_run(
    settings, message, checkpoint_name, tmp_path, capsys
):
    out = Path(shutil.copytree(checkpoint_name, tmp_path / "out"))
    save_run(out, **settings)
    assert main(["--model", str(out), "--n", "2"]) == 2
    assert message in capsys.readouterr().err


def test_a_prompt_that_is_too_long_only_with_its_tools_is_refused_before_loading(tool_run, monkeypatch, capsys):
    monkeypatch.setattr(measure, "load_policy", lambda *_, **__: pytest.fail("the model was loaded"))
    model, tokenizer = make_tool_policy()
    rows = [{"prompt": [{"role": "user", "content": "1+10"}]}]
    length = model.config.max_position_embeddings - longest_prompt(tokenizer, rows)
    words = ["--model", "out", "--task", "mine.jsonl", "--tools", "tools_to_evaluate.py:add"]
    assert main([*words, "--max_completion_length", str(length)]) == 2
    assert "error: task row 0: prompt has " in capsys.readouterr().err
