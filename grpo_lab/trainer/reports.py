"""What a run shows while it goes: a progress bar, curves on TensorBoard, completions to read."""

import importlib
import math
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from tqdm import tqdm

from grpo_lab.commands.checks import InputPackageError
from grpo_lab.config import GRPOConfig
from grpo_lab.rewards import prompt_text
from grpo_lab.trainer.experience import Experience

WIDTH = 100  # characters of a prompt with its completion, in the table of completions


class Reports:
    """A progress bar short enough for 80 columns, and a board for curves, if asked for; the stack closes both."""

    def __init__(self, stack: ExitStack, config: GRPOConfig, first_step: int):
        self._log = _tensorboard(stack, config, first_step) if config.report_to == "tensorboard" else None
        bar = tqdm(total=config.max_steps, initial=first_step, disable=config.disable_tqdm, desc="GRPO", unit="step")
        self._bar = stack.enter_context(bar)

    def show(self, metrics: dict) -> None:
        """The metrics of the step that has just been made. An evaluation is a line above the bar."""
        if "eval/reward" in metrics and not self._bar.disable:
            tqdm.write(f"step {metrics['step']}: {in_words(metrics, 'eval/')}", file=sys.stderr)
        self._bar.update()
        length = f"{metrics['completions/mean_length']:.1f}"
        self._bar.set_postfix({"reward": _number(metrics["reward"]), "length": length})
        if self._log is not None:
            self._log({name: value for name, value in metrics.items() if isinstance(value, int | float)})


def _tensorboard(stack: ExitStack, config: GRPOConfig, first_step: int) -> Callable[[dict], None]:
    try:
        module = importlib.import_module("torch.utils.tensorboard")
    except ImportError as error:
        said = "report_to is 'tensorboard', which is not installed: python -m pip install tensorboard"
        raise InputPackageError(said) from error
    # What a killed run showed of steps that are now made again is struck out.
    folder = str(Path(config.output_dir) / "tensorboard")
    writer = stack.enter_context(module.SummaryWriter(folder, purge_step=first_step + 1))

    def log(metrics: dict) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, metrics["step"])

    return log


def completion_records(step: int, rows: list[dict], experience: Experience, names: list[str]) -> list[dict]:
    """One record for each completion: step, prompt, completion, rewards by function, reward and advantage.

    A reward is None where it does not apply. Of advantages that are one a token, the record has the mean.
    """
    known = [[None if math.isnan(x) else x for x in row] for row in experience.rewards_per_func.tolist()]
    totals = [None if math.isnan(x) else x for x in experience.rewards.tolist()]
    rollout, advantages = experience.rollout, experience.advantages
    if advantages.ndim == 2:
        of_tokens = torch.where(experience.mask, advantages, 0).sum(-1)
        advantages = of_tokens / experience.mask.sum(-1).clamp(min=1)
    advantages = advantages.tolist()
    return [
        {
            "step": step,
            "prompt": rows[prompt]["prompt"],
            "completion": rollout.texts[row],
            "rewards": dict(zip(names, known[row], strict=True)),
            "reward": totals[row],
            "advantage": advantages[row],
        }
        for row, prompt in enumerate(rollout.prompt_of_row.tolist())
    ]


def best_and_worst(records: list[dict], count: int | None) -> str:
    """A table of so many records (None: all), half of them with the highest rewards and half with the lowest.

    What the policy wrote is quoted, so that no character of it moves the cursor or ends a line; characters that the
    terminal does not have are spelt out.
    """
    ranked = sorted((r for r in records if r["reward"] is not None), key=lambda r: -r["reward"])
    high, low = (len(ranked), 0) if count is None or count >= len(ranked) else ((count + 1) // 2, count // 2)
    which = "the best and the worst" if low else "the best"
    lines = [f"step {records[0]['step']}: {which} of {len(records)} completions"]
    several = list(records[0]["rewards"]) if len(records[0]["rewards"]) > 1 else []
    columns = ["reward", *several, "advantage"]
    lines.append("  ".join([*(f"{name:>8}" for name in columns), "prompt, completion"]))
    for record in ranked[:high] + ranked[len(ranked) - low :]:
        asked = record["prompt"] if isinstance(record["prompt"], str) else record["prompt"][-1:]
        prompt = quoted(prompt_text(asked), WIDTH // 3)
        said = f"{prompt} {quoted(record['completion'], WIDTH - len(prompt))}"
        values = [(record["rewards"] | record)[name] for name in columns]
        numbers = (f"{_number(value):>{max(8, len(name))}}" for name, value in zip(columns, values, strict=True))
        lines.append("  ".join([*numbers, said]))
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return "\n".join(lines).encode(encoding, "backslashreplace").decode(encoding)


def in_words(metrics: dict, of: str = "") -> str:
    """Such as "reward 0.875 (accuracy_reward 0.88, brief 0.12)"; `of` "eval/" those of held-out problems."""
    means = {found[1]: metrics[name] for name in metrics if (found := re.fullmatch(f"{of}rewards/(.*)/mean", name))}
    parts = ", ".join(f"{name} {_number(value)}" for name, value in means.items())
    said = f"{'held-out ' * bool(of)}reward {_number(metrics[f'{of}reward'])} ({parts})"
    accuracy = metrics.get(f"{of}accuracy")
    return said if accuracy is None else f"{said}, accuracy {_number(accuracy)}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def quoted(text: str, width: int) -> str:
    said = repr(text)
    return said if len(said) <= width else f"{said[: width - 4]}...{said[-1]}"
