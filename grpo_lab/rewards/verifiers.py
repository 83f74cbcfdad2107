r"""Rewards by the verifiers of two libraries: Math-Verify for mathematical equality, and those of reasoning-gym.

`math_reward` decides 0.5 = 1/2 = \frac{1}{2} as a teacher would. Numbers are compared here, exactly; expressions, sets
and inequalities by Math-Verify. Both libraries run in a process of their own, within a time limit.
"""

import re
import warnings
from typing import Any, Literal, NamedTuple

from grpo_lab.rewards.functions import check_number_setting, expected_texts
from grpo_lab.rewards.quantities import normalise_notation, parse_quantity
from grpo_lab.rewards.text import (
    MAX_ANSWER_LENGTH,
    after_thinking,
    completion_text,
    extract_answer,
    extract_boxed,
    extract_final_answer,
    loose_text,
)
from grpo_lab.rewards.verifier_process import VERIFIER_PROCESS

# The name on the left of an equation: x, x_1, AB, S_{ABC}, P(A), 总价, or nothing.
_NAME = re.compile(r"(?:\\?[A-Za-z]+(?:_\w|_\{[\w\\ ]+\})?(?:\([A-Za-z]\))?|[\u4e00-\u9fff]{1,8})?")
# An ellipsis at the end: "3.14..." is not 3.14, and "1, 2, ..." is not {1, 2}.
_ELLIPSIS = re.compile(r"(?:\.{3}|…|\\[lc]?dots(?![a-z]))[\s$)}\\]*$")
# A letter right after a number, as in 3t, may be a unit or a variable.
_NUMBER_WITH_LETTER = re.compile(r".*[0-9)}][a-zA-Z]")
# Compared with another text of this form it is a time of the day, else it may be a ratio.
_TIME = re.compile(r"[0-9]{1,2}:[0-9]{2}")
# Words and times. Math-Verify would read a word as a product of letters ("lube" = "blue") and 8:00 as 8 / 00.
_WORDS = re.compile(r"[A-Za-z]{4,}(?: [A-Za-z]+)*|[\u4e00-\u9fff]+|[0-9]{1,2}(?::[0-9]{2}){1,2}")

# "unreadable" if the expected text is no mathematics.
ComparisonResult = Literal["equal", "different", "unreadable", "timeout"]
_STATED_ANSWER = re.compile(r"[^\n]*\banswer\b[*_]*(?:\s+is\b|\s*[:=])[\s:*_$]*([^\n]+)", re.IGNORECASE)


class ExpressionPair(NamedTuple):
    """Two expressions, in one notation, that Math-Verify has to compare."""

    expected: str
    submitted: str


def math_reward(
    completions: Any, answer: Any, time_limit: float = 3.0, batch_time_limit: float = 30.0, **kwargs: Any
) -> list[float | None]:
    r"""Return 1.0 for each completion whose answer equals the expected one as mathematics, else 0.0.

    r_{\mathrm{math}}(y, a) = \mathbb{1}[\hat a(y) \equiv a] \tag{6.3}

    The answer is the whole content of the last answer block, or without a block, of the last `\boxed{}` after the
    thinking. A completion that was cut off in its thinking, or in a later block or box, has no answer and earns 0.0.

    Accepted notations and forms:

    - Numbers are compared exactly: 0.333333 and 0.333... are not 1/3, and e^{-50} is not e^{-60}. A number may be
      whole, a decimal, a decimal with repeating digits (0.1(6)), a fraction (reduced or not), or a mixed number
      (3 1/2). It may have a power of ten (1.5e3, 10^6) and separated thousands (1,234; 1'234; 1.234,50), or be in
      Chinese words (三十, 三分之一).
    - A per cent sign divides by 100: 25% is 1/4 and not 25.
    - A unit, or a base, may be missing or added. It must not contradict the expected one, and is not converted: 5 cm
      is 5, but not 5 m; 12_5 is not 12_6. A single letter right after a number may be a variable: 3t is not 3, and 3 is
      not 3t.
    - An equation with a name on one side gives a value: x = 4 is 4.
    - If an expression is expected, an equal one is accepted: 1+x for x+1, and 1024 for 2^{10}.
    - Order counts in tuples, but not in sets and bare lists. A set is not a tuple. x > 3 is (3, \infty).
    - Words are compared as texts, without regard to case.

    Not accepted are a calculation if a number is expected (17+58 for 75, 2+2 = 4), another equation (2x = 8 for 4), a
    second answer ("4 or 5"), a doubt ("about 5"), a sentence ("the answer is 4"), and a number in English words.

    Args:
        completions: y, strings or lists of chat messages.
        answer: a, the expected expressions, plain ("1/2") or LaTeX ("\frac{1}{2}"), one per completion. The reward does
            not apply, and None is returned, if an entry is None, or if Math-Verify cannot read it. The latter gives a
            warning.
        time_limit: The seconds that one comparison may take. A completion that needs longer earns 0.0, as a wrong one
            does, and a warning counts it. With None instead, a policy could avoid the reward by slow expressions.
        batch_time_limit: The seconds that all comparisons may take together. Completions that are left then also earn
            0.0, and the warning counts them. Expressions that look slow come last, so only their rewards depend on how
            busy the machine is.
        kwargs: Other columns, unused.

    Raises:
        ImportError: if Math-Verify is needed and not installed; plain numbers and words do not need it.
    """
    check_number_setting("math_reward: time_limit", time_limit)
    check_number_setting("math_reward: batch_time_limit", batch_time_limit)
    expected = expected_texts("math_reward", completions, answer)
    expected = [extract_boxed(a) if a and r"\boxed" in a else a for a in expected]
    pairs = [(a, extract_final_answer(completion_text(y))) for a, y in zip(expected, completions, strict=True)]
    verdicts = _compare_pairs(pairs, time_limit, batch_time_limit)
    rewards: list[float | None] = []
    for pair, verdict in zip(pairs, verdicts, strict=True):
        reward = float(verdict == "equal")  # scalar (6.3)
        rewards.append(None if pair[0] is None or verdict == "unreadable" else reward)
    limits = f"{time_limit:g} s each and {batch_time_limit:g} s together"
    late_rows = [row for row, verdict in enumerate(verdicts) if verdict == "timeout"]
    _warn_of_rows(late_rows, f"completions were not evaluated within {limits}, and scored 0.0", [y for _, y in pairs])
    unreadable_rows = [row for row, verdict in enumerate(verdicts) if verdict == "unreadable"]
    _warn_of_rows(unreadable_rows, "expected answers cannot be read as mathematics, so no reward applies", expected)
    return rewards


def _warn_of_rows(rows: list[int], problem: str, texts: list) -> None:
    """Warn how many rows have the problem, with the text of the first of them; do nothing if there are none."""
    if rows:
        summary = f"math_reward: {len(rows)} of {len(texts)} {problem}"
        first = f"first: row {rows[0]}, {str(texts[rows[0]])[:80]!r}"
        warnings.warn(f"{summary}; {first}", RuntimeWarning, stacklevel=3)


def _compare_pairs(
    pairs: list[tuple[str | None, str]], time_limit: float, batch_time_limit: float
) -> list[ComparisonResult | None]:
    """Compare each pair of expected and submitted text; the result is None if the expected text is None.

    A group of completions often repeats an answer; each distinct comparison is made once.
    """
    decisions = {
        (expected, submitted): decide_without_library(expected, submitted)
        for expected, submitted in dict.fromkeys(pairs)
        if expected is not None
    }
    undecided = dict.fromkeys(decision for decision in decisions.values() if isinstance(decision, ExpressionPair))
    # Comparisons that look slow come last, so that they cannot use up the time of the others.
    in_order = sorted(undecided, key=lambda pair: (_count_slow_operations(pair.submitted), len(pair.submitted)))
    library_results = VERIFIER_PROCESS.run_batch("compare", in_order, time_limit, batch_time_limit)
    results: dict[tuple, ComparisonResult] = {
        pair: (library_results[decision] or "timeout") if isinstance(decision, ExpressionPair) else decision
        for pair, decision in decisions.items()
    }
    return [results.get(pair) for pair in pairs]


def _count_slow_operations(expression: str) -> int:
    """Return the number of powers and factorials in an expression."""
    return expression.count("^") + expression.count("!")


def decide_without_library(expected: str, submitted: str) -> ComparisonResult | ExpressionPair:
    """Compare two texts without Math-Verify if possible.

    Returns:
        "equal" or "different"; or the two expressions that Math-Verify has to compare.
    """
    is_too_long = len(submitted) > max(MAX_ANSWER_LENGTH, 2 * len(expected))
    is_unfinished = re.search("[0-9]", submitted) and _ELLIPSIS.search(submitted) and not _ELLIPSIS.search(expected)
    pair = ExpressionPair(
        normalise_notation(expected), "" if is_too_long or is_unfinished else normalise_notation(submitted)
    )
    expected_name, expected_value = _name_and_value(pair.expected)
    name, value = _name_and_value(pair.submitted)
    if _TIME.fullmatch(expected_value) and _TIME.fullmatch(value):  # 4:15 and 8:30 are one ratio, but two times
        is_same_time = [*map(int, expected_value.split(":"))] == [*map(int, value.split(":"))]
        return "equal" if is_same_time else "different"
    if expected_quantity := parse_quantity(expected_value):
        quantity = parse_quantity(value)
        if quantity is None or quantity.value != expected_quantity.value:
            return "different"
        # One of the two may lack the unit, if the other one has a unit that cannot be a variable.
        may_lack_unit = not quantity.unit and not _NUMBER_WITH_LETTER.fullmatch(expected_value)
        may_add_unit = not expected_quantity.unit and not _NUMBER_WITH_LETTER.fullmatch(value)
        units_agree = expected_quantity.unit == quantity.unit or may_lack_unit or may_add_unit
        names_agree = not expected_name or name in ("", expected_name)
        return "equal" if units_agree and names_agree else "different"
    if _WORDS.fullmatch(pair.expected):
        return "equal" if loose_text(pair.expected) == loose_text(pair.submitted) else "different"
    # An empty answer is also passed to Math-Verify, which determines whether the expected text is readable at all.
    is_set_for_tuple = {text.lstrip("\\")[:1] for text in pair} == {"(", "{"}
    if is_set_for_tuple:
        return pair._replace(submitted="")
    if "," in pair.submitted and (quantity := parse_quantity(pair.submitted)):
        return pair._replace(submitted=str(quantity.value))  # Math-Verify would read "1,024" as a pair of numbers
    return pair


def _name_and_value(text: str) -> tuple[str, str]:
    """Split an equation such as "x = 4" or "4 = x" into its name and its value; the name of any other text is ""."""
    name, *values = [side.strip() for side in text.split("=")]
    if len(values) == 1 and values[0] and _NAME.fullmatch(values[0]):
        name, values = values[0], [name]
    if len(values) == 1 and _NAME.fullmatch(name):
        return re.sub(r"[\s{}]", "", name), values[0]
    return "", text


def gym_reward(
    completions: Any, gym: Any, time_limit: float = 3.0, batch_time_limit: float = 30.0, **kwargs: Any
) -> list[float | None]:
    """Return the score that the verifier of reasoning-gym gives each answer, from 0 to 1.

    Some verifiers give partial credit to an answer that is nearly right or well-formed. The answer is the text of the
    last answer block. Without a block, it is the rest of the line after the last "answer is" or "answer:", or else the
    whole text after the thinking. So a model that was never trained on answer tags can earn rewards from the start.

    Args:
        completions: Strings or lists of chat messages.
        gym: The problem of each completion: a dict with "generator", "options" and "index", as in the rows of
            `grpo_lab.tasks.gym.gym_problems`. If an entry is None, the reward does not apply, and None is returned.
        time_limit: The seconds that a verifier may take for one answer, since some verifiers evaluate the answer as
            Python. An answer that takes longer earns 0, and a warning counts it.
        batch_time_limit: The seconds for all answers together. Answers that are left then also earn 0.
        kwargs: Other columns, unused.
    """
    check_number_setting("gym_reward: time_limit", time_limit)
    check_number_setting("gym_reward: batch_time_limit", batch_time_limit)
    calls = [
        None
        if entry is None
        else (entry["generator"], entry["options"], entry["index"], _read_answer(completion_text(y)))
        for y, entry in zip(completions, gym, strict=True)
    ]
    distinct_calls = [call for call in dict.fromkeys(calls) if call is not None]
    scores = VERIFIER_PROCESS.run_batch("score", distinct_calls, time_limit, batch_time_limit)
    if late_answers := [call[-1] for call in calls if call is not None and scores[call] is None]:
        summary = f"gym_reward: {len(late_answers)} of {len(calls)} answers were not scored"
        limits = f"{time_limit:g} s each and {batch_time_limit:g} s together"
        message = f"{summary} within {limits}, and earn 0; first: {late_answers[0][:80]!r}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    return [None if call is None else scores[call] or 0.0 for call in calls]


def _read_answer(text: str) -> str:
    """Return the answer in a completion, as the docstring of `gym_reward` describes."""
    reply = after_thinking(text).strip()
    if "</answer>" in reply:
        return extract_answer(reply) or ""
    stated_answers = _STATED_ANSWER.findall(reply)
    last_stated = stated_answers[-1].rstrip(" .*_$") if stated_answers else ""
    return last_stated or reply
