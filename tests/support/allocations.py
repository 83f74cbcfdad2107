"""Measure the peak of torch's CPU allocator during a call, including the workspaces of kernels."""

import itertools
import json
import tempfile
from pathlib import Path

import torch


def peak_on_cpu(call) -> int:
    """Return the peak bytes beyond those allocated before, from the profiler's record of allocations and releases."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = call()
    del result
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e["name"] == "[memory]")
    return max(itertools.accumulate(size for _, size in changes))
