from collections.abc import Iterable

import torch
from torch import nn

from grpo_lab.course.exercise import Dice, Exercise, Misconception, at_scale, drawn
from grpo_lab.models import frozen_copy

INPUT = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)


def after_an_update(reference, args, kwargs):
    """Move every tensor of the model, and see what that does to the reference."""
    (model,) = args
    if not isinstance(reference, nn.Module):
        return {"kind of the result": "no model"}
    own = {tensor.data_ptr() for tensor in model.state_dict().values()}
    shared = _listed(name for name, tensor in reference.state_dict().items() if tensor.data_ptr() in own)
    found = {"kind of the result": "a model", "tensors that reference and model share": shared}
    for name, one in (("reference", reference), ("model", model)):
        modes = dict.fromkeys("training" if module.training else "evaluation" for module in one.modules())
        found[f"modes in the {name}"] = _listed(modes)
        taking = _listed(name for name, parameter in one.named_parameters() if parameter.requires_grad)
        found[f"parameters of the {name} that take gradients"] = taking
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(1)
        x = INPUT.to(next(reference.parameters()).dtype)
        found["output of the reference after the model has moved"] = reference.eval()(x)
    return found


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words) or "none"


class Shifted(nn.Module):
    """With a buffer, which a copy of the parameters alone would share or lose."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 2))
        self.register_buffer("shift", torch.ones(2))

    def forward(self, x):
        return self.inner(x) + self.shift


def _partly_frozen(dice: Dice) -> tuple:
    model = dice.fill(Shifted())
    model.inner[0].requires_grad_(False)
    return (model,)


EXERCISE = Exercise(
    function=frozen_copy,
    points=3,
    minutes=10,
    difficulty=1,
    task="Make the reference model: the policy as it is now, which no update will ever reach. The policy itself has "
    "to be left exactly as it was.",
    hints=(
        "`reference = model` gives one model two names. What would the KL between the two always be?",
        "`copy` has two functions. One copies the shelf, the other the books as well.",
        "Three things: parameters of its own, no gradients, no dropout. Each is one word, and each belongs to the "
        "*copy*.",
    ),
    cases=(
        drawn("one layer", lambda dice: (dice.fill(nn.Linear(3, 2)),)),
        drawn(
            "two layers and dropout",
            lambda dice: (dice.fill(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))),),
        ),
        drawn("a buffer", lambda dice: (dice.fill(Shifted()),)),
        drawn("a policy in evaluation mode", lambda dice: (dice.fill(Shifted()).eval(),)),
        drawn("a policy of which one part is frozen", _partly_frozen),
        at_scale("a policy in float32", lambda dice: (dice.fill(Shifted()).float(),)),
    ),
    observe=after_an_update,
    misconceptions={
        "ref-not-frozen": Misconception(
            "You return the model itself. The reference moves with every update, the KL is zero for ever, and beta has "
            "no effect, however large you make it. No curve will tell you.",
            {"deepcopy()": "return model"},
        ),
        "parameters-shared": Misconception(
            "Your copy is a new object with the *same* tensors in it: move the policy, and the reference moves along. "
            "You have frozen the policy, too. Which kind of copy goes all the way down?",
            {"deepcopy()": "return copy.copy(model).requires_grad_(False).eval()"},
        ),
        "policy-frozen": Misconception(
            "You froze the policy before you copied it. `requires_grad_` works in place: there is nothing left to "
            "train.",
            {"deepcopy()": "return copy.deepcopy(model.requires_grad_(False)).requires_grad_(False).eval()"},
        ),
        "takes-gradients": Misconception(
            "The copy still takes gradients. They cost memory, and an optimizer that is given all parameters would "
            "train the reference as well.",
            {"deepcopy()": "return copy.deepcopy(model).eval()"},
        ),
        "dropout-on": Misconception(
            "The copy is still in training mode: its dropout makes every log-probability a matter of chance, so the KL "
            "is noise even before the first update. Which mode should a reference be in?",
            {"deepcopy()": "return copy.deepcopy(model).requires_grad_(False)"},
        ),
    },
)
