"""The command line: every setting is an option of its type, a wrong one is explained, the run leaves a checkpoint."""

import json
from dataclasses import fields, replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_lab import train as command
from grpo_lab.config import GRPOConfig
from grpo_lab.tasks import addition_split
from tests.support.worlds import make_world, same_weights, save_world, weights

VALUES = {
    "seed": 3, "max_steps": 7, "save_steps": 2, "resume_from_checkpoint": True, "report_to": "tensorboard",
    "disable_tqdm": True, "num_generations": 8, "generation_batch_size": 64, "max_completion_length": 9,
    "temperature": 0.7, "top_k": 5, "top_p": 0.9, "repetition_penalty": 1.2, "reward_weights": [0.5, 2.0],
    "cache_implementation": "static",
    "advantage": "rloo", "scale_rewards": "batch", "mask_truncated_completions": True, "loss_type": "cispo",
    "importance_sampling_level": "sequence", "epsilon": 0.1, "epsilon_high": 0.28, "delta": 2.0, "beta": 0.04,
    "kl_estimator": "k2", "use_bias_correction_kl": True, "entropy_coef": 0.01, "ref_model_sync_steps": 6,
    "ref_model_device": "cpu", "learning_rate": 1e-3, "lr_scheduler_type": "cosine", "warmup_steps": 1,
    "weight_decay": 0.1, "adam_beta1": 0.8, "adam_beta2": 0.95, "max_grad_norm": 0.3, "num_iterations": 2,
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "gradient_checkpointing": True, "bf16": True,
    "fp16": True, "precision": "fp32-master", "max_nonfinite_steps": 5, "run_name": "first", "logging_steps": 3,
    "log_completions": True, "num_completions_to_print": 2, "log_kl": True, "eval_steps": 5, "num_generations_eval": 2,
    "per_device_eval_batch_size": 6, "metric_for_best_model": "eval/accuracy", "greater_is_better": False,
    "load_best_model_at_end": True, "early_stopping_patience": 3, "early_stopping_threshold": 0.01,
}  # fmt: skip


def parse(*arguments):
    return vars(command._parser().parse_args(["--output_dir", "out", *arguments]))


def as_arguments(name, value):
    return [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]


def test_every_setting_is_in_the_table_above():
    assert VALUES.keys() == {field.name for field in fields(GRPOConfig)} - {"output_dir"}


@pytest.mark.parametrize("name", VALUES)
def test_every_setting_is_an_option_of_its_type(name):
    value = VALUES[name]
    parsed = parse(*as_arguments(name, value))
    assert parsed == {"model": "tiny", "output_dir": "out", name: value} and type(parsed[name]) is type(value)
    assert getattr(GRPOConfig(), name) != value, "the test needs a value that is not the default"


def test_all_of_them_together_make_the_configuration():
    chosen = {name: value for name, value in VALUES.items() if name not in ("bf16", "fp16")}
    arguments = [word for name, value in chosen.items() for word in as_arguments(name, value)]
    parsed = parse("--model", "auto", *arguments)
    assert parsed.pop("model") == "auto"
    assert GRPOConfig(**parsed) == GRPOConfig(output_dir="out", **chosen)


@pytest.mark.parametrize("name", ["epsilon_high", "delta", "ref_model_sync_steps", "ref_model_device"])
def test_none_can_be_said(name):
    assert parse(f"--{name}", "None")[name] is None


@pytest.mark.parametrize("text", ["true", "False", "TRUE"])
def test_booleans_are_said_in_words(text):
    assert parse("--bf16", text)["bf16"] is (text.lower() == "true")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max_steps", "many"], "--max_steps is 'many'; expected a whole number"),
        (["--learning_rate", "fast"], "--learning_rate is 'fast'; expected a number"),
        (["--epsilon_high", "high"], "--epsilon_high is 'high'; expected a number or none"),
        (["--bf16", "1"], "--bf16 is '1'; expected true or false"),
        (["--max_step", "3"], "--max_step is not known here; did you mean --max_steps?"),
        (["--loss_type", "ppo"], "loss_type is 'ppo'; expected one of 'grpo', 'bnpo'"),
        (["--num_generations", "7"], "generation_batch_size is 256; it must be a multiple of num_generations = 7"),
        (["--temperature", "0"], "temperature is 0.0; it must be positive"),
    ],
)
def test_a_wrong_option_is_explained_before_anything_is_loaded(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["--output_dir", "out", *arguments])
    captured = capsys.readouterr()
    assert stopped.value.code == 2 and message in captured.err and not captured.out


def test_a_folder_is_needed(capsys):
    with pytest.raises(SystemExit):
        command.main([])
    assert "--output_dir" in capsys.readouterr().err


def test_help_lists_every_setting_with_its_default(capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["--help"])
    shown = capsys.readouterr().out
    assert stopped.value.code == 0 and all(f"--{name}" in shown for name in VALUES) and "(default 0.0002)" in shown


@pytest.mark.parametrize(
    ("arguments", "dtype", "name"),
    [
        (["--precision", "bf16-naive"], torch.bfloat16, "bf16-naive"),
        (["--precision", "fp16"], torch.float32, "fp16"),
        (["--bf16", "true"], torch.float32, "fp32-master"),
    ],
)
def test_the_precision_asked_for_loads_and_trains(arguments, dtype, name, base, tmp_path, capsys):
    out = tmp_path / "out"
    command.main(["--model", base, "--output_dir", str(out), *SMALL, *arguments])
    assert f"{name} (" in capsys.readouterr().out
    assert json.loads((out / "grpo_config.json").read_text(encoding="utf-8"))["precision"] == name
    assert AutoModelForCausalLM.from_pretrained(out, dtype="auto").dtype == dtype


def test_thinking_is_measured_in_either_form():
    text = "<think>1+1=2</think><answer>2</answer>"
    said = [{"role": "assistant", "content": text}]
    assert command.think_rate([text, "<answer>2</answer>", said]) == [1.0, 0.0, 1.0]


SMALL = [
    "--num_generations", "4", "--generation_batch_size", "8", "--max_completion_length", "4", "--max_steps", "2",
    "--disable_tqdm", "true", "--save_steps", "1",
]  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_world(tmp_path_factory.mktemp("base"))


@pytest.fixture(autouse=True)
def few_problems(monkeypatch):
    monkeypatch.setattr(command, "TRAINING_PROBLEMS", 30)


def test_the_command_trains_and_leaves_a_normal_checkpoint(base, tmp_path, capsys, monkeypatch):
    calls, train = [], command.train

    def spy(model, tokenizer, rows, reward_funcs, config):
        calls.append((rows, reward_funcs, config))
        return train(model, tokenizer, rows, reward_funcs, config)

    monkeypatch.setattr(command, "train", spy)
    # A reward that a random model earns, so that something moves.
    monkeypatch.setattr(
        command, "REWARDS", [command.think_rate, lambda completions, **kwargs: map_lengths(completions)]
    )
    out = tmp_path / "out"
    command.main(["--model", base, "--output_dir", str(out), "--seed", "4", "--reward_weights", "0", "1", *SMALL])
    (rows, reward_funcs, config), = calls  # fmt: skip
    assert len(rows) == 30 and all(addition_split(row["operands"]) == "train" for row in rows)
    assert config.seed == 4 and config.reward_weights == [0.0, 1.0] and len(reward_funcs) == 2
    shown = capsys.readouterr().out
    assert "step 2: reward" in shown and f"python -m grpo_lab.evaluate --model {out}" in shown
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in metrics] == [1, 2] and "rewards/think_rate/mean" in metrics[0]
    saved = GRPOConfig(**json.loads((out / "grpo_config.json").read_text(encoding="utf-8")))
    assert config.precision is None and saved == replace(config, precision="fp32"), "what was left open is on record"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert not same_weights(weights(model), weights(make_world()[0])) and tokenizer.chat_template
    inputs = tokenizer.apply_chat_template(rows[0]["prompt"], add_generation_prompt=True, return_tensors="pt")
    assert model.generate(**inputs, max_new_tokens=2, do_sample=False).shape[0] == 1
    assert {type(value) for value in model.state_dict().values()} == {torch.Tensor}


def map_lengths(completions):
    return [float(len(completion[0]["content"])) for completion in completions]


def test_accuracy_alone_is_the_reward_and_thinking_is_reported(base, tmp_path):
    assert [function.__name__ for function in command.REWARDS] == ["accuracy_reward", "think_rate"]
    out = tmp_path / "out"
    command.main(["--model", base, "--output_dir", str(out), *SMALL])
    metrics = json.loads((out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert metrics["reward"] == metrics["rewards/accuracy_reward/mean"] == 0.0
    saved = json.loads((out / "grpo_config.json").read_text(encoding="utf-8"))
    assert saved["reward_weights"] == [1.0, 0.0]


def test_the_command_resumes_and_refuses_to_overwrite(base, tmp_path):
    out, same = tmp_path / "out", ["--model", base, "--output_dir", str(tmp_path / "out"), *SMALL]
    command.main(same)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    with pytest.raises(FileExistsError, match="holds a run already; choose another folder"):
        command.main(same)
    command.main([*same, "--resume_from_checkpoint", "true"])
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
