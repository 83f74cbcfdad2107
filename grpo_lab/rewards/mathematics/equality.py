r"""Mathematical equality: 0.5 is 1/2 is \frac{1}{2}, judged as a teacher would and within a limited time.

Numbers are compared here, exactly. Expressions, sets and inequalities go to Math-Verify, in processes of their own.
"""

import importlib.util
import warnings
from typing import Any

from grpo_lab.rewards.mathematics.forms import Judged, judge_form
from grpo_lab.rewards.mathematics.tidy import boxed, given_answer
from grpo_lab.rewards.mathematics.workers import POOL, UNREACHED
from grpo_lab.rewards.text import completion_text, expected_texts


def math_reward(
    completions: Any, answer: Any, time_limit: float = 3.0, batch_time_limit: float = 30.0, **kwargs: Any
) -> list[float | None]:
    r"""1.0 if the answer equals the expected one as mathematics, else 0.0.

    r_{\mathrm{math}}(y, a) = \mathbb{1}[\hat a(y) \equiv a] \tag{6.5}

    The answer is what the last answer block holds, all of it; without a block, the last `\boxed{}` after the thinking.

    What counts. A number: whole, decimal, fraction (reduced or not), mixed (3 1/2), with powers of ten (1.5e3), in
    Chinese words (三分之一). It is compared exactly; a decimal to six places and a thousandth of its size: 0.333333 is
    1/3, 0.33333 is not. Per cent is a hundredth: 25% is 1/4 and not 25. A unit may be left out, but not contradicted,
    and is not converted: 5 cm is 5, and not 5 m. Of an equation the right-hand side counts, if the left is a name (x =
    4) or equal to it (2+2 = 4). A power, root, factorial or logarithm stands for its value. Order counts in tuples, not
    in sets and bare lists, and a set is no tuple; x > 3 is (3, \infty). Words are compared as texts, in any case.

    What does not. A calculation (17+58 for 75), a restated equation (2x = 8 for 4), a second answer ("4 or 5"), a doubt
    ("about 5"), a sentence ("the answer is 4"), a number in English words.

    Args:
        completions: y, strings or lists of chat messages.
        answer: a, the expected expressions, plain ("1/2") or LaTeX ("\frac{1}{2}", "$x+1$"), one a completion. The
            reward does not apply (None) where it is None, or where Math-Verify cannot read it; the latter gives a
            warning.
        time_limit: seconds a comparison may take, more than 0. A completion that needs longer scores 0.0, as a wrong
            one does, and is counted in a warning: if it scored None, it would be a way out.
        batch_time_limit: seconds that all of them may take together, more than 0. What is left then scores 0.0, and is
            counted too. Costly expressions come last, and only their verdict depends on how busy the machine is.
        kwargs: other columns, unused.

    Raises:
        ImportError: if Math-Verify is not installed.
    """
    for name, limit in (("time_limit", time_limit), ("batch_time_limit", batch_time_limit)):
        if not 0 < limit <= 3600:
            raise ValueError(f"math_reward: {name} is {limit}; it must be positive, and at most 3600 seconds")
    if importlib.util.find_spec("math_verify") is None:
        raise ImportError("math_reward needs Math-Verify; install it with: pip install math-verify")
    expected = [None if a is None else _expected(a) for a in expected_texts("math_reward", completions, answer)]
    pairs = [(a, given_answer(completion_text(y))) for a, y in zip(expected, completions, strict=True)]
    verdicts = _verdicts(pairs, time_limit, batch_time_limit)
    rewards: list[float | None] = []
    for pair in pairs:
        verdict = verdicts.get(pair, "unreadable")
        reward = float(verdict == "equal")  # scalar (6.5)
        rewards.append(None if verdict == "unreadable" else reward)
    _warn(pairs, verdicts, time_limit, batch_time_limit)
    return rewards


def _expected(text: str) -> str:
    return boxed(text) if r"\boxed" in text else text


def _verdicts(pairs: list, time_limit: float, batch_time_limit: float) -> dict[tuple, str]:
    """The verdict on each distinct pair: a group often repeats an answer, and Math-Verify is asked once."""
    judged = {pair: judge_form(*pair) for pair in dict.fromkeys(pairs) if pair[0] is not None}
    questions = list(dict.fromkeys(question for form in judged.values() for question in form.pairs))
    replies = dict(zip(questions, POOL.compare(questions, time_limit, batch_time_limit), strict=True))
    return {pair: _verdict(form, replies) for pair, form in judged.items()}


def _verdict(form: Judged, replies: dict) -> str:
    answers = [replies[question] for question in form.pairs]
    telling = ("unreadable", "different", "timeout", UNREACHED)
    return form.verdict or next((verdict for verdict in telling if verdict in answers), "equal")


def _warn(pairs: list, verdicts: dict, time_limit: float, batch_time_limit: float) -> None:
    problems = {
        "timeout": (f"completions were not evaluated within {time_limit:g} s and scored 0.0", 1),
        UNREACHED: (f"completions were left when the {batch_time_limit:g} s of the batch were over, and scored 0.0", 1),
        "unreadable": ("expected answers cannot be read as mathematics, so no reward applies", 0),
    }
    for verdict, (problem, which) in problems.items():
        rows = [row for row, pair in enumerate(pairs) if verdicts.get(pair) == verdict]
        if rows:
            first = f"first: row {rows[0]}, {pairs[rows[0]][which][:80]!r}"
            warnings.warn(f"math_reward: {len(rows)} of {len(pairs)} {problem}; {first}", RuntimeWarning, stacklevel=3)
