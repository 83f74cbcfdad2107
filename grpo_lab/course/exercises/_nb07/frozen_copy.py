"""The exercise frozen_copy: wrong answers, as people write them, then what is said about each."""

import copy

import torch
from torch import nn

from grpo_lab.course.exercise import Case, Exercise, Misconception
from grpo_lab.run import frozen_copy

INPUT = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)


def what_training_does(reference, args, kwargs):
    """Train the model a little, and see what that does to the reference."""
    (model,) = args
    if not isinstance(reference, nn.Module):
        return {"reference after the model has moved": type(reference).__name__}
    modes = {
        "reference in evaluation mode": not any(m.training for m in reference.modules()),
        "reference takes gradients": any(p.requires_grad for p in reference.parameters()),
        "model in training mode": [m.training for m in model.modules()],
        "model takes gradients": [p.requires_grad for p in model.parameters()],
    }
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.add_(1)
        outputs = {"reference after the model has moved": reference.eval()(INPUT), "model itself": model.eval()(INPUT)}
    return outputs | modes


def same_model(model):
    return model


def shallow(model):
    return copy.copy(model).requires_grad_(False).eval()


def policy_frozen(model):
    return copy.deepcopy(model.requires_grad_(False)).eval()


def trains_along(model):
    return copy.deepcopy(model).eval()


def keeps_dropout(model):
    return copy.deepcopy(model).requires_grad_(False)


def policy_silenced(model):
    return copy.deepcopy(model.eval()).requires_grad_(False)


def structure_only(model):
    fresh = copy.deepcopy(model)
    for parameter in fresh.parameters():
        nn.init.zeros_(parameter)
    return fresh.requires_grad_(False).eval()


def state(model):
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


class Normed(nn.Module):
    """With a buffer, which a copy of the parameters alone would share or lose."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 2))
        self.register_buffer("shift", torch.ones(2))

    def forward(self, x):
        return self.inner(x) + self.shift


def _case(label, make, training=True, frozen=()):
    def build(seed: int) -> tuple[tuple, dict]:
        model = make().double().train(training)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        for number, parameter in enumerate(model.parameters()):
            parameter.requires_grad_(number not in frozen)
        return (model,), {}

    return Case(build, label)


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
        _case("one layer", lambda: nn.Linear(3, 2)),
        _case("two layers and dropout", lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))),
        _case("a buffer", Normed),
        _case("a policy in evaluation mode", Normed, training=False),
        _case("a policy of which one part is frozen", Normed, frozen=(0, 1)),
    ),
    observe=what_training_does,
    misconceptions=(
        Misconception(
            "ref-not-frozen",
            same_model,
            "You return the model itself. The reference moves with every update, the KL is zero for ever, and beta has "
            "no effect, however large you make it. No curve will tell you.",
        ),
        Misconception(
            "parameters-shared",
            shallow,
            "Your copy is a new object with the *same* tensors in it: move the policy, and the reference moves along. "
            "You have frozen the policy, too. Which kind of copy goes all the way down?",
        ),
        Misconception(
            "policy-frozen",
            policy_frozen,
            "You froze the policy before you copied it. `requires_grad_` works in place: there is nothing left to "
            "train.",
        ),
        Misconception(
            "takes-gradients",
            trains_along,
            "The copy still takes gradients. They cost memory, and an optimizer that is given all parameters would "
            "train the reference as well.",
        ),
        Misconception(
            "dropout-on",
            keeps_dropout,
            "The copy is still in training mode: its dropout makes every log-probability a matter of chance, so the KL "
            "is noise even before the first update. Which mode should a reference be in?",
        ),
        Misconception(
            "policy-in-evaluation-mode",
            policy_silenced,
            "You put the *policy* into evaluation mode and copied it then. The policy should be left as it was.",
        ),
        Misconception(
            "weights-lost",
            structure_only,
            "Your reference has the policy's form, but not its weights. The KL would hold the policy near something "
            "that it never was.",
        ),
        Misconception(
            "state-dict",
            state,
            "You return a dictionary of tensors. That is no model: it computes nothing. (And its tensors are shared "
            "with the policy.)",
        ),
    ),
)
