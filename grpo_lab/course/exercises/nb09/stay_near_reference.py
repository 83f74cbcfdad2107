import torch
from jaxtyping import Float
from torch import Tensor

from grpo_lab.course.exercise import Exercise, Misconception, drawn, f64, given
from grpo_lab.kl import kl_exact


def stay_near_reference(
    logits: Float[Tensor, "P V"], rewards: Float[Tensor, "P V"], beta: float, learning_rate: float, steps: int
) -> tuple[Float[Tensor, "P V"], list[float]]:
    """Raise the expected reward, and stay near the policy of the start. Nothing is sampled: all is exact.

    Args:
        logits: of V answers to each of P prompts, at the start. They stay as they are.
        rewards: of each answer.
        beta: weight of KL(policy, start) in the loss, a mean over prompts as the reward is.
        learning_rate: of gradient descent.
        steps: how many.

    Returns:
        The logits at the end, and the KL before each step.
    """
    policy = logits.clone().requires_grad_()
    reference = logits.clone()  # [reference]
    distances = []
    for _ in range(steps):
        reward = (policy.softmax(-1) * rewards).sum(-1).mean()
        kl = kl_exact(policy[None], reference[None]).mean()
        distances.append(kl.item())
        gradient = torch.autograd.grad(beta * kl - reward, policy)[0]
        with torch.no_grad():
            policy -= learning_rate * gradient
    return policy.detach(), distances


EXERCISE = Exercise(
    function=stay_near_reference,
    points=3,
    minutes=15,
    difficulty=1,
    task="""Set `beta` to 0 or to 100: the run is the same to ten digits. The reward rises well; the policy goes where
it likes. Measure, find the fault, repair it.

```python
start, rewards = torch.zeros(1, 2).double(), torch.tensor([[1.0, 0.0]])
for beta in (0.0, 100.0):
    print(stay_near_reference(start, rewards, beta, 0.01, 500)[0])
```""",
    hints=(
        "The function returns the KL before each step. What should it be before the first one, and what before the "
        "second?",
        "Print the reference before and after `policy -= ...`.",
        "Two tensors may be one piece of memory. `data_ptr()` tells; which calls copy, and which only look at it "
        "from elsewhere?",
    ),
    cases=(
        given("one prompt, two answers, two steps", f64([[0.0, 0.0]]), f64([[1.0, 0.0]]), 1.0, 1.0, 2),
        given("a strong penalty, three steps", f64([[1.0, 0.0]]), f64([[0.0, 1.0]]), 4.0, 0.5, 3),
        given("no penalty", f64([[1.0, 0.0, 0.5]]), f64([[0.0, 1.0, 2.0]]), 0.0, 0.5, 3),
        drawn("three prompts, five steps", lambda d: (d.normal(3, 4), d.normal(3, 4), 0.7, 0.5, 5)),
    ),
    planted=("ref-not-frozen",),
    misconceptions={
        "ref-not-frozen": Misconception(
            "The KL is zero before every step, also where the policy has moved: the reference goes with it, and "
            "`beta` has no effect.",
            {"[reference]": "reference = policy.detach()"},
        ),
        "reference-one-behind": Misconception(
            "The KL is that of a single step: your reference follows the policy, one step behind. It slows the policy "
            "down, and holds it nowhere.",
            {"append()": "distances.append(kl.item())\nreference = policy.detach().clone()"},
        ),
        "kl-reversed": Misconception(
            "Your reference stands still, and the KL is that of the reference from the policy, the other direction.",
            {"kl_exact()": "kl = kl_exact(reference[None], policy[None]).mean()"},
        ),
        "kl-sign": Misconception(
            "The loss falls where the KL grows: you reward the policy for leaving its reference.",
            {"grad()": "gradient = torch.autograd.grad(-beta * kl - reward, policy)[0]"},
        ),
    },
)
