from grpo_lab.advantages import return_to_go
from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, extreme, f64, given

EXERCISE = Exercise(
    function=return_to_go,
    points=3,
    minutes=12,
    difficulty=2,
    task="Credit every token with the rewards from it onwards, each discounted by its distance.",
    hints=(
        "Eq. (2.13) defines each return by the one after it. So which token is the one to begin with?",
        "A loop over T is fine: walk from the last token to the first, and carry one number along for each completion.",
        "After walking backwards, the returns stand in the order in which you made them.",
    ),
    cases=(
        given("three tokens, discount 1/2", f64([[[1.0, 0.0, 4.0]]]), 0.5),
        given("no discount", f64([[[1.0, 0.0, 4.0]]]), 1.0),
        given("two completions, a reward at the end", f64([[[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]]), 0.9),
        drawn("two prompts", lambda d: (d.normal(2, 3, 5), 0.9)),
        drawn("as many of everything", lambda d: (d.normal(3, 3, 3), 0.7)),
        extreme("only this token counts", f64([[[1.0, 2.0, 4.0]]]), 0.0),
        at_scale("powers of gamma too small for a float", lambda d: (d.normal(1, 1, 120), 0.001)),
    ),
    misconceptions={
        "gamma-power-off-by-one": Misconception(
            "A token's own reward is discounted too: every power of gamma is one too high. At distance zero, by how "
            "much should a reward shrink?",
            {"2.13": "returns = gamma * (rewards[..., t] + returns)"},
        ),
        "undiscounted": Misconception(
            "gamma makes no difference to your result: a reward at the far end counts as much as one right here.",
            {"2.13": "returns = rewards[..., t] + returns"},
        ),
        "from-the-start": Misconception(
            "Your sum runs forwards: a token is credited with what was earned *before* it. Which rewards can a token "
            "still change?",
            {"reversed()": "for t in range(rewards.shape[-1]):"},
        ),
        "discounted-by-position": Misconception(
            "You discount by a token's distance from the *start of the response*. From the second token on everything "
            "is too small. From where does token t measure the distance?",
            {"2.13": "returns = gamma ** t * rewards[..., t] + returns"},
        ),
        "quotient-of-powers": Misconception(
            "Right on paper: you multiply with gamma^t, add up, and divide by it again. With a small gamma or a long "
            "response gamma^t is too small for a float, and becomes zero; then you divide zero by zero. Does "
            "Eq. (2.13) need any power of gamma but the first?",
            {
                "2.13": "powers = rewards.new_tensor(gamma) ** torch.arange(t, rewards.shape[-1])\n"
                "returns = (rewards[..., t:] * powers).sum(-1) / gamma**t"
            },
        ),
    },
)
