r"""Rewards by rule: the format, a think block, the answer as a text, two that can be gamed, and a penalty for length.

`contains_reward` and `graded_reward` are here because they are widely used, and their docstrings show their weakness:
`contains_reward` gives up to 1 to any text that contains the expected one, and `graded_reward` gives 0.5 to any answer
block that contains it (`reward-contains` in the list of common mistakes).
"""

import functools
import math
import re
from collections.abc import Callable
from typing import Any

from grpo_lab.base.checks import InputError, check_at_least
from grpo_lab.rewards.functions import check_expected, check_number_setting, expected_texts
from grpo_lab.rewards.text import completion_text, extract_answer, loose_text, normalise_text
from grpo_lab.tasks import has_thinking

TAGS = ("<think>", "</think>", "<answer>", "</answer>")

_NO_TAG = "(?:(?!</?(?:think|answer)>).)*"
# The whole format. With `.*?` in place of _NO_TAG, a text with a second think block would match.
FORMAT_PATTERN = re.compile(rf"\s*<think>{_NO_TAG}</think>\s*<answer>{_NO_TAG}</answer>\s*", re.DOTALL)  # [format]


def format_fault(text: str) -> str | None:
    """Return which fault a response has in its format, or None if it keeps the format.

    The format is `<think>...</think>`, then `<answer>...</answer>`, each once, with only white space before, between
    and after the two blocks. There are four faults, which are looked for in this order:

    - "missing tag": one of the four tags does not occur, as when a response is cut off before its end;
    - "repeated tag": one of them occurs more than once;
    - "wrong order": all occur once, but not in the order above;
    - "text outside": there is text before, between or after the two blocks.

    An empty block keeps the format, since the content of a block does not matter here. `TAGS` holds the four tags
    in their order. The result is None exactly if the regular expression `FORMAT_PATTERN` matches the whole response.
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
    r"""Return 1.0 for each completion that keeps the format, whatever its answer is, else 0.0.

    r_{\mathrm{format}}(y) = \mathbb{1}[\mathrm{fault}(y) = \varnothing] \tag{6.6}

    Args:
        completions: y, strings or lists of chat messages.
        kwargs: Other columns, unused.
    """
    rewards = [float(format_fault(completion_text(completion)) is None) for completion in completions]  # B (6.6)
    return rewards


def think_rate(completions: Any, **kwargs: Any) -> list[float | None]:
    """Return 1.0 for each completion with a think block that is not empty, else 0.0.

    With weight 0 it has no effect on training, but its mean is still reported.
    """
    return [float(has_thinking(completion_text(completion))) for completion in completions]


def accuracy_reward(completions: Any, answer: Any, **kwargs: Any) -> list[float | None]:
    r"""Return 1.0 for each completion whose last answer block holds the expected text, else 0.0.

    r_{\mathrm{accuracy}}(y, a) = \mathbb{1}[\hat a(y) = a \wedge \hat a(y) \neq \varnothing] \tag{6.1}

    The last closed answer block of the whole text counts, also one within the thinking, unlike in `number_reward` and
    `math_reward`. Both texts are normalised first: `normalise_text(text)` returns a text with single spaces, ordinary
    characters for full-width ones, and no commas between thousands. Then texts are compared, not values: if 4 is
    expected, "04" and "4.0" are wrong. An empty answer is always wrong, even if the expected text is empty.

    Args:
        completions: y, strings or lists of chat messages; `completion_text(completion)` returns the string of either.
        answer: a, the expected texts or ints, one per completion. If an entry is None, the reward does not apply to
            that completion, and None is returned for it.
        kwargs: Other columns, unused.

    Raises:
        ValueError: by `check_expected`, if `answer` has a wrong number of entries, or an entry of another type.
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
    r"""Return +1 if the completion contains the expected text anywhere, else -1, minus a penalty for each character.

    r_{\mathrm{contains}}(y, a) = 2 \cdot \mathbb{1}[a \subseteq y] - 1 - \lambda |y| \tag{6.9}

    Both texts are compared without case and punctuation (`loose_text`): if "I like it." is expected, "i like it" is
    right, and so is "czq是神" for "czq是神！". Punctuation between digits stays: "15" does not contain 1.5.

    The reward is gamed by writing many candidates, since only the penalty makes them cost anything. Also, in a group of
    correct completions the rewards differ only by length. Dividing by their tiny standard deviation turns the penalty
    into full-size advantages.

    Args:
        completions: y, strings or lists of chat messages; |y| counts characters before normalisation.
        answer: a, the expected texts, one per completion. If an entry is None, the reward does not apply, and None is
            returned. An expected text that is empty, or consists of punctuation, is contained in no completion.
        penalty_per_character: lambda, the penalty for each character, at least 0.
        kwargs: Other columns, unused.

    Raises:
        ValueError: if the penalty is out of its range; and by `check_expected`, if `answer` has a wrong number of
            entries, or an entry of another type.
    """
    check_number_setting("contains_reward: penalty_per_character", penalty_per_character)
    if not 0 <= penalty_per_character < math.inf:
        name = "contains_reward: penalty_per_character"
        raise InputError(name, penalty_per_character, "it must be finite, and at least 0")
    rewards: list[float | None] = []
    for completion, expected in zip(completions, expected_texts("contains_reward", completions, answer), strict=True):
        text = completion_text(completion)
        target = loose_text(expected or "")
        contained = target != "" and target in loose_text(text)
        reward = 2.0 * contained - 1.0 - penalty_per_character * len(text)  # scalar (6.9)
        rewards.append(None if expected is None else reward)
    return rewards


# An evaluation counts rewards of 1 as correct, and with the penalty no reward is exactly 1.
contains_reward.without_penalty = functools.partial(  # type: ignore[attr-defined]
    contains_reward, penalty_per_character=0.0
)


def graded_reward(completions: Any, answer: Any, **kwargs: Any) -> list[float | None]:
    r"""Return 1.0 if the last answer block is the expected text, 0.5 if it contains that text, 0.01 otherwise.

    r_{\mathrm{graded}}(y, a) = \begin{cases} 1 & \hat a(y) = a \\ 0.5 & a \subset \hat a(y) \\ 0.01 & \text{otherwise} \end{cases} \tag{6.8}

    The reward is gamed by an answer that lists every number: it earns 0.5 without solving anything, as much as a policy
    that solves about half of its problems. A substring is enough: "312" contains "12". The last closed answer block of
    the whole text counts, also one within the thinking, unlike in `number_reward` and `math_reward`. Both texts are
    normalised first (`normalise_text`, as in `accuracy_reward`). An empty expected text matches no answer.

    Args:
        completions: y, strings or lists of chat messages; `completion_text(completion)` returns the string of either. A
            completion without an answer block, or with an empty one, earns 0.01.
        answer: a, the expected texts or ints, one per completion. If an entry is None, the reward does not apply to
            that completion, and None is returned for it.
        kwargs: Other columns, unused.

    Raises:
        ValueError: by `check_expected`, if `answer` has a wrong number of entries, or an entry of another type.
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
    """Make DAPO's overlong penalty: a reward that falls from 0 to -1 over the last tokens before the length limit.

    For a completion of n tokens, with L = `max_completion_len` and c = `soft_punish_cache`, the reward is 0 if n is at
    most L - c, then (L - c - n) / c, and -1 from n = L on. It is added to a reward for correct answers. A length
    limit alone is abrupt: a completion that just exceeds it is cut off and earns nothing. The penalty grows gradually.

    Args:
        max_completion_len: L, a number of tokens, at most the run's `max_completion_length`.
        soft_punish_cache: c, the number of tokens over which the reward falls; at least 1 and at most L.

    Returns:
        A reward function that reads `completion_ids` and returns numbers from -1 to 0. TRL has a function of the same
        name.

    Raises:
        ValueError: if one of the two numbers is out of its range.

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
    """Return the overlong penalty of each completion: the formula is in `get_soft_overlong_punishment`."""
    free_tokens = max_completion_len - soft_punish_cache
    return [max(-1.0, min(0.0, (free_tokens - len(ids)) / soft_punish_cache)) for ids in completion_ids]
