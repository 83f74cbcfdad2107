from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, extreme, f64, given
from grpo_lab.policy_gradient import score_function_objective

EXERCISE = Exercise(
    function=score_function_objective,
    points=3,
    minutes=12,
    difficulty=2,
    task="Sum over all responses to get the expectation of the REINFORCE estimate exactly. Its gradient is that of the "
    "expected reward: the log-derivative trick, as a function that you can check.",
    hints=(
        "An expectation under the policy is a sum over all responses, each weighted by its probability.",
        "The symbol sg[.] freezes what stands in it: it counts as a number. What stands in it here, and what does not?",
        "Differentiate by hand for two responses. The gradient by log pi(y) should be pi(y) R(y) and nothing else.",
    ),
    cases=(
        given("probabilities 1/4 and 3/4, one reward", f64([0.25, 0.75]).log(), f64([1.0, 0.0])),
        given("a reward and a penalty", f64([0.25, 0.75]).log(), f64([3.0, -2.0])),
        drawn("eight responses", lambda d: (d.normal(8).log_softmax(-1), d.normal(8))),
        extreme("one whose probability is too small for a float", f64([-800.0, 0.0]), f64([1.0, 1.0])),
        at_scale(
            "300 responses, some 200 less likely", lambda d: (d.normal(300, scale=60.0).log_softmax(-1), d.normal(300))
        ),
    ),
    gradient_of=("seq_logp",),
    misconceptions={
        "nothing-stopped": Misconception(
            "The value is right, the gradient is not: the probability in front carries a gradient as well, so the "
            "product rule adds a second term. Which factor is only a weight?",
            {"1.6": "objective = (seq_logp.exp() * rewards * seq_logp).sum()"},
        ),
        "probability-missing": Misconception(
            "Every response counts the same in your sum. When you *sample*, likely ones turn up more often, and that "
            "does the weighting. What does it when all are listed once?",
            {"1.6": "objective = (rewards * seq_logp).sum()"},
        ),
        "wrong-factor-stopped": Misconception(
            "You stopped the gradient of the logarithm and left that of the probability. Which of the two is "
            "differentiated in Eq. (1.d), and which only weights it?",
            {"1.6": "objective = (seq_logp.exp() * rewards * seq_logp.detach()).sum()"},
        ),
        "expected-reward": Misconception(
            "This is Eq. (1.4), the expected reward itself. Its gradient is the one you are after, but here you are to "
            "get it the way sampling does: with a frozen probability, and something live to carry the gradient.",
            {"1.6": "objective = (seq_logp.exp() * rewards).sum()"},
        ),
    },
)
