"""Tests of the training command: options of all settings, errors for wrong options, resuming, and files of a run."""

import itertools
import json
import math
import shutil
import sys
from dataclasses import replace

import pytest
import torch
from accelerate import tracking
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_lab import evaluate
from grpo_lab import train as train_command
from grpo_lab.base import Stopped
from grpo_lab.base.option import union_members
from grpo_lab.config import SETTINGS, GRPOConfig
from grpo_lab.rewards import accuracy_reward
from grpo_lab.rewards.rules import think_rate
from grpo_lab.task_spec import DEFAULT_SYSTEM_PROMPT, make_task_spec
from grpo_lab.tasks import addition_problems, find_task, task_table
from grpo_lab.tasks.data_options import DATA_OPTION_NAMES
from grpo_lab.tasks.task_table import NUM_TRAINING_SUMS
from grpo_lab.teaching.sums_run import SUMS_REWARDS, SUMS_WEIGHTS
from grpo_lab.train import engines
from grpo_lab.train.engines import OurEngine
from grpo_lab.train.options import RunOptions
from grpo_lab.train.plan import MAX_EVAL_PROBLEMS, make_config
from tests.support.options_config import config_of_options
from tests.support.refusals import refusal_of
from tests.support.resuming import metrics_in
from tests.support.small_policy import make_policy, same_weights, weights


def non_default_value(setting):
    """Return a value of the setting's type that is not its default."""
    kind = next(kind for kind in union_members(setting.type) if kind is not type(None))
    if choices := setting.choices:
        return next(choice for choice in choices if choice != setting.default)
    if kind == list[float]:
        return [0.5, -2.0]
    number = setting.default or 0
    return {bool: not number, int: number + 3, float: number + 0.25, str: "another"}[kind]


NON_DEFAULT_VALUES = {setting.name: non_default_value(setting) for setting in SETTINGS.values()} | {"output_dir": "out"}
SAVED_DEFAULTS = {
    "model": "tiny",
    "task": "sums",
    "chat_template": "model",
    "reward_funcs": None,
    "system_prompt": DEFAULT_SYSTEM_PROMPT,
} | dict.fromkeys(DATA_OPTION_NAMES)
SHORT_RUN = [
    "--num_generations", "4", "--generation_batch_size", "8", "--max_completion_length", "4", "--max_steps", "2",
    "--disable_tqdm", "true", "--save_steps", "1",
]  # fmt: skip
REWARD = """
def length(completions, **kwargs):
    return [float(len(completion[0]["content"])) for completion in completions]
def needs_price(completions, price):
    return [0.0] * len(completions)
def has_a_setting(completions, answer="42", **kwargs):
    return [0.0] * len(completions)
async def logs(completions, log_metric, log_extra, trainer_state, **kwargs):
    log_metric("begun_at", trainer_state.global_step)
    log_extra("size", [len(completion[0]["content"]) for completion in completions])
    return [0.0] * len(completions)
"""


def parse(*arguments) -> RunOptions:
    return train_command.read_options(["--output_dir", "out", *arguments])


def as_arguments(name, value):
    return [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]


def config_of(*arguments, parameters=1000, device_type="cpu") -> GRPOConfig:
    return config_of_options(parse(*arguments), parameters, device_type)


@pytest.fixture(autouse=True)
def few_problems(monkeypatch):
    monkeypatch.setitem(task_table.TASKS["sums"].default_counts, "train", 30)


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """Change to a folder with a task file and a reward function that gives a random model different rewards."""
    (tmp_path / "my_rewards.py").write_text(REWARD, encoding="utf-8")
    rows = [{"prompt": f"{n}+1=?", "answer": str(n + 1), "level": n % 3} for n in range(60)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)  # another test may have loaded it
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_rewards", None)


def test_every_setting_is_an_option():
    for name, value in NON_DEFAULT_VALUES.items():
        parsed = parse(*as_arguments(name, value))
        assert parsed.typed == {"output_dir": "out", name: value} and type(parsed.typed[name]) is type(value)
        assert parsed.settings == parsed.typed and parsed.saved == SAVED_DEFAULTS
        assert getattr(GRPOConfig(), name) != value, "the test needs a value that is not the default"
    for name in ("epsilon_high", "delta", "ref_model_sync_steps", "ref_model_device"):
        assert parse(f"--{name}", "None").settings[name] is None
    for name in ("num_train_epochs", "prompt_column", "environment"):
        assert parse(f"--{name}", "none") == parse(), "an option that is no setting counts as left out"


def test_train_command_loads_and_trains_in_the_typed_precision(checkpoint_name, tmp_path, capsys):
    arguments = [
        "--model",
        checkpoint_name,
        "--output_dir",
        str(tmp_path / "out"),
        *SHORT_RUN,
        "--precision",
        "bf16-naive",
    ]
    assert train_command.main(arguments) == 0 and "bf16-naive (" in capsys.readouterr().out
    assert json.loads((tmp_path / "out/grpo_config.json").read_text(encoding="utf-8"))["precision"] == "bf16-naive"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").dtype == torch.bfloat16


def test_the_tiny_model_on_sums_is_the_training_of_notebook_07(monkeypatch):
    """The default rows, rewards and settings are those of the recorded runs."""
    options = parse("--seed", "2")
    task_spec = make_task_spec(**options.task_options, for_bundled_model=True)
    config = make_config(options, task_spec, 459_904, "cpu")
    assert replace(config, output_dir=None) == GRPOConfig(seed=2, reward_weights=[1.0, 0.0])
    assert task_spec.reward_funcs == SUMS_REWARDS == [accuracy_reward, think_rate]
    assert SUMS_WEIGHTS == [1.0, 0.0] and NUM_TRAINING_SUMS == 20_000
    monkeypatch.undo()
    assert task_spec.rows("train", None, 2) == addition_problems("train", NUM_TRAINING_SUMS, 2)
    assert all(len(row["prompt"]) == 1 for row in task_spec.rows("train", 5, 2)), "without a system prompt"


class TrainCalled(Exception):
    """An exception that is raised in place of a training, with its arguments."""


def arguments_of_train(monkeypatch, *arguments) -> tuple:
    def stop(engine, inputs, **keywords):
        raise TrainCalled(inputs, keywords)

    monkeypatch.setattr(OurEngine, "run", stop)
    # The small model's context is shorter than the completions of some tasks.
    monkeypatch.setattr("grpo_lab.trainer.run.inputs.check_prompts_of_run", lambda inputs: None)
    with pytest.raises(TrainCalled) as caught:
        train_command.main.__wrapped__(list(arguments))
    inputs, keywords = caught.value.args
    return inputs, keywords


def test_a_task_brings_rows_rewards_and_lengths(checkpoint_name, workdir, monkeypatch):
    for arguments, names, weighted, roles, length in [
        (["--task", "word-problems"], ["math_reward", "format_reward"], [1.0, 0.1], ["system", "user"], 256),
        (["--task", "chat"], ["contains_reward"], None, ["system", "user"], 48),
        (["--task", "mine.jsonl"], ["accuracy_reward"], None, ["system", "user"], 256),
        (["--task", "mine.jsonl", "--reward_funcs", "my_rewards:length"], ["length"], None, ["user"], 256),
        (["--reward_funcs", "graded", "number"], ["graded_reward", "number_reward"], None, ["system", "user"], 64),
        (["--system_prompt", "Count."], ["accuracy_reward", "think_rate"], [1.0, 0.0], ["system", "user"], 64),
    ]:
        training = arguments_of_train(monkeypatch, "--model", checkpoint_name, "--output_dir", "out", *arguments)
        inputs, keywords = training
        rows, reward_funcs, config = inputs.dataset, inputs.reward_funcs, inputs.config
        assert [function.__name__ for function in reward_funcs] == names and config.reward_weights == weighted
        assert [message["role"] for message in rows[0]["prompt"]] == roles
        assert keywords.keys() == {"saved_options"}
        assert inputs.eval_dataset is None and inputs.environment is None
        assert (
            keywords["saved_options"]["model"] == checkpoint_name
            and not keywords["saved_options"].keys() & SETTINGS.keys()
        )
        assert config.max_completion_length == length


def test_held_out_rows_go_to_the_training_where_it_evaluates_itself(checkpoint_name, workdir, monkeypatch, capsys):
    arguments = ["--model", checkpoint_name, "--output_dir", "out", "--eval_steps", "5", "--system_prompt", "none"]
    inputs, _ = arguments_of_train(monkeypatch, *arguments)
    held_out = inputs.eval_dataset
    assert len(held_out) == MAX_EVAL_PROBLEMS
    assert held_out == addition_problems("test", MAX_EVAL_PROBLEMS, 1)
    inputs, _ = arguments_of_train(monkeypatch, *arguments, "--task", "mine.jsonl")
    assert {row["answer"] for row in inputs.dataset} & {row["answer"] for row in inputs.eval_dataset} == set()
    assert len(inputs.dataset) + len(inputs.eval_dataset) == 60
    arguments_of_train(monkeypatch, *arguments, "--task", "chat")
    assert "task chat: no problem is held out; the evaluations see those of the training" in capsys.readouterr().out


def test_a_row_that_does_not_fit_is_named_with_advice_that_helps(checkpoint_name, workdir, capsys):
    row = '{"prompt": "1+1=?", "answer": "2"}\n'
    (workdir / "one.jsonl").write_text("\n\n" + row, encoding="utf-8")
    (workdir / "one.test.jsonl").write_text(f'{{"prompt": "{"1+" * 300}", "answer": "300"}}\n', encoding="utf-8")
    arguments = ["--model", checkpoint_name, "--output_dir", "out", "--task", "one.jsonl", *SHORT_RUN]
    too_long = [*arguments, "--eval_steps", "1", "--max_completion_length", "8"]
    assert train_command.main(too_long) == 2 and "error: eval_dataset row 0: prompt has 6" in capsys.readouterr().err
    wide = [*arguments, "--max_completion_length", "100000"]
    assert train_command.main(wide) == 2 and "error: dataset row 0: prompt has " in capsys.readouterr().err
    (workdir / "one.test.jsonl").unlink()
    assert train_command.main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "saved to out"


def test_the_command_trains_and_leaves_a_normal_checkpoint(checkpoint_name, workdir, capsys):
    out = workdir / "out dir"
    rewards = ["--reward_funcs", "think", "my_rewards:length", "--reward_weights", "0", "1"]
    assert (
        train_command.main(["--model", checkpoint_name, "--output_dir", str(out), "--seed", "4", *rewards, *SHORT_RUN])
        == 0
    )
    output = capsys.readouterr().out
    assert output.startswith("task sums: reward = 0 think + 1 my_rewards:length; system prompt: ")
    assert "\nchosen for 0.0 million parameters: learning_rate 0.0002, gradient_checkpointing false\n" in output
    assert "step 2: reward" in output and "(think_rate 0.000, length " in output
    quoted = f'"{out}"' if sys.platform == "win32" else f"'{out}'"
    assert f"python -m grpo_lab.evaluate --model {quoted} --reward_funcs think my_rewards:length" in output
    metrics = metrics_in(out)
    assert [line["step"] for line in metrics] == [1, 2] and "rewards/think_rate/mean" in metrics[0]
    saved = json.loads((out / "grpo_config.json").read_text(encoding="utf-8"))
    saved = GRPOConfig(**{name: value for name, value in saved.items() if name in NON_DEFAULT_VALUES})
    expected = config_of("--output_dir", str(out), "--seed", "4", *rewards, *SHORT_RUN)
    assert expected.precision is None and saved == replace(expected, precision="fp32"), (
        "what was left open is on record"
    )
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert not same_weights(weights(model), weights(make_policy()[0])) and tokenizer.chat_template
    prompt = find_task("sums").rows("train", 1)[0]["prompt"]
    inputs = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_tensors="pt")
    assert model.generate(**inputs, max_new_tokens=2, do_sample=False).shape[0] == 1


def test_a_run_that_evaluates_ends_with_its_numbers(checkpoint_name, workdir, capsys):
    (workdir / "my_rewards.py").write_text("def none(completions, **_): return [None] * len(completions)\n")
    arguments = [
        "--model",
        checkpoint_name,
        "--output_dir",
        "out",
        "--reward_funcs",
        "my_rewards:none",
        "--eval_steps",
        "2",
        *SHORT_RUN,
    ]
    with pytest.warns(RuntimeWarning, match="returned None"):
        assert train_command.main(arguments) == 0
    assert "\nheld-out reward none (none none)\nsaved to" in capsys.readouterr().out


def test_a_base_model_trains_and_is_measured_on_plain_text(checkpoint_name, workdir, capsys):
    folder, out = workdir / "base", workdir / "out"
    shutil.copytree(checkpoint_name, folder)
    (folder / "chat_template.jinja").unlink()
    arguments = ["--model", str(folder), "--output_dir", str(out), *SHORT_RUN]
    assert train_command.main(arguments) == 2
    assert (
        "has no chat_template: take plain text, in a shell with" in (error := capsys.readouterr().err)
        and "`--chat_template none`" in error
    )
    assert train_command.main([*arguments, "--chat_template", "none"]) == 0
    output = capsys.readouterr().out
    assert "; the first prompt is str '" in output and output.rstrip().endswith("--chat_template none")
    assert AutoTokenizer.from_pretrained(out).chat_template is None and len(metrics_in(out)) == 2
    measured = ["--model", str(out), "--n", "2", "--max_completion_length", "2"]
    assert evaluate.main(measured) == 0 and evaluate.main([*measured, "--chat_template", "model"]) == 2


def test_train_command_resumes_from_the_folder_alone(checkpoint_name, workdir, capsys):
    """A resumed run takes its model, task, reward and settings from the folder; only a few options may change."""
    own = ["--task", "mine.jsonl", "--reward_funcs", "my_rewards:length", "--max_grad_norm", "inf"]
    own += ["--model", checkpoint_name, *SHORT_RUN]
    assert train_command.main(["--output_dir", "whole", *own, "--max_steps", "3"]) == 0
    assert train_command.main(["--output_dir", "out", *own]) == 0
    for words, message in [
        (["--beta", "0.2"], "--beta is 0.2; expected 0.0, as in the run in 'out'; the options that may change are"),
        (["--task", "sums"], "--task is 'sums'; expected 'mine.jsonl', as"),
        (["--output_dir", "elsewhere"], "--output_dir is 'elsewhere'; expected 'out', as"),
    ]:
        reward = ["--reward_funcs", "my_rewards:length"]  # the user's own code has to be typed again
        assert message in refusal_of(train_command.main, "--resume_from_checkpoint", "out", *reward, *words)
    (workdir / "script").mkdir()
    (workdir / "script/grpo_config.json").write_text('{"seed": 0}', encoding="utf-8")
    for words, message in [
        (["out/checkpoint-2"], "expected a file of settings, or the output_dir of a run, here 'out'"),
        (["out", "--config", "out"], "--config is given together with resume_from_checkpoint DIR"),
        (["script"], "is 'script', begun by a script; go on from the script"),
        (["no"], "--resume_from_checkpoint is 'no'; expected"),
    ]:
        assert message in refusal_of(train_command.main, "--resume_from_checkpoint", *words)
    assert "output_dir 'out' holds a run already" in refusal_of(train_command.main, "--config", "out", *own)
    resumed_with = ["--max_steps", "3", "--eval_steps", "1", "--beta", "0", "--reward_funcs", "my_rewards:length"]
    defaults = ["--engine", "grpo_lab", "--lora_r", "16"]  # a typed default is no change
    options = train_command.read_options(["--resume_from_checkpoint", "out", *resumed_with, *defaults])
    assert options.values["engine"] == "grpo_lab" and options.settings["max_steps"] == 3
    assert train_command.main(["--resume_from_checkpoint", "out", *resumed_with, "--dry_run"]) == 0
    assert "dry run: no problems found" in capsys.readouterr().out
    assert train_command.main(["--resume_from_checkpoint", "out/", *resumed_with]) == 0
    assert "Resumed at step 2 of 3 from 'out/checkpoint-2'" in capsys.readouterr().out
    resumed, uninterrupted = (AutoModelForCausalLM.from_pretrained(name) for name in ("out", "whole"))
    assert same_weights(weights(resumed), weights(uninterrupted))
    assert ["eval/reward" in metrics for metrics in metrics_in(workdir / "out")] == [False, False, True]


def test_the_former_default_of_tool_timeout_in_a_saved_file_counts_as_none(workdir):
    (workdir / "old").mkdir()
    saved = {"model": "tiny", "task": "sums-calculator", "tool_timeout": 30.0, "max_completion_length": 64}
    (workdir / "old/grpo_config.json").write_text(json.dumps(saved), encoding="utf-8")
    options = train_command.read_options(["--resume_from_checkpoint", "old"])
    assert options.values["task"] == "sums-calculator" and "tool_timeout" not in options.explicit
    options = train_command.read_options(["--resume_from_checkpoint", "old", "--tool_timeout", "30"])
    assert options.settings["tool_timeout"] == 30.0
    assert train_command.main(["--config", "old", "--dry_run"]) == 0


@pytest.mark.slow
def test_a_run_resumes_with_the_epochs_and_the_warm_up_that_were_typed_when_it_began(checkpoint_name, workdir, capsys):
    begun = ["--task", "mine.jsonl", "--reward_funcs", "my_rewards:length", "--model", checkpoint_name, *SHORT_RUN[:-6]]
    begun += ["--disable_tqdm", "true", "--lr_scheduler_type", "linear"]
    converted = ["--num_train_epochs", "2", "--warmup_ratio", "0.5"]
    assert train_command.main(["--output_dir", "out", *begun, *converted]) == 0
    saved = train_command.read_options(["--resume_from_checkpoint", "out", "--reward_funcs", "my_rewards:length"])
    resume = ["--resume_from_checkpoint", "out", "--reward_funcs", "my_rewards:length"]
    assert train_command.main([*resume, *converted, "--dry_run"]) == 0
    assert f": {saved.settings['max_steps']:,} steps" in capsys.readouterr().out
    assert train_command.main([*resume, *converted[:2], "--warmup_ratio", "0"]) == 2
    assert "warmup_steps" in capsys.readouterr().err


def test_a_run_resumed_with_its_own_checkpoint_still_names_the_model_that_it_began_with(checkpoint_name, workdir):
    """The run removes old checkpoints, so the next resuming would not find the one that was typed."""
    assert train_command.main(["--model", checkpoint_name, "--output_dir", "out", *SHORT_RUN]) == 0
    resume = ["--resume_from_checkpoint", "out"]
    assert train_command.main([*resume, "--model", "out/checkpoint-1", "--max_steps", "4"]) == 0
    assert not (workdir / "out/checkpoint-1").exists()
    assert json.loads((workdir / "out/grpo_config.json").read_text(encoding="utf-8"))["model"] == checkpoint_name
    assert train_command.main([*resume, "--max_steps", "5"]) == 0
    assert len(metrics_in(workdir / "out")) == 5


def test_a_file_of_settings_is_taken_and_what_is_typed_wins(workdir):
    """A file of settings is the JSON of a run or a YAML file, with nulls, lists, infinity and numbers such as 1e-3."""
    written = (
        NON_DEFAULT_VALUES
        | SAVED_DEFAULTS
        | {"task": "mine.jsonl", "reward_funcs": ["format", "math"], "max_grad_norm": "inf"}
    )
    written["resume_from_checkpoint"] = False
    (workdir / "run.json").write_text(json.dumps(written), encoding="utf-8")
    options = train_command.read_options(["--config", "run.json"])
    assert options.settings | options.saved == written | {"max_grad_norm": math.inf}
    typed = train_command.read_options(["--seed", "9", "--config", "run.json"])
    assert typed.settings == options.settings | {"seed": 9} and typed.saved == options.saved
    assert typed.typed == {"seed": 9} and typed.stored == options.stored
    yaml = "output_dir: a b\nbeta: 1e-2\nepsilon_high: null\nreward_weights: [1, -5e-1]\nmax_grad_norm: .inf\nseed:\n"
    yaml += "gone_since: null\nbf16: true\nsystem_prompt: '- brief, 是'\n"
    (workdir / "mine.yaml").write_text(yaml, encoding="utf-8")
    options = train_command.read_options(["--config", "mine.yaml"])
    assert options.settings == {
        "output_dir": "a b", "beta": 0.01, "epsilon_high": None, "reward_weights": [1.0, -0.5],
        "max_grad_norm": math.inf, "bf16": True,
    }  # fmt: skip
    assert options.saved == SAVED_DEFAULTS | {"system_prompt": "- brief, 是"}
    for text, message in [
        ("epsilom: 0.1", "'bad.yaml', which has 'epsilom'; that is not known here; did you mean epsilon?"),
        ("turn_advantage: turn", "has 'turn_advantage'; that is not known here; did you mean advantage?"),
        ("config: x.yaml", "'bad.yaml', which has 'config'; that is not known here"),
        (
            "resume_from_checkpoint: out",
            "--resume_from_checkpoint is 'out' in 'bad.yaml'; expected true or false; to",
        ),
        ("patience: 3", "has 'patience'; that is not known here; --help lists what there is; if another version"),
        ("epsilon: wide", "argument --epsilon: invalid float value: 'wide' (in 'bad.yaml')"),
        ("- a", "--config is 'bad.yaml'; expected a file with lines such as `beta: 0.04`"),
        ("seed:", "--config is 'bad.yaml'; expected a file with lines such as `beta: 0.04`"),
        ("a: [", "--config is 'bad.yaml', which is not YAML: "),
        ("seed: 1", "the following arguments are required: --output_dir"),
    ]:
        (workdir / "bad.yaml").write_text(text, encoding="utf-8")
        assert message in refusal_of(train_command.main, "--config", "bad.yaml")
    assert "--config is 'none.yaml'; expected a file of settings" in refusal_of(
        train_command.main, "--config", "none.yaml"
    )


def test_a_typed_batch_replaces_that_of_a_file_with_its_micro_batch(checkpoint_name, tmp_path):
    """The micro-batch size in the file was chosen for its own batch, so it is chosen again for the typed one."""
    first = ["--model", checkpoint_name, "--output_dir", str(tmp_path / "out"), *SHORT_RUN, "--max_steps", "1"]
    assert train_command.main(first) == 0
    for typed, parameters in itertools.product(
        (["--generation_batch_size", "4"], ["--generation_batch_size", "12", "--per_device_train_batch_size", "3"]),
        (1000, 500_000_000),
    ):
        options = train_command.read_options(["--config", str(tmp_path / "out"), *typed])
        config = config_of_options(options, parameters, "cpu")
        assert config.generation_batch_size == int(typed[1]) and config.num_generations == 4
        assert len(typed) == 2 or config.per_device_train_batch_size == 3


# --- before a model is loaded, and after Ctrl-C -----------------------------------------------------------------------


def test_a_dry_run_needs_no_folder_and_knows_the_layers_that_an_adapter_may_change(checkpoint_name, workdir, capsys):
    arguments = ["--model", checkpoint_name, *SHORT_RUN, "--dry_run"]
    assert train_command.main([*arguments, "--use_peft", "--lora_target_modules", "q_proj"]) == 0
    assert train_command.main([*arguments, "--use_peft", "--lora_target_modules", "foo_proj"]) != 0
    out = capsys.readouterr().out
    assert "lora_target_modules is 'foo_proj'; expected all-linear alone, or linear maps in the model's layers" in out
    assert not (workdir / "outputs").exists()


def test_a_dry_run_says_the_plan_all_problems_and_the_prompt_and_writes_nothing(
    checkpoint_name, workdir, capsys, monkeypatch
):
    monkeypatch.setattr(engines, "load_policy", lambda *_, **__: pytest.fail("the model was loaded"))
    arguments = ["--model", checkpoint_name, "--output_dir", "out", "--system_prompt", "none", *SHORT_RUN, "--dry_run"]
    assert train_command.main(arguments) == 0
    output = capsys.readouterr().out
    assert "2 steps of 2 problems x 4 completions, 1 update each, 8 completions at a time; to out" in output
    assert "\npeak: " in output and "the first prompt as the model sees it, " in output
    prompt = find_task("sums").rows("train", None, 0)[0]["prompt"]
    text = AutoTokenizer.from_pretrained(checkpoint_name).apply_chat_template(
        prompt, tokenize=False, add_generation_prompt=True
    )
    assert "\n".join(f"  {line}" for line in text.splitlines()) in output
    *_, count, checked, not_tried = output.splitlines()
    assert count == "dry run: no problems found" and not_tried.startswith("  not tried: loading the weights, sampling")
    assert checked.startswith("  checked: ") and "; columns of dataset; " in checked
    assert "; 30 rows: expected answers, room for each" in checked
    assert not (workdir / "out").exists()
    (workdir / "out").mkdir()
    (workdir / "out/metrics.jsonl").write_text("mine", encoding="utf-8")
    monkeypatch.setattr(tracking, "get_available_trackers", list)
    wrong = [
        "--report_to",
        "wandb,mlflow",
        "--reward_funcs",
        "my_rewards:has_a_setting",
        "--max_completion_length",
        "9999",
    ]
    code, output = train_command.main([*arguments, *wrong]), capsys.readouterr()
    assert code == 1, output.err
    problems = [line for line in output.out.splitlines() if line.startswith("problem: ")]
    assert len(problems) == 4, problems
    for problem, begins in zip(
        problems,
        (
            "output_dir 'out' holds metrics.jsonl",
            "--report_to is 'wandb' and 'mlflow'",
            "reward function",
            "dataset row 0",
        ),
        strict=True,
    ):
        assert problem.startswith(f"problem: {begins}")


def test_wrong_rewards_trackers_and_prompts_fail_before_loading(checkpoint_name, workdir, capsys, monkeypatch):
    monkeypatch.setattr(engines, "load_policy", lambda *_, **__: pytest.fail("the model was loaded"))
    monkeypatch.setattr("grpo_lab.config.defaults.TINY_BELOW", 1)  # so that the model does not count as tiny
    monkeypatch.setattr(tracking, "get_available_trackers", list)
    arguments = ["--model", checkpoint_name, "--output_dir", "out", *SHORT_RUN]
    for words, message in [
        (["--report_to", "trackio"], "--report_to is 'trackio', which is not installed: python -m pip install trackio"),
        (["--reward_funcs", "my_rewards:has_a_setting"], "reward function 'has_a_setting' has the setting answer='42'"),
        (["--max_completion_length", "9999"], "dataset row 0: prompt has "),
    ]:
        assert train_command.main([*arguments, *words]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_reward_with_trls_arguments_trains_and_evaluates(checkpoint_name, workdir, capsys):
    (workdir / "my_logging.py").write_text(REWARD, encoding="utf-8")
    rewards = ["--reward_funcs", "my_logging.py:logs"]
    run = [
        "--model",
        checkpoint_name,
        "--task",
        "sums",
        *SHORT_RUN,
        *rewards,
        "--log_completions",
        "true",
        "--logging_steps",
        "1",
    ]
    assert train_command.main([*run, "--output_dir", "out", "--eval_steps", "2"]) == 0
    lines = metrics_in(workdir / "out")
    assert [line["begun_at"] for line in lines] == [0, 1] and "eval/begun_at" in lines[-1]
    samples = [
        json.loads(line) for line in (workdir / "out/completions.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert len(samples) == 16 and all(sample["extra"]["size"] >= 0 for sample in samples)
    measured = ["--model", "out", "--task", "sums", *rewards, "--n", "2", "--max_completion_length", "4"]
    assert evaluate.main(measured) == 0


def test_a_stopped_command_prints_the_whole_command_that_resumes_it(checkpoint_name, workdir, capsys, monkeypatch):
    def interrupt(*arguments, **keywords):
        raise Stopped("Stopped after step 1 of 2 by Ctrl-C. 'out/checkpoint-1' is saved.", 130, "Go on.")

    arguments = ["--model", checkpoint_name, "--output_dir", "out dir", *SHORT_RUN]
    rewards = ["--task", "mine.jsonl", "--reward_funcs", "my_rewards:length", "math"]
    with monkeypatch.context() as patch:
        patch.setattr(OurEngine, "run", interrupt)
        for words, again in (([], ""), (rewards, " --reward_funcs my_rewards:length math")):
            assert train_command.main([*arguments, *words]) == 130
            error = capsys.readouterr().err
            folder = '"out dir"' if sys.platform == "win32" else "'out dir'"
            go_on = f"Go on with\n  python -m grpo_lab.train --resume_from_checkpoint {folder}{again}\n"
            assert error.endswith(f"'out/checkpoint-1' is saved. {go_on}")
    assert train_command.main([*arguments, *rewards, "--max_steps", "1"]) == 0
    go_on = ["--resume_from_checkpoint", "out dir", "--reward_funcs", "my_rewards:length", "math", "--max_steps", "2"]
    assert train_command.main(go_on) == 0 and len(metrics_in(workdir / "out dir")) == 2
