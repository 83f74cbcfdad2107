"""The engine of a run that the options choose, with LoRA, FSDP2 and vLLM."""

from importlib.util import find_spec

from grpo_lab.base.checks import InputError, InputPackageError
from grpo_lab.base.option import check_unused, check_value
from grpo_lab.command_options import ENGINE_OPTIONS, OURS, TRL, VLLM_OPTIONS
from grpo_lab.config.lora import LORA_DEFAULTS, check_no_dropout, check_peft
from grpo_lab.train.engines.engine import Engine, OurEngine, TrlEngine
from grpo_lab.train.processes import world_size


def make_engine(options: dict) -> Engine:
    """Return the engine for these options.

    Raises:
        InputError: for options that contradict each other, values out of range, and packages that are not installed.
    """
    engine_options = {}
    for name, spec in ENGINE_OPTIONS.items():
        if name in options:
            check_value(spec, options[name])
            if not spec.is_off(options[name]):
                engine_options[name] = options[name]
    check_unused(engine_options, ENGINE_OPTIONS)
    name = engine_options.get("engine", OURS)
    if "fsdp" in engine_options and world_size() == 1:
        raise InputError("fsdp", True, "expected it only on several processes: torchrun --nproc_per_node 2 -m ...")
    lora = _lora_settings(engine_options, has_dropout=name == TRL)
    if name == OURS:
        return OurEngine(lora=lora)
    if find_spec(TRL) is None:
        raise InputPackageError("engine", TRL, f'{TRL} is not installed; pip install "grpo-lab[engines]"')
    return TrlEngine(lora=lora, fsdp="fsdp" in engine_options, vllm=_vllm_settings(engine_options))


def _lora_settings(engine_options: dict, has_dropout: bool) -> dict | None:
    if "use_peft" not in engine_options:
        return None
    lora = LORA_DEFAULTS | {option: engine_options[option] for option in LORA_DEFAULTS if option in engine_options}
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
