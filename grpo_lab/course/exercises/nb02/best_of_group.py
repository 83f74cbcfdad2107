import torch

from grpo_lab.advantages import best_of_group
from grpo_lab.course.exercise import Exercise, Misconception, drawn, extreme, f64, given

EXERCISE = Exercise(
    function=best_of_group,
    points=3,
    minutes=10,
    difficulty=1,
    task="Keep the reward of the best completion of each group and drop the others: rejection sampling, written as "
    "weights.",
    hints=(
        "Two conditions stand in Eq. (2.6). What does each of them rule out?",
        "Compare the rewards with their row's largest and smallest; `amax` and `amin` with `keepdim` make them fit. "
        "What happens to ties then?",
    ),
    cases=(
        given("two good ones and a bad one", f64([[0.0, 3.0, 2.0]])),
        given("a tie at the top", f64([[2.0, 2.0, 1.0]])),
        given("equal rewards", f64([[1.0, 1.0]])),
        given("negative rewards", f64([[-1.0, -3.0, -2.0]])),
        given("an easy prompt and a hard one", f64([[5.0, 6.0, 4.0], [1.0, 0.0, 2.0]])),
        drawn("as many prompts as completions, ties", lambda d: (d.integers(3, 4, 4).double(),)),
        extreme("best by one part in 10^12", f64([[1.0, 1.0 + 1e-12], [5e6, 5e6 + 1e-6]])),
        extreme(
            "equal rewards whose mean is another number", torch.tensor([[0.9] * 3, [1.8] * 3, [3.1] * 3, [-3.6] * 3])
        ),
    ),
    misconceptions={
        "first-of-ties": Misconception(
            "Of several best completions you keep the first. They earned the same, and which of them stands first is "
            "chance. What does Eq. (2.6) say about ties?",
            {
                "2.6": "weights = torch.where((torch.arange(rewards.shape[1]) == rewards.argmax(-1, "
                "keepdim=True)) & (best > worst), rewards, 0)"
            },
        ),
        "equal-group-kept": Misconception(
            "In a group of equal rewards everyone is the best, so you push all of them up, although none was better "
            "than the others. Which part of Eq. (2.6) is there to prevent that?",
            {"2.6": "weights = torch.where(rewards == best, rewards, 0)"},
        ),
        "one-not-reward": Misconception(
            "You mark the best with a 1. That is a mask; the weight is what the best earned.",
            {"2.6": "weights = torch.where((rewards == best) & (best > worst), torch.ones_like(rewards), 0)"},
        ),
        "group-mixed": Misconception(
            "You take the maximum down the columns, so answers to different prompts compete. Which axis holds the "
            "answers to one prompt?",
            {"reduce()": "best, worst = reduce(rewards, 'P G -> 1 G', 'max'), reduce(rewards, 'P G -> 1 G', 'min')"},
        ),
    },
)
