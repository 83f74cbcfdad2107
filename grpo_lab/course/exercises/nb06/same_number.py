import re
from fractions import Fraction

from grpo_lab.course.exercise import Case, Exercise, Misconception
from grpo_lab.course.exercises._inputs import Dice, extreme, given
from grpo_lab.course.wrong_answers import changed
from grpo_lab.rewards import normalise_text, same_number

SAME = (
    ("0", "-0"), ("0/5", "0"), ("007", "7"), ("-3/6", "-0.50"), ("6/3", "2"), ("-1,000", "-1000"),
    ("1,234.5", "2469/2"), ("１，０００，０００", "1000000"), ("1,000/2,000", "0.5"), ("-5", "-5.0"),
    ("0.000001", "1/1000000"),
)  # fmt: skip
OTHERS = (("-1/2", "1/2"), ("1/2", "2/1"), ("1.5", "15"), ("2.5", "2"), ("0.1", "0.10000001"), ("1000", "1"))
# Texts that are no numbers, and the number that each could be taken for.
NONE = (
    ("1e3", "1000"), ("1e0", "1"), ("1_000", "1000"), ("50%", "1/2"), ("$5", "5"), ("1 2", "12"), ("1 / 2", "1/2"),
    ("- 5", "-5"), ("x = 5", "5"), ("(5)", "5"), ("5 cm", "5"), ("10,00", "1000"), ("1.2.3", "1.2"), ("1/2/4", "1/8"),
    ("1.0/2", "1/2"), ("--5", "5"), ("5-3", "2"), ("10²", "102"), ("½", "1/2"), ("inf", "0"), ("-", "0"), ("/2", "1/2"),
    ("五", "5"), ("5/00", "0"),
)  # fmt: skip


def strings(given, expected):
    return given != "" and normalise_text(given) == normalise_text(expected)


def fraction_alone(given, expected):
    try:
        return Fraction(normalise_text(given)) == Fraction(normalise_text(expected))
    except (ValueError, ZeroDivisionError):
        return False


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


def _neighbours(seed: int) -> tuple[tuple, dict]:
    """1/n and 1/(n + 1), which are apart by less than any tolerance."""
    n = 10**12 + seed
    return (f"{n}/{n + 1}", f"{n + 1}/{n + 2}"), {}


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
        "reads '1e3', which is no number here, and '1e999999999' keeps it busy for hours: ask for the form first.)",
    ),
    cases=(
        given("a decimal and a fraction", "0.5", "1/2"),
        given("the same text", "7", "7"),
        given("another number", "7", "8"),
        given("an empty answer", "", "7"),
        given("two empty texts", "", ""),
        given("the same word", "seven", "seven"),
        given("two answers at once", "4 or 5", "4"),
        given("thousands", "1,000", "1000"),
        given("a trailing zero", "7.0", "7"),
        given("fractions not in lowest terms", "2/4", "3/6"),
        given("rounded", "0.3333", "1/3"),
        given("divided by zero", "1/0", "1"),
        given("two numbers with a comma between", "1,2", "12"),
        given("silence, where a word is expected", "", "seven"),
        given("a whole number, then a fraction", "1 1/2", "3/2"),
        *(given(f"the same number, {a} and {b}", a, b) for a, b in SAME),
        *(given(f"not the same, {a} and {b}", a, b) for a, b in OTHERS),
        *(given(f"no number, {text}, though {number} may come to mind", text, number) for text, number in NONE),
        *(given(f"no number, {text}, twice", text, text) for text in ("1e3", "1_000", "1 / 2", "1.0/2", "5 cm")),
        given("no number expected, 1e3, where 1000 is given", "1000", "1e3"),
        given("divided by zero on either side", "0/0", "0/0"),
        given("white space on either side", " 7\n", "\t7 "),
        given("None written out", "None", "None"),
        Case(_equal, "a decimal and its fraction"),
        Case(_neighbours, "two fractions that are neighbours"),
        extreme("17 digits, the last one differs", "90071992547409921", "90071992547409923"),
        extreme("a third, to 20 digits", "0.33333333333333333333", "1/3"),
        extreme("300 digits, the last one differs", "9" * 299 + "8", "9" * 300),
        extreme("a long sentence that ends in it", "so " * 3000 + "7", "7"),
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
            "whatever-fraction-reads",
            fraction_alone,
            "Whatever `Fraction` reads is a number for you, '1e3' and '1_000' too. A policy that writes '1e999999999' "
            "then stops your run for hours. What could you ask of a text before Fraction sees it?",
        ),
        Misconception(
            "no-fractions",
            no_fractions,
            "You read decimals but not '1/2': `float` does not know the stroke. And 2/4 should be 3/6.",
        ),
    ),
)
