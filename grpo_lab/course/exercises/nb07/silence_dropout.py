"""The exercise silence_dropout: wrong answers, as people write them, then what is said about each."""

import torch
from torch import nn

from grpo_lab.course.exercise import Exercise, Misconception
from grpo_lab.course.exercises._inputs import drawn
from grpo_lab.models import silence_dropout


class Attention(nn.Module):
    """Keeps its dropout as a number, as transformers' attention layers do."""

    def __init__(self, probability: float):
        super().__init__()
        self.attention_dropout = probability
        self.projection = nn.Linear(3, 3)

    def forward(self, x):
        return nn.functional.dropout(self.projection(x), self.attention_dropout, self.training)


class Block(nn.Module):
    def __init__(self, attention: float, hidden: float):
        super().__init__()
        self.attention = Attention(attention)
        self.feed_forward = nn.Sequential(nn.Linear(3, 3), nn.Dropout(hidden))

    def forward(self, x):
        return self.feed_forward(self.attention(x))


def trained_twice(result, args, kwargs):
    """Two passes in training mode, as scoring with gradient checkpointing makes them; and what else was changed."""
    (model,) = args
    modes = [module.training for module in model.modules()]
    model.train()
    passes = [model(torch.ones(64, 3, dtype=torch.float64)) for _ in range(2)]
    return {
        "two passes in training mode agree": bool(torch.equal(*passes)),
        "output": passes[0].mean(),
        "modes": modes,
        "parts": [type(module).__name__ for module in model.modules()],
        "takes gradients": [parameter.requires_grad for parameter in model.parameters()],
    }


def does_nothing(model):
    pass


def evaluation_mode(model):
    model.eval()


def modules_only(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


def attention_only(model):
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0


def children_only(model):
    for module in model.children():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0


def keeps_nothing(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 1.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 1.0


EXERCISE = Exercise(
    function=silence_dropout,
    notebook="07",
    points=3,
    minutes=15,
    difficulty=2,
    task="Take the dropout out of a model, wherever it sits, in place and for good. With it, the policy that is "
    "scored is not the policy that sampled, and the importance ratio is noise.",
    hints=(
        "`model.eval()` lasts until the next `model.train()`. What is it about a dropout that can be changed for good?",
        "`model.modules()` walks through all parts, however deep. A `torch.nn.Dropout` keeps its probability in `p`.",
        "Attention layers of transformers have no Dropout inside: they keep a number, `attention_dropout`.",
    ),
    cases=(
        drawn("a dropout after a layer", lambda dice: (dice.fill(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))),)),
        drawn("an attention with a number", lambda dice: (dice.fill(nn.Sequential(Attention(0.5), nn.Linear(3, 2))),)),
        drawn(
            "both, further down",
            lambda dice: (dice.fill(nn.Sequential(Block(0.5, 0.3), nn.Sequential(Block(0.2, 0.5)))),),
        ),
        drawn("a model in evaluation mode", lambda dice: (dice.fill(nn.Sequential(Block(0.0, 0.5))).eval(),)),
        drawn("no dropout", lambda dice: (dice.fill(nn.Sequential(nn.Linear(3, 3), nn.Tanh())),)),
    ),
    observe=trained_twice,
    misconceptions=(
        Misconception(
            "dropout-on",
            does_nothing,
            "Dropout is still on. Two passes over the same tokens give different log-probabilities: before the first "
            "update the ratio is already not 1, and the clip works on noise.",
        ),
        Misconception(
            "evaluation-mode",
            evaluation_mode,
            "You put the model into evaluation mode. The next `model.train()` brings the dropout back, and gradient "
            "checkpointing needs training mode. Make it true in both modes.",
        ),
        Misconception(
            "modules-only",
            modules_only,
            "The modules are silent, but the attention still drops: it keeps its probability as a number, "
            "`attention_dropout`, not in a Dropout module.",
        ),
        Misconception(
            "attention-only",
            attention_only,
            "The attention is silent, but the `torch.nn.Dropout` modules still drop. Where do they keep their "
            "probability?",
        ),
        Misconception(
            "children-only",
            children_only,
            "You only look at the model's own children. What sits deeper, such as in the blocks of a transformer, "
            "still drops.",
        ),
        Misconception(
            "everything-dropped",
            keeps_nothing,
            "The probability is that of *dropping* a number. With 1 nothing is left.",
        ),
    ),
)
