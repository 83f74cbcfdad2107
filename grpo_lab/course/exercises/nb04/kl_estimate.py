"""The exercise kl_estimate: wrong answers, as people write them, then what is said about each."""

from grpo_lab.course.changed import changed
from grpo_lab.course.exercise import Exercise, Misconception
from grpo_lab.course.exercises._inputs import at_scale, drawn, extreme, f64, given, refused
from grpo_lab.kl import kl_estimate


def _near(d, B, T, scale=1.0):
    ref = d.logp(B, T)
    return d.logp_near(ref, scale), ref


def _in_float32(d, B, T):
    return tuple(x.float() for x in _near(d, B, T))


NAMES = ("k1", "k2", "k3", "k3+")
HALF, QUARTER = f64([[0.5]]).log(), f64([[0.25]]).log()

EXERCISE = Exercise(
    function=kl_estimate,
    notebook="04",
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
        given("k1, twice as likely as under the reference", HALF, QUARTER, "k1"),
        given("k2, twice as likely as under the reference", HALF, QUARTER, "k2"),
        given("k3, twice as likely as under the reference", HALF, QUARTER, "k3"),
        given("k3+, twice as likely as under the reference", HALF, QUARTER, "k3+"),
        given("k1, half as likely as under the reference", QUARTER, HALF, "k1"),
        given("k3, half as likely as under the reference", QUARTER, HALF, "k3"),
        given("no distance, and no estimator named", f64([[-1.0, -2.0]]), f64([[-1.0, -2.0]])),
        given("no distance, k3+", f64([[-1.0, -2.0]]), f64([[-1.0, -2.0]]), "k3+"),
        *(drawn(name, lambda d, name=name: (*_near(d, 2, 3), name)) for name in ("k1", "k2", "k3")),
        drawn("k3+", lambda d: (*_near(d, 3, 3), "k3+")),
        *(
            given(f"{name}, one token that agrees", f64([[-1.0], [-2.0]]), f64([[-1.0], [-0.5]]), name)
            for name in NAMES
        ),
        drawn("far apart, no estimator named", lambda d: _near(d, 4, 2, scale=4.0)),
        extreme("k3, 200 nats apart", f64([[-0.5, -200.5]]), f64([[-200.5, -0.5]]), "k3"),
        extreme("k3+, 200 nats apart", f64([[-0.5, -200.5]]), f64([[-200.5, -0.5]]), "k3+"),
        extreme("k3, probabilities of e^-800", f64([[-800.0, -801.0]]), f64([[-801.0, -800.5]]), "k3"),
        extreme("k3+, probabilities of e^-800", f64([[-800.0, -801.0]]), f64([[-801.0, -800.5]]), "k3+"),
        *(
            extreme(f"{name}, close together", f64([[-1.0, -2.0, -3.0]]), f64([[-1.0009, -1.99991, -3.00001]]), name)
            for name in NAMES
        ),
        *(extreme(f"{name}, almost certain", f64([[-3e-7, -2e-4]]), f64([[-5e-4, -1e-7]]), name) for name in NAMES),
        *(
            extreme(f"{name}, 20000 nats", f64([[-20000.0, -20000.25]]), f64([[-20000.5, -20000.0]]), name)
            for name in NAMES
        ),
        *(extreme(f"{name}, 100000 nats apart", f64([[-1.0]]), f64([[-100000.0]]), name) for name in NAMES),
        at_scale("k1, 300 tokens", lambda d: (*_near(d, 7, 300, scale=50.0), "k1")),
        at_scale("k2, 300 tokens", lambda d: (*_near(d, 7, 300, scale=50.0), "k2")),
        at_scale("k3, 300 tokens", lambda d: (*_near(d, 7, 300, scale=4.0), "k3")),
        at_scale("k3+, 300 tokens", lambda d: (*_near(d, 7, 300, scale=4.0), "k3+")),
        at_scale("k3 in float32", lambda d: (*_in_float32(d, 4, 30), "k3")),
        at_scale("k3+ in float32", lambda d: (*_in_float32(d, 4, 30), "k3+")),
        refused("an estimator that there is not", HALF, QUARTER, "k4"),
        refused("the name of k3 in another library", HALF, QUARTER, "low_var_kl"),
        refused("a capital letter", HALF, QUARTER, "K3"),
        refused("a longer name", HALF, QUARTER, "k10"),
        *(
            refused(f"{name!r} for a name", HALF, QUARTER, name)
            for name in ("k1+", "k2+", "k3++", "K1", "k", "3", "k3 ")
        ),
        refused("no name", HALF, QUARTER, ""),
        refused("two tokens, the reference of one", f64([[-1.0, -2.0]]), QUARTER, "k1"),
        refused("one answer, the reference of two", HALF, f64([[-1.0], [-2.0]])),
        refused("two answers, the reference of one", f64([[-1.0], [-2.0]]), HALF, "k3+"),
        refused("one token, the reference of two", HALF, f64([[-1.0, -2.0]]), "k2"),
        refused("a reference without its batch", f64([[-1.0, -2.0]]), f64([-1.0, -2.0]), "k3"),
        refused("a reference of one number for all", f64([[-1.0, -2.0]]), f64(-1.0), "k1"),
        refused("two answers of one token, the reference of one of two", f64([[-1.0], [-2.0]]), f64([[-1.0, -2.0]])),
    ),
    gradient_of=("logp", "ref_logp"),
    misconceptions=(
        Misconception(
            "kl-reversed",
            changed(kl_estimate, ("ref_logp.detach() - logp", "logp - ref_logp.detach()")),
            "Your d has the other sign. k2 does not notice, k1 comes out negated, and k3 stays positive and looks "
            "right, but it estimates another quantity and pulls on the wrong tokens. "
            "Of the two, whose log-probability comes first in Eq. (4.1)?",
            "4.1",
        ),
        Misconception(
            "kl-reversed-in-k3",
            changed(kl_estimate, ("d.expm1() - d", "(-d).expm1() + d")),
            "Your k1 is right, and in k3 the sign of the exponent is turned round. The result is never negative and "
            "zero where the policies agree, so it passes for k3. Its average is a chi-square divergence less the KL. "
            "Which quotient of probabilities averages to 1 under the policy?",
            "4.4",
        ),
        Misconception(
            "k1-sign-turned",
            changed(kl_estimate, ("k1 = -d", "k1 = d")),
            "Your k1 is d itself. When the policy likes its tokens better than the reference does, should the distance "
            "be positive or negative?",
            "4.2",
        ),
        Misconception(
            "reference-not-detached",
            changed(kl_estimate, ("ref_logp.detach()", "ref_logp")),
            "The values are right, but a gradient flows into the reference as well. In training, which of the two is "
            "meant to move?",
            "4.1",
        ),
        Misconception(
            "k2-not-halved",
            changed(kl_estimate, ("d.square() / 2", "d.square()")),
            "Your k2 is twice as large as it should be. Near d = 0 it should agree with k3: expand the exponential to "
            "second order and compare.",
            "4.3",
        ),
        Misconception(
            "k3-without-k1",
            changed(kl_estimate, ("d.expm1() - d", "d.expm1()")),
            "You return the part of k3 whose average is zero, and left out the part that is the estimate. On average "
            "your k3 says that the policies never differ.",
            "4.4",
        ),
        Misconception(
            "k3-without-minus-one",
            changed(kl_estimate, ("d.expm1()", "d.exp()")),
            "Where the two policies agree, your k3 is 1. What should a distance be there?",
            "4.4",
        ),
        Misconception(
            "k3-held",
            changed(kl_estimate, ("d.expm1() - d", "(d.clamp(-20, 20).expm1() - d.clamp(-20, 20)).clamp(max=10)")),
            "You hold k3 at 10, as verl does. Nothing overflows, but a token that far away has no gradient any more, "
            "just where the policy has run furthest from the reference. Eq. (4.4) knows no bound.",
            "4.4",
        ),
        Misconception(
            "k1-absolute",
            changed(kl_estimate, ("k1 = -d", "k1 = d.abs()")),
            "You take the absolute value of k1. Never negative, but now its average is too large: the negative samples "
            "were what made it come out right.",
            "4.2",
        ),
        Misconception(
            "k1-as-loss",
            changed(kl_estimate, ("k2 - k2.detach()", "k1 - k1.detach()")),
            "Your k3+ has the right value and the gradient of k1. On average that gradient is zero: as a term of the "
            "loss it is noise and nothing else. Which estimator's gradient is worth having?",
            "4.5",
        ),
        Misconception(
            "k3-plus-is-k3",
            changed(kl_estimate, ("return k3_plus", "return k3")),
            "Your k3+ is k3, gradient included, and that is the gradient of the *forward* KL. Which factor should be "
            "frozen, and which should carry the gradient?",
            "4.5",
        ),
        Misconception(
            "k3-plus-is-k2",
            changed(kl_estimate, ("return k3_plus", "return k2")),
            "Your k3+ has the value of k2. Of the two values that stand in Eq. (4.5), which is unbiased?",
            "4.5",
        ),
        Misconception(
            "k3-plus-exchanged",
            changed(kl_estimate, ("k2 - k2.detach() + k3.detach()", "k3 - k3.detach() + k2.detach()")),
            "Your k3+ has the value of k2 and the gradient of k3: the two are exchanged. Which of them is unbiased as "
            "a value, and which pulls along the gradient of KL(pi || ref)?",
            "4.5",
        ),
        Misconception(
            "k3-plus-frozen",
            changed(kl_estimate, ("k2 - k2.detach() + k3.detach()", "k3.detach()")),
            "Your k3+ has the right value and no gradient at all: it shows in the log and holds nothing. "
            "What has the value zero, but a gradient?",
            "4.5",
        ),
        Misconception(
            "k3-plus-adds-up",
            changed(kl_estimate, ("k2 - k2.detach()", "k2")),
            "The gradient of your k3+ is right, but its value is that of k2 and k3 together. How do you bring in a "
            "gradient without bringing in its value?",
            "4.5",
        ),
    ),
)
