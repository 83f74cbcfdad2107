"""Tests of docs/own-task.md: its commands run with its files and the tiny model, and its numbers are recorded ones."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from grpo_lab.__main__ import main
from tests.support.small_policy import save_policy

PAGE = Path(__file__).parents[2] / "docs" / "own-task.md"
SHORT = ["--max_steps", "1", "--num_generations", "2", "--generation_batch_size", "2", "--disable_tqdm", "true"]
SHORT += ["--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "1", "--max_completion_length", "3"]
FEW = ["--n", "2", "--max_completion_length", "3", "--num_generations", "2"]
MORE = {"train": SHORT, "evaluate": FEW, "chat": ["--max_new_tokens", "8"]}


@pytest.mark.slow
def test_own_task_page_commands_run_and_print_what_it_says(tmp_path, monkeypatch, capsys):
    pytest.importorskip("reasoning_gym")
    monkeypatch.chdir(tmp_path)
    for module in ("my_rewards", "my_loss"):
        monkeypatch.delitem(sys.modules, module, raising=False)  # another test may have loaded it
    text = PAGE.read_text(encoding="utf-8")
    for name, content in re.findall(r"`([\w.]+\.(?:jsonl|csv|py))`[^`]*```\w+\n(.*?)```", text, re.DOTALL):
        Path(name).write_text(content, encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "mine.jsonl", "mine.test.jsonl", "my_loss.py", "my_rewards.py", "school.csv",
    ]  # fmt: skip
    for folder in ("base", "chat"):
        save_policy(tmp_path / folder)
    (tmp_path / "base" / "chat_template.jinja").unlink()
    commands = re.findall("^grpo-lab (.*)$", text, re.MULTILINE)
    for command, *words in map(shlex.split, commands):
        if "HuggingFaceH4/MATH-500" in words:
            continue  # tests do not use the hub; test_records tests a local data set instead
        words = ["chat" if word in ("tiny", "smollm2") else word for word in words]
        assert main([command, *words, *MORE.get(command, [])]) == 0, (command, words)
    for module in ("my_rewards", "my_loss"):
        sys.modules.pop(module)  # so that another test can load a module with this name
    output = capsys.readouterr().out
    assert '"rewards/gym_reward/mean"' in output
    assert len(commands) == 13
    files = {path.name for path in (tmp_path / "outputs" / "mine").iterdir()}
    needed = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert needed | {"chat_template.jinja"} <= files, "what a hub and the GGUF converter read"


def test_own_task_page_figures_are_those_of_the_record():
    runs = json.loads((PAGE.parents[1] / "notebooks" / "runs" / "gym.json").read_text(encoding="utf-8"))["run"]
    page = PAGE.read_text(encoding="utf-8")
    for run in runs.values():
        start, end = run["before"], run["after"]
        low, high = (f"{bound:.2g}" for bound in end["accuracy_ci95"])
        reward = [f"{measured['rewards/gym_reward/mean']:.3f}" for measured in (start, end)]
        assert f"{end['accuracy']:.2g} [{low}, {high}]" in page
        assert ", ".join(reward) in page
        assert f"{start['mean_length']:.1f}, {end['mean_length']:.1f}" in page
        assert f"{1 - start['frac_reward_zero_std']:.0%}" in page
