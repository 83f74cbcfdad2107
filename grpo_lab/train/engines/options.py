"""The options of a command that choose the engine of a run (its trainer, LoRA, FSDP2 and vLLM), and that engine."""

from argparse import SUPPRESS, ArgumentParser
from importlib.util import find_spec

from grpo_lab.base.checks import InputError, InputPackageError
from grpo_lab.command_options import NEEDED_OPTIONS, OURS, TRL, VLLM_OPTIONS, WITH_SERVER
from grpo_lab.config.arguments import argparse_type
from grpo_lab.config.lora import LORA_DEFAULTS, check_lora, check_no_dropout, check_peft
from grpo_lab.train.engines.engine import Engine, OurEngine, TrlEngine
from grpo_lab.train.engines.processes import world_size


def add_engine_options(parser: ArgumentParser) -> None:
    """Add --engine, --use_peft, --fsdp, --use_vllm and their further options, none of which has a default."""
    group = parser.add_argument_group("engine")
    trl, server = f"with --engine {TRL}", "with --vllm_mode server"
    vllm_modes, names = {"choices": ("colocate", "server")}, {"nargs": "+", "metavar": "NAME"}
    for name, about, kind in (
        ("engine", f"whose loop trains (default {OURS}: the one of the lessons)", {"choices": (OURS, TRL)}),
        ("use_peft", "train only LoRA adapters; the weights of the model are frozen", _switch()),
        ("lora_r", "rank of an adapter (default 16)", argparse_type(int)),
        ("lora_alpha", "adapters are multiplied by alpha / r (default 32)", argparse_type(int)),
        ("lora_dropout", f"{trl} (default 0; TRL's is 0.05)", argparse_type(float)),
        ("lora_target_modules", "maps with an adapter, or all-linear (default: peft's)", names),
        ("fsdp", f"{trl}, under torchrun: FSDP2 divides weights, gradients and moments", _switch()),
        ("use_vllm", f"{trl}: vLLM samples", _switch()),
        ("vllm_mode", "on the GPUs that train, or on its own (TRL's default: colocate)", vllm_modes),
    ):  # fmt: skip
        group.add_argument(f"--{name}", help=about, default=SUPPRESS, **kind)
    for name, spec in VLLM_OPTIONS.items():
        if name != "vllm_mode":
            about = f"TRL's, {server if spec.needs == WITH_SERVER else 'with --use_vllm'}"
            group.add_argument(f"--{name}", help=about, default=SUPPRESS, **argparse_type(spec.type))


def _switch() -> dict:
    """Return the keyword arguments of `add_argument` for a bool, which `--name` without a value sets to True."""
    return {"nargs": "?", "const": True, **argparse_type(bool)}


def make_engine(options: dict) -> Engine:
    """Return the engine for these options.

    Raises:
        InputError: for options that contradict each other, values out of range, and packages that are not installed.
    """
    # A switch that is False counts as not given, except for an option of vLLM, which TRL reads.
    engine_options = {
        name: value
        for name, value in options.items()
        if value is not None and (value is not False or name in VLLM_OPTIONS)
    }
    _check_needed_options(engine_options)
    name = engine_options.get("engine", OURS)
    if "fsdp" in engine_options and world_size() == 1:
        raise InputError("fsdp", True, "expected it only on several processes: torchrun --nproc_per_node 2 -m ...")
    lora = _lora_settings(engine_options, has_dropout=name == TRL)
    if name == OURS:
        return OurEngine(lora=lora)
    if find_spec(TRL) is None:
        raise InputPackageError("engine", TRL, f'{TRL} is not installed; pip install "grpo-lab[engines]"')
    return TrlEngine(lora=lora, fsdp="fsdp" in engine_options, vllm=_vllm_settings(engine_options))


def _check_needed_options(engine_options: dict) -> None:
    """Raise InputError for an option without the others that it needs."""
    for name in sorted(NEEDED_OPTIONS.keys() & engine_options):
        for needed, value in NEEDED_OPTIONS[name].items():
            if engine_options.get(needed) != value:
                option = f"--{needed}" if value is True else f"--{needed} {value}"
                raise InputError(name, engine_options[name], f"expected it only with {option}")


def _lora_settings(engine_options: dict, has_dropout: bool) -> dict | None:
    if "use_peft" not in engine_options:
        return None
    lora = LORA_DEFAULTS | {option: engine_options[option] for option in LORA_DEFAULTS if option in engine_options}
    check_lora(lora)
    if not has_dropout:
        check_no_dropout(lora["lora_dropout"])
    check_peft("use_peft", True)
    return lora


def _vllm_settings(engine_options: dict) -> dict | None:
    if "use_vllm" not in engine_options:
        return None
    if find_spec("vllm") is None:
        raise InputPackageError("use_vllm", True, 'vllm is not installed; pip install "vllm", on an NVIDIA GPU')
    return {"use_vllm": True} | {option: engine_options[option] for option in VLLM_OPTIONS if option in engine_options}
