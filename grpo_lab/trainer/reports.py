"""Reports of a run while it goes: a progress bar, curves on trackers, completions to read."""

import itertools
import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from tqdm import tqdm

from grpo_lab.config import GRPOConfig
from grpo_lab.rewards import prompt_text
from grpo_lab.rewards.logs import Columns
from grpo_lab.rollout import Rollout
from grpo_lab.trainer.experience import Experience
from grpo_lab.trainer.trackers import Trackers

WIDTH = 100  # characters of a prompt with its completion, in a line
FIRST_STEPS = 5  # after which a run without signal is reported


class Reports:
    """Reports of a run while it goes: a progress bar short enough for 80 columns, and trackers of its curves.

    A run in which no group has ever had different rewards is reported on stderr, early and at its end.
    history: the metrics of the steps before.
    """

    def __init__(self, config: GRPOConfig, history: list[dict], bar: tqdm, trackers: Trackers):
        self._config = config
        self._bar = bar
        self._trackers = trackers
        self._steps, self._has_signal = len(history), any(map(_has_signal, history))

    def show(self, metrics: dict) -> None:
        """Show the metrics of the step that has just been made. An evaluation is a line above the bar."""
        if "eval/reward" in metrics and not self._bar.disable:
            tqdm.write(f"step {metrics['step']}: {in_words(metrics, 'eval/')}", file=sys.stderr)
        self._bar.update()
        length, postfix = metrics.get("completions/mean_length"), {}
        if "reward" in metrics:
            postfix["reward"] = _number(metrics["reward"])
        if length is not None:
            postfix["length"] = f"{length:.1f}"
        self._bar.set_postfix(postfix)
        self._trackers.log(metrics)
        self._steps += 1
        self._has_signal = self._has_signal or _has_signal(metrics)
        if self._steps == FIRST_STEPS:
            self._warn_without_signal()

    def finish(self) -> None:
        """Report at the end of the run once more that it had no signal."""
        if self._steps > FIRST_STEPS:
            self._warn_without_signal()

    def _warn_without_signal(self) -> None:
        if self._has_signal or self._config.advantage == "none":  # there, equal rewards have a gradient, too
            return
        other_terms = " but that of the KL term or the entropy bonus" if self._config.needs_every_row else ""
        tqdm.write(
            f"all rewards of {self._steps} steps were equal within each group: no gradient{other_terms}; take problems "
            "with right and wrong completions, or more of each (num_generations); log_completions shows them",
            file=sys.stderr,
        )


@contextmanager
def open_reports(config: GRPOConfig, history: list[dict]) -> Iterator[Reports]:
    """The reports of a run that begins, or goes on after the steps of this history; closed at its end."""
    settings = {"total": config.max_steps, "initial": len(history), "disable": config.disable_tqdm}
    with Trackers(config, len(history)) as trackers, tqdm(desc="GRPO", unit="step", **settings) as bar:
        reports = Reports(config, history, bar, trackers)
        yield reports
        reports.finish()


def completion_records(
    step: int, rows: list[dict], experience: Experience, names: list[str], tokenizer=None
) -> list[dict]:
    """One record for each completion: a reward that does not apply is None, advantages of tokens are their mean.

    "extra" is what reward functions logged of it, if they did.
    tokenizer: of episodes, to write who wrote what; where only the policy writes, none is needed.
    """
    advantages = experience.advantages
    loss_mask = experience.loss_mask
    columns = experience.reward_columns or Columns({})
    if advantages.ndim == 2:
        advantages = torch.where(loss_mask, advantages, 0).sum(-1) / loss_mask.sum(-1).clamp(min=1)
    rollout = experience.rollout
    turns_by_row: list[dict] = [{}] * len(experience)
    if rollout.episodes is not None:
        turns_by_row = [{"turns": parts} for parts in turn_texts(rollout, tokenizer)]
    values = zip(
        rollout.group_of_row.tolist(),
        rollout.texts,
        experience.rewards_per_func.tolist(),
        experience.rewards.tolist(),
        advantages.tolist(),
        rollout.episode_per_row(),
        turns_by_row,
        strict=True,
    )
    return [
        {
            "step": step,
            "prompt": rows[group]["prompt"] if episode.prompt is None else episode.prompt,
            "completion": text,
            "rewards": {name: _none_if_nan(value) for name, value in zip(names, rewards_by_func, strict=True)},
            "reward": _none_if_nan(reward),
            "advantage": advantage,
            **({"extra": columns.row(row)} if columns.values else {}),
        }
        | turns
        for row, (group, text, rewards_by_func, reward, advantage, episode, turns) in enumerate(values)
    ]


def turn_texts(rollout: Rollout, tokenizer) -> list[list[dict[str, str]]]:
    """For each episode its parts in order, each under the name of who wrote it: "policy" or "environment"."""
    episodes = []
    for row, length in enumerate(rollout.mask.sum(-1).tolist()):
        is_policy, ids = rollout.policy_mask[row, :length].tolist(), rollout.completion_ids[row, :length].tolist()
        parts = itertools.groupby(
            zip(is_policy, rollout.turn_of_token[row, :length].tolist(), ids, strict=True), lambda t: t[:2]
        )
        episodes.append(
            [
                {"policy" if policy else "environment": tokenizer.decode([token for _, _, token in part])}
                for (policy, _), part in parts
            ]
        )
    return episodes


def best_and_worst(records: list[dict]) -> str:
    """The completions with the highest and the lowest reward, a line each.

    What the policy wrote is quoted, so that no character of it moves the cursor or ends a line; characters that the
    terminal does not have are spelt out.
    """
    ranked = sorted((r for r in records if r["reward"] is not None), key=lambda r: -r["reward"])
    lines = [f"step {records[0]['step']}: the best and the worst of {len(records)} completions"]
    for record in ranked[:1] + ranked[1:][-1:]:
        last_messages = record["prompt"] if isinstance(record["prompt"], str) else record["prompt"][-1:]
        prompt = quoted(prompt_text(last_messages), WIDTH // 3)
        completion = record["completion"] if "turns" not in record else in_turns(record["turns"])
        lines.append(f"{record['reward']:8.3f}  {prompt} {quoted(completion, WIDTH - len(prompt))}")
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return "\n".join(lines).encode(encoding, "backslashreplace").decode(encoding)


def in_turns(turns: list[dict[str, str]]) -> str:
    """An episode as one text, in which what the environment wrote stands between angle quotation marks."""
    return "".join(part["policy"] if "policy" in part else f"\u00ab{part['environment']}\u00bb" for part in turns)


def in_words(metrics: dict, prefix: str = "") -> str:
    """The rewards in words, such as "reward 0.875 (accuracy_reward 0.88, brief 0.12)".

    prefix: "eval/" for those of held-out problems.
    """
    means = {match[1]: metrics[name] for name in metrics if (match := re.fullmatch(f"{prefix}rewards/(.*)/mean", name))}
    parts = ", ".join(f"{name} {_number(value)}" for name, value in means.items())
    text = f"{'held-out ' if prefix else ''}reward {_number(metrics[f'{prefix}reward'])} ({parts})"
    accuracy = metrics.get(f"{prefix}accuracy")
    return text if accuracy is None else f"{text}, accuracy {_number(accuracy)}"


def quoted(text: str, width: int) -> str:
    literal = repr(text)
    return literal if len(literal) <= width else f"{literal[: width - 4]}...{literal[-1]}"


def _has_signal(metrics: dict) -> bool:
    """False if the rewards of every group were equal in this step; True, too, where the metrics don't say."""
    return metrics.get("frac_reward_zero_std") != 1


def _none_if_nan(reward: float) -> float | None:
    return None if math.isnan(reward) else reward


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
