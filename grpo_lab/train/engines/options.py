"""Which engine trains, as an option of a command."""

import os
from argparse import SUPPRESS, ArgumentParser
from dataclasses import dataclass
from importlib.util import find_spec

from grpo_lab.base.checks import InputError, InputPackageError
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import pick_precision
from grpo_lab.train.engines.settings import check_settings

OURS, TRL = "grpo_lab", "trl"


@dataclass(frozen=True)
class Engine:
    """The loop that trains: this package's own, or TRL's."""

    name: str = OURS

    def check(self, config: GRPOConfig) -> None:
        """Raise InputError for a setting that the engine lacks, and for several processes, before a model is loaded."""
        if self.name == TRL:
            check_settings(config)
        if (processes := int(os.environ.get("WORLD_SIZE", 1))) > 1:
            raise InputError("WORLD_SIZE", processes, "expected 1: a run has one process; docs/cluster.md is for more")

    def precision(self, config: GRPOConfig, device, small: bool) -> str | None:
        """The requested mode; else the default, but "fp32-master" where that is "bf16", which TRL does not have."""
        requested = config.requested_precision
        trl_lacks_it = self.name == TRL and requested is None and pick_precision(device, small=small).name == "bf16"
        return "fp32-master" if trl_lacks_it else requested

    def run(self, *arguments, **keywords) -> list[dict]:
        """Train as `grpo_lab.trainer.train` does, which it is for this package's own loop."""
        if self.name == OURS:
            from grpo_lab.trainer import train

            return train(*arguments, **keywords)
        from grpo_lab.train.engines.trl import train as train_with_trl

        return train_with_trl(*arguments, **keywords)


def add_engine_options(parser: ArgumentParser) -> None:
    """Add --engine; when it was not given, it is absent from what is parsed."""
    group = parser.add_argument_group("engine")
    about = f"whose loop trains (default {OURS}: the one of the lessons)"
    group.add_argument("--engine", help=about, choices=(OURS, TRL), default=SUPPRESS)


def take_engine(options: dict) -> Engine:
    """The engine among the options, else ours; an InputError if it is not installed."""
    engine = Engine(options.get("engine") or OURS)
    if engine.name == TRL and find_spec(TRL) is None:
        raise InputPackageError("engine", TRL, f'{TRL} is not installed; pip install "grpo-lab[engines]"')
    return engine
