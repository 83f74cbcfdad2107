"""Tests of `--engine trl` on two processes: with DDP, FSDP2 or LoRA, the run is equal to one of our own loop."""

import json
import signal
import sys

import pytest
import torch

from grpo_lab.base import Stopped
from grpo_lab.base.checks import InputError, RunError
from grpo_lab.command_options import TRL
from grpo_lab.config import GRPOConfig
from grpo_lab.models import add_lora, load_policy
from grpo_lab.tasks import task_table
from grpo_lab.train import cli
from grpo_lab.train.engines import OurEngine
from grpo_lab.train.options import RunOptions
from grpo_lab.train.plan import make_engine
from grpo_lab.train.processes import is_main_process, set_up_process, stop_if_a_process_is_gone, world_size
from grpo_lab.train.trl.engine import TrlEngine
from grpo_lab.train.trl.settings import batch_settings_per_process, differences_table
from grpo_lab.trainer.run.session import RESUME_HINT
from tests.parity.engines import require_engine
from tests.support.replay import train_and_record
from tests.support.small_policy import make_config, make_policy, save_policy
from tests.support.torchrun import ROOT, end_of_errors, torchrun
from tests.support.two_processes import CONFIG, ENGINE_ARGUMENTS, FUNCTIONS, LORA, ROWS

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="gloo between processes: tried on Linux")


@pytest.fixture(scope="module")
def ours(request, tmp_path_factory):
    """Return a run of our own loop: its LoRA settings, its folder, its history, its updates and its model.

    The folder holds the base model and the completions.
    """
    require_engine("trl")
    folder = tmp_path_factory.mktemp("ours")
    model, tokenizer = load_policy(save_policy(folder / "base"), precision="fp32")
    if request.param is not None:
        add_lora(model, seed=0, **LORA)
    history, updates, rollouts = train_and_record(model, tokenizer, ROWS, FUNCTIONS, make_config(**CONFIG))
    (folder / "rollouts.json").write_text(json.dumps(rollouts))
    return request.param, folder, history, updates, model


@pytest.mark.slow
@on_linux
@pytest.mark.parametrize(
    ("setup", "ours"),
    [(setup, ENGINE_ARGUMENTS[setup]["lora"]) for setup in ENGINE_ARGUMENTS],
    indirect=["ours"],
    ids=ENGINE_ARGUMENTS,
)
def test_on_two_processes_the_same_completions_make_the_same_run(setup, ours, tmp_path):
    lora, folder, history, updates, model = ours
    for name in ("base", "rollouts.json"):
        (tmp_path / name).symlink_to(folder / name)
    done = torchrun(str(ROOT / "tests/train/on_processes.py"), str(tmp_path), setup)
    assert done.returncode == 0, end_of_errors(done)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1)]
    total = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert len(updates) == len(ranks[0]["updates"]) == 6
    for number, (first, second, expected) in enumerate(zip(*(rank["updates"] for rank in ranks), updates, strict=True)):
        assert (first["num_weights"] < 0.6 * total) == ENGINE_ARGUMENTS[setup]["fsdp"], (
            "in pieces, a process holds about half"
        )
        assert all(all(map(torch.equal, first[key], second[key])) for key in ("gradients", "weights"))
        # Adam also makes a full step for a gradient that is a rounding error, so weights differ after the first update.
        atol = 3e-7 if number == 0 else 3e-5
        torch.testing.assert_close(first["gradients"], expected["gradients"], rtol=1e-3, atol=atol)
    if ENGINE_ARGUMENTS[setup]["fsdp"]:
        assert ranks[0]["known"] > 0 and ranks[1]["known"] != ranks[0]["known"], "the first process alone read them"
    trained, _ = load_policy(tmp_path / "out", precision="fp32")  # one process reads the model that two have written
    ids = torch.arange(12)[None]
    torch.testing.assert_close(trained(ids).logits, model.eval()(ids).logits, rtol=0, atol=5e-2)
    if lora is None:
        assert all(map(torch.equal, trained.parameters(), ranks[0]["updates"][-1]["weights"]))
        torch.testing.assert_close([*trained.parameters()], [*model.parameters()], rtol=0, atol=2e-3)
    lines = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    for theirs, mine in zip(lines, history, strict=True):
        for key in ("reward", "reward_std", "loss", "num_tokens", "completions/mean_length"):
            assert theirs[key] == pytest.approx(mine[key], rel=1e-3, abs=1e-5), key


DYING = """import os, signal

calls = []


def reward(completions, **_):
    calls.append(None)
    if (os.environ["RANK"], len(calls)) == ("1", int(os.environ.get("DIES", 0))):
        os.kill(os.getpid(), signal.SIGKILL)
    return [float(len(completion[0]["content"])) for completion in completions]
"""
QUICK = ["--num_generations", "4", "--generation_batch_size", "8", "--max_completion_length", "4", "--max_steps", "4"]
QUICK += ["--save_steps", "2", "--eval_steps", "4", "--engine", "trl", "--task", "short-sums"]
REWARD = ["--reward_funcs", "dying:reward"]
OPTIONS = {"DDP": [], "FSDP2": ["--fsdp"], "LoRA": ["--use_peft"], "FSDP2 and LoRA": ["--fsdp", "--use_peft"]}


@pytest.mark.slow
@on_linux
@pytest.mark.parametrize(
    "setup", ["FSDP2 and LoRA"]
)  # includes the other setups; the parameters ("setup", OPTIONS) run all
def test_a_run_with_a_killed_process_ends_with_a_message_and_resumes(setup, tmp_path):
    require_engine("trl")
    (tmp_path / "dying.py").write_text(DYING)
    run = ["-m", "grpo_lab.train", "--output_dir", "out", *QUICK, *REWARD, *OPTIONS[setup]]
    died = torchrun(*run, cwd=tmp_path, DIES="4")
    assert died.returncode == 1 and "Signal 9 (SIGKILL)" in died.stderr, end_of_errors(died)
    assert "Stopped: one of the 2 processes is gone. 'out/checkpoint-2' is saved. Go on with\n  " in died.stderr
    assert "--resume_from_checkpoint out --reward_funcs dying:reward" in died.stderr, "the command that goes on"
    assert not list((tmp_path / "out").glob("*model.safetensors"))
    done = torchrun("-m", "grpo_lab.train", "--resume_from_checkpoint", "out", *REWARD, cwd=tmp_path)
    assert done.returncode == 0, end_of_errors(done)
    assert "Resumed at step 2 of 4" in done.stdout
    assert done.stdout.count("2 processes; what") == done.stdout.count("saved to") == 1
    lines = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4] and "eval/reward" in lines[-1]
    assert load_policy(tmp_path / "out")[0].num_parameters() == 459_904


@pytest.mark.parametrize("describe_saved", [None, lambda: "'out/checkpoint-2' is saved."], ids=["second", "first"])
def test_stop_if_a_process_is_gone_ends_with_the_hint_on_resuming(describe_saved, monkeypatch):
    """The command replaces the hint by its own, which needs the hint apart from the message."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    previous = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped) as stop, stop_if_a_process_is_gone(describe_saved, RESUME_HINT):
        signal.raise_signal(signal.SIGTERM)
    message = "Stopped: one of the 2 processes is gone." + (f" {describe_saved()}" if describe_saved else "")
    hint = RESUME_HINT if describe_saved else None
    assert (stop.value.message, stop.value.exit_code, stop.value.resume_hint) == (message, 143, hint)
    assert signal.getsignal(signal.SIGTERM) == previous


@pytest.mark.parametrize(("error", "waits"), [(RunError("wrong reward"), False), (RuntimeError("gloo"), True)])
def test_only_an_error_of_a_collective_operation_waits_for_torchrun(error, waits, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    seconds: list[float] = []
    monkeypatch.setattr("grpo_lab.train.processes.time.sleep", seconds.append)
    with pytest.raises(type(error), match=str(error)), stop_if_a_process_is_gone(None, RESUME_HINT):
        raise error
    assert bool(seconds) == waits


def test_the_command_names_the_command_that_goes_on_after_a_lost_process(tmp_path, monkeypatch, capsys):
    def lose_a_process(*arguments, **keywords):
        raise Stopped("Stopped: one is gone.", 143, RESUME_HINT)

    monkeypatch.setattr(OurEngine, "run", lose_a_process)
    monkeypatch.setitem(task_table.TASKS["sums"].default_counts, "train", 30)
    (tmp_path / "dying.py").write_text("def reward(completions, **kwargs):\n    return [0.0] * len(completions)\n")
    words = ["--model", save_policy(tmp_path / "base"), "--output_dir", "out", "--reward_funcs", "dying.py:reward"]
    monkeypatch.chdir(tmp_path)
    assert cli.main([*words, "--num_generations", "2"]) == 143
    error = capsys.readouterr().err
    assert "Stopped: one is gone. Go on with\n  " in error
    assert error.endswith("--resume_from_checkpoint out --reward_funcs dying.py:reward\n")


@pytest.mark.parametrize(("rank", "trackers"), [(0, "tensorboard"), (1, "none")])
def test_only_the_first_process_reports_to_trackers(rank, trackers, monkeypatch):
    require_engine("trl")
    from grpo_lab.train.trl.run import _config_of_process

    monkeypatch.setenv("RANK", str(rank))
    config = GRPOConfig(report_to="tensorboard", output_dir="out")
    assert _config_of_process(make_policy()[0], config).report_to == trackers


@pytest.mark.parametrize("rank", [0, 1])
def test_the_table_of_a_file_for_trl_is_printed_by_the_first_process_alone(rank, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    file = tmp_path / "trl.yaml"
    file.write_text("dataset_name: org/set\nmin_p: 0.1\n", encoding="utf-8")
    assert cli.main(["--config", str(file), "--output_dir", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr()
    assert ("read as TRL" in shown.out) == (rank == 0) and (shown.out == "") == (rank == 1)
    assert "which says what is not here: dataset_name, min_p" in shown.err


def test_batch_settings_per_process_share_the_rows_evenly_or_are_refused(monkeypatch):
    require_engine("trl")

    def shared(**settings):
        config = GRPOConfig(num_generations=4, generation_batch_size=16, **settings)
        return tuple(batch_settings_per_process(config).values())

    with pytest.raises(ValueError, match="fsdp is True; expected it only on several processes"):
        make_engine(RunOptions({"engine": TRL, "fsdp": True}))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert make_engine(RunOptions({"engine": TRL, "fsdp": True})) == TrlEngine(fsdp=True)
    assert shared() == (8, 1) and shared(per_device_train_batch_size=4, gradient_accumulation_steps=2) == (2, 2)
    assert shared(per_device_train_batch_size=1, gradient_accumulation_steps=4) == (1, 2)
    (rows,) = [
        line for line in differences_table(GRPOConfig(), {}).splitlines() if line.startswith("per_device_train_bat")
    ]
    assert rows.split(maxsplit=2)[1:] == ["256", "128 in each of 2 processes"]
    with pytest.raises(
        ValueError, match="per_device_train_batch_size is 1, with 1 parts of an update, and there are 2"
    ):
        shared(per_device_train_batch_size=1)
    with pytest.raises(ValueError, match="loss_type is 'bnpo'"):
        shared(loss_type="bnpo")
    with pytest.raises(ValueError, match="WORLD_SIZE is 2; expected 1"):
        OurEngine().check(GRPOConfig())
    monkeypatch.setenv("WORLD_SIZE", "32")
    with pytest.raises(
        ValueError, match="is 16, with 1 parts of an update, and there are 32 processes to share its rows"
    ):
        shared()


@pytest.mark.parametrize("missing", ["RANK", "LOCAL_RANK"])
@pytest.mark.parametrize("unset", [False, True])
def test_a_number_of_processes_that_torchrun_has_not_set_is_refused(missing, unset, monkeypatch):
    """A cluster may set WORLD_SIZE for the processes that torchrun is to start."""
    for name, text in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.delenv(missing) if unset else monkeypatch.setenv(missing, "")
    expected = f"WORLD_SIZE is 2, but {missing} is not set; start the run with torchrun"
    with pytest.raises(InputError, match=expected), set_up_process():
        raise AssertionError("no process may begin")


def test_an_empty_variable_counts_as_unset_and_a_word_is_refused(monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")
    with set_up_process():
        assert (world_size(), is_main_process()) == (1, True)
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(InputError, match="WORLD_SIZE is 'two'; expected a number"):
        world_size()
