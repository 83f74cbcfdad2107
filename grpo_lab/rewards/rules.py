r"""Rewards by rule: the format, the answer as a text, and two graded rewards that can be gamed.

Two of them are here because they are widely used, with their weakness on view: `contains_reward` gives 1 to any text
that holds the expected one, and `graded_reward` gives 0.5 to it (`reward-contains` in the list of mistakes in
circulation).
"""

import functools
import math
import re
from collections.abc import Callable
from typing import Any

from grpo_lab.base.checks import InputError, check_at_least
from grpo_lab.rewards.text import (
    check_expected,
    check_setting,
    completion_text,
    expected_texts,
    extract_answer,
    loose_text,
    normalise_text,
)

TAGS = ("<think>", "</think>", "<answer>", "</answer>")

_NO_TAG = "(?:(?!</?(?:think|answer)>).)*"
# One pattern for the whole format. `.*?` in the place of _NO_TAG would let a second think block pass.
FORMAT_PATTERN = re.compile(rf"\s*<think>{_NO_TAG}</think>\s*<answer>{_NO_TAG}</answer>\s*", re.DOTALL)  # [format]


def format_fault(text: str) -> str | None:
    """Name the way in which a response breaks the format, or None if it keeps it.

    The format is `<think>...</think>`, then `<answer>...</answer>`, each once, with nothing but white space around
    them. It is broken in four ways, looked for in this order:

    - "missing tag": one of the four tags does not occur, as when a response is cut off before its end;
    - "repeated tag": one of them occurs more than once;
    - "wrong order": all occur once, but not in the order above;
    - "text outside": there is text before, between or after the two blocks.

    An empty block keeps the format: the format says nothing about what is inside. `TAGS` holds the four tags in their
    order. There is no fault if and only if the regular expression `FORMAT_PATTERN` matches the whole response.
    """
    counts = [text.count(tag) for tag in TAGS]
    if min(counts) == 0:
        return "missing tag"
    if max(counts) > 1:
        return "repeated tag"
    positions = [text.index(tag) for tag in TAGS]
    if positions != sorted(positions):
        return "wrong order"
    return None if FORMAT_PATTERN.fullmatch(text) else "text outside"


def format_reward(completions: Any, **kwargs: Any) -> list[float]:
    r"""1.0 for a completion that keeps the format, whatever it says, else 0.0.

    r_{\mathrm{format}}(y) = \mathbb{1}[\mathrm{fault}(y) = \varnothing] \tag{6.6}

    completions: y, strings or lists of chat messages.
    """
    rewards = [float(format_fault(completion_text(completion)) is None) for completion in completions]  # B (6.6)
    return rewards


def accuracy_reward(completions: Any, answer: Any, **kwargs: Any) -> list[float | None]:
    r"""1.0 if the last answer block holds the expected text, else 0.0. The think block is not looked at.

    r_{\mathrm{accuracy}}(y, a) = \mathbb{1}[\hat a(y) = a \wedge \hat a(y) \neq \varnothing] \tag{6.1}

    Both sides are normalised first: `normalise_text(text)` returns a text with single spaces, ordinary characters for
    full-width ones, and no commas between thousands. Then texts are compared, not values: "04" and "4.0" are wrong
    where 4 is expected. An empty answer is never right, not even where the empty text is expected.

    Args:
        completions: y, strings or lists of chat messages; `completion_text(completion)` returns the string of either.
        answer: a, the expected texts or ints, one per completion. Where it is None the reward does not apply, and None
            is returned.
        kwargs: other columns, unused.

    Raises:
        ValueError: by `check_expected`, if `answer` has not one entry for each completion.
    """
    check_expected("accuracy_reward", completions, answer)
    rewards: list[float | None] = []
    for completion, expected in zip(completions, answer, strict=True):
        extracted = normalise_text(extract_answer(completion_text(completion)) or "")
        reward = float(extracted != "" and extracted == normalise_text(str(expected)))  # scalar (6.1)
        rewards.append(None if expected is None else reward)
    return rewards


def contains_reward(
    completions: Any, answer: Any, penalty_per_character: float = 0.002, **kwargs: Any
) -> list[float | None]:
    r"""+1 if the completion contains the expected text anywhere, else -1, minus a small penalty for each character.

    r_{\mathrm{contains}}(y, a) = 2 \cdot \mathbb{1}[a \subseteq y] - 1 - \lambda |y| \tag{6.9}

    Case, and the marks that part sentences, count on neither side: "i like it" is right for "I like it.", and "czq是神"
    for "czq是神！" (`loose_text`). A mark between digits stays, so 1.5 is not in "15".

    It is gamed by writing many candidates: the penalty is all that speaks against it. And in a group where all are
    right, only the lengths differ; dividing by their tiny standard deviation turns the penalty into full-size
    advantages.

    Args:
        completions: y, strings or lists of chat messages; |y| counts characters before normalisation.
        answer: a, the expected texts, one per completion; None where the reward does not apply. A text that is empty or
            marks alone is in nothing.
        penalty_per_character: lambda, at least 0.
    """
    check_setting("contains_reward: penalty_per_character", penalty_per_character)
    if not 0 <= penalty_per_character < math.inf:
        allowed = "it must be finite, and at least 0"
        raise InputError("contains_reward: penalty_per_character", penalty_per_character, allowed)
    rewards: list[float | None] = []
    for completion, expected in zip(completions, expected_texts("contains_reward", completions, answer), strict=True):
        text = completion_text(completion)
        target = loose_text(expected or "")
        contained = target != "" and target in loose_text(text)
        reward = 2.0 * contained - 1.0 - penalty_per_character * len(text)  # scalar (6.9)
        rewards.append(None if expected is None else reward)
    return rewards


# With the penalty, no reward is ever 1.
contains_reward.without_penalty = functools.partial(  # type: ignore[attr-defined]
    contains_reward, penalty_per_character=0.0
)


def graded_reward(completions: Any, answer: Any, **kwargs: Any) -> list[float | None]:
    r"""1.0 if the last answer block is the expected text, 0.5 if it contains it, 0.01 otherwise.

    r_{\mathrm{graded}}(y, a) = \begin{cases} 1 & \hat a(y) = a \\ 0.5 & a \subset \hat a(y) \\ 0.01 & \text{otherwise} \end{cases} \tag{6.8}

    It is gamed by an answer that lists every number: half marks without solving anything, and a policy that is right
    less than half of the time earns more this way. A substring is enough, "12" in "312" too. Both sides are normalised
    first (`normalise_text`, as in `accuracy_reward`); an empty expected text is equal to nothing and in nothing.

    Args:
        completions: y, strings or lists of chat messages; `completion_text(completion)` returns the string of either.
            Without an answer block, or with an empty one, 0.01.
        answer: a, the expected texts or ints, one per completion. Where it is None the reward does not apply, and None
            is returned.
        kwargs: other columns, unused.

    Raises:
        ValueError: by `check_expected`, if `answer` has not one entry for each completion.
    """  # noqa: E501
    check_expected("graded_reward", completions, answer)
    rewards: list[float | None] = []
    for completion, expected in zip(completions, answer, strict=True):
        extracted = normalise_text(extract_answer(completion_text(completion)) or "")
        target = normalise_text(str(expected))
        exact, contained = target != "" and extracted == target, target != "" and target in extracted
        reward = 1.0 if exact else 0.5 if contained else 0.01  # scalar (6.8)
        rewards.append(None if expected is None else reward)
    return rewards


def get_soft_overlong_punishment(max_completion_len: int, soft_punish_cache: int) -> Callable[..., list[float]]:
    """A reward that subtracts more and more from the last tokens before the length limit: DAPO's overlong penalty.

    For a completion of n tokens, with L = `max_completion_len` and c = `soft_punish_cache`, it is 0 up to L - c, then
    (L - c - n) / c, and -1 from L on. It belongs beside a reward for what is right, and softens the step that a limit
    is: a long answer that was cut off earns nothing, however near to the end it was.

    Args:
        max_completion_len: L, at most the run's `max_completion_length`.
        soft_punish_cache: c, at least 1 and at most L.

    Returns:
        A reward function that reads `completion_ids`, between -1 and 0 each. TRL has one of the same name.

    Raises:
        ValueError: for sizes out of their ranges.

    Source: Yu et al. (2025), "DAPO", equation 13.
    """
    check_at_least("soft_punish_cache", soft_punish_cache, 1)
    check_at_least("max_completion_len", max_completion_len, soft_punish_cache)
    return functools.partial(
        soft_overlong_punishment_reward, max_completion_len=max_completion_len, soft_punish_cache=soft_punish_cache
    )


def soft_overlong_punishment_reward(
    completion_ids: list[list[int]], *, max_completion_len: int, soft_punish_cache: int, **kwargs: Any
) -> list[float]:
    """The reward that `get_soft_overlong_punishment` returns, with its two sizes."""
    free = max_completion_len - soft_punish_cache
    return [max(-1.0, min(0.0, (free - len(ids)) / soft_punish_cache)) for ids in completion_ids]
