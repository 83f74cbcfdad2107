"""`torchrun ... --engine trl`: on two processes, whole or in pieces, the run is the one of this package's own loop."""

import json
import sys

import pytest
import torch

from grpo_lab.models import load_policy
from tests.parity.engines import engine as installed
from tests.support.replay import recorded
from tests.support.torchrun import ROOT, torchrun
from tests.support.worlds import letter_reward, make_config, save_world

ROWS = [{"prompt": [{"role": "user", "content": f"{n}+1=?"}], "answer": str(n + 1)} for n in range(4)]
FUNCTIONS = [letter_reward]
CONFIG = {
    "max_steps": 3, "num_iterations": 2, "beta": 0.1, "loss_type": "dapo", "weight_decay": 0.1, "max_grad_norm": 0.5,
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
}  # fmt: skip
on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="gloo between processes: tried on Linux")


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """A run of our own loop: folder with base model and completions, history, updates, trained parameters."""
    installed("trl")
    folder = tmp_path_factory.mktemp("ours")
    model, tokenizer = load_policy(save_world(folder / "base"), precision="fp32")
    history, updates, rollouts = recorded(model, tokenizer, ROWS, FUNCTIONS, make_config(**CONFIG))
    (folder / "rollouts.json").write_text(json.dumps(rollouts))
    return folder, history, updates, dict(model.named_parameters())


@pytest.mark.slow
@on_linux
@pytest.mark.parametrize("pieces", [[], ["--fsdp"]], ids=["DDP", "FSDP2"])
def test_on_two_processes_the_same_completions_make_the_same_run(pieces, ours, tmp_path):
    folder, history, updates, weights = ours
    for name in ("base", "rollouts.json"):
        (tmp_path / name).symlink_to(folder / name)
    done = torchrun(str(ROOT / "tests/train/engines/on_processes.py"), str(tmp_path), *pieces)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    parameters = sum(p.numel() for p in weights.values())
    assert len(updates) == 6
    for number, (one, other, wanted) in enumerate(zip(first, second, updates, strict=True)):
        assert (one["held"] < 0.6 * parameters) == bool(pieces), "in pieces, a process holds about half"
        assert all(all(map(torch.equal, one[key], other[key])) for key in ("gradients", "weights"))
        # Adam makes a full step of rounding, too: from the second update on the weights differ a little.
        atol = 3e-7 if number == 0 else 3e-5
        torch.testing.assert_close(one["gradients"], wanted["gradients"], rtol=1e-3, atol=atol)
    trained = list(load_policy(tmp_path / "out", precision="fp32")[0].parameters())  # one process reads what two wrote
    assert all(map(torch.equal, trained, first[-1]["weights"]))
    torch.testing.assert_close(trained, list(weights.values()), rtol=0, atol=2e-3)
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
QUICK += ["--save_steps", "2", "--engine", "trl", "--task", "short-sums"]
REWARD = ["--reward_funcs", "dying:reward"]


@pytest.mark.slow
@on_linux
@pytest.mark.parametrize("pieces", [[], ["--fsdp"]], ids=["DDP", "FSDP2"])
def test_a_run_one_of_whose_processes_is_killed_ends_with_a_word_and_goes_on(pieces, tmp_path):
    installed("trl")
    (tmp_path / "dying.py").write_text(DYING)
    run = ["-m", "grpo_lab.train", "--output_dir", "out", *QUICK, *REWARD, *pieces]
    died = torchrun(*run, timeout=120, cwd=tmp_path, DIES="4")
    assert died.returncode == 1 and "Signal 9 (SIGKILL)" in died.stderr
    assert "Stopped: one of the 2 processes is gone. 'out/checkpoint-2' is saved. Go on with" in died.stderr
    assert not (tmp_path / "out/model.safetensors").exists()
    done = torchrun("-m", "grpo_lab.train", "--resume_from_checkpoint", "out", *REWARD, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Resumed at step 2 of 4" in done.stdout
    assert done.stdout.count("2 processes") == done.stdout.count("saved to") == 1
    lines = (tmp_path / "out/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]
    assert load_policy(tmp_path / "out")[0].num_parameters() == 459_904


def test_other_settings_on_several_processes_are_refused(monkeypatch):
    installed("trl")
    from grpo_lab.config import GRPOConfig
    from grpo_lab.train.engines.options import OURS, TRL, Engine, take_engine
    from grpo_lab.train.engines.settings import rows_of_a_process

    def shared(**given):
        config = GRPOConfig(num_generations=4, generation_batch_size=16, **given)
        return tuple(rows_of_a_process(config).values())

    with pytest.raises(ValueError, match="fsdp is True; expected it only .* on several processes"):
        take_engine({"engine": TRL, "fsdp": True})
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert take_engine({"engine": TRL, "fsdp": True}) == Engine(TRL, True)
    assert shared() == (8, 1) and shared(per_device_train_batch_size=4, gradient_accumulation_steps=2) == (2, 2)
    assert shared(per_device_train_batch_size=1, gradient_accumulation_steps=4) == (1, 2)
    with pytest.raises(ValueError, match="per_device_train_batch_size is 1; expected a multiple of 2"):
        shared(per_device_train_batch_size=1)
    with pytest.raises(ValueError, match="loss_type is 'bnpo'"):
        shared(loss_type="bnpo")
    with pytest.raises(ValueError, match="WORLD_SIZE is 2; expected 1"):
        Engine(OURS).check(GRPOConfig())
