"""What a run shows of itself while it goes: a bar of progress, and the curves of TensorBoard or Weights & Biases."""

import os
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tqdm import tqdm

from grpo_lab.config import GRPOConfig


class Reports:
    """A context that shows the metrics of each step wherever the configuration wants them."""

    def __init__(self, config: GRPOConfig, first_step: int):
        self.config, self.first_step = config, first_step
        self._shown: dict[str, str] = {}

    def __enter__(self):
        with ExitStack() as stack:  # what was opened is closed again, should the next not open
            self._board = None
            if self.config.report_to == "tensorboard":
                writer = stack.enter_context(_tensorboard(Path(self.config.output_dir), self.first_step))
                self._board = partial(_add_scalars, writer)
            elif self.config.report_to == "wandb":
                self._board = stack.enter_context(_wandb(self.config)).log
            total, hidden = self.config.max_steps, self.config.disable_tqdm
            bar = tqdm(total=total, initial=self.first_step, disable=hidden, desc="GRPO", unit="step")
            self._bar = stack.enter_context(bar)
            self._opened = stack.pop_all()
        return self

    def __exit__(self, kind, error, trace):
        self._opened.__exit__(kind, error, trace)

    def show(self, metrics: dict) -> None:
        """The metrics of the step that has just been made. What was last evaluated stays in the bar."""
        reward = "none" if metrics["reward"] is None else f"{metrics['reward']:.3f}"
        self._shown |= {"reward": reward, "length": f"{metrics['completions/mean_length']:.1f}"}
        if "eval/accuracy" in metrics:
            self._shown["held-out accuracy"] = f"{metrics['eval/accuracy']:.3f}"
        self._bar.update()
        self._bar.set_postfix(self._shown)
        if self._board is not None:
            self._board({name: value for name, value in metrics.items() if value is not None})

    def say(self, text: str) -> None:
        """Print above the bar, which goes on below."""
        tqdm.write(text)


def _tensorboard(folder: Path, first_step: int):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("report_to is 'tensorboard', which is not installed: pip install tensorboard") from error
    # What a killed run showed of steps that are now made again is struck out.
    return SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1)


def _add_scalars(writer, metrics: dict) -> None:
    for name, value in metrics.items():
        writer.add_scalar(name, value, metrics["step"])


@contextmanager
def _wandb(config: GRPOConfig):
    """A run there. Resumed, it is the same one again: wandb keeps the number of a run that was cut off in `dir`."""
    try:
        import wandb
    except ImportError as error:
        raise ImportError("report_to is 'wandb', which is not installed: pip install wandb") from error
    folder = Path(config.output_dir)
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "grpo_lab"),
        name=config.run_name or folder.name,
        dir=str(folder),
        config=asdict(config),
        allow_val_change=True,
        resume="auto",
    )
    # Steps that are made again after a kill are logged again, with the same numbers; wandb's own count only grows.
    run.define_metric("*", step_metric="step")
    try:
        yield run
    except BaseException:
        run.finish(exit_code=1)
        raise
    run.finish(exit_code=0)
