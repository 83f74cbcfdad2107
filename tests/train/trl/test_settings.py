"""Tests of what TRL receives of the settings of a run, and of the settings and options that are refused."""

import json
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch

from grpo_lab import train as train_command
from grpo_lab.config import GRPOConfig, precision
from grpo_lab.models import load_policy
from grpo_lab.train import plan
from grpo_lab.train.engines import OurEngine
from grpo_lab.train.options import RunOptions
from grpo_lab.train.trl import settings as trl_settings
from grpo_lab.train.trl.engine import TrlEngine
from grpo_lab.train.trl.table import Handling, settings_handled
from grpo_lab.trainer.run.inputs import RunInputs
from tests.parity.engines import require_engine
from tests.support.options_config import config_of_options
from tests.support.refusals import refusal_of
from tests.support.small_policy import letter_reward, make_config
from tests.support.trl_differences import MEANINGS

require_engine("trl")
trl_trainer = pytest.importorskip("grpo_lab.train.trl.trainer")
ROWS = [{"prompt": [{"role": "user", "content": f"{n}+1=?"}], "answer": str(n + 1)} for n in range(4)]
OTHER = {"beta": 0.1, "epsilon_high": 0.28, "delta": 3.0, "loss_type": "grpo", "scale_rewards": "batch", "top_k": 5}
OTHER |= {"temperature": 0.7, "top_p": 0.9, "adam_beta2": 0.95, "max_grad_norm": 0.5, "gradient_accumulation_steps": 2}
# Settings of TRL that would change the result of the run, or add work that our own loop does not do.
NEUTRAL_IN_TRL = {
    "use_cpu": True, "shuffle_dataset": False, "min_p": None, "generation_kwargs": None, "use_vllm": False,
    "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "use_adaptive_entropy": False,
    "use_liger_kernel": False, "torch_compile": False, "adam_epsilon": 1e-8, "eval_strategy": "no",
    "save_strategy": "no", "log_completions": False, "dataloader_num_workers": 0, "torch_empty_cache_steps": None,
    "label_smoothing_factor": 0.0, "multi_objective_aggregation": "sum_then_normalize",
}  # fmt: skip


@pytest.mark.parametrize("changes", [{}, OTHER, {"num_iterations": 3, "ref_model_sync_steps": 4, "beta": 0.1}], ids=str)
def test_a_setting_goes_by_its_name_and_steps_become_updates(changes):
    ours = GRPOConfig(precision="fp32-master", max_steps=7, **changes)
    trl_settings.check_settings(ours)
    theirs, updates = trl_trainer.trl_config(ours, use_cpu=True), ours.updates_per_step
    for name in settings_handled(Handling.UNCHANGED):
        assert getattr(theirs, name) == getattr(ours, name), name
    for name, value in NEUTRAL_IN_TRL.items():
        assert getattr(theirs, name) == value, name
    assert (theirs.max_steps, theirs.logging_steps, theirs.bf16, theirs.fp16) == (7 * updates, updates, True, False)
    assert theirs.sync_ref_model == ("ref_model_sync_steps" in changes)
    assert not theirs.sync_ref_model or theirs.ref_model_sync_steps == 4 * updates
    assert theirs.steps_per_generation == ours.gradient_accumulation_steps


def test_the_table_of_differences_shows_in_updates_exactly_what_trl_receives_in_updates():
    """Evaluations and the warm-up are made by this package on TRL as well, so they stay in steps."""
    ours = GRPOConfig(
        precision="fp32", max_steps=6, save_steps=0, output_dir="out", eval_steps=2, warmup_steps=3, num_iterations=2,
        beta=0.1, ref_model_sync_steps=4,
    )  # fmt: skip
    theirs, updates = trl_trainer.trl_config(ours, use_cpu=True), trl_settings.settings_in_updates(ours)
    assert updates == {"max_steps": 12, "save_steps": 12, "ref_model_sync_steps": 8}
    assert {name: getattr(theirs, name) for name in updates} == updates
    assert (theirs.eval_steps, theirs.eval_strategy, theirs.warmup_steps) == (None, "no", 0)
    rows = dict(line.split(maxsplit=1) for line in trl_settings.differences_table(ours, {}).splitlines())
    assert rows.keys() == {"setting", "sampler", *updates}
    assert rows["save_steps"].split(maxsplit=1) == ["0", "12 updates, which are 6 steps"]


def test_a_setting_that_trl_lacks_or_means_otherwise_is_refused_by_name():
    # The engine keeps our meaning of these two: all parameters decay, and TRL accepts inf unchanged.
    assert set(settings_handled(Handling.UNCHANGED)) & MEANINGS.keys() == {"weight_decay", "max_grad_norm"}
    refused_ones = settings_handled(Handling.REFUSED)
    assert {"log_kl", "kl_estimator", "advantage"} < {*refused_ones}
    for name in refused_ones:
        config = SimpleNamespace(**vars(GRPOConfig()) | {name: "another"})
        with pytest.raises(ValueError, match=f"^{name} is 'another'; leave it out with --engine trl: "):
            trl_settings.check_settings(config)


REFUSED = [
    ("--engine trl --precision bf16", "--precision is 'bf16', which only our optimizer has; --engine trl takes fp32"),
    ("--engine trl --use_peft --precision bf16-naive", "--precision is 'bf16-naive'; --engine trl takes fp32, fp32-ma"),
    ("--engine trl --log_kl true", "--log_kl is True; leave it out with --engine trl: TRL has it with beta above 0"),
    ("--engine trl --beta 0.1 --ref_model_device cpu", "--ref_model_device is 'cpu'; leave it out with --engine trl:"),
    ("--engine trl --resume_from_checkpoint true --beta 0.1 --ref_model_sync_steps 2", "--ref_model_sync_steps is 2;"),
    ("--engine trl --max_steps 0", "--max_steps is 0; it must be at least 1 with --engine trl"),
    ("--engine verl", "--engine is 'verl'; expected one of 'grpo_lab', 'trl'"),
    ("--fsdp", "--fsdp is True; leave it out: nothing reads it with engine = 'grpo_lab', only with 'trl'"),
    ("--engine trl --fsdp", "--fsdp is True; expected it only on several processes: torchrun --nproc_per_node 2 -m"),
    ("--lora_r 8", "--lora_r is 8; leave it out: nothing reads it with use_peft = False"),
    ("--use_peft --lora_r 0", "--lora_r is 0; it must lie in [1, inf)"),
    ("--use_peft --lora_dropout 0.05", "--lora_dropout is 0.05; expected 0, since sampler and trainer must"),
    ("--engine trl --use_peft --lora_dropout 2", "--lora_dropout is 2.0; it must lie in [0, 1]"),
    ("--use_peft perhaps", "argument --use_peft: 'perhaps' is neither true nor false"),
    ("--use_peft --beta 0.1 --ref_model_sync_steps 2", "--ref_model_sync_steps is 2; leave it out with LoRA: the ref"),
    ("--use_peft --beta 0.1 --ref_model_device cpu", "--ref_model_device is 'cpu'; leave it out with LoRA: the ref"),
    ("--use_vllm", "--use_vllm is True; leave it out: nothing reads it with engine = 'grpo_lab', only with 'trl'"),
    (
        "--engine trl --vllm_mode server",
        "--vllm_mode is 'server'; leave it out: nothing reads it with use_vllm",
    ),
    (
        "--engine trl --use_vllm --vllm_server_port 8001",
        "--vllm_server_port is 8001; leave it out: nothing reads it with vllm_mode = None, only with 'server'",
    ),
    (
        "--engine trl --use_vllm --vllm_mode nowhere",
        "--vllm_mode is 'nowhere'; expected one of None, 'colocate', ",
    ),
]


@pytest.mark.slow
def test_a_wrong_option_is_refused_before_anything_is_loaded(tmp_path, monkeypatch):
    for arguments, message in REFUSED:
        assert message in refusal_of(train_command.main, "--output_dir", str(tmp_path / "out"), *arguments.split())
    monkeypatch.setattr(plan, "find_spec", lambda package: None)
    trl_options = ["--output_dir", str(tmp_path / "out"), "--engine", "trl"]
    assert 'trl is not installed; pip install "grpo-lab[engines]"' in refusal_of(train_command.main, *trl_options)


@pytest.mark.parametrize(("native", "default"), [(True, "fp32-master"), (False, None)])
def test_trl_uses_float32_weights_on_a_gpu(native, default, monkeypatch):
    monkeypatch.setattr(precision, "has_native_bf16", lambda device: native)
    engine, gpu = TrlEngine(), torch.device("cuda")
    assert engine.loading_precision(GRPOConfig(), gpu, 100_000_000) == default
    assert engine.loading_precision(GRPOConfig(fp16=True), gpu, 100_000_000) == "fp16"
    assert OurEngine().loading_precision(GRPOConfig(), gpu, 100_000_000) is None


def test_vllm_options_reach_trl_or_are_refused(monkeypatch, checkpoint_name):
    assert plan.VLLM_OPTIONS.keys() <= {field.name for field in fields(trl_trainer.trl.GRPOConfig)}
    server = {"engine": "trl", "use_vllm": True, "vllm_mode": "server", "vllm_server_host": "a", "vllm_server_port": 1}
    if plan.find_spec("vllm") is None:
        with pytest.raises(ImportError, match="vllm is not installed; pip install .vllm., on an NVIDIA GPU"):
            plan.make_engine(RunOptions(server))
    monkeypatch.setattr(plan, "find_spec", lambda package: package)
    vllm = plan.make_engine(RunOptions(server)).vllm
    theirs = trl_trainer.trl_config(GRPOConfig(precision="fp32"), use_cpu=True, vllm=vllm)
    for name, value in server.items() - {("engine", "trl")}:
        assert getattr(theirs, name) == value
    engine = plan.make_engine(RunOptions({"engine": "trl", "use_vllm": True}))
    if not torch.cuda.is_available():
        with pytest.raises(
            ValueError, match="vllm_mode is 'colocate'; expected an NVIDIA GPU, which this machine does"
        ):
            engine.run(RunInputs(*load_policy(checkpoint_name), ROWS, letter_reward, make_config()))


def test_the_file_of_our_own_run_trains_on_trl_with_a_table_of_differences(tmp_path):
    file = tmp_path / "grpo_config.json"
    saved = GRPOConfig(log_kl=True, precision="bf16", num_iterations=2, max_steps=7).as_dict() | {"model": "tiny"}
    file.write_text(json.dumps(saved), encoding="utf-8")
    arguments = ["--config", str(file), "--output_dir", str(tmp_path / "out")]
    assert train_command.read_options(arguments).settings["precision"] == "bf16"
    options = train_command.read_options([*arguments, "--engine", "trl"])
    assert "log_kl" not in options.explicit
    assert options.settings["precision"] == "fp32-master" and options.settings["max_steps"] == 7
    config = config_of_options(options, 10**7, "cuda")
    trl_settings.check_settings(config)
    table = trl_settings.differences_table(config, options.changed_settings)
    rows = {line.split()[0]: line for line in table.splitlines()}
    assert rows["log_kl"].split(maxsplit=2)[1:] == ["true", "measured only with beta above 0"]
    assert rows["precision"].split(maxsplit=2)[1:] == ["bf16", "fp32-master: 16 bytes per parameter, not 6"]
    assert "14 updates, which are 7 steps" in rows["max_steps"] and "transformers' generate" in rows["sampler"]
    typed = train_command.read_options([*arguments, "--engine", "trl", "--precision", "bf16"])
    with pytest.raises(ValueError, match="precision is 'bf16', which only our optimizer has"):
        trl_settings.check_settings(config_of_options(typed, 10**7, "cuda"))
