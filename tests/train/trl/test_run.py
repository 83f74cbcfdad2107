"""Tests that a run with `--engine trl` has the gradients, weights and files of our own loop on the same completions."""

import copy
import json
import signal
from dataclasses import replace

import pytest
import torch

from grpo_lab import evaluate
from grpo_lab import train as train_command
from grpo_lab.base import Stopped
from grpo_lab.models import add_lora, load_policy
from grpo_lab.train.engines import OurEngine
from grpo_lab.trainer import train
from grpo_lab.trainer.run.folder import RunFolder
from tests.parity.engines import require_engine
from tests.support.refusals import refusal_of
from tests.support.replay import replay_on_trl, train_and_record
from tests.support.resuming import file_names, metrics_in
from tests.support.small_policy import letter_reward, make_config, same_weights, weights, without_times

require_engine("trl")
trl_run = pytest.importorskip("grpo_lab.train.trl.run")
pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
ROWS = [{"prompt": [{"role": "user", "content": f"{n}+1=?"}], "answer": str(n + 1)} for n in range(4)]
QUICK = [
    *("--num_generations", "4", "--generation_batch_size", "8", "--max_completion_length", "4", "--max_steps", "2"),
    *("--disable_tqdm", "true", "--engine", "trl", "--task", "short-sums"),
]


def with_a(completions, prompts, answer, completion_ids):
    """A reward function without **kwargs, to which TRL's trainer would pass more arguments."""
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
def test_the_same_completions_make_the_same_gradients_metrics_and_weights(name, checkpoint_name):
    config = make_config(max_steps=3, seed=1, reward_weights=[1.0, 0.5], **RUNS[name])
    model, tokenizer = load_policy(checkpoint_name, precision="fp32")
    arguments = (ROWS, [letter_reward, with_a], config)
    policy = copy.deepcopy(model)
    ours, our_updates, rollouts = train_and_record(model, tokenizer, *arguments)
    theirs, their_updates = replay_on_trl(rollouts, policy, tokenizer, *arguments)
    assert len(our_updates) == len(their_updates) == config.updates_per_step * config.max_steps
    for our_update, their_update in zip(our_updates, their_updates, strict=True):
        torch.testing.assert_close(their_update["gradients"], our_update["gradients"], rtol=1e-3, atol=2e-6)
    # Adam makes a step of 0.01, the learning rate, for any gradient. The gradient of a key's bias is mostly a rounding
    # error, so the weights differ.
    torch.testing.assert_close(weights(policy), weights(model), rtol=1e-4, atol=1e-4)
    compare_metrics(ours, theirs, config)


def compare_metrics(ours, theirs, config, name="with_a"):
    """Compare all metrics except times and those that TRL defines differently.

    TRL's entropy is a mean over all updates and over the tokens in the loss, and its grad_norm is of the last update.
    """
    shared = ours[0].keys() & theirs[0].keys()
    assert {"step", "loss", "reward", "reward_std", f"rewards/{name}/mean", "num_tokens"} < shared
    defined_otherwise = {"step_time", "entropy"} | ({"grad_norm"} if config.updates_per_step > 1 else set())
    for our_line, their_line in zip(ours, theirs, strict=True):
        for key in sorted(shared - defined_otherwise):
            assert their_line[key] == pytest.approx(our_line[key], rel=1e-3, abs=1e-5), (our_line["step"], key)


def test_logged_metrics_and_coroutine_rewards_are_the_same_on_both_engines(checkpoint_name):
    async def waits(completions, log_metric, trainer_state, **kwargs):
        log_metric("length/mean", sum(len(completion[0]["content"]) for completion in completions))
        log_metric("length/mean", trainer_state.global_step)
        return [float(len(completion[0]["content"])) for completion in completions]

    config = make_config(max_steps=2, num_iterations=2, beta=0.0)
    model, tokenizer = load_policy(checkpoint_name, precision="fp32")
    arguments = (ROWS, [waits, with_a], config)
    policy = copy.deepcopy(model)
    ours, _, rollouts = train_and_record(model, tokenizer, *arguments)
    theirs, _ = replay_on_trl(rollouts, policy, tokenizer, *arguments)
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

    trl_run.train(model, tokenizer, ROWS, watch, make_config(max_steps=1, precision="fp32"))
    assert len(seen) == 8
    for text, ids in seen:
        written = tokenizer.decode(ids, skip_special_tokens=True)
        assert text == (written if written.startswith("<think>") else "<think>" + written)


DROPPING = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"


def test_prompts_that_trl_would_render_otherwise_are_refused(checkpoint_name):
    model, tokenizer = load_policy(checkpoint_name, precision="fp32")
    tokenizer.chat_template = DROPPING
    rows = [row | {"prompt": [{"role": "system", "content": "abc"}, *row["prompt"]]} for row in ROWS]
    with pytest.raises(ValueError, match="engine is trl, which makes its own prompts, and the chat template drops the"):
        trl_run.train(model, tokenizer, rows, letter_reward, make_config(max_steps=1))


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_writes_the_folder_that_evaluate_takes(checkpoint_name, tmp_path, capsys):
    out = str(tmp_path / "out")
    run = ["--model", checkpoint_name, "--output_dir", out, *QUICK]
    assert train_command.main([*run, "--eval_steps", "2", "--num_iterations", "2"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert [line.get("eval/reward") is not None for line in lines] == [False, True]
    assert [line["learning_rate"] for line in lines] == pytest.approx([4e-5, 8e-5])
    saved = json.loads((tmp_path / "out" / "grpo_config.json").read_text("utf-8"))
    assert saved["engine"] == "trl" and saved["precision"] == "fp32" and saved["num_generations"] == 4
    assert [folder.name for folder in tmp_path.glob("out/checkpoint-*")] == ["checkpoint-2"]
    assert not list(tmp_path.rglob("training_args.bin"))
    capsys.readouterr()
    measured = ["--task", "short-sums", "--n", "2", "--num_generations", "1", "--max_completion_length", "4"]
    assert evaluate.main(["--model", out, *measured]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 2
    assert refusal_of(train_command.main, *run).endswith("and the name of this folder)")


@pytest.mark.slow
def test_an_interrupted_or_stopped_run_on_trl_resumes_to_the_bit(checkpoint_name, tmp_path):
    """The runs are equal to the bit, with a reference model, several updates per step and evaluations."""
    settings = {"max_steps": 5, "save_steps": 2, "beta": 0.1, "num_iterations": 2, "eval_steps": 2}
    settings |= {"lr_scheduler_type": "linear", "per_device_train_batch_size": 4}

    def run(name, callback=None, rows=ROWS, **changes):
        model, tokenizer = load_policy(checkpoint_name)
        config = make_config(output_dir=str(tmp_path / name), **settings | changes)
        history = trl_run.train(model, tokenizer, rows, letter_reward, config, callback, eval_dataset=ROWS[:2])
        return weights(model), without_times(history)

    def fail(step, metrics):
        if step == 3:
            raise RuntimeError("broken")

    def stop(step, metrics):
        if step == 4:
            signal.raise_signal(signal.SIGINT)

    whole, history = run("whole")
    with pytest.raises(RuntimeError, match="broken"):
        run("broken", fail)
    with pytest.raises(ValueError, match="dataset differs from that of the run"):
        run("broken", resume_from_checkpoint=True, rows=ROWS[:3])
    with pytest.raises(Stopped, match=r"after step 4 of 5 by Ctrl-C. '.*/checkpoint-4' is saved. Go on with resume"):
        run("broken", stop, resume_from_checkpoint=True)
    again, same_history = run("broken", resume_from_checkpoint=True)
    assert same_weights(again, whole) and same_history == history
    ours, theirs = (without_times(metrics_in(tmp_path / name)) for name in ("whole", "broken"))
    assert ours == theirs and [line["step"] for line in theirs] == [1, 2, 3, 4, 5]
    assert file_names(tmp_path / "whole") == file_names(tmp_path / "broken") and not list(
        tmp_path.rglob("training_args.bin")
    )


def test_a_signal_in_the_last_step_still_saves_the_trained_model(checkpoint_name, tmp_path):
    def run(name, last_step=None):
        def stop(step, metrics):
            if step == last_step:
                signal.raise_signal(signal.SIGINT)

        config = make_config(output_dir=str(tmp_path / name), max_steps=2)
        trl_run.train(*load_policy(checkpoint_name), ROWS, letter_reward, config, stop)

    run("whole")
    with pytest.raises(Stopped, match=r"^Stopped after its last step by Ctrl-C. '.*/checkpoint-2' is saved. "):
        run("stopped", last_step=2)
    assert file_names(tmp_path / "whole") == file_names(tmp_path / "stopped")
    with pytest.raises(Stopped, match="^Stopped after step 1 of 2 by Ctrl-C"):
        run("unfinished", last_step=1)
    assert not (tmp_path / "unfinished/model.safetensors").exists(), "there is no trained model yet"


def test_a_signal_while_the_trained_model_is_written_is_reported(checkpoint_name, tmp_path, monkeypatch):
    save_model = RunFolder.save_model

    def signal_and_save(*arguments):
        signal.raise_signal(signal.SIGTERM)
        save_model(*arguments)

    monkeypatch.setattr(RunFolder, "save_model", signal_and_save)
    config = make_config(output_dir=str(tmp_path), max_steps=1)
    with pytest.raises(Stopped, match="^Stopped after its last step by SIGTERM"):
        trl_run.train(*load_policy(checkpoint_name), ROWS, letter_reward, config)
    assert (tmp_path / "model.safetensors").exists()


def test_resuming_a_run_of_another_engine_or_number_of_processes_is_refused(checkpoint_name, tmp_path, monkeypatch):
    first_config = make_config(output_dir=str(tmp_path))
    resumed_config = replace(first_config, resume_from_checkpoint=True)
    trl_run.train(*load_policy(checkpoint_name), ROWS, letter_reward, first_config)
    with pytest.raises(ValueError, match=r"engine differs .*\(engine: was 'trl', is 'grpo_lab'"):
        train(*load_policy(checkpoint_name), ROWS, letter_reward, resumed_config)
    with pytest.raises(ValueError, match=r"engine differs .*\(lora_r: was None, is 2"):
        trl_run.train(*load_policy(checkpoint_name), ROWS, letter_reward, resumed_config, lora=LORA)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="WORLD_SIZE is 2; expected 1, the number of processes of the run in"):
        trl_run.train(*load_policy(checkpoint_name), ROWS, letter_reward, resumed_config)
    with pytest.raises(ValueError, match="WORLD_SIZE is 2; expected 1: our own loop has one process; --engine trl"):
        OurEngine().check(first_config)


def test_completions_are_written_as_our_own_loop_writes_them(checkpoint_name, tmp_path):
    config = make_config(output_dir=str(tmp_path / "out"), log_completions=True, logging_steps=3, max_steps=4)
    history = trl_run.train(
        *load_policy(checkpoint_name), ROWS, [letter_reward, with_a], replace(config, reward_weights=[1.0, 0.5])
    )
    records = [json.loads(line) for line in (tmp_path / "out/completions.jsonl").read_text("utf-8").splitlines()]
    assert [record["step"] for record in records] == [3] * 8 + [4] * 8, "every third, and the last"
    for step, of_step in ((3, records[:8]), (4, records[8:])):
        for record in of_step:
            rewards = record["rewards"]
            assert rewards.keys() == {"letter_reward", "with_a"} and rewards["with_a"] == float(
                "a" in record["completion"]
            )
            assert record["reward"] == pytest.approx(rewards["letter_reward"] + 0.5 * rewards["with_a"])
            assert record["prompt"] in [row["prompt"] for row in ROWS]
        assert sum(record["reward"] for record in of_step) / 8 == pytest.approx(history[step - 1]["reward"], abs=1e-5)
        assert sum(record["advantage"] for record in of_step) == pytest.approx(0, abs=1e-4)


# --- LoRA -----------------------------------------------------------------------------------

LORA = {"lora_r": 2, "lora_alpha": 6, "lora_dropout": 0.0, "lora_target_modules": ["q_proj", "down_proj"]}


def test_with_lora_the_same_completions_make_the_same_gradients_as_in_our_own_loop(checkpoint_name, tmp_path):
    pytest.importorskip("peft")
    config = make_config(max_steps=3, beta=0.1, num_iterations=2, loss_type="grpo", seed=4)
    model, tokenizer = load_policy(checkpoint_name, precision="fp32")
    policy, _ = load_policy(checkpoint_name, precision="fp32")
    add_lora(model, seed=config.seed, **LORA)
    ours, expected, rollouts = train_and_record(model, tokenizer, ROWS, letter_reward, config)
    config = replace(config, output_dir=str(tmp_path / "out"))
    theirs, updates = replay_on_trl(rollouts, policy, tokenizer, ROWS, letter_reward, config, lora=LORA)
    assert len(expected) == len(updates) == 6 and len(expected[0]["gradients"]) == 8
    for our_update, their_update in zip(expected, updates, strict=True):
        torch.testing.assert_close(their_update["gradients"], our_update["gradients"], rtol=1e-3, atol=2e-6)
    torch.testing.assert_close(weights(policy), weights(model), rtol=1e-4, atol=1e-4)
    compare_metrics(ours, theirs, config, name="letter_reward")
    frozen = {name: value for name, value in weights(model).items() if "lora_" not in name}
    assert all(torch.equal(value, policy.state_dict()[name]) for name, value in frozen.items())
    assert {"adapter_model.safetensors", "adapter_config.json"} < {path.name for path in (tmp_path / "out").iterdir()}
    assert not list(tmp_path.rglob("model.safetensors"))
    ids = torch.arange(12)[None]
    for folder in ("out", "out/checkpoint-3"):
        loaded = load_policy(tmp_path / folder, precision="fp32")[0]
        torch.testing.assert_close(loaded(ids).logits, policy.eval()(ids).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["grpo_lab", "trl"])
def test_the_command_trains_an_adapter_and_goes_on_with_it(engine, checkpoint_name, tmp_path, capsys):
    pytest.importorskip("peft")
    out = str(tmp_path / "out")
    run = [
        "--model",
        checkpoint_name,
        "--output_dir",
        out,
        *QUICK,
        "--engine",
        engine,
        "--save_steps",
        "1",
        "--eval_steps",
        "2",
    ]
    lora = ["--use_peft", "--lora_r", "2", "--lora_target_modules", "all-linear"]
    reward = ["--reward_funcs", "tests.support.small_policy:letter_reward"]
    assert train_command.main([*run, *lora, *reward]) == 0
    assert train_command.main(["--resume_from_checkpoint", out, "--max_steps", "3", *reward]) == 0
    assert "Resumed at step 2 of 3" in capsys.readouterr().out
    saved = json.loads((tmp_path / "out" / "grpo_config.json").read_text("utf-8"))
    assert (saved["use_peft"], saved["lora_r"], saved["lora_target_modules"]) == (True, 2, ["all-linear"])
    measured = ["--task", "short-sums", "--n", "2", "--num_generations", "1", "--max_completion_length", "4"]
    assert evaluate.main(["--model", out, *measured, *reward]) == 0
    refusal = ["--model", out, "--output_dir", str(tmp_path / "second"), *QUICK, "--engine", engine, *lora]
    assert train_command.main(refusal) == 2
    assert "--use_peft is on, and the model has an adapter already" in capsys.readouterr().err
    unknown = ["--model", checkpoint_name, "--output_dir", str(tmp_path / "third"), *QUICK, "--engine", engine]
    assert train_command.main([*unknown, "--use_peft", "--lora_target_modules", "w_proj"]) == 2
    assert "--lora_target_modules is 'w_proj'; expected all-linear alone, or linear" in capsys.readouterr().err
