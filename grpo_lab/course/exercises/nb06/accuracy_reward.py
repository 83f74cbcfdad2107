from grpo_lab.course.exercise import Dice, Exercise, Misconception, drawn, extreme, given
from grpo_lab.rewards import accuracy_reward


def said(answer, thought="so"):
    return f"<think>{thought}</think><answer>{answer}</answer>"


def _many(dice: Dice) -> tuple[list[str], list]:
    """300 rows: right, wrong, right in an earlier block, without a block; some without an expected answer."""
    answers, kinds = dice.integers(20, 300).tolist(), dice.integers(5, 300).tolist()
    texts = [
        (said(a), said(a + 1), said(a) + said(a + 1), f"{a}", said(a + 1) + said(f" {a}\n"))[kind]
        for a, kind in zip(answers, kinds, strict=True)
    ]
    return texts, [(a, f" {a}", None)[row % 3] for row, a in enumerate(answers)]


TALK = [
    {"role": "user", "content": said("3")},
    {"role": "assistant", "content": said("4\n")},
    {"role": "user", "content": said("5")},
    {"role": "assistant", "content": "Yes."},
]
MARKS = ("", ".", "'", '"', "$", "%", "!", "(", "-", "*")


EXERCISE = Exercise(
    function=accuracy_reward,
    points=3,
    minutes=15,
    difficulty=1,
    task="Reward a response whose last answer block holds the expected text, and nothing else. The policy will find "
    "every way in which this is not what you wrote.",
    hints=(
        "Three tools are there: `completion_text`, `extract_answer`, `normalise_text`. In which order?",
        "Both sides have to be in the same form before they are compared, and an expected answer may be an int.",
        "Two questions at the end: what if nothing was answered, and what if no answer was expected (None)?",
    ),
    cases=(
        given("right", [said("4")], ["4"]),
        given("wrong", [said("5")], ["4"]),
        given("right in the thinking alone", [said("5", thought="4")], ["4"]),
        given("the right answer among others", [said("3 4 5")], ["4"]),
        given("no answer block", ["4"], ["4"]),
        given("nothing answered, nothing expected", [said("")], [""]),
        given("written differently", [said("１，０００"), said("a  b")], ["1000", "a b"]),
        given("an expected number", [said("4")], [4]),
        given("no answer is known", [said("4"), said("4")], [None, "4"]),
        given("expected in another form", [said("1000"), said("a b"), said("12")], ["1,000", "a  b", "１２"]),
        given("a conversation", [TALK], ["4"]),
        given("the same number or word, but another text", [said("4.0"), said("paris")], ["4", "Paris"]),
        given("right in a block before the last", [said("4") + said("5"), said("4") + said("")], ["4", "4"]),
        given("the expected number is 0", [said("0"), said("1"), said("")], [0, 0, 0]),
        given("white space expected", [said(""), said(" "), said("4")], [" ", " ", " "]),
        given("numbers in another form", [said("1,000"), said("-4"), said("１２")], [1000, -4, 12]),
        given("the same text around it", [said(f"{c}4{c}") for c in MARKS], ["4"] * len(MARKS)),
        given(
            "other letters",
            [said("北京"), said("Straße"), said("e\u0301"), said("10²")],
            ["北京", "STRASSE", "é", "102"],
        ),
        given("other columns", [said("4")], ["4"], prompts=["4?"], completion_ids=[[4]], solution=["5"], level=[1]),
        drawn("300 responses", _many),
        extreme("a long response", [said("4", thought="4 or 5\n" * 3000), said("4 " * 3000)], ["4", "4"]),
    ),
    misconceptions={
        "empty-matches": Misconception(
            "An empty answer counts as right where an empty text is expected. One broken row in the data, and silence "
            "pays. What besides equality has to hold?",
            {"6.2": "reward = float(given == normalise_text(str(expected)))"},
        ),
        "reward-contains": Misconception(
            "An answer that *contains* the expected text is right for you. So '1 2 3 4 5 6 7 8 9' is right for any "
            "digit, and the policy will list them all. Equal is more than contained.",
            {"6.2": "reward = float(given != '' and normalise_text(str(expected)) in given)"},
        ),
        "not-normalised": Misconception(
            "You compare the texts as they are: '1,000' is wrong where '1000' is expected, and so are full-width "
            "digits and double spaces. A right answer punished teaches the opposite.",
            {
                "completion_text()": "given = extract_answer(completion_text(completion)) or ''",
                "6.2": "reward = float(given != '' and given == str(expected))",
            },
        ),
        "none-as-zero": Misconception(
            "Where no answer is known you give 0. That says *wrong*, and pulls the group down. None says that this "
            "reward does not apply.",
            {"append()": "rewards.append(reward)"},
        ),
        "numbers-unequal": Misconception(
            "You compare the expected value as it comes: the int 4 is never equal to the text '4', and a group that "
            "answers right earns nothing. Both sides need the same form.",
            {"6.2": "reward = float(given != '' and given == expected)"},
        ),
        "block-not-needed": Misconception(
            "Without an answer block you take the whole text. Then the format is never learned, and a response cut off "
            "in its thinking can still be right by chance.",
            {
                "completion_text()": "given = normalise_text(extract_answer(completion_text(completion)) or "
                "completion_text(completion))"
            },
        ),
    },
)
