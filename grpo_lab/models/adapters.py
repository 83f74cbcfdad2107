"""LoRA, that is trainable adapters added to frozen weights; and the reference of the KL term, with and without them.

peft inserts the adapters. The model keeps its transformers class, so all fast paths of sampling and scoring still work.

A linear map W_0 becomes W_0 + (alpha / r) B A. W_0 is frozen; A, which has r rows, and B, which has r columns, are
trained. B begins at zero, so that the first step samples from the unchanged model.
"""

import copy
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import nn

from grpo_lab.base.checks import InputError
from grpo_lab.base.display import short_path
from grpo_lab.base.process_state import restored_random_state
from grpo_lab.config.lora import ALL_LINEAR, LORA_DEFAULTS, check_lora, check_no_dropout, check_peft
from grpo_lab.config.precision import origin_of, set_origin

ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"


def lora_config(model, settings: dict[str, Any]):
    """Return peft's `LoraConfig` for a model.

    Args:
        model: The model that gets the adapter.
        settings: Settings that differ from `LORA_DEFAULTS`, by name. The target modules are names of linear maps in
            the layers, such as "q_proj"; ["all-linear"] takes all of them, and None takes peft's choice for the
            architecture, which is q_proj and v_proj for most.

    Raises:
        InputError: if the layers have no such target, or the model already has an adapter.
    """
    check_peft("use_peft", True)
    from peft import LoraConfig

    settings = LORA_DEFAULTS | settings
    check_lora(settings)
    if has_adapter(model) or origin_of(model).merged_adapter:
        remedy = "merge it into another folder first (`python -m grpo_lab.models merge`), or resume its run"
        raise InputError("use_peft", True, remedy, problem="is on, and the model has an adapter already")
    targets = settings["lora_target_modules"]
    if targets is not None and targets != [ALL_LINEAR]:
        names = _linear_names(model)
        if unknown := [target for target in targets if target not in names]:
            expected = f"expected {ALL_LINEAR} alone, or linear maps in the model's layers: {', '.join(names)}"
            raise InputError("lora_target_modules", unknown[0], expected)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings["lora_r"],
        lora_alpha=settings["lora_alpha"],
        lora_dropout=settings["lora_dropout"],
        target_modules=ALL_LINEAR if targets == [ALL_LINEAR] else targets,
    )
    config.base_model_name_or_path = origin_of(model).name or model.name_or_path
    return config


def add_lora(model, *, seed: int = 0, **settings: Any) -> None:
    """Freeze the weights of a model and add adapters to them, in place; `train` then trains only the adapters.

    Args:
        model: The model that `load_policy` returned.
        seed: Seed from which the initial A is drawn.
        settings: The settings lora_r, lora_alpha, lora_dropout and lora_target_modules; see `lora_config`.

    Raises:
        InputError: as `lora_config` does; if the dropout is above 0, because the log-probabilities of sampler and
            trainer would differ; or if peft has no default targets for the architecture and none are given.
    """
    check_no_dropout(settings.get("lora_dropout", 0))
    config = lora_config(model, settings)
    base = config.base_model_name_or_path
    with restored_random_state(seed):
        try:
            model.add_adapter(config)
        except ValueError as error:
            expected = f"expected {ALL_LINEAR}, or some of {', '.join(_linear_names(model))}"
            raise InputError("lora_target_modules", settings.get("lora_target_modules"), expected) from error
    config.base_model_name_or_path = base  # `add_adapter` has replaced it by the folder
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(model.dtype)  # adapters are trained in the precision of the run


def has_adapter(model) -> bool:
    """Return True if the model has adapters that are not merged into its weights."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def adapter_settings(model) -> dict[str, Any]:
    """Return the rank, the alpha and the target modules of the model's adapter, in a form that JSON can store."""
    config = next(iter(model.peft_config.values()))
    targets = config.target_modules
    targets = sorted(targets) if isinstance(targets, set | list) else targets
    return {"r": config.r, "alpha": config.lora_alpha, "target_modules": targets}


def without_adapter(model) -> nn.Module:
    """Return a copy of the model with its adapters switched off, as the reference of a KL term.

    The copy shares the frozen weights, which training does not change, so it takes almost no memory. It requires no
    gradient.
    """
    frozen_parameters = {id(parameter): parameter for parameter in model.parameters() if not parameter.requires_grad}
    # The second argument of deepcopy maps ids to objects that are shared instead of copied.
    reference = copy.deepcopy(model, frozen_parameters)
    reference.disable_adapters()
    return reference.requires_grad_(False).eval()


def frozen_copy(model: nn.Module) -> nn.Module:
    """Return a copy of the model with its own parameters, which require no gradient, in evaluation mode.

    The reference of the KL term must not change while the policy is trained. A second name for the same model, or a
    copy that shares its tensors, would change with the policy, and the KL would always be zero. The model itself is not
    changed.
    """
    return copy.deepcopy(model).requires_grad_(False).eval()


def load_adapter_weights(folder: Path, model) -> None:
    """Load the weights of a saved adapter into the adapter of a model; raise InputError if the two do not fit."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    saved = {
        name.removeprefix("base_model.model."): value
        for name, value in load_file(folder / ADAPTER_WEIGHTS_FILE).items()
    }
    if differing := sorted(saved.keys() ^ get_peft_model_state_dict(model).keys()):
        problem = f"in {short_path(folder)} is that of other maps than the model's: {differing[0]}"
        raise InputError("adapter", differing[0], "expected that of the same run", problem=problem)
    set_peft_model_state_dict(model, saved)


def base_model_name(adapter: Path) -> str:
    """Return the name of the base model of the adapter in a folder.

    Raises:
        InputError: if the folder is damaged, or its adapter is not a LoRA adapter in safetensors.
    """
    expected = "expected a LoRA adapter, or a whole model"
    try:
        settings = dict(json.loads((adapter / ADAPTER_CONFIG_FILE).read_text(encoding="utf-8")))
    except (ValueError, TypeError, OSError):
        problem = f"is {short_path(adapter)}, whose {ADAPTER_CONFIG_FILE} is damaged"
        raise InputError("name", str(adapter), expected, problem=problem) from None
    base, kind = settings.get("base_model_name_or_path"), settings.get("peft_type")
    if kind != "LORA" or not isinstance(base, str) or not base:
        problem = f"is {short_path(adapter)}, which holds a {kind} adapter for {base!r} and not a whole model"
        raise InputError("name", str(adapter), expected, problem=problem)
    if whole_modules := settings.get("modules_to_save") or settings.get("trainable_token_indices"):
        problem = f"is {short_path(adapter)}, a LoRA adapter for {base!r}, which holds {whole_modules} as well"
        raise InputError("name", str(adapter), "merge it with peft, and save that", problem=problem)
    if not (adapter / ADAPTER_WEIGHTS_FILE).is_file():
        problem = f"is {short_path(adapter)}, a LoRA adapter for {base!r}, which has no {ADAPTER_WEIGHTS_FILE}"
        raise InputError("name", str(adapter), "pickled files are not opened", problem=problem)
    return base


def merge_adapter(model, adapter: Path) -> None:
    """Merge the adapter in a folder into the weights of its base model, in place."""
    check_peft("name", str(adapter))
    from peft import LoraConfig

    try:
        config = LoraConfig.from_pretrained(str(adapter))
        config.lora_dropout, config.init_lora_weights = 0.0, True  # the saved weights replace the initial ones
        model.add_adapter(config)
        load_adapter_weights(adapter, model)
    except Exception as error:
        if isinstance(error, MemoryError):
            raise
        problem = f"is {short_path(adapter)}, whose adapter does not fit its model: {' '.join(str(error).split()):.300}"
        raise InputError("name", str(adapter), "take the model that it was trained with", problem=problem) from error
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge(safe_merge=True)
            model.set_submodule(name, module.get_base_layer())
    del model.peft_config
    model._hf_peft_config_loaded = False
    model.requires_grad_(True)
    set_origin(model, merged_adapter=str(adapter))


def _linear_names(model) -> list[str]:
    """Return the names of the linear maps in the layers, such as "q_proj", in order and without the output head."""
    head = model.get_output_embeddings()
    names = (name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head)
    return list(dict.fromkeys(name.rpartition(".")[2] for name in names))
