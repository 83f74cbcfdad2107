"""The reward of the tasks "gym:...": what reasoning-gym's own verifier of a problem gives for an answer."""

import re
import warnings
from typing import Any

from grpo_lab.rewards.mathematics.worker import WORKER
from grpo_lab.rewards.text import after_thinking, check_setting, completion_text, extract_answer

_CLAIMED = re.compile(r"\banswer\b[*_]*(?:\s+is\b|\s*[:=])[\s:*_$]*([^\n]+)", re.IGNORECASE)


def gym_reward(
    completions: Any, gym: Any, time_limit: float = 3.0, batch_time_limit: float = 30.0, **kwargs: Any
) -> list[float]:
    """The verifier's score, from 0 to 1; some generators give parts of it to what is nearly right or well-formed.

    The answer is what the last answer block holds. Where there is no block, it is what follows the last "answer is" or
    "answer:" on its line, else all that stands after the thinking: a model that never saw a tag can begin. Some
    verifiers evaluate it as Python: what takes longer than a time limit, in seconds, earns 0, with a warning.

    gym: which problem each completion answers, as in the rows of `grpo_lab.tasks.gym.gym_problems`.
    """
    check_setting("gym_reward: time_limit", time_limit)
    check_setting("gym_reward: batch_time_limit", batch_time_limit)
    questions = [
        (entry["generator"], entry["options"], entry["index"], _answer(completion_text(y)))
        for y, entry in zip(completions, gym, strict=True)
    ]
    scores = WORKER.ask("score", list(dict.fromkeys(questions)), time_limit, batch_time_limit)
    if late := [question[-1] for question in questions if scores[question] is None]:
        count = f"gym_reward: {len(late)} of {len(questions)} answers were not scored within {time_limit:g} s each"
        message = f"{count} and {batch_time_limit:g} s together, and earn 0; first: {late[0][:80]!r}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    return [scores[question] or 0.0 for question in questions]


def _answer(text: str) -> str:
    reply = after_thinking(text).strip()
    if "</answer>" in reply:
        return extract_answer(reply) or ""
    *_, claimed = ["", *_CLAIMED.findall(reply)]
    return claimed.rstrip(" .*_$") or reply
