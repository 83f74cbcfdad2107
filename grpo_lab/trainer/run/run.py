"""A training run from its first step to its end: data rows of each step, reference model, records and checkpoints."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch
from transformers import TrainerState

from grpo_lab.base.checks import InputError, RunError
from grpo_lab.base.process_state import SEED_STRIDE
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import PRECISIONS
from grpo_lab.config.settings import scheduled_learning_rate
from grpo_lab.models import pick_device
from grpo_lab.models.adapters import frozen_copy, has_adapter, without_adapter
from grpo_lab.models.selfcheck import disable_dropout
from grpo_lab.rewards import reward_names
from grpo_lab.rollout.decoding.graph_decoder import shared_decoder
from grpo_lab.rollout.environments.environment import Environment
from grpo_lab.rollout.model import checkpointed_layers, training_mode
from grpo_lab.tasks import Rows
from grpo_lab.trainer.evaluation import evaluate_policy, kl_to_reference
from grpo_lab.trainer.experience import Experience
from grpo_lab.trainer.metrics import Clock, merge_metrics, plain_numbers
from grpo_lab.trainer.optim import PolicyOptimizer
from grpo_lab.trainer.rewarding import all_reward_functions
from grpo_lab.trainer.run.fingerprints import input_fingerprints
from grpo_lab.trainer.run.folder import RunFolder
from grpo_lab.trainer.run.inputs import RunInputs
from grpo_lab.trainer.run.reports import completion_records
from grpo_lab.trainer.run.session import Session, open_session


class Run:
    """Context manager for one training run, new or resumed: its data order, reference model, files and progress.

    Args:
        model: A causal language model; its parameters that require a gradient are trained in place. Its dropout is
            switched off permanently.
        tokenizer: The tokenizer of the model.
        dataset: The training rows, each a dict with a "prompt" and the columns that the reward functions read.
        reward_funcs: One reward function or several. None if the environment or the caller's loop computes the rewards.
        config: The settings of the run.
        eval_dataset: Held-out rows for evaluations. None: the run has no evaluations.
        environment: The environment that replies to the policy within an episode. None: the policy writes each
            completion alone.
        saved_options: Options of a command that are not settings, such as the names of the model and the task. They are
            saved with the settings, as JSON. None: there are none.
        inputs_checked: True if `RunInputs.check_without_weights` was called before the weights were loaded, as in a
            command. Its checks are then not made here.

    Attributes:
        inputs: The arguments from `model` to `environment`, under the same names.
        optimizer: The optimizer of the model.
    """

    def __init__(
        self,
        model,
        tokenizer,
        dataset: Rows,
        reward_funcs: Callable | list[Callable] | None,
        config: GRPOConfig,
        eval_dataset: Rows | None = None,
        environment: Environment | None = None,
        saved_options: dict | None = None,
        *,
        inputs_checked: bool = False,
    ):
        self.inputs = RunInputs(model, tokenizer, dataset, reward_funcs, config, eval_dataset, environment)
        if not inputs_checked:
            self.inputs.check_without_weights()
        self.inputs.check_model()
        self.saved_options = saved_options or {}
        disable_dropout(model)
        self.optimizer = PolicyOptimizer(model, config)
        self.reference = _make_reference(model, config) if config.needs_reference else None
        self._contexts = ExitStack()  # held open by the `with` block
        self._session: Session | None = None  # None before the `with` block; closed after it
        self._current_step: int | None = None  # index of the current step; None once the step is recorded
        self._data_rows: dict[int, list[dict]] = {}  # the data rows of the step that was read last, by its index

    def __enter__(self):
        """Open the folder and the session, with gradient checkpointing if it is on and one decoder for all rollouts."""
        inputs, model, config = self.inputs, self.inputs.model, self.inputs.config
        folder: RunFolder | None = None
        history: list[dict] = []
        with ExitStack() as stack:
            if config.output_dir is not None:
                settings = self.saved_options | config.as_dict()
                if self.optimizer.precision in PRECISIONS.values():
                    # Without a precision in the configuration, the weights of the model decide it; the saved settings
                    # name it.
                    settings["precision"] = self.optimizer.precision.name
                folder = stack.enter_context(RunFolder(config, settings))
                fingerprints = input_fingerprints(inputs)
                history = folder.open(model, self.optimizer, self._checkpointed_reference, fingerprints)
            session = stack.enter_context(open_session(inputs, history, folder, self.saved_options))
            stack.enter_context(training_mode(model, config.gradient_checkpointing))
            if config.gradient_checkpointing:
                stack.enter_context(checkpointed_layers(model))
            stack.enter_context(shared_decoder())
            self._contexts = stack.pop_all()
        self._session = session
        return self

    def __exit__(self, *error):
        self._contexts.__exit__(*error)

    @property
    def history(self) -> list[dict]:
        """The metrics of the completed steps, one dict per step; of a resumed run, from its first step on."""
        return [] if self._session is None else self._session.history

    @property
    def _open_session(self) -> Session:
        """The session; raises RunError outside of the `with` block."""
        if self._session is None or not self._session.is_open:
            raise RunError("this Run is not open; expected its steps inside `with Run(...) as run:`")
        return self._session

    def steps(self) -> Iterator[int]:
        """Yield the index of each remaining step, counted from 0, after seeding the random stream of that step.

        Raises:
            RunError: if a step ends unrecorded, since it would be missing in the history and in the files.
        """
        session, config = self._open_session, self.inputs.config
        for step in range(len(self.history), config.max_steps):
            torch.manual_seed(config.seed * SEED_STRIDE + step)
            session.start_step()
            self._current_step = step
            yield step
            if self._current_step is not None:
                raise RunError(f"step {step} was not recorded; expected `run.record(step, metrics)` in each step")
            if session.must_stop:
                self._save_checkpoint()
                session.stop()

    def data_rows_of_step(self, step: int) -> list[dict]:
        """Return the P data rows of a step, each read only once, since a data set may change a row at each access.

        They are kept until the rows of another step are read.

        step: Index of the step, counted from 0.
        """
        if step not in self._data_rows:
            self._data_rows = {step: self.inputs.read_data_rows(step)}
        return self._data_rows[step]

    def trainer_state(self, completed_steps: int) -> TrainerState:
        """Return the progress of the run for the reward functions; as in TRL, `global_step` counts updates.

        completed_steps: Number of completed steps, which is also the index of the step that follows them.
        """
        config = self.inputs.config
        return TrainerState(
            global_step=completed_steps * config.updates_per_step,
            max_steps=config.max_steps * config.updates_per_step,
            epoch=completed_steps * config.prompts_per_step / len(self.inputs.dataset),
            log_history=self.history,
        )

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of all updates of a step, whose index is counted from 0."""
        config = self.inputs.config
        return scheduled_learning_rate(
            step, config.learning_rate, config.warmup_steps, config.max_steps, config.lr_scheduler_type
        )

    def reference_model(self, step: int):
        """Return the reference model, after copying the policy into it every `ref_model_sync_steps` steps."""
        sync_steps = self.inputs.config.ref_model_sync_steps
        if self.reference is not None and sync_steps is not None and step > 0 and step % sync_steps == 0:  # [refresh]
            self.reference.load_state_dict(self.inputs.model.state_dict())
        return self.reference

    @property
    def _checkpointed_reference(self):
        """The reference model if checkpoints must store it; None if there is none, or if the policy has an adapter.

        With an adapter the reference is the policy's own frozen weights, which never change.
        """
        return None if has_adapter(self.inputs.model) else self.reference

    def measure_kl_if_due(self, experience: Experience, clock: Clock) -> dict:
        """Return the KL to the reference as a metric if `config.log_kl` asks for it and the loss has no KL term."""
        config = self.inputs.config
        if not config.log_kl or config.beta != 0:
            return {}
        with clock("time/logprobs"):
            return {"kl": kl_to_reference(self.inputs.model, self.reference, experience, config)}

    def write_completions_if_due(self, step: int, experience: Experience) -> None:
        """Print the best and the worst completion of a step and write all of them, if the settings ask for this step.

        step: Index of the step, counted from 0.
        """
        completed_steps = step + 1
        if self.inputs.config.shows_completions_of(completed_steps):
            functions = all_reward_functions(self.inputs.reward_funcs, experience.rollout)
            names = reward_names(functions) if functions else []  # none if the caller's loop computes the rewards
            data_rows = self.data_rows_of_step(step)
            records = completion_records(completed_steps, data_rows, experience, names, self.inputs.tokenizer)
            self._open_session.write_completions(records)

    def record(self, step: int, metrics: dict, callback: Callable[[int, dict], None] | None = None) -> None:
        """Write the metrics of a step; before that evaluate, and after it save a checkpoint, if they are due.

        Args:
            step: Index of the current step, as `steps` yielded it.
            metrics: Numbers or None by name, such as the metrics that `collect` returns. "num_tokens" is summed over
                the run, without None; the progress bar shows "reward" and "completions/mean_length".
            callback: Function that is called with the number of completed steps and the metrics of the last one.
        """
        if step != self._current_step:
            raise InputError("step", step, "expected each step of `run.steps()` once, while it is the current one")
        completed_steps = step + 1
        session, config = self._open_session, self.inputs.config
        metrics = merge_metrics(plain_numbers(metrics), self._evaluate_if_due(completed_steps))
        if metrics.get("num_tokens") is not None:
            counts = [past["num_tokens"] for past in self.history if past.get("num_tokens") is not None]
            metrics["num_tokens"] += counts[-1] if counts else 0
        self._current_step = None
        metrics = session.record(metrics)
        if completed_steps == config.max_steps or (config.save_steps and completed_steps % config.save_steps == 0):
            self._save_checkpoint()
        if callback is not None:
            callback(completed_steps, metrics)

    def _evaluate_if_due(self, completed_steps: int) -> dict:
        """Return the metrics of the evaluation after a step, and its time; no metrics if no evaluation is due."""
        inputs = self.inputs
        if inputs.eval_dataset is None or not inputs.config.is_evaluation_due(completed_steps):
            return {}
        clock = Clock(inputs.model.device)
        with clock("time/eval"):
            metrics = evaluate_policy(
                inputs.model, inputs.tokenizer, inputs.eval_dataset, inputs.reward_funcs, inputs.config,
                inputs.environment, trainer_state=self.trainer_state(completed_steps),
            )  # fmt: skip
        return merge_metrics(metrics, clock.totals)

    def _save_checkpoint(self) -> None:
        """Save the checkpoint of the newest step if the run has a folder."""
        session, inputs = self._open_session, self.inputs
        if session.folder is not None:
            session.folder.save_checkpoint(
                session.history, inputs.model, inputs.tokenizer, self.optimizer, self._checkpointed_reference
            )


def _make_reference(model, config: GRPOConfig):
    """Return the reference model: a frozen copy of the policy, or the policy without its adapter if it has one."""
    device = config.ref_model_device
    if has_adapter(model):
        return without_adapter(model)
    return frozen_copy(model).to(model.device if device is None else pick_device(device, "ref_model_device"))
