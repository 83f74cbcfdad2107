"""Both trainers are given the same settings, the same problems in the same order, and learn from them alike."""

import copy
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_lab.bench import against, train_worker
from grpo_lab.config import GRPOConfig
from grpo_lab.config.defaults import default_settings
from grpo_lab.tasks import TASKS, addition_problems
from grpo_lab.trainer import Run
from grpo_lab.trainer.optim import learning_rate

TRAINERS = ("ours", "trl")
SMALL = {"num_generations": 4, "generation_batch_size": 8, "max_completion_length": 8}
OTHER = {"beta": 0.1, "epsilon_high": 0.28, "delta": 3.0, "loss_type": "grpo", "scale_rewards": "batch", "top_k": 5}
OTHER |= {"temperature": 0.7, "top_p": 0.9, "adam_beta2": 0.95, "max_grad_norm": 0.5, "gradient_accumulation_steps": 2}

SMOLLM2 = 134_515_008  # parameters
LARGE = default_settings(SMOLLM2, TASKS["short-sums"], "cpu")
IN_PARTS = SMALL | {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}

# What is said differently there, or left unsaid: (ours, TRL's) -> whether the two mean the same run.
SAID_DIFFERENTLY = {
    "output_dir": lambda ours, trl: ours.output_dir is None and trl.save_strategy == "no",
    "save_steps": lambda ours, trl: ours.save_steps == 0 and trl.save_strategy == "no",
    "save_total_limit": lambda ours, trl: True,  # nothing is saved
    "resume_from_checkpoint": lambda ours, trl: not ours.resume_from_checkpoint and trl.resume_from_checkpoint is None,
    # Nothing is evaluated, and nothing but metrics is shown.
    "eval_steps": lambda ours, trl: ours.eval_steps is None and trl.eval_strategy == "no",
    "log_kl": lambda ours, trl: not ours.log_kl,
    "log_completions": lambda ours, trl: not ours.log_completions and not trl.log_completions,
    **dict.fromkeys(
        (
            "logging_steps",
            "num_completions_to_print",
            "num_generations_eval",
            "per_device_eval_batch_size",
            "run_name",
            "metric_for_best_model",
            "greater_is_better",
            "early_stopping_patience",
            "early_stopping_threshold",
        ),
        lambda ours, trl: True,
    ),
    "load_best_model_at_end": lambda ours, trl: not ours.load_best_model_at_end and not trl.load_best_model_at_end,
    "report_to": lambda ours, trl: ours.report_to == "none" and trl.report_to in ("none", ["none"], []),
    "advantage": lambda ours, trl: ours.advantage == "group",  # the only one there
    "kl_estimator": lambda ours, trl: ours.kl_estimator == "k3",  # the only one there
    "ref_model_sync_steps": lambda ours, trl: ours.ref_model_sync_steps is None and not trl.sync_ref_model,
    "ref_model_device": lambda ours, trl: ours.ref_model_device is None and trl.use_cpu,
    "lr_scheduler_type": lambda ours, trl: True,  # one function makes the rates of both; see the schedule's own test
    "precision": lambda ours, trl: ours.precision is None,  # the flags bf16 and fp16 say it, and they are the same
    "max_nonfinite_steps": lambda ours, trl: True,  # says when a broken run stops; nothing of the kind there
}
# Settings of TRL that would make its run another one, or burden it with work that ours does not do.
NEUTRAL_IN_TRL = {
    "use_cpu": True,
    "shuffle_dataset": False,
    "min_p": None,
    "generation_kwargs": None,
    "use_vllm": False,
    "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None,
    "use_adaptive_entropy": False,
    "use_liger_kernel": False,
    "torch_compile": False,
    "adam_epsilon": 1e-8,
    "logging_strategy": "no",
    "eval_strategy": "no",
    "log_completions": False,
    "dataloader_num_workers": 0,
    "torch_empty_cache_steps": None,
    "label_smoothing_factor": 0.0,
    "multi_objective_aggregation": "sum_then_normalize",
}


# --- the same settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, OTHER, LARGE | {"bf16": True}], ids=["defaults", "other", "large"])
def test_every_setting_means_the_same_in_trl(settings, tmp_path):
    pytest.importorskip("trl")
    ours = train_worker.our_config(3, 7, **settings)
    trl = train_worker.trl_config(ours, str(tmp_path))
    names = {field.name for field in fields(GRPOConfig)}
    assert names == set(train_worker.SAME_IN_TRL) | set(SAID_DIFFERENTLY), "a new setting: say what it is in TRL"
    for name in train_worker.SAME_IN_TRL:
        assert getattr(trl, name) == getattr(ours, name), name
    for name, agree in SAID_DIFFERENTLY.items():
        assert agree(ours, trl), name
    for name, value in NEUTRAL_IN_TRL.items():
        assert getattr(trl, name) == value, name
    assert trl.steps_per_generation == ours.gradient_accumulation_steps


def test_a_larger_model_has_the_settings_of_its_size_and_no_problem_twice_in_its_usual_run():
    model = SimpleNamespace(num_parameters=lambda: SMOLLM2, device=torch.device("cpu"))
    spec = {"task": against.task_for(SMOLLM2), "precision": "fp32-master"}
    chosen = train_worker.settings_for(model, spec)
    assert chosen == LARGE | {"bf16": True}
    config = train_worker.our_config(0, against.STEPS[spec["task"]], **chosen)
    assert (config.num_generations, config.generation_batch_size, config.max_completion_length) == (8, 64, 20)
    assert config.updates_per_step == 1 and config.learning_rate == 1e-5
    held_out, train = (
        {row["prompt"][-1]["content"] for row in TASKS[spec["task"]].rows(split)} for split in ("test", "train")
    )
    assert not held_out & train and len(train) >= config.max_steps * config.prompts_per_step


@pytest.fixture
def trl_trainer(tiny):
    pytest.importorskip("trl")
    model, tokenizer = tiny
    config = train_worker.our_config(1, 9, **SMALL, warmup_steps=4)
    rows = addition_problems("train", 100)
    trainer = train_worker.trl_trainer(model, tokenizer, rows, config, train_worker.Watch())
    return trainer, config, Run(model, tokenizer, rows, config)


def test_trl_has_our_optimizer_and_our_learning_rate_at_each_update(trl_trainer):
    trainer, config, _ = trl_trainer
    assert isinstance(trainer.optimizer, torch.optim.AdamW)
    for group in trainer.optimizer.param_groups:
        assert group["betas"] == (config.adam_beta1, config.adam_beta2)
        assert group["eps"] == torch.optim.AdamW([torch.zeros(1)]).defaults["eps"]
        assert group["weight_decay"] == config.weight_decay and group["initial_lr"] == config.learning_rate
    rates = []
    for _ in range(config.max_steps):
        rates.append(trainer.lr_scheduler.get_last_lr()[0])
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    c = config
    want = [learning_rate(k, c.learning_rate, c.warmup_steps, c.max_steps, c.lr_scheduler_type) for k in range(9)]
    assert rates == pytest.approx(want)


def test_trl_takes_the_problems_in_our_order_g_times_each(trl_trainer):
    trainer, config, run = trl_trainer
    batches = list(trainer.get_train_dataloader())
    assert len(batches) == config.max_steps
    for step, batch in enumerate(batches):
        wanted = [row for row in run.rows_of_step(step) for _ in range(config.num_generations)]
        assert [row["prompt"] for row in batch] == [row["prompt"] for row in wanted]
        assert [row["answer"] for row in batch] == [row["answer"] for row in wanted]


def test_trl_samples_neutrally_with_the_same_ends_in_float32(trl_trainer):
    from grpo_lab.rollout import end_token_ids

    trainer, config, _ = trl_trainer
    settings = trainer.generation_config
    assert settings.do_sample and settings.max_new_tokens == config.max_completion_length
    assert (settings.temperature, settings.top_k, settings.top_p) == (1.0, 0, 1.0)
    assert settings.repetition_penalty == 1.0 and settings.min_p is None
    assert sorted(settings.eos_token_id) == end_token_ids(trainer.model, trainer.processing_class)
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    assert {p.device.type for p in trainer.model.parameters()} == {"cpu"}
    assert not trainer.model.is_gradient_checkpointing and trainer.ref_model is None


class Products(TorchDispatchMode):
    """Notes the dtypes of all products of matrices, after autocast; those of a batch are the rotary embedding's."""

    def __init__(self):
        super().__init__()
        self.dtypes = set()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        name = function.overloadpacket.__name__
        if name in ("mm", "addmm") or name.startswith("_scaled_dot_product"):
            self.dtypes.add((name.removesuffix("_backward"), arguments[0].dtype, arguments[1].dtype))
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("fp32-master", torch.bfloat16)])
def test_both_compute_in_the_same_precision_and_keep_float32_weights(precision, dtype, tiny, monkeypatch, tmp_path):
    pytest.importorskip("trl")
    monkeypatch.setattr(train_worker.tempfile, "mkdtemp", lambda: str(tmp_path))
    rows, seen, histories = TASKS["sums"].rows("train", 50), {}, {}
    for trainer in TRAINERS:
        model, tokenizer = copy.deepcopy(tiny[0]), tiny[1]
        model.loaded_for = precision  # as load_policy leaves it
        spec = {"task": "sums", "precision": precision, "settings": IN_PARTS}
        config = train_worker.our_config(0, 1, **train_worker.settings_for(model, spec))
        watch = train_worker.Watch(lambda completions, **_: [float(place % 2) for place in range(len(completions))])
        go = train_worker.prepare(trainer, model, tokenizer, rows, config, watch)
        watch.start()
        with Products() as products:
            go()
        seen[trainer], histories[trainer] = products.dtypes, watch.history
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert any((p != q).any() for p, q in zip(model.parameters(), tiny[0].parameters(), strict=True))
    against.check_same_problems(histories["ours"], histories["trl"])
    assert seen["ours"] == seen["trl"]
    assert {kinds[1:] for kinds in seen["ours"]} == {(dtype, dtype)} and len(seen["ours"]) == 3


# --- the same work --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_both_learn_equally_much_from_the_same_kind_of_batches(tiny, monkeypatch):
    pytest.importorskip("trl")
    model, tokenizer = tiny
    steps, settings = 6, {"num_generations": 8, "generation_batch_size": 64, "max_completion_length": 40}
    spec = {"model": "tiny", "task": "sums", "precision": "fp32", "seed": 1, "steps": steps}
    spec |= {"settings": settings | {"learning_rate": 1e-5}}
    monkeypatch.setattr(train_worker, "HELD_OUT_PROBLEMS", 8)
    measured, moved = {}, {}
    for trainer in TRAINERS:
        policy = copy.deepcopy(model)
        monkeypatch.setattr(train_worker, "load_policy", lambda *a, policy=policy, **k: (policy, tokenizer))
        measured[trainer] = train_worker.measure(spec | {"trainer": trainer})
        pairs = zip(policy.parameters(), model.parameters(), strict=True)
        moved[trainer] = sum((after - before).square().sum() for after, before in pairs).sqrt().item()
    ours, trl = (measured[trainer]["history"] for trainer in TRAINERS)
    against.check_same_problems(ours, trl)
    assert len(set(ours["prompts"])) == steps, "each step has problems of its own"
    assert ours["rows"] == trl["rows"] == [64] * steps
    for history in (ours, trl):
        assert all(len(values) == steps for values in history.values())
        for clock in ("seconds", "cpu_seconds"):
            assert history[clock] == sorted(history[clock]) and history[clock][0] > 0
        assert all(0 <= reward <= 1 for reward in history["reward"])
    # The learning rate is too small to change what is sampled: the two differ by chance alone.
    assert sum(ours["tokens"]) == pytest.approx(sum(trl["tokens"]), rel=0.15)
    assert sum(ours["reward"]) / steps == pytest.approx(sum(trl["reward"]) / steps, abs=0.1)
    assert moved["ours"] == pytest.approx(moved["trl"], rel=0.15) and moved["ours"] > 0
    for result in measured.values():
        assert result["peak_memory"] > result["memory_before"] > 0 and 0 <= result["held_out_accuracy"] <= 1
