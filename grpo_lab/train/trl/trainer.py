"""TRL's GRPOTrainer set up for a run of this package: its configuration, its environments and its reward functions."""

import asyncio
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path

import datasets
import torch
import trl
from accelerate import DistributedType, FullyShardedDataParallelPlugin, PartialState
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback
from transformers.trainer import TRAINING_ARGS_NAME

from grpo_lab.base.checks import InputError
from grpo_lab.base.user_code import TRAINER_ARGUMENTS
from grpo_lab.config import GRPOConfig
from grpo_lab.config.settings import scheduled_learning_rate
from grpo_lab.models.loading import without_progress_bars
from grpo_lab.rewards import reward_names, score_completions
from grpo_lab.rewards.functions import reward_func_list
from grpo_lab.rewards.scoring import check_totals, is_async
from grpo_lab.rollout.completion_texts import TagKeepingTokenizer, thought_prefix, with_thought_prefix
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.rollout.prompts import prompt_token_ids
from grpo_lab.tasks import Rows
from grpo_lab.train.trl.settings import settings_for_trl
from grpo_lab.trainer.run.checkpoint import UNFINISHED_FOLDER
from grpo_lab.trainer.run.folder import output_path
from grpo_lab.trainer.run.inputs import RunInputs
from grpo_lab.trainer.run.reports import none_if_nan


def make_trainer(
    inputs: RunInputs, rows_of_all_steps: Rows, peft_config=None, fsdp: bool = False, vllm: dict | None = None
) -> "TrlTrainer":
    """Return TRL's trainer for a run.

    Args:
        inputs: The inputs of the run, with a configuration that names a precision.
        rows_of_all_steps: The rows that the trainer takes, in the order of the steps.
        peft_config: peft's configuration of the adapters that are trained; None trains all parameters.
        fsdp: Whether FSDP2 divides the parameters among the processes.
        vllm: Settings of vLLM, as in `TrlEngine`.
    """
    model = inputs.model
    tokenizer = inputs.tokenizer
    config = inputs.config
    environment = inputs.environment
    tools, environment_factory = None, None
    if isinstance(environment, ToolEnvironment):  # TRL has no other
        tools, environment_factory = environment.tools, environments_for_trl(environment, rows_of_all_steps)
    sharded_classes = model._no_split_modules if fsdp else ()
    numbered_rows = [{"prompt": row["prompt"], "row_number": number} for number, row in enumerate(rows_of_all_steps)]
    use_cpu = model.device.type == "cpu" and not (fsdp and torch.cuda.is_available())
    args = trl_config(config, use_cpu=use_cpu, sharded_classes=sharded_classes, vllm=vllm)
    if vllm and args.vllm_mode == "colocate" and use_cpu:
        raise InputError("vllm_mode", "colocate", "expected an NVIDIA GPU, which this machine does not have, or server")
    torch.manual_seed(config.seed)  # for the adapter's first weights; TRL sets its own seed after them
    return TrlTrainer(
        run_config=config,
        model=model,
        reward_funcs=rewards_for_trl(inputs.reward_funcs, rows_of_all_steps, None if environment else tokenizer),
        args=args,
        train_dataset=datasets.Dataset.from_list(numbered_rows),
        processing_class=tokenizer,
        peft_config=peft_config,
        tools=tools,
        environment_factory=environment_factory,
    )


class TrlArguments(trl.GRPOConfig):
    """TRL's configuration with a CPU that has no index, since torch.load loads nothing to the device "cpu:0".

    transformers gives the CPU this index on several processes.
    """

    @cached_property
    def _setup_devices(self) -> torch.device:
        device = super()._setup_devices
        return torch.device("cpu") if device.type == "cpu" else device


class TrlTrainer(trl.GRPOTrainer):
    """TRL's trainer with the weight decay (on every parameter) and the learning rates of this package.

    run_config: The configuration of the run in this package; the other arguments are those of TRL's trainer.
    """

    def __init__(self, *, run_config: GRPOConfig, **arguments):
        self.run_config = run_config
        super().__init__(**arguments)
        self.remove_callback(PrinterCallback)

    def _calculate_rewards(self, *arguments) -> torch.Tensor:
        rewards_per_func = super()._calculate_rewards(*arguments)  # one row for each completion of all processes
        check_totals((rewards_per_func * self.reward_weights.to(rewards_per_func.device)).nansum(dim=1))
        return rewards_per_func

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        if self.args.fsdp and self.accelerator.distributed_type == DistributedType.MULTI_CPU:
            # accelerate 1.15 divides a model on GPUs only; on CPUs it would leave it whole without a message.
            for state in (PartialState(), self.accelerator.state):
                state.distributed_type = DistributedType.FSDP
            self.accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            self.is_fsdp_enabled = True
        # FSDP2 sends the policy's weights from the first process to the others (see `trl_config`), also without this
        # variable. If it were true, transformers would load the reference model in the first process only, and TRL does
        # not send that one to the others.
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"

    def create_model_card(self, *_, **__) -> None:
        """Do nothing: a model card would be written into the folder of the run."""

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        with without_progress_bars():  # a second progress bar would interrupt that of the run
            super()._save(output_dir, state_dict)
        (Path(output_dir or self.args.output_dir) / TRAINING_ARGS_NAME).unlink()  # a pickle that nothing reads

    def get_decay_parameter_names(self, model) -> list[str]:
        return [name for name, _ in model.named_parameters()]

    def create_scheduler(self, num_training_steps: int, optimizer=None) -> LambdaLR:
        config = self.run_config
        schedule = (config.warmup_steps, config.max_steps, config.lr_scheduler_type)

        def rate_at_update(update: int) -> float:
            return scheduled_learning_rate(update // config.updates_per_step, 1.0, *schedule)

        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, rate_at_update)
        return self.lr_scheduler


def trl_config(
    config: GRPOConfig, use_cpu: bool, sharded_classes: Iterable[str] = (), vllm: dict | None = None
) -> TrlArguments:
    """Return TRL's configuration of a run, which counts updates where ours counts steps.

    Args:
        config: Our configuration of the run, with a precision.
        use_cpu: Whether to train on the CPU.
        sharded_classes: Names of the classes of layers that FSDP2 divides among the processes; if empty, each process
            holds all parameters.
        vllm: Settings of vLLM, as in `TrlEngine`.
    """
    settings = settings_for_trl(config) | (vllm or {})
    has_folder = config.output_dir is not None
    if sharded_classes:
        # Only the first process has the policy's weights (`load_in_first_process`), and sends each process its part.
        fsdp_config = {"transformer_layer_cls_to_wrap": list(sharded_classes), "cpu_ram_efficient_loading": True}
        settings |= {"fsdp": True, "fsdp_config": fsdp_config}
    return TrlArguments(
        **settings,
        # TRL needs a folder even if nothing is written.
        output_dir=str(unfinished_checkpoints(output_path(config))) if has_folder else tempfile.gettempdir(),
        save_strategy="steps" if has_folder else "no",  # also saves after the last step
        report_to="none",
        disable_tqdm=True,
        logging_nan_inf_filter=False,
        shuffle_dataset=False,  # the rows are already in the order of the run
        use_cpu=use_cpu,
        ddp_find_unused_parameters=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
    )


def unfinished_checkpoints(run_folder: Path) -> Path:
    """Return the folder within that of a run in which the processes write a checkpoint until it is complete."""
    return run_folder / UNFINISHED_FOLDER / "engine"


def environments_for_trl(environment: ToolEnvironment, rows: Rows) -> Callable | None:
    """Return a factory of the same environments whose `reset` takes the number of a row instead of its columns.

    No environment is made here: the class of the environments is known. Without a factory, the result is None.
    """
    factory, environment_class = environment.environment_factory, environment.environment_class
    if factory is None or environment_class is None:
        return None

    def reset(self, row_number: int, **_):
        return environment_class.reset(self, **rows[row_number])

    numbered_class = type(environment_class.__name__, (environment_class,), {"__slots__": (), "reset": reset})

    def make_numbered_environment():
        environment = factory()
        environment.__class__ = numbered_class
        return environment

    return make_numbered_environment


def rewards_for_trl(reward_funcs, rows: Rows, tokenizer=None) -> list[Callable]:
    """Return the reward functions in a form that TRL can call, with the arguments and checks of this package.

    TRL would pass further keyword arguments, and columns with values as Arrow converts them. So TRL's dataset holds
    only the number of each row, and the columns are taken from `rows`.

    Args:
        reward_funcs: One reward function, a list of them, or None.
        rows: The problems of all steps, in order.
        tokenizer: The tokenizer that restores the tags that TRL drops from completions, see `TagRestorer`; None leaves
            the completions as TRL returns them.
    """
    functions = reward_func_list(reward_funcs)
    names = reward_names(functions) if functions else []
    restore_tags = None if tokenizer is None else TagRestorer(tokenizer)
    return [
        _reward_for_trl(function, name, rows, restore_tags) for function, name in zip(functions, names, strict=True)
    ]


def _reward_for_trl(function: Callable, name: str, rows: Rows, restore_tags: "TagRestorer | None") -> Callable:
    """Return the reward function as TRL calls it; a coroutine function if `function` is one."""

    def reward(prompts, completions, completion_ids, row_number, log_metric, **trl_arguments) -> list[float | None]:
        # TRL passes each column of its dataset as a list, under the name of the column.
        batch_rows = [rows[number] for number in row_number]
        if restore_tags is not None:
            completions = restore_tags(completions, completion_ids, batch_rows)
        columns = {column: [row[column] for row in batch_rows] for column in rows[0] if column != "prompt"}
        trl_arguments |= {"log_metric": log_metric}
        passed_on = ("environments", *TRAINER_ARGUMENTS)
        columns |= {argument: trl_arguments[argument] for argument in passed_on if argument in trl_arguments}
        with warnings.catch_warnings():
            # Only this reward function is called here, and TRL itself warns if none gives a reward.
            warnings.filterwarnings("ignore", "every reward function")
            rewards = score_completions(function, prompts, completions, completion_ids, columns)[1]
        # Logged in every process at every call, since TRL gathers the values. `StepRecorder` drops zeros, as our own
        # loop does.
        log_metric(f"rewards/{name}/frac_none", rewards.isnan().double().mean().item())
        return [none_if_nan(value) for value in rewards[:, 0].tolist()]

    async def async_reward(**keywords) -> list[float | None]:
        return await asyncio.to_thread(reward, **keywords)

    named_reward = async_reward if is_async(function) else reward
    named_reward.__name__ = name
    return named_reward


class TagRestorer:
    """A function that restores the tags that TRL leaves out of completions.

    These are the tags that are special tokens, and the opening tag of a thought if it is at the end of the prompt.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.tag_keeping_tokenizer = TagKeepingTokenizer(tokenizer, [tokenizer.eos_token_id])

    def __call__(self, completions: list, completion_ids: list, rows: list[dict]) -> list:
        """Return the completions with their tags; `rows` holds the row of each completion."""
        tokenizer = self.tokenizer
        prefixes = [thought_prefix(tokenizer, prompt_token_ids(tokenizer, row["prompt"])) for row in rows]
        if not (self.tag_keeping_tokenizer.tags or any(prefixes)):
            return completions
        decoded = [self.tag_keeping_tokenizer.decode(ids, skip_special_tokens=True) for ids in completion_ids]
        texts = [with_thought_prefix(text, prefix) for text, prefix in zip(decoded, prefixes, strict=True)]
        if completions and isinstance(completions[0], str):
            return texts
        return [[{"role": "assistant", "content": text}] for text in texts]
