from grpo_lab.config.schedules import learning_rate
from grpo_lab.course.exercise import Dice, Exercise, Misconception, at_scale, drawn, given

NAMES = ("constant", "constant_with_warmup", "linear", "cosine")


def _at(dice: Dice, warmup_steps: int, max_steps: int, scheduler_type: str) -> tuple:
    step = warmup_steps + int(dice.integers(max_steps - warmup_steps, 1)[0])
    return step, 3.0, warmup_steps, max_steps, scheduler_type


EXERCISE = Exercise(
    function=learning_rate,
    points=2,
    minutes=10,
    difficulty=1,
    task="The learning rate of each step: up to the peak in a straight line, then constant, or down to zero. Adam's "
    "first steps know nothing of the gradient's size yet, which is why they should be small. The names are those of "
    "transformers and TRL, where `constant` means what it says: no warm-up. `step` and `warmup_steps` are at most "
    "`max_steps`.",
    hints=(
        "Steps count from 0. What would a first step with a learning rate of 0 be for?",
        "After the warm-up, which share of the *remaining* steps is over?",
        "Half a cosine goes from 1 to -1. You need it to go from 1 to 0.",
    ),
    cases=(
        given("the first of four steps of warm-up", 0, 1.0, 4, 10, "constant_with_warmup"),
        given("the last step of warm-up", 3, 1.0, 4, 10, "constant_with_warmup"),
        given("half of the warm-up, to another peak", 1, 3.0, 4, 10, "linear"),
        given("no steps of warm-up", 0, 1.0, 0, 10, "constant_with_warmup"),
        given("a run that is all warm-up", 2, 1.0, 3, 3, "linear"),
        given("constant, a run that is all warm-up", 1, 2.0, 4, 4, "constant"),
        given("linear, no steps of warm-up", 3, 2.0, 0, 10, "linear"),
        given("linear, one step after the warm-up, at its end", 5, 2.0, 4, 5, "linear"),
        *(given(f"{n}, step {t} of 8, 3 of warm-up", t, 2.0, 3, 8, n) for n in NAMES for t in (0, 2, 3, 5, 8)),
        *(drawn(n, lambda d, n=n: _at(d, 7, 50, n)) for n in NAMES),
        at_scale("cosine, a long run", lambda d: _at(d, 100_000, 3_000_000, "cosine")),
        at_scale("linear, a long run", lambda d: _at(d, 100_000, 3_000_000, "linear")),
    ),
    misconceptions={
        "starts-at-zero": Misconception(
            "Your first step has a learning rate of 0: a batch is sampled, rewarded and thrown away. And the peak "
            "comes a step late.",
            {"[warmup]": "return peak * step / warmup_steps"},
        ),
        "peak-a-step-late": Misconception(
            "You divide the warm-up into one step too many: the last of its steps is still below the peak. With 4 "
            "steps, which rate should the first one have?",
            {"[warmup]": "return peak * (step + 1) / (warmup_steps + 1)"},
        ),
        "constant-warms-up": Misconception(
            'Your "constant" warms up. In transformers and TRL it does not: that is "constant_with_warmup". Whoever '
            "moves a setting there would train with another rate and not notice.",
            {
                "max()": "if step < warmup_steps:\n"
                "    return peak * (step + 1) / warmup_steps\n"
                "over = (step - warmup_steps) / max(max_steps - warmup_steps, 1)"
            },
        ),
        "falls-from-the-start": Misconception(
            "You count the fall from step 0. At the end of the warm-up the rate then jumps down from the peak. When "
            "does the fall begin?",
            {"max()": "over = step / max_steps"},
        ),
    },
)
