"""Everything a run's outcome depends on, in one dataclass. Names are TRL's, so that a configuration carries over."""

from dataclasses import dataclass

from grpo_lab.config.ranges import check_sizes, check_types, check_values, check_what_goes_together


@dataclass
class GRPOConfig:
    """Settings of one run. A *step* is one batch of rollouts and all updates made from it.

    (TRL counts updates: multiply every number of steps by `updates_per_step` when you move. What else differs under the
    same name stands in `grpo_lab.config.differences`.)

    Raises:
        ValueError: for the first setting that is out of its range, or does not fit the others; it is named.
        TypeError: for one of another type.
    """

    # the run
    output_dir: str | None = None  # where checkpoints and metrics.jsonl go; None keeps nothing
    seed: int = 0
    max_steps: int = 100
    save_steps: int = 50  # a checkpoint every so many steps; 0 saves only the end
    save_total_limit: int | None = 2  # how many checkpoints stay, the best among them; None: all
    resume_from_checkpoint: bool = False

    # what it shows; the metrics of every step go to metrics.jsonl, whatever is chosen here
    disable_tqdm: bool = False
    report_to: str = "none"  # "none", "tensorboard" or "wandb"
    run_name: str | None = None  # on Weights & Biases; None: the name of the folder
    logging_steps: int = 10  # with log_completions: every so many steps
    log_completions: bool = False  # print the best and the worst, and put all of that step into completions.jsonl
    num_completions_to_print: int | None = 4  # None: all of the step
    log_kl: bool = False  # with beta = 0: measure the KL to the model at the start, which is then kept in memory

    # evaluation, if `train` is given an eval_dataset
    eval_steps: int | None = None  # every so many steps, and after the last one
    num_generations_eval: int | None = None  # completions a prompt; None: num_generations
    per_device_eval_batch_size: int | None = None  # completions sampled at a time; None: as many as in training
    metric_for_best_model: str | None = None  # one of the metrics "eval/..."; None: "eval/reward"
    greater_is_better: bool | None = None  # None: unless the name of that metric ends in "loss"
    load_best_model_at_end: bool = False  # a checkpoint at each new best; the last of them is the result
    early_stopping_patience: int | None = None  # stop after so many evaluations without a better one
    early_stopping_threshold: float = 0.0  # by how much a new best has to be better

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
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0
    beta: float = 0.0
    kl_estimator: str = "k3"
    use_bias_correction_kl: bool = False
    entropy_coef: float = 0.0
    ref_model_sync_steps: int | None = None  # refresh the reference every so many steps; None keeps it frozen
    ref_model_device: str | None = None  # None: where the policy is; "cpu" saves the card's memory

    # optimisation
    learning_rate: float = 2e-4
    lr_scheduler_type: str = "constant_with_warmup"  # or "linear", "cosine"; "constant" has no warm-up at all
    warmup_steps: int = 5
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    max_grad_norm: float = 1.0  # inf: gradients are not clipped
    num_iterations: int = 1  # mu, passes over each batch of rollouts
    per_device_train_batch_size: int | None = None  # rows that are on the device at once; None: the whole update
    gradient_accumulation_steps: int = 1
    gradient_checkpointing: bool = False
    precision: str | None = None  # None: by the flags below, else the mode that the model was loaded for
    bf16: bool = False  # TRL's name for precision="fp32-master"
    fp16: bool = False  # and for precision="fp16"
    max_nonfinite_steps: int = 3  # updates in a row that may be skipped for a loss or gradient that is not finite

    def __post_init__(self):
        check_types(self)
        check_values(self)
        if self.per_device_train_batch_size is None:
            self.per_device_train_batch_size = max(1, self.generation_batch_size // self.gradient_accumulation_steps)
        check_sizes(self)
        check_what_goes_together(self)

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
        names = ("temperature", "top_k", "top_p", "repetition_penalty", "cache_implementation")
        return {name: getattr(self, name) for name in names}
