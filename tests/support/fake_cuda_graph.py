"""Simulate a CUDA graph on the CPU: record the operations of a step once, and replay them on the same memory.

As in a CUDA graph, Python code runs only during the recording, its numbers are constants, and tensors keep their
memory. If a step depends on anything but the contents of its memory, its replay gives other results.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_lab.rollout.decoding import graph_decoder
from grpo_lab.rollout.sample import DECODERS
from tests.support.peak import tensors

# Operations that read a value, have a result whose size depends on values, or copy a value from the host.
SYNCHRONIZING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "multinomial", "lift_fresh")


class Tape(TorchDispatchMode):
    """A context that records its operations; `replay` repeats them on the same memory."""

    def __init__(self):
        super().__init__()
        self.calls, self.read_tensors, self.result_addresses = [], {}, set()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        refuse_synchronization(function, arguments)
        result = function(*arguments, **(keywords or {}))
        tensor_by_address = {address(tensor): tensor for tensor in tensors((arguments, keywords))}
        self.read_tensors |= {
            key: tensor for key, tensor in tensor_by_address.items() if key not in self.result_addresses
        }
        fresh = [tensor if address(tensor) not in tensor_by_address else None for tensor in tensors(result)]
        self.result_addresses |= {address(tensor) for tensor in fresh if tensor is not None}
        self.calls.append((function, arguments, keywords or {}, fresh))  # keeps the tensors alive at their addresses
        return result

    def replay(self):
        for function, arguments, keywords, fresh in self.calls:
            result = tensors(function(*arguments, **keywords))
            for old, new in zip(fresh, result, strict=True):
                if old is not None:
                    old.copy_(new)


def refuse_synchronization(function, arguments):
    """Raise an AssertionError for an operation that a captured step may not call."""
    name = function.name().split("::")[-1]
    is_indexed_by_mask = name.startswith("index.") and any(t.dtype == torch.bool for t in tensors(arguments[1]))
    synchronizes = name.startswith(SYNCHRONIZING) or is_indexed_by_mask
    # On the CPU, `x[..., -1:] = 0` copies its number from a tensor; on a GPU the number is filled in.
    is_number = name == "lift_fresh" and arguments[0].dim() == 0
    assert is_number or not synchronizes, f"a captured step may not call {name}"


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def without_capture(monkeypatch):
    """Let a `GraphDecoder` run its steps on the CPU without a capture."""
    monkeypatch.setattr(graph_decoder, "_capture", lambda step, device: step)


def capture_on_the_cpu(monkeypatch):
    """Use the GPU's decoder on the CPU and capture its steps by `Tape`; return the tapes, one per capture."""
    tapes = []

    def capture(step, device):
        with torch.random.fork_rng(devices=[]):
            for _ in range(graph_decoder.WARM_UP_STEPS):
                step()
            with Tape() as tape:
                step()
        tapes.append(tape)
        return tape.replay

    monkeypatch.setitem(DECODERS, "cpu", graph_decoder.GraphDecoder)
    monkeypatch.setattr(graph_decoder, "_capture", capture)
    return tapes
