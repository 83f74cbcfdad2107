"""What a run shows of itself while it goes: a bar of progress, and the curves of TensorBoard."""

from contextlib import ExitStack
from pathlib import Path

from tqdm import tqdm

from grpo_lab.config import GRPOConfig


class Reports:
    """A context that shows the metrics of each step wherever the configuration wants them."""

    def __init__(self, config: GRPOConfig, first_step: int):
        self.config, self.first_step = config, first_step

    def __enter__(self):
        with ExitStack() as stack:  # what was opened is closed again, should the next not open
            self._board = None
            if self.config.report_to == "tensorboard":
                self._board = stack.enter_context(_tensorboard(Path(self.config.output_dir), self.first_step))
            total, hidden = self.config.max_steps, self.config.disable_tqdm
            bar = tqdm(total=total, initial=self.first_step, disable=hidden, desc="GRPO", unit="step")
            self._bar = stack.enter_context(bar)
            self._opened = stack.pop_all()
        return self

    def __exit__(self, kind, error, trace):
        self._opened.__exit__(kind, error, trace)

    def show(self, metrics: dict) -> None:
        """The metrics of the step that has just been made."""
        reward = "none" if metrics["reward"] is None else f"{metrics['reward']:.3f}"
        self._bar.update()
        self._bar.set_postfix(reward=reward, length=f"{metrics['completions/mean_length']:.1f}")
        if self._board is not None:
            for name, value in metrics.items():
                if value is not None:
                    self._board.add_scalar(name, value, metrics["step"])


def _tensorboard(folder: Path, first_step: int):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("report_to is 'tensorboard', which is not installed: pip install tensorboard") from error
    # What a killed run showed of steps that are now made again is struck out.
    return SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1)
