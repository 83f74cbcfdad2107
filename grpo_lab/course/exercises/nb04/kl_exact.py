from grpo_lab.course.exercise import Exercise, Misconception, drawn, extreme, f64, given
from grpo_lab.kl import kl_exact

EXERCISE = Exercise(
    function=kl_exact,
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
        drawn("as many of everything", lambda d: (d.normal(3, 3, 3, scale=2.0), d.normal(3, 3, 3, scale=2.0))),
        extreme("a policy that is certain", f64([[[800.0, 0.0]]]), f64([[[0.0, 0.0]]])),
        extreme("a reference that is certain", f64([[[0.0, 0.0]]]), f64([[[800.0, 0.0]]])),
        extreme("a word that the reference never says", f64([[[0.0, 0.0, 1.0]]]), f64([[[0.0, -1e5, 1.0]]])),
    ),
    gradient_of=("logits", "ref_logits"),
    misconceptions={
        "kl-reversed": Misconception(
            "This is the forward KL, averaged over what the *reference* says. It is never negative and zero where the "
            "two agree, so nothing looks wrong. Whose samples does Eq. (4.a) average over?",
            {"4.7": "kl = (ref_logp.exp() * (ref_logp - logp)).sum(-1)"},
        ),
        "kl-full-prob": Misconception(
            "Your softmax runs over the positions of a row, so what you compare are not distributions over words. "
            "With a single position it gives zero, whatever the logits. Over which of B, T, V do the probabilities of "
            "one choice add up to 1?",
            {"4.6": "logp, ref_logp = logits.log_softmax(1), ref_logits.log_softmax(1)"},
        ),
        "kl-full-prob-log-target": Misconception(
            "You give `kl_div` a target of log-probabilities, and it takes them for probabilities: they are negative, "
            "and their logarithm is NaN. What does its documentation say about `log_target`?",
            {"4.7": "kl = torch.nn.functional.kl_div(ref_logp, logp, reduction='none').sum(-1)"},
        ),
        "logits-not-normalised": Misconception(
            "You compare the logits as they come. Add 1 to all logits of the policy: it is the same policy, but your "
            "distance from it has grown by 1. What has to happen to logits first?",
            {"4.7": "kl = (logp.exp() * (logits - ref_logits)).sum(-1)"},
            equation="4.6",
        ),
        "k1-as-loss": Misconception(
            "The value is right, and its gradient is zero: the probabilities in front carry none, and the average of "
            "the score, which is left, vanishes. This is k1, averaged, as a loss. Where does the policy stand in "
            "Eq. (4.7)?",
            {"4.7": "kl = (logp.exp().detach() * (logp - ref_logp)).sum(-1)"},
        ),
        "log-of-zero": Misconception(
            "NaN for a policy that is certain: a probability that is 0 in floating point has a logarithm of minus "
            "infinity, and zero times that is not a number. Could you have the logarithm without the probability "
            "first?",
            {"4.7": "kl = (logp.exp() * (logp.exp().log() - ref_logp.exp().log())).sum(-1)"},
            equation="4.6",
        ),
    },
)
