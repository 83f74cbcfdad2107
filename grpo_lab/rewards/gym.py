"""The reward of the tasks "gym:...": the score that reasoning-gym's verifier gives an answer."""

import re
import warnings
from typing import Any

from grpo_lab.rewards.argument_checks import check_number_setting
from grpo_lab.rewards.text import after_thinking, completion_text, extract_answer
from grpo_lab.rewards.verifier_process import VERIFIER_PROCESS

_STATED_ANSWER = re.compile(r"\banswer\b[*_]*(?:\s+is\b|\s*[:=])[\s:*_$]*([^\n]+)", re.IGNORECASE)


def gym_reward(
    completions: Any, gym: Any, time_limit: float = 3.0, batch_time_limit: float = 30.0, **kwargs: Any
) -> list[float]:
    """Return the score that the verifier of reasoning-gym gives each answer, from 0 to 1.

    Some verifiers give partial credit to an answer that is nearly right or well-formed. The answer is the text of the
    last answer block. Without a block, it is the rest of the line after the last "answer is" or "answer:", or else the
    whole text after the thinking. So a model that was never trained on answer tags can earn rewards from the start.

    Args:
        completions: Strings or lists of chat messages.
        gym: The problem of each completion: a dict with "generator", "options" and "index", as in the rows of
            `grpo_lab.tasks.gym.gym_problems`.
        time_limit: The seconds that a verifier may take for one answer, since some verifiers evaluate the answer as
            Python. An answer that takes longer earns 0, and a warning counts it.
        batch_time_limit: The seconds for all answers together. Answers that are left then also earn 0.
        kwargs: Other columns, unused.
    """
    check_number_setting("gym_reward: time_limit", time_limit)
    check_number_setting("gym_reward: batch_time_limit", batch_time_limit)
    calls = [
        (entry["generator"], entry["options"], entry["index"], _read_answer(completion_text(y)))
        for y, entry in zip(completions, gym, strict=True)
    ]
    scores = VERIFIER_PROCESS.run_batch("score", list(dict.fromkeys(calls)), time_limit, batch_time_limit)
    if late_answers := [call[-1] for call in calls if scores[call] is None]:
        summary = f"gym_reward: {len(late_answers)} of {len(calls)} answers were not scored"
        limits = f"{time_limit:g} s each and {batch_time_limit:g} s together"
        message = f"{summary} within {limits}, and earn 0; first: {late_answers[0][:80]!r}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    return [scores[call] or 0.0 for call in calls]


def _read_answer(text: str) -> str:
    """Return the answer in a completion, as the docstring of `gym_reward` describes."""
    reply = after_thinking(text).strip()
    if "</answer>" in reply:
        return extract_answer(reply) or ""
    stated_answers = _STATED_ANSWER.findall(reply)
    last_stated = stated_answers[-1].rstrip(" .*_$") if stated_answers else ""
    return last_stated or reply
