"""The exercises of notebook 08."""

import io
from contextlib import redirect_stdout

import torch
from torch import Tensor, nn, tensor

from grpo_lab.course.exercise import (
    INF,
    NAN,
    Draws,
    Exercise,
    drawn_case,
    drawn_stability_case,
    handwritten_case,
    stability_case,
    wrong_function,
    wrong_lines,
)
from grpo_lab.teaching.first_step import first_step_movement
from grpo_lab.teaching.rounding import stochastic_round


def _with_noise(draws: Draws, x: Tensor) -> tuple[Tensor, Tensor]:
    return x.float(), torch.rand(x.shape, generator=draws.generator)


def _updates(draws: Draws) -> tuple[Tensor, Tensor]:
    """Return bf16 weights minus an Adam step of 1e-5; rounding to nearest would undo it for most of them."""
    return _with_noise(draws, draws.normal(40, scale=0.02).bfloat16().float() - 1e-5)


def _every_magnitude(draws: Draws) -> tuple[Tensor, Tensor]:
    """Return numbers from 1e-30 to 1e30, of either sign."""
    exponent = 60 * torch.rand(5000, generator=draws.generator, dtype=torch.float64) - 30
    return _with_noise(draws, (2 * draws.integers(2, 5000) - 1) * 10**exponent)


STOCHASTIC_ROUND = Exercise(
    function=stochastic_round,
    cases=(
        handwritten_case("a quarter of the way, noise below", tensor([1 + 1 / 512]), tensor([0.125])),
        handwritten_case("a quarter of the way, noise above", tensor([1 + 1 / 512]), tensor([0.5])),
        handwritten_case("three quarters of the way", tensor([1 + 3 / 512, 1 + 3 / 512]), tensor([0.5, 0.9])),
        handwritten_case("bf16 already", tensor([1.0, -2.5, 0.0, 384.0]), tensor([0.0, 0.3, 0.9, 0.5])),
        handwritten_case("below zero", tensor([-1 - 1 / 512, -1 - 1 / 512]), tensor([0.125, 0.5])),
        handwritten_case("noise equal to p", tensor([1 + 1 / 512, 1 + 1 / 256]), tensor([0.25, 0.5])),
        handwritten_case("infinities and NaN", tensor([INF, -INF, NAN]), tensor([0.2, 0.5, 0.8])),
        handwritten_case("a single number, without an axis", tensor(1 + 1 / 512), tensor(0.125)),
        handwritten_case("noise zero", tensor([1 + 1 / 512, 1.0, -1 - 1 / 512, 0.0]), tensor([0.0, 0.0, 0.0, 0.0])),
        drawn_case("weights after a small update", _updates),
        drawn_case("many numbers", lambda draws: _with_noise(draws, draws.normal(200))),
        stability_case(
            "beyond the largest number of bf16", tensor([3.4e38, -3.4e38, 3.4e38]), tensor([0.0, 0.5, 0.99])
        ),
        drawn_stability_case("5000 numbers of every size", _every_magnitude),
    ),
    tolerance=0.0,
    mistakes=(
        wrong_lines("pure-bf16-adamw", {"isfinite()": "return x.bfloat16()"}),
        wrong_lines("cut-off", {"8.5": "rounded = x_0"}),
        wrong_lines("rounded-to-infinity", {"8.4": "p = (x.view(torch.int32) & 2 ** 16 - 1) / 2 ** 16"}),
        wrong_lines("exchanged", {"8.5": "rounded = torch.where((noise < p) | ~x_1.isfinite(), x_0, x_1)"}),
        wrong_lines("nearest-as-the-one-below", {"8.2": "x_0 = x.bfloat16().float()"}),
        wrong_lines("noise-from-above", {"8.5": "rounded = torch.where(noise >= 1 - p, x_1, x_0)"}),
        wrong_lines("noise-equal-counts", {"8.5": "rounded = torch.where((noise <= p) & x_1.isfinite(), x_1, x_0)"}),
    ),
)


LEARNING_RATE = 1e-3


def after_two_steps(callback, args, kwargs):
    """Change the weights twice by about the learning rate, and observe what the callback returns and prints."""
    (policy,) = args
    if not callable(callback):
        return {"the result": "no function"}
    observed: dict[str, object] = {"the result": "a function"}
    generator = torch.Generator().manual_seed(1)
    for step, learning_rate in ((1, LEARNING_RATE), (2, 5 * LEARNING_RATE)):
        with torch.no_grad():
            for name, p in policy.named_parameters():
                sign = 2 * torch.randint(2, p.shape, generator=generator) - 1
                p.add_((learning_rate * _update_size(name, p) * sign).to(p.dtype))
        with redirect_stdout(io.StringIO()) as printed:
            value = callback(step, {"learning_rate": learning_rate, "loss": 0.0})
        print(printed.getvalue(), end="")
        observed[f"the value after step {step}"] = None if value is None else float(value)
        if step == 1:
            observed["whether step 1 prints"] = bool(printed.getvalue().strip())
    return observed


def _update_size(name: str, parameter: Tensor) -> float:
    """Return the size of an update in learning rates; embeddings, vectors and matrices differ in it."""
    if "embed" in name:
        return 0.2
    return 0.9 if parameter.dim() == 1 else 1.0


class SmallPolicy(nn.Module):
    """A policy whose embedding has the name that transformers gives it, with matrices and vectors as parameters."""

    def __init__(self, width: int):
        super().__init__()
        self.model = nn.ModuleDict({"embed_tokens": nn.Embedding(9, width)})
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))


def averaged_in_bf16(policy):
    initial = {name: p.detach().clone() for name, p in policy.named_parameters() if "embed" not in name}

    def callback(step, metrics):
        if step != 1:
            return None
        parameters = dict(policy.named_parameters())
        moves = [(parameters[name].detach() - p).abs().flatten() for name, p in initial.items()]
        m = (torch.cat(moves).mean() / metrics["learning_rate"]).item()
        print(m)
        return m

    return callback


FIRST_STEP_MOVEMENT = Exercise(
    function=first_step_movement,
    cases=(
        drawn_case("one layer", lambda draws: (draws.fill(nn.Linear(3, 2, bias=False)),)),
        drawn_case("matrices and vectors", lambda draws: (draws.fill(nn.Linear(6, 4)),)),
        drawn_case("with an embedding", lambda draws: (draws.fill(SmallPolicy(5)),)),
        drawn_stability_case("a policy in float32", lambda draws: (draws.fill(SmallPolicy(5)).float(),)),
        drawn_stability_case("a policy in bf16", lambda draws: (draws.fill(SmallPolicy(40)).bfloat16(),)),
    ),
    observations=after_two_steps,
    tolerance=1e-5,
    mistakes=(
        wrong_function("no-function", lambda policy: 1.0),
        wrong_lines("nothing-returned", {"print()": "print(m)\nreturn None"}),
        wrong_lines("not-a-copy", {"to()": "initial = counted"}),
        wrong_lines("embedding-counted", {"named_parameters()": "counted = dict(policy.named_parameters())"}),
        wrong_lines("not-in-learning-rates", {"8.8": "m = moved / n"}),
        wrong_lines(
            "mean-of-means",
            {
                "cpu()": "means = [(p.detach().cpu() - initial[name]).abs().mean().item() "
                "for name, p in counted.items()]\n"
                "moved = n * sum(means) / len(means)"
            },
        ),
        wrong_lines("nothing-printed", {"print()": "pass"}),
        wrong_lines(
            "added-up-in-bf16", {"to()": "initial = {name: p.detach().clone() for name, p in counted.items()}"}
        ),
        wrong_function("averaged-in-bf16", averaged_in_bf16),
    ),
)
