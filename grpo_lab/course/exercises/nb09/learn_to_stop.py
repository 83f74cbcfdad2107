import torch
from jaxtyping import Float, Int
from torch import Tensor

from grpo_lab.course.exercise import Exercise, Misconception, drawn, f64, given
from grpo_lab.logprobs import completion_mask, token_logprobs

END = 1


def learn_to_stop(
    table: Float[Tensor, "V V"],
    completion_ids: Int[Tensor, "B T"],
    advantages: Float[Tensor, " B"],
    end: int,
    learning_rate: float = 1.0,
) -> Float[Tensor, "V V"]:
    """One update, by REINFORCE, of the smallest language model: it sees only the token before.

    Args:
        table: row i holds the logits of what follows token i. A completion begins behind token 0.
        completion_ids: what was sampled, up to and with the end token; then padding, which is the end token again.
        advantages: one for each completion.
        end: the end token.
        learning_rate: of gradient descent on the loss, a mean over all sampled tokens of the batch.

    Returns:
        The table after the update.
    """
    policy = table.clone().requires_grad_()
    starts = torch.zeros_like(completion_ids[:, :1])
    before = torch.cat([starts, completion_ids[:, :-1]], dim=1)  # B T
    logp = token_logprobs(policy[before], completion_ids)  # B T
    mask = completion_mask(completion_ids, end)  # B T
    gains = torch.where(mask, advantages[:, None] * logp, 0)
    loss = -gains.sum() / mask.sum()
    loss.backward()
    return table - learning_rate * policy.grad


def _sampled(dice, B: int, T: int, V: int):
    ids = dice.integers(V, B, T)
    ids[:, 0] = 2  # so that something is left without the end token, too
    ids[0] = ids[0].clamp(min=2)  # and one that does not end
    after = (ids == END).cumsum(-1) > 0
    return dice.normal(V, V), ids.masked_fill(after, END), dice.normal(B), END


ZEROS = torch.zeros(3, 3, dtype=torch.float64)

EXERCISE = Exercise(
    function=learn_to_stop,
    points=4,
    minutes=15,
    difficulty=1,
    task="An answer is right if it is one certain word and then ends; it earns 1, every other answer 0. After 150 "
    "updates (run the last figure of this page) most answers begin with that word, and go on behind it as they always "
    "did: about one in ten is right. Measure, find the fault, repair it.",
    hints=(
        "Which entries of the table should a completion change that ended, and was rewarded? Subtract the tables "
        "before and after one update, and look at the column of the end token.",
        "Print the mask of one padded completion, under its tokens. Which token has a gradient, and which should?",
        "One token says two things here: the answer is over, and nothing stands here. What tells the two apart?",
    ),
    cases=(
        given("a word and the end token", ZEROS, torch.tensor([[2, END]]), f64([1.0]), END),
        given("one ends, one does not", ZEROS, torch.tensor([[2, END, END], [2, 2, 2]]), f64([1.0, -1.0]), END, 0.5),
        given("ends at once", ZEROS, torch.tensor([[END, END], [2, END]]), f64([0.5, -2.0]), END),
        drawn("five completions of different lengths", lambda d: _sampled(d, 5, 6, 5)),
        drawn("as many completions as tokens", lambda d: _sampled(d, 4, 4, 3), learning_rate=0.25),
    ),
    planted=("eos-trimmed",),
    misconceptions={
        "eos-trimmed": Misconception(
            "The end token gets no gradient, in no completion: no answer is ever praised for where it stops.",
            {"completion_mask()": "mask = completion_ids != end"},
        ),
        "padding-counted": Misconception(
            "The end token learns now, and so does the padding: all that stands behind the first end token was never "
            "sampled, and a short answer is paid for it many times.",
            {"completion_mask()": "mask = torch.ones_like(completion_ids).bool()"},
        ),
        "mean-over-padding": Misconception(
            "The sum is right, and what it is divided by counts the padding: the longer the longest answer, the "
            "smaller the update.",
            {"sum()": "loss = -gains.sum() / mask.numel()"},
        ),
        "off-by-one": Misconception(
            "The logits that follow a token are asked for that token itself. Which row of the table chose it?",
            {"token_logprobs()": "logp = token_logprobs(policy[completion_ids], completion_ids)"},
        ),
    },
)
