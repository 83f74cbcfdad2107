r"""Mathematical equality: 0.5 is 1/2 is \frac{1}{2}, judged as a teacher would and within a limited time.

Numbers are compared here, exactly. Expressions, sets and inequalities go to Math-Verify, in a process of its own.
"""

import re
import warnings
from typing import Any

from grpo_lab.rewards.mathematics.quantities import LONGEST_ANSWER, quantity_in
from grpo_lab.rewards.mathematics.tidy import boxed, given_answer, tidy
from grpo_lab.rewards.mathematics.worker import WORKER
from grpo_lab.rewards.text import check_setting, completion_text, expected_texts, loose_text

# x, x_1, AB, S_{ABC}, P(A), 总价
_NAME = re.compile(r"(?:\\?[A-Za-z]+(?:_\w|_\{[\w\\ ]+\})?(?:\([A-Za-z]\))?|[\u4e00-\u9fff]{1,8})?")
# 3.14... and 1, 2, ..., which go on: neither is 3.14, nor {1, 2}.
_GOES_ON = re.compile(r"(?:\.{3}|…|\\[lc]?dots(?![a-z]))[\s$)}\\]*$")
# A letter right behind its number may be a unit or a variable: 3t.
_TERM = re.compile(r".*[0-9)}][a-zA-Z]")
# Math-Verify would read a word as a product of letters, "lube" as equal to "blue", and 8:00 as divided by zero.
_WORDS = re.compile(r"[A-Za-z]{4,}(?: [A-Za-z]+)*|[\u4e00-\u9fff]+|[0-9]{1,2}(?::[0-9]{2}){1,2}")


def math_reward(
    completions: Any, answer: Any, time_limit: float = 3.0, batch_time_limit: float = 30.0, **kwargs: Any
) -> list[float | None]:
    r"""1.0 if the answer equals the expected one as mathematics, else 0.0.

    r_{\mathrm{math}}(y, a) = \mathbb{1}[\hat a(y) \equiv a] \tag{6.3}

    The answer is what the last answer block holds, all of it; without a block, the last `\boxed{}` after the thinking.
    A text that was cut off, in its thinking or in a later block or box, gives none.

    What counts. A number: whole, decimal, with digits that repeat (0.1(6)), fraction (reduced or not), mixed (3 1/2),
    with powers of ten (1.5e3, 10^6), with its thousands apart (1,234; 1'234; 1.234,50), in Chinese words (三十,
    三分之一). It is compared exactly: 0.333333 and 0.333... are not 1/3, and e^{-50} not e^{-60}. Per cent is a
    hundredth: 25% is 1/4 and not 25. A unit, or a base, may be left out, but not contradicted, and is not converted:
    5 cm is 5, and not 5 m; 12_5 is not 12_6; a single letter right behind its number may be a variable: 3t is not 3.
    The value of a name counts (x = 4). An expression where one is expected: x+1 is 1+x, and 1024 is 2^{10}. Order
    counts in tuples, not in sets and bare lists, and a set is no tuple; x > 3 is (3, \infty). Words are compared as
    texts, in any case.

    What does not. A calculation where a number is expected (17+58 for 75, 2+2 = 4), another equation (2x = 8 for 4), a
    second answer ("4 or 5"), a doubt ("about 5"), a sentence ("the answer is 4"), a number in English words.

    Args:
        completions: y, strings or lists of chat messages.
        answer: a, the expected expressions, plain ("1/2") or LaTeX ("\frac{1}{2}"), one per completion. The reward does
            not apply (None) where it is None, or, with a warning, where Math-Verify cannot read it.
        time_limit: seconds a comparison may take. A completion that needs longer scores 0.0, as a wrong one does, and
            is counted in a warning: if it scored None, it would be a way out.
        batch_time_limit: seconds that all of them may take together. What is left then scores 0.0, and is counted too.
            Costly expressions come last, and only their verdict depends on how busy the machine is.

    Raises:
        ImportError: if Math-Verify is needed and not installed; plain numbers and words do without.
    """
    check_setting("math_reward: time_limit", time_limit)
    check_setting("math_reward: batch_time_limit", batch_time_limit)
    expected = expected_texts("math_reward", completions, answer)
    golds = [boxed(a) if a and r"\boxed" in a else a for a in expected]
    pairs = [(a, given_answer(completion_text(y))) for a, y in zip(golds, completions, strict=True)]
    verdicts = _verdicts(pairs, time_limit, batch_time_limit)
    rewards: list[float | None] = []
    for pair in pairs:
        verdict = verdicts.get(pair, "unreadable")
        reward = float(verdict == "equal")  # scalar (6.3)
        rewards.append(None if verdict == "unreadable" else reward)
    limits = f"{time_limit:g} s each and {batch_time_limit:g} s together"
    late = [row for row, pair in enumerate(pairs) if verdicts.get(pair) == "timeout"]
    _warn_of_rows(late, f"completions were not evaluated within {limits}, and scored 0.0", [y for _, y in pairs])
    unreadable = [row for row, pair in enumerate(pairs) if verdicts.get(pair) == "unreadable"]
    _warn_of_rows(unreadable, "expected answers cannot be read as mathematics, so no reward applies", golds)
    return rewards


def _warn_of_rows(rows: list[int], problem: str, texts: list) -> None:
    """Warn that this many rows have the problem, with the text of the first; silent if there are none."""
    if rows:
        summary = f"math_reward: {len(rows)} of {len(texts)} {problem}"
        first = f"first: row {rows[0]}, {str(texts[rows[0]])[:80]!r}"
        warnings.warn(f"{summary}; {first}", RuntimeWarning, stacklevel=3)


def _verdicts(pairs: list, time_limit: float, batch_time_limit: float) -> dict[tuple, str]:
    """The verdict on each distinct pair: a group often repeats an answer, and Math-Verify is asked once."""
    forms = {pair: judge_form(*pair) for pair in dict.fromkeys(pairs) if pair[0] is not None}
    questions = dict.fromkeys(form for form in forms.values() if not isinstance(form, bool))
    # Those that look costly come last, so that they keep nobody waiting.
    in_order = sorted(questions, key=lambda q: (q[1].count("^") + q[1].count("!"), len(q[1])))
    replies: dict = WORKER.ask("compare", in_order, time_limit, batch_time_limit)
    replies |= {True: "equal", False: "different"}
    return {pair: replies[form] or "timeout" for pair, form in forms.items()}


def judge_form(expected: str, submitted: str) -> bool | tuple[str, str]:
    """Judge an answer without Math-Verify: right or wrong; or, to ask it about, the two expressions."""
    gold, answer = tidy(expected), tidy(submitted) if len(submitted) <= max(LONGEST_ANSWER, 2 * len(expected)) else ""
    if re.search("[0-9]", submitted) and _GOES_ON.search(submitted) and not _GOES_ON.search(expected):
        answer = ""
    (name, value), (its_name, its_value) = _equation(gold), _equation(answer)
    if number := quantity_in(value):
        (size, unit), (its_size, its_unit) = number, quantity_in(its_value) or (None, "")
        units_agree = unit == its_unit or not unit or (not its_unit and not _TERM.fullmatch(value))
        return size == its_size and units_agree and (its_name in ("", name) or not name)
    if _WORDS.fullmatch(gold):
        return loose_text(gold) == loose_text(answer)
    # Also where nothing is given: Math-Verify says whether the expected one can be read at all.
    set_for_tuple = {gold.lstrip("\\")[:1], answer.lstrip("\\")[:1]} == {"(", "{"}
    if "," in answer and (number := quantity_in(answer)):  # it would read "1,024" as a pair of numbers
        answer = str(number[0])
    return gold, "" if set_for_tuple else answer


def _equation(text: str) -> tuple[str, str]:
    """The name and the value of "x = 4" and "4 = x"; "" and all of it for what is no equation of this form."""
    name, *values = [side.strip() for side in text.split("=")]
    if len(values) == 1 and values[0] and _NAME.fullmatch(values[0]):
        name, values = values[0], [name]
    is_one = len(values) == 1 and _NAME.fullmatch(name)
    return (re.sub(r"[\s{}]", "", name), values[0]) if is_one else ("", text)
