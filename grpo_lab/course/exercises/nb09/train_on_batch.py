import torch
from jaxtyping import Float, Int
from torch import Tensor

from grpo_lab.advantages import group_advantages
from grpo_lab.course.exercise import Exercise, Misconception, drawn, f64, given
from grpo_lab.logprobs import token_logprobs
from grpo_lab.objective import policy_loss


def train_on_batch(
    logits: Float[Tensor, "P T V"],
    answers: Int[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    rewards: Float[Tensor, " B"],
    temperature: float,
    learning_rate: float,
    steps: int,
) -> tuple[Float[Tensor, "P T V"], list[float]]:
    """Several updates of GRPO from one batch, of a policy that chooses all T tokens of an answer at once.

    Args:
        logits: of the policy that sampled, for P prompts. They stay as they are.
        answers: G to each prompt; those of a prompt stand next to each other, so B = P * G.
        old_logp: their log-probabilities, recorded while they were sampled.
        rewards: one for each answer.
        temperature: at which they were sampled.
        learning_rate: of gradient descent.
        steps: updates from this batch.

    Returns:
        The logits at the end, and the mean ratio of new to old probability before each update.
    """
    P, G = len(logits), len(answers) // len(logits)
    advantages = group_advantages(rewards.view(P, G)).flatten()  # B
    mask = torch.ones_like(answers).bool()
    policy, ratios = logits.clone().requires_grad_(), []
    for _ in range(steps):
        logp = token_logprobs(policy.repeat_interleave(G, dim=0), answers, temperature)  # B T
        loss, metrics = policy_loss(logp, advantages, mask, old_logp)
        ratios.append(metrics["ratio"])
        gradient = torch.autograd.grad(loss, policy)[0]
        with torch.no_grad():
            policy -= learning_rate * gradient
    return policy.detach(), ratios


def _batch(dice, P: int, G: int, T: int, V: int, temperature: float, learning_rate: float, steps: int):
    logits, answers = dice.normal(P, T, V), dice.integers(V, P * G, T)
    recorded = (logits / temperature).log_softmax(-1).repeat_interleave(G, dim=0)
    old_logp = recorded.gather(-1, answers[..., None])[..., 0]
    rewards = dice.normal(P * G) + 3 * dice.normal(P).repeat_interleave(G)  # easy prompts and hard ones
    return logits, answers, old_logp, rewards, temperature, learning_rate, steps


def _two_prompts(temperature: float, steps: int):
    """An easy prompt and a hard one; every answer is as likely as any other."""
    answers = torch.tensor([[0], [1], [0], [1]])
    old_logp = f64([[0.5]] * 4).log()
    return torch.zeros(2, 1, 2).double(), answers, old_logp, f64([5.0, 4.0, 1.0, 0.0]), temperature, 1.0, steps


EXERCISE = Exercise(
    function=train_on_batch,
    points=6,
    minutes=30,
    difficulty=3,
    task="""Where all prompts are equally hard it learns; with easy prompts and hard ones in a batch it does not. And
the ratio before the first update is not 1. *Two* faults are in here: measure, find both, repair both.

```python
logits, answers = torch.tensor([[[1.0, 0.0]]] * 2), torch.tensor([[0], [1], [1], [0]])  # answer 0 is the better one
old_logp = torch.tensor([[0.6225], [0.3775], [0.3775], [0.6225]]).log()  # recorded at temperature 2
for rewards in (torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.tensor([5.0, 4.0, 0.0, 1.0])):
    print(train_on_batch(logits, answers, old_logp, rewards, 2.0, 0.5, 4))
```""",
    hints=(
        "Which numbers must be what they are, whatever was sampled? Write down two: one about the advantages of a "
        "prompt, one about the ratio before the first update.",
        "Sum the advantages prompt by prompt. With rewards of 5, 4 and 1, 0 for two prompts, which answers are the "
        "good ones?",
        "Before the first update nothing has moved. Recompute the log-probabilities of the answers, and compare "
        "with those recorded: was the same policy asked?",
    ),
    cases=(
        given("two prompts, one update, temperature 1", *_two_prompts(1.0, 1)),
        given("two prompts, two updates, temperature 2", *_two_prompts(2.0, 2)),
        drawn("three prompts, temperature 1", lambda d: _batch(d, 3, 4, 2, 5, 1.0, 0.5, 2)),
        drawn("one prompt, temperature 0.7", lambda d: _batch(d, 1, 6, 3, 4, 0.7, 2.0, 3)),
        drawn("four prompts, temperature 1.5", lambda d: _batch(d, 4, 4, 3, 4, 1.5, 4.0, 4)),
    ),
    planted=("group-mixed", "temperature-mismatch"),
    misconceptions={
        "group-mixed": Misconception(
            "The advantages of a prompt do not sum to zero: answers are compared with those of *other* prompts, and "
            "an easy prompt's answers all look good.",
            {"view()": "advantages = group_advantages(rewards.view(G, P).T).T.flatten()"},
        ),
        "temperature-mismatch": Misconception(
            "The ratio before the first update is not 1, though nothing has moved: what was recorded and what is "
            "recomputed come from different distributions.",
            {"token_logprobs()": "logp = token_logprobs(policy.repeat_interleave(G, dim=0), answers)"},
        ),
        "old-recomputed": Misconception(
            "The ratio is 1 before *every* update, also where the policy has moved: you compare the policy with "
            "itself, and nothing is ever clipped.",
            {"policy_loss()": "loss, metrics = policy_loss(logp, advantages, mask)"},
        ),
        "temperature-after-softmax": Misconception(
            "You divide log-probabilities by the temperature. What comes out are no probabilities that sum to 1: the "
            "temperature belongs to the logits.",
            {"token_logprobs()": "logp = token_logprobs(policy.repeat_interleave(G, dim=0), answers) / temperature"},
        ),
        "prompts-tiled": Misconception(
            "An answer is read as if it belonged to another prompt: in which order do the rows of the policy stand "
            "when you repeat them, and in which the answers?",
            {"token_logprobs()": "logp = token_logprobs(policy.repeat(G, 1, 1), answers, temperature)"},
        ),
    },
)  # fmt: skip
