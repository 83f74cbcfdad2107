from grpo_lab.course.exercise import Exercise, Misconception, drawn, extreme, f64, given
from grpo_lab.course.exercises.nb05.clipped_surrogate import _ratio, advantage_broadcast
from grpo_lab.objective import sapo_surrogate

EXERCISE = Exercise(
    function=sapo_surrogate,
    points=3,
    minutes=15,
    difficulty=2,
    task="Replace the hard clip by a smooth gate. Near ratio 1 it is as steep as no clip at all; far away the push "
    "fades instead of stopping dead.",
    hints=(
        "A sigmoid has slope 1/4 in its middle. Where is the middle to be, and which slope is wanted there?",
        "Stretching the argument by tau makes the sigmoid tau times as steep. What in front undoes both?",
        "Good and bad tokens have a tau each. The sign of what tells them apart? `torch.where` needs it with an axis "
        "that broadcasts against the ratio.",
    ),
    cases=(
        given("nothing has moved, a good token", f64([[1.0]]), f64([1.0])),
        given("a good token at ratio 2, tau 2", f64([[2.0]]), f64([1.0]), tau_pos=2.0, tau_neg=3.0),
        given("a bad token at ratio 2, tau 3", f64([[2.0]]), f64([-1.0]), tau_pos=2.0, tau_neg=3.0),
        given("a bad token at ratio 1/2", f64([[0.5]]), f64([-1.0]), tau_pos=2.0, tau_neg=3.0),
        drawn("as many completions as tokens", lambda d: (_ratio(d, 5, 5), d.normal(5)), tau_pos=1.5, tau_neg=0.5),
        drawn("one ratio a sequence", lambda d: (_ratio(d, 4, 1), d.normal(4))),
        drawn("an advantage for each token", lambda d: (_ratio(d, 3, 4), d.normal(3, 4)), tau_neg=2.0),
        extreme("a million times as likely", f64([[1e6, 1.0], [1e6, 0.0]]), f64([2.0, -1.0]), tau_pos=3.0),
        extreme("a word that has become impossible", f64([[0.0, 1.0], [0.0, 1.0]]), f64([1.0, -1.0])),
    ),
    gradient_of=("ratio",),
    misconceptions={
        "taus-swapped": Misconception(
            "Good and bad tokens have each other's tau. Bad ones are meant to fade faster: pushing a token down raises "
            "all others a little, and most of those are nonsense.",
            {"5.9": "tau = torch.where(advantages < 0, ratio.new_tensor(tau_pos), ratio.new_tensor(tau_neg))"},
        ),
        "scale-missing": Misconception(
            "The factor in front of the sigmoid is missing. At ratio 1 your slope is tau / 4; the unclipped objective "
            "has slope 1 there, and SAPO is meant to start out the same.",
            {"5.10": "surrogate = torch.sigmoid(tau * (ratio - 1)) * advantages"},
        ),
        "gate-at-zero": Misconception(
            "The middle of your gate is at ratio 0. It should be where the policy has not moved. Which ratio is that?",
            {"5.10": "surrogate = 4 / tau * torch.sigmoid(tau * ratio) * advantages"},
        ),
        "advantage-broadcast": advantage_broadcast(),
    },
)
