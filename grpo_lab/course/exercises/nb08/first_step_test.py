import torch
from torch import nn

from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn
from grpo_lab.trainer.first_step import first_step_test

RATE = 1e-3


def after_two_steps(callback, args, kwargs):
    """Move every weight up or down twice, as far as Adam does; what the callback says of each step."""
    (policy,) = args
    if not callable(callback):
        return {"kind of the result": "no function"}
    found, dice = {}, torch.Generator().manual_seed(1)
    for step, rate in ((1, RATE), (2, 5 * RATE)):
        with torch.no_grad():
            for name, p in policy.named_parameters():
                up = 2 * torch.randint(2, p.shape, generator=dice) - 1
                share = 0.2 if "embed" in name else 0.9 if p.dim() == 1 else 1.0
                p.add_((rate * share * up).to(p.dtype))
        said = callback(step, {"learning_rate": rate, "loss": 0.0})
        found[f"after step {step}"] = "nothing" if said is None else torch.tensor(float(said), dtype=torch.float64)
    return found


class Small(nn.Module):
    """With the name of the embedding as transformers has it, and vectors as short as those of its norms."""

    def __init__(self, width: int):
        super().__init__()
        self.embed_tokens = nn.Embedding(9, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))


EXERCISE = Exercise(
    function=first_step_test,
    points=4,
    minutes=20,
    difficulty=2,
    task="Most updates can be rounded away while loss and gradients look healthy. So ask the weights: how far "
    "has step 1 moved them, in units of its learning rate? One number tells a run that trains from one that does not.",
    hints=(
        "Two moments: `first_step_test` is called before the run, the function that it returns after each step. What "
        "must be kept from the first moment, and does it still stand there after the step?",
        "Some weights go up and some go down: what is the mean of their moves?",
        "Each *weight* counts once, in a large matrix and in a short vector. Which ones does the docstring leave out?",
    ),
    cases=(
        drawn("one layer", lambda dice: (dice.fill(nn.Linear(3, 2, bias=False)),)),
        drawn("matrices and vectors", lambda dice: (dice.fill(nn.Linear(6, 4)),)),
        drawn("with an embedding", lambda dice: (dice.fill(Small(5)),)),
        at_scale("a policy in float32", lambda dice: (dice.fill(Small(5)).float(),)),
        at_scale("a policy in bf16", lambda dice: (dice.fill(Small(40)).bfloat16(),)),
    ),
    observe=after_two_steps,
    tolerance=1e-5,
    misconceptions={
        "not-a-copy": Misconception(
            "You keep the weights themselves, and not a copy: the step moves what you kept along, so nothing "
            "ever seems to move.",
            {"to()": "before = kept"},
        ),
        "moves-cancel": Misconception(
            "You add moves with their signs: up and down cancel, and the mean of a healthy run is near 0.",
            {"cpu()": "moved = sum((p.detach().cpu() - before[name]).sum().item() for name, p in kept.items())"},
        ),
        "embedding-counted": Misconception(
            "You count the embedding. It moves less in float32, too: a healthy run looks as if a part of its update "
            "were lost.",
            {"named_parameters()": "kept = dict(policy.named_parameters())"},
        ),
        "not-in-learning-rates": Misconception(
            "You return the mean move itself. Whether 1e-6 is much or nothing only the learning rate tells.",
            {"8.7": "m = moved / n"},
        ),
        "mean-of-means": Misconception(
            "You take the mean of the tensors' means: a vector of 4 numbers counts as much as a matrix of thousands.",
            {
                "cpu()": "means = [(p.detach().cpu() - before[name]).abs().mean().item() for name, p in kept.items()]\n"
                "moved = n * sum(means) / len(means)"
            },
        ),
    },
)
