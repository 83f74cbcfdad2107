"""The table of what TRL does with each setting is complete, and what it says of TRL is what TRL's GRPOConfig has."""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

from grpo_lab.command_options import option_actions
from grpo_lab.config import SETTINGS, GRPOConfig
from grpo_lab.objective import LOSSES, Loss
from grpo_lab.train import train_parser
from grpo_lab.train.trl import file, table
from grpo_lab.train.trl.settings import EngineDifference, adapt_settings_of_file, check_settings
from grpo_lab.train.trl.table import (
    LOSSES_IN_TRL,
    ONLY_IN_OUR_LOOP,
    OUR_SETTINGS,
    TABLE_PARTS,
    TRL_TABLE,
    UNSUPPORTED_NAMES,
    Converted,
    Handling,
    NoEffect,
    OtherVersion,
    OurOption,
    OurSetting,
    Renamed,
    Unit,
    loss_refusal,
    settings_counted_in,
    settings_handled,
)
from tests.parity.engines import require_engine

PACKAGE = Path(table.__file__).parents[2]
TABLE_FILE = "grpo_lab/train/trl/table.py"


@pytest.fixture
def trl_fields():
    """Return the fields of TRL's GRPOConfig by name."""
    return {field.name: field for field in fields(require_engine("trl").GRPOConfig)}


def unclassified(settings, table) -> str:
    """Return a sentence on the settings without a line in the table and the lines without a setting; "" for none."""
    missing, superfluous = sorted(settings - table), sorted(table - settings)
    sentences = []
    if missing:
        sentences.append(f"{TABLE_FILE} does not say what --engine trl does with {', '.join(missing)}: add a line.")
    if superfluous:
        sentences.append(f"{TABLE_FILE} has lines for {', '.join(superfluous)}, which are no settings: remove them.")
    return " ".join(sentences)


def test_every_setting_has_a_line_in_the_table():
    problems = unclassified(SETTINGS.keys(), OUR_SETTINGS.keys())
    assert not problems, problems


def test_a_setting_that_nobody_classified_is_named():
    problems = unclassified({*SETTINGS, "my_width"}, OUR_SETTINGS.keys())
    assert problems == f"{TABLE_FILE} does not say what --engine trl does with my_width: add a line."
    assert "remove them" in unclassified(SETTINGS.keys() - {"seed"}, OUR_SETTINGS.keys())


def test_a_line_says_what_its_handling_needs():
    for name, entry in OUR_SETTINGS.items():
        assert bool(entry.refusal) == (entry.handling is Handling.REFUSED), name
        assert not entry.drop_reason or entry.refusal, name
        assert entry.unit is None or entry.handling is Handling.TRANSLATED, name
        assert entry.is_in_trl or entry.handling is not Handling.UNCHANGED, name


def test_the_table_has_the_names_and_defaults_of_trl(trl_fields):
    assert {name for name, entry in OUR_SETTINGS.items() if entry.is_in_trl} == SETTINGS.keys() & trl_fields.keys()
    for name, default in table.TRL_DEFAULTS_OF_RUN.items():
        assert trl_fields[name].default == default, name
        assert SETTINGS[name].default != default, f"{name}: the default here is TRL's, and needs no line"


@pytest.fixture
def script_fields():
    """Return the fields of TRL's ModelConfig and ScriptArguments by name."""
    trl = require_engine("trl")
    return {field.name: field for kind in (trl.ModelConfig, trl.ScriptArguments) for field in fields(kind)}


def test_every_name_of_trl_has_exactly_one_entry(trl_fields, script_fields):
    assert sum(map(len, TABLE_PARTS)) == len(TRL_TABLE), "a name stands in two parts"
    assert sum(map(len, table.NO_EFFECT_REASONS.values())) == len(table.NO_EFFECT_NAMES), "a name has two reasons"
    names_of_trl = trl_fields.keys() | script_fields.keys()
    assert names_of_trl <= TRL_TABLE.keys() - table.OTHER_VERSIONS.keys(), "a name of another version has come back"
    known = names_of_trl | {"reward_model_name_or_path", "env", "datasets"}
    ours = {name for name, entry in OUR_SETTINGS.items() if not entry.is_in_trl}
    assert TRL_TABLE.keys() - table.OTHER_VERSIONS.keys() - ours <= known
    assert {entry.successor for entry in table.OTHER_VERSIONS.values()} - {None} <= known


def test_the_entry_of_an_option_of_the_command_is_an_option():
    """These three mean something else in a file for TRL."""
    otherwise = {"num_train_epochs": Converted, "warmup_ratio": OtherVersion, "fsdp": NoEffect}
    options = option_actions(train_parser())
    for name, entry in TRL_TABLE.items():
        if name in options:
            assert type(entry) is otherwise.get(name, OurSetting if name in SETTINGS else OurOption), name
        else:
            assert not isinstance(entry, OurOption), name
        assert not isinstance(entry, Renamed) or entry.option in options, name


def test_neutral_values_and_defaults_are_trls(trl_fields, script_fields):
    all_fields = trl_fields | script_fields
    for name, entry in UNSUPPORTED_NAMES.items():
        if name in trl_fields:
            assert trl_fields[name].default in (None, *entry.neutral_values), name
    for name, default in table.TRL_DEFAULTS_TO_TRANSLATE.items():
        assert all_fields[name].default == default, name


def test_a_setting_that_counts_steps_has_a_unit_and_is_converted_from_updates():
    """The values of a file for TRL with two updates per rollout are halved, for these settings and no others."""
    counted = {*settings_counted_in(Unit.UPDATES), *settings_counted_in(Unit.STEPS)}
    assert counted == {name for name in SETTINGS if name.endswith("_steps")} - {
        "gradient_accumulation_steps", "max_nonfinite_steps",
    }  # fmt: skip
    content = dict.fromkeys(counted, 20) | {"per_device_train_batch_size": 8, "generation_batch_size": 16}
    content |= {"eval_strategy": "steps", "sync_ref_model": True, "ref_model_mixup_alpha": 1.0, "beta": 0.1}
    content |= {"log_completions": True, "output_dir": "out", "num_generations": 4}
    options = file.translate(content, option_actions(train_parser()), {"task": "sums"}).options
    assert {name for name, value in options.items() if content.get(name) == 2 * value} == counted


def test_a_loss_that_trl_lacks_and_one_of_the_user_are_refused(monkeypatch):
    assert LOSSES.keys() >= LOSSES_IN_TRL and not any(map(loss_refusal, LOSSES_IN_TRL))
    monkeypatch.setitem(LOSSES, "mine", Loss(lambda batch, settings: batch.logp, "update_tokens", ()))
    monkeypatch.setitem(LOSSES, "mine.py:mine", LOSSES["mine"])
    for name, reason in {"mine": "TRL has no such loss", "mine.py:mine": ONLY_IN_OUR_LOOP}.items():
        with pytest.raises(ValueError, match=f"loss_type is '{name}'; leave it out with --engine trl: {reason}"):
            check_settings(GRPOConfig(loss_type=name))


def test_a_refused_setting_in_the_file_of_a_run_is_dropped_if_the_training_is_the_same_without_it():
    changed = {"log_kl": True, "max_nonfinite_steps": 7, "tool_timeout": 5.0}
    settings, dropped = adapt_settings_of_file(changed, {})
    assert settings == {"tool_timeout": 5.0} and dropped.keys() == {"log_kl", "max_nonfinite_steps"}
    assert dropped["max_nonfinite_steps"] == EngineDifference(7, OUR_SETTINGS["max_nonfinite_steps"].drop_reason)
    assert adapt_settings_of_file(changed, changed) == (changed, {}), "what was typed stays, and is refused"
    assert {*changed} <= {*settings_handled(Handling.REFUSED)}


@pytest.mark.parametrize("part", ["base", "config", "objective", "advantages"])
def test_settings_and_formulas_do_not_name_trl(part):
    """Neither an import of TRL or of `grpo_lab.train`, nor a name of the table."""
    folder = PACKAGE / part
    for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert not any(name == "trl" or name.startswith(("trl.", "grpo_lab.train.")) for name in names), path
            assert not (isinstance(node, ast.keyword) and node.arg in ("trl", "is_in_trl")), path
