import torch
from torch import Tensor, tensor

from grpo_lab.config.precision import stochastic_round
from grpo_lab.course.exercise import INF, NAN, Dice, Exercise, Misconception, at_scale, drawn, extreme, given


def _with_noise(dice: Dice, x: Tensor) -> tuple[Tensor, Tensor]:
    return x.float(), torch.rand(x.shape, generator=dice.generator)


def _updates(dice: Dice) -> tuple[Tensor, Tensor]:
    """Weights after one Adam step at a rate of 1e-5, too small a move for the nearest bf16 number to change."""
    return _with_noise(dice, dice.normal(40, scale=0.02).bfloat16().float() - 1e-5)


def _every_size(dice: Dice) -> tuple[Tensor, Tensor]:
    """From 1e-30 to 1e30, of either sign."""
    size = 60 * torch.rand(5000, generator=dice.generator, dtype=torch.float64) - 30
    return _with_noise(dice, (2 * dice.integers(2, 5000) - 1) * 10**size)


EXERCISE = Exercise(
    function=stochastic_round,
    points=5,
    minutes=30,
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
