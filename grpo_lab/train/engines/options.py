"""Which engine trains, as options of a command."""

from argparse import SUPPRESS, ArgumentParser
from dataclasses import dataclass
from importlib.util import find_spec

from grpo_lab.commands.checks import InputError, InputPackageError
from grpo_lab.config import GRPOConfig
from grpo_lab.config.arguments import reading
from grpo_lab.config.precision import pick_precision, precision_asked
from grpo_lab.train.engines.processes import world_size
from grpo_lab.train.engines.settings import check_settings

OURS, TRL = "grpo_lab", "trl"


@dataclass(frozen=True)
class Engine:
    """What trains: this package's own loop, or TRL's trainer.

    fsdp: whether several processes share the parameters by FSDP2, instead of holding all of them each.
    """

    name: str = OURS
    fsdp: bool = False

    def check(self, config: GRPOConfig) -> None:
        """Raise InputError for a setting, or processes, that the engine does not have, before anything is loaded."""
        if self.name == TRL:
            check_settings(config)
        elif world_size() > 1:
            raise InputError("WORLD_SIZE", world_size(), "expected 1: the loop of the lessons runs on one process")

    def precision(self, config: GRPOConfig, device, small: bool) -> str | None:
        """The mode asked for; else the default, but "fp32-master" where that is "bf16", which TRL does not have."""
        asked = precision_asked(config)
        is_ours = self.name == TRL and asked is None and pick_precision(device, small=small).name == "bf16"
        return "fp32-master" if is_ours else asked

    def run(self, *given, **more) -> list[dict]:
        """As `grpo_lab.trainer.train`, which it is for this package's own loop."""
        if self.name == OURS:
            from grpo_lab.trainer import train

            return train(*given, **more)
        from grpo_lab.train.engines.trl import train as train_with_trl

        return train_with_trl(*given, fsdp=self.fsdp, **more)


def add_engine_options(parser: ArgumentParser) -> None:
    """--engine and --fsdp; what was not given is absent from what is parsed."""
    group = parser.add_argument_group("engine")
    about = f"whose loop trains (default {OURS}: the one of the lessons)"
    group.add_argument("--engine", help=about, choices=(OURS, TRL), default=SUPPRESS)
    about = f"with --engine {TRL} under torchrun: FSDP2 divides parameters, gradients and moments"
    group.add_argument("--fsdp", help=about, nargs="?", const=True, default=SUPPRESS, **reading(bool))


def take_engine(given: dict) -> Engine:
    """What the engine's options, among all that were given, ask for.

    Raises:
        InputError: for options that do not go together, and an engine that is not installed.
    """
    engine = Engine(given.get("engine") or OURS, bool(given.get("fsdp")))
    if engine.fsdp and (engine.name != TRL or world_size() == 1):
        several = f"expected it only with --engine {TRL}, on several processes: torchrun --nproc_per_node 2 -m ..."
        raise InputError("fsdp", True, several)
    if engine.name == TRL and find_spec(TRL) is None:
        raise InputPackageError("engine", TRL, f'{TRL} is not installed; pip install "grpo-lab[engines]"')
    return engine
