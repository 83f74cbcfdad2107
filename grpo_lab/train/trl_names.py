"""Tables of the names that a TRL 1.16 configuration may contain and that are not settings of this package.

A test compares them with the installed TRL: each field of its GRPOConfig is a setting of this package or in one table.
"""

from grpo_lab.command_options import VLLM_OPTIONS
from grpo_lab.config.lora import LORA_OPTIONS

VERSION = "1.16"

NUM_TRAIN_EPOCHS = 3.0  # TRL's default, which `trl_file` converts

# Names for which this package has other settings, into which `trl_file` translates them.
TRANSLATED = (
    "num_train_epochs", "steps_per_generation", "eval_strategy", "save_strategy", "sync_ref_model",
    "ref_model_mixup_alpha", "model_name_or_path",
)  # fmt: skip

# Options of the command that are not settings of a run's configuration. The options of vLLM need --engine trl.
PEFT_NAMES = ("use_peft", *LORA_OPTIONS)
VLLM_NAMES = ("use_vllm", *VLLM_OPTIONS)
LORA_DROPOUT = 0.05  # TRL's default

# Names that this package lacks although the outcome of a run depends on them: for each, the values with which a run
# here is the same, and what to do instead with any other value.
UNSUPPORTED: dict[str, tuple[tuple, str]] = {
    "load_in_8bit": ((False,), "no quantised weights; precision bf16 has a small optimizer state"),
    "load_in_4bit": ((False,), "no quantised weights; precision bf16 has a small optimizer state"),
    "dtype": (("auto", "float32"), "give --precision: bf16 trains bf16 weights"),
    "model_init_kwargs": (({}, ""), "give --precision or a folder"),
    "model_revision": (("main", ""), "fetch that revision, and give its folder as --model"),
    "reward_model_name_or_path": (("",), "a judge behind a server is a reward of your own (docs/serving.md)"),
    "router_aux_loss_coef": ((0, 0.0), "no load-balancing loss"),
    "lr_scheduler_kwargs": (({}, ""), "the schedules have no parameters"),
    "optim": (("adamw_torch", "adamw_torch_fused"), "AdamW; --precision bf16 takes its 8-bit form"),
    "optim_args": (("",), "AdamW as it is"),
    "optim_target_modules": (("",), "all parameters that require a gradient are trained"),
    "adam_epsilon": ((1e-8,), "it is 1e-8"),
    "neftune_noise_alpha": ((0, 0.0), "no noise on embeddings"),
    "load_best_model_at_end": ((False,), "the last model is saved; evaluate the checkpoints"),
    "shuffle_dataset": ((True,), "rows come in a new order every epoch"),
    "min_p": ((0, 0.0), "take top_p"),
    "generation_kwargs": (({}, ""), "no further arguments of the sampler"),
    "chat_template_kwargs": (({}, ""), "no arguments of the chat template"),
    "multi_objective_aggregation": (("sum_then_normalize",), "rewards are added, then standardised"),
    "top_entropy_quantile": ((1, 1.0), "the loss is over all tokens"),
    "use_adaptive_entropy": ((False,), "entropy_coef is constant"),
    "off_policy_mask_threshold": ((), "no sequence is masked for being off-policy"),
    "lora_task_type": (("CAUSAL_LM",), "the model is a causal language model"),
    "lora_target_parameters": ((), "only linear maps have adapters"),
    "lora_modules_to_save": ((), "adapters alone are trained"),
    "use_rslora": ((False,), "an adapter is multiplied by alpha / r; give lora_alpha"),
    "use_dora": ((False,), "adapters are those of LoRA"),
    "vllm_structured_outputs_regex": ((), "no grammar of completions"),
    "vllm_importance_sampling_clip_min": ((), "no lower limit of the weights"),
    "vllm_importance_sampling_cap": ((), "give vllm_importance_sampling_clip_max"),
}

# Names on which the outcome of a run here does not depend, grouped by the reason.
NO_EFFECT: dict[str, tuple[str, ...]] = {
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
        "ddp_timeout", "fsdp", "fsdp_config", "deepspeed", "parallelism_config", "local_rank",
        "average_tokens_across_devices", "ds3_gather_for_generation",
    ),
    "speed and memory are chosen by the hardware": (
        "tf32", "torch_compile", "torch_compile_backend", "torch_compile_mode", "use_cache", "torch_empty_cache_steps",
        "use_cpu", "full_determinism", "gradient_checkpointing_kwargs", "use_liger_kernel", "liger_kernel_config",
        "cast_lm_head_to_fp32", "cache_implementation", "use_transformers_continuous_batching",
        "transformers_continuous_batching_config", "use_transformers_paged", "bf16_full_eval", "fp16_full_eval",
        "auto_find_batch_size", "attn_implementation",
    ),
    "the loss of GRPO has no labels, and dropout is off": ("label_smoothing_factor", "disable_dropout"),
    "it says how vLLM is laid out": ("vllm_model_impl", "vllm_enable_sleep_mode"),
    "it belongs to use_adaptive_entropy": (
        "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "entropy_target",
    ),
    "it belongs to quantised weights": ("bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage"),
    "no code of a hub is run, and no file sets the environment": ("trust_remote_code", "env"),
    "the task says it": (
        "dataset_config", "dataset_train_split", "dataset_test_split", "dataset_streaming", "ignore_bias_buffers",
    ),
}  # fmt: skip
WHY_NO_EFFECT = {name: reason for reason, names in NO_EFFECT.items() for name in names}
DATASETS = ("dataset_name", "datasets")  # names of data to download, for which the user has to type --task

# Names of transformers 4 without a successor.
REMOVED_NAMES = (
    "logging_dir", "overwrite_output_dir", "save_safetensors", "fp16_opt_level", "half_precision_backend",
    "fp16_backend", "use_mps_device", "jit_mode_eval", "use_ipex", "dispatch_batches", "split_batches",
    "tpu_num_cores", "tpu_metrics_debug", "past_index", "torchdynamo", "ray_scope", "mp_parameters",
    "push_to_hub_organization", "fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap",
    "use_legacy_prediction_loop", "include_tokens_per_second",
)  # fmt: skip
# Names of other versions of TRL, or of transformers: the versions that had the name, and its successor or None. TRL's
# versions are the first and the last release with the name, from its repository.
OTHER_VERSIONS: dict[str, tuple[str, str | None]] = {
    "max_prompt_length": ("TRL 0.14 to 0.27, which cut prompts to it; no prompt is cut", None),
    "use_liger_loss": ("TRL 0.17 to 0.27", "use_liger_kernel"),
    "vllm_device": ("TRL 0.14 to 0.17", None),
    "vllm_dtype": ("TRL 0.15 to 0.17", None),
    "vllm_enable_prefix_caching": ("TRL 0.16 to 0.17", None),
    "vllm_max_model_len": ("TRL 0.15 to 0.17", "vllm_max_model_length"),
    "vllm_guided_decoding_regex": ("TRL 0.16 to 0.27", "vllm_structured_outputs_regex"),
    "wandb_log_unique_prompts": ("TRL 0.17 to 0.26", "log_unique_prompts"),
    "torch_dtype": ("TRL 0.7 to 0.26", "dtype"),
    "gradient_checkpointing_use_reentrant": ("TRL 0.13 to 0.26", None),
    "evaluation_strategy": ("transformers before 4.46", "eval_strategy"),
    "warmup_ratio": ("transformers 4", "warmup_steps"),
    "per_gpu_train_batch_size": ("transformers 4", "per_device_train_batch_size"),
    "per_gpu_eval_batch_size": ("transformers 4", "per_device_eval_batch_size"),
    "no_cuda": ("transformers 4", "use_cpu"),
    "group_by_length": ("transformers 4", "train_sampling_strategy"),
    "push_to_hub_token": ("transformers 4", "hub_token"),
    "push_to_hub_model_id": ("transformers 4", "hub_model_id"),
    "include_inputs_for_metrics": ("transformers 4", "include_for_metrics"),
    **dict.fromkeys(REMOVED_NAMES, ("transformers 4", None)),
}  # fmt: skip

# All names of these tables: those that a file for TRL may contain and that are no settings of this package.
NAMES_WITHOUT_SETTING = {
    *TRANSLATED,
    *PEFT_NAMES,
    *VLLM_NAMES,
    *UNSUPPORTED,
    *WHY_NO_EFFECT,
    *DATASETS,
    *OTHER_VERSIONS,
}
