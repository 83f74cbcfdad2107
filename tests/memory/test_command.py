"""`python -m grpo_lab.memory`, and what a run on a card says about its memory before it begins: the same plan."""

import types

import pytest
import torch
from transformers import MambaConfig

from grpo_lab import train
from grpo_lab.config.precision import PRECISIONS
from grpo_lab.memory import GIB, RESERVE, announce
from grpo_lab.memory import __main__ as command
from grpo_lab.memory.planning import plan
from grpo_lab.models.shapes import shape_config, shape_of
from grpo_lab.tasks import TASKS
from tests.support.refused import refused
from tests.support.worlds import make_config, make_world

LARGE = ["--generation_batch_size", "8", "--per_device_train_batch_size", "8", "--max_completion_length", "512"]
LARGE += ["--prompt_length", "256"]


def printed(capsys, *arguments) -> list[str]:
    assert command.main(list(arguments)) == 0
    return capsys.readouterr().out.splitlines()


def test_the_plan_of_a_run_the_modes_and_that_it_fits(capsys):
    lines = printed(capsys, "--task", "word-problems")
    assert lines[0] == (
        "task word-problems; chosen for 494.0 million parameters: learning_rate 2e-06, num_generations 8, "
        "generation_batch_size 64, per_device_train_batch_size 8, gradient_accumulation_steps 8, "
        "gradient_checkpointing true, max_completion_length 256"
    )
    assert lines[2].startswith("494,032,768 parameters, bf16") and "(128 prompt + 256 response) tokens" in lines[2]
    assert lines[-1].startswith("It fits into 8.00 GiB: 3.9")
    modes = [line.split() for line in lines if line.split()[:1] and line.split()[0] in PRECISIONS]
    assert {mode: share for mode, share, *_ in modes} == {
        "fp32": "16.00", "fp32-master": "16.00", "bf16": "6.03", "bf16-naive": "8.00", "fp16": "16.00"
    }  # fmt: skip


def test_a_model_on_this_machine_is_planned_with_its_own_prompts(capsys):
    lines = printed(capsys, "--model", "tiny", "--device_type", "cpu")
    assert lines[2].startswith("459,904 parameters, fp32; 256 completions a step x (28 prompt + 64 response) tokens")
    assert lines[-1].startswith("It fits into 8.00 GiB") and lines[-1].endswith("0.75 GiB for Python and torch.")


def test_what_is_chosen_for_half_a_billion_parameters_fits_a_card_of_8_gib(capsys):
    for task in TASKS:
        assert printed(capsys, "--task", task)[-1].startswith("It fits into 8.00 GiB")


def test_advice_until_it_fits_and_despair(capsys):
    wanting = ["--precision", "fp32", "--beta", "0.04", "--budget", "8", "--num_iterations", "2"]
    lines = printed(capsys, *wanting, *LARGE, "--gradient_checkpointing", "false")
    begin = next(n for n, line in enumerate(lines) if line.startswith("It does not fit into 8.00 GiB"))
    assert lines[begin + 1].startswith("  1. precision='bf16': saves ") and lines[-1] == "Then it fits."
    assert printed(capsys, "--budget", "1.5")[-1].startswith("Even then it does not fit")


def test_what_cannot_be_planned_is_named(monkeypatch):
    monkeypatch.setattr(command, "_open", lambda kind, folder: MambaConfig())
    line = refused(command.main, "--model", "tiny")
    said = "model_config is not of Qwen2's kind: 'MambaConfig' object has no attribute "
    assert said in line and len(line) < 400


def planned_by(monkeypatch, capsys, *arguments):
    """The configuration, and everything else, that the command plans for."""
    calls = []
    monkeypatch.setattr(command, "plan", lambda *given, **more: calls.append((given, more)) or plan(*given, **more))
    monkeypatch.setattr(command, "compare_modes", lambda *given, **more: "")
    printed(capsys, *arguments)
    ((_, config), about), = calls  # fmt: skip
    return config, about


GIVEN = [
    ("gsm8k", "--generation_batch_size", "32"),
    ("chat", "--max_completion_length", "99"),
    ("sums", "--gradient_checkpointing", "false", "--num_generations", "4", "--beta", "0.1"),
]


@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
def test_memory_and_train_plan_the_same_run(device_type, monkeypatch, capsys):
    parameters = shape_of(shape_config("qwen2-0.5b")).parameters
    for options in GIVEN + [(task,) for task in TASKS if device_type == "cuda"]:
        arguments = vars(train._parser().parse_args(["--output_dir", "out", "--task", *options]))
        _, trained, chosen = train.plan_run(arguments, parameters, device_type)
        with monkeypatch.context() as during:
            config, _ = planned_by(during, capsys, "--device_type", device_type, "--task", *options)
        for name in command.SETTINGS + tuple(chosen):
            assert getattr(config, name) == getattr(trained, name), name


@pytest.mark.parametrize("free", [40 * GIB, GIB // 2])
def test_a_run_on_a_card_says_what_it_will_take_and_warns_where_that_is_too_much(free, monkeypatch, capsys):
    model, tokenizer = make_world()
    on_card = types.SimpleNamespace(device=torch.device("cuda"), config=model.config, parameters=model.parameters)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1000)
    rows = [{"prompt": "a" * length} for length in (3, 9)]
    announce(on_card, tokenizer, rows, make_config())
    lines = capsys.readouterr().out.splitlines()
    assert "8 completions a step" in lines[0] and lines[1].split()[:2] == ["GiB", "rollout"]
    end = next(n for n, line in enumerate(lines) if line.startswith("peak: 0.0"))
    if free > RESERVE:
        assert lines[end + 1].startswith("It fits into 40.00 GiB") and len(lines) == end + 2
    else:
        assert lines[end + 1] == "warning:" and lines[end + 2].startswith("It does not fit into 0.50 GiB")
