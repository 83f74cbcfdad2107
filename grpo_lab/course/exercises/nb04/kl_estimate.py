from grpo_lab.course.exercise import Exercise, Misconception, drawn, extreme, f64, given
from grpo_lab.kl import kl_estimate

NAMES = ("k1", "k2", "k3", "k3+")
HALF, QUARTER = f64([[0.5]]).log(), f64([[0.25]]).log()

EXERCISE = Exercise(
    function=kl_estimate,
    points=6,
    minutes=25,
    difficulty=3,
    task="Write the three estimators, and the one that has the value of k3 with the gradient of k2. To have the right "
    "value and to have the right gradient are two different things, and the check looks at both.",
    hints=(
        "Everything is made of one number for each token, d. Write that line first, and mind its order.",
        "The reference is fixed. A gradient may flow into one of the two log-probabilities only.",
        "For 'k3+': x minus sg[x] has the value zero, and the gradient of x. What do you add to give it another value "
        "and no other gradient?",
        "k3 is the difference of two nearly equal numbers when the policies are close. `expm1` computes one of them "
        "without losing digits.",
    ),
    cases=(
        *(given(f"{name}, twice as likely as under the reference", HALF, QUARTER, name) for name in NAMES),
        given("k1, half as likely as under the reference", QUARTER, HALF, "k1"),
        given("k3, half as likely as under the reference", QUARTER, HALF, "k3"),
        given("no distance, and no estimator named", f64([[-1.0, -2.0]]), f64([[-1.0, -2.0]])),
        *(drawn(name, lambda d, name=name: (*d.moved(2, 3), name)) for name in NAMES),
        *(extreme(f"{name}, 200 nats apart", f64([[-0.5, -200.5]]), f64([[-200.5, -0.5]]), name) for name in NAMES),
    ),
    gradient_of=("logp", "ref_logp"),
    misconceptions={
        "kl-reversed": Misconception(
            "Your d has the other sign. k2 does not notice, k1 comes out negated, and k3 stays positive and looks "
            "right, but it estimates another quantity and pulls on the wrong tokens. "
            "Of the two, whose log-probability comes first in Eq. (4.1)?",
            {"4.1": "d = logp - ref_logp.detach()"},
        ),
        "kl-reversed-in-k3": Misconception(
            "Your k1 is right, and in k3 the exponent has the other sign. The result is never negative, and zero where "
            "the policies agree, but its average is a chi-square divergence less the KL. Which quotient of "
            "probabilities averages to 1 under the policy?",
            {"4.4": "k3 = (-d).expm1() + d"},
        ),
        "reference-not-detached": Misconception(
            "The values are right, but a gradient flows into the reference as well. In training, which of the two is "
            "meant to move?",
            {"4.1": "d = ref_logp - logp"},
        ),
        "k2-not-halved": Misconception(
            "Your k2 is twice as large as it should be. Near d = 0 it should agree with k3: expand the exponential to "
            "second order and compare.",
            {"4.3": "k2 = d.square()"},
        ),
        "k1-as-loss": Misconception(
            "Your k3+ has the right value and the gradient of k1. On average that gradient is zero: as a term of the "
            "loss it is noise and nothing else. Which estimator's gradient is worth having?",
            {"4.5": "k3_plus = k1 - k1.detach() + k3.detach()"},
        ),
        "k3-plus-is-k3": Misconception(
            "Your k3+ is k3, gradient included, and that is the gradient of the *forward* KL. Which factor should be "
            "frozen, and which should carry the gradient?",
            {"4.5": "k3_plus = k3"},
        ),
    },
)
