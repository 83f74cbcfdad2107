from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, extreme, f64, given
from grpo_lab.toys.sorting import surrogate_loss

RATIO = "(logp - old_logp.detach()).exp()"


def written_out(ratio: str, A: str = "advantages[:, None]") -> dict[str, str]:
    return {
        "3.16": f"return -({A} * logp).mean()",
        "3.17": f"return aggregate(-{ratio} * {A}, mask, 'grpo')",
        "3.18": f"return -torch.minimum({ratio} * {A}, {ratio}.clamp(1 - epsilon, 1 + epsilon) * {A}).mean()",
    }


def _turns(d, B, T, spread=0.5):
    return *d.moved(B, T, scale=spread), d.normal(B)


LOSSES = ("naive", "unclipped", "clipped")
HALF = f64([[0.5]]).log()
UP, DOWN = f64([[0.75]]).log(), f64([[0.25]]).log()  # ratios 3/2 and 1/2
BETTER, WORSE = f64([1.0]), f64([-1.0])

EXERCISE = Exercise(
    function=surrogate_loss,
    points=5,
    minutes=25,
    difficulty=3,
    task="Write the three losses of the notebook. They agree at the first inner step; what each does at the second "
    "makes the difference between a run that learns and one that breaks.",
    hints=(
        "One advantage belongs to a whole response. Which axis has to be added to it, so that it meets all numbers of "
        "that response, and of no other?",
        "The ratio compares probabilities, and you have their logarithms. What turns a difference of logarithms into a "
        "ratio? And which of the two is a stored number?",
        "For 'clipped', compute both terms of the minimum for every number, each already multiplied by the advantage. "
        "Then take the smaller, number by number.",
    ),
    cases=(
        given("likelier by half, better", UP, HALF, BETTER),
        given("likelier by half, worse", UP, HALF, WORSE),
        given("half as likely, better", DOWN, HALF, BETTER),
        given("half as likely, worse", DOWN, HALF, WORSE),
        given("half as likely, worse, not clipped", DOWN, HALF, WORSE, loss="unclipped"),
        given("two numbers, naive", f64([[0.5, 0.25]]).log(), f64([[0.5, 0.5]]).log(), BETTER, loss="naive"),
        *(drawn(loss, lambda d: _turns(d, 4, 3), loss=loss) for loss in LOSSES),
        drawn("as many responses as numbers, a narrow clip", lambda d: _turns(d, 4, 4), epsilon=0.05),
        extreme("one ratio of e^200, one of e^-200, better", f64([[-1.0, -201.0]]), f64([[-201.0, -1.0]]), BETTER),
        extreme("probabilities of e^-800", f64([[-800.0, -800.5]]), f64([[-800.1, -800.1]]), BETTER),
        at_scale("ratios far from 1", lambda d: _turns(d, 5, 7, 4.0), loss="unclipped"),
    ),
    gradient_of=("logp", "old_logp"),
    misconceptions={
        "ratio-quotient": Misconception(
            "You divide one log-probability by the other. Both are negative: when a number becomes likelier, your "
            "'ratio' falls, so training runs backwards. How is a quotient of probabilities written with logarithms?",
            written_out("(logp / old_logp.detach())"),
        ),
        "ratio-of-underflowing-probabilities": Misconception(
            "Right on paper: you make probabilities of both logarithms and divide. A probability of e^-800 is zero to "
            "the computer, and so your ratio is 0 / 0. Which operation on the logarithms comes to the same as a "
            "quotient, and needs neither probability?",
            written_out("(logp.exp() / old_logp.detach().exp())"),
        ),
        "old-not-detached": Misconception(
            "The values are right, but a gradient flows into `old_logp`. At the first inner step old and new are the "
            "same network: the two gradients cancel and nothing is learned. What are the old log-probabilities, a "
            "network or numbers?",
            written_out("(logp - old_logp).exp()"),
        ),
        "advantage-broadcast": Misconception(
            "The advantages meet the wrong axis: advantage j is multiplied with position j of *every* response. With "
            "as many responses as positions that runs without complaint; otherwise it crashes, and you are lucky. "
            "Which shape says 'one per row'?",
            written_out(RATIO, "advantages"),
        ),
        "clip-inverted": Misconception(
            "You take the larger of the two terms. Then the clip acts where the policy has moved the wrong way, and "
            "lets it run where it has gone far enough. Which of the two is the cautious one?",
            {"3.18": "return -policy_loss(logp, -advantages, mask, old_logp, epsilon=epsilon)[0]"},
        ),
        "clip-one-sided": Misconception(
            "You compare the ratios before the advantage is multiplied in. For a negative advantage, smaller and "
            "larger change places. Try ratio 1/2 with advantage -1: should that number still be pushed down?",
            {"3.18": "return -((logp - old_logp.detach()).exp().clamp(max=1 + epsilon) * advantages[:, None]).mean()"},
        ),
    },
)
