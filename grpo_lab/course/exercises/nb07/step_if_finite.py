import math

import torch
from torch import nn

from grpo_lab.course.exercise import INF, NAN, Case, Dice, Exercise, Misconception
from grpo_lab.trainer.optim import step_if_finite


def after(result, args, kwargs):
    """The parameters are compared as arguments that changed; here is what else there is to see."""
    optimizer, parameters, *_ = args
    norm, stepped = result if isinstance(result, tuple) and len(result) == 2 else (result, "not returned")
    if isinstance(norm, float) and not math.isfinite(norm):
        norm = INF  # NaN and infinity say the same
    left = any(bool((p.grad != 0).any()) for p in parameters if p.grad is not None)
    found = {
        "the norm": norm,
        "the second result (was the update made?)": stepped,
        "what is left of the gradients": "something" if left else "nothing",
    }
    for number, memory in optimizer.state_dict()["state"].items():
        found |= {f"{name} of parameter {number}": x for name, x in memory.items() if isinstance(x, torch.Tensor)}
    return found


def _case(label, gradients, loss=0.5, max_grad_norm=1.0, kind="sgd", dtype=torch.float64):
    """Adam has made a step already, so that its moments would move the weights even without a gradient."""

    def build(seed: int) -> tuple[tuple, dict]:
        rows = gradients(Dice(seed)) if callable(gradients) else [torch.tensor(g).to(dtype) for g in gradients]
        parameters = [nn.Parameter(torch.ones_like(row)) for row in rows]
        make = {"sgd": torch.optim.SGD, "adam": torch.optim.AdamW}[kind]
        optimizer = make(parameters, lr=0.5)
        if kind == "adam":
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, 0.25)
            optimizer.step()
        for parameter, row in zip(parameters, rows, strict=True):
            parameter.grad = row.clone()
        return (optimizer, parameters, loss, max_grad_norm), {}

    return Case(build, label)


EXERCISE = Exercise(
    function=step_if_finite,
    points=4,
    minutes=20,
    difficulty=2,
    task="Clip the gradient and step, but only if loss and gradient are finite. A single NaN would make every weight "
    "NaN, and the night's run would be lost.",
    hints=(
        "`clip_gradients` (or torch's `clip_grad_norm_`) gives you the norm before clipping. What is it if a single "
        "gradient is NaN?",
        "`math.isfinite` says no to NaN and to both infinities. You have two numbers to ask about.",
        "What should the next update find in `.grad`, after a step and after none?",
    ),
    cases=(
        _case("a gradient of norm 1/2", [[0.3, -0.4]]),
        _case("a gradient of norm 5, clipped to 1", [[3.0, 4.0]]),
        _case("a gradient of norm 5, and room for 100", [[3.0, 4.0]], max_grad_norm=100.0),
        _case("a gradient of norm 1/2, clipped to 1/4", [[0.3, -0.4]], max_grad_norm=0.25),
        _case("a loss below 0", [[0.3, -0.4]], loss=-0.3),
        _case("a gradient that is NaN", [[NAN, NAN]]),
        _case("a loss that is NaN", [[0.3, -0.4]], loss=NAN),
        _case("a gradient that is infinite", [[INF, -0.4]]),
        _case("a loss that is infinite", [[0.3, -0.4]], loss=INF),
        _case("a loss that is NaN, with Adam", [[0.3], [0.2]], loss=NAN, kind="adam"),
        _case("two parameters", lambda d: [d.normal(3), d.normal(2)], max_grad_norm=0.7),
        _case("two parameters, with Adam", lambda d: [d.normal(2, 3), d.normal(4)], max_grad_norm=0.3, kind="adam"),
        _case("plus and minus infinity, with Adam", [[0.3], [INF, -INF], [0.1]], kind="adam"),
    ),
    observe=after,
    misconceptions={
        "nonfinite-step": Misconception(
            "You step in any case. One NaN in the gradient makes the norm NaN, clipping spreads it to every gradient, "
            "and after this step all weights are NaN. It never heals.",
            {"isfinite()": "stepped = True"},
        ),
        "loss-only": Misconception(
            "You only ask about the loss. A finite loss may have a gradient that is not: sqrt at 0 is the classic.",
            {"isfinite()": "stepped = math.isfinite(loss)"},
        ),
        "gradient-only": Misconception(
            "You only ask about the gradient. Where the loss is not finite something is wrong with the batch, even if "
            "the gradient happens to look fine.",
            {"isfinite()": "stepped = math.isfinite(norm)"},
        ),
        "gradients-kept": Misconception(
            "After a skipped update the bad gradients are still there. The next backward pass *adds* to them: NaN plus "
            "anything is NaN, so every later update is skipped as well.",
            {"zero_grad()": "if stepped:\n    optimizer.zero_grad()"},
        ),
        "unclipped": Misconception(
            "The step is made with gradients that are not clipped: one unlucky batch with a gradient of norm 1000 "
            "undoes a thousand careful steps. What is `max_grad_norm` for, and when?",
            {"clip_gradients()": "norm = clip_gradients(parameters, math.inf)"},
        ),
    },
)
