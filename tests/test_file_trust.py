"""Tests of the rule which code a file of settings may name."""

from pathlib import Path

import pytest

from grpo_lab.base.checks import InputError
from grpo_lab.file_trust import check_no_code_named
from grpo_lab.rewards.named import REWARD_FUNCTIONS
from grpo_lab.tasks import TASKS


def test_settings_file_may_name_only_code_of_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").touch()
    Path("mine.csv").touch()
    Path("school").mkdir()
    generator = "gym:chain_sum:max_terms=2,min_terms=1"
    for task in [
        None,
        *TASKS,
        generator,
        "mine.jsonl",
        str(tmp_path / "mine.jsonl"),
        "mine.csv",
        "school",
        "gsm8k:school",
    ]:
        for rewards in (None, [*REWARD_FUNCTIONS], ["accuracy_reward"]):
            check_no_code_named({"task": task, "reward_funcs": rewards, "system_prompt": "a:b"}, Path("run.json"))
    monkeypatch.setattr(Path, "exists", lambda self: self.name != "none.jsonl")  # the network shares seem to exist
    shares = [r"\\host\a.jsonl", "//host/a.jsonl", r"\??\UNC\host\a.jsonl", r"/\host/a.jsonl", r"gsm8k:\\host\a"]
    for task in ["none.jsonl", "mine.exe", "them/sums", "gym:countdown:operators=['a(1)']", 5, ["sums"], *shares]:
        with pytest.raises(InputError, match="task is .* in 'run.json'; from a file only .*, type --task ") as caught:
            check_no_code_named({"task": task}, Path("run.json"))
        assert caught.value.argument == "task"
    for rewards in (["accuracy", "evil:pay"], "evil:pay", [5], {"evil:pay": 1}):
        with pytest.raises(InputError, match="reward_funcs is .*if you trust it, type --reward_funcs "):
            check_no_code_named({"reward_funcs": rewards}, Path("run.json"))
