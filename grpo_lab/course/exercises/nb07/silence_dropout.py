"""The exercise silence_dropout: wrong answers, as people write them, then what is said about each."""

from types import SimpleNamespace

import torch
from torch import nn

from grpo_lab.course.changed import changed
from grpo_lab.course.exercise import Exercise, Misconception
from grpo_lab.course.exercises._inputs import Dice, at_scale, drawn
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


class Experts(nn.Module):
    """Keeps three probabilities as numbers, beside a number that is none and a text with "drop" in its name."""

    def __init__(self, jitter: float, input_jitter: float, layerdrop: float):
        super().__init__()
        self.jitter_noise, self.input_jitter_noise, self.layerdrop = jitter, input_jitter, layerdrop
        self.scaling, self.drop_from = 0.5, "branch"
        self.projection = nn.Linear(3, 3)

    def forward(self, x):
        if self.training and torch.rand(()) < self.layerdrop:
            return x
        branch = self.scaling * self.projection(self._jittered(x))
        return x + branch if self.drop_from == "branch" else branch

    def _jittered(self, x):
        for noise in (self.jitter_noise, self.input_jitter_noise) if self.training else ():
            x = x * (1 + noise * (2 * torch.rand_like(x) - 1))
        return x


class Residual(nn.Module):
    """Other names of probabilities, beside attributes that are none: a float, a bool, a whole number, a parameter."""

    def __init__(self, probability: float, rate: float):
        super().__init__()
        self.resid_pdrop, self.dropout_rate = probability, rate
        self.p, self.jitter_eps = 0.5, 0.25  # of a norm
        self.use_dropout, self.num_dropped = True, 2
        self.drop_bias = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        branch = (x.abs() + self.jitter_eps) ** self.p + self.drop_bias
        for probability in (self.resid_pdrop, self.dropout_rate) if self.use_dropout else ():
            branch = nn.functional.dropout(branch, probability, self.training)
        return x + branch


class Silencer(nn.Dropout):
    """A dropout that goes by another name, and drops twice."""

    def __init__(self, probability: float):
        super().__init__(probability)
        self.drop_again = probability

    def forward(self, x):
        return nn.functional.dropout(super().forward(x), self.drop_again, self.training)


class Named(nn.Module):
    """Numbers under any names: probabilities, and others that only look like one; and parts with "drop" in theirs."""

    def __init__(self, **numbers: float):
        super().__init__()
        self.drop_layers = nn.ModuleList([nn.Linear(3, 3), Silencer(0.2)])
        self.dropout = nn.Dropout(0.25)
        vars(self).update(numbers)

    def forward(self, x):
        for layer in (*self.drop_layers, self.dropout):
            x = layer(x)
        for name in PROBABILITIES:
            x = nn.functional.dropout(x, vars(self).get(name, 0.0), self.training)
        return x


PROBABILITIES = (
    "hidden_dropout_prob", "attn_pdrop", "drop_path_rate", "drop", "_drop_p", "ffn_dropout", "layerdrop", "drop_prob",
    "jitter_noise", "input_jitter_noise",
)  # fmt: skip
OTHERS = {
    "jitter_noise_decay": 0.3,
    "other_jitter_noise": 0.3,
    "eps": 1e-5,
    "probability": 0.3,
    "noise": 0.3,
    "rate": 0.3,
}


def trained_twice(result, args, kwargs):
    """Two passes in training mode, as scoring with gradient checkpointing makes them; and what else was changed."""
    (model,) = args
    states = {
        f"the state of module {name!r}" if name else "the state of the model": _described(module)
        for name, module in model.named_modules()
    }
    model.train()
    passes = [model(torch.ones(64, 3, dtype=torch.float64)) for _ in range(2)]
    return states | {
        "agreement of two passes in training mode": bool(torch.equal(*passes)),
        "mean output in training mode": passes[0].mean(),
    }


def _described(module: nn.Module) -> str:
    """The type of a part, and the numbers and texts that it keeps."""
    kept = {f"config.{name}": value for name, value in vars(getattr(module, "config", SimpleNamespace())).items()}
    kept |= {name: value for name, value in vars(module).items() if isinstance(value, int | float | str)}
    kept |= {f"{name}.requires_grad": p.requires_grad for name, p in module.named_parameters(recurse=False)}
    texts = (f"{name} {value:g}" if type(value) in (int, float) else f"{name} {value}" for name, value in kept.items())
    return f"{type(module).__name__}: {', '.join(sorted(texts))}"


def does_nothing(model):
    pass


def evaluation_mode(model):
    model.eval()


def _in_two_places(dice: Dice) -> tuple:
    dropout = nn.Dropout(0.5)
    return (dice.fill(nn.Sequential(nn.Linear(3, 3), dropout, nn.Sequential(nn.Linear(3, 3), dropout))),)


def _other_names(dice: Dice) -> tuple:
    model = dice.fill(nn.Sequential(Residual(0.3, 0.0), nn.Linear(3, 3), Residual(0.0, 0.4)))
    model.config = SimpleNamespace(resid_pdrop=0.3)
    return (model,)


def _half_asleep(dice: Dice) -> tuple:
    model = dice.fill(nn.Sequential(Block(0.1, 0.2), Block(0.3, 0.4), nn.Dropout(0.5)))
    model[0].eval()
    return (model,)


def _nested(levels: int) -> nn.Module:
    inner = [_nested(levels - 1)] if levels > 1 else []
    return nn.Sequential(Block(0.1, 0.1), *inner, Experts(0.1, 0.1, 0.5), nn.Tanh())


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
        drawn("a dropout after a layer", lambda dice: (dice.fill(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))),)),
        drawn("an attention with a number", lambda dice: (dice.fill(nn.Sequential(Attention(0.5), nn.Linear(3, 2))),)),
        drawn(
            "both, further down",
            lambda dice: (dice.fill(nn.Sequential(Block(0.5, 0.3), nn.Sequential(Block(0.2, 0.5)))),),
        ),
        drawn("a model in evaluation mode", lambda dice: (dice.fill(nn.Sequential(Block(0.0, 0.5))).eval(),)),
        drawn("no dropout", lambda dice: (dice.fill(nn.Sequential(nn.Linear(3, 3), nn.Tanh())),)),
        drawn(
            "noise for the experts, and a layer left out",
            lambda dice: (
                dice.fill(nn.Sequential(Experts(0.3, 0.0, 0.0), Experts(0.0, 0.2, 0.0), Experts(0.0, 0.0, 0.9))),
            ),
        ),
        drawn("other names, and other numbers", _other_names),
        drawn(
            "names of all kinds",
            lambda dice: (
                dice.fill(Named(**{name: 0.1 + 0.05 * n for n, name in enumerate(PROBABILITIES)}, **OTHERS)),
            ),
        ),
        drawn("a kind of dropout", lambda dice: (dice.fill(nn.Sequential(nn.Linear(3, 3), Silencer(0.5))),)),
        drawn("one block in evaluation mode", _half_asleep),
        drawn(
            "torch's own layer of a transformer",
            lambda dice: (dice.fill(nn.TransformerEncoderLayer(3, 1, dim_feedforward=4, dropout=0.3)),),
        ),
        at_scale(
            "probabilities of 1, and tiny ones",
            lambda dice: (dice.fill(nn.Sequential(Block(1.0, 1e-6), Experts(1.0, 1e-6, 0.0), Block(1e-6, 1.0))),),
        ),
        at_scale("a dropout and nothing else", lambda dice: (nn.Dropout(0.5),)),
        at_scale("an attention and nothing else", lambda dice: (dice.fill(Attention(0.5)),)),
        at_scale("one dropout in two places", _in_two_places),
        at_scale("layers on five levels", lambda dice: (dice.fill(_nested(5)),)),
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
            "known-names-only",
            changed(silence_dropout, ("'drop' in name", "name in ('attention_dropout', 'layerdrop')")),
            'Some numbers with "drop" in their name are silent, and others are not, such as `resid_pdrop` and '
            "`dropout_rate`. A list of names ends with the models that you know; the docstring has a rule.",
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
