"""Everything a run's outcome depends on, in one dataclass. Names are TRL's, so that a configuration carries over."""

from dataclasses import dataclass
from typing import ClassVar

from grpo_lab.config.precision import PRECISIONS
from grpo_lab.config.ranges import ADVANTAGES, LARGEST_SEED, SCHEDULES, check_each, check_together, setting
from grpo_lab.kl import ESTIMATORS
from grpo_lab.objective import LEVELS, LOSS_TYPES
from grpo_lab.objective.table import SMALLEST_LAMBDA

SETTINGS = "grpo_config.json"  # where a run keeps them, in its folder
# What may change when a run is resumed: nothing that training computes depends on it. So may `max_steps`, with which a
# falling learning rate changes.
MAY_CHANGE = (
    *("output_dir", "resume_from_checkpoint", "save_steps", "save_total_limit", "report_to", "disable_tqdm"),
    *("logging_steps", "log_completions", "num_completions_to_print", "eval_steps"),
)


@dataclass
class GRPOConfig:
    """Settings of one run. A *step* is one batch of rollouts and all updates made from it.

    (TRL counts updates: multiply every number of steps by `updates_per_step` when you move. What else differs under the
    same name stands in docs/commands.md.)

    Raises:
        ValueError: for the first setting that is out of its range, or does not fit the others; it is named.
        TypeError: for one of another type.
    """

    # What a command was told beside the settings: model, task, rewards. It is saved with them, to go on from there.
    command: ClassVar[dict] = {}

    output_dir: str | None = setting(
        None, about="for checkpoints and metrics.jsonl; none keeps nothing", group="the run"
    )
    seed: int = setting(0, f"[0, {LARGEST_SEED}]")
    max_steps: int = setting(100, "[0, inf)")
    save_steps: int = setting(50, "[0, inf)", "a checkpoint every so many steps; 0 saves only the end")
    save_total_limit: int | None = setting(2, "[1, inf)", "how many checkpoints stay, with the best (none: all)")
    resume_from_checkpoint: bool = setting(False)

    disable_tqdm: bool = setting(False, group="what it shows")
    report_to: str = setting("none", ("none", "tensorboard"), "where metrics go beside metrics.jsonl")
    logging_steps: int = setting(10, "[1, inf)", "with log_completions: every so many steps")
    log_completions: bool = setting(False, about="print the best and worst, write all of the step to completions.jsonl")
    num_completions_to_print: int | None = setting(4, "[0, inf)", "half of them the best, half the worst (none: all)")
    log_kl: bool = setting(False, about="with beta = 0: measure the KL to the first model, which stays in memory")

    eval_steps: int | None = setting(None, "[1, inf)", "every so many steps, and after the last", group="evaluation")
    num_generations_eval: int | None = setting(None, "[1, inf)", "completions a prompt (none: num_generations)")
    per_device_eval_batch_size: int | None = setting(None, "[1, inf)", "completions at a time (none: as in training)")
    load_best_model_at_end: bool = setting(False, about="a checkpoint at each best eval/reward; the last is the result")

    num_generations: int = setting(16, "[1, inf)", "G, completions a prompt", group="sampling")
    generation_batch_size: int = setting(256, "[1, inf)", "B = P*G, completions a step")
    max_completion_length: int = setting(64, "[1, inf)")
    temperature: float = setting(1.0, "(0, inf)")
    top_k: int = setting(0, "[0, inf)")
    top_p: float = setting(1.0, "(0, 1]")
    repetition_penalty: float = setting(1.0, "(0, inf)")

    reward_weights: list[float] | None = setting(None, group="rewards and advantages")
    advantage: str = setting("group", ADVANTAGES, 'what a reward is compared with; "none" uses it raw')
    scale_rewards: str = setting("group", ("group", "batch", "none"), "by whose deviation")
    mask_truncated_completions: bool = setting(False)

    loss_type: str = setting("dapo", LOSS_TYPES, group="objective")
    importance_sampling_level: str = setting("token", LEVELS)
    epsilon: float = setting(0.2, "[0, 1]")
    epsilon_high: float | None = setting(None, "[0, inf)")
    delta: float | None = setting(None, "(1, inf)")
    sapo_temperature_pos: float = setting(1.0, "(0, inf)")
    sapo_temperature_neg: float = setting(1.05, "(0, inf)")
    vespo_k_pos: float = setting(2.0, "[0, inf)")
    vespo_lambda_pos: float = setting(3.0, f"[{SMALLEST_LAMBDA}, inf)")
    vespo_k_neg: float = setting(3.0, "[0, inf)")
    vespo_lambda_neg: float = setting(2.0, f"[{SMALLEST_LAMBDA}, inf)")
    beta: float = setting(0.0, "[0, inf)")
    kl_estimator: str = setting("k3", ESTIMATORS)
    use_bias_correction_kl: bool = setting(False)
    entropy_coef: float = setting(0.0, "(-inf, inf)")
    ref_model_sync_steps: int | None = setting(None, "[1, inf)", "refresh the reference so often (none: never)")
    ref_model_device: str | None = setting(None, about='none: where the policy is; "cpu" saves memory of the card')

    learning_rate: float = setting(2e-4, "[0, inf)", group="optimisation")
    lr_scheduler_type: str = setting("constant_with_warmup", SCHEDULES, '"constant" has no warm-up at all')
    warmup_steps: int = setting(5, "[0, inf)")
    weight_decay: float = setting(0.0, "[0, inf)")
    adam_beta1: float = setting(0.9, "[0, 1)")
    adam_beta2: float = setting(0.999, "[0, 1)")
    max_grad_norm: float = setting(1.0, "(0, inf]", "inf: gradients are not clipped")
    num_iterations: int = setting(1, "[1, inf)", "mu, passes over each batch of rollouts")
    per_device_train_batch_size: int | None = setting(None, "[1, inf)", "rows at once (none: the whole update)")
    gradient_accumulation_steps: int = setting(1, "[1, inf)")
    gradient_checkpointing: bool = setting(False)
    precision: str | None = setting(None, tuple(PRECISIONS), "none: by the flags below, else as the model was loaded")
    bf16: bool = setting(False, about='the name in TRL of precision "fp32-master"')
    fp16: bool = setting(False, about='the name in TRL of precision "fp16"')
    max_nonfinite_steps: int = setting(3, "[1, inf)", "updates in a row that may be skipped, as where a loss is NaN")

    def __post_init__(self):
        check_each(self)
        if self.per_device_train_batch_size is None:
            self.per_device_train_batch_size = max(1, self.generation_batch_size // self.gradient_accumulation_steps)
        check_together(self)

    @property
    def update_batch_size(self) -> int:
        """Rows that one optimizer update sees."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def updates_per_step(self) -> int:
        return self.generation_batch_size // self.update_batch_size * self.num_iterations

    @property
    def prompts_per_step(self) -> int:
        return self.generation_batch_size // self.num_generations

    @property
    def needs_reference(self) -> bool:
        """Whether the model at the start, or of the last refresh, is kept beside the policy."""
        return self.beta > 0 or self.log_kl

    @property
    def needs_every_row(self) -> bool:
        """Whether a row with zero advantage still carries gradient."""
        return self.beta > 0 or self.entropy_coef != 0

    def loss_arguments(self) -> dict:
        """What `policy_loss` takes from this configuration."""
        same = ("loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "delta", "beta", "kl_estimator",
                "max_completion_length", "sapo_temperature_pos", "sapo_temperature_neg", "vespo_k_pos",
                "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg")  # fmt: skip
        return {name: getattr(self, name) for name in same} | {"kl_bias_correction": self.use_bias_correction_kl}

    def sampling_arguments(self) -> dict:
        names = ("temperature", "top_k", "top_p", "repetition_penalty")
        return {name: getattr(self, name) for name in names}
