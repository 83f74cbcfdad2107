"""Everything a run's outcome depends on, in one dataclass. Names are TRL's, so that a configuration carries over."""

import types
import typing
from dataclasses import dataclass, fields

from grpo_lab.checks import check_at_least, check_choice, check_positive, check_sampling
from grpo_lab.kl import ESTIMATORS
from grpo_lab.objective import LEVELS, LOSS_TYPES
from grpo_lab.precision import PRECISIONS, short_name

ADVANTAGES = ("group", "rloo", "best_of_group", "none")

# What a setting may be, each said once. Settings that only the loss reads (epsilon, delta) are checked by the loss.
CHOICES = {
    "report_to": ("none", "tensorboard"),
    "cache_implementation": (None, "dynamic", "static"),
    "advantage": ADVANTAGES,
    "scale_rewards": ("group", "batch", "none"),
    "loss_type": LOSS_TYPES,
    "importance_sampling_level": LEVELS,
    "kl_estimator": ESTIMATORS,
    "lr_scheduler_type": ("constant", "linear", "cosine"),
    "precision": (None, *PRECISIONS),
}
AT_LEAST = {
    0: ("max_steps", "save_steps", "beta", "warmup_steps", "weight_decay", "learning_rate"),
    1: ("generation_batch_size", "max_completion_length", "ref_model_sync_steps", "num_iterations",
        "per_device_train_batch_size", "gradient_accumulation_steps", "max_nonfinite_steps"),
}  # fmt: skip


@dataclass
class GRPOConfig:
    """Settings of one run. A *step* is one batch of rollouts and all updates made from it.

    (TRL counts updates: multiply `max_steps` by `updates_per_step` when you move.)
    """

    # the run
    output_dir: str | None = None  # where checkpoints and metrics.jsonl go; None keeps nothing
    seed: int = 0
    max_steps: int = 100
    save_steps: int = 50  # a checkpoint every so many steps; 0 saves only the end
    resume_from_checkpoint: bool = False
    report_to: str = "none"  # "none" or "tensorboard"
    disable_tqdm: bool = False

    # sampling
    num_generations: int = 16  # G, completions a prompt
    generation_batch_size: int = 256  # B = P*G, completions a step
    max_completion_length: int = 64
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    cache_implementation: str | None = None  # "static", "dynamic"; None: static on a card, dynamic elsewhere

    # rewards and advantages
    reward_weights: list[float] | None = None
    advantage: str = "group"  # what a reward is compared with; "none" uses it raw
    scale_rewards: str = "group"  # "group", "batch" or "none"
    mask_truncated_completions: bool = False

    # objective
    loss_type: str = "dapo"
    importance_sampling_level: str = "token"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    beta: float = 0.0
    kl_estimator: str = "k3"
    use_bias_correction_kl: bool = False
    entropy_coef: float = 0.0
    ref_model_sync_steps: int | None = None  # refresh the reference every so many steps; None keeps it frozen
    ref_model_device: str | None = None  # None: where the policy is; "cpu" saves the card's memory

    # optimisation
    learning_rate: float = 2e-4
    lr_scheduler_type: str = "constant"  # after the warm-up: "constant", "linear" or "cosine"
    warmup_steps: int = 5
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    max_grad_norm: float = 1.0
    num_iterations: int = 1  # mu, passes over each batch of rollouts
    per_device_train_batch_size: int | None = None  # rows that are on the device at once; None: the whole update
    gradient_accumulation_steps: int = 1
    gradient_checkpointing: bool = False
    precision: str | None = None  # None: by the flags below, else the mode that the model was loaded for
    bf16: bool = False  # TRL's name for precision="fp32-master"
    fp16: bool = False  # and for precision="fp16"
    max_nonfinite_steps: int = 3  # updates in a row that may be skipped for a loss or gradient that is not finite

    def __post_init__(self):
        self._check_types()
        self._check_values()
        if self.per_device_train_batch_size is None:
            self.per_device_train_batch_size = max(1, self.generation_batch_size // self.gradient_accumulation_steps)
        self._check_sizes()
        self._check_what_goes_together()

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
    def needs_every_row(self) -> bool:
        """Whether a row with zero advantage still carries gradient."""
        return self.beta > 0 or self.entropy_coef != 0

    def loss_arguments(self) -> dict:
        """What `policy_loss` takes from this configuration."""
        same = ("loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "delta", "beta", "kl_estimator",
                "max_completion_length")  # fmt: skip
        return {name: getattr(self, name) for name in same} | {"kl_bias_correction": self.use_bias_correction_kl}

    def sampling_arguments(self) -> dict:
        names = ("temperature", "top_k", "top_p", "repetition_penalty", "cache_implementation")
        return {name: getattr(self, name) for name in names}

    def _check_types(self):
        for field in fields(self):
            value, kinds = getattr(self, field.name), options(field.type)
            accepted = [typing.get_origin(kind) or kind for kind in kinds]
            accepted += [int] if float in accepted else []
            if not isinstance(value, tuple(accepted)) or (isinstance(value, bool) and bool not in accepted):
                names = " or ".join("None" if kind is types.NoneType else kind.__name__ for kind in kinds)
                raise TypeError(f"{field.name} is {value!r}; expected {names}")

    def _check_values(self):
        for name, choices in CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        for least, names in AT_LEAST.items():
            for name in names:
                if getattr(self, name) is not None:
                    check_at_least(name, getattr(self, name), least)
        check_positive("max_grad_norm", self.max_grad_norm)
        check_sampling(self.temperature, self.top_k, self.top_p, self.repetition_penalty)

    def _check_sizes(self):
        least, whole, update = 1 if self.advantage == "none" else 2, self.generation_batch_size, self.update_batch_size
        if self.num_generations < least:
            raise ValueError(
                f"num_generations is {self.num_generations}; it must be at least {least} with "
                f"advantage {self.advantage!r}"
            )
        if whole % self.num_generations:
            raise ValueError(
                f"generation_batch_size is {whole}; it must be a multiple of num_generations = {self.num_generations}"
            )
        if whole % update:
            raise ValueError(
                f"per_device_train_batch_size * gradient_accumulation_steps is {update}; "
                f"it must divide generation_batch_size = {whole}"
            )

    def _check_what_goes_together(self):
        if self.bf16 and self.fp16:
            raise ValueError("bf16 and fp16 are both True; expected at most one of them")
        if self.precision is not None:
            mode = PRECISIONS[self.precision]
            half = short_name(mode.autocast or mode.weights)
            for flag in ("bf16", "fp16"):
                if getattr(self, flag) and flag != half:
                    raise ValueError(f"{flag} is True; expected False with precision = {self.precision!r}")
        for name, off in (("resume_from_checkpoint", False), ("report_to", "none")):
            if self.output_dir is None and getattr(self, name) != off:
                raise ValueError(f"output_dir is None; expected a folder with {name} = {getattr(self, name)!r}")


def options(annotation) -> tuple:
    """The types that an annotation such as `int | None` allows."""
    return typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
