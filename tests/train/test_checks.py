"""Tests of the checks of a run before its model is loaded: a dry run reports exactly what a run refuses."""

import sys

import pytest

from grpo_lab import train as train_command
from grpo_lab.base.checks import InputError
from grpo_lab.rollout.environments import tools as tools_module
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.rollout.prompts import longest_prompt, prompt_token_ids
from grpo_lab.tasks import task_table
from grpo_lab.train import checks, engines
from grpo_lab.train import plan as plan_module
from grpo_lab.train.engines import OurEngine
from grpo_lab.train.plan import make_plan
from grpo_lab.train.trl.engine import TrlEngine
from grpo_lab.trainer import Run
from grpo_lab.trainer.run import inputs as run_inputs
from grpo_lab.trainer.run.inputs import RunInputs
from tests.support.refusals import refusal_of
from tests.support.small_policy import ROWS, make_config, make_policy
from tests.support.tool_policy import make_tool_policy

# The object that has the function of each check, and the name of the function, in the order of the checks.
INPUT_CHECKS = [
    (run_inputs, "check_dataset"),
    (run_inputs, "check_rewards"),
    (run_inputs, "check_evaluation"),
    (run_inputs, "check_turn_advantage"),
    (run_inputs, "check_prompts_of_run"),
]
CHECKS = [
    (OurEngine, "check"),
    (checks, "check_output_folder"),
    (checks, "check_tracker_packages"),
    *INPUT_CHECKS,
    (checks, "check_adapter"),
]


class LoadCalled(Exception):
    """An exception that is raised in place of loading the model."""


@pytest.fixture
def arguments(checkpoint_name, tmp_path, monkeypatch) -> list[str]:
    """Return the arguments of a run with LoRA, whose model must not be loaded."""

    def load(*_, **__):
        raise LoadCalled

    monkeypatch.setitem(task_table.TASKS["sums"].default_counts, "train", 30)
    monkeypatch.setattr(engines, "load_policy", load)
    return ["--model", checkpoint_name, "--output_dir", str(tmp_path / "out"), "--use_peft", "--num_generations", "2"]


def plan_of(arguments):
    return make_plan(train_command.read_options(arguments))


def called_checks(plan, monkeypatch) -> list[str]:
    """Return the names of the functions that the checks of a plan call."""
    called: list[str] = []
    with monkeypatch.context() as patches:
        for owner, name in CHECKS:
            patches.setattr(owner, name, lambda *_, name=name: called.append(name))
        for check in checks.checks_of_plan(plan):
            check.function()
    return called


def test_checks_of_a_run_are_those_listed_in_this_test_file(arguments, monkeypatch):
    plan = plan_of(arguments)
    assert called_checks(plan, monkeypatch) == [name for _, name in CHECKS]
    assert len(checks.checks_of_plan(plan)) == len(CHECKS)
    without_lora = plan_of([argument for argument in arguments if argument != "--use_peft"])
    assert called_checks(without_lora, monkeypatch) == [name for _, name in CHECKS[:-1]]


@pytest.mark.parametrize(("owner", "name"), CHECKS)
def test_a_run_and_a_dry_run_make_every_check(owner, name, arguments, monkeypatch, capsys):
    def fail(*_):
        raise InputError(name, 7, "planted")

    monkeypatch.setattr(owner, name, fail)
    assert refusal_of(train_command.main, *arguments).endswith(f"error: {name} is 7; planted")
    assert train_command.main([*arguments, "--dry_run"]) == 1
    problems = [line for line in capsys.readouterr().out.splitlines() if line.startswith("problem: ")]
    assert problems == [f"problem: {name} is 7; planted"]


def test_a_dry_run_opens_the_configuration_and_the_tokenizer_once(arguments, monkeypatch, capsys):
    """The plan that is fitted to memory is another one, and shares them."""
    opened, really_load = [], plan_module.load_config_and_tokenizer

    def spy(*arguments):
        opened.append(arguments)
        return really_load(*arguments)

    monkeypatch.setattr(plan_module, "load_config_and_tokenizer", spy)
    monkeypatch.setattr("grpo_lab.config.defaults.TINY_BELOW", 1)  # the settings of a tiny model are not fitted
    plain = [*(argument for argument in arguments if argument != "--use_peft"), "--max_completion_length", "60"]
    assert train_command.main([*plain, "--dry_run"]) == 0, capsys.readouterr().out
    assert len(opened) == 1


def test_a_run_makes_no_check_that_a_dry_run_does_not_make(arguments, monkeypatch):
    """Without the common checks, a run in which each of them fails begins to load its model."""
    monkeypatch.setattr(checks, "checks_of_plan", lambda plan: [])

    def fail(*_):
        pytest.fail("a check was called outside of checks_of_plan")

    for owner, name in CHECKS:
        monkeypatch.setattr(owner, name, fail)
    faults = ["--max_completion_length", "9999", "--lora_target_modules", "foo_proj"]
    with pytest.raises(LoadCalled):
        train_command.main.__wrapped__([*arguments, *faults])


def test_a_dry_run_reports_all_problems_and_a_run_the_first(arguments, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/metrics.jsonl").write_text("mine", encoding="utf-8")
    faults = ["--max_completion_length", "9999", "--lora_target_modules", "foo_proj"]
    plan = plan_of([*arguments, *faults])
    assert checks.report_dry_run(plan) == 1
    output = capsys.readouterr().out
    problems = [line for line in output.splitlines() if line.startswith("problem: ")]
    assert ["output_dir" in problems[0], "dataset row 0" in problems[1], "foo_proj" in problems[2]] == [True] * 3
    assert len(problems) == 3
    assert f"checked: {'; '.join(check.description for check in checks.checks_of_plan(plan))}\n" in output
    with pytest.raises(FileExistsError, match="output_dir"):
        train_command.main.__wrapped__([*arguments, *faults])


def test_a_dry_run_plans_no_memory_for_another_engine(tmp_path, capsys):
    pytest.importorskip("trl")
    words = ["--model", "tiny", "--output_dir", str(tmp_path / "out"), "--dry_run"]
    assert train_command.main([*words, "--engine", "trl"]) == 0
    output = capsys.readouterr().out
    assert "memory: not planned; the plan is for our own loop, not for --engine trl\n" in output
    assert "peak: " not in output
    assert train_command.main(words) == 0
    assert "peak: " in capsys.readouterr().out


@pytest.mark.parametrize(("owner", "name"), INPUT_CHECKS)
def test_a_run_of_a_script_makes_every_check_of_its_inputs_and_that_of_a_command_the_others(owner, name, monkeypatch):
    def fail(*_):
        raise InputError(name, 7, "planted")

    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(InputError, match=f"^{name} is 7; planted"):
        Run(*make_policy(), ROWS, None, make_config())
    Run(*make_policy(), ROWS, None, make_config(), inputs_checked=True)


@pytest.mark.parametrize("name", ["check_types", "ensure_checked", "check_savable"])
def test_a_check_of_the_model_is_made_by_a_script_and_by_a_command_after_loading(name, monkeypatch, tmp_path):
    def fail(*_):
        raise InputError(name, 7, "planted")

    arguments = *make_policy(), ROWS, None, make_config(output_dir=str(tmp_path / "out"))
    inputs = RunInputs(*arguments)
    monkeypatch.setattr(run_inputs, name, fail)
    inputs.check_without_weights()
    for inputs_checked in (False, True):
        with pytest.raises(InputError, match=f"^{name} is 7; planted"):
            Run(*arguments, inputs_checked=inputs_checked)


class TrainerReached(Exception):
    """An exception that is raised in place of making TRL's trainer."""


@pytest.mark.parametrize("name", ["check_settings", "check_environment", *(name for _, name in INPUT_CHECKS)])
def test_a_script_on_trl_makes_every_check_and_goes_the_way_of_the_command(name, monkeypatch):
    """The engine does not make these checks again: a command has made them before it loaded the model."""
    trl_run = pytest.importorskip("grpo_lab.train.trl.run")

    def fail(*_, **__):
        raise InputError(name, 7, "planted")

    def reach(*_):
        raise TrainerReached

    monkeypatch.setattr(trl_run, "make_trainer", reach)
    texts = [row for row in ROWS if isinstance(row["prompt"], str)]  # TRL does not mix texts and messages
    arguments = *make_policy(), texts, None, make_config()
    with pytest.raises(TrainerReached):
        trl_run.train(*arguments)
    monkeypatch.setattr(run_inputs if hasattr(run_inputs, name) else trl_run, name, fail)
    with pytest.raises(InputError, match=f"^{name} is 7; planted"):
        trl_run.train(*arguments)
    with pytest.raises(TrainerReached):
        TrlEngine().run(RunInputs(*arguments))


@pytest.mark.parametrize("wrong", [["--temperature", "-1", "--epsilon", "2"], ["--save_steps", "-1", "--top_p", "7"]])
def test_all_settings_out_of_their_range_are_named_at_once(wrong, arguments, capsys):
    first, _, second, _ = wrong
    line = refusal_of(train_command.main, *arguments, *wrong)
    assert f"error: {first} is " in line
    assert f". And: {second.removeprefix('--')} is " in line
    assert train_command.main([*arguments, *wrong, "--dry_run"]) == 2
    *problems, last = capsys.readouterr().err.splitlines()
    assert [problem.split(" is ")[0] for problem in problems] == [f"problem: {first}", f"problem: {second}"]
    assert last.startswith("dry run: nothing else was checked")


def test_a_command_examines_each_prompt_of_its_data_once(tool_arguments, monkeypatch):
    """The checks before the weights are loaded render the prompts; the run does not render them again."""
    examined, really_check = [], run_inputs.check_prompts

    def spy(*arguments):
        examined.append(arguments[-1])
        really_check(*arguments)

    monkeypatch.setattr(run_inputs, "check_prompts", spy)
    assert train_command.main([*tool_arguments, "--max_completion_length", "30"]) == 0
    assert examined == ["dataset"]


# --- tools and environments -------------------------------------------------------------------------------------------

TOOLS = '''
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b

MADE = []

class World:
    """An environment whose instances are all in MADE."""

    def __init__(self):
        MADE.append(self)

    def reset(self, **row):
        return ""

    def look(self) -> str:
        """Look around."""
        return "nothing"

    def get_reward(self):
        return 1.0
'''


@pytest.fixture
def tool_arguments(tmp_path, monkeypatch) -> list[str]:
    """Return the arguments of a run whose chat template has tools; the code of tools is in tools_of_a_run.py."""
    for part in make_tool_policy():
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "tools_of_a_run.py").write_text(TOOLS, encoding="utf-8")
    rows = "".join(f'{{"prompt": "1+{n}", "answer": "{n + 1}"}}\n' for n in range(8))
    (tmp_path / "mine.jsonl").write_text(rows, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    size = ["--num_generations", "2", "--generation_batch_size", "2", "--max_steps", "1", "--disable_tqdm", "true"]
    return ["--model", "model", "--task", "mine.jsonl", "--output_dir", "out", *size]


def test_a_dry_run_shows_and_counts_the_tools_in_the_prompt(tool_arguments, capsys):
    words = [*tool_arguments, "--max_completion_length", "60"]
    assert train_command.main([*words, "--dry_run", "--tools", "tools_of_a_run.py:add"]) == 0
    output = capsys.readouterr().out
    plan = plan_of([*words, "--tools", "tools_of_a_run.py:add"])
    tokenizer = plan.inputs.tokenizer
    chat = plan.inputs.dataset[0]["prompt"]
    text = tokenizer.apply_chat_template(
        chat, plan.inputs.environment.schemas, add_generation_prompt=True, tokenize=False
    )
    tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert "<|im_start|>system add<|im_end|>" in text
    assert f"the first prompt as the model sees it, {tokens} tokens:\n  <|im_start|>system add<|im_end|>\n" in output
    prompts = (
        len(prompt_token_ids(tokenizer, row["prompt"], tools=plan.inputs.environment.schemas))
        for row in plan.inputs.dataset
    )
    assert f" x ({max(prompts)} prompt + 60 response) tokens" in output
    assert "room for each prompt and its tools, and the chat template has them" in output


def test_the_tokens_of_a_dry_run_are_those_of_the_first_rollout(tool_arguments, capsys, monkeypatch):
    lengths, encode = [], tools_module.encode_prompts

    def encode_and_count(*arguments, **keywords):
        prompts = encode(*arguments, **keywords)
        lengths.append(prompts.ids.shape[1])
        return prompts

    monkeypatch.setattr(tools_module, "encode_prompts", encode_and_count)
    words = [*tool_arguments, "--max_completion_length", "30", "--tools", "tools_of_a_run.py:add"]
    assert train_command.main([*words, "--dry_run"]) == 0
    output = capsys.readouterr().out
    assert lengths == []
    assert train_command.main(words) == 0
    assert f" x ({lengths[0]} prompt + 30 response) tokens" in output


def test_a_prompt_that_is_too_long_only_with_its_tools_is_refused(tool_arguments, capsys, monkeypatch):
    plan = plan_of([*tool_arguments, "--tools", "tools_of_a_run.py:add"])
    model_config, tokenizer = plan.inputs.model.config, plan.inputs.tokenizer
    without_tools = longest_prompt(tokenizer, plan.inputs.dataset)
    assert longest_prompt(tokenizer, plan.inputs.dataset, plan.inputs.environment.schemas) > without_tools
    length = str(model_config.max_position_embeddings - without_tools)
    words = [*tool_arguments, "--max_completion_length", length, "--dry_run"]
    assert train_command.main(words) == 0
    assert "dry run: no problems found" in capsys.readouterr().out
    assert train_command.main([*words, "--tools", "tools_of_a_run.py:add"]) == 1
    assert "problem: dataset row 0: prompt has " in capsys.readouterr().out
    monkeypatch.setattr(engines, "load_policy", lambda *_, **__: pytest.fail("the model was loaded"))
    assert train_command.main([*words[:-1], "--tools", "tools_of_a_run.py:add"]) == 2
    assert "error: dataset row 0: prompt has " in capsys.readouterr().err


def test_a_run_makes_its_environment_once(tool_arguments, monkeypatch):
    """The plan makes it: an instance for the checks, and one more for the second episode of the batch."""
    words = [*tool_arguments, "--max_completion_length", "30", "--environment", "tools_of_a_run.py:World"]
    environments, make = [], ToolEnvironment.__init__

    def count(self, *arguments, **keywords):
        environments.append(self)
        make(self, *arguments, **keywords)

    monkeypatch.setattr(ToolEnvironment, "__init__", count)
    plan = plan_of(words)
    instances = sys.modules[plan.inputs.environment.environment_class.__module__].MADE
    assert len(instances) == 1 and environments == [plan.inputs.environment]
    for check in checks.checks_of_plan(plan):
        check.function()
    assert len(instances) == 1
    instances.clear()
    environments.clear()
    assert train_command.main(words) == 0
    assert len(instances) == 2 and len(environments) == 1


def test_a_dry_run_says_that_reset_may_append_to_the_prompt(tool_arguments, capsys):
    words = [*tool_arguments, "--max_completion_length", "30", "--environment", "tools_of_a_run.py:World"]
    assert train_command.main([*words, "--dry_run"]) == 0
    output = capsys.readouterr().out
    assert "the first prompt as the model sees it, to which reset may append, " in output
    assert "\n  <|im_start|>system look<|im_end|>\n" in output


def test_the_plan_has_the_limits_of_the_run_and_the_environment_of_a_task(tool_arguments):
    limits = ["--max_tool_calling_iterations", "2", "--tool_timeout", "0.5"]
    environment = plan_of([*tool_arguments, "--tools", "tools_of_a_run.py:add", *limits]).inputs.environment
    assert (environment.max_tool_calling_iterations, environment.tool_timeout) == (2, 0.5)
    assert plan_of(tool_arguments).inputs.environment is None
    calculator = ["--model", "model", "--task", "sums-calculator", "--output_dir", "out"]
    assert plan_of([*calculator, *limits[:2]]).inputs.environment.max_turns == 3


def test_a_dry_run_refuses_an_environment_that_trl_lacks(tool_arguments, capsys):
    pytest.importorskip("trl")
    words = [*tool_arguments, "--task", "sums-calculator", "--engine", "trl", "--max_completion_length", "30"]
    assert train_command.main([*words, "--dry_run"]) == 1
    assert "problem: --engine is trl, which has no environment that replies within a completion" in (
        capsys.readouterr().out
    )
