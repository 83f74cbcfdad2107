"""The exercise graded_reward: wrong answers, as people write them, then what is said about each."""

from grpo_lab.course.exercise import Case, Exercise, Misconception
from grpo_lab.course.exercises._inputs import given
from grpo_lab.course.exercises.nb06.accuracy_reward import _given, _normalise, _text, said
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
        Case(_group, "a group"),
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
