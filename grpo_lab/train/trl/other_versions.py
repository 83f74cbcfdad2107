"""Names in configurations of other versions of TRL, or of transformers, as a part of `TRL_TABLE`."""

from grpo_lab.train.trl.entry import OtherVersion

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
