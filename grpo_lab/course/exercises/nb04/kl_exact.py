"""The exercise kl_exact: wrong answers, as people write them, then what is said about each."""

from grpo_lab.course.changed import changed
from grpo_lab.course.exercise import Exercise, Misconception
from grpo_lab.course.exercises._inputs import at_scale, drawn, extreme, f64, given, refused
from grpo_lab.kl import kl_exact


def _two(d, *shape, scale=1.0):
    return d.normal(*shape, scale=scale), d.normal(*shape, scale=scale)


def _with_far(d):
    """Gaps of hundreds, where gradients are as good as 0, beside an ordinary answer, where they are not."""
    far = f64([1.0, 300.0, 300.0])[:, None, None]
    return tuple(far * x for x in _two(d, 3, 5, 11))


EXERCISE = Exercise(
    function=kl_exact,
    notebook="04",
    points=4,
    minutes=15,
    difficulty=2,
    task="Sum over the whole vocabulary: the KL divergence that the estimators of one sampled token are after. It is "
    "the truth that you hold them against.",
    hints=(
        "Under which of the two distributions is the average taken? Swap the arguments and you get another number.",
        "Both logits become log-probabilities first, each over its own V words. Only then compare.",
        "You need the probabilities too, and can get them from their logarithms. The other way round, a probability "
        "of zero has no logarithm to multiply with.",
    ),
    cases=(
        given("a coin, from 1/4 and 3/4", f64([[[1.0, 1.0]]]), f64([[[1.0, 3.0]]]).log()),
        given("1/4 and 3/4, from a coin", f64([[[0.25, 0.75]]]).log(), f64([[[0.5, 0.5]]]).log()),
        given("the same policy, all logits 1 higher", f64([[[1.0, 3.0]]]), f64([[[0.0, 2.0]]])),
        given("two positions", f64([[[0.9, 0.1], [0.5, 0.5]]]).log(), f64([[[0.5, 0.5], [0.9, 0.1]]]).log()),
        drawn("two rows", lambda d: (d.normal(2, 3, 5), d.normal(2, 3, 5))),
        drawn("as many of everything", lambda d: (d.normal(3, 3, 3, scale=2.0), d.normal(3, 3, 3, scale=2.0))),
        drawn("two answers of one position", lambda d: _two(d, 2, 1, 4)),
        drawn("one position, far apart", lambda d: (d.normal(1, 1, 6, scale=5.0), d.normal(1, 1, 6, scale=5.0))),
        extreme("a word 800 below the other, which stands at 0", f64([[[0.0, -800.0]]]), f64([[[0.0, 0.0]]])),
        extreme("a policy that is sure", f64([[[800.0, 0.0]]]), f64([[[0.0, 0.0]]])),
        extreme("a reference that is sure", f64([[[0.0, 0.0]]]), f64([[[800.0, 0.0]]])),
        extreme("a word 200 below the best", f64([[[0.0, -200.0], [200.0, 0.0]]]), f64([[[0.0, 1.0], [0.0, 200.0]]])),
        extreme("a rare word that the reference never says", f64([[[0.0, -17.0]]]), f64([[[0.0, -1e5]]])),
        extreme("a word that the reference never says", f64([[[0.0, 0.0, 1.0]]]), f64([[[0.0, -1e5, 1.0]]])),
        extreme("policies that are close", f64([[[0.0, 1.0, 0.5]]]), f64([[[0.001, 1.0, 0.499]]])),
        extreme("policies that are very close", f64([[[0.0, 1.0, 0.5]]]), f64([[[0.0001, 1.0, 0.5]]])),
        extreme(
            "one position 1000 above the other", f64([[[1000.0, 1001.0], [1.0, 0.5]]]), f64([[[1.0, 2.0], [0.0, 0.0]]])
        ),
        extreme(
            "one answer 1000 below the other", f64([[[1.0, 0.0]], [[0.0, 1.0]]]), f64([[[1.0, 1.0]], [[-1e3, -999.0]]])
        ),
        extreme("logits of 50000", f64([[[50000.3, 50000.0]]]), f64([[[50000.0, 50000.1]]])),
        at_scale("300 positions", lambda d: _two(d, 2, 300, 7)),
        at_scale("100 words", lambda d: _two(d, 3, 5, 100, scale=3.0)),
        at_scale("gaps of hundreds beside ordinary ones", _with_far),
        at_scale("float32", lambda d: tuple(x.float() for x in _two(d, 3, 4, 50))),
        refused("two positions, the reference of one", f64([[[1.0, 2.0], [0.0, 1.0]]]), f64([[[1.0, 2.0]]])),
        refused("one answer, the reference of two", f64([[[1.0, 2.0]]]), f64([[[1.0, 2.0]], [[0.0, 1.0]]])),
        refused("two words, the reference of one", f64([[[1.0, 2.0]]]), f64([[[1.0]]])),
        refused("one position, the reference of two", f64([[[1.0, 2.0]]]), f64([[[1.0, 2.0], [0.0, 1.0]]])),
        refused("two answers, the reference of one", f64([[[1.0, 2.0]], [[0.0, 1.0]]]), f64([[[1.0, 2.0]]])),
        refused("one word, the reference of two", f64([[[1.0]]]), f64([[[1.0, 2.0]]])),
        refused("three words, the reference of two", f64([[[1.0, 2.0, 0.0]]]), f64([[[1.0, 2.0]]])),
        refused("a reference without its batch", f64([[[1.0, 2.0]]]), f64([[1.0, 2.0]])),
        refused("a reference of one position for all", f64([[[1.0, 2.0]]]), f64([1.0, 2.0])),
        refused("as many logits in another shape", f64([[[1.0, 2.0], [0.0, 1.0]]]), f64([[[1.0, 2.0]], [[0.0, 1.0]]])),
    ),
    gradient_of=("logits", "ref_logits"),
    misconceptions=(
        Misconception(
            "kl-reversed",
            changed(kl_exact, ("logp.exp() * (logp - ref_logp)", "ref_logp.exp() * (ref_logp - logp)")),
            "This is the forward KL, averaged over what the *reference* says. It is never negative and zero where the "
            "two agree, so nothing looks wrong. Whose samples does Eq. (4.a) average over?",
            "4.7",
        ),
        Misconception(
            "both-directions",
            changed(
                kl_exact, ("logp.exp() * (logp - ref_logp)", "(logp.exp() - ref_logp.exp()) * (logp - ref_logp) / 2")
            ),
            "This is the mean of the reverse and the forward KL: policy and reference can change places, and nothing "
            "happens. Whose samples alone does Eq. (4.7) average over?",
            "4.7",
        ),
        Misconception(
            "kl-full-prob",
            changed(
                kl_exact,
                ("(logits.log_softmax(-1)", "(logits.log_softmax(1)"),
                ("ref_logits.log_softmax(-1)", "ref_logits.log_softmax(1)"),
            ),
            "Your softmax runs over the positions of a row, so what you compare are not distributions over words. "
            "With a single position it gives zero, whatever the logits. Over which of B, T, V do the probabilities of "
            "one choice add up to 1?",
            "4.6",
        ),
        Misconception(
            "kl-full-prob-log-target",
            changed(
                kl_exact,
                ("(logp.exp() * (logp - ref_logp))", "torch.nn.functional.kl_div(ref_logp, logp, reduction='none')"),
            ),
            "You give `kl_div` a target of log-probabilities, and it takes them for probabilities: they are negative, "
            "and their logarithm is NaN. What does its documentation say about `log_target`?",
            "4.7",
        ),
        Misconception(
            "logits-not-normalised",
            changed(kl_exact, ("logp - ref_logp", "logits - ref_logits")),
            "You compare the logits as they come. Add 1 to all logits of the policy: it is the same policy, but your "
            "distance from it has grown by 1. What has to happen to logits first?",
            "4.6",
        ),
        Misconception(
            "k1-as-loss",
            changed(kl_exact, ("logp.exp()", "logp.exp().detach()")),
            "The value is right, and its gradient is zero: the probabilities in front carry none. This is k1, "
            "averaged, as a loss. What is left to differentiate is the score, and its average vanishes. "
            "Where does the policy appear in Eq. (4.7)?",
            "4.7",
        ),
        Misconception(
            "unweighted-sum",
            changed(kl_exact, ("logp.exp() * (logp - ref_logp)", "logp - ref_logp")),
            "Every word counts the same, also those that the policy never says. A KL divergence is an average: over "
            "what, and with which weights?",
            "4.7",
        ),
        Misconception(
            "mean-over-vocabulary",
            changed(kl_exact, ("sum(-1)", "mean(-1)")),
            "Too small by the factor V. The probabilities already make the sum an average.",
            "4.7",
        ),
        Misconception(
            "log-of-zero",
            changed(kl_exact, ("logp - ref_logp", "logp.exp().log() - ref_logp.exp().log()")),
            "NaN for a policy that is sure: a probability that is 0 in floating point has a logarithm of minus "
            "infinity, and zero times that is not a number. Could you have the logarithm without the probability "
            "first?",
            "4.6",
        ),
        Misconception(
            "something-added-in-the-log",
            changed(
                kl_exact,
                ("logp - ref_logp", "(logp.exp() + 1e-10).log() - (ref_logp.exp() + 1e-10).log()"),
            ),
            "You add a small number to the probabilities, so that no logarithm is infinite. A rare word then stands at "
            "that number, however rare it is, and a reference that never says it costs too little. Which logarithm "
            "can you have without the probability first?",
            "4.6",
        ),
        Misconception(
            "overflowing-sum",
            changed(
                kl_exact,
                (
                    "(logits.log_softmax(-1), ref_logits.log_softmax(-1))",
                    "(z - z.exp().sum(-1, keepdim=True).log() for z in (logits, ref_logits))",
                ),
            ),
            "Right on paper, but the exponential of a logit of 800 is infinite in floating point, and so is your "
            "normaliser. What can be subtracted from all logits of a position beforehand without changing the policy?",
            "4.6",
        ),
        Misconception(
            "bits-not-nats",
            changed(kl_exact, ("return kl", "return kl / 0.6931471805599453")),
            "Off by the same factor everywhere, about 1.44: your logarithm has base 2. Which unit does the docstring "
            "promise?",
            "4.7",
        ),
        Misconception(
            "cross-entropy",
            changed(kl_exact, ("logp - ref_logp", "-ref_logp")),
            "This is the cross-entropy, which is not zero where the two agree: what the policy's own entropy "
            "contributes is still in it. Both logarithms stand in the bracket of Eq. (4.7).",
            "4.7",
        ),
        Misconception(
            "sign-turned",
            changed(kl_exact, ("return kl", "return -kl")),
            "Your KL is never positive. Which of the two log-probabilities is larger, on average, for words that the "
            "policy itself says?",
            "4.7",
        ),
    ),
)
