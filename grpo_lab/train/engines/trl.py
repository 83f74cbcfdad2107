"""A run on TRL's GRPOTrainer: it samples, compares, computes the loss and steps.

Ours stay the order of the problems, the way rewards are called, the learning rate of each update, what is decayed,
held-out evaluation, and the folder. What TRL logs of a step goes under its own names, which are ours too; what it does
not measure (`time/...`, `tokens_per_second`, `sampling/logp_difference_max`) is absent.
"""

import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import datasets
import torch
import trl
from accelerate import DistributedType, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import broadcast_object_list
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, TrainerCallback
from transformers.trainer import TRAINING_ARGS_NAME

from grpo_lab.commands.checks import InputError
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import precision_of
from grpo_lab.models.loading import without_bars
from grpo_lab.rewards import reward_names, score_completions
from grpo_lab.rewards.scoring import listed
from grpo_lab.tasks import Rows
from grpo_lab.train.engines.processes import is_main, world_size
from grpo_lab.train.engines.resuming import check_processes, keep, together, writes_into
from grpo_lab.train.engines.settings import FLAGS, SAME, check_settings, rows_of_a_process
from grpo_lab.trainer import Run
from grpo_lab.trainer.evaluation import evaluate_policy
from grpo_lab.trainer.folder import METRICS, RunFolder, fingerprints
from grpo_lab.trainer.optim import learning_rate
from grpo_lab.trainer.reports import Reports
from grpo_lab.trainer.stopping import Stopping


def train(
    model,
    tokenizer,
    dataset: Rows,
    reward_funcs: Callable | list[Callable],
    config: GRPOConfig,
    callback: Callable[[int, dict], None] | None = None,
    eval_dataset: Rows | None = None,
    lora: dict | None = None,
    fsdp: bool = False,
    vllm: dict | None = None,
) -> list[dict]:
    """Train the model in place, with the arguments, metrics and errors of `grpo_lab.trainer.train`.

    With `eval_dataset` the model is evaluated before the first step, too: the line of step 0 in metrics.jsonl.

    Args:
        lora: "lora_r", "lora_alpha", "lora_dropout" and "lora_target_modules"; None trains all parameters. Adapters are
            merged into the model at the end; nothing else of it has moved.
        fsdp: whether the processes share parameters, gradients and optimizer state by FSDP2. The model that was given
            is in pieces then, and the trained one is in `output_dir` alone.
        vllm: "use_vllm", "vllm_mode" and where the server is, as TRL takes them; None samples with transformers.

    Raises:
        InputError: for a setting that TRL lacks, or a precision that it cannot train in.
        Stopped: a KeyboardInterrupt, when Ctrl-C or SIGTERM came. One process alone finishes and saves its step.
    """
    check_settings(config)
    if vllm is not None and vllm["vllm_mode"] == "colocate" and model.device.type != "cuda":
        raise InputError("use_vllm", "colocate", f"expected a model on an NVIDIA card, here it is on {model.device}")
    rows = rows_in_order(model, tokenizer, dataset, reward_funcs, config, eval_dataset)
    settings = config.command | {"engine": "trl", "use_peft": lora is not None, "fsdp": fsdp} | (lora or {})
    config = replace(config, precision=_mode(model, config, lora), bf16=False, fp16=False)
    if not is_main():
        config = replace(config, report_to="none", disable_tqdm=True)
    with ExitStack() as stack:
        folder, begun = None, (0, [])
        if config.output_dir is not None and is_main():
            folder = stack.enter_context(RunFolder(config, asdict(config) | settings))
            begun = folder.open(model, None, None, fingerprints(model, tokenizer, dataset, reward_funcs, eval_dataset))
            if begun[0]:
                check_processes(folder, begun[0])
        stack.enter_context(_as_it_was(model))
        stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
        reports = Reports(stack, config, begun[0])
        evaluate = partial(_evaluated, model, tokenizer, eval_dataset, reward_funcs, config)
        stopping = Stopping(folder and folder.saved)
        if world_size() == 1:
            stack.enter_context(stopping)
        steps = Steps(config, callback, evaluate, folder, reports, stopping)
        trainer = make_trainer(model, tokenizer, rows, reward_funcs, config, steps, lora, fsdp, vllm)
        _train(trainer, steps, begun, merge=lora is not None)
        if stopping.asked:
            stopping.stop(f"after step {steps.history[-1]['step']} of {config.max_steps}")
        whole = in_one_piece(model) if fsdp else model
        if folder is not None:
            folder.finish(whole, tokenizer)
    return steps.history


def _train(trainer: "Trainer", steps: "Steps", begun: tuple[int, list[dict]], merge: bool) -> None:
    """All steps that are left, on all processes; then adapters, if there are some, into the model that was given."""
    done, steps.lines = broadcast_object_list(list(begun))
    with together(steps.folder and steps.folder.saved):
        trainer.train(resume_from_checkpoint=f"{steps.config.output_dir}/checkpoint-{done}" if done else None)
    policy = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    if merge:
        policy.merge_and_unload()


@contextmanager
def _as_it_was(model) -> Iterator[None]:
    """Which parameters require a gradient, and the mode, are put back."""
    trained, training = {p: p.requires_grad for p in model.parameters()}, model.training
    try:
        yield
    finally:
        for parameter, required in trained.items():
            parameter.requires_grad_(required)
        model.train(training)


def in_one_piece(model):
    """A copy on the CPU of a model that FSDP2 has divided among the processes; all of them have to call this."""
    from transformers import AutoModelForCausalLM

    state = {name: tensor.full_tensor().cpu() for name, tensor in model.state_dict().items()}
    whole = AutoModelForCausalLM.from_config(model.config, dtype=model.dtype)
    whole.load_state_dict(state)
    whole.generation_config = model.generation_config
    return whole


def rows_in_order(model, tokenizer, dataset: Rows, reward_funcs, config: GRPOConfig, eval_dataset=None) -> list[dict]:
    """The problems of all steps, in the order in which our own loop takes them, after all of its checks.

    Raises:
        InputError: if some prompts are strings and others lists of messages, which TRL does not mix.
    """
    changed = {"output_dir": None, "resume_from_checkpoint": False, "report_to": "none", "beta": 0.0}
    alone = replace(config, **changed, ref_model_sync_steps=None)
    run = Run(model, tokenizer, dataset, alone, reward_funcs, eval_dataset)
    rows = [row for step in range(config.max_steps) for row in run.rows_of_step(step)]
    if len({isinstance(row["prompt"], str) for row in rows}) > 1:
        wanted = "expected strings alone or messages alone, with --engine trl"
        raise InputError("dataset", dataset, wanted, found="has prompts of two kinds")
    return rows


def make_trainer(
    model, tokenizer, rows: list[dict], reward_funcs, config: GRPOConfig, steps, lora=None, fsdp=False, vllm=None
) -> "Trainer":
    """TRL's trainer, ready to take these rows as they come. The precision of the config is not None."""
    shards = model._no_split_modules if fsdp else ()
    numbered = [{"prompt": row["prompt"], "row": number} for number, row in enumerate(rows)]
    args = trl_config(config, use_cpu=model.device.type == "cpu", shards=shards, vllm=vllm)
    if args.device.type == "cpu":
        args._setup_devices = torch.device("cpu")  # else "cpu:0" on several processes, where torch.load loads nothing
    trainer = Trainer(
        model=model,
        reward_funcs=as_trl_calls_them(reward_funcs, rows),
        args=args,
        train_dataset=datasets.Dataset.from_list(numbered),
        processing_class=tokenizer,
        callbacks=[steps],
        peft_config=None if lora is None else _lora_config(lora),
    )
    trainer.ours = config
    trainer.remove_callback(PrinterCallback)
    return trainer


class Trainer(trl.GRPOTrainer):
    """TRL's, with our weight decay (of every parameter) and our learning rate at each update."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        if self.args.fsdp and self.accelerator.distributed_type == DistributedType.MULTI_CPU:
            # accelerate 1.15 shards on cards alone, and elsewhere silently leaves the sharding out
            for state in (PartialState(), self.accelerator.state):
                state.distributed_type = DistributedType.FSDP
            self.accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            self.is_fsdp_enabled = True

    def create_model_card(self, *_, **__) -> None:
        """None: it would lie in the folder of the run."""

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        with without_bars():  # they would break up the progress bar of the run
            super()._save(output_dir, state_dict)
        (Path(output_dir) / TRAINING_ARGS_NAME).unlink()  # a pickle, which nothing reads

    def get_decay_parameter_names(self, model) -> list[str]:
        return [name for name, _ in model.named_parameters()]

    def create_scheduler(self, num_training_steps: int, optimizer=None) -> LambdaLR:
        c = self.ours

        def factor(update: int) -> float:
            return learning_rate(update // c.updates_per_step, 1.0, c.warmup_steps, c.max_steps, c.lr_scheduler_type)

        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)
        return self.lr_scheduler


def trl_config(
    config: GRPOConfig, use_cpu: bool, shards: Iterable[str] = (), vllm: dict | None = None
) -> trl.GRPOConfig:
    """The same run as TRL configures it. TRL counts updates, and we count rollouts.

    shards: classes of layers that FSDP2 divides among the processes; none: each process holds all parameters.
    """
    updates, flags = config.updates_per_step, FLAGS[config.precision]
    sync, saves = config.ref_model_sync_steps, config.output_dir is not None
    return trl.GRPOConfig(
        **{name: getattr(config, name) for name in SAME},
        **rows_of_a_process(config),
        max_steps=config.max_steps * updates,
        logging_steps=updates,
        bf16="bf16" in flags,
        fp16="fp16" in flags,
        sync_ref_model=sync is not None,
        **({} if sync is None else {"ref_model_sync_steps": sync * updates, "ref_model_mixup_alpha": 1.0}),
        output_dir=str(writes_into(config)) if saves else tempfile.gettempdir(),  # where nothing is written
        save_strategy="steps" if saves else "no",  # and after the last one
        save_steps=(config.save_steps or config.max_steps) * updates,
        report_to="none",
        disable_tqdm=True,
        logging_nan_inf_filter=False,
        shuffle_dataset=False,  # the rows come in our order
        use_cpu=use_cpu,
        ddp_find_unused_parameters=False,
        **({"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": list(shards)}} if shards else {}),
        **(vllm or {}),
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
    )


def as_trl_calls_them(reward_funcs, rows: list[dict]) -> list[Callable]:
    """Each reward function with the keywords and the checks that it has here, under its name.

    TRL hands it further keywords, and columns as Arrow returns them; so TRL's rows only say which of ours they are.
    """

    def wrapped(function: Callable, name: str) -> Callable:
        def reward(prompts, completions, completion_ids, row, log_metric, **_) -> list[float | None]:
            asked = [rows[number] for number in row]
            columns = {key: [one[key] for one in asked] for key in rows[0] if key != "prompt"}
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "every reward function")  # the others may apply; TRL looks at all
                found = score_completions(function, prompts, completions, completion_ids, columns)[1]
            # On every process and every time, for TRL gathers them; `Steps` leaves zeros out, as our own loop does.
            log_metric(f"rewards/{name}/frac_none", found.isnan().double().mean().item())
            return [None if math.isnan(value) else value for value in found[:, 0].tolist()]

        reward.__name__ = name
        return reward

    functions = listed(reward_funcs)
    return [wrapped(function, name) for function, name in zip(functions, reward_names(functions), strict=True)]


class Steps(TrainerCallback):
    """Makes of what TRL logs after the updates of a rollout the metrics of a step, and puts them where they are wanted.

    evaluate: returns the metrics of held-out problems; called as often as the configuration says.
    """

    def __init__(self, config: GRPOConfig, callback=None, evaluate=None, folder=None, reports=None, stopping=None):
        self.config, self.callback, self.evaluate, self.folder = config, callback, evaluate, folder
        self.reports, self.stopping, self.lines = reports, stopping, []

    @property
    def history(self) -> list[dict]:
        """The metrics of the steps, without what was evaluated before the first."""
        return [line for line in self.lines if line["step"] > 0]

    def on_train_begin(self, args, state, control, **_):
        state.save_steps, state.logging_steps = args.save_steps, args.logging_steps  # not those before it went on
        if self.config.eval_steps is not None and not self.lines:
            self._write({"step": 0} | self.evaluate())
        self._started = time.perf_counter()

    def on_log(self, args, state, control, logs, **_):
        if "loss" not in logs:  # the summary of the whole run
            return
        c, done = self.config, state.global_step // self.config.updates_per_step
        metrics = {"step": done} | {name: value for name, value in logs.items() if name != "epoch"}
        metrics = {name: value for name, value in metrics.items() if value or not name.endswith("/frac_none")}
        if c.eval_steps is not None and (done % c.eval_steps == 0 or done == c.max_steps):
            metrics |= self.evaluate()
        now = time.perf_counter()
        metrics |= {"num_tokens": int(metrics["num_tokens"]), "step_time": now - self._started}
        self._started = now
        self._write(metrics)
        if self.reports is not None:
            self.reports.show(metrics)
        if self.callback is not None:
            self.callback(done, metrics)
        if self.stopping is not None and self.stopping.asked:
            control.should_save, control.should_training_stop = self.folder is not None, True

    def on_save(self, args, state, control, **_):
        PartialState().wait_for_everyone()  # each process has written its part
        if self.folder is not None:
            written = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            keep(self.folder, written, state.global_step // self.config.updates_per_step, self.lines)

    def _write(self, metrics: dict) -> None:
        self.lines.append(metrics)
        if self.folder is not None:
            self.folder.append(METRICS, [metrics])


def _evaluated(model, tokenizer, rows: Rows, reward_funcs, config: GRPOConfig) -> dict:
    """As our own loop does, by the model's own forward pass: adapters and TRL's wrappers are in it."""
    training = model.training
    try:
        return evaluate_policy(model, tokenizer, rows, reward_funcs, config, cache_implementation="dynamic")
    finally:
        model.train(training)


def _mode(model, config: GRPOConfig, lora: dict | None) -> str:
    mode = precision_of(model, config).name
    taken = [name for name in FLAGS if lora is None or name != "bf16-naive"]
    if mode not in taken:
        which = " and use_peft" * (lora is not None)
        raise InputError("precision", mode, f"expected one of {', '.join(taken)} with --engine trl{which}")
    return mode


def _lora_config(lora: dict):
    from peft import LoraConfig

    modules = lora["lora_target_modules"]
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=lora["lora_r"],
        lora_alpha=lora["lora_alpha"],
        lora_dropout=lora["lora_dropout"],
        target_modules="all-linear" if modules == ["all-linear"] else modules,
    )
