from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, extreme, f64, given
from grpo_lab.course.exercises.nb05.clipped_surrogate import _far, _ratio, advantage_broadcast
from grpo_lab.objective import cispo_surrogate

EXERCISE = Exercise(
    function=cispo_surrogate,
    points=3,
    minutes=10,
    difficulty=2,
    task="Write CISPO's contribution of a token: its weight is bounded, but its gradient is never dropped. So rare "
    "tokens that change the course of a thought go on learning.",
    hints=(
        "This is REINFORCE with a weight in front. Where does the gradient come from, then: from the ratio, or from "
        "the log-probability?",
        "The weight is the ratio, held down at the bound, as a plain number.",
        "Three factors. One of them carries the gradient; one of them may need another axis.",
    ),
    cases=(
        given("a ratio of 2 under a bound of 5", f64([[2.0]]), f64([[-1.0]]), f64([1.0]), 5.0),
        given("a ratio of 8 under a bound of 5", f64([[8.0]]), f64([[-1.0]]), f64([1.0]), 5.0),
        drawn("many completions", lambda d: (2 * _ratio(d, 4, 6), d.logp(4, 6), d.normal(4)), bound=2.5),
        drawn("as many completions as tokens", lambda d: (2 * _ratio(d, 5, 5), d.logp(5, 5), d.normal(5)), bound=2.0),
        drawn("one ratio a sequence", lambda d: (2 * _ratio(d, 4, 1), d.logp(4, 3), d.normal(4)), bound=1.5),
        drawn("an advantage for each token", lambda d: (_ratio(d, 2, 4), d.logp(2, 4), d.normal(2, 4)), bound=1.2),
        extreme("10^12 times as likely", f64([[1e12], [1e12]]), f64([[-1.0], [-200.0]]), f64([2.0, -1.0]), 5.0),
        extreme("log-probabilities of -800", f64([[0.5, 2.0]]), f64([[-800.0, -1.0]]), f64([1.5]), 5.0),
        at_scale("300 tokens", lambda d: (_far(d, 3, 300), 50 * d.logp(3, 300), d.normal(3)), bound=5.0),
    ),
    gradient_of=("ratio", "logp"),
    misconceptions={
        "weight-not-detached": Misconception(
            "The value is right, but a gradient flows through the ratio as well. The weight says how much a token "
            "counts; should the policy be able to improve the objective by changing the weight?",
            {"5.8": "surrogate = ratio.clamp(max=bound) * per_token(advantages) * logp"},
        ),
        "log-probability-missing": Misconception(
            "The bounded ratio carries the gradient, and the log-probability does not. Above the bound it is flat, so "
            "the gradient is dropped, which is what CISPO is there to avoid. What else could carry the gradient?",
            {"5.8": "surrogate = ratio.clamp(max=bound) * per_token(advantages)"},
        ),
        "advantage-broadcast": advantage_broadcast(
            "5.8", "surrogate = ratio.clamp(max=bound).detach() * advantages * logp"
        ),
        "bound-from-one": Misconception(
            "You bound the ratio at 1 + bound, as verl does. Here, as in TRL, the bound is the ceiling itself.",
            {"5.8": "surrogate = ratio.clamp(max=1 + bound).detach() * per_token(advantages) * logp"},
        ),
    },
)
