"""What TRL's trainer makes of each setting of a run: passed on by name, translated, or refused by name."""

import os
from dataclasses import fields

from grpo_lab.config import GRPOConfig
from grpo_lab.config.differences import MEANINGS

# Settings that mean the same under the same name in TRL's GRPOConfig.
SAME = (
    *("seed", "num_generations", "generation_batch_size", "max_completion_length"),
    *("temperature", "top_k", "top_p", "repetition_penalty"),
    *("reward_weights", "scale_rewards", "mask_truncated_completions"),
    *("loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "delta", "beta", "use_bias_correction_kl"),
    *("sapo_temperature_neg", "sapo_temperature_pos"),
    *("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
    *("entropy_coef", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "max_grad_norm"),
    *("num_iterations", "per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing"),
)
# Settings that mean here what they mean without an engine: the engine translates them, or they concern what is ours.
KEPT = (
    *("max_steps", "warmup_steps", "lr_scheduler_type", "ref_model_sync_steps", "precision", "bf16", "fp16"),
    *("output_dir", "disable_tqdm", "report_to", "run_name"),
    *("eval_steps", "num_generations_eval", "per_device_eval_batch_size"),
)
FLAGS = {"fp32": (), "fp32-master": ("bf16",), "fp16": ("fp16",), "bf16-naive": ()}  # precision -> TRL's name for it


def check_settings(config: GRPOConfig) -> None:
    """Raise ValueError for the first setting that this engine does not have, or that means another thing there."""
    allowed = {field.name: (field.default,) for field in fields(GRPOConfig) if field.name not in SAME + KEPT}
    allowed["save_steps"] += (0,)  # only the end is saved
    for name, values in allowed.items():
        value = getattr(config, name)
        if value not in values:
            why = f"; it is not the same in TRL: {MEANINGS[name]}" if name in MEANINGS else ""
            raise ValueError(f"{name} is {value!r}; expected {values[0]!r} with --engine trl, which does without{why}")
    if config.precision not in (None, *FLAGS):
        ways = ", ".join(FLAGS)
        raise ValueError(f"precision is {config.precision!r}, which only our optimizer has; --engine trl takes {ways}")
    if (processes := int(os.environ.get("WORLD_SIZE", 1))) > 1:
        raise ValueError(f"WORLD_SIZE is {processes}; expected 1: --engine trl runs on one process")
