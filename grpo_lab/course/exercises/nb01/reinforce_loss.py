from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, f64, given
from grpo_lab.policy_gradient import reinforce_loss

EXERCISE = Exercise(
    function=reinforce_loss,
    points=3,
    minutes=10,
    difficulty=1,
    task="Write the loss whose gradient is minus the Monte-Carlo estimate of the policy gradient. Its value says "
    "nothing; its gradient is everything.",
    hints=(
        "Optimisers go downhill, and you want the reward to go up.",
        "The weights are numbers from outside. What should a change of the policy do to them?",
        "An estimate of an expectation from B samples: each sample brings its own product, and then they are averaged.",
    ),
    cases=(
        given("one sample", f64([-2.0]), f64([3.0])),
        given("one rewarded, one not", f64([0.5, 0.25]).log(), f64([1.0, 0.0])),
        given("every weight 1", f64([-1.0, -3.0, -2.0]), f64([1.0, 1.0, 1.0])),
        drawn("seven samples", lambda d: (d.logp(7), d.normal(7))),
        at_scale("300 samples, long and unlikely", lambda d: (300 * d.logp(300), d.normal(300))),
    ),
    gradient_of=("seq_logp", "weights"),
    misconceptions={
        "ascends": Misconception(
            "Right except for its sign. An optimiser makes the loss smaller: as you wrote it, a rewarded response "
            "becomes less likely with every step.",
            {"1.5": "loss = (weights.detach() * seq_logp).mean()"},
        ),
        "weights-not-detached": Misconception(
            "The value is right, but a gradient flows into the weights. If they depend on the policy, as a KL penalty "
            "in the reward does, that adds a second, unwanted term. What are weights to the policy gradient?",
            {"1.5": "loss = -(weights * seq_logp).mean()"},
        ),
        "sum-not-mean": Misconception(
            "You add the samples up. Double the batch and your step doubles too, at the same learning rate. What "
            "estimates an expectation?",
            {"1.5": "loss = -(weights.detach() * seq_logp).sum()"},
        ),
        "probability-not-log": Misconception(
            "You weight the probability, not its logarithm. The samples are *drawn* from the policy, so each counts "
            "with its probability already; yours count with its square. Which factor does the log-derivative trick "
            "leave?",
            {"1.5": "loss = -(weights.detach() * seq_logp.exp()).mean()"},
        ),
        "product-of-means": Misconception(
            "This is the product of two averages, as comes out, too, where a column meets a row and every reward is "
            "paired with every response. Then each gets the same push, whatever it earned. Which reward belongs to "
            "which response?",
            {"1.5": "loss = -(weights.detach().mean() * seq_logp).mean()"},
        ),
    },
)
