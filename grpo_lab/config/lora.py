"""The settings of LoRA, under the names of TRL's `ModelConfig`, and their checks."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from grpo_lab.base.checks import InputError, InputPackageError
from grpo_lab.base.option import NamedCode, check_value, default_values, option, option_specs

WITH_PEFT = {"use_peft": True}


@dataclass(frozen=True, kw_only=True)
class LoraOptions:
    """The options of LoRA, with the defaults of TRL's `ModelConfig` except for the dropout, which is 0.05 there."""

    lora_r: int = option(16, "rank of an adapter", group="engine", at_least=1, read_if=WITH_PEFT)
    lora_alpha: int = option(32, "adapters are multiplied by alpha / r", above=0, read_if=WITH_PEFT)
    lora_dropout: float = option(
        0.0, "dropout, only with --engine trl, whose own default is 0.05", at_least=0, at_most=1, read_if=WITH_PEFT
    )
    lora_target_modules: list[str] | None = option(
        None,
        "maps with an adapter, or all-linear",
        named_code=NamedCode.NOTHING,
        read_if=WITH_PEFT,
        default_text="peft's",
    )


LORA_OPTIONS = option_specs(LoraOptions)
LORA_DEFAULTS = default_values(LORA_OPTIONS)
ALL_LINEAR = "all-linear"


def check_lora(settings: dict[str, Any]) -> None:
    """Raise InputError if the rank, the scale or the dropout is out of range."""
    for name, spec in LORA_OPTIONS.items():
        check_value(spec, settings[name])


def check_no_dropout(dropout: float) -> None:
    """Raise InputError unless the dropout is 0; otherwise the sampler and the trained model would differ."""
    if dropout:
        raise InputError(
            "lora_dropout", dropout, "expected 0, since sampler and trainer must compute the same log-probabilities"
        )


def check_lora_reference(ref_model_sync_steps: int | None, ref_model_device: str | None) -> None:
    """Raise InputError unless both settings of the reference model are None.

    With LoRA the reference is the model without its adapter: it is never refreshed, and is on the model's device.
    """
    settings = {"ref_model_sync_steps": ref_model_sync_steps, "ref_model_device": ref_model_device}
    for name, value in settings.items():
        if value is not None:
            raise InputError(name, value, "leave it out with LoRA: the reference is the model without its adapter")


def check_peft(argument: str, value: Any) -> None:
    """Raise InputPackageError if peft is not installed."""
    if find_spec("peft") is None:
        raise InputPackageError(argument, value, 'peft is not installed; pip install "grpo-lab[lora]"')
