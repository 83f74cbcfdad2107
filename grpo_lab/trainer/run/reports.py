"""Reports of a run while it trains: progress bar, trackers, and printed or recorded completions."""

import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tqdm import tqdm

from grpo_lab.advantages import ADVANTAGES
from grpo_lab.config import GRPOConfig
from grpo_lab.rewards import prompt_text
from grpo_lab.rewards.scoring import LoggedColumns
from grpo_lab.rollout.rollout import turns_as_text
from grpo_lab.trainer.experience import Experience
from grpo_lab.trainer.rewarding import episode_prompt
from grpo_lab.trainer.run.trackers import Trackers

LINE_WIDTH = 100  # largest number of characters of a printed prompt and its completion
STEPS_BEFORE_WARNING = 5  # number of steps after which a run without a gradient signal is reported


class Reports:
    """The progress bar of a run, at most 80 columns wide, and the trackers of its metrics.

    If the rewards of every group have been equal so far, and no row has had a gradient, the run has no signal. It is
    reported on stderr after `STEPS_BEFORE_WARNING` steps, and again at its end.

    Args:
        config: The settings of the run.
        history: Metrics of the steps that a resumed run has completed already.
        bar: The open progress bar.
        trackers: The open trackers.
    """

    def __init__(self, config: GRPOConfig, history: list[dict], bar: tqdm, trackers: Trackers):
        self._config = config
        self._bar = bar
        self._trackers = trackers
        self._completed_steps = len(history)
        self._has_signal = any(_step_has_signal(metrics, config) for metrics in history)

    def show(self, metrics: dict) -> None:
        """Show the metrics of a completed step; an evaluation is printed as a line above the bar."""
        if "eval/reward" in metrics and not self._bar.disable:
            tqdm.write(f"step {metrics['step']}: {rewards_in_words(metrics, 'eval/')}", file=sys.stderr)
        self._bar.update()
        postfix = {}
        if "reward" in metrics:
            postfix["reward"] = _three_decimals(metrics["reward"])
        length = metrics.get("completions/mean_length")
        if length is not None:
            postfix["length"] = f"{length:.1f}"
        self._bar.set_postfix(postfix)
        self._trackers.log(metrics)
        self._completed_steps += 1
        self._has_signal = self._has_signal or _step_has_signal(metrics, self._config)
        if self._completed_steps == STEPS_BEFORE_WARNING:
            self._warn_without_signal()

    def finish(self) -> None:
        """If the run had no signal, report this once more at its end."""
        if self._completed_steps > STEPS_BEFORE_WARNING:
            self._warn_without_signal()

    def _warn_without_signal(self) -> None:
        if self._has_signal:
            return
        other_terms = " but that of the KL term or the entropy bonus" if self._config.needs_every_row else ""
        tqdm.write(
            f"all rewards of {self._completed_steps} steps were equal within each group: no gradient{other_terms}; "
            "take problems with right and wrong completions, or more of each (num_generations); log_completions shows "
            "them",
            file=sys.stderr,
        )


@contextmanager
def open_reports(config: GRPOConfig, history: list[dict], saved_options: dict) -> Iterator[Reports]:
    """Open the progress bar and the trackers of a run, and close them at its end.

    Args:
        config: The settings of the run.
        history: The metrics of the steps that a resumed run has completed already; empty for a new run.
        saved_options: The options of the command that are saved with the settings.
    """
    bar_settings = {"total": config.max_steps, "initial": len(history), "disable": config.disable_tqdm}
    with (
        Trackers(config, len(history), saved_options) as trackers,
        tqdm(desc="GRPO", unit="step", **bar_settings) as bar,
    ):
        reports = Reports(config, history, bar, trackers)
        yield reports
        reports.finish()


def completion_records(
    completed_steps: int, data_rows: list[dict], experience: Experience, reward_names: list[str], tokenizer=None
) -> list[dict]:
    """Return one record, ready for JSON, for each completion.

    The reward is None if no reward function applies. The advantage is the mean over the tokens if each token has its
    own. "extra" holds the values that reward functions logged, if any.

    Args:
        completed_steps: Number of completed steps, that of the completions included: the "step" of the records.
        data_rows: The P rows of the data set from which the completions were sampled.
        experience: The B completions with their rewards and advantages.
        reward_names: Names of the F reward functions. If they are empty, or the experience has no `rewards_per_func`,
            the "rewards" of a record are empty.
        tokenizer: The tokenizer that decodes the turns of episodes. None if there is no environment.
    """
    advantages = experience.advantages
    loss_mask = experience.loss_mask
    if advantages.ndim == 2:
        advantages = torch.where(loss_mask, advantages, 0).sum(-1) / loss_mask.sum(-1).clamp(min=1)
    logged_columns = experience.logged_columns or LoggedColumns({})
    rollout = experience.rollout
    rewards_by_func = [dict[str, float]()] * len(experience)
    if reward_names and experience.rewards_per_func is not None:
        rewards_by_func = [
            dict(zip(reward_names, values, strict=True)) for values in experience.rewards_per_func.tolist()
        ]
    turns_by_row = None if rollout.episodes is None else rollout.turn_texts(tokenizer)
    values = zip(
        rollout.group_of_row.tolist(),
        rollout.texts,
        rewards_by_func,
        experience.rewards.tolist(),
        advantages.tolist(),
        rollout.episode_per_row(),
        strict=True,
    )
    records = []
    for row, (group, text, rewards, reward, advantage, episode) in enumerate(values):
        record = completion_record(
            episode_prompt(data_rows[group], episode),
            text,
            rewards,
            reward,
            extra=logged_columns.row(row) if logged_columns.values else None,
            turns=None if turns_by_row is None else turns_by_row[row],
            advantage=advantage,
        )
        records.append({"step": completed_steps} | record)
    return records


def completion_record(
    prompt: str | list[dict],
    completion: str,
    rewards: dict[str, float | None],
    reward: float | None,
    *,
    extra: dict[str, Any] | None = None,
    turns: list[dict[str, str]] | None = None,
    **values: Any,
) -> dict[str, Any]:
    """Return the record of a completion, ready for JSON, as files of completions hold it.

    Args:
        prompt: The prompt, a string or a list of messages.
        completion: The text of the completion.
        rewards: The reward by the name of its function. A reward that does not apply is NaN or None, in the record
            None.
        reward: The total reward; NaN or None if no reward function applies.
        extra: Values that reward functions logged for this completion. None: the record has no "extra".
        turns: The texts of the episode, each with its author. None: the record has no "turns".
        values: Further entries of the record, which follow "reward".
    """
    record = {
        "prompt": prompt,
        "completion": completion,
        "rewards": {name: none_if_nan(value) for name, value in rewards.items()},
        "reward": none_if_nan(reward),
        **values,
    }
    if extra is not None:
        record["extra"] = extra
    if turns is not None:
        record["turns"] = turns
    return record


def none_if_nan(value: float | None) -> float | None:
    """Return the value, or None instead of NaN, which JSON does not have."""
    return None if value is None or math.isnan(value) else value


def best_and_worst(records: list[dict]) -> str:
    """Return a heading and two lines of text: the completions with the highest and the lowest reward.

    A completion without a reward is not shown. Texts are quoted and escaped, so that no character moves the cursor or
    ends a line. Characters that the terminal cannot print are escaped, too.
    """
    rewarded = [record for record in records if record["reward"] is not None]
    ranked = sorted(rewarded, key=lambda record: -record["reward"])
    shown = [ranked[0], ranked[-1]] if len(ranked) > 1 else ranked
    lines = [f"step {records[0]['step']}: the best and the worst of {len(records)} completions"]
    for record in shown:
        last_messages = record["prompt"] if isinstance(record["prompt"], str) else record["prompt"][-1:]
        prompt = quoted(prompt_text(last_messages), LINE_WIDTH // 3)
        completion = turns_as_text(record["turns"]) if "turns" in record else record["completion"]
        lines.append(f"{record['reward']:8.3f}  {prompt} {quoted(completion, LINE_WIDTH - len(prompt))}")
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return "\n".join(lines).encode(encoding, "backslashreplace").decode(encoding)


def rewards_in_words(metrics: dict, prefix: str = "") -> str:
    """Return the rewards as a text such as "reward 0.875 (accuracy_reward 0.880, brief 0.120)".

    prefix: "eval/" for the rewards of held-out problems, "" for the rewards of the training.
    """
    components = ", ".join(
        f"{match[1]} {_three_decimals(value)}"
        for name, value in metrics.items()
        if (match := re.fullmatch(f"{prefix}rewards/(.*)/mean", name))
    )
    text = f"{'held-out ' if prefix else ''}reward {_three_decimals(metrics[f'{prefix}reward'])} ({components})"
    accuracy = metrics.get(f"{prefix}accuracy")
    return text if accuracy is None else f"{text}, accuracy {_three_decimals(accuracy)}"


def quoted(text: str, width: int) -> str:
    """Return the text as a Python literal, cut to `width` characters; "..." stands for what is cut off."""
    literal = repr(text)
    return literal if len(literal) <= width else f"{literal[: width - 4]}...{literal[-1]}"


def _step_has_signal(metrics: dict, config: GRPOConfig) -> bool:
    """Return False if all groups of a step had equal rewards and so no gradient; True if the metrics do not record it.

    With the advantages of turns, for example, rows may have a gradient although the rewards of each group are equal.
    """
    if metrics.get("frac_reward_zero_std") != 1:
        return True
    if config.needs_every_row:  # then `rows_without_gradient` is 0 whatever the advantages are
        return not ADVANTAGES[config.advantage].zero_for_equal_rewards
    return metrics.get("rows_without_gradient") != 1


def _three_decimals(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
