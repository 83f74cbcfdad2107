from dataclasses import replace

import torch

from grpo_lab.course.exercise import Case, Dice, Exercise, Misconception, f64
from grpo_lab.course.exercises.nb05.policy_loss import the_loss
from grpo_lab.objective import microbatch_loss


def _fixed(label, loss_type, keep, rows, num_items, **settings):
    """Advantages of 1 and no old policy: each token under the mask adds -1."""

    def build(seed: int) -> tuple[tuple, dict]:
        mask = torch.tensor(keep)
        logp = f64([[-1.0] * mask.shape[1]] * len(mask))
        advantages = torch.ones(len(mask), dtype=torch.float64)
        return (logp, advantages, mask, rows, num_items), {"loss_type": loss_type, **settings}

    return Case(build, label)


def _drawn(label, loss_type, B, T, dtype=torch.float64, **settings):
    def build(seed: int) -> tuple[tuple, dict]:
        dice = Dice(seed)
        logp, mask = (dice.logp(B, T) - 0.1).to(dtype), dice.ragged(B, T)
        moved = {name: logp + dice.normal(B, T, scale=0.3).to(dtype) for name in ("old_logp", "ref_logp")}
        arguments = (logp, dice.normal(B).to(dtype), mask, B + 5, mask.sum() + 17)
        return arguments, {"loss_type": loss_type, "beta": 0.1, **moved, **settings}

    return Case(build, label)


ONE, TWO, THREE = [True, False, False], [True, True, False], [True, True, True]

EXERCISE = Exercise(
    function=microbatch_loss,
    points=4,
    minutes=20,
    difficulty=2,
    task="A batch that does not fit into memory is cut into micro-batches, whose gradients add up. Write what one of "
    "them contributes, so that the sum does not depend on the cut. Only the loss is checked; the metrics may be empty. "
    "`LOSSES_BY_TOKENS` of `grpo_lab.objective` lists the losses that divide by tokens.",
    hints=(
        "Take four rows, cut them 3 + 1, and write down the mean of all four from the means of the two parts.",
        "Losses that divide by tokens are different: they can be told how many tokens the *whole* update has. Which "
        "argument of `policy_loss` is that? Do they still need a weight?",
        "For the losses that are not in `LOSSES_BY_TOKENS` the weight is this part's share of the rows.",
    ),
    cases=(
        _fixed("grpo: one row of four", "grpo", [THREE], 4, 9),
        _fixed("grpo: three rows of four", "grpo", [ONE, TWO, THREE], 4, 9),
        _fixed("dapo: one row, 2 tokens of 8", "dapo", [TWO], 4, 8),
        _fixed("dr_grpo: two rows of six", "dr_grpo", [TWO, THREE], 6, 12, max_completion_length=10),
        _fixed("bnpo: two rows of four, all full", "bnpo", [THREE, THREE], 4, 12),
        _drawn("grpo", "grpo", 3, 4),
        _drawn("cispo", "cispo", 3, 4, epsilon_high=2.0),
        _drawn("luspo, one ratio a sequence", "luspo", 3, 4, importance_sampling_level="sequence"),
        _drawn("grpo, another clip range", "grpo", 3, 4, epsilon=0.05, epsilon_high=0.5, delta=1.6),
        _drawn("vespo, one row of many", "vespo", 1, 4, beta=0.7),
        replace(_fixed("grpo: no tokens", "grpo", [[False] * 3] * 2, 5, 7), tests="stability"),
        replace(_drawn("grpo, 300 tokens", "grpo", 5, 300), tests="stability"),
    ),
    gradient_of=("logp",),
    observe=the_loss,
    misconceptions={
        "microbatch-mean": Misconception(
            "You return the part's mean as it is. Cut an update of 8 rows into 4 parts and their sum is four times "
            "what it should be: what you tune as a learning rate then depends on your memory. How much of the update "
            "is this part?",
            {"5.25": "loss = loss"},
        ),
        "microbatch-token-mean": Misconception(
            "Losses that divide by tokens get the tokens of this part. Each part is then a mean of its own, in which a "
            "token weighs the more the fewer it shares its part with. Whose tokens should be counted?",
            {
                "policy_loss()": "loss, metrics = policy_loss(logp, advantages, mask, loss_type=loss_type, "
                "num_items=mask.sum(), **settings)"
            },
        ),
        "always-weighted": Misconception(
            "You weight every loss by the share of the rows. 'dapo', 'cispo' and 'vespo' divide by the tokens "
            "of the whole update already: their parts add up as they are, and yours add up to too little.",
            {"5.24": "share = len(mask) / rows"},
        ),
        "divided-by-parts": Misconception(
            "You divide by the number of parts. That is right only if all are of one size: cut 4 rows into 3 + 1, and "
            "the last row counts as much as the three before it. What does each row have to weigh?",
            {"5.24": "share = 1.0 if loss_type in LOSSES_BY_TOKENS else 1 / -(-rows // len(mask))"},
        ),
    },
)
