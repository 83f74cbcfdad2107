"""Tests of the checks of a run before its model is loaded: a dry run reports exactly what a run refuses."""

import pytest

from grpo_lab import models
from grpo_lab import train as train_command
from grpo_lab.base.checks import InputError
from grpo_lab.tasks import table
from grpo_lab.train import checks
from tests.support.refused import refused

CHECKS = (
    "check_engine",
    "check_output_folder",
    "check_tracker_packages",
    "check_rewards",
    "check_environment",
    "check_lengths",
    "check_adapter",
)


class LoadCalled(Exception):
    """An exception that is raised in place of loading the model."""


@pytest.fixture
def arguments(base, tmp_path, monkeypatch) -> list[str]:
    """Return the arguments of a run with LoRA, whose model must not be loaded."""

    def load(*_, **__):
        raise LoadCalled

    monkeypatch.setitem(table.TASKS["sums"].default_counts, "train", 30)
    monkeypatch.setattr(models, "load_policy", load)
    return ["--model", base, "--output_dir", str(tmp_path / "out"), "--use_peft", "--num_generations", "2"]


def plan_of(arguments):
    return train_command.make_plan(train_command.read_options(arguments))


def test_the_checks_of_a_run_are_those_of_this_file(arguments):
    assert sorted(check.__name__ for check in checks.checks_of(plan_of(arguments)).values()) == sorted(CHECKS)
    without_lora = [argument for argument in arguments if argument != "--use_peft"]
    assert checks.check_adapter not in checks.checks_of(plan_of(without_lora)).values()


@pytest.mark.parametrize("name", CHECKS)
def test_a_run_and_a_dry_run_make_every_check(name, arguments, monkeypatch, capsys):
    def fail(plan):
        raise InputError(name, 7, "planted")

    monkeypatch.setattr(checks, name, fail)
    assert refused(train_command.main, *arguments).endswith(f"error: {name} is 7; planted")
    assert train_command.main([*arguments, "--dry_run"]) == 1
    problems = [line for line in capsys.readouterr().out.splitlines() if line.startswith("problem: ")]
    assert problems == [f"problem: {name} is 7; planted"]


def test_a_run_makes_no_check_that_a_dry_run_does_not_make(arguments, monkeypatch):
    """Without the common checks, a run in which each of them fails begins to load its model."""
    monkeypatch.setattr(checks, "run_checks", lambda plan, problems=None: [])

    def fail(plan):
        pytest.fail("a check was called outside of run_checks")

    for name in CHECKS:
        monkeypatch.setattr(checks, name, fail)
    faults = ["--max_completion_length", "9999", "--lora_target_modules", "foo_proj"]
    with pytest.raises(LoadCalled):
        train_command.main.__wrapped__([*arguments, *faults])


def test_all_problems_are_collected_and_the_first_one_is_raised_without_a_list(arguments, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/metrics.jsonl").write_text("mine", encoding="utf-8")
    plan = plan_of([*arguments, "--max_completion_length", "9999", "--lora_target_modules", "foo_proj"])
    problems: list[str] = []
    assert checks.run_checks(plan, problems) == list(checks.checks_of(plan))
    assert ["output_dir" in problems[0], "dataset row 0" in problems[1], "foo_proj" in problems[2]] == [True] * 3
    assert len(problems) == 3
    with pytest.raises(FileExistsError, match="output_dir"):
        checks.run_checks(plan)
