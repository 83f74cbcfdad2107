"""Where a setting of `GRPOConfig` is not what TRL's of the same name is: other defaults, and other meanings.

Whatever TRL 1.16 has too and is not in these tables has the same default and the same meaning there; the tests hold
both tables against the installed one.
"""

from typing import NamedTuple


class Default(NamedTuple):
    """A default of ours, TRL's, and why they are not the same."""

    ours: object
    trl: object
    reason: str


_SMALL = "sized for a model that learns sums on a laptop"
_ASKED = "nothing that costs or changes the run is on unless it is asked for"

DEFAULTS = {
    "seed": Default(0, 42, "the seed of the recorded runs"),
    "max_steps": Default(100, -1, "a run has a length of its own; epochs are not counted"),
    "save_steps": Default(50, 500, _SMALL),
    "save_total_limit": Default(2, None, "the newest, and the one before it should the newest turn out broken"),
    "resume_from_checkpoint": Default(False, None, "True or False: the newest checkpoint of output_dir, or none"),
    "num_completions_to_print": Default(4, None, "the two best and the two worst; a step has hundreds"),
    "per_device_eval_batch_size": Default(None, 8, "None is as many as a rollout of the training has"),
    "disable_tqdm": Default(False, None, "TRL asks the log level"),
    "num_generations": Default(16, 8, _SMALL),
    "generation_batch_size": Default(256, None, "one number says how large a rollout is; TRL derives it"),
    "max_completion_length": Default(64, 512, _SMALL),
    "use_bias_correction_kl": Default(False, True, "the KL term of the papers"),
    "ref_model_sync_steps": Default(None, 512, "None keeps the reference frozen; TRL asks sync_ref_model"),
    "learning_rate": Default(2e-4, 1e-6, _SMALL),
    "lr_scheduler_type": Default("constant_with_warmup", "linear", "a short run learns to its end"),
    "warmup_steps": Default(5, 0, "Adam knows nothing of the gradient's size in its first steps"),
    "per_device_train_batch_size": Default(None, 8, "None is the whole update"),
    "gradient_checkpointing": Default(False, True, _ASKED),
    "bf16": Default(False, None, "the model's own precision decides; TRL asks for bf16 wherever fp16 is off"),
}

MEANINGS = {
    "max_steps": "counts rollouts, each with all its updates (`updates_per_step`); TRL counts updates",
    "save_steps": "counts as max_steps does; 0 saves the end alone; no share of the run as in 0.1",
    "eval_steps": "counts as max_steps does, and is enough (no eval_strategy); the last step is evaluated too",
    "logging_steps": "counts as max_steps does; it is for log_completions alone: metrics are written at every step",
    "warmup_steps": "counts as max_steps does; the first step has 1/warmup_steps of the rate, and in TRL 0",
    "lr_scheduler_type": "all updates of a step share the rate of its first; four of the schedules are here",
    "log_completions": "a table of plain text and completions.jsonl; TRL's needs rich, and writes parquet files",
    "num_completions_to_print": "the best and the worst, half of them each; TRL draws at random",
    "load_best_model_at_end": "by eval/reward, in TRL by the loss; a checkpoint is made at each new best",
    "ref_model_sync_steps": "counts as max_steps does; the reference becomes the policy (ref_model_mixup_alpha of 1)",
    "resume_from_checkpoint": "True or False, and not the name of a folder: output_dir is where the run goes on",
    "weight_decay": "of every parameter; in TRL not of biases and norms",
    "max_grad_norm": "inf leaves gradients as they are, and 0 is refused; in TRL 0 leaves them as they are",
    "report_to": "one of the three, not a list",
}
