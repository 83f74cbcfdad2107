"""Where a setting of `GRPOConfig` means something else than TRL's of the same name, or has another default.

Whatever TRL 1.16 has too and is in neither table has the same default and the same meaning there; the tests hold both
against the installed one.
"""

# A run's grpo_config.json has the value of each, so what carries a configuration over carries these, too.
OTHER_DEFAULTS = (
    "seed", "max_steps", "save_steps", "save_total_limit", "resume_from_checkpoint", "num_completions_to_print",
    "per_device_eval_batch_size", "disable_tqdm", "num_generations", "generation_batch_size", "max_completion_length",
    "use_bias_correction_kl", "ref_model_sync_steps", "learning_rate", "lr_scheduler_type", "warmup_steps",
    "per_device_train_batch_size", "gradient_checkpointing", "bf16",
)  # fmt: skip
MEANINGS = {
    "max_steps": "counts rollouts, each with all its updates (`updates_per_step`); TRL counts updates",
    "save_steps": "counts as max_steps does; 0 saves the end alone; no share of the run as in 0.1",
    "eval_steps": "counts as max_steps does, and is enough (no eval_strategy); the last step is evaluated too",
    "logging_steps": "counts as max_steps does; it is for log_completions alone: metrics are written at every step",
    "warmup_steps": "counts as max_steps does; the first step has 1/warmup_steps of the rate, and in TRL 0",
    "lr_scheduler_type": "all updates of a step share the rate of its first; four of the schedules are here",
    "log_completions": "a table of plain text and completions.jsonl; TRL's needs rich, and writes parquet files",
    "num_completions_to_print": "the best and the worst, half of them each; TRL draws at random",
    "metric_for_best_model": "named as in the metrics, eval/reward; None is the reward, and in TRL the loss",
    "load_best_model_at_end": "a checkpoint is made at each new best; TRL asks that save_steps and eval_steps match",
    "ref_model_sync_steps": "counts as max_steps does; the reference becomes the policy (ref_model_mixup_alpha of 1)",
    "resume_from_checkpoint": "True or False, and not the name of a folder: output_dir is where the run goes on",
    "weight_decay": "of every parameter; in TRL not of biases and norms",
    "max_grad_norm": "inf leaves gradients as they are, and 0 is refused; in TRL 0 leaves them as they are",
    "report_to": "one of the two, not a list",
}
