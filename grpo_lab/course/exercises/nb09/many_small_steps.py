import torch
from jaxtyping import BFloat16, Float
from torch import Tensor

from grpo_lab.course.exercise import Exercise, Misconception, drawn, given


def many_small_steps(
    weights: BFloat16[Tensor, " D"],
    inputs: Float[Tensor, "N D"],
    targets: Float[Tensor, " N"],
    learning_rate: float,
    steps: int,
) -> BFloat16[Tensor, " D"]:
    """Fit a linear model by gradient descent. It reads its weights in bfloat16, as a large one does to save memory.

    Args:
        weights: at the start. They stay as they are.
        inputs: N examples.
        targets: what the model should say to each; the loss is the mean square of what is missing.
        learning_rate: what a gradient is multiplied with in a step.
        steps: how many, each on all examples.

    Returns:
        The weights at the end, as the model reads them.
    """
    master = weights.float().requires_grad_()
    for _ in range(steps):
        predicted = inputs.bfloat16() @ master.bfloat16()  # N
        loss = (predicted - targets).square().mean()
        gradient = torch.autograd.grad(loss, master)[0]
        with torch.no_grad():
            master -= learning_rate * gradient
    return master.detach().bfloat16()


def _far(dice, N: int, D: int, learning_rate: float, steps: int):
    """Weights from 1 to 2 and targets far away: no gradient changes its sign."""
    weights = 1.25 + dice.normal(D).abs().clamp(max=0.5)
    inputs = torch.eye(D).repeat(N // D, 1)
    targets = inputs @ (weights.float() + 5 * dice.normal(D).sign().float())
    return weights.bfloat16(), inputs, targets, learning_rate, steps


ONE = torch.ones(1, dtype=torch.bfloat16)

EXERCISE = Exercise(
    function=many_small_steps,
    points=4,
    minutes=15,
    difficulty=2,
    task="""Gradients are finite and large, a hundred steps are made, and the weights at the end are those of the start.
With a rate a hundred times as large it learns. Measure, find the fault, repair it; the rate is right.

```python
for rate in (1e-4, 1e-2):  # one weight, from 1 towards 9
    print(many_small_steps(torch.ones(1).bfloat16(), torch.ones(1, 1), torch.tensor([9.0]), rate, 100))
```""",
    hints=(
        "Take one step and count: of how many weights does the value change, and by how much should it?",
        "Between 1 and 2, how far is one number of bfloat16 from the next? `torch.finfo(torch.bfloat16).eps` knows.",
        "What the model reads may be coarse. What must not be coarse is the tensor in which the steps add up.",
    ),
    cases=(
        given("one weight, far too small", ONE, torch.ones(1, 1), torch.tensor([9.0]), 1e-4, 64),
        given("one weight, far too large", 1.5 * ONE, torch.ones(1, 1), torch.tensor([-9.0]), 1e-5, 200),
        given("one large step", ONE, torch.full((1, 1), 2.0), torch.tensor([9.0]), 0.05, 1),
        drawn("three weights, many small steps", lambda d: _far(d, 6, 3, 1e-4, 150)),
        drawn("two weights, three large steps", lambda d: _far(d, 4, 2, 0.1, 3)),
    ),
    tolerance=0.01,  # two neighbours of bfloat16: so the model may also compute in float32
    planted=("pure-bf16-adamw",),
    misconceptions={
        "pure-bf16-adamw": Misconception(
            "No small step arrives, and a thousand of them do not, either: each is rounded away by itself, where the "
            "next number is further than the step.",
            {"requires_grad_()": "master = weights.clone().requires_grad_()"},
        ),
        "float16-weights": Misconception(
            "You keep the weights in float16. Its numbers are eight times as dense, so smaller steps arrive; those of "
            "a usual learning rate do not, and small gradients become zero.",
            {"requires_grad_()": "master = weights.half().requires_grad_()"},
        ),
        "learning-rate-raised": Misconception(
            "You raised the rate. Larger steps arrive; they are not those that were asked for.",
            {
                "requires_grad_()": "master = weights.clone().requires_grad_()",
                "grad()": "gradient = 10 * torch.autograd.grad(loss, master)[0]",
            },
        ),
    },
)
