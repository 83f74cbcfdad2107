"""The benchmark compares like with like, and its ratios are what it says. Nothing here is timed."""

import copy
import functools
import json
from dataclasses import fields

import pytest
import torch

from grpo_lab.bench import __main__ as command
from grpo_lab.bench import against, head, train_worker
from grpo_lab.config import GRPOConfig
from grpo_lab.optim import learning_rate
from grpo_lab.run import Run
from grpo_lab.tasks import addition_problems

SMALL = {"num_generations": 4, "generation_batch_size": 8, "max_completion_length": 8}
OTHER = {"beta": 0.1, "epsilon_high": 0.28, "delta": 3.0, "loss_type": "grpo", "scale_rewards": "batch", "top_k": 5}
OTHER |= {"temperature": 0.7, "top_p": 0.9, "adam_beta2": 0.95, "max_grad_norm": 0.5, "gradient_accumulation_steps": 2}

# What is said differently there, or left unsaid: (ours, TRL's) -> whether the two mean the same run.
SAID_DIFFERENTLY = {
    "output_dir": lambda ours, trl: ours.output_dir is None and trl.save_strategy == "no",
    "save_steps": lambda ours, trl: ours.save_steps == 0 and trl.save_strategy == "no",
    "resume_from_checkpoint": lambda ours, trl: not ours.resume_from_checkpoint and trl.resume_from_checkpoint is None,
    "report_to": lambda ours, trl: ours.report_to == "none" and trl.report_to in ("none", ["none"], []),
    "advantage": lambda ours, trl: ours.advantage == "group",  # the only one there
    "kl_estimator": lambda ours, trl: ours.kl_estimator == "k3",  # the only one there
    "ref_model_sync_steps": lambda ours, trl: ours.ref_model_sync_steps is None and not trl.sync_ref_model,
    "ref_model_device": lambda ours, trl: ours.ref_model_device is None and trl.use_cpu,
    "lr_scheduler_type": lambda ours, trl: True,  # one function makes the rates of both; see the schedule's own test
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


@pytest.mark.parametrize("settings", [{}, SMALL, OTHER], ids=["defaults", "small", "other"])
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


def test_only_one_update_a_step_is_compared():
    with pytest.raises(ValueError, match="updates_per_step is 2"):
        train_worker.our_config(0, 5, num_iterations=2)


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


# --- the same work --------------------------------------------------------------------------------------------------


def test_both_learn_equally_much_from_the_same_kind_of_batches(tiny, monkeypatch):
    pytest.importorskip("trl")
    model, tokenizer = tiny
    steps, settings = 6, {"num_generations": 8, "generation_batch_size": 64, "max_completion_length": 40}
    spec = {"model": "tiny", "seed": 1, "steps": steps, "settings": settings | {"learning_rate": 1e-5}}
    monkeypatch.setattr(train_worker, "HELD_OUT_PROBLEMS", 8)
    measured, moved = {}, {}
    for trainer in train_worker.TRAINERS:
        policy = copy.deepcopy(model)
        monkeypatch.setattr(train_worker, "load_policy", lambda *a, policy=policy, **k: (policy, tokenizer))
        measured[trainer] = train_worker.measure(spec | {"trainer": trainer})
        pairs = zip(policy.parameters(), model.parameters(), strict=True)
        moved[trainer] = sum((after - before).square().sum() for after, before in pairs).sqrt().item()
    ours, trl = (measured[trainer]["history"] for trainer in train_worker.TRAINERS)
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


def test_different_problems_are_no_comparison():
    ours = {"prompts": ["a", "b"], "rows": [8, 8]}
    against.check_same_problems(ours, copy.deepcopy(ours))
    for name, wrong in [("prompts", ["a", "c"]), ("rows", [8, 4])]:
        with pytest.raises(RuntimeError, match=f"different {name} at step 2"):
            against.check_same_problems(ours, ours | {name: wrong})


# --- the arithmetic -------------------------------------------------------------------------------------------------


def record(seconds, rewards, **more):
    history = {"seconds": seconds, "cpu_seconds": [s / 2 for s in seconds], "reward": rewards}
    history["tokens"] = [100] * len(seconds)
    history |= {"rows": [8] * len(seconds), "prompts": ["same"] * len(seconds)}
    return {"history": history, "held_out_accuracy": 0.5, "peak_memory": 300, "memory_before": 100} | more


def test_figures_of_a_run():
    rewards = [0.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0]  # means of five: 0.6, 0.8, 0.9
    figures = against.figures(record([4.0, 5.0, 6.0, 7.0, 8.5, 9.5, 10.0], rewards), accuracy=0.8)
    assert figures == {
        "seconds_per_step": 1.0,  # of 4, 1, 1, 1, 1.5, 1, 0.5: the slow first step does not count for more than one
        "time_to_accuracy": 9.5,
        "cpu_seconds_per_step": 0.5,
        "cpu_time_to_accuracy": 4.75,
        "steps_to_accuracy": 6,
        "tokens_per_second": 70.0,
        "peak_memory": 300,
        "training_memory": 200,
        "held_out_accuracy": 0.5,
    }


def test_an_accuracy_that_is_not_reached_is_none():
    figures = against.figures(record([1.0] * 5, [1.0] * 4 + [0.9]), accuracy=0.99)
    missing = {name for name, value in figures.items() if value is None}
    assert missing == {"time_to_accuracy", "cpu_time_to_accuracy", "steps_to_accuracy"}


def pair(ours, trl):
    figures = dict.fromkeys((key for key, *_ in against.ROWS), 1.0)
    return {"seed": 0, "ours": figures | {"time_to_accuracy": ours}, "trl": figures | {"time_to_accuracy": trl}}


def test_ratios_are_taken_pair_by_pair():
    # Slow and fast hours of the machine: the ratio of the medians would be 1.
    summary = against.summarise([pair(1.0, 2.0), pair(10.0, 20.0), pair(2.0, 1.0)])["time_to_accuracy"]
    assert summary == {"ours": 2.0, "trl": 2.0, "ratio": 0.5, "ratio_min": 0.5, "ratio_max": 2.0, "pairs": 3}


def test_a_pair_without_a_time_makes_no_ratio():
    summary = against.summarise([pair(None, 2.0), pair(3.0, 4.0), pair(3.0, None)])["time_to_accuracy"]
    assert summary == {"ours": 3.0, "trl": 3.0, "ratio": 0.75, "ratio_min": 0.75, "ratio_max": 0.75, "pairs": 1}
    summary = against.summarise([pair(None, 2.0)])["time_to_accuracy"]
    assert summary == {"ours": None, "trl": 2.0, "ratio": None, "ratio_min": None, "ratio_max": None, "pairs": 0}


# --- pairs of runs, with stubs in place of training -----------------------------------------------------------------


class Stub:
    """In place of a fresh process: TRL is twice as slow, and slower still with each run."""

    def __init__(self):
        self.specs = []

    def __call__(self, module, spec, threads):
        self.specs.append((module, spec, threads))
        step = len(self.specs) * (2.0 if spec["trainer"] == "trl" else 1.0)
        return record([step * k for k in range(1, 7)], [1.0] * 6)


def test_runs_alternate_and_share_everything_but_the_trainer(capsys):
    stub = Stub()
    report = against.compare([5, 6], 6, 0.8, threads=2, model="tiny", run=stub)
    assert [(spec["seed"], spec["trainer"]) for _, spec, _ in stub.specs] == [
        (5, "ours"),
        (5, "trl"),
        (6, "trl"),
        (6, "ours"),
    ]
    rest = {json.dumps({k: v for k, v in spec.items() if k not in ("seed", "trainer")}) for _, spec, _ in stub.specs}
    assert len(rest) == 1 and {(module, threads) for module, _, threads in stub.specs} == {(against.WORKER, 2)}
    steps = report["summary"]["seconds_per_step"]
    assert (steps["ours"], steps["trl"]) == (2.5, 5.0)  # medians of 1 and 4, of 4 and 6
    assert (steps["ratio_min"], steps["ratio_max"]) == (1 / 4, 4 / 6)
    assert [p["seed"] for p in report["pairs"]] == [5, 6] and len(report["pairs"][0]["trl"]["history"]["reward"]) == 6
    json.dumps(report)


def test_the_table_shows_the_summary():
    report = against.compare([0, 1], 6, 0.8, run=Stub())
    report["summary"]["time_to_accuracy"] |= {"ours": None, "ratio": None, "pairs": 0}
    report["summary"]["steps_to_accuracy"] |= {"pairs": 1}
    lines = against.table(report).splitlines()
    assert "2 pair(s)" in lines[0] and "1 torch thread" in lines[0] and "6 steps" in lines[0]
    row = {line[:30].strip(): line[30:].split() for line in lines[2:]}
    assert row["seconds per step"] == ["2.500", "5.000", "0.46", "(0.25..0.67)"]
    assert row["seconds to accuracy"] == ["not", "reached", "25.0", "no", "pair"]
    assert row["steps to accuracy"][-5:] == ["in", "1", "of", "2", "pairs"]
    assert len(row) == len(against.ROWS)


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "one of the arguments --against --head is required"),
        ("--against trl --head", "not allowed with argument"),
        ("--against verl", "invalid choice: 'verl'"),
        ("--against trl --steps 4", "4; the running reward needs at least 5"),
        ("--against trl --accuracy 1.5", "1.5; it has to be greater than 0 and at most 1"),
        ("--against trl --accuracy 0", "0; it has to be greater than 0"),
        ("--against trl --threads 0", "0; it has to be at least 1"),
        ("--head --tokens -5", "-5; it has to be at least 1"),
        ("--head --repeats many", "invalid"),
        ("--head --dtype int8", "invalid choice: 'int8'"),
    ],
)
def test_argument_errors(arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        command.main(arguments.split())
    assert error.value.code == 2 and message in capsys.readouterr().err


def test_without_trl_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(head, "is_installed", lambda package: False)
    with pytest.raises(SystemExit):
        command.main(["--against", "trl"])
    assert "trl is not installed; pip install trl==" in capsys.readouterr().err


def test_against_prints_the_table_and_writes_all_of_it(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(head, "is_installed", lambda package: True)
    monkeypatch.setattr(against, "compare", functools.partial(against.compare, run=Stub()))
    file = tmp_path / "report.json"
    command.main(f"--against trl --seeds 4 7 9 --steps 6 --accuracy 0.7 --json {file.as_posix()}".split())
    report = json.loads(file.read_text(encoding="utf-8"))
    assert capsys.readouterr().out.strip() == against.table(report)
    assert [p["seed"] for p in report["pairs"]] == [4, 7, 9]
    assert report["setup"] == {"steps": 6, "accuracy": 0.7, "threads": 1, "model": "tiny", "settings": {}}
    assert report["machine"]["torch"] == torch.__version__ and report["machine"]["device"] == "cpu"
