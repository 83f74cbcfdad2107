r"""Mathematical equality: 0.5 is 1/2 is \frac{1}{2}, judged as a teacher would and within a limited time.

Numbers are compared here, exactly. Expressions, sets and inequalities go to Math-Verify, in a process of its own.
"""

import re
import warnings
from decimal import Decimal
from typing import Any

from grpo_lab.commands.checks import InputError
from grpo_lab.rewards.mathematics.quantities import LONGEST, quantity_in, same_quantity, unit_of
from grpo_lab.rewards.mathematics.tidy import boxed, given_answer, tidy
from grpo_lab.rewards.mathematics.worker import WORKER
from grpo_lab.rewards.text import completion_text, expected_texts, loose_text

# x, x_1, AB, \angle A, P(A), 总价: no number in front, and nothing is computed.
_NAME = re.compile(r"(?:\\(?!ne|pm|mp)[a-zA-Z]+|[A-Za-z\u4e00-\u9fff'|∠△(){} ]|_[A-Za-z0-9]|_\{[\w \\]+\}){1,30}+")
_DENIED = re.compile(r"\b(?:not|nor|or|if|unless|never|no)\b|[不非若]")
_CALCULATION = re.compile(r"(?:[0-9.+\-*/()^!{}\[\] ]|\\(?:times|cdot|div|frac|sqrt|binom))+")
# Math-Verify would read a word as a product of letters, "lube" as equal to "blue", and 8:00 as divided by zero.
_WORDS = re.compile(r"[A-Za-z]{4,}(?: [A-Za-z]+)*|[\u4e00-\u9fff]+|[0-9]{1,2}(?::[0-9]{2}){1,2}")

_UNIT = re.compile(r"(.*(?:[0-9})]|\\pi)) *((?:[a-z]{2,}| [mgshL]|[\u4e00-\u9fff]+|°)(?: ?\^ ?\{?[23]\}?)?)")


def math_reward(
    completions: Any, answer: Any, time_limit: float = 3.0, batch_time_limit: float = 30.0, **kwargs: Any
) -> list[float | None]:
    r"""1.0 if the answer equals the expected one as mathematics, else 0.0.

    r_{\mathrm{math}}(y, a) = \mathbb{1}[\hat a(y) \equiv a] \tag{6.5}

    The answer is what the last answer block holds, all of it; without a block, the last `\boxed{}` after the thinking.

    What counts. A number: whole, decimal, fraction (reduced or not), mixed (3 1/2), with powers of ten (1.5e3), in
    Chinese words (三分之一). It is compared exactly, but a decimal of six places or more may be rounded: 0.333333 is
    1/3, while 0.33333 is not, nor is 2.0000001 equal to 2. Per cent is a hundredth: 25% is 1/4 and not 25. A unit may
    be left out, but not contradicted, and is not converted: 5 cm is 5, and not 5 m. Of an equation the right-hand side
    counts, if the left is a name (x = 4) or equal to it (2+2 = 4). An expression where one is expected: x+1 is 1+x,
    and 1024 is 2^{10}. Order counts in tuples, not in sets and bare lists, and a set is no tuple; x > 3 is (3, \infty).
    Words are compared as texts, in any case.

    What does not. A calculation where a number is expected (17+58 for 75, \sqrt{16} for 4), a restated equation (2x = 8
    for 4), a second answer ("4 or 5"), a doubt ("about 5"), a sentence ("the answer is 4"), a number in English words.

    Args:
        completions: y, strings or lists of chat messages.
        answer: a, the expected expressions, plain ("1/2") or LaTeX ("\frac{1}{2}", "$x+1$"), one a completion. The
            reward does not apply (None) where it is None, or where Math-Verify cannot read it; the latter gives a
            warning.
        time_limit: seconds a comparison may take, more than 0. A completion that needs longer scores 0.0, as a wrong
            one does, and is counted in a warning: if it scored None, it would be a way out.
        batch_time_limit: seconds that all of them may take together, more than 0. What is left then scores 0.0, and is
            counted too. Costly expressions come last, and only their verdict depends on how busy the machine is.

    Raises:
        ImportError: if Math-Verify is needed and not installed; plain numbers and words do without.
    """
    for name, limit in (("time_limit", time_limit), ("batch_time_limit", batch_time_limit)):
        if not 0 < limit <= 3600:
            raise InputError(f"math_reward: {name}", limit, "it must be positive, and at most 3600 seconds")
    expected = expected_texts("math_reward", completions, answer)
    golds = [boxed(a) if a and r"\boxed" in a else a for a in expected]
    pairs = [(a, given_answer(completion_text(y))) for a, y in zip(golds, completions, strict=True)]
    verdicts = _verdicts(pairs, time_limit, batch_time_limit)
    rewards: list[float | None] = []
    for pair in pairs:
        verdict = verdicts.get(pair, "unreadable")
        reward = float(verdict == "equal")  # scalar (6.5)
        rewards.append(None if verdict == "unreadable" else reward)
    limits = f"{time_limit:g} s each and {batch_time_limit:g} s together"
    _warn(pairs, verdicts, "timeout", f"completions were not evaluated within {limits}, and scored 0.0")
    _warn(pairs, verdicts, "unreadable", "expected answers cannot be read as mathematics, so no reward applies")
    return rewards


def _verdicts(pairs: list, time_limit: float, batch_time_limit: float) -> dict[tuple, str]:
    """The verdict on each distinct pair: a group often repeats an answer, and Math-Verify is asked once."""
    forms = {pair: judge_form(*pair) for pair in dict.fromkeys(pairs) if pair[0] is not None}
    questions = dict.fromkeys(form for form in forms.values() if not isinstance(form, bool))
    # Those that look costly come last, so that they keep nobody waiting.
    in_order = sorted(questions, key=lambda q: (q[1].count("^") + q[1].count("!"), len(q[1])))
    replies: dict = WORKER.ask("compare", in_order, time_limit, batch_time_limit)
    replies |= {True: "equal", False: "different"}
    return {pair: replies[form] or "timeout" for pair, form in forms.items()}


def _warn(pairs: list, verdicts: dict, verdict: str, problem: str) -> None:
    rows = [row for row, pair in enumerate(pairs) if verdicts.get(pair) == verdict]
    if rows:
        first = f"first: row {rows[0]}, {pairs[rows[0]][verdict == 'timeout'][:80]!r}"
        warnings.warn(f"math_reward: {len(rows)} of {len(pairs)} {problem}; {first}", RuntimeWarning, stacklevel=3)


def judge_form(expected: str, given: str) -> bool | tuple[str, str]:
    """Whether an answer is right, if that can be said without Math-Verify; else the two expressions to ask it about."""
    gold, answer = tidy(expected), tidy(given) if len(given) <= max(LONGEST, 2 * len(expected)) else ""
    name, *steps, result = _sides(gold)
    number = quantity_in(result) if all(map(_CALCULATION.fullmatch, steps)) else None
    if number is None and _WORDS.fullmatch(gold):
        return loose_text(gold) == loose_text(answer)
    if number is None:  # also where nothing is given: Math-Verify says whether the expected one can be read at all
        (gold, unit), (answer, its_unit) = _without_unit(gold), _without_unit(answer)
        set_for_tuple = {gold.lstrip("\\")[:1], answer.lstrip("\\")[:1]} == {"(", "{"}
        if plain := quantity_in(answer):  # it would read "1,024" as a pair of numbers
            top, bottom = plain.value.as_integer_ratio()
            answer = f"{Decimal(top) / bottom:f}" if plain.places else str(plain.value)
        return gold, "" if set_for_tuple or (unit and its_unit and unit != its_unit) else answer
    its_name, *steps, result = _sides(answer)
    read = [*filter(None, map(quantity_in, steps)), quantity_in(result)]
    wrong_name = name and its_name and name != its_name
    about = "\\approx" in answer and not number.places  # only a rounded number is given as about so much
    if wrong_name or about or not all(quantity and same_quantity(quantity, number) for quantity in read):
        return False
    calculated = [step for step in steps if quantity_in(step) is None]
    if len(calculated) > 1 or not all(map(_CALCULATION.fullmatch, calculated)):
        return False
    return (str(number.value), calculated[0]) if calculated else True


def _without_unit(text: str) -> tuple[str, str]:
    r"""An expression and the unit behind it: "2\pi cm", "5\sqrt{3}厘米"."""
    found = _UNIT.fullmatch(text)
    unit = unit_of(found[2]) if found else None
    return (found[1], unit) if found and unit else (text, "")


def _sides(text: str) -> list[str]:
    """The name (or "") and the other sides of a chain of equations, the result last: "x", "2+2", "4"."""
    sides = [side.strip() for side in re.split(r"(?<![\\<>!:])=|\\approx", re.sub(r"^(?:=|\\approx)", "", text))]
    if len(sides) == 2 and _is_name(sides[1]) and not _is_name(sides[0]):
        sides.reverse()  # 4 = x
    return [re.sub(r"[\s{}]", "", sides[0]), *sides[1:]] if len(sides) > 1 and _is_name(sides[0]) else ["", *sides]


def _is_name(text: str) -> bool:
    return bool(_NAME.fullmatch(text)) and not _DENIED.search(text) and quantity_in(text) is None
