"""A run on TRL's GRPOTrainer: it samples, computes advantages and loss, and steps, on one process or on several.

Ours stay the order of the problems, the way rewards are called, the learning rate of each update, what is decayed,
held-out evaluation, and the folder. What TRL logs of a step goes under its own names, which are ours too; what it does
not measure (`time/...`, `tokens_per_second`, `sampling/logp_difference_max`) is absent.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from tqdm import tqdm
from transformers import TrainerCallback

from grpo_lab.base.checks import InputError
from grpo_lab.config import GRPOConfig
from grpo_lab.config.lora import check_reference
from grpo_lab.config.precision import precision_of
from grpo_lab.models.adapters import lora_config
from grpo_lab.models.frozen import silence_dropout
from grpo_lab.rollout.environments.environment import pick_environment
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.rollout.environments.tools.dialogue import Dialogue
from grpo_lab.rollout.prompting.probe import PROMPT_QUIRKS, probe
from grpo_lab.rollout.prompting.prompts import end_token_ids
from grpo_lab.tasks import Rows
from grpo_lab.train.engines.pieces import Gathered
from grpo_lab.train.engines.processes import is_main, stop_if_one_is_gone, world_size
from grpo_lab.train.engines.settings import FLAGS, check_settings
from grpo_lab.train.engines.trl_trainer import Trainer, completions_of, make_trainer
from grpo_lab.trainer.evaluation import evaluate_policy
from grpo_lab.trainer.fingerprints import fingerprints
from grpo_lab.trainer.folder import COMPLETIONS, METRICS, RunFolder
from grpo_lab.trainer.folder.checkpoint import UNFINISHED, check_savable
from grpo_lab.trainer.inputs import RunInputs, check_run_inputs
from grpo_lab.trainer.reports import best_and_worst, open_reports
from grpo_lab.trainer.run import rows_of_step, training_mode
from grpo_lab.trainer.stopping import RESUME, Stopping


def train(
    model,
    tokenizer,
    dataset: Rows,
    reward_funcs: Callable | list[Callable] | None,
    config: GRPOConfig,
    callback: Callable[[int, dict], None] | None = None,
    eval_dataset: Rows | None = None,
    lora: dict | None = None,
    fsdp: bool = False,
    vllm: dict | None = None,
    *,
    tools: list[Callable] | None = None,
    environment_factory: Callable | None = None,
    environment=None,
) -> list[dict]:
    """Train the model in place, with the arguments, metrics and errors of `grpo_lab.trainer.train`.

    Args:
        lora: "lora_r", "lora_alpha", "lora_dropout" and "lora_target_modules"; None trains all parameters. With it the
            folder holds the adapter alone, and the model has it beside its frozen weights.
        fsdp: whether the processes divide parameters, gradients and optimizer state by FSDP2. The model that was given
            is in pieces then, and the trained one is in `output_dir` alone.
        vllm: "use_vllm", "vllm_mode" and so on, as TRL takes them; None samples with transformers.
        tools, environment_factory: functions that the policy may call, and what makes environments, as TRL takes them.

    Raises:
        InputError: for a setting that TRL lacks, or a precision that it cannot train in.
        Stopped: a KeyboardInterrupt, when Ctrl-C or SIGTERM came. One process alone finishes and saves its step.
    """
    check_settings(config, lora=lora is not None)
    environment = _tool_environment(config, environment, tools, environment_factory)
    inputs = RunInputs(model, tokenizer, dataset, reward_funcs, config, eval_dataset, environment)
    rows = rows_in_order(inputs)
    config = _for_this_process(model, config)
    engine = {"engine": "trl"} | ({"fsdp": True} if fsdp else {}) | (lora or {})
    folder = _run_folder(model, tokenizer, config, engine)
    silence_dropout(model)
    adapter = _adapter(model, config, lora)
    with folder or nullcontext():
        resumed = 0, []
        if folder is not None:
            resumed = _resume(folder, model, fingerprints(inputs) | {"engine": engine})
        seeds = torch.random.fork_rng(devices=range(torch.cuda.device_count()))
        with seeds, training_mode(model, model.training), open_reports(config, resumed[1]) as reports:
            steps = Steps(config, callback, folder, reports)
            with steps.stopping if world_size() == 1 else nullcontext():
                with reading_calls(tokenizer, environment):
                    trainer_inputs = replace(inputs, dataset=rows, config=config)
                    trainer = make_trainer(trainer_inputs, steps, adapter, fsdp, vllm)
                    # FSDP2 gathers pieces at the root, which with adapters is the model as peft wraps it.
                    policy = model if adapter is None else trainer.model
                    steps.evaluate = partial(
                        evaluate_policy, policy, tokenizer, eval_dataset, reward_funcs, config, environment,
                        cache_implementation="dynamic",  # the model's own forward pass
                    )  # fmt: skip
                    _make_steps(trainer, steps, resumed)
                _leave(trainer, model, adapter)
                trained = Gathered(model) if fsdp else model  # on all processes: each sends its pieces
                if folder is not None:
                    folder.save_model(trained, tokenizer)
    return steps.history


def _tool_environment(config: GRPOConfig, environment, tools, environment_factory) -> ToolEnvironment | None:
    """Return the environment of the tools; InputError for one that TRL lacks, or does not evaluate."""
    if environment is not None:
        reason = "is trl, which has no environment that replies within a completion"
        raise InputError("engine", "trl", "train with grpo_lab's own loop", found=reason)
    environment = pick_environment(config, None, tools, environment_factory)
    if environment is not None and config.eval_steps is not None and world_size() > 1:
        expected = "leave it out with --engine trl, tools or an environment, and several processes"
        raise InputError("eval_steps", config.eval_steps, expected)
    return environment


def _run_folder(model, tokenizer, config: GRPOConfig, engine: dict) -> RunFolder | None:
    """Return the folder of the run, not opened yet; None without one, and for all processes but the first."""
    if config.output_dir is None or not is_main():
        return None
    folder = RunFolder(config, config.saved() | engine)
    check_savable(model, tokenizer)
    return folder


def _adapter(model, config: GRPOConfig, lora: dict | None):
    """Return peft's configuration of the adapters, None for training all parameters."""
    if lora is None:
        return None
    check_reference(config)
    return lora_config(model, lora)


def _for_this_process(model, config: GRPOConfig) -> GRPOConfig:
    """The configuration with the precision that the model is trained in; all processes but the main one are silent."""
    mode = precision_of(model, config).name
    if mode not in FLAGS:
        raise InputError("precision", mode, f"expected one of {', '.join(FLAGS)} with --engine trl")
    silent = {} if is_main() else {"report_to": "none", "disable_tqdm": True}
    return replace(config, precision=mode, bf16=False, fp16=False, **silent)


def _resume(folder: RunFolder, model, prints: dict) -> tuple[int, list[dict]]:
    """Open the folder, and return the step after which its run goes on, with its metrics so far; 0 and [] if new."""
    step, history = folder.open(model, None, None, prints)
    if step:
        files = folder.manifest["checkpoints"][f"checkpoint-{step}"]["files"]
        processes = sum(name.startswith("rng_state") for name in files)  # one for each process
        if processes != world_size():
            expected = f"expected {processes}, the number of processes of the run in {str(folder.path)!r}"
            raise InputError("WORLD_SIZE", world_size(), expected)
    return step, history


def _make_steps(trainer: Trainer, steps: "Steps", resumed: tuple[int, list[dict]]) -> None:
    """Make all steps after those of `resumed`, on all processes."""
    done, steps.history = broadcast_object_list(list(resumed))
    steps.trainer = trainer
    with stop_if_one_is_gone(steps.how_to_go_on):
        trainer.train(resume_from_checkpoint=f"{steps.config.output_dir}/checkpoint-{done}" if done else None)
    if steps.folder is not None:
        shutil.rmtree(steps.folder.path / UNFINISHED / "engine", ignore_errors=True)
    if steps.stopping.requested:
        steps.stopping.stop(f"after step {steps.history[-1]['step']} of {steps.config.max_steps}")


def _leave(trainer: Trainer, model, adapter) -> None:
    """Leave the model as transformers has it: with its own `forward`, and with the adapter in its own form."""
    trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    if adapter is not None:
        model.peft_config, model._hf_peft_config_loaded = {"default": adapter}, True
        adapter.base_model_name_or_path = getattr(model, "loaded_as", None) or model.name_or_path


@contextmanager
def reading_calls(tokenizer, environment: ToolEnvironment | None) -> Iterator[None]:
    """The tokenizer with the response template that our own loop reads calls with, for a while."""
    old_template = getattr(tokenizer, "response_template", None)
    if environment is not None and environment.schemas:
        tokenizer.response_template = Dialogue(tokenizer, environment.schemas).response_template
    try:
        yield
    finally:
        tokenizer.response_template = old_template


def rows_in_order(inputs: RunInputs) -> list[dict]:
    """The problems of all steps, in the order in which our own loop takes them, after all of its checks.

    Raises:
        InputError: if some prompts are strings and others lists of messages, which TRL does not mix.
    """
    config = inputs.config
    dataset = inputs.dataset
    if is_main():
        check_run_inputs(replace(inputs, config=config.without(output_dir=None, resume_from_checkpoint=False)))
    rows = [row for step in range(config.max_steps) for row in rows_of_step(dataset, config, step)]
    end_tokens = end_token_ids(inputs.model, inputs.tokenizer)
    quirks = probe(inputs.tokenizer, (row["prompt"] for row in rows), end_tokens)
    if unmended := next((quirks[name] for name in PROMPT_QUIRKS if name in quirks), None):
        reason = f"is trl, which makes its own prompts, and {unmended.split(':')[0]}"
        raise InputError("engine", "trl", "train with grpo_lab's own loop, which mends that", found=reason)
    if "time" in quirks:
        print("prompts: TRL makes its own, with the date of the day on which it runs")
    if len({isinstance(row["prompt"], str) for row in rows}) > 1:
        expected = "expected strings alone or messages alone, with --engine trl"
        raise InputError("dataset", dataset, expected, found="has prompts of two kinds")
    return rows


class Steps(TrainerCallback):
    """A callback that turns TRL's logs of a rollout's updates into the metrics of a step, and writes them.

    evaluate: returns the metrics of held-out problems; set before the training, which calls it as often as the
        configuration says. It needs the trainer's model, and the trainer needs its callbacks first.
    """

    def __init__(self, config: GRPOConfig, callback=None, folder=None, reports=None):
        self.config = config
        self.callback = callback
        self.folder = folder
        self.reports = reports
        self.history = []
        self.trainer = None
        self.evaluate = None
        self.stopping = Stopping(None if folder is None else folder.saved)

    def on_train_begin(self, args, state, control, **_):
        state.save_steps, state.logging_steps = args.save_steps, args.logging_steps  # not those before it went on
        self._started = time.perf_counter()

    def on_log(self, args, state, control, logs, **_):
        if "loss" not in logs:  # the summary of the whole run
            return
        config, done = self.config, state.global_step // self.config.updates_per_step
        metrics = {"step": done} | {name: value for name, value in logs.items() if name != "epoch"}
        metrics = {name: value for name, value in metrics.items() if value or not name.endswith("/frac_none")}
        if config.shows_completions_of(done) and is_main():
            self._write_completions(done)
        if config.eval_steps is not None and (done % config.eval_steps == 0 or done == config.max_steps):
            metrics |= self.evaluate(trainer_state=state)
        now = time.perf_counter()
        metrics |= {"num_tokens": int(metrics["num_tokens"]), "step_time": now - self._started}
        self._started = now
        self.history.append(metrics)
        if self.folder is not None:
            self.folder.append(METRICS, [metrics])
        if self.reports is not None:
            self.reports.show(metrics)
        if self.callback is not None:
            self.callback(done, metrics)
        if self.stopping.requested:
            control.should_save, control.should_training_stop = self.folder is not None, True

    def on_save(self, args, state, control, **_):
        PartialState().wait_for_everyone()  # each process has written its part
        if self.folder is not None:
            written, step = Path(args.output_dir), state.global_step // self.config.updates_per_step
            self.folder.adopt_checkpoint(step, written / f"checkpoint-{state.global_step}", self.history)
        PartialState().wait_for_everyone()

    def how_to_go_on(self) -> str:
        return f"{self.folder.saved()} Go on with {RESUME} and everything else as it was." if self.folder else ""

    def _write_completions(self, step: int) -> None:
        records = completions_of(self.trainer, step, self.config)
        tqdm.write(best_and_worst(records))
        if self.folder is not None:
            self.folder.append(COMPLETIONS, records)
