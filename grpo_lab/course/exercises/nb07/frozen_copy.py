"""The exercise frozen_copy: wrong answers, as people write them, then what is said about each."""

from collections.abc import Iterable

import torch
from torch import nn

from grpo_lab.course.changed import changed
from grpo_lab.course.exercise import Exercise, Misconception
from grpo_lab.course.exercises._inputs import at_scale, drawn
from grpo_lab.models import frozen_copy

INPUT = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)


def what_training_does(reference, args, kwargs):
    """Train the model a little, and see what that does to the reference."""
    (model,) = args
    if not isinstance(reference, nn.Module):
        return {"reference": {} if isinstance(reference, dict) else reference}
    own = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    tensors = (*reference.named_parameters(), *reference.named_buffers())
    shared = [name for name, tensor in tensors if tensor.data_ptr() in own]
    taking = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    pushed = [
        name for name, parameter in model.named_parameters() if parameter.grad is not None and parameter.grad.any()
    ]
    loud = any(module.training for module in reference.modules())
    found = {
        "reference": nn.Module(),
        "list of the tensors that reference and model share": _listed(shared),
        "list of the dtypes in the reference": _listed(sorted({str(t.dtype) for t in reference.state_dict().values()})),
        "mode of the reference": "training, at least in part" if loud else "evaluation",
        "treatment of the reference's parameters": (
            "they take gradients" if any(p.requires_grad for p in reference.parameters()) else "they take no gradient"
        ),
        "mode of the model": _listed("training" if m.training else "evaluation" for m in model.modules()),
        "list of the model's parameters that take gradients": _listed(taking),
        "list of the model's parameters with a gradient": _listed(pushed),
        "dropout of the model": _listed(str(m.p) for m in model.modules() if isinstance(m, nn.Dropout)),
    }
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.add_(1)
        outputs = {"reference after the model has moved": _output(reference), "model itself": _output(model)}
    return found | outputs


def _output(model: nn.Module) -> torch.Tensor:
    dtype = next((p.dtype for p in model.parameters()), INPUT.dtype)
    return model.eval()(INPUT.to(dtype))


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words) or "none"


def structure_only(model):
    fresh = frozen_copy(model)
    for parameter in fresh.parameters():
        nn.init.zeros_(parameter)
    return fresh


def state(model):
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


class Normed(nn.Module):
    """With a buffer, which a copy of the parameters alone would share or lose."""

    def __init__(self, persistent: bool = True):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 2))
        self.register_buffer("shift", torch.ones(2), persistent=persistent)

    def forward(self, x):
        return self.inner(x) + self.shift


def partly_frozen(model):
    for parameter in list(model.parameters())[:2]:
        parameter.requires_grad_(False)
    return model


def partly_silent(model):
    model.inner.eval()
    return model


def partly_loud(model):
    model.eval().inner[1].train()
    return model


def with_gradients(model):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model


class Tied(nn.Module):
    """Two layers with one weight, and a norm whose averages are buffers."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.norm(self.first(x)).tanh())


EXERCISE = Exercise(
    function=frozen_copy,
    notebook="07",
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
        drawn("a buffer", lambda dice: (dice.fill(Normed()),)),
        drawn("a policy in evaluation mode", lambda dice: (dice.fill(Normed()).eval(),)),
        drawn("a policy of which one part is frozen", lambda dice: (partly_frozen(dice.fill(Normed())),)),
        drawn("gradients of the last step", lambda dice: (with_gradients(dice.fill(Normed())),)),
        drawn("a buffer that no checkpoint holds", lambda dice: (dice.fill(Normed(persistent=False)),)),
        at_scale("a policy in float32", lambda dice: (dice.fill(Normed()).float(),)),
        at_scale("one part in evaluation mode", lambda dice: (partly_silent(dice.fill(Normed())),)),
        at_scale("an evaluation mode with one part in training mode", lambda dice: (partly_loud(dice.fill(Normed())),)),
        at_scale("shared weights, and the averages of a norm", lambda dice: (dice.fill(Tied()),)),
    ),
    observe=what_training_does,
    misconceptions=(
        Misconception(
            "ref-not-frozen",
            changed(frozen_copy, ("copy.deepcopy(model).requires_grad_(False).eval()", "model")),
            "You return the model itself. The reference moves with every update, the KL is zero for ever, and beta has "
            "no effect, however large you make it. No curve will tell you.",
        ),
        Misconception(
            "parameters-shared",
            changed(frozen_copy, ("deepcopy", "copy")),
            "Your copy is a new object with the *same* tensors in it: move the policy, and the reference moves along. "
            "You have frozen the policy, too. Which kind of copy goes all the way down?",
        ),
        Misconception(
            "policy-frozen",
            changed(frozen_copy, ("deepcopy(model)", "deepcopy(model.requires_grad_(False))")),
            "You froze the policy before you copied it. `requires_grad_` works in place: there is nothing left to "
            "train.",
        ),
        Misconception(
            "takes-gradients",
            changed(frozen_copy, (".requires_grad_(False)", "")),
            "The copy still takes gradients. They cost memory, and an optimizer that is given all parameters would "
            "train the reference as well.",
        ),
        Misconception(
            "dropout-on",
            changed(frozen_copy, (".eval()", "")),
            "The copy is still in training mode: its dropout makes every log-probability a matter of chance, so the KL "
            "is noise even before the first update. Which mode should a reference be in?",
        ),
        Misconception(
            "state-dict",
            state,
            "You return a dictionary. That is no model: it computes nothing. (And what `state_dict()` gives are the "
            "policy's own tensors, which move along with it.)",
        ),
    ),
)
