"""Everything a run's outcome depends on, in one dataclass. Names are TRL's, so that a configuration carries over.

A setting is said once, beside what reads it: those of a loss in `objective/table.py`, the others here, each with its
range, its help, and where it matters. A setting that was given and that nothing chosen reads is refused by name.
"""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace

from grpo_lab.advantages import ADVANTAGES, SCALES
from grpo_lab.commands.checks import InputError, check_sampling
from grpo_lab.commands.setting import arguments, call, check_range, check_read, check_type, setting, unread
from grpo_lab.config.precision import PRECISIONS, short_name
from grpo_lab.config.schedules import SCHEDULES
from grpo_lab.kl import ESTIMATORS
from grpo_lab.objective import LEVELS, LOSSES, LossSettings, policy_loss

SETTINGS_FILE = "grpo_config.json"  # where a run keeps them, in its folder
LARGEST_SEED = 2**32 - 1  # numpy's limit, and so that of transformers' `set_seed`
ALONE = "only our own loop has it"  # of a setting that --engine trl refuses
OURS = {"trl": "ours", "may_change": True}
A_FOLDER = {"when": "output_dir"} | OURS
THE_END = {"trl": "it saves the end alone, and a run does not go on"}
SHOWN = {"trl": ALONE, "may_change": True}
TABLE = {"when": "log_completions"} | SHOWN
AT_EVAL = {"when": "eval_steps", "trl": "ours"}


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of the run, its rollouts and rewards, and which loss it takes."""

    output_dir: str | None = setting(None, "", "for checkpoints and metrics; none keeps nothing", "the run", **OURS)
    seed: int = setting(0, f"[0, {LARGEST_SEED}]")
    max_steps: int = setting(100, "[0, inf)", trl="ours")
    save_steps: int = setting(50, "[0, inf)", "a checkpoint every so many steps; 0: only the end", **A_FOLDER | THE_END)
    save_total_limit: int | None = setting(2, "[1, inf)", "how many stay (none: all)", **A_FOLDER | THE_END)
    resume_from_checkpoint: bool = setting(False, **OURS | THE_END)

    disable_tqdm: bool = setting(False, group="what it shows", **OURS)
    report_to: str = setting("none", ("none", "tensorboard"), "where metrics go beside metrics.jsonl", **A_FOLDER)
    logging_steps: int = setting(10, "[1, inf)", "with log_completions: every so many steps", **TABLE)
    log_completions: bool = setting(False, "", "print the best and the worst, write all to completions.jsonl", **SHOWN)
    log_kl: bool = setting(False, "", "with beta = 0, the KL to the first model", trl="TRL has it with beta above 0")

    eval_steps: int | None = setting(None, "[1, inf)", "every so many, and after the last", "evaluation", **OURS)
    num_generations_eval: int | None = setting(None, "[1, inf)", "a prompt (none: num_generations)", **AT_EVAL)
    per_device_eval_batch_size: int | None = setting(None, "[1, inf)", "at a time (none: as in training)", **AT_EVAL)

    num_generations: int = setting(16, "[1, inf)", "G, completions a prompt", group="sampling")
    generation_batch_size: int = setting(256, "[1, inf)", "B = P*G, completions a step")
    max_completion_length: int = setting(64, "[1, inf)")
    temperature: float = setting(1.0, "(0, inf)")
    top_k: int = setting(0, "[0, inf)")
    top_p: float = setting(1.0, "(0, 1]")
    repetition_penalty: float = setting(1.0, "(0, inf)")

    reward_weights: list[float] | None = setting(None, group="rewards and advantages")
    advantage: str = setting("group", ADVANTAGES, '"none": the reward itself', trl="TRL has that of the group")
    scale_rewards: str = setting("group", SCALES, "by whose deviation")
    mask_truncated_completions: bool = setting(False)

    loss_type: str = setting("dapo", LOSSES, group="objective")
    importance_sampling_level: str = setting("token", LEVELS, when="use_bias_correction_kl")


@dataclass(frozen=True, kw_only=True)
class GRPOConfig(LossSettings, RunSettings):
    """Settings of one run. A *step* is one batch of rollouts and all updates made from it.

    (TRL counts updates: multiply every number of steps by `updates_per_step` when you move. What else differs under the
    same name stands in docs/commands.md.) It is frozen: `dataclasses.replace(config, beta=0.04)` makes another one.
    Raises InputError for the first setting that is out of its range, does not fit the others, or is read by nothing.

    command: what a command was told beside the settings, such as model, task and rewards; saved with them.
    """

    beta: float = setting(0.0, "[0, inf)")
    kl_estimator: str = setting("k3", ESTIMATORS, when="beta or log_kl", trl="TRL has k3 alone")
    use_bias_correction_kl: bool = setting(False, when="beta")
    entropy_coef: float = setting(0.0, "(-inf, inf)")
    ref_model_sync_steps: int | None = setting(None, "[1, inf)", "refresh it so often", when="beta", trl="ours")
    ref_model_device: str | None = setting(None, "", '"cpu" saves the card memory', when="beta or log_kl", trl=ALONE)

    learning_rate: float = setting(2e-4, "[0, inf)", group="optimisation")
    lr_scheduler_type: str = setting("constant_with_warmup", SCHEDULES, '"constant" has no warm-up at all', trl="ours")
    warmup_steps: int = setting(5, "[0, inf)", trl="ours")
    weight_decay: float = setting(0.0, "[0, inf)")
    adam_beta1: float = setting(0.9, "[0, 1)")
    adam_beta2: float = setting(0.999, "[0, 1)")
    max_grad_norm: float = setting(1.0, "(0, inf]", "inf: gradients are not clipped")
    num_iterations: int = setting(1, "[1, inf)", "mu, passes over each batch of rollouts")
    per_device_train_batch_size: int | None = setting(None, "[1, inf)", "at once (none: the update)", trl="ours")
    gradient_accumulation_steps: int = setting(1, "[1, inf)")
    gradient_checkpointing: bool = setting(False)
    precision: str | None = setting(None, tuple(PRECISIONS), "none: as flags and model say", trl="ours")
    bf16: bool = setting(False, "", 'the name in TRL of precision "fp32-master"', trl="ours")
    fp16: bool = setting(False, "", 'the name in TRL of precision "fp16"', trl="ours")
    max_nonfinite_steps: int = setting(3, "[1, inf)", "updates in a row, as of a NaN, that end the run", trl=ALONE)

    command: dict = field(default_factory=dict, compare=False, repr=False)  # no setting

    def __post_init__(self):
        _check_settings(self)

    def saved(self) -> dict:
        """Every setting, and what the command was told beside them, ready for JSON."""
        settings = asdict(self)
        return settings.pop("command") | settings

    def without(self, **changes) -> "GRPOConfig":
        """The configuration with these changes, and with what nothing reads any more at its default again."""
        changed = SimpleNamespace(**vars(self) | changes)
        while unused := {name: SETTINGS[name].default for name, _ in unread(changed, SETTINGS)}:
            vars(changed).update(unused)
        return GRPOConfig(**vars(changed))

    @property
    def rows_at_once(self) -> int:
        """Rows of a micro-batch: `per_device_train_batch_size`, or all of an update where that is None."""
        update_rows = max(1, self.generation_batch_size // self.gradient_accumulation_steps)
        return self.per_device_train_batch_size or update_rows

    @property
    def update_batch_size(self) -> int:
        """Rows that one optimizer update sees."""
        return self.rows_at_once * self.gradient_accumulation_steps

    @property
    def updates_per_step(self) -> int:
        return self.generation_batch_size // self.update_batch_size * self.num_iterations

    @property
    def prompts_per_step(self) -> int:
        return self.generation_batch_size // self.num_generations

    @property
    def needs_reference(self) -> bool:
        """True if the model at the start, or of the last refresh, is kept beside the policy."""
        return self.beta > 0 or self.log_kl

    @property
    def needs_every_row(self) -> bool:
        """True if a row with zero advantage still carries gradient."""
        return self.beta > 0 or self.entropy_coef != 0

    def loss_arguments(self) -> dict:
        """The arguments of `policy_loss`: its keywords, and the settings that this loss reads."""
        names = {*arguments(policy_loss)} - LossSettings.__dataclass_fields__.keys() | LOSSES[self.loss_type].reads
        chosen = {name: getattr(self, name) for name in SETTINGS if name in names}
        return chosen | {"kl_bias_correction": self.use_bias_correction_kl}

    def sampling_arguments(self) -> dict:
        """The settings of the sampler, as `sample_completions` takes them."""
        return {name: getattr(self, name) for name in arguments(check_sampling)}


SETTINGS = {each.name: each for each in fields(GRPOConfig) if each.name != "command"}
# What may change when a run is resumed. So may `max_steps`, with which a falling learning rate changes.
MAY_CHANGE = tuple(name for name, each in SETTINGS.items() if each.metadata["may_change"])


def _check_settings(config: GRPOConfig) -> None:
    """Raise InputError, or InputTypeError, for the first setting that is not as it must be."""
    for check in (check_type, check_range):
        for name, each in SETTINGS.items():
            check(each, getattr(config, name))
    folder = config.output_dir
    fits = folder is None or (folder.strip() and not Path(folder).is_file())
    _check(fits, "output_dir", folder, "expected the name of a folder, or None")
    _check_sizes(config)
    flags = [flag for flag in ("bf16", "fp16") if getattr(config, flag)]
    _check(len(flags) < 2, "bf16", True, "expected at most one of bf16 and fp16")
    if config.precision and flags:
        mode = PRECISIONS[config.precision]
        fits = flags[0] == short_name(mode.autocast or mode.weights)
        _check(fits, flags[0], True, f"expected False with precision = {config.precision!r}")
    check_read(config, SETTINGS)
    call(LOSSES[config.loss_type].check, vars(config))
    _check(folder or not config.resume_from_checkpoint, "output_dir", None, "expected a folder to resume")


def _check_sizes(config: GRPOConfig) -> None:
    """Raise InputError unless the batch can be cut as the settings say."""
    G, batch, update = config.num_generations, config.generation_batch_size, config.update_batch_size
    smallest = ADVANTAGES[config.advantage].least
    _check(smallest <= G, "num_generations", G, f"it must be at least {smallest} with advantage {config.advantage!r}")
    _check(batch % G == 0, "generation_batch_size", batch, f"it must be a multiple of num_generations = {G}")
    product = "per_device_train_batch_size * gradient_accumulation_steps"
    if config.per_device_train_batch_size is None:
        product, update = "gradient_accumulation_steps", config.gradient_accumulation_steps
    _check(batch % update == 0, product, update, f"it must divide generation_batch_size = {batch}")
    rows, eval_group = config.per_device_eval_batch_size, config.num_generations_eval or G
    fits = rows is None or rows % eval_group == 0
    _check(
        fits, "per_device_eval_batch_size", rows, f"it must be a multiple of the {eval_group} completions of a prompt"
    )


def _check(fits, name: str, value, allowed: str) -> None:
    if not fits:
        raise InputError(name, value, allowed)
