"""`python -m grpo_lab.memory`, and what a run on a card says about its memory before it begins."""

import types

import pytest
import torch

from grpo_lab.memory import GIB, RESERVE, announce
from grpo_lab.memory import __main__ as command
from grpo_lab.precision import PRECISIONS
from tests.support.worlds import make_config, make_world


def printed(capsys, *arguments) -> list[str]:
    command.main(list(arguments))
    return capsys.readouterr().out.splitlines()


def test_a_plan_the_modes_and_that_it_fits(capsys):
    lines = printed(capsys, "--gradient_checkpointing", "true")
    assert lines[0].startswith("494,032,768 parameters, bf16")
    assert lines[-1].startswith("It fits into 8.00 GiB: 3.3")
    modes = [line.split() for line in lines if line.split()[:1] and line.split()[0] in PRECISIONS]
    assert {mode: share for mode, share, *_ in modes} == {
        "fp32": "16.00", "fp32-master": "16.00", "bf16": "6.03", "bf16-naive": "8.00", "fp16": "16.00"
    }  # fmt: skip


def test_advice_until_it_fits_and_despair(capsys):
    lines = printed(capsys, "--precision", "fp32", "--beta", "0.04", "--budget", "8", "--num_iterations", "2")
    begin = next(n for n, line in enumerate(lines) if line.startswith("It does not fit into 8.00 GiB"))
    assert lines[begin + 1].startswith("  1. precision='bf16': saves ") and lines[-1] == "Then it fits."
    assert printed(capsys, "--budget", "1.5")[-1].startswith("Even then it does not fit")


def test_another_model(capsys):
    lines = printed(capsys, "--model", "tiny", "--precision", "fp32", "--prompt_length", "20")
    assert "20 prompt + 512 response" in lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "0"], "argument --budget: '0'; it must be positive"),
        (["--prompt_length", "0"], "prompt_length is 0; it must be at least 1"),
        (["--generation_batch_size", "9"], "generation_batch_size is 9"),
        (["--model", "tiny", "--shape", "small"], "not allowed with"),
        (["--model", "./no_such_folder"], "name"),
    ],
)
def test_faults_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("free", [40 * GIB, GIB // 2])
def test_a_run_on_a_card_says_what_it_will_take_and_warns_where_that_is_too_much(free, monkeypatch, capsys):
    model, tokenizer = make_world()
    on_card = types.SimpleNamespace(device=torch.device("cuda"), config=model.config, parameters=model.parameters)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1000)
    rows = [{"prompt": "a" * length} for length in (3, 9)]
    announce(on_card, tokenizer, rows, make_config())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("memory: about 0.0") and "rollout" in lines[0]
    if free > RESERVE:
        assert len(lines) == 1
    else:
        assert lines[1] == "warning:" and lines[2].startswith("It does not fit into 0.50 GiB")


def test_a_run_on_the_cpu_says_nothing_about_memory(capsys):
    model, tokenizer = make_world()
    announce(model, tokenizer, [{"prompt": "a"}], make_config())
    assert capsys.readouterr().out == ""
