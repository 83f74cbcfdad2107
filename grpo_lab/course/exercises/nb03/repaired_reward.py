from torch import tensor

from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, extreme, given
from grpo_lab.toys.sorting import repaired_reward

EXERCISE = Exercise(
    function=repaired_reward,
    points=4,
    minutes=15,
    difficulty=2,
    task="Close the hole: a number that stands twice in the prompt has to stand twice in the response. A reward is "
    "optimised as it is written, so write what you mean.",
    hints=(
        "For each number: how often does it stand in the prompt, how often in the response? Which of the two counts "
        "may pay, if the other is smaller?",
        "You need a table of counts for prompts and for responses. `one_hot` followed by a sum makes one; so does a "
        "comparison with every number there is.",
        "The points for order are those of `ascending_pairs`, which you may call.",
    ),
    cases=(
        given("two numbers, in the wrong order", tensor([[1, 2]]), tensor([[2, 1]])),
        given("a number that stands twice in the prompt", tensor([[1, 1, 2]]), tensor([[1, 2, 2]])),
        given("one right number, repeated", tensor([[1, 2, 3]]), tensor([[2, 2, 2]])),
        given("sorted, with a repetition", tensor([[1, 2, 1]]), tensor([[1, 1, 2]])),
        given("nothing right, falling", tensor([[1, 1, 2]]), tensor([[9, 8, 7]])),
        drawn("few numbers, many repetitions", lambda d: (d.integers(3, 8, 4), d.integers(3, 8, 4))),
        extreme("large numbers", tensor([[4000, 0, 4000]]), tensor([[0, 4000, 4001]])),
        at_scale("300 numbers", lambda d: (d.integers(100, 7, 300), d.integers(100, 7, 300))),
    ),
    misconceptions={
        "set-inclusion": Misconception(
            "This is the reward that can be gamed: each number of the prompt asks only whether it is there "
            "*somewhere*, so two equal ones are both content with a single copy. How many copies should it take?",
            {"3.5": "included = (copies[0] * (copies[1] > 0)).sum(-1)"},
        ),
        "response-counted": Misconception(
            "You go through the response and ask of each number whether the prompt has it. Then repeating one right "
            "number pays every time. What limits how often a number may pay?",
            {"3.5": "included = (copies[1] * (copies[0] > 0)).sum(-1)"},
        ),
        "distinct-numbers": Misconception(
            "Each number pays once at most, however often it stands in both. Take the prompt (1, 1, 2): what should "
            "its sorted form score, and what does it score here?",
            {"3.5": "included = (copies > 0).all(0).sum(-1)"},
        ),
        "order-ignored": Misconception(
            "The right numbers score, in whatever order. Nobody would learn to sort from that: which term of Eq. (3.6) "
            "is missing?",
            {"3.6": "rewards = included.float()"},
        ),
    },
)
