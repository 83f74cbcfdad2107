"""The options of a command that choose the engine of a run: its trainer, LoRA, FSDP2 and vLLM."""

from argparse import SUPPRESS, ArgumentParser

from grpo_lab.config.arguments import argparse_type
from grpo_lab.train.engines.engine import OURS, TRL, VLLM


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
    for name, (kind, required) in VLLM.items():
        if name != "vllm_mode":
            about = f"TRL's, {server if required else 'with --use_vllm'}"
            group.add_argument(f"--{name}", help=about, default=SUPPRESS, **argparse_type(kind))


def _switch() -> dict:
    """Return the keyword arguments of `add_argument` for a bool, which `--name` without a value sets to True."""
    return {"nargs": "?", "const": True, **argparse_type(bool)}
