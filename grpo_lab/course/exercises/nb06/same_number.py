"""The exercise same_number: wrong answers, as people write them, then what is said about each."""

import re
from fractions import Fraction

from grpo_lab.course.changed import changed
from grpo_lab.course.exercise import Case, Exercise, Misconception
from grpo_lab.course.exercises._inputs import Dice, extreme, given
from grpo_lab.rewards import normalise_text, same_number


def strings(given, expected):
    return given != "" and normalise_text(given) == normalise_text(expected)


def first_number(given, expected):
    a, b = (re.search(r"-?\d*\.?\d+(/0*[1-9]\d*)?", normalise_text(text)) for text in (given, expected))
    return a is not None and b is not None and Fraction(a[0]) == Fraction(b[0])


def no_fractions(given, expected):
    def value(text):
        try:
            return float(normalise_text(text))
        except ValueError:
            return None

    a, b = value(given), value(expected)
    return a is not None and a == b


def _equal(seed: int) -> tuple[tuple, dict]:
    dice = Dice(seed)
    top, power = int(dice.integers(900, 1)[0]) + 1, int(dice.integers(3, 1)[0]) + 1
    return (f"{top / 10**power:.{power}f}", f"{3 * top}/{3 * 10**power}"), {}


def _apart(seed: int) -> tuple[tuple, dict]:
    return (f"{seed + 1}.0000000001", f"{seed + 1}"), {}


EXERCISE = Exercise(
    function=same_number,
    notebook="06",
    points=3,
    minutes=20,
    difficulty=2,
    task="Are two texts the same number? A verifier that says no to '0.5' for '1/2' punishes right answers; one that "
    "says yes to an empty text rewards silence.",
    hints=(
        "Turn each text into an exact number first, or into None. `fractions.Fraction` reads '0.5' as well as '1/2', "
        "without rounding.",
        "`normalise_text` takes care of spaces and of commas between thousands.",
        "Which texts does Fraction refuse, and with which two kinds of error? And what is None == None? (Fraction also "
        "reads '1e3', and '1e999999999' keeps it busy for hours. In a real run, ask for the form first.)",
    ),
    cases=(
        given("a decimal and a fraction", "0.5", "1/2"),
        given("the same text", "7", "7"),
        given("another number", "7", "8"),
        given("an empty answer", "", "7"),
        given("two empty texts", "", ""),
        given("the same word", "seven", "seven"),
        given("two answers at once", "4 or 5", "4"),
        given("a sentence", "the answer is 4", "4"),
        given("another sign", "-5", "5"),
        given("thousands", "1,000", "1000"),
        given("a trailing zero", "7.0", "7"),
        given("fractions not in lowest terms", "2/4", "3/6"),
        given("rounded", "0.3333", "1/3"),
        given("the whole part alone", "2.75", "2"),
        given("divided by zero", "1/0", "1"),
        given("two numbers with a comma between", "1,2", "12"),
        given("silence, where a word is expected", "", "seven"),
        given("a percent sign beside it", "5%", "5"),
        given("a whole number, then a fraction", "1 1/2", "3/2"),
        given("a fraction of a decimal", "1.5/2", "3/4"),
        Case(_equal, "a decimal and its fraction"),
        Case(_apart, "a tiny difference"),
        extreme("a comma in the wrong place", "10,00", "1000"),
        extreme("17 digits, the last one differs", "90071992547409921", "90071992547409923"),
        extreme("a third, to 20 digits", "0.33333333333333333333", "1/3"),
        extreme("millions, full-width", "１，０００，０００", "1000000"),
        extreme("60 digits", "1" + "0" * 59, "1" + "0" * 59 + ".0"),
        extreme("a fraction below zero", "-3/6", "-0.50"),
        extreme("no number, though floats have it", "inf", "inf"),
        extreme("a unit beside it", "5 cm", "5"),
    ),
    misconceptions=(
        Misconception(
            "string-equality",
            strings,
            "You compare the texts. Then 0.5 is not 1/2 and 7.0 is not 7: a policy that solved the problem is told "
            "that it did not. What do two ways to write a number have in common?",
        ),
        Misconception(
            "empty-matches",
            changed(same_number, ("a is not None and ", "")),
            "Two texts of which neither is a number count as equal, the empty ones too: None == None is true. With an "
            "expected text that cannot be read, silence would score 1.",
        ),
        Misconception(
            "same-text-first",
            changed(same_number, ("a is not None and a == b", "given == expected or a is not None and a == b")),
            "A text that is no number is equal to itself for you, even the empty one. With an expected text that is "
            "empty by mistake, silence would score 1.",
        ),
        Misconception(
            "nearly-equal",
            changed(
                same_number, ("a is not None and a == b", "None not in (a, b) and abs(float(a) - float(b)) < 0.001")
            ),
            "You allow a tolerance, so 0.3333 is 1/3, and 2.0004 is 2. `math_reward` does so, to six decimals; here "
            "equality is to be exact. What keeps a third without rounding?",
        ),
        Misconception(
            "number-picked-out",
            first_number,
            "You pick a number out of the text. '4 or 5' is then right for 4, and a list is right for its first entry. "
            "The *whole* text has to be the number.",
        ),
        Misconception(
            "sign-lost",
            changed(same_number, ("a is not None and a == b", "None not in (a, b) and abs(a) == abs(b)")),
            "-5 and 5 count as equal: the sign gets lost somewhere. `\\d` is a digit, and nothing else.",
        ),
        Misconception(
            "divided-by-zero",
            changed(same_number, ("_number_in(given)", "Fraction(given) if '/' in given else _number_in(given)")),
            "'1/0' raises an error. The policy writes that text sooner or later, and your run ends there. What is it, "
            "if not a number?",
        ),
        Misconception(
            "commas-dropped",
            changed(same_number, ("_number_in(given)", "_number_in(given.replace(',', ''))")),
            "You take every comma out, so '1,2' is 12 for you: an answer of two numbers passes for one. A comma parts "
            "thousands only where three digits follow it, and `normalise_text` knows that.",
        ),
        Misconception(
            "floating-point",
            changed(same_number, ("a is not None and a == b", "None not in (a, b) and float(a) == float(b)")),
            "You compare floating-point numbers. They hold about 16 digits: a third to twenty digits is 1/3, and "
            "numbers of 17 digits that differ in the last one are equal. What keeps every digit?",
        ),
        Misconception(
            "commas-left",
            changed(same_number, ("_number_in(given)", "None if ',' in given else _number_in(given)")),
            "'1,000' is no number for you. Many models write thousands like that; `normalise_text` takes the comma "
            "out.",
        ),
        Misconception(
            "cut-to-whole",
            changed(same_number, ("a is not None and a == b", "None not in (a, b) and int(a) == int(b)")),
            "You compare whole parts: 2.75 counts as 2. Where do the decimals get lost?",
        ),
        Misconception(
            "no-fractions",
            no_fractions,
            "You read decimals but not '1/2': `float` does not know the stroke. And 2/4 should be 3/6.",
        ),
    ),
)
