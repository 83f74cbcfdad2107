"""Write docs/trl.md, what each setting of TRL's GRPOConfig becomes in this package: `python docs/trl_table.py`."""

from dataclasses import MISSING, fields
from pathlib import Path

import trl

from grpo_lab.base.display import markdown_table
from grpo_lab.config import SETTINGS
from grpo_lab.config.arguments import option_actions
from grpo_lab.train import train_parser, trl_names
from grpo_lab.train.engines.trl_table import TRL_SETTINGS, Handling

PAGE = Path(__file__).with_name("trl.md")
HEAD = """# TRL's settings

Every setting of TRL {version}'s `GRPOConfig`: what it is in a run of this package, and with `--engine trl`.
`python docs/trl_table.py` writes this page from the tables by which `grpo-lab train --config FILE` reads a
configuration of TRL's ([commands](commands.md)). "another meaning" stands there, under
[the names of TRL](commands.md#the-names-of-trl-116). On several processes `per_device_train_batch_size` and
`gradient_accumulation_steps` say what all of them together take ([cluster](cluster.md)). Options of vLLM go to TRL as
they are; no run with vLLM was made.
"""
# With --engine trl there may be several processes, so reasons that assume a single process do not apply there.
OF_ONE_PROCESS = "there is one process; docs/cluster.md is for more"
OF_SEVERAL = {"fsdp": "`--fsdp`", "fsdp_config": "`--fsdp`", "ddp_find_unused_parameters": "done by this package"}
# What the page says of a setting of both: those that the engine refuses are no settings of TRL's.
ON_TRL = {Handling.UNCHANGED: "the same", Handling.TRANSLATED: "done by this package"}
TRANSLATED = {
    "num_train_epochs": "counted into max_steps",
    "steps_per_generation": "counted into generation_batch_size",
    "eval_strategy": "eval_steps is enough",
    "save_strategy": "no: save_steps 0",
    "sync_ref_model": "ref_model_sync_steps is enough",
    "ref_model_mixup_alpha": "1: the reference becomes the policy",
}


def page(meanings: dict[str, str]) -> str:
    """Return the page; `meanings` describes the settings of TRL's that have the same name here and another meaning."""
    options = option_actions(train_parser()).keys() - SETTINGS.keys() - set(TRANSLATED)
    rows = [_row(field, meanings, options) for field in fields(trl.GRPOConfig)]
    head = ("setting", "TRL's default", "here", "with `--engine trl`")
    return HEAD.format(version=trl_names.VERSION) + "\n" + markdown_table(head, rows) + "\n"


def _row(field, meanings: dict[str, str], options: set[str]) -> tuple[str, str, str, str]:
    name, default = field.name, field.default
    trl_default = "" if default is MISSING else f"`{default!s}`"
    if name in SETTINGS:
        ours = SETTINGS[name].default
        here = "another meaning" if name in meanings else "the same"
        here += "" if ours == default else f", default `{ours}`"
        return f"`{name}`", trl_default, here, ON_TRL[TRL_SETTINGS[name].handling]
    if name in TRANSLATED:
        return f"`{name}`", trl_default, TRANSLATED[name], "as here"
    if name in trl_names.VLLM_NAMES:
        return f"`{name}`", trl_default, "refused: this package samples with the model itself", "an option, not run"
    if name in trl_names.UNSUPPORTED:
        here = f"its default alone: {trl_names.UNSUPPORTED[name][1]}"
    else:
        here = f"no effect: {trl_names.WHY_NO_EFFECT[name]}"
    if trl_names.WHY_NO_EFFECT.get(name) == OF_ONE_PROCESS:
        engine = OF_SEVERAL.get(name, "TRL's default")
    else:
        engine = "an option" if name in options else "as here"
    return f"`{name}`", trl_default, here, engine


if __name__ == "__main__":
    from tests.support.differences import MEANINGS

    PAGE.write_text(page(MEANINGS), encoding="utf-8", newline="\n")
