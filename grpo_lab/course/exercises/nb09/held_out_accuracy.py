import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.functional import one_hot

from grpo_lab.course.exercise import Case, Dice, Exercise, Misconception

NUMBERS = 7


def held_out_accuracy(model: nn.Module, prompts: Int[Tensor, "N P"], answers: Int[Tensor, "N T"]) -> float:
    """How often is the likeliest answer right? Called in the middle of training, which goes on afterwards.

    Args:
        model: takes token ids (N, L) and returns logits (N, L, V), those at a place for the token behind it.
        prompts: held out.
        answers: the right ones, all of one length. The model writes as many tokens, one after the other.

    Returns:
        The share of prompts whose answer is right in every token.
    """
    was_training = model.training  # [mode]
    model.eval()
    ids = prompts  # N L, with L growing
    with torch.no_grad():
        for _ in range(answers.shape[1]):
            likeliest = model(ids)[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat([ids, likeliest], dim=1)
    model.train(was_training)
    right = (ids[:, prompts.shape[1] :] == answers).all(-1)
    return right.float().mean().item()


class Summing(nn.Module):
    """Says the sum of all that it reads. In training mode it sees the last token only, as a language model does that
    generates with gradient checkpointing on: transformers then drops the cache."""

    def forward(self, ids):
        seen = ids if self.training else ids.cumsum(-1)
        return one_hot(seen % NUMBERS, NUMBERS).double()


def after_measuring(accuracy, args, kwargs):
    modes = {"training" if module.training else "evaluation" for module in args[0].modules()}
    return {"accuracy": accuracy, "mode of the model afterwards": ", ".join(sorted(modes))}


def _sums(label: str, N: int, P: int, T: int, wrong: int, training: bool = True) -> Case:
    """Of N answers, so many have a wrong token, one in its first place, the next in its second, and so on."""

    def build(seed: int) -> tuple[tuple, dict]:
        prompts = Dice(seed).integers(NUMBERS, N, P)
        first = prompts.sum(-1, keepdim=True)
        answers = first * 2 ** torch.arange(T) % NUMBERS  # behind a sum, the sum of all is twice the sum
        rows = torch.arange(wrong)
        answers[rows, rows % T] = (answers[rows, rows % T] + 1) % NUMBERS
        return (Summing().train(training), prompts, answers), {}

    return Case(build, label)


def _dropout(seed: int) -> tuple[tuple, dict]:
    dice = Dice(seed)
    model = dice.fill(nn.Sequential(nn.Embedding(NUMBERS, 8), nn.Dropout(0.5), nn.Linear(8, NUMBERS)))
    prompts = dice.integers(NUMBERS, 24, 2)
    answers = model.eval()(prompts)[:, -1:].argmax(-1)
    answers[:6] = (answers[:6] + 1) % NUMBERS
    return (model.train(), prompts, answers), {}


EXERCISE = Exercise(
    function=held_out_accuracy,
    points=4,
    minutes=15,
    difficulty=2,
    task="""The reward in training says 0.8, and this measurement of the same model 0.1. Written to disk and loaded
again, the model is fine. Below, a model that repeats what it reads should be right always. Measure, find the fault,
repair it: measuring must not change the training.

```python
numbers = torch.arange(7)[:, None]
model = nn.Sequential(nn.Embedding.from_pretrained(torch.eye(7)), nn.Dropout(0.9))
print([held_out_accuracy(model, numbers, numbers) for _ in range(3)])
```""",
    hints=(
        "Measure the same model twice, with dropout in it. Do the two agree?",
        "What differs between the model here and the one that was loaded from disk? Print `model.training` in both.",
        "Some modules compute something else while they are trained. One call tells them that nobody is training; "
        "what must be true again when you return?",
    ),
    cases=(
        _sums("one token, two prompts", 2, 2, 1, wrong=0),
        _sums("three tokens, one of four wrong", 4, 2, 3, wrong=1),
        _sums("the model was not in training", 4, 3, 2, wrong=3, training=False),
        _sums("half of ten wrong", 10, 4, 2, wrong=5),
        Case(_dropout, "a model with dropout"),
    ),
    observe=after_measuring,
    planted=("cache-dropped",),
    misconceptions={
        "cache-dropped": Misconception(
            "You measure another model than the one that is used later. Here it sees only the last token that it "
            "read; and one with dropout gives another number whenever you measure it.",
            {"[mode]": "", "eval()": "", "train()": ""},
        ),
        "left-in-evaluation": Misconception(
            "The number is right, and the model stays in evaluation mode: from here on the training goes on without "
            "dropout, and nobody asked for that. In which mode did you find it?",
            {"train()": ""},
        ),
        "always-to-training": Misconception(
            "The model is in training mode afterwards, also where it was not before. Leave it as you found it.",
            {"train()": "model.train()"},
        ),
        "share-of-tokens": Misconception(
            "You count right tokens. An answer with one wrong token is wrong, however many of the others are right.",
            {"all()": "right = ids[:, prompts.shape[1]:] == answers"},
        ),
    },
)
