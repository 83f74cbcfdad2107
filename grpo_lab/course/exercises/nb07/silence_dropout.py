import torch
from torch import nn

from grpo_lab.course.exercise import Exercise, Misconception
from grpo_lab.course.exercises._inputs import Dice, at_scale, drawn
from grpo_lab.course.wrong_answers import changed
from grpo_lab.models import silence_dropout

PROBABILITIES = (
    "attention_dropout", "layerdrop", "resid_pdrop", "dropout_rate", "hidden_dropout_prob", "drop_path_rate", "drop",
    "jitter_noise", "input_jitter_noise",
)  # fmt: skip
OTHERS = {"jitter_noise_decay": 0.3, "eps": 1e-5, "p": 0.3, "use_dropout": True, "num_dropped": 2}


class Layer(nn.Module):
    """A layer with a Dropout, which keeps other probabilities as numbers, as transformers' layers do."""

    def __init__(self, probability: float = 0.0, **numbers: int | float):
        super().__init__()
        self.linear, self.dropout = nn.Linear(3, 3), nn.Dropout(probability)
        self.scaling = 0.5
        vars(self).update(numbers)

    def forward(self, x):
        x = self.scaling * self.dropout(self.linear(x))
        for name in PROBABILITIES:
            x = nn.functional.dropout(x, vars(self).get(name, 0.0), self.training)
        return x


class Silencer(nn.Dropout):
    """A dropout by another name."""


def two_passes(result, args, kwargs):
    """Two passes in training mode, as scoring with gradient checkpointing makes them; and what else was changed."""
    (model,) = args
    numbers = {
        f"the numbers of {name or 'the model'}": ", ".join(
            f"{key} {value:g}" for key, value in sorted(vars(module).items()) if isinstance(value, int | float)
        )
        for name, module in model.named_modules()
    }
    model.train()
    passes = [model(torch.ones(64, 3, dtype=torch.float64)) for _ in range(2)]
    return numbers | {
        "agreement of two passes in training mode": bool(torch.equal(*passes)),
        "mean output in training mode": passes[0].mean(),
    }


def _model(dice: Dice, *layers: nn.Module) -> tuple:
    return (dice.fill(nn.Sequential(nn.Linear(3, 3), *layers)),)


def _in_two_places(dice: Dice) -> tuple:
    dropout = nn.Dropout(0.5)
    return (dice.fill(nn.Sequential(nn.Linear(3, 3), dropout, nn.Sequential(nn.Linear(3, 3), dropout))),)


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
        "Attention layers of transformers have no Dropout inside: they keep a number, `attention_dropout`. "
        "`vars(module)` has a module's attributes by name; the docstring says which are probabilities.",
    ),
    cases=(
        drawn("a dropout after a layer", lambda dice: _model(dice, nn.Dropout(0.5))),
        drawn("an attention with a number", lambda dice: _model(dice, Layer(attention_dropout=0.5))),
        drawn("both, further down", lambda dice: _model(dice, nn.Sequential(Layer(0.3, layerdrop=0.5), Layer(0.2)))),
        drawn("a model in evaluation mode", lambda dice: (_model(dice, Layer(0.5))[0].eval(),)),
        drawn("noise for experts", lambda dice: _model(dice, Layer(jitter_noise=0.3), Layer(input_jitter_noise=0.2))),
        drawn("names of all kinds", lambda dice: _model(dice, Layer(**dict.fromkeys(PROBABILITIES, 0.1), **OTHERS))),
        drawn("a class derived from Dropout", lambda dice: _model(dice, Silencer(0.5))),
        at_scale("a dropout and nothing else", lambda dice: (nn.Dropout(0.5),)),
        at_scale("one dropout in two places", _in_two_places),
    ),
    observe=two_passes,
    misconceptions=(
        Misconception(
            "dropout-on",
            lambda model: None,
            "Dropout is still on. Two passes over the same tokens give different log-probabilities: before the first "
            "update the ratio is already not 1, and the clip works on noise.",
        ),
        Misconception(
            "evaluation-mode",
            lambda model: model.eval() and None,
            "You put the model into evaluation mode. The next `model.train()` brings the dropout back, and gradient "
            "checkpointing needs training mode. Make it true in both modes.",
        ),
        Misconception(
            "modules-only",
            changed(silence_dropout, ("setattr(module, name, 0.0)", "pass")),
            "The modules are silent, but the attention still drops: it keeps its probability as a number, "
            "`attention_dropout`, not in a Dropout module.",
        ),
        Misconception(
            "numbers-only",
            changed(silence_dropout, ("module.p = 0.0", "pass")),
            "The numbers are 0, but the `torch.nn.Dropout` modules still drop: they keep their probability under a "
            'name without "drop". Which?',
        ),
        Misconception(
            "every-number",
            changed(silence_dropout, (" and ('drop' in name or name in ('jitter_noise', 'input_jitter_noise'))", "")),
            "You set every float to 0. A layer has others, such as a scaling or the epsilon of its norm, and without "
            "them it computes something else. Only the probabilities should go.",
        ),
        Misconception(
            "children-only",
            changed(silence_dropout, ("model.modules()", "model.children()")),
            "You only look at the model's own children. What sits deeper, such as in the blocks of a transformer, "
            "still drops.",
        ),
    ),
)
