"""The correspondence between our settings and TRL's names, in one table: `TRL_TABLE`.

First the kinds of entries, then the entries: `OUR_SETTINGS`, and the other parts for TRL's names that are no setting
here; then those of TRL's defaults that count here. Three modules read the table: `file.py`, `settings.py` and
docs/trl_table.py, which writes the page of all settings. A new setting needs a line in `OUR_SETTINGS`. This module does
not import TRL; tests compare the table with the installed TRL, each field of whose GRPOConfig must have one entry.
"""

import enum
from dataclasses import dataclass
from typing import Any

from grpo_lab.command_options import VLLM_OPTIONS
from grpo_lab.config.lora import LORA_OPTIONS
from grpo_lab.config.user_formulas import is_user_formula

TRL_VERSION = "1.16"


class Handling(enum.Enum):
    """The way in which `--engine trl` treats a setting."""

    UNCHANGED = enum.auto()  # TRL receives the value under the same name
    TRANSLATED = enum.auto()  # TRL receives another value, or this package does itself what the setting says
    REFUSED = enum.auto()  # only the default is allowed


class Unit(enum.Enum):
    """The unit on TRL of a setting that this package counts in steps, one per rollout."""

    UPDATES = enum.auto()  # TRL receives it and counts its own steps, which are updates
    STEPS = enum.auto()  # this package reads it, also on TRL


@dataclass(frozen=True)
class OurSetting:
    """A setting of this package: what `--engine trl` does with it, and what a file for TRL means by it.

    handling: What the engine does with it.
    unit: For a setting that counts steps, what it counts on TRL; None for any other setting.
    is_in_trl: Whether TRL's GRPOConfig has a setting with this name.
    refusal: The reason why a value other than the default is refused.
    drop_reason: Why the training is the same without a refused setting, up to rounding, so that the setting is dropped
        if it comes from the file of a run; "" if it is not dropped.
    typed_instead: What to type, for a setting that no file for TRL can set; "" for any other setting.
    """

    handling: Handling
    unit: Unit | None = None
    is_in_trl: bool = True
    refusal: str = ""
    drop_reason: str = ""
    typed_instead: str = ""


@dataclass(frozen=True)
class OurOption:
    """An option of the command that is not a setting, under TRL's name."""


@dataclass(frozen=True)
class Renamed:
    """A name of TRL for an option of the command with another name."""

    option: str


@dataclass(frozen=True)
class Converted:
    """A name of TRL that becomes part of another setting of this package.

    meaning: What becomes of it, for the page of all settings.
    """

    meaning: str


@dataclass(frozen=True)
class Unsupported:
    """A name of TRL that this package lacks, although the outcome of a run depends on it.

    neutral_values: The values with which a run here is the same.
    remedy: What to do instead with any other value, or why there is nothing to do.
    """

    neutral_values: tuple
    remedy: str


@dataclass(frozen=True)
class NoEffect:
    """A name of TRL on which the outcome of a run here does not depend, with the reason."""

    reason: str


@dataclass(frozen=True)
class DatasetName:
    """A name of TRL for data to download, for which the user has to type --task."""


@dataclass(frozen=True)
class OtherVersion:
    """A name of another version of TRL, or of transformers.

    origin: The versions that had the name.
    successor: Its name in TRL's version of the table, or None.
    """

    origin: str
    successor: str | None


Entry = OurSetting | OurOption | Renamed | Converted | Unsupported | NoEffect | DatasetName | OtherVersion


def _translated(**fields: Any) -> OurSetting:
    return OurSetting(Handling.TRANSLATED, **fields)


def _refused(refusal: str, drop_reason: str = "") -> OurSetting:
    return OurSetting(Handling.REFUSED, is_in_trl=False, refusal=refusal, drop_reason=drop_reason)


UNCHANGED = OurSetting(Handling.UNCHANGED)
ONLY_IN_OUR_LOOP = "only our own loop has it"

# The settings of this package.
OUR_SETTINGS: dict[str, OurSetting] = {
    "output_dir": _translated(),
    "seed": UNCHANGED,
    "max_steps": _translated(unit=Unit.UPDATES),
    "save_steps": _translated(unit=Unit.UPDATES),
    "save_total_limit": _translated(),
    "resume_from_checkpoint": _translated(typed_instead="to go on, type --resume_from_checkpoint"),
    "ignore_reward_changes": _translated(is_in_trl=False),
    "disable_tqdm": _translated(),
    "report_to": _translated(),
    "logging_steps": _translated(unit=Unit.STEPS),
    "log_completions": _translated(),
    "log_kl": _refused("TRL has it with beta above 0", drop_reason="measured only with beta above 0"),
    "eval_steps": _translated(unit=Unit.STEPS),
    "num_generations_eval": _translated(),
    "per_device_eval_batch_size": _translated(),
    "num_generations": UNCHANGED,
    "generation_batch_size": UNCHANGED,
    "max_completion_length": UNCHANGED,
    "temperature": UNCHANGED,
    "top_k": UNCHANGED,
    "top_p": UNCHANGED,
    "repetition_penalty": UNCHANGED,
    "max_tool_calling_iterations": UNCHANGED,
    "tool_timeout": _refused(ONLY_IN_OUR_LOOP),
    "reward_weights": UNCHANGED,
    "advantage": _refused("TRL has that of the group"),
    "scale_rewards": UNCHANGED,
    "mask_truncated_completions": UNCHANGED,
    "loss_type": UNCHANGED,
    "importance_sampling_level": UNCHANGED,
    "epsilon": UNCHANGED,
    "epsilon_high": UNCHANGED,
    "delta": UNCHANGED,
    "sapo_temperature_pos": UNCHANGED,
    "sapo_temperature_neg": UNCHANGED,
    "vespo_k_pos": UNCHANGED,
    "vespo_lambda_pos": UNCHANGED,
    "vespo_k_neg": UNCHANGED,
    "vespo_lambda_neg": UNCHANGED,
    "beta": UNCHANGED,
    "kl_estimator": _refused("TRL has k3 alone"),
    "use_bias_correction_kl": UNCHANGED,
    "entropy_coef": UNCHANGED,
    "ref_model_sync_steps": _translated(unit=Unit.UPDATES),
    "ref_model_device": _refused(ONLY_IN_OUR_LOOP),
    "learning_rate": UNCHANGED,
    "lr_scheduler_type": _translated(),
    "warmup_steps": _translated(unit=Unit.STEPS),
    "weight_decay": UNCHANGED,
    "adam_beta1": UNCHANGED,
    "adam_beta2": UNCHANGED,
    "max_grad_norm": UNCHANGED,
    "num_iterations": UNCHANGED,
    "per_device_train_batch_size": _translated(),
    "gradient_accumulation_steps": UNCHANGED,
    "gradient_checkpointing": UNCHANGED,
    "precision": _translated(is_in_trl=False),
    "bf16": _translated(),
    "fp16": _translated(),
    "max_nonfinite_steps": _refused(ONLY_IN_OUR_LOOP, drop_reason="updates that are not finite go on"),
}

# Options of the command that are not settings and have TRL's names. The options of vLLM need --engine trl.
OUR_OPTIONS: dict[str, OurOption] = dict.fromkeys(
    ("use_peft", *LORA_OPTIONS, "use_vllm", *VLLM_OPTIONS, "dataset_config", "dataset_test_split"), OurOption()
)

# Names for which this package has other settings or options.
RENAMED_NAMES = {"model_name_or_path": Renamed("model")}
CONVERTED_NAMES = {
    "num_train_epochs": Converted("counted into max_steps"),
    "steps_per_generation": Converted("counted into generation_batch_size"),
    "eval_strategy": Converted("eval_steps is enough"),
    "save_strategy": Converted("no: save_steps 0"),
    "sync_ref_model": Converted("ref_model_sync_steps is enough"),
    "ref_model_mixup_alpha": Converted("1: the reference becomes the policy"),
}

# Names that this package lacks although the outcome of a run depends on them.
UNSUPPORTED_NAMES: dict[str, Unsupported] = {
    "load_in_8bit": Unsupported((False,), "no quantised weights; precision bf16 has a small optimizer state"),
    "load_in_4bit": Unsupported((False,), "no quantised weights; precision bf16 has a small optimizer state"),
    "dtype": Unsupported(("auto", "float32"), "give --precision: bf16 trains bf16 weights"),
    "model_init_kwargs": Unsupported(({}, ""), "give --precision or a folder"),
    "model_revision": Unsupported(("main", ""), "fetch that revision, and give its folder as --model"),
    "reward_model_name_or_path": Unsupported(
        ("",), "a judge behind a server is a reward of your own (docs/serving.md)"
    ),
    "router_aux_loss_coef": Unsupported((0, 0.0), "no load-balancing loss"),
    "lr_scheduler_kwargs": Unsupported(({}, ""), "the schedules have no parameters"),
    "optim": Unsupported(("adamw_torch", "adamw_torch_fused"), "AdamW; --precision bf16 takes its 8-bit form"),
    "optim_args": Unsupported(("",), "AdamW as it is"),
    "optim_target_modules": Unsupported(("",), "all parameters that require a gradient are trained"),
    "adam_epsilon": Unsupported((1e-8,), "it is 1e-8"),
    "neftune_noise_alpha": Unsupported((0, 0.0), "no noise on embeddings"),
    "load_best_model_at_end": Unsupported((False,), "the last model is saved; evaluate the checkpoints"),
    "shuffle_dataset": Unsupported((True,), "rows come in a new order every epoch"),
    "min_p": Unsupported((0, 0.0), "take top_p"),
    "generation_kwargs": Unsupported(({}, ""), "no further arguments of the sampler"),
    "chat_template_kwargs": Unsupported(({}, ""), "no arguments of the chat template"),
    "multi_objective_aggregation": Unsupported(("sum_then_normalize",), "rewards are added, then standardised"),
    "top_entropy_quantile": Unsupported((1, 1.0), "the loss is over all tokens"),
    "use_adaptive_entropy": Unsupported((False,), "entropy_coef is constant"),
    "off_policy_mask_threshold": Unsupported((), "no sequence is masked for being off-policy"),
    "lora_task_type": Unsupported(("CAUSAL_LM",), "the model is a causal language model"),
    "lora_target_parameters": Unsupported((), "only linear maps have adapters"),
    "lora_modules_to_save": Unsupported((), "adapters alone are trained"),
    "use_rslora": Unsupported((False,), "an adapter is multiplied by alpha / r; give lora_alpha"),
    "use_dora": Unsupported((False,), "adapters are those of LoRA"),
    "vllm_structured_outputs_regex": Unsupported((), "no grammar of completions"),
    "vllm_importance_sampling_clip_min": Unsupported((), "no lower limit of the weights"),
    "vllm_importance_sampling_cap": Unsupported((), "give vllm_importance_sampling_clip_max"),
}

# Names on which the outcome of a run here does not depend, grouped by the reason.
NO_EFFECT_REASONS: dict[str, tuple[str, ...]] = {
    "metrics are written at every step, report_to says where else": (
        "logging_strategy", "logging_first_step", "log_on_each_node", "logging_nan_inf_filter", "log_level",
        "include_num_input_tokens_seen", "log_level_replica", "run_name", "project", "trackio_space_id",
        "trackio_bucket_id", "trackio_static_space_id", "skip_memory_metrics", "debug", "log_multimodal",
        "num_completions_to_print", "log_unique_prompts",
    ),
    "nothing goes to a hub": (
        "push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push",
        "hub_revision", "log_completions_hub_repo",
    ),
    "rows are in memory, with all their columns": (
        "dataloader_drop_last", "dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers",
        "dataloader_prefetch_factor", "dataloader_multiprocessing_context", "dataloader_in_order",
        "remove_unused_columns", "label_names", "train_sampling_strategy", "length_column_name", "data_seed",
        "pad_to_multiple_of", "accelerator_config",
    ),
    "eval_steps says when, and rewards what": (
        "eval_delay", "eval_on_start", "prediction_loss_only", "eval_do_concat_batches", "eval_use_gather_object",
        "eval_accumulation_steps", "include_for_metrics", "batch_eval_metrics", "do_train", "do_eval", "do_predict",
    ),
    "a checkpoint is whole, and is found again": (
        "save_only_model", "save_on_each_node", "enable_jit_checkpoint", "metric_for_best_model", "greater_is_better",
        "ignore_data_skip", "restore_callback_states_from_checkpoint",
    ),
    "there is one process; docs/cluster.md is for more": (
        "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph", "ddp_backend",
        "ddp_timeout", "fsdp_config", "deepspeed", "parallelism_config", "local_rank",
        "average_tokens_across_devices", "ds3_gather_for_generation",
    ),
    "speed and memory are chosen by the hardware": (
        "tf32", "torch_compile", "torch_compile_backend", "torch_compile_mode", "use_cache", "torch_empty_cache_steps",
        "use_cpu", "full_determinism", "gradient_checkpointing_kwargs", "use_liger_kernel", "liger_kernel_config",
        "cast_lm_head_to_fp32", "cache_implementation", "use_transformers_continuous_batching",
        "transformers_continuous_batching_config", "use_transformers_paged", "bf16_full_eval", "fp16_full_eval",
        "auto_find_batch_size", "attn_implementation",
    ),
    "to divide the model, type --fsdp with --engine trl, under torchrun": ("fsdp",),
    "the loss of GRPO has no labels, and dropout is off": ("label_smoothing_factor", "disable_dropout"),
    "it says how vLLM is laid out": ("vllm_model_impl", "vllm_enable_sleep_mode"),
    "it belongs to use_adaptive_entropy": (
        "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "entropy_target",
    ),
    "it belongs to quantised weights": ("bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage"),
    "no code of a hub is run, and no file sets the environment": ("trust_remote_code", "env"),
    "the task says it": (
        "dataset_train_split", "dataset_streaming", "ignore_bias_buffers",
    ),
}  # fmt: skip
NO_EFFECT_NAMES = {name: NoEffect(reason) for reason, names in NO_EFFECT_REASONS.items() for name in names}

DATASET_NAMES = {"dataset_name": DatasetName(), "datasets": DatasetName()}

# Names of transformers 4 without a successor.
REMOVED_NAMES = (
    "logging_dir", "overwrite_output_dir", "save_safetensors", "fp16_opt_level", "half_precision_backend",
    "fp16_backend", "use_mps_device", "jit_mode_eval", "use_ipex", "dispatch_batches", "split_batches",
    "tpu_num_cores", "tpu_metrics_debug", "past_index", "torchdynamo", "ray_scope", "mp_parameters",
    "push_to_hub_organization", "fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap",
    "use_legacy_prediction_loop", "include_tokens_per_second",
)  # fmt: skip
# Names of other versions of TRL, or of transformers. TRL's versions are the first and the last release with the name,
# from its repository.
OTHER_VERSIONS: dict[str, OtherVersion] = {
    "max_prompt_length": OtherVersion("TRL 0.14 to 0.27, which cut prompts to it; no prompt is cut", None),
    "use_liger_loss": OtherVersion("TRL 0.17 to 0.27", "use_liger_kernel"),
    "vllm_device": OtherVersion("TRL 0.14 to 0.17", None),
    "vllm_dtype": OtherVersion("TRL 0.15 to 0.17", None),
    "vllm_enable_prefix_caching": OtherVersion("TRL 0.16 to 0.17", None),
    "vllm_max_model_len": OtherVersion("TRL 0.15 to 0.17", "vllm_max_model_length"),
    "vllm_guided_decoding_regex": OtherVersion("TRL 0.16 to 0.27", "vllm_structured_outputs_regex"),
    "wandb_log_unique_prompts": OtherVersion("TRL 0.17 to 0.26", "log_unique_prompts"),
    "torch_dtype": OtherVersion("TRL 0.7 to 0.26", "dtype"),
    "gradient_checkpointing_use_reentrant": OtherVersion("TRL 0.13 to 0.26", None),
    "evaluation_strategy": OtherVersion("transformers before 4.46", "eval_strategy"),
    "warmup_ratio": OtherVersion("transformers 4", "warmup_steps"),
    "per_gpu_train_batch_size": OtherVersion("transformers 4", "per_device_train_batch_size"),
    "per_gpu_eval_batch_size": OtherVersion("transformers 4", "per_device_eval_batch_size"),
    "no_cuda": OtherVersion("transformers 4", "use_cpu"),
    "group_by_length": OtherVersion("transformers 4", "train_sampling_strategy"),
    "push_to_hub_token": OtherVersion("transformers 4", "hub_token"),
    "push_to_hub_model_id": OtherVersion("transformers 4", "hub_model_id"),
    "include_inputs_for_metrics": OtherVersion("transformers 4", "include_for_metrics"),
    **dict.fromkeys(REMOVED_NAMES, OtherVersion("transformers 4", None)),
}  # fmt: skip

# All names. A name stands in one of the parts only.
TABLE_PARTS: tuple[dict[str, Any], ...] = (
    OUR_SETTINGS,
    OUR_OPTIONS,
    RENAMED_NAMES,
    CONVERTED_NAMES,
    UNSUPPORTED_NAMES,
    NO_EFFECT_NAMES,
    DATASET_NAMES,
    OTHER_VERSIONS,
)
TRL_TABLE: dict[str, Entry] = {name: entry for part in TABLE_PARTS for name, entry in part.items()}

# TRL's defaults for names that a file for TRL does not contain. The outcome of a run depends on the first ones, and the
# defaults here are others, so the run gets TRL's.
TRL_DEFAULTS_OF_RUN: dict[str, Any] = {
    "seed": 42,
    "num_generations": 8,
    "max_completion_length": 512,
    "use_bias_correction_kl": True,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
}
# The others are what `file.py` translates in place of a value in the file.
TRL_DEFAULTS_TO_TRANSLATE: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "num_train_epochs": 3.0,
    "logging_steps": 10,
    "ref_model_sync_steps": 512,
    "ref_model_mixup_alpha": 0.6,
    "lora_dropout": 0.05,
}

# The losses of this package that TRL has, by name. `--engine trl` refuses any other one.
LOSSES_IN_TRL = frozenset({"grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"})


def settings_handled(handling: Handling) -> tuple[str, ...]:
    """Return the names of the settings with which `--engine trl` does this."""
    return tuple(name for name, entry in OUR_SETTINGS.items() if entry.handling is handling)


def settings_counted_in(unit: Unit) -> tuple[str, ...]:
    """Return the names of the settings that count steps here and this unit on TRL."""
    return tuple(name for name, entry in OUR_SETTINGS.items() if entry.unit is unit)


def loss_refusal(loss_type: str) -> str | None:
    """Return the reason why `--engine trl` refuses a loss, or None if TRL has it."""
    if is_user_formula(loss_type):
        return ONLY_IN_OUR_LOOP
    return None if loss_type in LOSSES_IN_TRL else "TRL has no such loss"
