"""`--engine trl` is our run on TRL: the same gradients and weights from the same completions, and the same folder."""

import copy
import json
from types import SimpleNamespace

import pytest
import torch

from grpo_lab import evaluate
from grpo_lab import train as command
from grpo_lab.config import SETTINGS, GRPOConfig, precision
from grpo_lab.models import load_policy
from grpo_lab.train.engines import options, settings
from grpo_lab.trainer import train
from tests.parity.engines import engine as installed
from tests.support.differences import MEANINGS
from tests.support.refused import refused
from tests.support.replay import recorded, replayed
from tests.support.worlds import letter_reward, make_config, weights

installed("trl")
trl = pytest.importorskip("grpo_lab.train.engines.trl")
trl_trainer = pytest.importorskip("grpo_lab.train.engines.trl_trainer")
pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
ROWS = [{"prompt": [{"role": "user", "content": f"{n}+1=?"}], "answer": str(n + 1)} for n in range(4)]
QUICK = [
    *("--num_generations", "4", "--generation_batch_size", "8", "--max_completion_length", "4", "--max_steps", "2"),
    *("--disable_tqdm", "true", "--engine", "trl", "--task", "short-sums"),
]


def with_a(completions, prompts, answer, completion_ids):
    """Takes no further keywords: TRL by itself would hand it some."""
    return [float("a" in completion[0]["content"]) for completion in completions]


# --- the same completions -------------------------------------------------------------------------------------------

RUNS = {
    "defaults, in two parts": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "several updates, KL, decay, clipping, warm-up": {
        "num_iterations": 2, "beta": 0.1, "loss_type": "grpo", "weight_decay": 0.1, "max_grad_norm": 0.5,
        "warmup_steps": 2, "lr_scheduler_type": "cosine", "adam_beta2": 0.9,
    },
    "sequences": {
        "loss_type": "dr_grpo", "importance_sampling_level": "sequence", "scale_rewards": "batch", "temperature": 0.7,
        "mask_truncated_completions": True, "num_iterations": 2, "epsilon": 0.001, "entropy_coef": 0.01,
        "ref_model_sync_steps": 2, "beta": 0.2, "max_grad_norm": float("inf"), "lr_scheduler_type": "linear",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_the_same_completions_make_the_same_gradients_metrics_and_weights(name, base):
    config = make_config(max_steps=3, seed=1, reward_weights=[1.0, 0.5], **RUNS[name])
    (model, tokenizer), rest = load_policy(base, precision="fp32"), (ROWS, [letter_reward, with_a], config)
    policy = copy.deepcopy(model)
    ours, wanted, rollouts = recorded(model, tokenizer, *rest)
    theirs, found = replayed(rollouts, policy, tokenizer, *rest)
    assert len(wanted) == len(found) == config.updates_per_step * config.max_steps
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other["gradients"], one["gradients"], rtol=1e-3, atol=2e-6)
    # Adam makes a step of the rate, 0.01, of the smallest gradient, too: of that of a key's bias, mostly of rounding.
    torch.testing.assert_close(weights(policy), weights(model), rtol=1e-4, atol=1e-4)
    compare_metrics(ours, theirs, config)


def compare_metrics(ours, theirs, config):
    """But for TRL's entropy, of all updates and of tokens in the loss; and grad_norm, there of the last update."""
    shared = ours[0].keys() & theirs[0].keys()
    assert {"step", "loss", "reward", "reward_std", "rewards/with_a/mean", "num_tokens"} < shared
    others = {"step_time", "entropy"} | ({"grad_norm"} if config.updates_per_step > 1 else set())
    for one, other in zip(ours, theirs, strict=True):
        for key in sorted(shared - others):
            assert other[key] == pytest.approx(one[key], rel=1e-3, abs=1e-5), (one["step"], key)


def test_what_rewards_log_and_coroutines_are_the_same_on_both(base):
    async def waits(completions, log_metric, trainer_state, **kwargs):
        log_metric("length/mean", sum(len(completion[0]["content"]) for completion in completions))
        log_metric("length/mean", trainer_state.global_step)
        return [float(len(completion[0]["content"])) for completion in completions]

    config = make_config(max_steps=2, num_iterations=2, beta=0.0)
    (model, tokenizer), rest = load_policy(base, precision="fp32"), (ROWS, [waits, with_a], config)
    policy = copy.deepcopy(model)
    ours, _, rollouts = recorded(model, tokenizer, *rest)
    theirs, _ = replayed(rollouts, policy, tokenizer, *rest)
    for name in ("length/mean", "rewards/waits/mean"):
        assert [line[name] for line in theirs] == pytest.approx([line[name] for line in ours]), name
    assert ours[1]["length/mean"] > 0


def test_trl_shows_the_rewards_the_thought_that_a_template_opens(tiny):
    model, tokenizer = tiny[0], copy.deepcopy(tiny[1])
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>"
    seen = []

    def watch(completions, completion_ids, **kwargs):
        seen.extend(zip([completion[0]["content"] for completion in completions], completion_ids, strict=True))
        return [float(len(ids)) for ids in completion_ids]

    trl.train(model, tokenizer, ROWS, watch, make_config(max_steps=1, precision="fp32"))
    assert len(seen) == 8
    for text, ids in seen:
        written = tokenizer.decode(ids, skip_special_tokens=True)
        assert text == (written if written.startswith("<think>") else "<think>" + written)


DROPPING = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"


def test_prompts_that_trl_would_get_wrong_are_refused(base):
    model, tokenizer = load_policy(base, precision="fp32")
    tokenizer.chat_template = DROPPING
    rows = [row | {"prompt": [{"role": "system", "content": "abc"}, *row["prompt"]]} for row in ROWS]
    with pytest.raises(ValueError, match="engine is trl, which makes its own prompts, and the chat template drops the"):
        trl.train(model, tokenizer, rows, letter_reward, make_config(max_steps=1))


# --- the settings ---------------------------------------------------------------------------------------------------

OTHER = {"beta": 0.1, "epsilon_high": 0.28, "delta": 3.0, "loss_type": "grpo", "scale_rewards": "batch", "top_k": 5}
OTHER |= {"temperature": 0.7, "top_p": 0.9, "adam_beta2": 0.95, "max_grad_norm": 0.5, "gradient_accumulation_steps": 2}
# Settings of TRL that would make its run another one, or burden it with work that ours does not do.
NEUTRAL_IN_TRL = {
    "use_cpu": True, "shuffle_dataset": False, "min_p": None, "generation_kwargs": None, "use_vllm": False,
    "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "use_adaptive_entropy": False,
    "use_liger_kernel": False, "torch_compile": False, "adam_epsilon": 1e-8, "eval_strategy": "no",
    "save_strategy": "no", "log_completions": False, "dataloader_num_workers": 0, "torch_empty_cache_steps": None,
    "label_smoothing_factor": 0.0, "multi_objective_aggregation": "sum_then_normalize",
}  # fmt: skip


@pytest.mark.parametrize("given", [{}, OTHER, {"num_iterations": 3, "ref_model_sync_steps": 4, "beta": 0.1}], ids=str)
def test_a_setting_goes_by_its_name_and_steps_become_updates(given):
    ours = GRPOConfig(precision="fp32-master", max_steps=7, **given)
    settings.check_settings(ours)
    theirs, updates = trl_trainer.trl_config(ours, use_cpu=True), ours.updates_per_step
    for name in settings.SAME:
        assert getattr(theirs, name) == getattr(ours, name), name
    for name, value in NEUTRAL_IN_TRL.items():
        assert getattr(theirs, name) == value, name
    assert (theirs.max_steps, theirs.logging_steps, theirs.bf16, theirs.fp16) == (7 * updates, updates, True, False)
    assert theirs.sync_ref_model == ("ref_model_sync_steps" in given)
    assert not theirs.sync_ref_model or theirs.ref_model_sync_steps == 4 * updates
    assert theirs.steps_per_generation == ours.gradient_accumulation_steps


def test_a_setting_that_trl_lacks_or_means_otherwise_is_refused_by_name():
    # What these two mean here the engine brings along: which parameters decay, and inf, which TRL takes as it is.
    assert set(settings.SAME) & MEANINGS.keys() == {"weight_decay", "max_grad_norm"}
    refused_ones = {name for name, each in SETTINGS.items() if each.metadata["trl"] not in ("same", "ours")}
    assert {"log_completions", "kl_estimator", "advantage"} < refused_ones
    for name in refused_ones:
        config = SimpleNamespace(**vars(GRPOConfig()) | {name: "another"})
        with pytest.raises(ValueError, match=f"^{name} is 'another'; leave it out with --engine trl: "):
            settings.check_settings(config)


REFUSED = [
    ("--engine trl --precision bf16", "--precision is 'bf16', which only our optimizer has; --engine trl takes fp32"),
    ("--engine trl --log_completions true", "--log_completions is True; leave it out"),
    ("--engine trl --resume_from_checkpoint true", "--resume_from_checkpoint is True; leave it out with --engine trl:"),
    ("--engine trl --save_steps 10", "--save_steps is 10; leave it out with --engine trl: it saves the end alone"),
    ("--engine trl --max_steps 0", "--max_steps is 0; it must be at least 1 with --engine trl"),
    ("--engine verl", "argument --engine: invalid choice: 'verl'"),
]


def test_a_wrong_option_is_refused_before_anything_is_loaded(tmp_path, monkeypatch):
    for arguments, message in REFUSED:
        assert message in refused(command.main, "--output_dir", str(tmp_path / "out"), *arguments.split())
    monkeypatch.setattr(options, "find_spec", lambda package: None)
    given = ["--output_dir", str(tmp_path / "out"), "--engine", "trl"]
    assert 'trl is not installed; pip install "grpo-lab[engines]"' in refused(command.main, *given)


@pytest.mark.parametrize(("native", "default"), [(True, "fp32-master"), (False, None)])
def test_on_a_card_trl_takes_float32_weights_where_our_own_optimizer_would_take_bf16(native, default, monkeypatch):
    monkeypatch.setattr(precision, "has_native_bf16", lambda device: native)
    engine, card = options.Engine("trl"), torch.device("cuda")
    assert engine.precision(GRPOConfig(), card, small=False) == default
    assert engine.precision(GRPOConfig(fp16=True), card, small=False) == "fp16"
    assert options.Engine().precision(GRPOConfig(), card, small=False) is None


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_writes_the_folder_that_evaluate_takes(base, tmp_path, capsys):
    out = str(tmp_path / "out")
    run = ["--model", base, "--output_dir", out, *QUICK]
    assert command.main([*run, "--eval_steps", "2", "--num_iterations", "2"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert [line.get("eval/reward") is not None for line in lines] == [False, True]
    assert [line["learning_rate"] for line in lines] == pytest.approx([4e-5, 8e-5])
    saved = json.loads((tmp_path / "out" / "grpo_config.json").read_text("utf-8"))
    assert saved["engine"] == "trl" and saved["precision"] == "fp32" and saved["num_generations"] == 4
    assert not list(tmp_path.glob("out/checkpoint-*")) and not list(tmp_path.rglob("training_args.bin"))
    capsys.readouterr()
    measured = ["--task", "short-sums", "--n", "2", "--num_generations", "1", "--max_completion_length", "4"]
    assert evaluate.main(["--model", out, *measured]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 2
    assert refused(command.main, *run).endswith("and the name of this folder)")


def test_what_another_engine_began_and_several_processes_are_refused(base, tmp_path, monkeypatch):
    run = [*load_policy(base), ROWS, letter_reward]
    begun, resumed = (make_config(output_dir=str(tmp_path), resume_from_checkpoint=again) for again in (False, True))
    trl.train(*run, begun)
    with pytest.raises(ValueError, match=r"engine differs .*\(engine: was 'trl', is 'grpo_lab'"):
        train(*load_policy(base), *run[2:], resumed)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in (options.OURS, options.TRL):
        with pytest.raises(ValueError, match="WORLD_SIZE is 2; expected 1"):
            options.Engine(name).check(begun)


def test_rewards_are_called_as_here_and_count_alike_where_none_applies():
    """The columns are those of our rows, and not as Arrow returns them; None stays None."""
    rows = [{"prompt": "a", "answer": (1, 2)}, {"prompt": "b", "answer": {3}}]
    seen = []

    def strict(prompts, completions, completion_ids, answer):
        seen.append((prompts, answer))
        return [None, 2.0]

    (function, other) = trl_trainer.as_trl_calls_them([strict, strict], rows)
    assert (function.__name__, other.__name__) == ("strict", "strict_2")
    given = {"prompts": ["b", "a"], "completions": ["x", "y"], "completion_ids": [[1], [2]], "row": [1, 0]}
    assert function(**given, trainer_state=None, log_metric=lambda *said: seen.append(said)) == [None, 2.0]
    assert seen == [(["b", "a"], [{3}, (1, 2)]), ("rewards/strict/frac_none", 0.5)]
