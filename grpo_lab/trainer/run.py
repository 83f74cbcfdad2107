"""Everything about a run that is not the algorithm: order of the data, reference model, files, progress, resuming."""

import functools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import torch
from tqdm import tqdm

from grpo_lab.config import GRPOConfig
from grpo_lab.models.frozen import frozen_copy, silence_dropout
from grpo_lab.precision import PRECISIONS
from grpo_lab.tasks import Rows
from grpo_lab.trainer import checkpoint
from grpo_lab.trainer.optim import PolicyOptimizer, learning_rate

# Settings that may change between a run and its continuation, because no number depends on them.
_FREE_SETTINGS = ("output_dir", "resume_from_checkpoint", "save_steps", "report_to", "disable_tqdm")


class Run:
    """A context that carries one training run from its first step, or the one after its last checkpoint, to its end."""

    def __init__(self, model, tokenizer, dataset: Rows, config: GRPOConfig):
        check_dataset(dataset)
        self.model, self.tokenizer, self.dataset, self.config = model, tokenizer, dataset, config
        self.folder = None if config.output_dir is None else Path(config.output_dir)
        silence_dropout(model)
        self.optimizer = PolicyOptimizer(model, config)
        self.reference = frozen_copy(model).to(config.ref_model_device or model.device) if config.beta > 0 else None
        self.history: list[dict] = []
        self.first_step = 0
        if config.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        if self.folder is not None:
            self._open_folder()

    def __enter__(self):
        with ExitStack() as stack:  # what was opened is closed again, should the next not open
            self._board = None
            if self.config.report_to == "tensorboard":
                self._board = stack.enter_context(_tensorboard(self.folder, self.first_step))
            stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
            stack.callback(self.model.train, self.model.training)
            self.model.train(self.config.gradient_checkpointing)
            total, hidden = self.config.max_steps, self.config.disable_tqdm
            bar = tqdm(total=total, initial=self.first_step, disable=hidden, desc="GRPO", unit="step")
            self._bar = stack.enter_context(bar)
            self._opened = stack.pop_all()
        return self

    def __exit__(self, kind, error, trace):
        self._opened.__exit__(kind, error, trace)
        if kind is None and self.folder is not None:
            checkpoint.save_model(self.folder, self.model, self.tokenizer)

    def steps(self) -> Iterator[int]:
        """Count the steps that are still to be made; each starts a random stream of its own."""
        for step in range(self.first_step, self.config.max_steps):
            torch.manual_seed(self.config.seed * 1_000_003 + step)
            self._started = time.perf_counter()
            yield step

    def rows_of_step(self, step: int) -> list[dict]:
        """The prompts of a step: the data set in a new random order every epoch, computed from seed and epoch alone."""
        picked, count = [], self.config.prompts_per_step
        for position in range(step * count, (step + 1) * count):
            epoch, place = divmod(position, len(self.dataset))
            picked.append(self.dataset[_order(len(self.dataset), self.config.seed * 1_000_003 + epoch)[place]])
        return picked

    def learning_rate(self, step: int) -> float:
        c = self.config
        return learning_rate(step, c.learning_rate, c.warmup_steps, c.max_steps, c.lr_scheduler_type)

    def reference_model(self, step: int):
        """The reference, refreshed from the policy first if this is a step to do so."""
        every = self.config.ref_model_sync_steps
        if every is not None and step > 0 and step % every == 0:
            self.reference.load_state_dict(self.model.state_dict())
        return self.reference

    def record(self, step: int, metrics: dict, callback: Callable[[int, dict], None] | None) -> None:
        """Put the metrics of a step wherever they are wanted; then a checkpoint, if this is a step to make one."""
        done = step + 1
        tokens = (self.history[-1]["num_tokens"] if self.history else 0) + metrics["num_tokens"]
        metrics = {"step": done} | metrics | {"num_tokens": tokens, "step_time": time.perf_counter() - self._started}
        self.history.append(metrics)
        self._show(metrics)
        if self.folder is not None:
            checkpoint.append_metrics(self.folder, metrics)
            every = self.config.save_steps
            if done == self.config.max_steps or (every and done % every == 0):
                state = {"step": done, "num_steps_in_metrics": len(self.history)} | self.optimizer.state()
                tensors = self.optimizer.tensors()
                checkpoint.save(self.folder, done, self.model, self.tokenizer, tensors, state, self.reference)
        if callback is not None:
            callback(done, metrics)

    def _show(self, metrics: dict) -> None:
        reward = "none" if metrics["reward"] is None else f"{metrics['reward']:.3f}"
        self._bar.update()
        self._bar.set_postfix(reward=reward, length=f"{metrics['completions/mean_length']:.1f}")
        if self._board is not None:
            for name, value in metrics.items():
                if value is not None:
                    self._board.add_scalar(name, value, metrics["step"])

    def _open_folder(self) -> None:
        if self.config.resume_from_checkpoint:
            if before := checkpoint.read_config(self.folder):
                self._check_same_run(before)
        elif what := checkpoint.contents(self.folder):
            raise FileExistsError(
                f"output_dir {str(self.folder)!r} holds {what} already; choose another folder, or continue a run with "
                "resume_from_checkpoint=True"
            )
        found = checkpoint.latest(self.folder)
        checkpoint.tidy(self.folder, keep=found)
        if found is None:
            # New, or killed before its first checkpoint: begin at the beginning.
            checkpoint.start(self.folder, self._settings())
            return
        state, tensors = checkpoint.load(found, self.model, self.reference)
        self.optimizer.load(state, tensors)
        self.first_step = state["step"]
        self.history = checkpoint.read_metrics(self.folder, state["num_steps_in_metrics"])

    def _settings(self) -> dict:
        """The configuration, with the precision that the model decided where it does not say one."""
        mode = self.optimizer.precision
        return asdict(self.config) | ({"precision": mode.name} if mode in PRECISIONS.values() else {})

    def _check_same_run(self, before: dict) -> None:
        now = json.loads(json.dumps(self._settings()))
        changed = {k: (before.get(k), v) for k, v in now.items() if k not in _FREE_SETTINGS and before.get(k) != v}
        if changed:
            listed = ", ".join(f"{name}: was {old!r}, is {new!r}" for name, (old, new) in changed.items())
            raise ValueError(
                f"config differs from that of the run in {str(self.folder)!r} ({listed}); resume it unchanged"
            )


def _tensorboard(folder: Path, first_step: int):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("report_to is 'tensorboard', which is not installed: pip install tensorboard") from error
    # What a killed run showed of steps that are now made again is struck out.
    return SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1)


def check_dataset(dataset: Rows) -> None:
    """Every row is a dict with a "prompt", and all have the same columns."""
    if not isinstance(dataset, Rows):
        raise TypeError(f"dataset is a {type(dataset).__name__}; expected a list of dicts or a datasets.Dataset")
    if len(dataset) == 0:
        raise ValueError("dataset is empty; expected at least one row")
    columns = None
    for index in range(len(dataset)):
        row = dataset[index]
        if not isinstance(row, dict):
            raise TypeError(f"dataset row {index} is {row!r:.60}; expected a dict with a 'prompt'")
        if "prompt" not in row:
            raise ValueError(f"dataset row {index} has the columns {sorted(row)}; expected 'prompt' among them")
        columns = columns or sorted(row)
        if sorted(row) != columns:
            raise ValueError(f"dataset row {index} has the columns {sorted(row)}; expected those of row 0, {columns}")


@functools.lru_cache(maxsize=2)
def _order(count: int, seed: int) -> list[int]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
