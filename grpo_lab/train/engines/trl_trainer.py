"""TRL's GRPOTrainer for a run of ours: its settings, the rewards as it calls them, and what stays our own in it."""

import asyncio
import json
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import datasets
import torch
import trl
from accelerate import DistributedType, FullyShardedDataParallelPlugin, PartialState
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback
from transformers.trainer import TRAINING_ARGS_NAME

from grpo_lab.base.checks import InputError
from grpo_lab.base.names import TRAINER_ARGUMENTS
from grpo_lab.config import GRPOConfig
from grpo_lab.config.schedules import learning_rate
from grpo_lab.models.loading import without_bars
from grpo_lab.rewards import reward_names, score_completions
from grpo_lab.rewards.concurrent import is_async
from grpo_lab.rewards.functions import as_list_or_empty
from grpo_lab.rollout.prompting.prompts import encode_prompt
from grpo_lab.rollout.prompting.tags import tag_tokens, text_for_rewards, thought_prefix
from grpo_lab.train.engines.settings import FLAGS, passed_on, rows_of_a_process
from grpo_lab.trainer.folder.checkpoint import UNFINISHED
from grpo_lab.trainer.inputs import RunInputs


def make_trainer(inputs: RunInputs, steps, adapter=None, fsdp: bool = False, vllm: dict | None = None) -> "Trainer":
    """TRL's trainer, ready to take the rows of the dataset as they come. The precision of the config is not None.

    adapter: peft's configuration of the adapters that are trained; None trains all parameters.
    """  # fmt: skip
    model = inputs.model
    tokenizer = inputs.tokenizer
    rows = inputs.dataset
    config = inputs.config
    environment = inputs.environment
    factory = None if environment is None else environment.environment_factory
    shards = model._no_split_modules if fsdp else ()
    numbered = [{"prompt": row["prompt"], "row": number} for number, row in enumerate(rows)]
    use_cpu = model.device.type == "cpu" and not (fsdp and torch.cuda.is_available())
    args = trl_config(config, use_cpu=use_cpu, shards=shards, vllm=vllm)
    if args.device.type == "cpu":
        args._setup_devices = torch.device("cpu")  # else "cpu:0" on several processes, where torch.load loads nothing
    if vllm and args.vllm_mode == "colocate" and use_cpu:
        raise InputError("vllm_mode", "colocate", "expected an NVIDIA GPU, which this machine does not have, or server")
    torch.manual_seed(config.seed)  # that of the adapter; TRL's own follows
    trainer = Trainer(
        model=model,
        reward_funcs=rewards_for_trl(inputs.reward_funcs, rows, None if environment else tokenizer),
        args=args,
        train_dataset=datasets.Dataset.from_list(numbered),
        processing_class=tokenizer,
        callbacks=[steps],
        peft_config=adapter,
        tools=None if environment is None else environment.tools,
        environment_factory=None if factory is None else environments_for_trl(factory, rows),
    )
    trainer.ours = config
    trainer.remove_callback(PrinterCallback)
    return trainer


class Trainer(trl.GRPOTrainer):
    """TRL's, with our weight decay (of every parameter) and our learning rate at each update."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        if self.args.fsdp and self.accelerator.distributed_type == DistributedType.MULTI_CPU:
            # accelerate 1.15 shards on GPUs alone, and elsewhere silently leaves the sharding out
            for state in (PartialState(), self.accelerator.state):
                state.distributed_type = DistributedType.FSDP
            self.accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            self.is_fsdp_enabled = True
        # Else transformers would read the reference in the first process alone, and TRL sends it to no other.
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"

    def create_model_card(self, *_, **__) -> None:
        """None: it would lie in the folder of the run."""

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        with without_bars():  # they would break up the progress bar of the run
            super()._save(output_dir, state_dict)
        (Path(output_dir) / TRAINING_ARGS_NAME).unlink()  # a pickle, which nothing reads

    def get_decay_parameter_names(self, model) -> list[str]:
        return [name for name, _ in model.named_parameters()]

    def create_scheduler(self, num_training_steps: int, optimizer=None) -> LambdaLR:
        config = self.ours
        schedule = (config.warmup_steps, config.max_steps, config.lr_scheduler_type)

        def factor(update: int) -> float:
            return learning_rate(update // config.updates_per_step, 1.0, *schedule)

        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)
        return self.lr_scheduler


def trl_config(
    config: GRPOConfig, use_cpu: bool, shards: Iterable[str] = (), vllm: dict | None = None
) -> trl.GRPOConfig:
    """The configuration of the run for TRL, which counts updates where we count rollouts.

    shards: classes of layers that FSDP2 divides among the processes; none: each process holds all parameters.
    """
    updates, flags = config.updates_per_step, FLAGS[config.precision]
    sync, saves = config.ref_model_sync_steps, config.output_dir is not None
    settings = passed_on(config) | rows_of_a_process(config) | (vllm or {})
    if sync is not None:
        settings |= {"ref_model_sync_steps": sync * updates, "ref_model_mixup_alpha": 1.0}
    if shards:
        pieces = {"transformer_layer_cls_to_wrap": list(shards), "cpu_ram_efficient_loading": True}
        settings |= {"fsdp": True, "fsdp_config": pieces}
    return trl.GRPOConfig(
        **settings,
        max_steps=config.max_steps * updates,
        logging_steps=updates,
        bf16="bf16" in flags,
        fp16="fp16" in flags,
        sync_ref_model=sync is not None,
        # where the processes put a checkpoint that is not whole yet; else where nothing is written
        output_dir=str(Path(config.output_dir) / UNFINISHED / "engine") if saves else tempfile.gettempdir(),
        save_strategy="steps" if saves else "no",  # and after the last one
        save_steps=(config.save_steps or config.max_steps) * updates,
        report_to="none",
        disable_tqdm=True,
        logging_nan_inf_filter=False,
        shuffle_dataset=False,  # the rows come in our order
        use_cpu=use_cpu,
        ddp_find_unused_parameters=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
    )


def completions_of(trainer: Trainer, step: int, config: GRPOConfig) -> list[dict]:
    """One record for each completion of the last rollout, of all processes, as our own loop writes them.

    Of an episode with tools TRL keeps messages: "turns" are those, and a call is written as JSON.
    """
    logs, is_episode = trainer._logs, bool(trainer.tools) or trainer.environments is not None
    extra = {name: list(values) for name, values in logs["extra"].items() if len(values) == len(logs["prompt"])}
    names = list(logs["rewards"])
    weights = config.reward_weights or []
    weights = weights + [1.0] * (len(names) - len(weights))  # that of an environment is 1 in TRL
    rewards = zip(*(logs["rewards"][name] for name in names), strict=True)
    records = []
    columns = logs["prompt"], logs["completion"], rewards, logs["advantages"]
    for row, (prompt, completion, values, advantage) in enumerate(zip(*columns, strict=True)):
        turns = [{"policy": completion}] if isinstance(completion, str) else [_turn(message) for message in completion]
        known = [None if value is None or math.isnan(value) else value for value in values]
        terms = [weight * value for weight, value in zip(weights, known, strict=True) if value is not None]
        records.append({
            "step": step,
            "prompt": prompt,
            "completion": "\n".join(text for turn in turns for text in turn.values()),
            "rewards": dict(zip(names, known, strict=True)),
            "reward": sum(terms) if terms else None,
            "advantage": advantage,
            **({"extra": {name: values[row] for name, values in extra.items()}} if extra else {}),
            **({"turns": turns} if is_episode else {}),
        })  # fmt: skip
    return records


def _turn(message: dict) -> dict[str, str]:
    """Return the text of a message, under the name of who wrote it."""
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls") or []]
    writer = "policy" if message["role"] == "assistant" else "environment"
    return {writer: "\n".join(text for text in (message.get("content"), *calls) if text)}


def rewards_for_trl(reward_funcs, rows: list[dict], tokenizer=None) -> list[Callable]:
    """Each reward function with the keywords and the checks that it has here, under its name.

    TRL hands it further keywords, and columns as Arrow returns them; so TRL's rows only say which of ours they are.

    tokenizer: for completions with the tags that TRL leaves out, see `grpo_lab.rollout.prompting.tags`.
    """
    functions = as_list_or_empty(reward_funcs)
    names = reward_names(functions) if functions else []
    with_tags = None if tokenizer is None else CompletionTags(tokenizer)
    return [_reward_for_trl(function, name, rows, with_tags) for function, name in zip(functions, names, strict=True)]


def _reward_for_trl(function: Callable, name: str, rows: list[dict], with_tags: "CompletionTags | None") -> Callable:
    """Return the reward function as TRL calls it; a coroutine function if `function` is one."""

    def reward(
        prompts, completions, completion_ids, row, log_metric, environments=None, **trainers
    ) -> list[float | None]:
        batch = [rows[number] for number in row]
        if with_tags is not None:
            completions = with_tags(completions, completion_ids, batch)
        columns = {key: [problem[key] for problem in batch] for key in rows[0] if key != "prompt"}
        columns |= {} if environments is None else {"environments": environments}
        trainers |= {"log_metric": log_metric}
        columns |= {key: trainers[key] for key in TRAINER_ARGUMENTS if key in trainers}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "every reward function")  # the others may apply; TRL looks at all
            rewards = score_completions(function, prompts, completions, completion_ids, columns)[1]
        # On every process and every time, for TRL gathers them; `Steps` leaves zeros out, as our own loop does.
        log_metric(f"rewards/{name}/frac_none", rewards.isnan().double().mean().item())
        return [None if math.isnan(value) else value for value in rewards[:, 0].tolist()]

    async def async_reward(**keywords) -> list[float | None]:
        return await asyncio.to_thread(reward, **keywords)

    named_reward = async_reward if is_async(function) else reward
    named_reward.__name__ = name
    return named_reward


class CompletionTags:
    """Completions of TRL with the tags that it drops as special tokens, and with a thought that the prompt opens."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.tags = tag_tokens(tokenizer, [tokenizer.eos_token_id])

    def __call__(self, completions: list, completion_ids: list, batch: list[dict]) -> list:
        tokenizer = self.tokenizer
        prefixes = [thought_prefix(tokenizer, encode_prompt(tokenizer, problem["prompt"])) for problem in batch]
        if not (self.tags or any(prefixes)):
            return completions
        pairs = zip(completion_ids, prefixes, strict=True)
        texts = [text_for_rewards(tokenizer, ids, self.tags, prefix) for ids, prefix in pairs]
        chats = [[{"role": "assistant", "content": text}] for text in texts]
        return texts if completions and isinstance(completions[0], str) else chats


def environments_for_trl(factory: Callable, rows: list[dict]) -> Callable:
    """Return a factory of the same environments, whose `reset` gets our row where TRL's row only says which it is."""
    kind = type(factory())

    def reset(self, row: int, **_):
        return kind.reset(self, **rows[row])

    numbered = type(kind.__name__, (kind,), {"reset": reset})

    def make():
        environment = factory()
        environment.__class__ = numbered
        return environment

    return make
