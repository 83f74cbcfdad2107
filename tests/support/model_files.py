"""Describe the files and the weights of a model, so that a test sees whether they changed."""

import hashlib
from pathlib import Path

import torch


def file_states(model_folder: Path) -> dict:
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in model_folder.iterdir()}


def digest(tensors: dict[str, torch.Tensor]) -> str:
    hasher = hashlib.sha256()
    for name in sorted(tensors):
        hasher.update(name.encode())
        hasher.update(tensors[name].contiguous().numpy())
    return hasher.hexdigest()
