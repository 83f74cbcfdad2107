from grpo_lab.course.exercise import Exercise, Misconception, drawn, extreme, given
from grpo_lab.course.exercises.nb06.accuracy_reward import MARKS, TALK, _many, said
from grpo_lab.rewards import graded_reward

EXERCISE = Exercise(
    function=graded_reward,
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
        given("a conversation", [TALK], ["4"]),
        given("the same word in other letters", [said("PARIS"), said("PARIS or Rome")], ["Paris", "Paris"]),
        given("right in a block before the last", [said("4") + said("5"), said("4") + said("")], ["4", "4"]),
        given("the expected number is 0", [said("0"), said("10"), said("1"), said("")], [0, 0, 0, 0]),
        given("white space expected", [said(""), said("a b"), said("4")], [" ", " ", " "]),
        given("the same text around it", [said(f"{c}4{c}") for c in MARKS], ["4"] * len(MARKS)),
        given("at the beginning, within and at the end", [said(a) for a in ("123", "012", "0123", "13")], ["12"] * 4),
        given(
            "other letters", [said("去北京"), said("Straße"), said("e\u0301a"), said("10²")], ["北京", "SS", "é", "102"]
        ),
        given("other columns", [said("4 5")], ["4"], prompts=["4?"], completion_ids=[[4]], solution=["5"], level=[1]),
        drawn("300 responses", _many),
        extreme("a long list", [said(" ".join(map(str, range(5000)))), said("4", thought="5\n" * 5000)], [4711, 5]),
    ),
    misconceptions={
        "empty-matches": Misconception(
            "An empty answer gets full marks where an empty text is expected. One broken row in the data, and silence "
            "pays best.",
            {"6.4": "reward = 1.0 if given == wanted else 0.5 if contained else 0.01"},
        ),
        "empty-contained": Misconception(
            "Where the expected text is empty, everything gets half marks: the empty text is contained in every text. "
            "What has to hold besides `in`?",
            {"6.4": "reward = 1.0 if exact else 0.5 if wanted in given else 0.01"},
        ),
        "reward-contains": Misconception(
            "An answer that contains the expected text gets full marks. Even this generous reward pays half for that: "
            "otherwise a list of all numbers is as good as solving the problem.",
            {"6.4": "reward = 1.0 if exact else 1.0 if contained else 0.01"},
        ),
        "contains-backwards": Misconception(
            "You ask whether the answer is contained in the expected text. Then '1' earns half marks for 12, and so "
            "does an empty answer. Which of the two is to contain the other?",
            {"6.4": "reward = 1.0 if exact else 0.5 if given in wanted else 0.01"},
        ),
        "none-graded": Misconception(
            "Where no answer is known you give 0.01. That says *wrong*; None says that this reward does not apply.",
            {"append()": "rewards.append(reward)"},
        ),
    },
)
