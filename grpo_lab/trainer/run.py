"""Everything about a run that is not the algorithm: order of the data, reference model, files, progress, resuming."""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict

import torch

from grpo_lab.config import GRPOConfig
from grpo_lab.models.frozen import frozen_copy, silence_dropout
from grpo_lab.precision import PRECISIONS
from grpo_lab.tasks import Rows
from grpo_lab.trainer.folder import RunFolder
from grpo_lab.trainer.optim import PolicyOptimizer, learning_rate
from grpo_lab.trainer.reports import Reports


class Run:
    """A context that carries one training run from its first step, or the one after its last checkpoint, to its end."""

    def __init__(self, model, tokenizer, dataset: Rows, config: GRPOConfig):
        check_dataset(dataset)
        self.model, self.tokenizer, self.dataset, self.config = model, tokenizer, dataset, config
        silence_dropout(model)
        self.optimizer = PolicyOptimizer(model, config)
        self.reference = frozen_copy(model).to(config.ref_model_device or model.device) if config.beta > 0 else None
        if config.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        self.folder, self.first_step, self.history = None, 0, []
        if config.output_dir is not None:
            self.folder = RunFolder(config, self.settings())
            self.first_step, self.history = self.folder.open(model, self.optimizer, self.reference)

    def __enter__(self):
        with ExitStack() as stack:  # what was opened is closed again, should the next not open
            self._reports = stack.enter_context(Reports(self.config, self.first_step))
            stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
            stack.callback(self.model.train, self.model.training)
            self.model.train(self.config.gradient_checkpointing)
            self._opened = stack.pop_all()
        return self

    def __exit__(self, kind, error, trace):
        self._opened.__exit__(kind, error, trace)
        if kind is None and self.folder is not None:
            self.folder.finish(self.model, self.tokenizer)

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
        self._reports.show(metrics)
        if self.folder is not None:
            self.folder.record(done, metrics)
            every = self.config.save_steps
            if done == self.config.max_steps or (every and done % every == 0):
                self.folder.save(done, self.history, self.model, self.tokenizer, self.optimizer, self.reference)
        if callback is not None:
            callback(done, metrics)

    def settings(self) -> dict:
        """The configuration, with the precision that the model decided where it does not say one."""
        mode = self.optimizer.precision
        return asdict(self.config) | ({"precision": mode.name} if mode in PRECISIONS.values() else {})


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
