"""Which engine trains, as options of a command."""

from argparse import SUPPRESS, ArgumentParser
from dataclasses import dataclass
from importlib.util import find_spec

from grpo_lab.commands.checks import InputError, InputPackageError, check_at_least, check_between
from grpo_lab.config import GRPOConfig
from grpo_lab.config.arguments import reading
from grpo_lab.config.precision import pick_precision, precision_asked
from grpo_lab.train.engines.processes import world_size
from grpo_lab.train.engines.settings import check_settings

OURS, TRL = "grpo_lab", "trl"
VLLM = ("vllm_server_base_url", "vllm_server_host", "vllm_server_port")  # where TRL finds the server of --use_vllm
LORA = {"lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.0, "lora_target_modules": None}
# Which option needs which other one, and with what value.
NEEDS: dict[str, tuple[str, str | bool]] = {
    **dict.fromkeys(("use_peft", "fsdp", "use_vllm"), ("engine", TRL)),
    **dict.fromkeys(LORA, ("use_peft", True)),
    **dict.fromkeys(VLLM, ("use_vllm", "server")),
}


@dataclass(frozen=True)
class Engine:
    """What trains: this package's own loop, or TRL's trainer; there all parameters, or adapters of LoRA alone.

    fsdp: whether several processes share the parameters by FSDP2, instead of holding all of them each.
    vllm: by TRL's names, what lets vLLM sample; None samples with transformers.
    """

    name: str = OURS
    lora: dict | None = None
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

        return train_with_trl(*given, lora=self.lora, fsdp=self.fsdp, vllm=self.vllm, **more)


def add_engine_options(parser: ArgumentParser) -> None:
    """--engine, --use_peft, --lora_r, ...; what was not given is absent from what is parsed."""
    group = parser.add_argument_group("engine")
    switch, number = {"nargs": "?", "const": True, **reading(bool)}, {"type": int, "metavar": "N"}
    names, trl = {"nargs": "+", "metavar": "NAME"}, f"with --engine {TRL}"
    for name, about, how in (
        ("engine", f"whose loop trains (default {OURS}: the one of the lessons)", {"choices": (OURS, TRL)}),
        ("use_peft", f"{trl}: train adapters of LoRA alone", switch),
        ("fsdp", f"{trl} under torchrun: FSDP2 divides parameters, gradients and moments", switch),
        ("use_vllm", f"{trl}: vLLM samples", {"choices": ("colocate", "server")}),
        ("vllm_server_base_url", "of the server, with --use_vllm server", {"metavar": "URL"}),
        ("vllm_server_host", "(TRL's default: 0.0.0.0)", {"metavar": "NAME"}),
        ("vllm_server_port", "(TRL's default: 8000)", number),
        ("lora_r", "rank of an adapter (default 16)", number),
        ("lora_alpha", "adapters weigh alpha / r (default 32)", number),
        ("lora_dropout", "(default 0; TRL's is 0.05)", {"type": float, "metavar": "X"}),
        ("lora_target_modules", "layers with an adapter, or all-linear (default: PEFT's for the model)", names),
    ):  # fmt: skip
        group.add_argument(f"--{name}", help=about, default=SUPPRESS, **how)


def take_engine(given: dict) -> Engine:
    """What the engine's options, among all that were given, ask for.

    Raises:
        InputError: for options that do not go together, or out of range, and an engine that is not installed.
    """
    asked = {option: value for option, value in given.items() if value is not None and value is not False}
    for option in asked.keys() & NEEDS:
        needed, value = NEEDS[option]
        if asked.get(needed) != value:
            such = f"--{needed}" if value is True else f"--{needed} {value}"
            raise InputError(option, asked[option], f"expected it only with {such}")
    name, use_peft, fsdp = asked.get("engine", OURS), "use_peft" in asked, "fsdp" in asked
    if fsdp and (world_size() == 1 or use_peft):
        several = "torchrun --nproc_per_node 2 -m grpo_lab.train ..."
        raise InputError("fsdp", True, f"expected it only without --use_peft, on several processes: {several}")
    lora = LORA | {option: asked[option] for option in LORA if option in asked}
    check_at_least("lora_r", lora["lora_r"], 1)
    check_at_least("lora_alpha", lora["lora_alpha"], 1)
    check_between("lora_dropout", lora["lora_dropout"], 0, 1)
    vllm = {"use_vllm": True, "vllm_mode": asked["use_vllm"]} if "use_vllm" in asked else None
    for package in ("trl",) * (name == TRL) + ("peft",) * use_peft + ("vllm",) * (vllm is not None):
        if find_spec(package) is None:
            source = '"vllm", where there is an NVIDIA card' if package == "vllm" else '"grpo-lab[engines]"'
            raise InputPackageError("engine", name, f"{package} is not installed; pip install {source}")
    if vllm is not None:
        vllm |= {option: asked[option] for option in VLLM if option in asked}
    return Engine(name, lora if use_peft else None, fsdp, vllm)
