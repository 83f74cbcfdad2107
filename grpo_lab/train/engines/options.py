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
SERVER = "vllm_server_base_url"


@dataclass(frozen=True)
class Engine:
    """What trains: this package's own loop, or TRL's trainer.

    fsdp: whether several processes share the parameters by FSDP2, instead of holding all of them each.
    vllm: by TRL's names, what lets vLLM sample; None samples with transformers.
    """

    name: str = OURS
    fsdp: bool = False
    vllm: dict | None = None

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

        return train_with_trl(*given, fsdp=self.fsdp, vllm=self.vllm, **more)


def add_engine_options(parser: ArgumentParser) -> None:
    """--engine, --fsdp, --use_vllm; what was not given is absent from what is parsed."""
    group, trl = parser.add_argument_group("engine"), f"with --engine {TRL}"
    for name, about, how in (
        ("engine", f"whose loop trains (default {OURS}: the one of the lessons)", {"choices": (OURS, TRL)}),
        (
            "fsdp",
            f"{trl} under torchrun: FSDP2 divides parameters, gradients and moments",
            {"nargs": "?", "const": True, **reading(bool)},
        ),
        ("use_vllm", f"{trl}: vLLM samples", {"choices": ("colocate", "server")}),
        (SERVER, "of the server, with --use_vllm server (TRL's default: http://0.0.0.0:8000)", {"metavar": "URL"}),
    ):
        group.add_argument(f"--{name}", help=about, default=SUPPRESS, **how)


def take_engine(given: dict) -> Engine:
    """What the engine's options, among all that were given, ask for.

    Raises:
        InputError: for options that do not go together, and an engine that is not installed.
    """
    name, fsdp, mode, server = (given.get(option) for option in ("engine", "fsdp", "use_vllm", SERVER))
    for option, value, needed, is_there in (
        ("fsdp", fsdp, f"--engine {TRL}", name == TRL),
        ("use_vllm", mode, f"--engine {TRL}", name == TRL),
        (SERVER, server, "--use_vllm server", mode == "server"),
        ("fsdp", fsdp, "several processes: torchrun --nproc_per_node 2 -m grpo_lab.train ...", world_size() > 1),
    ):
        if value and not is_there:
            raise InputError(option, value, f"expected it only with {needed}")
    for package, source, is_wanted in (
        ("trl", '"grpo-lab[engines]"', name == TRL),
        ("vllm", '"vllm", where there is an NVIDIA card', mode),
    ):
        if is_wanted and find_spec(package) is None:
            raise InputPackageError("engine", name, f"{package} is not installed; pip install {source}")
    vllm = {"use_vllm": True, "vllm_mode": mode} | ({SERVER: server} if server else {}) if mode else None
    return Engine(name or OURS, bool(fsdp), vllm)
