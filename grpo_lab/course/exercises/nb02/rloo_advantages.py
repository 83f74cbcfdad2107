from grpo_lab.advantages import rloo_advantages
from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, f64, given

EXERCISE = Exercise(
    function=rloo_advantages,
    points=3,
    minutes=10,
    difficulty=1,
    task="Compare each completion with the mean of the others. Since that baseline never sees the reward it is "
    "subtracted from, the estimate is unbiased.",
    hints=(
        "For each completion: how many others are there, and what do they earn together?",
        "You don't need a loop. The sum over the others is the sum over all, less one of them.",
    ),
    cases=(
        given("one right, one wrong", f64([[1.0, 0.0]])),
        given("one right of three", f64([[3.0, 0.0, 0.0]])),
        given("equal rewards", f64([[2.0, 2.0, 2.0]])),
        given("an easy prompt and a hard one", f64([[11.0, 9.0], [0.0, 2.0]])),
        drawn("as many prompts as completions", lambda d: (d.normal(3, 3),)),
        at_scale("a million from zero", lambda d: (1e6 + d.normal(3, 40),)),
    ),
    misconceptions={
        "leave-one-out-includes-itself": Misconception(
            "You subtract the mean of the whole group, and the completion's own reward is part of it: each is compared "
            "with itself a little. With two completions everything comes out half as large. Who are 'the others'?",
            {"2.5": "advantages = r - r.mean(-1, keepdim=True)"},
        ),
        "others-divided-by-all": Misconception(
            "You add up the others, but divide by the size of the whole group, so your baseline is too small. Equal "
            "rewards should give zero. How many others are there?",
            {"2.5": "advantages = rewards - (rewards.sum(-1, keepdim=True) - rewards) / rewards.shape[1]"},
        ),
        "no-centre": Misconception(
            "These are the rewards themselves. If all completions of a prompt are right, all are pushed up, and none "
            "was better than the others. What is missing?",
            {"2.5": "advantages = rewards"},
        ),
        "divided-by-std": Misconception(
            "You divide by the standard deviation as well. That is a habit of GRPO; leave-one-out does without, and "
            "the own reward, which sits in that spread, would make it biased again.",
            {
                "2.5": "advantages = (r - (r.sum(-1, keepdim=True) - r) / (r.shape[1] - 1)) / (r.std(-1, "
                "keepdim=True) + 0.0001)"
            },
        ),
    },
)
