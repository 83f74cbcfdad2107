"""A run on TRL's GRPOTrainer, with one process or several; and the record of its steps and completions.

`train_on_trl` is the run. `StepRecorder` follows TRL's callbacks and writes the metrics of each step.

TRL samples completions, computes advantages and the loss, and updates the parameters. The order of the problems, the
calls of the rewards, the learning rate of each update, the weight decay, the held-out evaluation and the folder are
those of this package. Metrics have TRL's names, which this package uses too; metrics that TRL does not measure
(`time/...`, `tokens_per_second`, `sampling/logp_difference_max`) are absent.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from grpo_lab.base.checks import InputError
from grpo_lab.command_options import TRL
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import origin_of, precision_of
from grpo_lab.models.adapters import lora_config
from grpo_lab.models.selfcheck import disable_dropout
from grpo_lab.rollout.environments.environment import Environment
from grpo_lab.rollout.environments.factory import make_environment
from grpo_lab.rollout.environments.tool_call_format import ToolCallFormat
from grpo_lab.rollout.model import training_mode
from grpo_lab.rollout.prompts import PROMPT_QUIRKS, end_token_ids, find_prompt_quirks
from grpo_lab.tasks import Rows
from grpo_lab.train.processes import is_main_process, stop_if_a_process_is_gone, world_size
from grpo_lab.train.trl.fsdp import GatheredModel
from grpo_lab.train.trl.settings import PRECISION_FLAGS, check_environment, check_settings
from grpo_lab.train.trl.trainer import TrlTrainer, make_trainer, unfinished_checkpoints
from grpo_lab.trainer.evaluation import evaluate_policy
from grpo_lab.trainer.metrics import merge_metrics
from grpo_lab.trainer.run.fingerprints import input_fingerprints
from grpo_lab.trainer.run.folder import RunFolder, checkpoint_name
from grpo_lab.trainer.run.inputs import RunInputs
from grpo_lab.trainer.run.reports import completion_record, none_if_nan
from grpo_lab.trainer.run.session import RESUME_HINT, Session, open_session


def train(
    model,
    tokenizer,
    dataset: Rows,
    reward_funcs: Callable | list[Callable] | None,
    config: GRPOConfig,
    callback: Callable[[int, dict], None] | None = None,
    eval_dataset: Rows | None = None,
    *,
    lora: dict | None = None,
    fsdp: bool = False,
    vllm: dict | None = None,
    tools: list[Callable] | None = None,
    environment_factory: Callable | None = None,
    environment: Environment | None = None,
    saved_options: dict | None = None,
) -> list[dict]:
    """Train the model in place, with the arguments, metrics and errors of `grpo_lab.trainer.train`.

    This function is for scripts. It makes the checks that a command makes before it loads the weights, and then takes
    the way of the command, `train_on_trl`.

    Further arguments are `lora`, `fsdp` and `vllm`, the fields of `TrlEngine`. With LoRA, the folder holds only the
    adapter, and the model keeps its frozen weights. With FSDP2, the model passed in is left divided, and the complete
    trained model is only in `output_dir`. An `environment` has to be a `ToolEnvironment`, since TRL has none that
    replies within a completion.

    Raises:
        InputError: for a setting that TRL lacks, or a precision that it cannot train in.
        Stopped: A KeyboardInterrupt, after Ctrl-C or SIGTERM. A run with one process first finishes and saves its step.
    """
    check_settings(config, has_lora=lora is not None)
    environment = make_environment(
        tools=tools, environment_factory=environment_factory, environment=environment,
        max_tool_calling_iterations=config.max_tool_calling_iterations, tool_timeout=config.tool_timeout,
    )  # fmt: skip
    check_environment(config, environment)
    inputs = RunInputs(
        model=model, tokenizer=tokenizer, dataset=dataset, reward_funcs=reward_funcs, config=config,
        eval_dataset=eval_dataset, environment=environment,
    )  # fmt: skip
    inputs.check_without_weights()
    return train_on_trl(inputs, callback, lora=lora, fsdp=fsdp, vllm=vllm, saved_options=saved_options)


def train_on_trl(
    inputs: RunInputs,
    callback: Callable[[int, dict], None] | None = None,
    *,
    lora: dict | None = None,
    fsdp: bool = False,
    vllm: dict | None = None,
    saved_options: dict | None = None,
) -> list[dict]:
    """Train the model in `inputs` on TRL's trainer; scripts (`train`) and commands (`TrlEngine.run`) end here.

    The inputs passed the checks of TRL's settings and those without weights; those of the model are made here. The
    other arguments and the result are those of `train`.
    """
    if is_main_process():  # since it prints
        inputs.check_model()
    model, tokenizer, environment = inputs.model, inputs.tokenizer, inputs.environment
    rows_of_all_steps = [row for step in range(inputs.config.max_steps) for row in inputs.read_data_rows(step)]
    check_prompts_for_trl(inputs, rows_of_all_steps)
    config = _config_of_process(model, inputs.config)
    engine_settings = {"engine": TRL} | ({"fsdp": True} if fsdp else {}) | (lora or {})
    saved_options = saved_options or {}
    disable_dropout(model)
    peft_config = None if lora is None else lora_config(model, lora)
    inputs_of_process = replace(inputs, config=config)
    folder: RunFolder | None = None
    history: list[dict] = []
    with ExitStack() as stack:
        if config.output_dir is not None and is_main_process():
            folder = stack.enter_context(RunFolder(config, saved_options | config.as_dict() | engine_settings))
            history = _open_folder(folder, inputs, engine_settings)
        one_process = world_size() == 1
        session = stack.enter_context(
            open_session(inputs_of_process, history, folder, saved_options, catches_signals=one_process)
        )
        stack.enter_context(training_mode(model, model.training))  # restores the mode, which TRL changes
        stack.enter_context(response_template_of_our_loop(tokenizer, environment))
        trainer = make_trainer(inputs_of_process, rows_of_all_steps, peft_config, fsdp, vllm)
        # With adapters, FSDP2 gathers parameters at the root module, which is peft's wrapper of the model.
        policy = model if peft_config is None else trainer.model
        # Only the first process has opened the folder; the others get the history from it.
        session.history[:] = broadcast_object_list([session.history])[0]
        try:
            _run_steps(StepRecorder(trainer, replace(inputs_of_process, model=policy), session, callback))
        finally:
            _restore_model(trainer, model, peft_config)
        if fsdp:
            session.trained_model = GatheredModel(model)  # in all processes: each sends its part
    return session.history


def _config_of_process(model, config: GRPOConfig) -> GRPOConfig:
    """Return the configuration with the model's precision; only the main process reports to trackers."""
    precision = precision_of(model, config).name
    if precision not in PRECISION_FLAGS:
        raise InputError("precision", precision, f"expected one of {', '.join(PRECISION_FLAGS)} with --engine trl")
    report_settings: dict[str, Any] = {} if is_main_process() else {"report_to": "none", "disable_tqdm": True}
    return replace(config, precision=precision, bf16=False, fp16=False, **report_settings)


def _open_folder(folder: RunFolder, inputs: RunInputs, engine_settings: dict) -> list[dict]:
    """Open the folder, and return the metrics of each completed step; none for a new run."""
    history = folder.open(inputs.model, None, None, input_fingerprints(inputs, engine_settings))
    if history:
        files = folder.manifest["checkpoints"][checkpoint_name(len(history))]["files"]
        num_processes = sum(name.startswith("rng_state") for name in files)
        if num_processes != world_size():
            expected = f"expected {num_processes}, the number of processes of the run in {str(folder.path)!r}"
            raise InputError("WORLD_SIZE", world_size(), expected)
    return history


def _run_steps(recorder: "StepRecorder") -> None:
    """Run all remaining steps, in all processes."""
    config, session = recorder.inputs.config, recorder.session
    recorder.trainer.add_callback(recorder)
    checkpoint = f"{config.output_dir}/{checkpoint_name(len(session.history))}" if session.history else None
    folder = session.folder
    with stop_if_a_process_is_gone(None if folder is None else folder.describe_saved, RESUME_HINT):
        recorder.trainer.train(resume_from_checkpoint=checkpoint)
    if folder is not None:
        shutil.rmtree(unfinished_checkpoints(folder.path), ignore_errors=True)
    if session.must_stop:
        session.stop()


def _restore_model(trainer: TrlTrainer, model, peft_config) -> None:
    """Restore the model's own `forward`, and register the adapter in the form in which transformers keeps adapters."""
    trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    if peft_config is not None:
        model.peft_config, model._hf_peft_config_loaded = {"default": peft_config}, True
        peft_config.base_model_name_or_path = origin_of(model).name or model.name_or_path


class StepRecorder(TrainerCallback):
    """A callback of TRL's trainer that records the metrics of each step, and stops and saves as our own loop does.

    TRL logs the updates of a rollout together, which are the updates of one step.

    trainer: The trainer of the run.
    inputs: The inputs of the run, with the model that is evaluated.
    session: The open run, in which the steps are recorded. It has no folder without an output_dir, and in all processes
        but the first.
    callback: A function of the step's number and its metrics, called after each step; None for none.
    """

    def __init__(
        self,
        trainer: TrlTrainer,
        inputs: RunInputs,
        session: Session,
        callback: Callable[[int, dict], None] | None,
    ):
        self.trainer = trainer
        self.inputs = inputs
        self.session = session
        self.callback = callback

    def on_train_begin(self, args, state, control, **_):
        # A resumed run restores these two from its checkpoint, but they may have been changed for the rest of the run.
        state.save_steps, state.logging_steps = args.save_steps, args.logging_steps
        self.session.start_step()

    def on_log(self, args, state, control, logs, **_):
        if "loss" not in logs:  # the summary at the end of the run
            return
        inputs, config = self.inputs, self.inputs.config
        step = state.global_step // config.updates_per_step  # TRL counts updates
        logged = {name: value for name, value in logs.items() if name not in ("epoch", "step_time")}
        metrics = {name: value for name, value in logged.items() if value or not name.endswith("/frac_none")}
        metrics["num_tokens"] = int(metrics["num_tokens"])
        if config.shows_completions_of(step) and is_main_process():
            self.session.write_completions(completion_records_of_trainer(self.trainer, step))
        if inputs.eval_dataset is not None and config.is_evaluation_due(step):
            evaluation = evaluate_policy(
                inputs.model, inputs.tokenizer, inputs.eval_dataset, inputs.reward_funcs, config, inputs.environment,
                trainer_state=state, cache_implementation="dynamic",  # the model's own forward pass
            )  # fmt: skip
            metrics = merge_metrics(metrics, evaluation)
        metrics = self.session.record(metrics)
        self.session.start_step()
        if self.callback is not None:
            self.callback(step, metrics)
        if self.session.must_stop:
            control.should_save, control.should_training_stop = self.session.folder is not None, True

    def on_save(self, args, state, control, **_):
        PartialState().wait_for_everyone()  # each process must have written its part of the checkpoint
        if self.session.folder is not None:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self.session.folder.adopt_checkpoint(self.session.history, checkpoint)
        PartialState().wait_for_everyone()


def completion_records_of_trainer(trainer: TrlTrainer, step: int) -> list[dict]:
    """Return a record of each completion in the last rollout of all processes, in the form of our own loop.

    TRL keeps an episode with tools as messages. These become "turns", and a tool call is written as JSON.
    """
    logs: Any = trainer._logs
    is_episode = bool(trainer.tools) or trainer.environments is not None
    extra = {name: list(values) for name, values in logs["extra"].items() if len(values) == len(logs["prompt"])}
    names = list(logs["rewards"])
    weights = trainer.run_config.reward_weights or []
    weights = weights + [1.0] * (len(names) - len(weights))  # TRL gives the reward of an environment the weight 1
    rewards = zip(*(logs["rewards"][name] for name in names), strict=True)
    records = []
    columns = logs["prompt"], logs["completion"], rewards, logs["advantages"]
    for row, (prompt, completion, raw_rewards, advantage) in enumerate(zip(*columns, strict=True)):
        turns = (
            [{"policy": completion}]
            if isinstance(completion, str)
            else [_turn_of_message(message) for message in completion]
        )
        row_rewards = [none_if_nan(value) for value in raw_rewards]
        terms = [weight * value for weight, value in zip(weights, row_rewards, strict=True) if value is not None]
        record = completion_record(
            prompt,
            "\n".join(text for turn in turns for text in turn.values()),
            dict(zip(names, row_rewards, strict=True)),
            sum(terms) if terms else None,
            extra={name: column[row] for name, column in extra.items()} if extra else None,
            turns=turns if is_episode else None,
            advantage=advantage,
        )
        records.append({"step": step} | record)
    return records


def _turn_of_message(message: dict) -> dict[str, str]:
    """Return the text of a message, as a dictionary whose key is its writer, "policy" or "environment"."""
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls") or []]
    writer = "policy" if message["role"] == "assistant" else "environment"
    return {writer: "\n".join(text for text in (message.get("content"), *calls) if text)}


@contextmanager
def response_template_of_our_loop(tokenizer, environment: Environment | None) -> Iterator[None]:
    """Give the tokenizer the response template by which our own loop parses tool calls, inside the `with` block."""
    old_template = getattr(tokenizer, "response_template", None)
    if environment is not None and environment.schemas:
        tokenizer.response_template = ToolCallFormat(tokenizer, environment.schemas).response_template
    try:
        yield
    finally:
        tokenizer.response_template = old_template


def check_prompts_for_trl(inputs: RunInputs, rows_of_all_steps: list[dict]) -> None:
    """Raise InputError for prompts that TRL would render otherwise than our own loop, or that it does not mix.

    It mixes no strings and lists of messages. A line is printed if the prompts contain the date of the day.
    """
    end_tokens = end_token_ids(inputs.model, inputs.tokenizer)
    quirks = find_prompt_quirks(inputs.tokenizer, (row["prompt"] for row in rows_of_all_steps), end_tokens)
    if unmended_quirk := next((quirks[name] for name in PROMPT_QUIRKS if name in quirks), None):
        reason = f"is trl, which makes its own prompts, and {unmended_quirk.split(':')[0]}"
        raise InputError("engine", "trl", "train with grpo_lab's own loop, which mends that", problem=reason)
    if "time" in quirks:
        print("prompts: TRL makes its own, with the date of the day on which it runs")
    if len({isinstance(row["prompt"], str) for row in rows_of_all_steps}) > 1:
        expected = "expected strings alone or messages alone, with --engine trl"
        raise InputError("dataset", inputs.dataset, expected, problem="has prompts of two kinds")
