"""Write docs/trl.md, what each setting of TRL's GRPOConfig becomes in this package: `python docs/trl_table.py`."""

from dataclasses import MISSING, fields
from pathlib import Path

import trl

from grpo_lab.base.display import markdown_table
from grpo_lab.command_options import option_actions
from grpo_lab.config import SETTINGS
from grpo_lab.train import train_parser
from grpo_lab.train.trl.table import (
    OUR_SETTINGS,
    TRL_TABLE,
    TRL_VERSION,
    Converted,
    Handling,
    NoEffect,
    OurOption,
    Unsupported,
)

PAGE = Path(__file__).with_name("trl.md")
HEAD = """# TRL's settings

Every setting of TRL {version}'s `GRPOConfig`: what it is in a run of this package, and with `--engine trl`.
`python docs/trl_table.py` writes this page from the table by which `grpo-lab train --config FILE` reads a
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


def page(meanings: dict[str, str]) -> str:
    """Return the page; `meanings` describes the settings of TRL's that have the same name here and another meaning."""
    options = option_actions(train_parser()).keys() - SETTINGS.keys()
    rows = [_row(field, meanings, options) for field in fields(trl.GRPOConfig)]
    head = ("setting", "TRL's default", "here", "with `--engine trl`")
    return HEAD.format(version=TRL_VERSION) + "\n" + markdown_table(head, rows) + "\n"


def _row(field, meanings: dict[str, str], options: set[str]) -> tuple[str, str, str, str]:
    name, default = field.name, field.default
    trl_default = "" if default is MISSING else f"`{default!s}`"
    if name in SETTINGS:
        ours = SETTINGS[name].default
        here = "another meaning" if name in meanings else "the same"
        here += "" if ours == default else f", default `{ours}`"
        return f"`{name}`", trl_default, here, ON_TRL[OUR_SETTINGS[name].handling]
    match TRL_TABLE[name]:
        case Converted(meaning):
            here, engine = meaning, "as here"
        case OurOption():  # an option of vLLM; LoRA's are no fields of GRPOConfig
            here, engine = "refused: this package samples with the model itself", "an option, not run"
        case Unsupported(_, remedy):
            here, engine = f"its default alone: {remedy}", "an option" if name in options else "as here"
        case NoEffect(reason):
            engine = "TRL's default" if reason == OF_ONE_PROCESS else "an option" if name in options else "as here"
            here, engine = f"no effect: {reason}", OF_SEVERAL.get(name, engine)
    return f"`{name}`", trl_default, here, engine


if __name__ == "__main__":
    from tests.support.trl_differences import MEANINGS

    PAGE.write_text(page(MEANINGS), encoding="utf-8", newline="\n")
