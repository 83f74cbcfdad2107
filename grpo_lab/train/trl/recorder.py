"""What a run on TRL's trainer records: the metrics and completions of each step, and checkpoints."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback

from grpo_lab.train.processes import is_main_process
from grpo_lab.train.trl.trainer import TrlTrainer
from grpo_lab.trainer.metrics import merge_metrics
from grpo_lab.trainer.run.reports import completion_record, none_if_nan
from grpo_lab.trainer.run.session import Session


class StepRecorder(TrainerCallback):
    """A callback of TRL's trainer that records the metrics of each step, and stops and saves as our own loop does.

    TRL logs the updates of a rollout together, which are the updates of one step.

    trainer: The trainer of the run.
    evaluate: A function that evaluates the trainer's model on the held-out problems and returns its metrics; None
        without such problems.
    session: The open run, with the log in which the steps are recorded. The log has no folder without an output_dir,
        and in all processes but the first.
    callback: A function of the step's number and its metrics, called after each step; None for none.
    """

    def __init__(
        self,
        trainer: TrlTrainer,
        evaluate: Callable[..., dict] | None,
        session: Session,
        callback: Callable[[int, dict], None] | None,
    ):
        self.trainer = trainer
        self.evaluate = evaluate
        self.session = session
        self.log = session.log
        self.callback = callback

    def on_train_begin(self, args, state, control, **_):
        # A resumed run restores these two from its checkpoint, but they may have been changed for the rest of the run.
        state.save_steps, state.logging_steps = args.save_steps, args.logging_steps
        self.log.start_step()

    def on_log(self, args, state, control, logs, **_):
        if "loss" not in logs:  # the summary at the end of the run
            return
        step = self._completed_steps(state)
        logged = {name: value for name, value in logs.items() if name not in ("epoch", "step_time")}
        metrics = {name: value for name, value in logged.items() if value or not name.endswith("/frac_none")}
        metrics["num_tokens"] = int(metrics["num_tokens"])
        if self.trainer.run_config.shows_completions_of(step) and is_main_process():
            self.log.write_completions(completion_records_of_trainer(self.trainer, step))
        if self.evaluate is not None and self.trainer.run_config.is_evaluation_due(step):
            metrics = merge_metrics(metrics, self.evaluate(trainer_state=state))
        metrics = self.log.add(step, metrics)
        self.log.start_step()
        if self.callback is not None:
            self.callback(step, metrics)
        if self.session.stopping.requested:
            control.should_save, control.should_training_stop = self.log.folder is not None, True

    def on_save(self, args, state, control, **_):
        PartialState().wait_for_everyone()  # each process must have written its part of the checkpoint
        if self.log.folder is not None:
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self.log.folder.adopt_checkpoint(self._completed_steps(state), checkpoint, self.log.history)
        PartialState().wait_for_everyone()

    def _completed_steps(self, state) -> int:
        """Return the number of completed steps; TRL counts updates."""
        return state.global_step // self.trainer.run_config.updates_per_step


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
