"""Tests of translating TRL configurations: each name gets a note, and batches and steps are those of TRL."""

import importlib.util
import json
import math
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from grpo_lab import train as train_command
from grpo_lab.base.checks import InputError
from grpo_lab.command_options import option_actions
from grpo_lab.config import SETTINGS, GRPOConfig
from grpo_lab.config.lora import LORA_DEFAULTS
from grpo_lab.train.engines import OurEngine
from grpo_lab.train.options import RunOptions
from grpo_lab.train.plan import make_engine, with_epochs_as_steps
from grpo_lab.train.trl import file as trl_file
from grpo_lab.train.trl.file import SETTINGS_NOT_IN_TRL, NoteKind, is_from_trl, translate
from grpo_lab.train.trl.table import OTHER_VERSIONS, TRL_TABLE, TRL_VERSION
from tests.parity.engines import require_engine
from tests.support.options_config import config_of_options
from tests.support.trl_differences import MEANINGS

trl = require_engine("trl")
OPTION_NAMES = option_actions(train_command.train_parser()).keys()
TRL_FIELDS = {field.name: field for field in fields(trl.GRPOConfig)}


def make_trl_config(folder, **settings) -> "trl.GRPOConfig":
    return trl.GRPOConfig(output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", **settings)


BATCHES = [
    {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4},
    {"gradient_accumulation_steps": 2},
    {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 8},
    {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_iterations": 3},
    {"per_device_train_batch_size": 8, "generation_batch_size": 32},
    {"per_device_train_batch_size": 8, "generation_batch_size": 32, "gradient_accumulation_steps": 4},
]


@pytest.mark.parametrize("dump", [False, True], ids=["yaml", "dump"])
@pytest.mark.parametrize("sizes", BATCHES, ids=str)
def test_translated_batch_updates_and_epochs_are_trls(sizes, dump, tmp_path):
    """An epoch here has as many updates as in TRL's trainer, and each has as many completions."""
    theirs = make_trl_config(tmp_path, num_generations=4, num_train_epochs=3, **sizes)
    content = theirs.to_dict() if dump else {"num_train_epochs": 3, "num_generations": 4, "dataset_name": "x"} | sizes
    result = translate(content, OPTION_NAMES, {"task": "sums"})
    assert not result.refused_names
    settings = {name: value for name, value in result.options.items() if name in SETTINGS}
    ours = GRPOConfig(**settings)
    assert (ours.generation_batch_size, ours.num_generations) == (theirs.generation_batch_size, 4)
    assert ours.update_batch_size == theirs.per_device_train_batch_size * theirs.gradient_accumulation_steps
    rows = 103
    sampler = trl.trainer.utils.RepeatSampler(
        range(rows), 4, theirs.generation_batch_size // 4, theirs.num_iterations * theirs.steps_per_generation
    )
    loader = len(sampler) // (theirs.per_device_train_batch_size * theirs.steps_per_generation)
    updates = math.ceil(theirs.num_train_epochs * math.ceil(loader / theirs.gradient_accumulation_steps))
    assert (
        with_epochs_as_steps(ours, RunOptions(stored=result.options), rows).max_steps * ours.updates_per_step == updates
    )


def test_a_dump_of_several_processes_keeps_its_batch_and_updates():
    dump = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 2}
    result = translate(dump | {"generation_batch_size": 64, "local_rank": 0}, OPTION_NAMES, {})
    ours = GRPOConfig(**{name: value for name, value in result.options.items() if name in SETTINGS})
    assert (ours.generation_batch_size, ours.microbatch_size, ours.update_batch_size) == (64, 4, 64)
    assert "those of 8 processes" in result.notes_by_kind[NoteKind.OTHER_MEANING]["gradient_accumulation_steps"]


def test_settings_counted_in_updates_are_converted_to_steps():
    two = {"per_device_train_batch_size": 8, "generation_batch_size": 16, "dataset_name": "x"}
    content = two | {"max_steps": 101, "save_steps": 50, "warmup_steps": 9, "eval_strategy": "steps", "eval_steps": 20}
    content |= {"sync_ref_model": True, "ref_model_sync_steps": 10, "ref_model_mixup_alpha": 1.0, "beta": 0.1}
    result = translate(content | {"logging_steps": 3, "log_completions": True}, OPTION_NAMES, {"task": "sums"})
    counts = {"max_steps": 51, "save_steps": 25, "warmup_steps": 5, "eval_steps": 10, "logging_steps": 2}
    counts["ref_model_sync_steps"] = 5
    assert {name: result.options[name] for name in counts} == counts and "num_train_epochs" not in result.options
    assert (
        result.notes_by_kind[NoteKind.OTHER_MEANING]["max_steps"] == "101 updates: 51 steps of 2 each"
        and not result.refused_names
    )
    once = translate(content | {"generation_batch_size": 8}, OPTION_NAMES, {"task": "sums"})
    assert once.options["max_steps"] == 101 and once.notes_by_kind[NoteKind.SAME_MEANING]["max_steps"] == "101"
    off = translate(two | {"eval_steps": 20, "save_strategy": "no", "logging_steps": 3}, OPTION_NAMES, {"task": "sums"})
    assert off.options["save_steps"] == 0 and not {"eval_steps", "logging_steps"} & off.options.keys()
    mixed = translate(two | {"sync_ref_model": True, "beta": 0.1}, OPTION_NAMES, {"task": "sums"})
    assert mixed.refused_names == ["ref_model_mixup_alpha"] and mixed.options["ref_model_sync_steps"] == 256


@pytest.mark.parametrize(
    ("warmup", "expected"),
    [
        ({"warmup_steps": 0, "warmup_ratio": 0.1}, {"warmup_ratio": 0.1}),
        ({"warmup_steps": 0, "warmup_ratio": 0.0}, {"warmup_steps": 0}),
        ({"warmup_steps": 5, "warmup_ratio": 0.1}, {"warmup_steps": 5}),
        ({"warmup_ratio": 1.0}, {"warmup_ratio": 1.0}),
        ({"warmup_steps": 1}, {"warmup_steps": 1}),
    ],
    ids=str,
)
def test_warmup_steps_of_0_leave_the_warmup_to_warmup_ratio(warmup, expected):
    """As in transformers 4, whose dumps hold both names; a ratio of 1 is the whole training and not one step."""
    content = warmup | {"max_steps": 100, "dataset_name": "x"}
    options = translate(content, OPTION_NAMES, {"task": "sums"}).options
    assert {name: options[name] for name in ("warmup_ratio", "warmup_steps") if name in options} == expected
    typed = {"task": "sums", "warmup_steps": 7}
    assert not {"warmup_ratio", "warmup_steps"} & translate(content, OPTION_NAMES, typed).options.keys()


@pytest.mark.parametrize(
    ("ratio", "name"),
    [({"warmup_ratio": 0.1}, NoteKind.ANOTHER_VERSION), ({"warmup_steps": 0.1}, NoteKind.OTHER_MEANING)],
    ids=str,
)
def test_warmup_ratio_is_converted_to_steps(ratio, name):
    result = translate(ratio | {"num_train_epochs": 2, "dataset_name": "x"}, OPTION_NAMES, {"task": "sums"})
    settings = {name: value for name, value in result.options.items() if name in SETTINGS}
    config = with_epochs_as_steps(GRPOConfig(**settings), RunOptions(stored=result.options), 45)
    assert (config.prompts_per_step, config.max_steps, config.warmup_steps) == (1, 90, 9)
    assert {*ratio} <= result.notes_by_kind[name].keys() and "warmup_steps" in result.notes_by_kind[
        NoteKind.OTHER_MEANING
    ]


@pytest.mark.parametrize("name", ["warmup_ratio", "warmup_steps"])
def test_a_warmup_in_a_file_has_no_effect_with_a_constant_rate_as_in_trl(name):
    content = {name: 0.1, "lr_scheduler_type": "constant", "max_steps": 20}
    result = translate(content, OPTION_NAMES, {"task": "sums"})
    assert not {"warmup_ratio", "warmup_steps"} & result.options.keys()
    assert result.notes_by_kind[NoteKind.NO_EFFECT]["warmup_steps"] == (
        "nothing reads it with lr_scheduler_type = 'constant'"
    )


def test_translation_notes_classify_each_name():
    content = {
        "model_name_or_path": "tiny", "dataset_name": "org/set", "learning_rate": 1e-5, "use_vllm": True, "min_p": 0.1,
        "vllm_mode": "server", "use_peft": False, "lora_r": 16, "max_prompt_length": 512, "use_liger_loss": True,
        "epsilom": 1, "scale_rewards": False, "use_bias_correction_kl": True, "optim": "adamw_torch",
        "logging_first_step": True, "resume_from_checkpoint": "there", "torch_dtype": "bfloat16", "env": {"A": "1"},
        "lr_scheduler_type": "polynomial", "report_to": ["tensorboard", "wandb"],
    }  # fmt: skip
    result = translate(content, OPTION_NAMES, {"output_dir": "out"})
    assert set(result.refused_names) == {"dataset_name", "min_p", "dtype", "epsilom", "lr_scheduler_type"}
    assert result.notes_by_kind[NoteKind.UNKNOWN] == {"epsilom": "did you mean epsilon?"}
    assert (
        "1.0" not in result.notes_by_kind[NoteKind.UNSUPPORTED]["min_p"]
        and "take top_p" in result.notes_by_kind[NoteKind.UNSUPPORTED]["min_p"]
    )
    assert result.notes_by_kind[NoteKind.ANOTHER_VERSION].keys() == {
        "max_prompt_length",
        "use_liger_loss",
        "torch_dtype",
    }
    quiet = {"lora_r", "use_liger_kernel", "logging_first_step", "resume_from_checkpoint", "env"}
    assert quiet | {"use_bias_correction_kl", "optim"} == result.notes_by_kind[NoteKind.NO_EFFECT].keys()
    options = result.options
    assert (options["use_vllm"], options["vllm_mode"], options["use_peft"]) == (True, "server", False)
    assert (options["model"], options["scale_rewards"], options["seed"]) == ("tiny", "none", 42)
    assert options["report_to"] == ["tensorboard", "wandb"] and result.trl_defaults["num_generations"] == 8
    table = result.table("x.yaml")
    assert all(name in table for name in content) and max(map(len, table.splitlines())) <= 120
    typed = translate(content, OPTION_NAMES, {"task": "sums", "lr_scheduler_type": "linear", "precision": "fp32"})
    assert set(typed.refused_names) == {"min_p", "dtype", "epsilom"}


def test_adapters_and_vllm_of_a_file_become_options_if_on(tmp_path, monkeypatch):
    monkeypatch.setattr("grpo_lab.train.plan.find_spec", lambda name: name)
    dump = make_trl_config(tmp_path).to_dict() | {"fsdp": "full_shard auto_wrap"}
    off = translate(
        dump | {"lora_r": 8, "use_dora": True, "lora_modules_to_save": ["x"]}, OPTION_NAMES, {"task": "sums"}
    )
    assert not off.refused_names and make_engine(RunOptions(stored=off.options)) == OurEngine()
    assert {"vllm_mode", "vllm_server_port", "lora_r", "use_dora", "fsdp"} <= off.notes_by_kind[
        NoteKind.NO_EFFECT
    ].keys()
    lora = {"use_peft": True, "lora_r": 8, "lora_target_modules": ["q_proj", "v_proj"], "use_rslora": False}
    vllm = {"use_vllm": True, "vllm_importance_sampling_correction": False}
    on = translate(dump | lora | vllm, OPTION_NAMES, {"engine": "trl"})
    assert not on.refused_names and on.trl_defaults == {"lora_dropout": 0.05}, "TRL's default"
    engine = make_engine(RunOptions({"engine": "trl"}, on.options))
    assert engine.lora == LORA_DEFAULTS | {
        "lora_r": 8, "lora_dropout": 0.05, "lora_target_modules": ["q_proj", "v_proj"],
    }  # fmt: skip
    assert engine.vllm["vllm_importance_sampling_correction"] is False and "vllm_server_port" not in engine.vllm
    with pytest.raises(InputError, match="use_vllm is True; leave it out: nothing reads it with engine"):
        make_engine(RunOptions({"lora_dropout": 0.0}, on.options))
    ours = translate({"dataset_name": "x"} | lora, OPTION_NAMES, {"task": "sums"})
    assert not ours.refused_names and make_engine(RunOptions(stored=ours.options)).lora["lora_dropout"] == 0
    assert "TRL's default is 0.05" in ours.notes_by_kind[NoteKind.OTHER_MEANING]["lora_dropout"]
    assert translate(lora | {"lora_dropout": 0.1}, OPTION_NAMES, {"task": "sums"}).refused_names == ["lora_dropout"]
    dora = translate(lora | {"use_dora": True, "lora_modules_to_save": ["lm_head"]}, OPTION_NAMES, {"task": "sums"})
    assert dora.refused_names == ["use_dora", "lora_modules_to_save"]
    file = tmp_path / "trl.yaml"
    file.write_text(yaml.safe_dump({"model_name_or_path": "tiny", "optim": "adamw_torch"} | lora), encoding="utf-8")
    read = train_command.read_options(["--config", str(file), "--output_dir", "out", "--lora_dropout", "0"])
    assert make_engine(read).lora == LORA_DEFAULTS | {"lora_r": 8, "lora_target_modules": ["q_proj", "v_proj"]}


def test_a_file_of_ours_is_never_taken_for_one_of_trls():
    assert not is_from_trl({"model": "tiny", "task": "sums"} | GRPOConfig().as_dict(), OPTION_NAMES)
    assert not is_from_trl({"beta": 0.04, "per_device_train_batch_size": 4, "num_train_epochs": 2}, OPTION_NAMES)
    assert not is_from_trl({"logging_first_step": None, "beta": 0.1}, OPTION_NAMES)
    for name in SETTINGS_NOT_IN_TRL:
        assert not is_from_trl({name: SETTINGS[name].default or 1, "logging_first_step": True}, OPTION_NAMES), name
    assert is_from_trl({"dataset_name": "x"}, OPTION_NAMES) and is_from_trl({"max_prompt_length": 5}, OPTION_NAMES)


def test_a_dump_of_trls_configuration_written_as_json_or_yaml_is_taken(tmp_path):
    """json.dump writes adam_epsilon as 1e-08, which is a text in YAML 1.1."""
    for name, text in (("dump.json", json.dumps), ("dump.yaml", yaml.safe_dump), ("short.yaml", str)):
        content = "optim: adamw_torch\nadam_epsilon: 1e-8\nlearning_rate: 2E-6\n"
        (tmp_path / name).write_text(
            content if text is str else text(make_trl_config(tmp_path).to_dict()), encoding="utf-8"
        )
        read = train_command.read_options(["--config", str(tmp_path / name), "--task", "sums", "--output_dir", "out"])
        config = config_of_options(read, 1000, "cpu")
        assert (config.learning_rate, config.trackers) == (2e-6 if text is str else 1e-6, ())


def test_trls_default_and_a_full_configuration_move_over(tmp_path):
    result = translate(make_trl_config(tmp_path).to_dict(), OPTION_NAMES, {"task": "sums"})
    assert not result.refused_names
    ours = GRPOConfig(**{name: value for name, value in result.options.items() if name in SETTINGS})
    for name in ("learning_rate", "num_generations", "seed", "beta", "epsilon", "loss_type", "max_completion_length"):
        assert getattr(ours, name) == TRL_FIELDS[name].default, name
    assert not result.trl_defaults, "a dump says everything"


def test_translation_reports_all_problems_before_training(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = {"dataset_name": "org/set", "use_vllm": True, "min_p": 0.1, "learning_rate": 1e-5}
    (tmp_path / "trl.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    assert train_command.main(["--config", "trl.yaml", "--output_dir", "out"]) == 2
    shown = capsys.readouterr()
    assert shown.out.startswith(f"trl.yaml, read as TRL {TRL_VERSION} reads it:\n  taken ")
    assert "--config is 'trl.yaml', which says what is not here: dataset_name, min_p; expected" in shown.err
    (tmp_path / "trl.json").write_text(json.dumps({"dataset_name": "org/set", "num_generations": 4}), encoding="utf-8")
    options = train_command.read_options(["--config", "trl.json", "--task", "sums", "--output_dir", "out"])
    config = config_of_options(options, 1000, "cpu")
    assert (config.num_generations, config.generation_batch_size, config.seed) == (4, 8, 42)
    options = train_command.read_options(
        ["--config", "trl.json", "--task", "sums", "--output_dir", "o", "--max_steps", "3"]
    )
    assert options.settings["max_steps"] == 3 and options.num_train_epochs is None


def test_rows_times_accumulation_are_the_batch_where_none_is_given(capsys):
    arguments = ["--output_dir", "out", "--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "4"]
    config = config_of_options(train_command.read_options(arguments), 1000, "cpu")
    assert (config.generation_batch_size, config.updates_per_step) == (32, 1)
    config = config_of_options(train_command.read_options([*arguments, "--generation_batch_size", "64"]), 1000, "cpu")
    assert (config.generation_batch_size, config.updates_per_step) == (64, 2)


def test_epochs_are_counted_and_cannot_be_given_beside_steps():
    options = train_command.read_options(["--output_dir", "out", "--num_train_epochs", "1.5", "--warmup_ratio", "0.1"])
    config = config_of_options(options, 1000, "cpu")
    counted = with_epochs_as_steps(config, options, 1000)
    assert (config.prompts_per_step, counted.max_steps, counted.warmup_steps) == (16, 93, 10)
    assert (
        with_epochs_as_steps(config, RunOptions(), 1000) is config
        and with_epochs_as_steps(config, RunOptions({"num_train_epochs": 0.1}), 3).max_steps == 1
    )
    assert "num_train_epochs" not in counted.as_dict()
    both = train_command.read_options(["--output_dir", "out", "--num_train_epochs", "1", "--max_steps", "2"])
    with pytest.raises(InputError, match="num_train_epochs is 1.0; leave it out, or max_steps"):
        config_of_options(both, 1000, "cpu")
    both = train_command.read_options(["--output_dir", "out", "--warmup_ratio", "0.5", "--warmup_steps", "7"])
    with pytest.raises(InputError, match="warmup_ratio is 0.5; leave it out, or warmup_steps"):
        config_of_options(both, 1000, "cpu")
    constant = RunOptions({"warmup_ratio": 0.1, "lr_scheduler_type": "constant"})
    refusal = "^warmup_ratio is 0.1; leave it out: nothing reads it with lr_scheduler_type = 'constant'"
    with pytest.raises(InputError, match=refusal):
        with_epochs_as_steps(config_of_options(constant, 1000, "cpu"), constant, 10)
    with pytest.raises(InputError, match="num_train_epochs is 0.0; it must lie in"):
        with_epochs_as_steps(config, RunOptions({"num_train_epochs": 0.0}), 10)


@pytest.mark.parametrize("size", ["4", 0, True, 2.5])
def test_a_batch_size_that_is_no_positive_integer_is_refused_by_name(size):
    with pytest.raises(InputError, match="per_device_train_batch_size is .*; expected a whole number of at least 1"):
        translate({"per_device_train_batch_size": size, "dataset_name": "x"}, OPTION_NAMES, {})


# What switches on the names that are otherwise ignored.
SWITCHES = {"use_peft": True, "sync_ref_model": True, "eval_strategy": "steps", "log_completions": True}


@pytest.mark.parametrize("value", ["100", "", [1], {"a": 1}, True, math.nan, math.inf, 0, -1], ids=repr)
def test_a_value_of_any_type_is_translated_or_refused_by_name(value):
    for name in [*TRL_TABLE, *OTHER_VERSIONS]:
        try:
            translate(SWITCHES | {name: value}, OPTION_NAMES, {"task": "sums"})
        except InputError as error:
            assert error.argument == name


@pytest.mark.parametrize("name", ["max_steps", "warmup_steps", "warmup_ratio", "num_train_epochs", "save_steps"])
def test_a_quoted_number_in_a_file_is_refused_unless_an_option_replaces_it(name, tmp_path):
    (tmp_path / "trl.yaml").write_text(f'dataset_name: x\n{name}: "100"\n', encoding="utf-8")
    arguments = ["--config", str(tmp_path / "trl.yaml"), "--task", "sums", "--output_dir", str(tmp_path / "out")]
    with pytest.raises(InputError, match=f"^{name} is '100'; expected a number without quotation marks, as in TRL"):
        train_command.read_options(arguments)
    replaced = translate({name: "100"}, OPTION_NAMES, {"max_steps": 3, "warmup_steps": 1, "save_steps": 2})
    assert name in replaced.noted_names


@pytest.mark.parametrize("name", ["num_iterations", "gradient_accumulation_steps", "generation_batch_size"])
def test_a_typed_size_of_zero_is_refused_before_anything_is_divided_by_it(name):
    typed = {"per_device_train_batch_size": 4, name: 0}
    with pytest.raises(InputError, match=f"^{name} is 0; it must lie in "):
        translate({"max_steps": 10}, OPTION_NAMES, typed)


@pytest.mark.parametrize("interval", [{"logging_steps": 5}, {"eval_steps": 20}], ids=str)
def test_a_typed_interval_of_evaluations_is_not_contradicted_by_the_table(interval):
    """What was typed runs, so the table neither shows another interval nor says that nobody read the strategy."""
    result = translate({"eval_strategy": "steps", **interval}, OPTION_NAMES, {"eval_steps": 50})
    assert "eval_steps" not in {*result.options, *result.notes_by_kind[NoteKind.SAME_MEANING]}
    assert result.notes_by_kind[NoteKind.NO_EFFECT]["eval_strategy"] == "eval_steps was typed"
    result = translate({"eval_strategy": "epoch"}, OPTION_NAMES, {"eval_steps": 50})
    assert not result.refused_names, "the note on eval_strategy says that --eval_steps is to be typed"


@pytest.mark.parametrize(
    ("content", "typed", "name"),
    [
        ({"save_strategy": "no"}, {"save_steps": 7}, "save_steps"),
        ({"max_steps": 100}, {"num_train_epochs": 2.0}, "max_steps"),
        ({"num_train_epochs": 2}, {"max_steps": 9}, "num_train_epochs"),
        ({"warmup_steps": 9}, {"warmup_ratio": 0.1}, "warmup_steps"),
        ({"sync_ref_model": True, "ref_model_mixup_alpha": 1}, {"ref_model_sync_steps": 5}, "ref_model_sync_steps"),
    ],
    ids=str,
)
def test_a_name_that_a_typed_option_replaces_is_not_taken(content, typed, name):
    result = translate(content, OPTION_NAMES, typed | {"beta": 0.1})
    assert name not in {
        *result.options,
        *result.notes_by_kind[NoteKind.SAME_MEANING],
        *result.notes_by_kind[NoteKind.OTHER_MEANING],
    }
    (replaced, (option,)) = next(iter(content)), typed
    assert result.notes_by_kind[NoteKind.NO_EFFECT][replaced] == f"{option} was typed"


def test_a_name_that_was_read_has_no_note_that_nothing_reads_it():
    content = {"eval_strategy": "steps", "save_strategy": "no", "sync_ref_model": True, "ref_model_mixup_alpha": 1.0}
    result = translate(content | {"beta": 0.1}, OPTION_NAMES, {})
    assert result.notes_by_kind[NoteKind.NO_EFFECT] == {
        "ref_model_mixup_alpha": "it is the same here, or nothing reads it"
    }
    assert {"eval_strategy", "save_strategy", "sync_ref_model"} <= result.notes_by_kind[NoteKind.OTHER_MEANING].keys()


def test_a_mixture_of_data_sets_in_a_file_is_refused_as_a_data_set_is_unless_the_task_is_typed():
    mixture = {"datasets": [{"path": "org/set"}], "num_generations": 4}
    refused = translate(mixture, OPTION_NAMES, {})
    assert refused.refused_names == ["datasets"]
    assert "type --task OWNER/NAME" in refused.notes_by_kind[NoteKind.UNSUPPORTED]["datasets"]
    replaced = translate(mixture, OPTION_NAMES, {"task": "sums"})
    assert not replaced.refused_names and replaced.notes_by_kind[NoteKind.NO_EFFECT]["datasets"] == "task was typed"


def test_a_default_that_nothing_reads_has_no_note():
    """TRL's default of use_bias_correction_kl is dropped without a KL term, and the file does not contain it."""
    result = translate({"learning_rate": 1e-5}, OPTION_NAMES, {})
    assert "use_bias_correction_kl" not in {*result.options, *result.trl_defaults, *result.noted_names}


def test_each_name_in_a_file_for_trl_has_one_note():
    """A converted number of steps that nothing reads is not noted as converted as well."""
    content = {"sync_ref_model": True, "ref_model_sync_steps": 10, "num_iterations": 2, "beta": 0.0}
    result = translate(content | {"ref_model_mixup_alpha": 1.0}, OPTION_NAMES, {})
    assert "ref_model_sync_steps" in result.notes_by_kind[NoteKind.NO_EFFECT]
    assert "ref_model_sync_steps" not in result.notes_by_kind[NoteKind.OTHER_MEANING]


def test_lines_of_the_translation_table_are_wrapped_at_its_width():
    lines = trl_file._wrapped("taken", [f"name_{number} 1" for number in range(40)], ": why")
    assert max(map(len, lines)) <= 120 and lines[0].startswith("  taken ") and lines[-1].endswith(": why")
    text = " ".join(line.strip().removeprefix("taken").strip() for line in lines)
    assert text == ", ".join(f"name_{number} 1" for number in range(40)) + ": why" and not trl_file._wrapped("x", [])


def test_the_page_of_all_settings_is_what_its_script_writes():
    path = Path(__file__).parents[3] / "docs" / "trl_table.py"
    spec = importlib.util.spec_from_file_location("trl_table", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text(encoding="utf-8") == script.page(MEANINGS), "python docs/trl_table.py writes it anew"


@pytest.mark.parametrize(
    ("in_file", "typed", "expected"),
    [
        ({"warmup_ratio": 0.5}, ["--warmup_steps", "7"], {"warmup_steps": 7}),
        ({"warmup_steps": 7}, ["--warmup_ratio", "0.5"], {"warmup_ratio": 0.5}),
        ({"num_train_epochs": 2.0}, ["--max_steps", "5"], {"max_steps": 5}),
        ({"max_steps": 5}, ["--num_train_epochs", "2"], {"num_train_epochs": 2.0}),
    ],
)
def test_a_typed_length_or_warmup_replaces_that_of_a_file(in_file, typed, expected, tmp_path):
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(in_file), encoding="utf-8")
    options = train_command.read_options(["--config", str(file), "--output_dir", "out", *typed])
    names = {"warmup_ratio", "warmup_steps", "num_train_epochs", "max_steps"}
    assert {name: options.explicit[name] for name in names & options.explicit.keys()} == expected
