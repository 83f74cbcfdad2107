import torch

from grpo_lab.course.exercise import NAN, Exercise, Misconception, at_scale, drawn, f64, given, padded
from grpo_lab.objective import aggregate

# One token with loss 6, three with loss 2: the mean of means is 4, the mean over tokens 3.
VALUES = f64([[6.0, 0.0, 0.0], [2.0, 2.0, 2.0]])
MASK = torch.tensor([[True, False, False], [True, True, True]])
EMPTY = torch.tensor([[False, False, False], [True, True, False]])
ONE_TOKEN = torch.tensor([[False, False, False], [False, True, False]])


def _ragged(d, B, T):
    return d.normal(B, T), d.ragged(B, T)


def _with_holes(d, B, T, filling=0.0):
    mask = d.holes(B, T)
    return padded(d.normal(B, T), mask, filling), mask


EXERCISE = Exercise(
    function=aggregate,
    points=6,
    minutes=25,
    difficulty=2,
    task="Turn one number per token into a single number. Five denominators for the eight loss types: each decides how "
    "much a token of a long completion counts.",
    hints=(
        "Two rows, one with 1 token and one with 3. Work out on paper what each loss type divides by.",
        "All of them start from the same two things: the sum of each row under the mask, and its number of tokens.",
        "0 times NaN is NaN. `torch.where` looks away, multiplication does not.",
        "T_max is a setting of the run, N a count over the whole update: neither can be read off this batch. Only if "
        "N is not given is this batch the whole update.",
    ),
    cases=(
        given("grpo: 1 token and 3 tokens", VALUES, MASK, "grpo"),
        given("bnpo: 1 token and 3 tokens", VALUES, MASK, "bnpo"),
        given("dr_grpo: 1 token and 3 tokens, 10 allowed", VALUES, MASK, "dr_grpo", max_completion_length=10),
        given("dapo: 4 tokens of an update of 8", VALUES, MASK, "dapo", num_items=8),
        given("dapo: the batch is the update", VALUES, MASK, "dapo"),
        given("luspo: 1 token and 3 tokens", VALUES, MASK, "luspo"),
        given("grpo: something stands at padded positions", f64([[6.0, 9.0, 9.0], [2.0, 2.0, 2.0]]), MASK, "grpo"),
        given("sapo: one row without tokens", VALUES, EMPTY, "sapo"),
        given("bnpo: no token at all", VALUES, torch.zeros(2, 3, dtype=torch.bool), "bnpo"),
        given("luspo: one value a row", f64([[6.0], [2.0]]), MASK, "luspo"),
        drawn("grpo", lambda d: (*_with_holes(d, 4, 6), "grpo")),
        drawn("bnpo, as many rows as tokens", lambda d: (*_ragged(d, 5, 5), "bnpo")),
        drawn("dr_grpo", lambda d: (*_ragged(d, 3, 4), "dr_grpo"), max_completion_length=7),
        drawn("cispo", lambda d: (*_ragged(d, 3, 4), "cispo"), num_items=torch.tensor(31)),
        given("bnpo: 4 tokens of an update of 8", VALUES, MASK, "bnpo", num_items=8),
        given("bnpo: one token", VALUES, ONE_TOKEN, "bnpo"),
        given("dapo: an update of 0 tokens", VALUES, MASK, "dapo", num_items=0),
        drawn("vespo", lambda d: (*_with_holes(d, 3, 5), "vespo"), num_items=20.5),
        at_scale("grpo: 300 tokens, NaN in the padding", lambda d: (*_with_holes(d, 3, 300, NAN), "grpo")),
        at_scale(
            "dr_grpo: 300 tokens, NaN in the padding",
            lambda d: (*_with_holes(d, 3, 300, NAN), "dr_grpo"),
            max_completion_length=512,
            num_items=9000,
        ),
    ),
    gradient_of=("values",),
    misconceptions={
        "mean-over-padding": Misconception(
            "For 'grpo' you divide each row by T, padding included. A short completion in a long batch then counts for "
            "little, and how much depends on who else is in the batch. How many tokens has the row itself?",
            {"5.16": "return (sums / mask.shape[1]).mean()"},
        ),
        "mask-forgotten": Misconception(
            "What stands at padded positions reaches your loss. Those tokens were never chosen by the policy.",
            {"5.15": "lengths, sums = mask.sum(-1), values.sum(-1)"},
        ),
        "mask-by-multiplying": Misconception(
            "You multiply by the mask, so NaN at a padded position gives 0 * NaN, which is NaN, and the loss is lost. "
            "How can a position be left out without computing with it?",
            {"5.15": "lengths, sums = mask.sum(-1), (values * mask).sum(-1)"},
        ),
        "microbatch-mean": Misconception(
            "For 'dapo', 'cispo' and 'vespo' you divide by the tokens of *this* batch and ignore `num_items`. Cut an "
            "update into micro-batches and each becomes a mean of its own: the result depends on how you cut. Whose "
            "tokens should be counted?",
            {"as_tensor()": "total = lengths.sum()"},
        ),
        "length-mean-mislabelled": Misconception(
            "What you call 'dr_grpo' still divides each row by its own length. That is 'grpo', with the length bias "
            "that Dr. GRPO removes: tokens of a long wrong answer are punished less than those of a short one.",
            {"5.18": "return (sums / lengths.clamp(min=1)).mean()"},
            equation="5.18",
        ),
        "empty-row-nan": Misconception(
            "A row without a token gives 0 / 0, and one NaN makes the loss NaN. It happens: truncated completions may "
            "be masked whole. What keeps each denominator at least 1?",
            {
                "5.16": "return (sums / lengths).mean()",
                "5.19": "return sums.sum() / lengths.sum()",
                "5.20": "return sums.sum() / total",
            },
            equation="5.16",
        ),
        "all-token-mean": Misconception(
            "For 'grpo' you average over all tokens of the batch. A completion of 1000 tokens then counts a hundred "
            "times as much as one of 10. In GRPO each *completion* has one vote: what is averaged first?",
            {"5.16": "return sums.sum() / lengths.sum().clamp(1)"},
        ),
    },
)
