"""A CUDA graph on the CPU: the operations of a step, recorded once and repeated on the same memory.

What a repetition does not see is what a graph does not see either: Python has run once, its numbers are frozen, and
every tensor is where it was. A step that relies on anything but its memory gives other results here than uncaptured.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_lab.rollout.decoding import static
from grpo_lab.rollout.decoding.dispatch import DECODERS
from tests.support.peak import tensors

# Operations that ask for a value, have a result whose size depends on one, or bring one from the host.
ASKING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "multinomial", "lift_fresh")


class Tape(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls, self.read, self.made = [], {}, set()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        refuse_questions(function, arguments)
        result = function(*arguments, **(keywords or {}))
        tensor_by_address = {address(tensor): tensor for tensor in tensors((arguments, keywords))}
        self.read |= {key: tensor for key, tensor in tensor_by_address.items() if key not in self.made}
        fresh = [tensor if address(tensor) not in tensor_by_address else None for tensor in tensors(result)]
        self.made |= {address(tensor) for tensor in fresh if tensor is not None}
        self.calls.append((function, arguments, keywords or {}, fresh))  # keeps its tensors, and so their addresses
        return result

    def replay(self):
        for function, arguments, keywords, fresh in self.calls:
            result = tensors(function(*arguments, **keywords))
            for old, new in zip(fresh, result, strict=True):
                if old is not None:
                    old.copy_(new)


def refuse_questions(function, arguments):
    name = function.name().split("::")[-1]
    asks = name.startswith(ASKING) or (
        name.startswith("index.") and any(t.dtype == torch.bool for t in tensors(arguments[1]))
    )
    # On the CPU, `x[..., -1:] = 0` brings its number in a tensor; on a card it is filled in there.
    number = name == "lift_fresh" and arguments[0].dim() == 0
    assert number or not asks, f"a captured step may not call {name}"


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def no_question(monkeypatch):
    """Let a `GraphDecoder` take its steps on the CPU as they are, without a capture."""
    monkeypatch.setattr(static, "_capture", lambda step, device: step)


def capture_on_the_cpu(monkeypatch):
    """Let the CPU have the decoder of a GPU, and capture its step here. Returns the tapes, one a capture."""
    tapes = []

    def capture(step, device):
        with torch.random.fork_rng(devices=[]):
            for _ in range(static.WARM_UP_STEPS):
                step()
            with Tape() as tape:
                step()
        tapes.append(tape)
        return tape.replay

    monkeypatch.setitem(DECODERS, "cpu", static.GraphDecoder)
    monkeypatch.setattr(static, "_capture", capture)
    return tapes
