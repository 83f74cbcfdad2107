from grpo_lab.course.exercise import Exercise, Misconception, drawn, extreme, f64, given
from grpo_lab.toys.sorting import kl_penalty

EXERCISE = Exercise(
    function=kl_penalty,
    points=3,
    minutes=12,
    difficulty=2,
    task="Charge the policy for moving away from the reference: one number, to be added to the loss.",
    hints=(
        "Eq. (3.19) needs k3 of each number that was drawn. You may call `kl_estimate` of notebook 04, or write it.",
        "This term is there to be differentiated. An estimator with the right value can have the wrong gradient.",
        "The reference is a frozen copy. What does that mean for its log-probabilities in the loss?",
    ),
    cases=(
        given("half as likely as under the reference", f64([[0.25]]).log(), f64([[0.5]]).log(), 1.0),
        given("twice as likely as under the reference", f64([[0.5]]).log(), f64([[0.25]]).log(), 1.0),
        given("no distance", f64([[-1.0, -2.0]]), f64([[-1.0, -2.0]]), 0.5),
        drawn("many numbers", lambda d: (*d.moved(5, 3, scale=0.7), 0.04)),
        drawn("as many responses as numbers", lambda d: (*d.moved(4, 4, scale=0.7), 1.5)),
        extreme("e^200 times less likely than under the reference", f64([[-201.0]]), f64([[-1.0]]), 0.5),
        extreme("e^200 times likelier than under the reference", f64([[-1.0]]), f64([[-201.0]]), 0.5),
    ),
    gradient_of=("logp", "ref_logp"),
    misconceptions={
        "k1-as-loss": Misconception(
            "This is k1, the difference of the two log-probabilities: without bias as a *value*. But a loss is there "
            "to be differentiated, and the gradient of k1 is the score: zero on average, noise every time. Does your "
            "penalty know where the reference is, once it is differentiated?",
            {"3.19": "penalty = beta * kl_estimate(logp, ref_logp, 'k1').mean()"},
        ),
        "k2-for-k3": Misconception(
            "This is k2, half the squared difference. Near the reference it looks like k3, and its gradient is a good "
            "one, but Eq. (3.19) asks for k3. Notebook 04 tells them apart.",
            {"3.19": "penalty = beta * kl_estimate(logp, ref_logp, 'k2').mean()"},
        ),
        "kl-reversed": Misconception(
            "Your d has the other sign. The result is never negative and zero where the two agree, so it looks right, "
            "but it estimates another quantity, and explodes just where samples are plenty. In which order do the two "
            "stand in Eq. (4.1)?",
            {"3.19": "penalty = beta * kl_estimate(-logp, -ref_logp, 'k3').mean()"},
        ),
        "reference-not-detached": Misconception(
            "The value is right, but a gradient flows into the reference: it would be pulled towards the policy. "
            "Which of the two is meant to move?",
            {"3.19": "penalty = beta * ((ref_logp - logp).expm1() - (ref_logp - logp)).mean()"},
        ),
        "sum-over-numbers": Misconception(
            "You average over responses but add up over their numbers, so long responses pay more. By what does "
            "Eq. (3.19) divide?",
            {"3.19": "penalty = beta * kl_estimate(logp, ref_logp, 'k3').sum(-1).mean()"},
        ),
    },
)
