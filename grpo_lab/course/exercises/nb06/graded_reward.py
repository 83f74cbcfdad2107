"""The exercise graded_reward: wrong answers, as people write them, then what is said about each."""

import re

from grpo_lab.course.exercise import Case, Exercise, Misconception
from grpo_lab.course.exercises._inputs import at_scale, extreme, given, refused
from grpo_lab.course.exercises.nb06.accuracy_reward import CHAT, _given, _many, _normalise, _text, said
from grpo_lab.rewards import graded_reward


def _grades(completions, answer, grade):
    pairs = zip(completions, answer, strict=True)
    return [None if a is None else grade(_given(y), _normalise(str(a))) for y, a in pairs]


def _grade(given, expected):
    if given and given == expected:
        return 1.0
    return 0.5 if expected and expected in given else 0.01


def empty_matches(completions, answer, **kwargs):
    return _grades(completions, answer, lambda g, a: 1.0 if g == a else _grade(g, a))


def empty_contained(completions, answer, **kwargs):
    return _grades(completions, answer, lambda g, a: 1.0 if g and g == a else 0.5 if a in g else 0.01)


def contains_is_right(completions, answer, **kwargs):
    return _grades(completions, answer, lambda g, a: 1.0 if a and a in g else 0.01)


def backwards(completions, answer, **kwargs):
    return _grades(completions, answer, lambda g, a: 1.0 if g and g == a else 0.5 if g in a else 0.01)


def half_first(completions, answer, **kwargs):
    return _grades(completions, answer, lambda g, a: 0.5 if a and a in g else 0.01)


def nothing_for_wrong(completions, answer, **kwargs):
    return _grades(completions, answer, lambda g, a: _grade(g, a) if _grade(g, a) > 0.01 else 0.0)


def anywhere(completions, answer, **kwargs):
    rows = zip(completions, answer, _grades(completions, answer, _grade), strict=True)
    return [
        0.5 if grade == 0.01 and a not in (None, "") and _normalise(str(a)) in _normalise(_text(y)) else grade
        for y, a, grade in rows
    ]


def whole_words(completions, answer, **kwargs):
    return _grades(completions, answer, lambda g, a: 1.0 if g and g == a else 0.5 if a in g.split() else 0.01)


def any_block(completions, answer, **kwargs):
    def grade(y, a):
        blocks = re.findall(r"<answer>(.*?)</answer>", _text(y), re.DOTALL)
        return max([_grade(_normalise(block), a) for block in blocks], default=0.01)

    pairs = zip(completions, answer, strict=True)
    return [None if a is None else grade(y, _normalise(str(a))) for y, a in pairs]


def none_graded(completions, answer, **kwargs):
    return [0.01 if grade is None else grade for grade in _grades(completions, answer, _grade)]


def _group(seed: int) -> tuple[tuple, dict]:
    right = 100 + seed
    texts = [said(right), said(f"{right - 1} {right}"), said(f"3{right}"), said(seed + 1), said("", right)]
    return (texts, [right] * 5), {}


EXERCISE = Exercise(
    function=graded_reward,
    notebook="06",
    points=3,
    minutes=10,
    difficulty=1,
    task="Full marks for the expected answer, half for an answer that contains it, almost nothing otherwise. Many "
    "public trainers use this reward. Write it, then think of the policy that earns most from it.",
    hints=(
        "Three cases. Which of them do you have to ask about first?",
        "An empty text is contained in every text. Where could one turn up, on either side?",
        "None in the column `answer`: the reward does not apply there.",
    ),
    cases=(
        given("right", [said("4")], ["4"]),
        given("wrong", [said("5")], ["4"]),
        given("a list that holds the answer", [said("3 4 5")], ["4"]),
        given("the beginning of the answer", [said("1")], ["12"]),
        given("within another number", [said("312")], ["12"]),
        given("no answer block", ["4"], ["4"]),
        given("an empty answer", [said("")], ["4"]),
        given("right in the thinking alone", [said("5", thought="4")], ["4"]),
        given("nothing answered, nothing expected", [said("")], [""]),
        given("nothing expected", [said("4")], [""]),
        given("no answer is known", [said("4"), said("4")], [None, 4]),
        given("given in another form", [said("１，０００"), said("a  b c")], ["1000", "a b"]),
        given("expected in another form", [said("1000"), said("a b c")], ["1,000", "a  b"]),
        given("a chat message", [CHAT], ["4"]),
        given("right in a block before the last", [said("4") + said("5"), said("4") + said("")], ["4", "4"]),
        Case(_group, "a group"),
        extreme("the expected number is 0", [said("0"), said("10"), said("1"), said("")], [0, 0, 0, 0]),
        extreme("white space expected", [said(""), said("a b"), said("4")], [" ", " ", " "]),
        extreme("a long list", [said(" ".join(map(str, range(5000)))), said("4", thought="5\n" * 5000)], [4711, 5]),
        at_scale("300 responses", _many),
        refused("two responses, one expected answer", [said("4"), said("4")], ["4"]),
        refused("one response, two expected answers", [said("4")], ["4", "4"]),
    ),
    misconceptions=(
        Misconception(
            "empty-matches",
            empty_matches,
            "An empty answer gets full marks where an empty text is expected. One broken row in the data, and silence "
            "pays best.",
            "6.4",
        ),
        Misconception(
            "empty-contained",
            empty_contained,
            "Where the expected text is empty, everything gets half marks: the empty text is contained in every text. "
            "What has to hold besides `in`?",
            "6.4",
        ),
        Misconception(
            "reward-contains",
            contains_is_right,
            "An answer that contains the expected text gets full marks. Even this generous reward pays half for that: "
            "otherwise a list of all numbers is as good as solving the problem.",
            "6.4",
        ),
        Misconception(
            "contains-backwards",
            backwards,
            "You ask whether the answer is contained in the expected text. Then '1' earns half marks for 12, and so "
            "does an empty answer. Which of the two is to contain the other?",
            "6.4",
        ),
        Misconception(
            "half-marks-first",
            half_first,
            "You ask about containing first. A text contains itself, so the right answer never gets more than half.",
            "6.4",
        ),
        Misconception(
            "zero-for-wrong",
            nothing_for_wrong,
            "A wrong answer gets 0 from you. The definition gives 0.01.",
            "6.4",
        ),
        Misconception(
            "anywhere",
            anywhere,
            "You look for the expected text in the whole response, thinking included. Half marks are for an *answer* "
            "that contains it.",
            "6.4",
        ),
        Misconception(
            "any-block",
            any_block,
            "The best of a response's blocks counts. A policy would write one for each number it can think of. What a "
            "response says in the end is its last block, and `extract_answer` finds that one.",
            "6.4",
        ),
        Misconception(
            "whole-words",
            whole_words,
            "You look for the expected text as a word of its own, so '312' earns nothing for 12. That is stricter than "
            "Eq. (6.4), whose weakness is meant to be seen: a substring is enough.",
            "6.4",
        ),
        Misconception(
            "none-graded",
            none_graded,
            "Where no answer is known you give 0.01. That says *wrong*; None says that this reward does not apply.",
            "6.4",
        ),
    ),
)
