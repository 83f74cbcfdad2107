"""Options as they are declared: their groups, intervals and choices, and the condition under which they are read."""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from grpo_lab.base import Parser
from grpo_lab.base.checks import InputError
from grpo_lab.base.option import (
    Interval,
    NamedCode,
    changed_values,
    check_unused,
    check_value,
    option,
    option_specs,
    unused_options,
)
from grpo_lab.command_options import add_options

LOSSES = {"clip": SimpleNamespace(reads=("width",)), "plain": SimpleNamespace(reads=())}


@dataclass(frozen=True)
class Options:
    verbose: bool = option(False, "whether to print more")
    loss: str = option("plain", "the loss", group="objective", choices=LOSSES, named_code=NamedCode.FORMULA)
    width: float = option(0.2, "the width", at_least=0, below=1)
    engine: str = option("ours", "the engine", choices=("ours", "trl"))
    gpus: int = option(1, "the number of GPUs", at_least=1, group="engine", read_if={"engine": "trl"})
    correction: bool | None = option(None, "whether to correct", read_if={"engine": "trl"}, default_text="TRL's")
    details: bool = option(False, "whether to print all", read_if={"verbose": True, "gpus": 2})


SPECS = option_specs(Options)


def test_group_of_an_option_is_that_of_the_last_field_that_names_one():
    expected = {"": ["verbose"], "objective": ["loss", "width", "engine"], "engine": ["gpus", "correction", "details"]}
    assert {name: spec.group for name, spec in SPECS.items()} == {
        name: group for group, names in expected.items() for name in names
    }


@pytest.mark.parametrize(
    ("interval", "text", "inside", "outside"),
    [
        (Interval(), "(-inf, inf)", [-1e300, 0, 10**400], [math.inf, -math.inf, math.nan]),
        (Interval(0, 1, includes_low=True), "[0, 1)", [0, 0.5], [-1e-9, 1, math.nan]),
        (Interval(0, 1, includes_high=True), "(0, 1]", [1e-9, 1], [0, 1.1, math.inf]),
        (Interval(0, includes_high=True), "(0, inf]", [1, math.inf], [0, math.nan]),
    ],
)
def test_interval_has_its_closed_ends_and_infinity_only_as_a_closed_end(interval, text, inside, outside):
    assert str(interval) == text
    assert all(value in interval for value in inside) and not any(value in interval for value in outside)


def test_value_outside_its_interval_or_choices_is_refused():
    for name, value, message in [
        ("width", 1.0, r"width is 1.0; it must lie in \[0, 1\)"),
        ("width", math.inf, "width is inf; expected a finite number"),
        ("engine", "verl", "engine is 'verl'; expected one of 'ours', 'trl'"),
    ]:
        with pytest.raises(InputError, match=message):
            check_value(SPECS[name], value)
    check_value(SPECS["correction"], None)


def test_option_that_nothing_reads_is_refused_with_the_reason():
    for explicit, name, reason in [
        ({"width": 0.3}, "width", "loss = 'plain', only with 'clip'"),
        ({"width": 0.2}, "width", "loss = 'plain', only with 'clip'"),  # the default, but it was chosen
        ({"gpus": 2}, "gpus", "engine = 'ours', only with 'trl'"),
        ({"correction": False}, "correction", "engine = 'ours', only with 'trl'"),
        ({"details": True}, "details", "verbose = False and gpus = 1, only with 2"),
    ]:
        with pytest.raises(InputError) as caught:
            check_unused(explicit, SPECS)
        assert str(caught.value) == f"{name} is {explicit[name]!r}; leave it out: nothing reads it with {reason}"
    for explicit in (
        {"width": 0.3, "loss": "clip"},
        {"gpus": 2, "engine": "trl", "details": True},  # one of the two conditions of `details` holds
        {"details": False},  # off
        {"correction": None},
    ):
        check_unused(explicit, SPECS)


def test_changed_values_are_those_that_differ_from_the_defaults():
    values = {name: spec.default for name, spec in SPECS.items()} | {"width": 0.5, "verbose": True}
    assert changed_values(values, SPECS) == {"verbose": True, "width": 0.5}
    assert dict(unused_options(changed_values(values, SPECS), SPECS)).keys() == {"width"}


def test_command_line_is_made_from_the_declarations():
    parser = Parser(prog="python -m grpo_lab.example")
    add_options(parser, SPECS.values())
    options = parser.parse_args(["--verbose", "--details", "false", "--correction", "none", "--width", "0.5"])
    assert (options.verbose, options.details, options.correction, options.width) == (True, False, None, 0.5)
    lines = " ".join(parser.format_help().split())
    for text in (
        "--gpus N the number of GPUs; read with --engine trl (default: 1)",
        "--correction [true|false] whether to correct; read with --engine trl (default: TRL's)",
        "whether to print all; read with --verbose or --gpus 2 (default: false)",
        "--loss NAME the loss; one of clip, plain (default: plain)",
    ):
        assert text in lines, text
