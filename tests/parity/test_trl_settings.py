"""Settings with a name of the installed TRL have the same default, type and meaning, or a row in our tables."""

import typing
from dataclasses import fields
from itertools import product

import pytest
import torch

from grpo_lab.base.option import union_members
from grpo_lab.config import SETTINGS
from grpo_lab.config.settings import SCHEDULES, scheduled_learning_rate
from grpo_lab.trainer.optim import PolicyOptimizer
from tests.parity.engines import require_engine
from tests.support.small_policy import make_config, make_policy
from tests.support.trl_differences import MEANINGS, OTHER_DEFAULTS

trl = require_engine("trl")
OURS, TRLS = SETTINGS, {field.name: field for field in fields(trl.GRPOConfig)}
SHARED = OURS.keys() & TRLS.keys()


def test_the_tables_name_settings_that_are_shared():
    assert {*OTHER_DEFAULTS, *MEANINGS} <= SHARED and len(SHARED) > 40


def test_the_table_of_defaults_is_exactly_what_differs():
    defaults = {name: (OURS[name].default, TRLS[name].default) for name in SHARED}
    different = {
        name: pair for name, pair in defaults.items() if pair[0] != pair[1] or type(pair[0]) is not type(pair[1])
    }
    if isinstance(TRLS["lr_scheduler_type"].default, str):  # a string, or a string enumeration
        different["lr_scheduler_type"] = tuple(map(str, different["lr_scheduler_type"]))
    equal = {name for name, (ours, theirs) in different.items() if ours == theirs}  # for example 50 and 50.0
    assert set(OTHER_DEFAULTS) == different.keys() - equal and all(MEANINGS.values())


@pytest.mark.parametrize("name", sorted(SHARED))
def test_setting_types_are_accepted_by_trl(name):
    ours, theirs = (set(union_members(config[name].type)) for config in (OURS, TRLS))
    theirs |= {int} if float in theirs else set()
    theirs |= {float} if float in theirs else set()
    if OURS[name].default is None:
        ours -= {type(None)}  # the help of the setting explains None
    if name == "resume_from_checkpoint":
        assert ours == {bool} and name in MEANINGS
        return
    assert {typing.get_origin(kind) or kind for kind in ours} <= {typing.get_origin(kind) or kind for kind in theirs}


def transformers_rates(kind, warmup_steps, max_steps, updates):
    """Return transformers' learning rate of every update, including updates after the end of the run."""
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler = get_scheduler(kind, optimizer, warmup_steps * updates, max_steps * updates)
    rates = []
    for _ in range((max_steps + warmup_steps + 1) * updates):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_schedule_is_that_of_transformers_seen_at_the_first_update_of_each_step(kind):
    """Our warm-up is one step ahead, so that the first step has a learning rate above 0."""
    for warmup_steps, max_steps, updates in product((0, 1, 4, 9), (1, 4, 12), (1, 3)):
        theirs = transformers_rates(kind, warmup_steps, max_steps, updates)
        rise = transformers_rates("constant_with_warmup", warmup_steps, max_steps, updates)
        for step in range(max_steps):
            rising = step < warmup_steps and kind != "constant"
            expected = rise[(step + 1) * updates] if rising else theirs[step * updates]
            got = scheduled_learning_rate(step, 0.3, warmup_steps, max_steps, kind)
            assert got == pytest.approx(expected, rel=1e-12), (warmup_steps, max_steps, updates, step)


def test_weight_decay_here_includes_norms_and_biases_which_transformers_spares():
    from transformers import Trainer

    model, _ = make_policy()
    names = {name for name, _ in model.named_parameters()}
    spared = names - set(Trainer.get_decay_parameter_names(None, model))
    assert spared and all("norm" in name or name.endswith("bias") for name in spared)
    (group,) = PolicyOptimizer(model, make_config(weight_decay=0.1)).adamw.param_groups
    assert len(group["params"]) == len(names) and group["weight_decay"] == 0.1
