"""The most bytes of tensors that are alive at one time during a call, beyond those that were alive before it."""

import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    return (peak_on_card if device.type == "cuda" else peak_on_cpu)(call)


def peak_on_card(call: Callable[[], object]) -> int:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before


def peak_on_cpu(call: Callable[[], object]) -> int:
    """The most bytes of tensors alive at one time, from the profiler's record of every allocation and release."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        kept = call()
    del kept
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e["name"] == "[memory]")
    return max(itertools.accumulate(size for _, size in changes))
