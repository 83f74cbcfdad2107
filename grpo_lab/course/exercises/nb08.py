"""The exercises of notebook 08."""

import torch
from torch import Tensor, nn, tensor

from grpo_lab.config.precision import stochastic_round
from grpo_lab.course.exercise import INF, NAN, Dice, Exercise, Misconception, at_scale, drawn, extreme, given
from grpo_lab.trainer.first_step import first_step_test


def _with_noise(dice: Dice, x: Tensor) -> tuple[Tensor, Tensor]:
    return x.float(), torch.rand(x.shape, generator=dice.generator)


def _updates(dice: Dice) -> tuple[Tensor, Tensor]:
    """Weights after one Adam step at a rate of 1e-5, too small a move for the nearest bf16 number to change."""
    return _with_noise(dice, dice.normal(40, scale=0.02).bfloat16().float() - 1e-5)


def _every_size(dice: Dice) -> tuple[Tensor, Tensor]:
    """From 1e-30 to 1e30, of either sign."""
    size = 60 * torch.rand(5000, generator=dice.generator, dtype=torch.float64) - 30
    return _with_noise(dice, (2 * dice.integers(2, 5000) - 1) * 10**size)


STOCHASTIC_ROUND = Exercise(
    function=stochastic_round,
    points=5,
    minutes=9,
    difficulty=3,
    task="Round float32 to bf16 up or down by chance, so that the mean over the noise is the number itself. It is what "
    "lets a model train in bf16 without a second copy of its weights.",
    hints=(
        "bf16 has the steps 1, 1 + 1/128, 1 + 2/128, ... Where between the first two lies 1 + 1/512, and how often "
        "should it be rounded up for the mean to come out?",
        "A bf16 number is a float32 number whose 16 lower bits are zero. `x.view(torch.int32)` shows you the bits, "
        "without converting anything.",
        "`& -(2**16)` clears the lower 16 bits; adding 2**16 to the bits goes one step away from zero. Both work for "
        "negative numbers as well, because the sign is a bit of its own.",
        "Compare the noise with the place between the two neighbours. The result is bf16; infinities stay.",
    ),
    cases=(
        given("a quarter of the way, noise below", tensor([1 + 1 / 512]), tensor([0.125])),
        given("a quarter of the way, noise above", tensor([1 + 1 / 512]), tensor([0.5])),
        given("three quarters of the way", tensor([1 + 3 / 512, 1 + 3 / 512]), tensor([0.5, 0.9])),
        given("bf16 already", tensor([1.0, -2.5, 0.0, 384.0]), tensor([0.0, 0.3, 0.9, 0.5])),
        given("below zero", tensor([-1 - 1 / 512, -1 - 1 / 512]), tensor([0.125, 0.5])),
        given("noise equal to the place", tensor([1 + 1 / 512, 1 + 1 / 256]), tensor([0.25, 0.5])),
        given("no finite number", tensor([INF, -INF, NAN]), tensor([0.2, 0.5, 0.8])),
        given("a single number, without an axis", tensor(1 + 1 / 512), tensor(0.125)),
        given("noise zero", tensor([1 + 1 / 512, 1.0, -1 - 1 / 512, 0.0]), tensor([0.0, 0.0, 0.0, 0.0])),
        drawn("weights after a small update", _updates),
        drawn("many numbers", lambda d: _with_noise(d, d.normal(200))),
        extreme("beyond the largest number of bf16", tensor([3.4e38, -3.4e38, 3.4e38]), tensor([0.0, 0.5, 0.99])),
        at_scale("5000 numbers of every size", _every_size),
    ),
    tolerance=0.0,
    misconceptions={
        "pure-bf16-adamw": Misconception(
            "You round to the nearest bf16 number, as `.bfloat16()` does. At a learning rate of 1e-6 an update is "
            "smaller than half a step: rounded back every time, 98% of the movement is lost. What is the noise for?",
            {"isfinite()": "return x.bfloat16()"},
        ),
        "cut-off": Misconception(
            "You cut the lower bits off. Every rounding then goes towards zero: all weights shrink, step after step.",
            {"8.4": "rounded = x_0"},
        ),
        "rounded-to-infinity": Misconception(
            "Beyond the largest number of bf16, about 3.39e38, one step further is infinity, and you take it. A weight "
            "that is infinite never comes back. What does the docstring say of such a number?",
            {"8.3": "p = (x.view(torch.int32) & 2 ** 16 - 1) / 2 ** 16"},
        ),
    },
)


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


FIRST_STEP_TEST = Exercise(
    function=first_step_test,
    points=4,
    minutes=6,
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
