from grpo_lab.course.exercise import Dice, Exercise, Misconception, drawn, extreme, given
from grpo_lab.evaluate import pass_at_k


def _numbers(dice: Dice) -> tuple[int, ...]:
    n = 6 + int(dice.integers(20, 1)[0])
    return n, 2 + int(dice.integers(n - 5, 1)[0]), 2 + int(dice.integers(3, 1)[0])


EXERCISE = Exercise(
    function=pass_at_k,
    points=2,
    minutes=10,
    difficulty=1,
    task="The chance that at least one of k completions is right, from n completions of which c were right. It tells a "
    "policy that learned something new from one that is only surer of what it knew.",
    hints=(
        "At least one right: what is the opposite of that?",
        "Draw k of the n completions, without putting any back. In how many ways are all of them wrong? `math.comb` "
        "counts.",
    ),
    cases=(
        given("one of two is right, one drawn", 2, 1, 1),
        given("one of two is right, both drawn", 2, 1, 2),
        given("none is right", 5, 0, 3),
        given("fewer wrong ones than drawn", 5, 4, 2),
        given("as many drawn as there are wrong ones", 6, 2, 4),
        drawn("other numbers", _numbers),
        extreme("one of ten thousand, half of them drawn", 10_000, 1, 5_000),
        extreme("many of thousands", 4_000, 3, 1_500),
        extreme("a single one, wrong", 1, 0, 1),
    ),
    misconceptions={
        "k-ignored": Misconception(
            "This is pass@1, the share of right completions. Drawing more often gives more chances: what changes with "
            "k?",
            {"7.1": "estimate = c / n"},
        ),
        "with-replacement": Misconception(
            "You draw with replacement, as if the share c / n were the true chance. It is only an estimate, and its "
            "power is biased downwards: of two completions one right, both drawn, you give 0.75, but one of them *is* "
            "right. How often is a group of k *different* completions all wrong?",
            {"7.1": "estimate = 1 - (1 - c / n) ** k"},
        ),
        "all-wrong": Misconception(
            "This is the chance that all k are wrong. One step is missing.",
            {"7.1": "estimate = math.comb(n - c, k) / math.comb(n, k)"},
        ),
    },
)
