"""What TRL's trainer makes of each setting of a run: passed on by name, translated, or refused by name."""

from dataclasses import fields

from grpo_lab.config import GRPOConfig
from grpo_lab.train.engines.processes import world_size

# Settings that mean the same under the same name in TRL's GRPOConfig.
SAME = (
    *("seed", "num_generations", "generation_batch_size", "max_completion_length"),
    *("temperature", "top_k", "top_p", "repetition_penalty"),
    *("reward_weights", "scale_rewards", "mask_truncated_completions"),
    *("loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "delta", "beta", "use_bias_correction_kl"),
    *("sapo_temperature_neg", "sapo_temperature_pos"),
    *("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
    *("entropy_coef", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "max_grad_norm"),
    *("num_iterations", "gradient_checkpointing"),
)
# Settings that mean here what they mean without an engine: the engine translates them, or they concern what is ours.
KEPT = (
    *("max_steps", "warmup_steps", "lr_scheduler_type", "ref_model_sync_steps", "precision", "bf16", "fp16"),
    *("per_device_train_batch_size", "gradient_accumulation_steps"),
    *("output_dir", "disable_tqdm", "report_to"),
    *("save_steps", "save_total_limit", "resume_from_checkpoint"),
    *("eval_steps", "num_generations_eval", "per_device_eval_batch_size"),
)
# Why each of the others is refused. What is not here is a thing of our own loop alone.
WHY = {
    "load_best_model_at_end": "the result there is the last model",
    "advantage": "TRL compares each completion with its group",
    "kl_estimator": "TRL has k3 alone",
    "log_kl": "TRL measures the KL only with beta above 0",
}
FLAGS = {"fp32": (), "fp32-master": ("bf16",), "fp16": ("fp16",), "bf16-naive": ()}  # precision -> TRL's name for it


def check_settings(config: GRPOConfig) -> None:
    """Raise ValueError for the first setting that this engine does not have, or that means another thing there."""
    allowed = {field.name: (field.default,) for field in fields(GRPOConfig) if field.name not in SAME + KEPT}
    for name, values in allowed.items():
        if getattr(config, name) not in values:
            why = WHY.get(name, "only our own loop has it")
            raise ValueError(f"{name}: {why}; leave it out with --engine trl")
    if config.max_steps == 0:
        raise ValueError("max_steps is 0; it must be at least 1 with --engine trl")
    if config.precision not in (None, *FLAGS):
        ways = ", ".join(FLAGS)
        raise ValueError(f"precision is {config.precision!r}, which only our optimizer has; --engine trl takes {ways}")
    if config.resume_from_checkpoint and config.ref_model_sync_steps is not None:
        raise ValueError(
            f"ref_model_sync_steps is {config.ref_model_sync_steps}; expected none with resume_from_checkpoint and "
            "--engine trl, whose checkpoints lack the refreshed reference"
        )
    rows_of_a_process(config)


def rows_of_a_process(config: GRPOConfig) -> dict[str, int]:
    """How each of the processes takes its part of an update, so that an update sees the rows that it sees on one.

    Raises:
        ValueError: where they cannot be shared evenly, or where the loss would not be that of the whole update.
    """
    processes = world_size()
    rows, parts = config.per_device_train_batch_size, config.gradient_accumulation_steps
    if rows % processes == 0:
        rows //= processes
    elif parts % processes == 0:
        parts //= processes
    else:
        raise ValueError(
            f"per_device_train_batch_size is {rows}; expected a multiple of {processes}, the number of processes, "
            "which share the rows of an update"
        )
    if processes > 1 and config.loss_type == "bnpo":
        raise ValueError("loss_type is 'bnpo', which TRL averages in each process by itself; expected another one")
    return {"per_device_train_batch_size": rows, "gradient_accumulation_steps": parts}
