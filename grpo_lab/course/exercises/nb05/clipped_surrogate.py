from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, extreme, f64, given
from grpo_lab.objective import clipped_surrogate


def _ratio(d, *shape):
    return d.normal(*shape, scale=0.5).exp()


def _far(d, *shape):
    """Ratios between about e^-12 and e^12."""
    return d.normal(*shape, scale=4.0).exp()


def advantage_broadcast(address: str = "per_token()", line: str = "advantages = advantages") -> Misconception:
    return Misconception(
        "The advantages have shape (B,), and you use them as they are. Broadcasting lays them along the tokens: where "
        "B = T nothing fails, and token t of *every* completion gets the advantage of completion t. Along which axis "
        "should they lie?",
        {address: line},
    )


EXERCISE = Exercise(
    function=clipped_surrogate,
    points=5,
    minutes=20,
    difficulty=2,
    task="Write what one token contributes, once the policy has moved: PPO's clipped objective, to be maximised. It "
    "decides when a token stops being pushed.",
    hints=(
        "Draw ratio against contribution, once for A = 1 and once for A = -1. Where should each curve go flat?",
        "There are two offers: the ratio times the advantage, and the clipped ratio times the advantage. The "
        "objective is a pessimist.",
        "Multiply first, choose afterwards. With a negative advantage the smaller ratio makes the larger product.",
        "One advantage per completion has shape (B,), the ratio (B, T). Try B = T = 2 on paper before you multiply.",
    ),
    cases=(
        given("a good token, already 1.5 times as likely", f64([[1.5]]), f64([1.0])),
        given("a bad token, already half as likely", f64([[0.5]]), f64([-1.0])),
        given("a bad token that became likelier", f64([[1.5]]), f64([-1.0])),
        given("a good token that became less likely", f64([[0.5]]), f64([1.0])),
        given("more room above", f64([[1.25, 1.5, 0.75]]), f64([1.0]), epsilon=0.2, epsilon_high=0.28),
        given("a bad token that became much likelier", f64([[6.0]]), f64([-1.0]), epsilon=0.2, delta=4.0),
        drawn("one ratio a sequence", lambda d: (_ratio(d, 4, 1), d.normal(4)), epsilon=0.1),
        drawn("an advantage for each token", lambda d: (_ratio(d, 3, 4), d.normal(3, 4)), epsilon_high=0.4),
        drawn("all settings", lambda d: (2 * _ratio(d, 4, 7), d.normal(4)), epsilon=0.3, epsilon_high=0.5, delta=2.0),
        extreme("no room above", f64([[1.1, 0.9, 1.5]]), f64([2.0]), epsilon=0.3, epsilon_high=0.0),
        extreme("a word that has become impossible", f64([[0.0, 1.0], [0.0, 1.0]]), f64([1.0, -1.0])),
        extreme("a million times as likely, or as unlikely", f64([[1e6, 1e-6], [1e6, 1e-6]]), f64([3.0, -2.0])),
        at_scale("300 tokens and delta", lambda d: (_far(d, 3, 300), d.normal(3, 300)), epsilon_high=0.28, delta=4.0),
    ),
    gradient_of=("ratio",),
    misconceptions={
        "clip-inverted": Misconception(
            "You take the better of the two offers. Where a token has been pushed far enough, yours goes on pushing; "
            "where it has moved the wrong way, yours lets go. Should the objective be an optimist?",
            {"5.7": "surrogate = torch.max(bounded * advantages, clipped * advantages)"},
        ),
        "clip-one-sided": Misconception(
            "You take the smaller *ratio* first, and multiply by the advantage afterwards. For A > 0 that is the same. "
            "Now take A = -1 and ratios 0.5 and 0.8: which product is smaller, and which ratio did you keep?",
            {"5.7": "surrogate = torch.min(bounded, clipped) * advantages"},
        ),
        "advantage-broadcast": advantage_broadcast(),
        "clip-only": Misconception(
            "You always take the clipped ratio. A bad token that has become much likelier then lies on the flat part, "
            "with no gradient that would bring it back. There should be a second offer to compare with.",
            {"5.7": "surrogate = clipped * advantages"},
        ),
        "epsilon-high-ignored": Misconception(
            "`epsilon_high` has no effect in your version. It is the room *above* 1; only if it is None is that the "
            "same as below.",
            {"5.5": "clipped = ratio.clamp(1 - epsilon, 1 + epsilon)"},
        ),
        "delta-ignored": Misconception(
            "`delta` has no effect in your version. A bad token whose ratio is 1000 contributes -1000, and rules the "
            "batch. Which of the two offers has no bound from above yet?",
            {"5.7": "surrogate = torch.min(ratio * advantages, clipped * advantages)"},
            equation="5.6",
        ),
    },
)
